#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# test.sh: what `make test` does once the packages are there. A failed check is reported and does not keep the others from
# running; CTest's summary comes last.
set -uo pipefail
cd "$(dirname "$0")/.."

failed=()
check() {
  local name=$1 start=$SECONDS
  shift
  if "$@"; then
    echo "== headgate: $name passed in $((SECONDS - start)) s"
  else
    echo "== headgate: $name FAILED after $((SECONDS - start)) s" >&2
    failed+=("$name")
  fi
}

start=$SECONDS
echo "== headgate: building everything in build/"
scripts/configure.sh release && cmake --build --preset release || exit 1
echo "== headgate: built in $((SECONDS - start)) s"

check lint scripts/lint.sh
for preset in asan tsan; do
  check "$preset" scripts/sanitize.sh quick "$preset"
done

echo "== headgate: every test"
ctest --preset release --parallel 2 || failed+=(tests)

echo "== headgate: make test took $((SECONDS - start)) s"
if ((${#failed[@]} > 0)); then
  echo "make test: failed: ${failed[*]}" >&2
  exit 1
fi
