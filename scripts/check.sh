#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# check.sh [--since COMMIT] [--seconds N] [--only "NAMES"]: runs the checks of `make check`, whose packages must be
# installed: lint addresses threads aarch64 places triton versions mutants, or only those of NAMES. All checks run, even
# if one fails. Checks that do not end within N seconds of the start are stopped, and count as failed. The last lines
# say how long each check took, and which vector targets and 16-bit products this machine has.
# clang-tidy reads what changed since COMMIT. The default is where this branch left origin/main. On main itself it is
# the 20th commit back.
set -uo pipefail
cd "$(dirname "$0")/.."

since='' seconds='' only=''
while (($# > 0)); do
  case "$1" in
    --since) since=${2-} ;;
    --seconds) seconds=${2-} ;;
    --only) only=${2-} ;;
    *) set -- ;;
  esac
  if (($# < 2)) || [[ ! "$seconds" =~ ^-?[0-9]*$ ]]; then
    echo "usage: scripts/check.sh [--since COMMIT] [--seconds N] [--only NAMES]" >&2
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

lint() { # lint [COMMIT]: without a commit, clang-tidy reads all sources
  local python
  python=$(scripts/python_venv.sh) && scripts/configure.sh lint $python && scripts/lint.sh ${1:+--since "$1" --most 40}
}

aarch64() { scripts/configure.sh aarch64 && cmake --build --preset aarch64 && ctest --preset aarch64 --parallel 2; }

mutants() { # tries different mutants for each commit
  local python
  python=$(scripts/python_venv.sh build mutants) && "$python" scripts/mutation_check.py --sample 4 --seed "$(git rev-parse HEAD)"
}
triton() { # runs all cases in Triton's interpreter, and compiles kernels for all tile sizes
  local python=$PWD/build/python-venv/bin/python
  cd tests/python/triton || return
  export PYTHONPATH=$OLDPWD/build/python PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=1 HEADGATE_TRITON=all
  "$python" -m pytest -q -p no:cacheprovider test_interpreted*.py &&
    "$python" -m pytest -q -p no:cacheprovider test_ahead_of_time.py test_arguments.py test_traces.py
}
versions() { build/python-venv/bin/python scripts/check_versions.py oldest newest; }
export -f lint aarch64 mutants triton versions

logs=$(mktemp -d) || exit 1
trap 'rm -rf "$logs"' EXIT
passed=0
failed=()
table=()
check() { # NAME COMMAND …
  local name=$1 start=$SECONDS left=0 status word
  shift
  [[ -z "$only" || " $only " == *" $name "* ]] || return 0
  if [[ -n "$seconds" ]]; then # timeout takes 0 for no limit
    left=$((seconds - SECONDS))
    ((left > 0)) || left=0.001
  fi
  echo "== headgate: $name"
  timeout --kill-after=30 "$left" bash -c '"$@"' bash "$@" 2>&1 | tee "$logs/$name"
  status=${PIPESTATUS[0]}
  if ((status == 0)); then
    word=passed
    passed=$((passed + 1))
  else
    word=FAILED
    if ((status == 124 || status == 137)) && [[ -n "$seconds" ]] && ((SECONDS >= seconds)); then word="NOT FINISHED"; fi
    failed+=("$name")
  fi
  table+=("$(printf '%-45s %5d s  %s' "$name" $((SECONDS - start)) "$word")")
  echo "== headgate: ${table[-1]}"
}

check lint lint "${since:-$(base_commit)}"
check addresses scripts/sanitize.sh quick asan
check threads scripts/sanitize.sh quick tsan
check aarch64 aarch64
check places scripts/places.sh
check triton triton
check versions versions
check mutants mutants

# Repeats the errors, since they may be thousands of lines above.
for name in "${failed[@]}"; do
  echo "make check: failed: $name"
  { grep -E 'error|warning:|FAIL|Failed|\*\*\*' "$logs/$name" || tail -n 20 "$logs/$name"; } | head -n 20 | sed 's/^/  /'
done >&2

echo "== headgate: checks"
printf '%s\n' "${table[@]}"
echo "== headgate: what this machine has, which the kernels' tests therefore covered"
build/headgate info | grep -E '^(cpu|targets supported|native16 products|threads) '
echo "$passed passed, ${#failed[@]} failed"
((${#failed[@]} == 0))
