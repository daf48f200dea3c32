#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# check.sh [COMMIT]: what `make check` does once the packages are installed. All checks run, even if one fails. clang-tidy reads what changed since COMMIT; by default since this branch left origin/main or, on main itself, by
# the last 20 commits.
set -uo pipefail
cd "$(dirname "$0")/.."

base_commit() {
  local base
  base=$(git merge-base HEAD origin/main 2>/dev/null)
  [[ -n "$base" && "$base" != "$(git rev-parse HEAD)" ]] || base=$(git rev-parse --verify --quiet HEAD~20)
  echo "$base"
}

lint() { # without a base, all of it; what changed is found in the dependencies of what was built
  scripts/configure.sh release && cmake --build --preset release && scripts/lint.sh ${1:+--since "$1"}
}

clang() { scripts/configure.sh clang && cmake --build --preset clang && ctest --preset clang --parallel 2; }

aarch64() {
  scripts/configure.sh aarch64 && cmake --build --preset aarch64 && ctest --preset aarch64 --parallel 2 &&
    qemu-aarch64 build-aarch64/headgate verify --seconds 10
}

logs=$(mktemp -d) || exit 1
trap 'rm -rf "$logs"' EXIT
passed=0
failed=()
check() {
  local name=$1 start=$SECONDS
  shift
  echo "== headgate: $name"
  if "$@" 2>&1 | tee "$logs/$name"; then
    echo "== headgate: $name passed in $((SECONDS - start)) s"
    passed=$((passed + 1))
  else
    echo "== headgate: $name FAILED after $((SECONDS - start)) s" >&2
    failed+=("$name")
  fi
}

check "lint" lint "${1:-$(base_commit)}"
check "address and undefined-behaviour sanitizers" scripts/sanitize.sh quick asan
check "thread sanitizer" scripts/sanitize.sh quick tsan
check "clang" clang
check "aarch64" aarch64
check "places" scripts/places.sh
check "mutants" python3 scripts/mutation_check.py --sample 6

# Repeats the errors, since they may be thousands of lines above.
for name in "${failed[@]}"; do
  echo "make check: failed: $name"
  { grep -E 'error|warning:|FAIL|Failed|\*\*\*' "$logs/$name" || tail -n 20 "$logs/$name"; } | head -n 20 | sed 's/^/  /'
done >&2
echo "$passed passed, ${#failed[@]} failed"
((${#failed[@]} == 0))
