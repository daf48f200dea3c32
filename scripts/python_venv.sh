#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# python_venv.sh [BUILD [GROUP]]: makes a virtual environment in BUILD (default: build) with the packages of GROUP that
# pyproject.toml pins. Fetches them from PyPI once.
#   test, the default: BUILD/python-venv, for building and testing the Python package and the site. Prints the arguments
#     of CMake that build the package with it. If PyPI cannot be reached, prints arguments that leave the package out,
#     and says so in one line. With CI=true, that is a failure.
#   peers: BUILD/peers-venv, for bench/peers.py. Prints the interpreter. Leaves out packages that cannot be installed,
#     and names each in a line. Compiles ggml for this CPU, which takes some minutes.
#   wheel: BUILD/wheel-venv, for scripts/wheel.sh. Prints the interpreter. Fails if PyPI cannot be reached.
#   lint: BUILD/lint-venv, for scripts/lint.sh and pre-commit, likewise.
#   mutants: BUILD/mutants-venv, for scripts/mutation_check.py, likewise.
set -euo pipefail
cd "$(dirname "$0")/.."

build=${1:-build}
group=${2:-test}
case $group in
  test) venv=$build/python-venv ;;
  peers | wheel | lint | mutants) venv=$build/$group-venv ;;
  *) echo "python_venv: no group '$group'; there are test, peers, wheel, lint and mutants" >&2 && exit 1 ;;
esac
stamp=$venv/installed.txt
log=$venv.log
wanted=$(
  python3 - "$group" <<'PYTHON'
import sys
import tomllib
with open("pyproject.toml", "rb") as file:
    project = tomllib.load(file)
groups = project["dependency-groups"]
def packages(group):
    for row in groups[group]:
        yield from packages(row["include-group"]) if isinstance(row, dict) else [row]
needed = project["build-system"]["requires"] if sys.argv[1] in ("test", "wheel") else []
if sys.argv[1] == "test":
    needed += packages("docs")
print("\n".join([*needed, *packages(sys.argv[1])]))
PYTHON
)

install() {
  "$venv/bin/python" -m pip install --disable-pip-version-check --timeout 20 --retries 2 "$@"
}

reason() {
  grep -m1 '^ERROR' "$log" || tail -n 1 "$log"
}

install_tests() {
  { python3 -m venv "$venv" && install $wanted; } >"$log" 2>&1 && return
  echo "python_venv: the Python package is left out, not built and not tested: $(reason)" >&2
  [[ "${CI:-}" != true ]] || exit 1
  echo "-DHEADGATE_PYTHON=OFF"
  exit 0
}

install_tools() {
  { python3 -m venv "$venv" && install $wanted; } >"$log" 2>&1 || { echo "python_venv: no $group: $(reason)" >&2 && exit 1; }
}

# Installs packages one by one, so that a failure does not affect the others. The next call tries the failed ones again.
install_peers() {
  local package left_out=
  python3 -m venv "$venv" >"$log" 2>&1 || { echo "python_venv: no peers: $(reason)" >&2 && exit 1; }
  for package in $wanted; do
    CMAKE_ARGS="-DLLAVA_BUILD=OFF ${CMAKE_ARGS:-}" install "$package" >"$log" 2>&1 && continue
    echo "python_venv: $package is left out: $(reason)" >&2
    left_out=yes
  done
  [[ -z $left_out ]] || wanted=
}

if [[ "$(cat "$stamp" 2>/dev/null)" != "$wanted" ]]; then
  mkdir -p "$build"
  echo "== headgate: a virtual environment in $venv, for $group" >&2
  case $group in
    test) install_tests ;;
    peers) install_peers ;;
    wheel | lint | mutants) install_tools ;;
  esac
  echo "$wanted" >"$stamp"
fi
case $group in
  test) echo "-DHEADGATE_PYTHON=ON -DPython_EXECUTABLE=$PWD/$venv/bin/python" ;;
  peers | wheel | lint | mutants) echo "$PWD/$venv/bin/python" ;;
esac
