# SPDX-License-Identifier: Apache-2.0
"""Models of transformers that `headgate train --init` trains further, loaded in transformers again."""

import pytest
import torch
import transformers

import models
from tool_runs import log_probs, of_the_tool, train

GATE = "attn.gate_proj"


def saved(family, where):
    """A small model that reads bytes."""
    model = models.model(family, vocab_size=256)
    model.save_pretrained(where)
    return model.eval()


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
