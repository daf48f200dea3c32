#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# wheel.sh [--sdist] [--check] [BUILD]: builds the wheel of the Python package in BUILD/wheels (default: build). The
# wheel contains all libraries except the C and C++ runtimes. Uses the virtual environment `test` or `wheel` of
# python_venv.sh.
#   --sdist  also makes a source distribution there, and builds the wheel from it
#   --check  then installs and runs the wheel (tests/package/wheel.sh); status 77 means that NumPy cannot be fetched
set -euo pipefail
cd "$(dirname "$0")/.."

check=false from_sdist=false
while [[ "${1:-}" == --* ]]; do
  case $1 in
    --check) check=true ;;
    --sdist) from_sdist=true ;;
    *) echo "wheel: no option $1; there are --sdist and --check" >&2 && exit 1 ;;
  esac
  shift
done
build=${1:-build}
wheels=$build/wheels
python=$PWD/$build/python-venv/bin/python
[[ -f $build/python-venv/installed.txt ]] || python=$(scripts/python_venv.sh "$build" wheel)
# Uses the compiler names, the locale and the base of paths of other builds, so that ccache finds their objects.
export CC=${CC:-cc} CXX=${CXX:-c++} PYTHONCOERCECLOCALE=0 CCACHE_BASEDIR=${CCACHE_BASEDIR:-$PWD}
export PATH="${python%/*}:$PATH"

logged() { # logged NAME COMMAND…
  local log=$wheels/$1.log
  shift
  "$@" >"$log" 2>&1 || { tail -n 30 "$log" >&2 && exit 1; }
}

rm -rf "$wheels" && mkdir -p "$wheels/plain"
source=.
if $from_sdist; then
  logged sdist "$python" -m build --sdist --no-isolation --outdir "$wheels" .
  sdist=$(echo "$wheels"/headgate_attention-*.tar.gz)
  echo "wheel: $sdist, $(du -k "$sdist" | cut -f1) kB"
  source=$build/sdist
  rm -rf "$source" && mkdir -p "$source"
  tar -xf "$sdist" -C "$source" --strip-components=1
fi
logged build "$python" -m build --wheel --no-isolation --outdir "$wheels/plain" "$source"
logged repair "$python" -m auditwheel repair --wheel-dir "$wheels" "$wheels"/plain/*.whl
wheel=$(echo "$wheels"/*.whl)
echo "wheel: $wheel, $(du -m "$wheel" | cut -f1) MB"
! $check || tests/package/wheel.sh "$wheel" "$python"
