# SPDX-License-Identifier: Apache-2.0
"""Models of transformers that `headgate train --init` trains further, loaded in transformers again."""

import subprocess
from pathlib import Path

import numpy
import pytest
import torch
import transformers

import headgate
import models

TOOL = Path(headgate.__file__).parents[2] / "headgate"
GATE = "attn.gate_proj"


@pytest.fixture
def loaded(monkeypatch, tmp_path):
    """Returns a function that loads a checkpoint, with its own code if it has some."""
    monkeypatch.setattr(transformers.dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))

    def load(run):
        model, found = transformers.AutoModelForCausalLM.from_pretrained(
            run / "checkpoint", trust_remote_code=True, output_loading_info=True, attn_implementation="eager"
        )
        assert not found["missing_keys"] and not found["unexpected_keys"]
        return model.eval()

    return load


def saved(family, where):
    """A small model that reads bytes."""
    model = models.model(family, vocab_size=256)
    model.save_pretrained(where)
    return model.eval()


def train(init, run, *options):
    text = run.parent / "text.txt"
    text.write_text("The quick brown fox jumps over the lazy dog. " * 80)
    start = ["--init", init] if init else ["--layers", 4, "--dim", 32, "--heads", 2, "--head-dim", 16]
    command = [TOOL, "train", *start, "--data", text, "--out", run, "--batch", 2, "--seq-len", 32, "--threads", 1,
               "--steps", 4, "--eval-every", 0, *options]  # fmt: skip
    subprocess.run([str(word) for word in command], check=True, capture_output=True)
    return run


def log_probs(model, tokens):
    return torch.log_softmax(model(tokens).logits.double(), dim=-1)


def of_the_tool(run, tokens, where):
    """The log-probabilities of the tool, (1,T,vocabulary). It reads an id more, the last target."""
    ids = torch.cat((tokens.flatten(), tokens[0, :1]))
    numpy.save(where / "tokens.npy", ids.int().numpy())
    command = [TOOL, "eval", run, "--token-ids", where / "tokens.npy", "--logits", where / "logits.npy",
               "--seq-len", tokens.shape[1], "--threads", 1]  # fmt: skip
    subprocess.run([str(word) for word in command], check=True, capture_output=True)
    return torch.from_numpy(numpy.load(where / "logits.npy")).double()


@torch.no_grad()
@pytest.mark.parametrize("family", ["llama", "qwen3", "qwen3.5"])
def test_family_stays(family, loaded, tmp_path):
    """Without a gate a checkpoint is of the model's own family; without learning it is the model, bit by bit."""
    model = saved(family, tmp_path / "model")
    same = loaded(train(tmp_path / "model", tmp_path / "same", "--lr", 0))
    assert type(same) is type(model)
    weights = model.state_dict()
    assert all(torch.equal(weights[name], tensor) for name, tensor in same.state_dict().items())
    run = train(tmp_path / "model", tmp_path / "run", "--lr", 1e-3)
    tokens = torch.arange(32).remainder(11).view(1, -1) + 97
    trained = loaded(run)
    assert not torch.equal(trained.model.embed_tokens.weight, model.model.embed_tokens.weight)
    assert (of_the_tool(run, tokens, tmp_path) - log_probs(trained, tokens)).abs().max() < 1e-4


@torch.no_grad()
def test_hybrid_is_qwen35(loaded, tmp_path):
    """A new model with layers of Gated DeltaNet, if the rest is as in Qwen3.5."""
    options = ("--layer-types", "3:1", "--gate", "elementwise", "--norm", "zero_centred", "--rope-fraction", 0.25)
    run = train(None, tmp_path / "run", *options)
    trained = loaded(run)
    assert type(trained) is transformers.Qwen3_5ForCausalLM
    tokens = torch.arange(32).remainder(11).view(1, -1) + 97
    assert (of_the_tool(run, tokens, tmp_path) - log_probs(trained, tokens)).abs().max() < 1e-4


@torch.no_grad()
@pytest.mark.parametrize("precision", ["f32", "bf16"])
def test_gates_start_as_the_identity(precision, loaded, tmp_path):
    model = saved("llama", tmp_path / "model")
    options = ("--gate", "elementwise-sigmoid2", "--train-only", "gates", "--precision", precision)
    tokens = torch.arange(32).remainder(11).view(1, -1) + 97
    start = loaded(train(tmp_path / "model", tmp_path / "start", *options, "--lr", 0))
    assert type(start).__name__ == "HeadgateForCausalLM"
    assert (log_probs(start, tokens) - log_probs(model, tokens)).abs().max() < 1e-5
    run = train(tmp_path / "model", tmp_path / "run", *options, "--lr", 1e-2)
    trained = loaded(run)
    weights = model.state_dict()
    for name, tensor in trained.state_dict().items():
        if GATE in name:
            assert tensor.abs().max() > 0
        else:
            assert torch.equal(tensor, weights[name]), name
    theirs = log_probs(trained, tokens)
    assert (of_the_tool(run, tokens, tmp_path) - theirs).abs().max() < 1e-4
    assert (theirs - log_probs(model, tokens)).abs().max() > 1e-4, "the gates act"
