#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Loads a baseline that headgate wrote in `transformers` as Qwen3ForCausalLM and compares what both compute.

    check_transformers.py [BUILD]     BUILD: the build folder (default: build)

Needs PyTorch and transformers (pip install torch transformers). A random model is written by qwen3_sample of the build
folder, once with tied embeddings and once with a matrix of its own. Fails when a tensor is missing or left over, when a
log-probability differs by more than 1e-4, or when headgate reads the copy that transformers writes as another model.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy
import torch
import transformers

TOLERANCE = 1e-4


def compare(build, embeddings, folder):
    """The largest difference between both's log-probabilities, the largest log-probability, the parameter count."""
    program = build / "tests/train/qwen3_sample"
    subprocess.run([program, "write", folder, embeddings], check=True)
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        folder / "model", output_loading_info=True, attn_implementation="eager", dtype=torch.float32
    )
    for what in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if info[what]:
            raise SystemExit(f"check_transformers: {embeddings}: {what}: {sorted(info[what])}")
    if type(model).__name__ != "Qwen3ForCausalLM":
        raise SystemExit(f"check_transformers: loaded as {type(model).__name__}")
    tokens = torch.from_numpy(numpy.load(folder / "tokens.npy")).long()
    ours = torch.from_numpy(numpy.load(folder / "log_probs.npy"))
    with torch.no_grad():
        theirs = torch.log_softmax(model(tokens).logits.double(), dim=-1)
    model.save_pretrained(folder / "theirs")
    subprocess.run([program, "compare", folder], check=True)
    return (ours - theirs).abs().max().item(), theirs.abs().max().item(), model.num_parameters()


def main():
    build = Path(sys.argv[1] if len(sys.argv) > 1 else "build")
    failed = False
    transformers.logging.disable_progress_bar()
    print(f"transformers {transformers.__version__}, PyTorch {torch.__version__}")
    for embeddings in ("tied", "separate"):
        with tempfile.TemporaryDirectory() as folder:
            error, size, count = compare(build, embeddings, Path(folder))
        failed |= not error <= TOLERANCE
        print(
            f"{embeddings:9s} {count} parameters: log-probabilities up to {size:.2f} in size, "
            f"largest difference {error:.2e} (at most {TOLERANCE:.0e})"
        )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
