#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Loads models that headgate wrote in `transformers`, and compares the log-probabilities of both.

    check_transformers.py [BUILD [NAME …]]     BUILD: the build folder (default: build); NAME: only these models

Needs PyTorch and transformers (pip install torch transformers). model_sample of the build folder writes random models:

  - baselines with tied and with separate embeddings, which load as Qwen3ForCausalLM
  - models with every gate, with further features, and with different layers, which load with the modeling_headgate.py
    beside their config

A model with a gate that can share a matrix with q is also converted to each layout of that matrix. Fails if

  - a tensor is missing or unexpected
  - a log-probability differs by more than 1e-4, for all tokens at once or for token after token with a cache
  - `generate` gives other tokens with a cache than without
  - headgate reads the copy that transformers writes as a different model
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

scratch = tempfile.TemporaryDirectory()  # transformers copies the code of the models to it
os.environ["HF_MODULES_CACHE"] = scratch.name

import numpy
import torch
import transformers

TOLERANCE = 1e-4
LAYOUTS = ("per_query_head", "per_group", "trailing")
OF_QWEN3 = ("tied", "separate")


def load(folder):
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        folder, output_loading_info=True, attn_implementation="eager", dtype=torch.float32, trust_remote_code=True
    )
    for what in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if info[what]:
            raise SystemExit(f"check_transformers: {folder}: {what}: {sorted(info[what])}")
    return model.eval()


def log_probs(model, tokens):
    return torch.log_softmax(model(tokens).logits.double(), dim=-1)


def by_steps(model, tokens):
    """Returns the log-probabilities, computed with a cache: first a prompt, then one token at a time."""
    prompt = 7
    out = model(tokens[:, :prompt], use_cache=True)
    logits = [out.logits]
    for at in range(prompt, tokens.shape[1]):
        out = model(tokens[:, at : at + 1], past_key_values=out.past_key_values, use_cache=True)
        logits.append(out.logits)
    return torch.log_softmax(torch.cat(logits, dim=1).double(), dim=-1)


def same_text(model, tokens):
    """Returns whether generate gives the same tokens with a cache, without one, and with padding before the prompt."""
    prompt = tokens[:1, :9]
    said = [
        model.generate(prompt, max_new_tokens=8, do_sample=False, use_cache=c, pad_token_id=0) for c in (True, False)
    ]
    padded = torch.cat((torch.zeros_like(prompt[:, :3]), prompt), dim=1)
    mask = (torch.arange(padded.shape[1]) >= 3).long().unsqueeze(0)
    behind = model.generate(padded, attention_mask=mask, max_new_tokens=8, do_sample=False, pad_token_id=0)
    return torch.equal(*said) and torch.equal(behind[:, 3:], said[0])


def check(name, build, folder):
    """Returns whether headgate and transformers agree about a model in all its layouts. Prints the largest
    difference."""
    program = build / "tests/models/train/model_sample"
    subprocess.run([program, "write", folder, name], check=True)
    model = load(folder / "model")
    expected = "Qwen3ForCausalLM" if name in OF_QWEN3 else "HeadgateForCausalLM"
    if type(model).__name__ != expected:
        raise SystemExit(f"check_transformers: {name}: loaded as {type(model).__name__}")
    tokens = torch.from_numpy(numpy.load(folder / "tokens.npy")).long()
    ours = torch.from_numpy(numpy.load(folder / "log_probs.npy"))
    with torch.no_grad():
        theirs = log_probs(model, tokens)
        others = [theirs, by_steps(model, tokens)]
        same = same_text(model, tokens)
        fusable = name.startswith(("g1-", "g4-")) and "parameter" not in name
        for layout in LAYOUTS if fusable else ():
            subprocess.run(
                [build / "headgate", "convert", folder / "model", folder / layout, "--layout", layout], check=True
            )
            others.append(log_probs(load(folder / layout), tokens))
        # max() of PyTorch returns NaN if a difference is NaN, which Python's may drop.
        error = torch.stack([(ours - other).abs().max() for other in others]).max().item()
    model.save_pretrained(folder / "theirs")
    subprocess.run([program, "compare", folder], check=True)
    print(
        f"{name:34s} {model.num_parameters()} parameters: log-probabilities up to {theirs.abs().max():.2f} in size, "
        f"largest difference {error:.2e}" + ("" if same else ", generate differs with a cache")
    )
    return error <= TOLERANCE and same


def main():
    build = Path(sys.argv[1] if len(sys.argv) > 1 else "build")
    transformers.logging.disable_progress_bar()
    transformers.logging.set_verbosity_error()
    print(f"transformers {transformers.__version__}, PyTorch {torch.__version__}; differences at most {TOLERANCE:.0e}")
    names = (
        sys.argv[2:]
        or subprocess.run(
            [build / "tests/models/train/model_sample", "names"], check=True, capture_output=True, text=True
        ).stdout.split()
    )
    failed = []
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            if not check(name, build, Path(folder)):
                failed.append(name)
    print(f"{len(names) - len(failed)} of {len(names)} models agree" + "".join(f"\n  not {name}" for name in failed))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
