# SPDX-License-Identifier: Apache-2.0
"""Runs of the program `headgate`, and what it computes with models."""

import subprocess
from pathlib import Path

import numpy
import torch

import headgate

TOOL = Path(headgate.__file__).parents[2] / "headgate"


def run_tool(*words):
    subprocess.run([str(word) for word in (TOOL, *words)], check=True, capture_output=True)


def train(init, run, *options):
    text = run.parent / "text.txt"
    text.write_text("The quick brown fox jumps over the lazy dog. " * 80)
    sizes = [] if "--config" in options else ["--layers", 4, "--dim", 32, "--heads", 2, "--head-dim", 16]
    start = ["--init", init] if init else sizes
    run_tool("train", *start, "--data", text, "--out", run, "--batch", 2, "--seq-len", 32, "--threads", 1,
             "--steps", 4, "--eval-every", 0, *options)  # fmt: skip
    return run


def log_probs(model, tokens):
    return torch.log_softmax(model(tokens).logits.double(), dim=-1)


def of_the_tool(model, tokens, where):
    """The log-probabilities of the tool, (1,T,vocabulary). It reads an id more, the last target."""
    ids = torch.cat((tokens.flatten(), tokens[0, :1]))
    numpy.save(where / "tokens.npy", ids.int().numpy())
    run_tool("eval", model, "--metrics", "loss", "--token-ids", where / "tokens.npy", "--logits", where / "logits.npy",
             "--seq-len", tokens.shape[1], "--threads", 1)  # fmt: skip
    return torch.from_numpy(numpy.load(where / "logits.npy")).double()
