# SPDX-License-Identifier: Apache-2.0
"""The formulas of the operation, written out with whole score matrices, in the order of docs/reference/math.md."""

import math

import torch

FUNCTIONS = {
    "sigmoid": lambda z: 1 / (1 + torch.exp(-z)),
    "sigmoid2": lambda z: 2 / (1 + torch.exp(-z)),
    "ns_sigmoid": lambda z: 0.5 + 0.5 / (1 + torch.exp(-z)),
    "silu": lambda z: z / (1 + torch.exp(-z)),
    "softplus": lambda z: torch.log1p(torch.exp(z)),
    "identity": lambda z: z,
}


def visible_keys(
    B, T, S, mask=None, key_lengths=None, query_offsets=None, causality="none", window_left=-1, window_right=-1
):
    """Returns (B,1,T,S) or wider: whether query i sees key j."""
    start = torch.full((B,), S - T) if query_offsets is None else query_offsets
    at = start.view(B, 1, 1, 1) + torch.arange(T).view(1, 1, T, 1)
    key = torch.arange(S).view(1, 1, 1, S)
    visible = torch.ones(B, 1, T, S, dtype=torch.bool)
    if causality == "causal":
        visible = visible & (key <= at)
    if window_left != -1:
        visible = visible & (key >= at - window_left)
    if window_right != -1:
        visible = visible & (key <= at + window_right)
    if key_lengths is not None:
        visible = visible & (key < key_lengths.view(B, 1, 1, 1))
    return visible if mask is None else visible & mask, (at - key).abs()


def gated(o, gate, gate_fn, gate_op):
    if gate is None:
        return o
    g = FUNCTIONS[gate_fn](gate)
    return o + g if gate_op == "add" else o * g


def listed(key_indices, key_block_size, Hq, S):
    """Returns the keys that lists (…,T,K) have, as bools (…,Hq|1,T,S)."""
    marks = (torch.arange(S) // key_block_size == key_indices[..., None]).any(-2)
    heads = marks.shape[-3] if marks.dim() > 2 else 1
    return marks if heads == 1 else marks.repeat_interleave(Hq // heads, dim=-3)


def attention(
    q,
    k,
    v,
    gate=None,
    *,
    bias=None,
    key_bias=None,
    key_indices=None,
    key_block_size=1,
    alibi_slopes=None,
    sinks=None,
    scale=None,
    softcap=0.0,
    gate_fn="sigmoid",
    gate_op="mul",
    **rules,
):
    """Returns y (B,Hq,T,Dv) and lse (B,Hq,T) of q (B,Hq,T,D), k and v (B,Hkv,S,·)."""
    B, Hq, T, D = q.shape
    k, v = (x.repeat_interleave(Hq // x.shape[1], dim=1) for x in (k, v))
    scores = q @ k.transpose(-1, -2) * (1 / math.sqrt(D) if scale is None else scale)
    if softcap > 0:
        scores = softcap * torch.tanh(scores / softcap)
    visible, distance = visible_keys(B, T, k.shape[2], **rules)
    if alibi_slopes is not None:
        scores = scores - alibi_slopes.view(-1, Hq, 1, 1) * distance
    if bias is not None:
        scores = scores + bias
    if key_bias is not None:
        scores = scores + key_bias
    if key_indices is not None:
        visible = visible & listed(key_indices, key_block_size, Hq, k.shape[2])
    scores = scores.masked_fill(~visible, -math.inf)
    if sinks is not None:
        sinks = sinks.view(1, Hq, 1) if sinks.dim() == 1 else sinks
        scores = torch.cat((scores, sinks.unsqueeze(-1).expand(B, -1, T, 1)), dim=-1)
    lse = torch.logsumexp(scores, dim=-1)
    weights = torch.exp(scores - lse.unsqueeze(-1))[..., : k.shape[2]]
    return gated(weights @ v, gate, gate_fn, gate_op), lse


def packed_attention(q, k, v, gate, cu_seqlens_q, cu_seqlens_k, **options):
    """Does the same for a packed batch, q (1,Hq,T,D), one sequence at a time."""
    starts_q, starts_k = cu_seqlens_q.tolist(), cu_seqlens_k.tolist()
    parts = [
        attention(q[:, :, a:b], k[:, :, c:d], v[:, :, c:d], None if gate is None else gate[:, :, a:b], **options)
        for a, b, c, d in zip(starts_q, starts_q[1:], starts_k, starts_k[1:])
    ]
    return torch.cat([y for y, _ in parts], dim=2), torch.cat([lse for _, lse in parts], dim=2)
