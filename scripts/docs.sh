#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# docs.sh [mkdocs arguments]: builds the site (mkdocs.yml) in build/site, or does what the arguments say, as `serve`, with
# the tool and the package of build/. `make docs` builds those first.
set -euo pipefail
cd "$(dirname "$0")/.."

export NO_MKDOCS_2_WARNING=1 PYTHONDONTWRITEBYTECODE=1
exec build/python-venv/bin/python -m mkdocs "${@:-build}"
