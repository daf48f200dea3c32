# SPDX-License-Identifier: Apache-2.0
"""Plain attention in float64 by PyTorch, with all T x S weights, which the package is compared with."""

import math

import torch

GATES = {
    "sigmoid": torch.sigmoid,
    "sigmoid2": lambda z: 2 * torch.sigmoid(z),
    "ns_sigmoid": lambda z: 0.5 + 0.5 * torch.sigmoid(z),
    "silu": torch.nn.functional.silu,
    "softplus": torch.nn.functional.softplus,
    "identity": lambda z: z,
}


def visible(T, S, causality="none", window_left=-1, window_right=-1):
    """Returns (T,S): the keys that each query sees by its position. The last query is aligned with the last key."""
    at = torch.arange(T)[:, None] + S - T
    j = torch.arange(S)[None, :]
    seen = torch.ones(T, S, dtype=torch.bool)
    if causality == "causal":
        seen &= j <= at
    if window_left >= 0:
        seen &= j >= at - window_left
    if window_right >= 0:
        seen &= j <= at + window_right
    return seen


def plain_attention(
    q,
    k,
    v,
    gate=None,
    *,
    bias=None,
    mask=None,
    key_lengths=None,
    alibi_slopes=None,
    sinks=None,
    scale=None,
    softcap=0.0,
    gate_fn="sigmoid",
    gate_op="mul",
    **positions,
):
    """Returns y, lse, the output before the gate and the weights, of tensors (B,H,T,D)."""
    (B, Hq, T, D), (Hkv, S) = q.shape, k.shape[1:3]
    k, v = (x.repeat_interleave(Hq // Hkv, dim=1) for x in (k, v))
    scores = (q @ k.transpose(-1, -2)) * (1 / math.sqrt(D) if scale is None else scale)
    if softcap > 0:
        scores = softcap * torch.tanh(scores / softcap)
    if alibi_slopes is not None:
        distance = (torch.arange(T)[:, None] + S - T - torch.arange(S)[None, :]).abs()
        scores = scores - alibi_slopes[:, None, None] * distance
    if bias is not None:
        scores = scores + bias
    seen = visible(T, S, **positions).expand(B, 1, T, S)
    if mask is not None:
        seen = seen & mask
    if key_lengths is not None:
        seen = seen & (torch.arange(S) < key_lengths[:, None, None, None])
    scores = scores.masked_fill(~seen, -math.inf)
    if sinks is not None:
        scores = torch.cat([scores, sinks[None, :, None, None].expand(B, Hq, T, 1)], dim=-1)
    lse = torch.logsumexp(scores, dim=-1)
    weights = torch.exp(scores - lse[..., None])[..., :S]
    attn = weights @ v
    if gate is None:
        return attn, lse, attn, weights
    g = GATES[gate_fn](gate)
    return (attn * g if gate_op == "mul" else attn + g), lse, attn, weights


def problem(B=2, Hq=4, Hkv=2, T=7, S=9, D=16, Dv=12, dtype=torch.float64, headwise=False, seed=0):
    """Returns q, k, v and gate logits."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    return normal(B, Hq, T, D), normal(B, Hkv, S, D), normal(B, Hkv, S, Dv), normal(B, Hq, T, 1 if headwise else Dv)


def close(found, expected, roundoffs, dtype=torch.float64):
    """Returns whether all elements are within `roundoffs` of the dtype, relative to the largest expected one."""
    found = torch.as_tensor(found).to(torch.float64)
    error = (found - expected).abs().max().item() if expected.numel() else 0.0
    return found.shape == expected.shape and error <= roundoffs * torch.finfo(dtype).eps * max(
        1.0, expected.abs().max().item() if expected.numel() else 0.0
    )
