#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# sanitize.sh full|quick PRESET …: builds and tests under the presets asan (addresses and undefined behaviour), tsan
# (threads: tests that are labelled `threads`) or fuzz (libFuzzer, a minute a parser). "quick" is for every commit: it
# builds and tests the library, and under asan also what reads files, with fewer random problems (HEADGATE_TEST_RUNS). It
# is also the build by clang, whose warnings are errors.
set -euo pipefail
cd "$(dirname "$0")/.."

# What is built and tested where it has to be quick, by folders of tests/ or their labels, and what of that is left out:
# programs whose code others run too, on smaller problems or fewer threads.
library=(attention capi core linear_attention verify)
readers=(data io tokenize)
long_asan='determinism_test'
long_tsan='(determinism|equal_terms|packed)_test'

size=${1:-}
[[ "$size" == full || "$size" == quick ]] && (($# > 1)) || {
  echo "usage: scripts/sanitize.sh full|quick PRESET …" >&2
  exit 2
}
shift
[[ "$size" == full ]] || export HEADGATE_TEST_RUNS=${HEADGATE_TEST_RUNS:-6}

labels() { echo "^($(IFS='|' && echo "$*"))\$"; }

for preset in "$@"; do
  build=() tests=()
  case "$size $preset" in
    "full tsan") build=(--target tests_threads) tests=(--label-regex '^threads$') ;;
    "quick tsan")
      build=(--target "${library[@]/#/tests_}")
      tests=(--label-regex '^threads$' --label-regex "$(labels "${library[@]}")" --exclude-regex "^$long_tsan\$")
      ;;
    "quick asan")
      folders=("${library[@]}" "${readers[@]}")
      build=(--target "${folders[@]/#/tests_}")
      tests=(--label-regex "$(labels "${folders[@]}")" --exclude-regex "^$long_asan\$")
      ;;
  esac
  echo "== headgate: building for the $preset preset"
  scripts/configure.sh "$preset"
  cmake --build --preset "$preset" "${build[@]}"
  echo "== headgate: testing under the $preset preset"
  ctest --preset "$preset" --parallel "${CMAKE_BUILD_PARALLEL_LEVEL:-2}" "${tests[@]}"
done
