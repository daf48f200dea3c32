#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# sanitize.sh full|quick [preset …]: builds and tests under the presets asan (addresses and undefined behaviour) and tsan
# (threads), or those named: fuzz runs libFuzzer for a minute a parser. "quick" leaves out the tool and what only it needs
# (files, layers, models, training) and meets fewer random problems (HEADGATE_TEST_RUNS), to fit a run of continuous
# integration.
set -euo pipefail
cd "$(dirname "$0")/.."

case "${1:-}" in
  full) tools=ON ;;
  quick)
    export HEADGATE_TEST_RUNS=${HEADGATE_TEST_RUNS:-8}
    tools=OFF
    ;;
  *)
    echo "usage: scripts/sanitize.sh full|quick [preset …]" >&2
    exit 2
    ;;
esac
shift
(($# > 0)) || set -- asan tsan

for preset in "$@"; do
  echo "== headgate: building for the $preset preset"
  [[ "$preset" != tsan ]] || tools=OFF
  scripts/configure.sh "$preset" -DHEADGATE_TOOLS="$tools"
  cmake --build --preset "$preset"
  echo "== headgate: testing under the $preset preset"
  ctest --preset "$preset"
done
