#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# make_install.sh SOURCE CMAKE WORK: `make install` asks for the packages of library and tool alone, and builds nothing else.
# Nothing is installed or built here: both are asked what they would do.
set -euo pipefail
source=$1 cmake=$2 work=$3

fail() {
  echo "make_install: $*" >&2
  exit 1
}

steps=$(make --no-print-directory -n -C "$source" install PREFIX=/nowhere)
[[ "$(grep scripts/setup.sh <<<"$steps")" == "scripts/setup.sh build tool" ]] || fail "other packages than expected: $steps"
! "$source/scripts/setup.sh" --list build tool | grep -E 'clang|gtest|rapidcheck|python' || fail "packages that only tests need"
grep -qx 'cmake --build --preset tool' <<<"$steps" || fail "another build than expected: $steps"

cd "$source"
"$cmake" --preset tool -B "$work" --fresh --log-level=WARNING --no-warn-unused-cli \
  -DCMAKE_DISABLE_FIND_PACKAGE_GTest=ON -DCMAKE_DISABLE_FIND_PACKAGE_rapidcheck=ON >/dev/null
objects='(src|tests|examples)/[a-z_/]*CMakeFiles/[^ ]*\.o'
compiled=$("$cmake" --build "$work" --target headgate_tool -- -n | grep -oE "$objects" || true)
grep -q '^src/library/attention/' <<<"$compiled" || fail "the kernels would not be built"
! grep -v '^src/' <<<"$compiled" || fail "the files above would be compiled too"
