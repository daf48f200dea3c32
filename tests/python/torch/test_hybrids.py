# SPDX-License-Identifier: Apache-2.0
"""Models whose layers differ, which transformers has no family for, loaded with the code that stands beside them."""

import copy
import json

import pytest
import torch
import transformers

import headgate.torch.transformers
import models
from tool_runs import log_probs, of_the_tool, run_tool, train

TOLERANCE = 1e-4
TOKENS = torch.arange(32).remainder(11).view(1, -1) + 97
PADS = 3
LARGE = ("--init-std", 0.2, "--lr", 1e-2)  # weights that reveal errors
WINDOWS = ("--layer-types", "sliding,gated_delta,attention,gated_delta", "--window", 5)
VARIANTS = {
    "3:1": ("--layer-types", "3:1"),
    "windows": (*WINDOWS, "--kv-heads", 1, "--rope-fraction", 0.5),
    "headwise": ("--layer-types", "3:1", "--gate", "headwise", "--norm", "zero_centred"),
    "g2": ("--layer-types", "1:1", "--gate", "g2-elementwise-silu-add", "--gate-bias", 0.5, "--qkv-bias"),
    "g4 between sandwich norms": ("--layer-types", "gated_delta,sliding", "--window", 7, "--gate", "g4-head_shared",
                                  "--sandwich-norm", "--qk-norm", "off", "--embeddings", "separate"),
    "sinks": (*WINDOWS, "--sinks", "learned"),
    "windows without states": ("--layer-types", "sliding,attention", "--window", 5, "--gate", "g5"),
    "states alone": ("--layer-types", "1:0"),
}  # fmt: skip
CONFIG = {
    "model_type": "headgate",
    "vocab_size": 256,
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "layer_types": ["sliding_attention", "linear_attention", "full_attention", "linear_attention"],
    "attention_window": 5,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
    "linear_conv_kernel_dim": 3,
}
# What only a file can say. A norm in front of q and k would hide the scale of attention.
CONFIGS = {
    "windows with other heads and RoPE": {
        "sliding_num_attention_heads": 2,
        "sliding_rope_theta": 50.0,
        "sliding_partial_rotary_factor": 0.5,
        "rope_scaling_type": "linear",
        "rope_scaling_factor": 4.0,
        "attention_scale": 0.1,
        "embedding_scale": 3.0,
        "mlp_activation": "gelu_tanh",
        "qk_norm": "none",
    },
    "windows with scaled RoPE": {
        "partial_rotary_factor": 0.0,
        "sliding_rope_theta": 50.0,
        "sliding_rope_scaled": True,
        "rope_scaling_type": "linear",
        "rope_scaling_factor": 4.0,
    },
    "norms behind": {
        "norm_placement": "post",
        "qk_norm": "all_heads",
        "linear_beta_scale": 2.0,
        "linear_norm_eps": 0.01,
    },
}


@pytest.fixture(scope="module", params=[*VARIANTS, *CONFIGS])
def run(request, tmp_path_factory):
    """A run of a few steps."""
    folder = tmp_path_factory.mktemp("run")
    options = VARIANTS.get(request.param, ("--config", folder / "config.json"))
    (folder / "config.json").write_text(json.dumps(CONFIG | CONFIGS.get(request.param, {})))
    return train(None, folder / "run", *options, *LARGE)


