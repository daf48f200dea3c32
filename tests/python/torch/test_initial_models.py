# SPDX-License-Identifier: Apache-2.0
"""Models of transformers that `headgate train --init` trains further, loaded in transformers again."""

import json

import pytest
import torch
import transformers

import models
from tool_runs import log_probs, of_the_tool, run_tool, train

GATE = "attn.gate_proj"
TOKENS = torch.arange(32).remainder(11).view(1, -1) + 97


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
    trained = loaded(run)
    assert not torch.equal(trained.model.embed_tokens.weight, model.model.embed_tokens.weight)
    assert (of_the_tool(run, TOKENS, tmp_path) - log_probs(trained, TOKENS)).abs().max() < 1e-4


@torch.no_grad()
def test_hybrid_is_qwen35(loaded, tmp_path):
    """A new model with layers of Gated DeltaNet, if the rest is as in Qwen3.5."""
    options = ("--layer-types", "3:1", "--gate", "elementwise", "--norm", "zero_centred", "--rope-fraction", 0.25)
    run = train(None, tmp_path / "run", *options)
    trained = loaded(run)
    assert type(trained) is transformers.Qwen3_5ForCausalLM
    assert (of_the_tool(run, TOKENS, tmp_path) - log_probs(trained, TOKENS)).abs().max() < 1e-4


@torch.no_grad()
@pytest.mark.parametrize("precision", ["f32", "bf16"])
def test_gates_start_as_the_identity(precision, loaded, tmp_path):
    model = saved("llama", tmp_path / "model")
    options = ("--gate", "elementwise-sigmoid2", "--train-only", "gates", "--precision", precision)
    start = loaded(train(tmp_path / "model", tmp_path / "start", *options, "--lr", 0))
    assert type(start).__name__ == "HeadgateForCausalLM"
    assert (log_probs(start, TOKENS) - log_probs(model, TOKENS)).abs().max() < 1e-5
    run = train(tmp_path / "model", tmp_path / "run", *options, "--lr", 1e-2)
    trained = loaded(run)
    weights = model.state_dict()
    for name, tensor in trained.state_dict().items():
        if GATE in name:
            assert tensor.abs().max() > 0
        else:
            assert torch.equal(tensor, weights[name]), name
    theirs = log_probs(trained, TOKENS)
    assert (of_the_tool(run, TOKENS, tmp_path) - theirs).abs().max() < 1e-4
    assert (theirs - log_probs(model, TOKENS)).abs().max() > 1e-4, "the gates act"


@torch.no_grad()
def test_head_that_differs_from_tied_embeddings_is_used(loaded, tmp_path):
    """As transformers does, by `eval`, `convert` and `train --init`."""
    saved("llama", tmp_path / "model")
    config = json.loads((tmp_path / "model/config.json").read_text())
    (tmp_path / "model/config.json").write_text(json.dumps(config | {"tie_word_embeddings": True}))
    model = loaded(tmp_path / "model")
    assert not torch.equal(model.lm_head.weight, model.model.embed_tokens.weight)
    expected = log_probs(model, TOKENS)
    run_tool("convert", tmp_path / "model", tmp_path / "converted")
    run = train(tmp_path / "model", tmp_path / "run", "--lr", 0)
    for each in (tmp_path / "model", tmp_path / "converted", run):
        assert (of_the_tool(each, TOKENS, tmp_path) - expected).abs().max() < 1e-4, each
        assert torch.equal(loaded(each).lm_head.weight, model.lm_head.weight), each


@torch.no_grad()
def test_width_that_llama_refuses_is_headgates(loaded, tmp_path):
    """LlamaConfig refuses a width that is no multiple of the heads."""
    config = {
        "model_type": "headgate", "vocab_size": 256, "hidden_size": 30, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 48,
        "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": True,
        "qk_norm": "none",
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    run = train(None, tmp_path / "run", "--config", tmp_path / "config.json")
    run_tool("convert", run, tmp_path / "converted")
    for each in (run, tmp_path / "converted"):
        model = loaded(each)
        assert type(model).__name__ == "HeadgateForCausalLM"
        assert (of_the_tool(each, TOKENS, tmp_path) - log_probs(model, TOKENS)).abs().max() < 1e-4
