# SPDX-License-Identifier: Apache-2.0
"""Keyword arguments of transformers' and PyTorch's calls: each is used, known to be harmless, or refused by name."""

import inspect

import pytest
import torch
from torch.nn import functional as F
from torch.nn.attention import flex_attention as pytorch_flex
from transformers import DynamicCache, masking_utils

import headgate.torch.transformers
import keywords
import models
from headgate.torch import hub_functions, scaled_dot_product_attention
from headgate.torch.everywhere import scaled_dot_product_attention as served_everywhere
from headgate.torch.flex import flex_attention
from headgate.torch.foreign_arguments import ATTENTION, CACHES, CONVOLUTION, MASK, RULE

headgate.torch.transformers.register(functions=False)
forward, make_mask = headgate.torch.transformers.attention_forward, headgate.torch.transformers.make_mask
# What transformers give to the interface and headgate refuses where it is not None.
REFUSED = {
    "decoder_attention_mask": "T5Gemma's encoder, alone, gets none",
    "head_mask": "of versions before 5.5",
}


def parameters_of(function):
    return {name for name, p in inspect.signature(function).parameters.items() if p.kind is not p.VAR_KEYWORD}


def layer():
    return models.model("llama", "headgate").model.layers[0].self_attn


def test_attention_keywords_of_all_models_are_used_harmless_or_refused():
    given = keywords.keywords_given(keywords.files_with_attention(), keywords.attention_in)
    assert {"scaling", "dropout", "position_ids", "indices"} <= given.keys()
    unknown = given.keys() - parameters_of(forward) - ATTENTION.keys() - CACHES.keys() - REFUSED.keys()
    assert not unknown, {name: sorted(given[name])[:3] for name in unknown}


@pytest.mark.parametrize("name", hub_functions.FUNCTIONS)
def test_linear_attention_keywords_of_all_models_are_used_or_harmless(name):
    given = keywords.keywords_given(keywords.files_of(*hub_functions.MODELS), lambda _: {name})
    assert given
    harmless = CONVOLUTION if "conv1d" in name else RULE
    known = parameters_of(hub_functions.FUNCTIONS[name]) | harmless.keys() | set(hub_functions.SEQUENCES)
    assert not given.keys() - known


@pytest.mark.parametrize("model", hub_functions.MODELS)
def test_linear_attention_functions_take_the_parameters_of_transformers(model):
    module = hub_functions.module_of(model)
    for name, ours in hub_functions.FUNCTIONS.items():
        if hasattr(module, name):
            assert parameters_of(getattr(module, name)) <= parameters_of(ours)


def test_mask_arguments_of_transformers_are_used_or_harmless():
    given = keywords.keywords_of_calls(inspect.getsource(masking_utils), "mask_interface")
    assert {"batch_size", "dtype", "use_vmap"} <= given
    assert given <= parameters_of(make_mask) | parameters_of(masking_utils.sdpa_mask) | MASK.keys()


@pytest.mark.parametrize(
    "theirs, ours",
    [
        (F.scaled_dot_product_attention, scaled_dot_product_attention),
        (F.scaled_dot_product_attention, served_everywhere),
        (pytorch_flex.flex_attention, flex_attention),
    ],
    ids=["scaled_dot_product_attention", "use_everywhere", "flex_attention"],
)
def test_functions_take_the_parameters_of_pytorch(theirs, ours):
    try:
        names = parameters_of(theirs)
    except ValueError:  # a built-in function, whose text begins with its signature
        text = theirs.__doc__.partition("(")[2].partition(")")[0]
        names = {word.partition("=")[0].strip(" *\n") for word in text.split(",")} - {""}
    assert len(names) > 5 and names <= parameters_of(ours)


@pytest.mark.parametrize("name", ["foreign", "head_mask", "k_cache", "decoder_attention_mask"])
def test_attention_argument_unknown_is_refused_by_name(name):
    x = torch.randn(1, 4, 3, 16)
    message = f"^headgate: LlamaAttention: argument '{name}' is not supported .*: use attn_implementation='eager'$"
    with pytest.raises(ValueError, match=message):
        forward(layer(), x, x, x, None, **{name: x})
    forward(layer(), x, x, x, None, **{name: None})


def test_model_argument_unknown_is_refused_by_name():
    model, ids = models.model("llama", "headgate"), models.tokens(1, 5)
    with pytest.raises(ValueError, match="^headgate: LlamaAttention: argument 'key_weights' is not supported"):
        model(ids, key_weights=torch.ones(5))


