# SPDX-License-Identifier: Apache-2.0
"""Orders of rows: written out by hand, there and back, and those of the models of transformers that have a gate."""

import pytest
import torch

import models
from headgate.torch import GatedAttention
from headgate.torch.layouts import FUSED, Heads, join_blocks, join_gate, split_blocks, split_gate

HQ, HKV, D, C = 4, 2, 3, 5


def rows(heads):
    """Makes q and gate whose rows identify themselves: 100·head + feature, negative for the gate."""
    q = torch.tensor([[100.0 * n + i] for n in range(HQ) for i in range(D)])
    gate = torch.tensor([[-100.0 * n - i - 1] for n in range(HQ) for i in range(heads.gate_features)])
    return q, gate


@pytest.mark.parametrize("features", [1, D])
@pytest.mark.parametrize("layout", FUSED)
def test_order_of_rows(layout, features):
    heads = Heads(HQ, HKV, D, features)
    q, gate = rows(heads)
    q_of, gate_of = q.view(HQ, D), gate.view(HQ, features)
    group = HQ // HKV
    expected = {
        "per_query_head": [part for n in range(HQ) for part in (q_of[n], gate_of[n])],
        "per_group": [
            part
            for g in range(HKV)
            for part in (*q_of[g * group : (g + 1) * group], *gate_of[g * group : (g + 1) * group])
        ],
        "trailing": [*q_of, *gate_of],
    }[layout]
    fused = join_gate(q, gate, layout, heads)
    assert torch.equal(fused[:, 0], torch.cat(expected))
    for ours, given in zip(split_gate(fused, layout, heads), (q, gate), strict=True):
        assert torch.equal(ours, given)
    assert torch.equal(join_gate(q[:, 0], gate[:, 0], layout, heads), fused[:, 0])  # biases


def test_blocks():
    heads = Heads(HQ, HKV, D, D)
    q, gate, k, v = (torch.randn(n, C) for n in (HQ * D, HQ * D, HKV * D, HKV * D))
    fused = join_blocks(q, gate, k, v, heads)
    assert torch.equal(fused, torch.cat((q, gate, k, v)))
    for ours, given in zip(split_blocks(fused, heads), (q, gate, k, v), strict=True):
        assert torch.equal(ours, given)


def test_per_query_head_and_per_group_differ_unless_groups_are_heads():
    q, gate = rows(Heads(HQ, HKV, D, D))
    fused = [[join_gate(q, gate, layout, Heads(HQ, n, D, D)) for layout in FUSED[:2]] for n in (HKV, HQ)]
    assert not torch.equal(*fused[0]) and torch.equal(*fused[1])


def test_arguments_bad_are_refused():
    heads = Heads(HQ, HKV, D, 1)
    for call, message in (
        (
            lambda: split_gate(torch.zeros(24, C), "trailing", heads),
            r"^split_gate: layout trailing: fused has shape \(24,5\) but must have 16 rows",
        ),
        (
            lambda: split_gate(torch.zeros(16, C), "separate", heads),
            "^split_gate: layout: 'separate' is none of per_query_head, per_group",
        ),
        (
            lambda: join_gate(torch.zeros(12, C), torch.zeros(3, C), "per_group", heads),
            r"^join_gate: gate has shape \(3,5\) but must have 4 rows",
        ),
        (lambda: split_blocks(torch.zeros(16, C), heads), r"^split_blocks: fused has shape \(16,5\) but must have 28"),
    ):
        with pytest.raises(ValueError, match=message):
            call()


@pytest.mark.parametrize("layout", FUSED)
@pytest.mark.parametrize("grain", ["headwise", "elementwise"])
def test_layers_of_each_layout_compute_the_same(layout, grain):
    sizes = (24, HQ, HKV, 6)
    separate = GatedAttention(*sizes, gate_grain=grain, initializer_range=0.3)
    fused = GatedAttention(*sizes, gate_grain=grain, gate_layout=layout)
    state = separate.state_dict()
    state["q_proj.weight"] = join_gate(state["q_proj.weight"], state.pop("gate_proj.weight"), layout, fused.heads)
    fused.load_state_dict(state)
    h = torch.randn(2, 5, 24)
    torch.testing.assert_close(fused(h), separate(h))


# How a layer of a family is a GatedAttention: where its gate stands, and what else differs from the defaults.
GATED = {
    "qwen3-next": ({"norm_kind": "zero_centred", "partial_rotary_factor": 0.25}, "per_query_head"),
    "qwen3.5": ({"norm_kind": "zero_centred", "partial_rotary_factor": 0.25}, "per_query_head"),
    "afmoe": ({"partial_rotary_factor": 0.0}, "separate"),  # its layers without a window do not turn
}


@pytest.mark.parametrize("family", GATED)
def test_layers_of_transformers(family):
    """Compares outputs of the real module, and of the module with its rows split."""
    keys, layout = GATED[family]
    model = models.model(family)
    theirs = next(m.self_attn for m in model.model.layers[1:] if hasattr(m, "self_attn"))
    config = theirs.config
    names = ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "rms_norm_eps")
    keys = {**keys, **{name: getattr(config, name) for name in names}}
    keys["rope_theta"] = config.rope_parameters["rope_theta"]
    ours = GatedAttention(**keys, gate_layout=layout)
    ours.load_state_dict(theirs.state_dict())
    h = torch.randn(2, 9, config.hidden_size)
    causal = torch.full((9, 9), torch.finfo(torch.float32).min).triu(1).expand(2, 1, 9, 9)
    positions = torch.arange(9).expand(2, 9)
    if family == "qwen3.5":
        positions = positions.expand(3, 2, 9)
    expected = theirs(h, position_embeddings=model.model.rotary_emb(h, positions), attention_mask=causal)[0]
    near = {"rtol": 1e-5, "atol": 1e-5 * expected.abs().max().item()}
    torch.testing.assert_close(ours(h), expected, **near)
    if layout == "separate":
        return
    state = ours.state_dict()
    state["q_proj.weight"], state["gate_proj.weight"] = split_gate(state["q_proj.weight"], layout, ours.heads)
    split = GatedAttention(**keys)
    split.load_state_dict(state)
    torch.testing.assert_close(split(h), expected, **near)
