#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# sanitize.sh full|quick PRESET …: builds and tests with the presets asan (addresses and undefined behaviour), tsan
# (data races, with the tests labelled `threads`) or fuzz (libFuzzer, one minute per parser). "quick" is for every
# commit. It builds and tests the library, and with asan also the readers of files, with fewer random problems
# (HEADGATE_TEST_RUNS). These builds also check that clang has no warnings.
set -euo pipefail
cd "$(dirname "$0")/.."

# Folders of tests/, and labels, that "quick" builds and tests, and the programs that it omits. Other programs run the
# same code, on smaller problems or fewer threads.
library=(attention capi core linear_attention verify)
threaded=(attention capi linear_attention)
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
      build=(--target "${threaded[@]/#/tests_}")
      tests=(--label-regex '^threads$' --label-regex "$(labels "${threaded[@]}")" --exclude-regex "^$long_tsan\$")
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
