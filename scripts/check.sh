#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# check.sh [--since COMMIT] [--seconds N]: what `make check` does once the packages are installed. All checks run, even
# if one fails; what does not end within N seconds of the start is stopped, and counted as unfinished, not as failed.
# clang-tidy reads what changed since COMMIT; by default since this branch left origin/main or, on main itself, by the
# last 20 commits.
set -uo pipefail
cd "$(dirname "$0")/.."

since='' seconds=''
while (($# > 0)); do
  case "$1" in
    --since) since=${2-} ;;
    --seconds) seconds=${2-} ;;
    *) set -- ;;
  esac
  if (($# < 2)) || [[ ! "$seconds" =~ ^-?[0-9]*$ ]]; then
    echo "usage: scripts/check.sh [--since COMMIT] [--seconds N]" >&2
    exit 2
  fi
  shift 2
done

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
export -f lint clang aarch64

logs=$(mktemp -d) || exit 1
trap 'rm -rf "$logs"' EXIT
passed=0
failed=()
unfinished=()
check() { # NAME COMMAND …
  local name=$1 start=$SECONDS left=0 status
  shift
  if [[ -n "$seconds" ]]; then # timeout takes 0 for no limit
    left=$((seconds - SECONDS))
    ((left > 0)) || left=0.001
  fi
  echo "== headgate: $name"
  timeout --kill-after=30 "$left" bash -c '"$@"' bash "$@" 2>&1 | tee "$logs/$name"
  status=${PIPESTATUS[0]}
  if ((status == 0)); then
    echo "== headgate: $name passed in $((SECONDS - start)) s"
    passed=$((passed + 1))
  elif ((status == 124 || status == 137)) && [[ -n "$seconds" ]] && ((SECONDS >= seconds)); then
    echo "== headgate: $name NOT FINISHED: stopped after $((SECONDS - start)) s" >&2
    unfinished+=("$name")
  else
    echo "== headgate: $name FAILED after $((SECONDS - start)) s" >&2
    failed+=("$name")
  fi
}

check "address and undefined-behaviour sanitizers" scripts/sanitize.sh quick asan
check "thread sanitizer" scripts/sanitize.sh quick tsan
check "clang" clang
check "aarch64" aarch64
check "lint" lint "${since:-$(base_commit)}"
check "places" scripts/places.sh
check "mutants" python3 scripts/mutation_check.py --sample 6

# Repeats the errors, since they may be thousands of lines above.
for name in "${failed[@]}"; do
  echo "make check: failed: $name"
  { grep -E 'error|warning:|FAIL|Failed|\*\*\*' "$logs/$name" || tail -n 20 "$logs/$name"; } | head -n 20 | sed 's/^/  /'
done >&2
for name in "${unfinished[@]}"; do echo "make check: not finished within $seconds s: $name" >&2; done
echo "$passed passed, ${#failed[@]} failed, ${#unfinished[@]} not finished"
((${#failed[@]} == 0))
