#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# docs.sh [mkdocs arguments]: builds the site (mkdocs.yml) in build/site, or runs mkdocs with the arguments, such as
#   `serve`. Uses the tool and the package of build/, which `make docs` builds first.
# docs.sh --into DIR: builds the site in DIR/VERSION, beside other versions, with a version selector. Any web server can
#   serve DIR.
# HEADGATE_NOTEBOOK_SMALL=1 executes the notebook on few tokens and without a model.
set -euo pipefail
cd "$(dirname "$0")/.."

export NO_MKDOCS_2_WARNING=1 PYTHONDONTWRITEBYTECODE=1
mkdocs=(build/python-venv/bin/python -m mkdocs)
if [[ "${1:-}" == --into ]]; then
  (($# == 2)) || { echo "usage: scripts/docs.sh --into DIR" >&2 && exit 1; }
  into=$(cd "$OLDPWD" && realpath -m -- "$2")
  version=$(scripts/site/versions.py)
  HEADGATE_SITE_VERSIONS=1 "${mkdocs[@]}" build --site-dir "$into/$version.part"
  rm -rf "${into:?}/$version"
  mv "$into/$version.part" "$into/$version"
  scripts/site/versions.py "$into"
else
  exec "${mkdocs[@]}" "${@:-build}"
fi
