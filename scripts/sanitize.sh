#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# sanitize.sh full|quick PRESET …: builds and tests under the presets asan (addresses and undefined behaviour), tsan
# (threads: tests that are labelled `threads`) or fuzz (libFuzzer, a minute a parser). "quick" runs no process of the
# command line and meets fewer random problems (HEADGATE_TEST_RUNS), but builds everything: it is also the build by clang,
# whose warnings are errors.
set -euo pipefail
cd "$(dirname "$0")/.."

# Left out where it has to be quick: programs whose code others run too, on smaller problems or fewer threads.
long_asan='determinism_test'
long_tsan='(determinism|equal_terms|models_golden|packed)_test'

size=${1:-}
[[ "$size" == full || "$size" == quick ]] && (($# > 1)) || {
  echo "usage: scripts/sanitize.sh full|quick PRESET …" >&2
  exit 2
}
shift
[[ "$size" == full ]] || export HEADGATE_TEST_RUNS=${HEADGATE_TEST_RUNS:-6}

for preset in "$@"; do
  build=() tests=()
  case "$size $preset" in
    *" tsan") build=(--target tests_threads) tests=(--label-regex '^threads$') ;;
    "quick asan") tests=(--label-exclude '^(docs|experiments|scripts|tool)$' --exclude-regex "^$long_asan\$") ;;
  esac
  [[ "$size $preset" != "quick tsan" ]] || tests+=(--exclude-regex "^$long_tsan\$")
  echo "== headgate: building for the $preset preset"
  scripts/configure.sh "$preset"
  cmake --build --preset "$preset" "${build[@]}"
  echo "== headgate: testing under the $preset preset"
  ctest --preset "$preset" --parallel "${CMAKE_BUILD_PARALLEL_LEVEL:-2}" "${tests[@]}"
done
