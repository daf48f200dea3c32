#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# lint.sh: formatting, direction of includes and clang-tidy over the sources; needs a configured build/.
set -euo pipefail
cd "$(dirname "$0")/.."

sources() { find include src tests bench examples -name '*.cc' -o -name '*.hpp' -o -name '*.c' -o -name '*.h' | sort; }

echo "== headgate: includes and lengths (scripts/check_includes.py)"
python3 scripts/check_includes.py --self-test
python3 scripts/check_includes.py

echo "== headgate: licence lines"
if sources | xargs grep -L 'SPDX-License-Identifier: Apache-2.0' | grep .; then
  echo "lint: the files above lack their SPDX line" >&2
  exit 1
fi

echo "== headgate: formatting (clang-format)"
sources | xargs clang-format --dry-run -Werror

# One portable vector target is enough to read the kernels' sources once.
echo "== headgate: clang-tidy"
sed -n 's/^ *"file": "\(.*\)",\{0,1\}$/\1/p' build/compile_commands.json | sort -u |
  xargs -P "${CMAKE_BUILD_PARALLEL_LEVEL:-2}" -n 1 clang-tidy -p build --quiet \
    --extra-arg=-Wno-unknown-warning-option --extra-arg=-DHWY_COMPILE_ONLY_STATIC 2> >(grep -v 'warnings\? generated' >&2)
