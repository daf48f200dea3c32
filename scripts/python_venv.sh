#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# python_venv.sh [BUILD]: a virtual environment in BUILD/python-venv (default: build) with what pyproject.toml pins for
# building and testing the Python package, fetched from PyPI once. Prints the arguments of CMake that build the package
# with it. Where PyPI cannot be reached it says in one line what is left out and prints those that leave it out; with
# CI=true that is a failure.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=${1:-build}/python-venv
wanted=$(python3 - <<'PYTHON'
import tomllib
with open("pyproject.toml", "rb") as file:
    project = tomllib.load(file)
print("\n".join(project["build-system"]["requires"] + project["dependency-groups"]["test"]))
PYTHON
)
stamp=$venv/installed.txt
log=${1:-build}/python-venv.log

if [[ "$(cat "$stamp" 2>/dev/null)" != "$wanted" ]]; then
  mkdir -p "${1:-build}"
  echo "== headgate: a virtual environment for the Python package in $venv" >&2
  if ! { python3 -m venv "$venv" && "$venv/bin/python" -m pip install --disable-pip-version-check --timeout 20 --retries 2 \
    $wanted; } >"$log" 2>&1; then
    echo "python_venv: the Python package is left out, not built and not tested: $(grep -m1 '^ERROR' "$log" || tail -n 1 "$log")" >&2
    [[ "${CI:-}" != true ]] || exit 1
    echo "-DHEADGATE_PYTHON=OFF"
    exit 0
  fi
  echo "$wanted" >"$stamp"
fi
echo "-DHEADGATE_PYTHON=ON -DPython_EXECUTABLE=$PWD/$venv/bin/python"