def test_attention_argument_harmless_changes_nothing():
    q, k, v = torch.randn(2, 4, 6, 16), torch.randn(2, 2, 6, 16), torch.randn(2, 2, 6, 16)
    expected = forward(layer(), q, k, v, None)[0]
    for name in ATTENTION:
        assert torch.equal(forward(layer(), q, k, v, None, **{name: torch.ones(2, 6)})[0], expected)


def test_cache_updated_before_is_harmless_and_others_are_refused():
    x = torch.randn(1, 4, 3, 16)
    expected = forward(layer(), x, x, x, None)[0]
    assert torch.equal(forward(layer(), x, x, x, None, cache=DynamicCache())[0], expected)
    with pytest.raises(ValueError, match="^headgate: LlamaAttention: cache is a dict, with keys"):
        forward(layer(), x, x, x, None, cache={})


def test_mask_argument_unknown_is_refused_by_name():
    with pytest.raises(ValueError, match="^headgate: mask: argument 'rows' is not supported"):
        make_mask(1, 4, 4, rows=2)


def test_sliding_window_without_a_mask_is_a_window():
    q, k, v = torch.randn(1, 4, 9, 16), torch.randn(1, 2, 9, 16), torch.randn(1, 2, 9, 16)
    at = torch.arange(9)
    window = (at <= at[:, None]) & (at > at[:, None] - 4)
    expected = forward(layer(), q, k, v, window[None, None])[0]
    torch.testing.assert_close(forward(layer(), q, k, v, None, sliding_window=4)[0], expected)
    assert not torch.allclose(forward(layer(), q, k, v, None)[0], expected)
    with pytest.raises(ValueError, match="^headgate: LlamaAttention: sliding_window is 4, without a mask"):
        forward(layer(), q, k, v, None, sliding_window=4, is_causal=False)


def test_block_mask_is_refused():
    x = torch.randn(1, 4, 3, 16)
    mask = pytorch_flex.create_block_mask(lambda b, h, q, kv: q >= kv, None, None, 3, 3, device="cpu")
    with pytest.raises(
        ValueError, match="^headgate: LlamaAttention: attention_mask is a BlockMask but must be a tensor"
    ):
        forward(layer(), x, x, x, mask)


def rule_inputs():
    x = torch.randn(1, 5, 2, 8)
    return x, x, x, -torch.rand(1, 5, 2), torch.rand(1, 5, 2)


@pytest.mark.parametrize("rule", [hub_functions.chunk_rule, hub_functions.recurrent_rule])
def test_rule_argument_unknown_is_refused_and_the_scale_is_used(rule):
    y, _ = rule(*rule_inputs())
    inputs = rule_inputs()
    y, _ = rule(*inputs)
    torch.testing.assert_close(rule(*inputs, scale=1.0)[0], y * 8**0.5)
    assert torch.equal(rule(*inputs, position_ids=torch.arange(5))[0], y)
    with pytest.raises(ValueError, match="^headgate: gated delta rule: argument 'use_gate_in_kernel' is not supported"):
        rule(*inputs, use_gate_in_kernel=True)


def test_convolution_argument_unknown_is_refused_by_name():
    x, weight = torch.randn(1, 6, 5), torch.randn(6, 3)
    assert hub_functions.convolution(x, weight, use_cache=True) is not NotImplemented
    with pytest.raises(ValueError, match="^headgate: causal_conv1d: argument 'initial_states' is not supported"):
        hub_functions.convolution(x, weight, initial_states=x)


def test_flex_kernel_option_unknown_is_refused_by_name():
    x = torch.randn(1, 2, 4, 8)
    y = flex_attention(x, x, x, kernel_options={"BLOCK_M": 16, "fwd_num_stages": 1})
    assert torch.equal(y, flex_attention(x, x, x))
    with pytest.raises(ValueError, match="^flex_attention: kernel_options has 'SOFTCAP', which is none of"):
        flex_attention(x, x, x, kernel_options={"SOFTCAP": 1})


def test_auxiliary_output_unknown_is_refused_by_name():
    begins = torch.tensor([0, 4], dtype=torch.int32)
    x = torch.randn(4, 2, 8)
    aux = pytorch_flex.AuxRequest(lse=True, max_scores=True)
    with pytest.raises(ValueError, match="^varlen_attn: return_aux asks for max_scores"):
        headgate.torch.varlen_attn(x, x, x, begins, begins, 4, 4, return_aux=aux)