def by_steps(model, tokens, parts):
    """The log-probabilities with a cache, in parts of these many tokens."""
    cache, found = None, []
    for part in tokens.split(parts, dim=1):
        out = model(part, past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        found.append(out.logits)
    return torch.log_softmax(torch.cat(found, dim=1).double(), dim=-1)


@torch.no_grad()
def test_log_probs_are_those_of_the_tool(run, loaded, tmp_path):
    """Both sides are compared with f64: of all tokens at once, in parts with a cache, and of the copy that transformers
    writes.
    """
    model = loaded(run)
    assert type(model).__name__ == "HeadgateForCausalLM"
    expected = log_probs(copy.deepcopy(model).double(), TOKENS)
    of_tool = of_the_tool(run, TOKENS, tmp_path)
    assert expected.std() > 0.1
    for found in (of_tool, log_probs(model, TOKENS)):
        assert (found - expected).abs().max() < TOLERANCE
    for parts in ([7, 5, 1, 2] + 17 * [1], [1, 31]):
        assert (by_steps(model, TOKENS, parts) - expected).abs().max() < TOLERANCE, parts
    model.save_pretrained(tmp_path / "copy")
    assert torch.equal(of_the_tool(tmp_path / "copy", TOKENS, tmp_path), of_tool)


@torch.no_grad()
def test_generate_says_the_same_with_a_cache_and_behind_padding(run, loaded):
    model, prompt = loaded(run), TOKENS[:, :9]
    options = {"max_new_tokens": 16, "do_sample": False, "pad_token_id": 0}
    said = model.generate(prompt, use_cache=False, **options)
    assert said.shape[1] == 25
    assert torch.equal(model.generate(prompt, use_cache=True, **options), said)
    other = TOKENS[:, 2 : 11 + PADS]  # in the same batch, without padding
    padded = torch.cat((torch.cat((torch.zeros_like(prompt[:, :PADS]), prompt), dim=1), other))
    mask = torch.ones_like(padded)
    mask[0, :PADS] = 0
    for use_cache in (False, True):
        both = model.generate(padded, attention_mask=mask, use_cache=use_cache, **options)
        assert torch.equal(both[:1, PADS:], said)
        assert torch.equal(both[1:], model.generate(other, **options))


def test_gradients_reach_all_parameters(run, loaded):
    """The loss falls along them as they say."""
    model = loaded(run).double()
    model(TOKENS, labels=TOKENS).loss.backward()
    slopes = {name: parameter.grad for name, parameter in model.named_parameters()}
    for name, slope in slopes.items():
        assert slope is not None and slope.isfinite().all() and slope.abs().max() > 0, name
    squared = sum(slope.square().sum() for slope in slopes.values()).item()
    losses = []
    step = 1e-4 / squared**0.5
    with torch.no_grad():
        for factor in (step, -2 * step):
            for name, parameter in model.named_parameters():
                parameter.add_(slopes[name], alpha=factor)
            losses.append(model(TOKENS, labels=TOKENS).loss.item())
    assert (losses[0] - losses[1]) / (2 * step) == pytest.approx(squared, rel=1e-2)


def of_family(family):
    if family != "gemma3":
        return models.model(family, eos_token_id=2)
    config = transformers.Gemma3TextConfig(
        **{**models.SIZES, "num_hidden_layers": 3}, sliding_window=5, query_pre_attn_scalar=32,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"],
    )  # fmt: skip
    return transformers.Gemma3ForCausalLM._from_config(config, attn_implementation="eager")


@torch.no_grad()
@pytest.mark.parametrize("family", ["olmo-hybrid", "gemma3", "qwen3.5"])
def test_converted_model_is_that_of_its_family(family, loaded, tmp_path):
    """`headgate convert` writes models of other families as its own. Padding is to them what it is there."""
    model = of_family(family).eval()
    model.save_pretrained(tmp_path / "theirs")
    run_tool("convert", tmp_path / "theirs", tmp_path / "ours", "--layout", "separate")
    ours, tokens, mask = loaded(tmp_path / "ours"), models.tokens(2, 40), torch.ones(2, 40, dtype=torch.long)
    assert type(ours).__name__ == "HeadgateForCausalLM"
    mask[0, :PADS], mask[1, -2 * PADS :] = 0, 0
    for keys in {}, {"attention_mask": mask}:
        seen = mask.bool() if keys else torch.ones_like(mask).bool()
        logits, expected = (each(tokens, **keys).logits[seen].log_softmax(dim=-1) for each in (ours, model))
        assert (logits - expected).abs().max() < TOLERANCE


@torch.no_grad()
def test_register_gives_the_layers_headgates_kernels(loaded, tmp_path):
    model = loaded(train(None, tmp_path / "run", "--layer-types", "3:1", *LARGE))
    theirs = log_probs(model, TOKENS)
    headgate.torch.transformers.register()
    ours = log_probs(model, TOKENS)
    assert not torch.equal(ours, theirs) and (ours - theirs).abs().max() < TOLERANCE
