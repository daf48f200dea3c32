#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# sanitize.sh full|quick PRESET …: builds and tests under the presets asan (addresses and undefined behaviour), tsan
# (threads) or fuzz (libFuzzer, a minute a parser). "quick" leaves out what runs the command line and meets fewer random
# problems (HEADGATE_TEST_RUNS).
set -euo pipefail
cd "$(dirname "$0")/.."

# Folders of tests/: those whose code reads files, computes addresses or owns memory; and those with threads.
memory=(attention bench capi compare core data decoder evaluate families fuzz generate io layers oracle page tokenize train verify xray)
threads=(attention capi decoder demo evaluate layers train)
# Left out where it has to be quick: programs whose code others run too, on smaller problems or fewer threads.
long_asan='determinism_test'
long_tsan='(determinism|equal_terms|extremes|models_golden|packed)_test'
# Programs in the latter folders that work on one thread.
single_threaded='(arguments|checkpoint|elementary|models_files|models_gradients|problem)_test'

size=${1:-}
[[ "$size" == full || "$size" == quick ]] && (($# > 1)) || {
  echo "usage: scripts/sanitize.sh full|quick PRESET …" >&2
  exit 2
}
shift
[[ "$size" == full ]] || export HEADGATE_TEST_RUNS=${HEADGATE_TEST_RUNS:-8}

folders_under() { # preset; nothing means all of it
  case "$size $1" in
    *" tsan") echo "${threads[@]}" ;;
    "quick asan") echo "${memory[@]}" ;;
  esac
}

for preset in "$@"; do
  read -ra folders <<<"$(folders_under "$preset")"
  build=() tests=()
  if ((${#folders[@]} > 0)); then
    build=(--target "${folders[@]/#/tests_}")
    tests=(--label-regex "^($(IFS='|' && echo "${folders[*]}"))\$" --label-exclude '^tool$')
  fi
  case "$size $preset" in
    "quick asan") tests+=(--exclude-regex "^$long_asan\$") ;;
    "quick tsan") tests+=(--exclude-regex "^($single_threaded|$long_tsan)\$") ;;
    *" tsan") tests+=(--exclude-regex "^$single_threaded\$") ;;
  esac
  echo "== headgate: building for the $preset preset"
  scripts/configure.sh "$preset"
  cmake --build --preset "$preset" "${build[@]}"
  echo "== headgate: testing under the $preset preset"
  ctest --preset "$preset" --parallel 2 "${tests[@]}"
done
