#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# lint.sh [--since COMMIT [--most N]]: checks the direction of includes, licence lines, formatting, Python with ruff,
# and the forms and workflows of .github/. Checks that mutation_check.py and places.sh fit the code. Then runs
# clang-tidy on all sources, or on those that read what changed since COMMIT, at most the N that changed last. Needs a
# configured build-lint/ (scripts/configure.sh lint), but no build. Every check runs, even if another one fails.
set -uo pipefail
cd "$(dirname "$0")/.."

since='' most=''
if [[ "${1:-}" == --since && -n "${2:-}" ]]; then
  since=$2
  if [[ "${3:-}" == --most ]]; then most=${4:?}; fi
  git rev-parse --verify --quiet "$since^{commit}" >/dev/null || {
    echo "lint: git knows no commit '$since'" >&2
    exit 2
  }
elif (($# > 0)); then
  echo "usage: scripts/lint.sh [--since COMMIT [--most N]]" >&2
  exit 2
fi

sources() { find include src python tests bench examples -name '*.cc' -o -name '*.hpp' -o -name '*.c' -o -name '*.h' | sort; }

includes_and_lengths() { scripts/check_includes.py --self-test && scripts/check_includes.py; }

licence_lines() {
  local without
  without=$(sources | xargs grep -L 'SPDX-License-Identifier: Apache-2.0')
  [[ -z "$without" ]] || printf '%s: no SPDX line\n' $without >&2
  [[ -z "$without" ]]
}

mutation_table() { scripts/mutation_check.py --table; }

places_of_additions() { scripts/places/additions.py; }

formatting() { sources | xargs clang-format --dry-run -Werror; }

# Runs a Python module of the group `lint` of pyproject.toml, which is installed on first use.
lint_python() {
  local python
  python=$(scripts/python_venv.sh build lint) && "$python" -m "$@"
}

python_style() { lint_python ruff check --quiet && lint_python ruff format --quiet --check; }

forms_and_workflows() {
  local schema="lint_python check_jsonschema --quiet --builtin-schema vendor"
  $schema.github-workflows .github/workflows/*.yml && $schema.citation-file-format CITATION.cff &&
    $schema.github-issue-config .github/ISSUE_TEMPLATE/config.yml &&
    $schema.github-issue-forms $(ls .github/ISSUE_TEMPLATE/*.yml | grep -v config.yml)
}

# Lists all compiled files, except nanobind's own, which lie below build/.
compiled_files() {
  sed -n 's/^ *"file": "\(.*\)",\{0,1\}$/\1/p' build-lint/compile_commands.json | grep -v "^$PWD/build" | sort -u
}

# Compiles for one vector target (HWY_COMPILE_ONLY_STATIC), so that clang-tidy reads the kernels' sources once.
tidy() {
  local files count
  if [[ -z "$since" ]] || ! git diff --quiet "$since" -- .clang-tidy; then
    files=$(compiled_files)
  else
    files=$(scripts/affected_files.py build-lint "$since") || return 1
  fi
  [[ -n "$files" ]] || return 0
  count=$(wc -l <<<"$files")
  if [[ -n "$most" ]] && ((count > most)); then
    files=$(head -n "$most" <<<"$files")
    echo "lint: clang-tidy reads the $most files that changed last of $count since $since; make lint reads all"
  else
    echo "lint: clang-tidy reads $count of $(compiled_files | wc -l) compiled files"
  fi
  xargs -P "${CMAKE_BUILD_PARALLEL_LEVEL:-2}" -n 1 clang-tidy -p build-lint --quiet \
    --extra-arg=-Wno-unknown-warning-option --extra-arg=-DHWY_COMPILE_ONLY_STATIC \
    <<<"$files" 2> >(grep -v 'warnings\? generated' >&2)
}

failed=()
for check in includes_and_lengths licence_lines mutation_table places_of_additions formatting python_style forms_and_workflows tidy; do
  echo "== headgate: lint: ${check//_/ }"
  "$check" || failed+=("${check//_/ }")
done
if ((${#failed[@]} > 0)); then
  echo "lint: failed: $(printf '%s, ' "${failed[@]}" | sed 's/, $//')" >&2
  exit 1
fi
