# SPDX-License-Identifier: Apache-2.0
"""headgate.torch.ring_attention and its shards, on 1, 2 and 4 processes, against the whole sequence on one."""

import inspect
import re

import plain
import processes
import pytest
import torch
import torch.distributed as dist
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import headgate
from headgate.torch import GATE_FUNCTIONS, gated_attention, gather_sequence, ring, ring_attention, shard_sequence
from headgate.torch.attention import OPTIONS, TENSORS
from headgate.torch.sharding import spans_of

B, HQ, HKV, T, D, DV = 2, 4, 2, 24, 8, 12  # T is cut into 8 chunks by 4 ranks

# What each case gives: the grain of the gate, and arguments.
CASES = {
    "none": ("none", {}),
    "headwise": ("headwise", {}),
    "causal": ("none", {"causality": "causal"}),
    "causal headwise": ("headwise", {"causality": "causal"}),
    "causal elementwise": ("elementwise", {"causality": "causal", "gate_fn": "sigmoid2"}),
    "contiguous": ("headwise", {"sharding": "contiguous"}),
    "causal contiguous": ("elementwise", {"causality": "causal", "sharding": "contiguous"}),
    "window": ("headwise", {"causality": "causal", "window_left": 5}),
    "window contiguous": ("headwise", {"causality": "causal", "window_left": 5, "sharding": "contiguous"}),
    "both sides": ("elementwise", {"window_left": 2, "window_right": 4}),
    "own token": ("headwise", {"window_left": 0, "window_right": 0, "sharding": "contiguous"}),
    "softcap and scale": ("headwise", {"causality": "causal", "softcap": 1.5, "scale": 0.7}),
    "sinks": ("headwise", {"causality": "causal", "sinks": True}),
    "sinks alone": ("none", {"sinks": True}),
    "alibi": ("headwise", {"alibi_slopes": torch.tensor([0.5, 0.1, 0.9, 0.3])}),
    "lengths": ("elementwise", {"key_lengths": torch.tensor([T, 7]), "causality": "causal"}),
    "no keys": ("headwise", {"key_lengths": torch.tensor([3, 0]), "sinks": True}),
    "silu": ("elementwise", {"causality": "causal", "gate_fn": "silu"}),
    "added": ("elementwise", {"causality": "causal", "gate_op": "add"}),
}


def problem(gate, options, dtype):
    """Leaves by name, of the whole sequence, and the gradients of y and lse; the same on every rank."""
    torch.manual_seed(1)
    leaves = {"q": torch.randn(B, HQ, T, D), "k": torch.randn(B, HKV, T, D), "v": torch.randn(B, HKV, T, DV)}
    if gate != "none":
        leaves["gate_logits"] = torch.randn(B, HQ, T, 1 if gate == "headwise" else DV)
    leaves = {name: x.to(dtype) for name, x in leaves.items()}
    if options.get("sinks"):
        leaves["sinks"] = torch.randn(HQ)
    incoming = torch.randn(B, HQ, T, DV).to(dtype), torch.randn(B, HQ, T).to(torch.promote_types(dtype, torch.float32))
    return {name: x.requires_grad_() for name, x in leaves.items()}, incoming


def assert_near(ours, expected, tolerance):
    assert ours.shape == expected.shape and ours.dtype == expected.dtype
    scale = max(1.0, expected.abs()[expected.isfinite()].max().item())
    torch.testing.assert_close(ours / scale, expected / scale, rtol=0, atol=tolerance)


def compare(name, dtype, tolerance, layout="bhtd"):
    """On a rank: y, lse and every gradient against gated_attention over the whole."""
    gate, options = CASES[name]
    sharding = options.get("sharding", "balanced")
    leaves, (dy, dlse) = problem(gate, options, dtype)
    rules = {key: value for key, value in options.items() if key not in ("sharding", "sinks")}
    whole = gated_attention(**leaves, **rules, return_lse=True)
    expected = dict(zip(leaves, torch.autograd.grad(whole, list(leaves.values()), (dy, dlse))))

    def shard(x):
        part = shard_sequence(x.detach(), 2, sharding=sharding)
        return part.transpose(1, 2).contiguous() if layout == "bthd" and x.dim() == 4 else part

    own = {key: (x.detach().clone() if key == "sinks" else shard(x)).requires_grad_() for key, x in leaves.items()}
    found = ring_attention(**own, **rules, sharding=sharding, layout=layout, return_lse=True)
    gradients = dict(zip(own, torch.autograd.grad(found, list(own.values()), (shard(dy), shard(dlse)))))
    for ours, theirs in zip(found, map(shard, whole)):
        assert_near(ours, theirs, tolerance)
    for key, ours in gradients.items():
        if key == "sinks":
            dist.all_reduce(ours)
        assert_near(ours, expected[key] if key == "sinks" else shard(expected[key]), 3 * tolerance)


def compare_all():
    for name in CASES:
        try:
            compare(name, torch.float32, 2e-6)
        except AssertionError as error:
            raise AssertionError(f"case '{name}'") from error
    compare("causal elementwise", torch.float32, 2e-6, "bthd")
    compare("alibi", torch.float64, 1e-14)
    compare("sinks", torch.float64, 1e-14, "bthd")
    for name in ("causal headwise", "added", "lengths"):
        compare(name, torch.bfloat16, 8e-3)
        compare(name, torch.float16, 1e-3)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_agrees_with_the_whole_sequence(ranks):
    processes.run(ranks, compare_all)


def compare_with_torch():
    """f32 against PyTorch's own attention in its plain form, gated by PyTorch."""
    for causal, sharding in ((True, "balanced"), (False, "contiguous")):
        leaves, (dy, _) = problem("elementwise", {}, torch.float32)
        with sdpa_kernel(SDPBackend.MATH):
            whole = scaled_dot_product_attention(leaves["q"], leaves["k"], leaves["v"], is_causal=causal, enable_gqa=True)
        whole = whole * torch.sigmoid(leaves["gate_logits"])
        whole.backward(dy)
        own = {key: shard_sequence(x.detach(), 2, sharding=sharding).requires_grad_() for key, x in leaves.items()}
        y = ring_attention(**own, causality="causal" if causal else "none", sharding=sharding)
        y.backward(shard_sequence(dy, 2, sharding=sharding))
        assert_near(gather_sequence(y.detach(), 2, sharding=sharding), whole.detach(), 2e-6)
        for key, x in own.items():
            assert_near(gather_sequence(x.grad, 2, sharding=sharding), leaves[key].grad, 5e-6)


def test_agrees_with_pytorch():
    processes.run(4, compare_with_torch)
