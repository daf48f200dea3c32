# SPDX-License-Identifier: Apache-2.0
"""Plain attention with all T x S weights, plain linear attention token by token, the short convolution and the gated
norm, in float64 by PyTorch, which the package is compared with."""

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
    if window_left != -1:
        seen &= j >= at - window_left
    if window_right != -1:
        seen &= j <= at + window_right
    return seen


def listed(key_indices, key_block_size, Hq, S):
    """Returns the keys that lists (…,T,K) have, as bools (…,Hq|1,T,S)."""
    marks = (torch.arange(S) // key_block_size == key_indices[..., None]).any(-2)
    if marks.dim() < 3 or marks.shape[-3] == 1:
        return marks
    return marks.repeat_interleave(Hq // marks.shape[-3], dim=-3)


def plain_attention(
    q,
    k,
    v,
    gate=None,
    *,
    bias=None,
    key_bias=None,
    key_indices=None,
    key_block_size=1,
    mask=None,
    key_lengths=None,
    alibi_slopes=None,
    sinks=None,
    scale=None,
    softcap=0.0,
    gate_fn="sigmoid",
    gate_op="mul",
    kept=None,
    **positions,
):
    """Returns y, lse, the output before the gate and the weights, of tensors (B,H,T,D). kept: dropout's factors."""
    (B, Hq, T, D), (Hkv, S) = q.shape, k.shape[1:3]
    k, v = (x.repeat_interleave(Hq // Hkv, dim=1) for x in (k, v))
    scores = (q @ k.transpose(-1, -2)) * (1 / math.sqrt(D) if scale is None else scale)
    if softcap > 0:
        scores = softcap * torch.tanh(scores / softcap)
    if alibi_slopes is not None:
        distance = (torch.arange(T)[:, None] + S - T - torch.arange(S)[None, :]).abs()
        scores = scores - alibi_slopes[..., None, None] * distance
    if bias is not None:
        scores = scores + bias
    if key_bias is not None:
        scores = scores + key_bias
    seen = visible(T, S, **positions).expand(B, 1, T, S)
    if mask is not None:
        seen = seen & mask
    if key_indices is not None:
        seen = seen & listed(key_indices, key_block_size, Hq, S)
    if key_lengths is not None:
        seen = seen & (torch.arange(S) < key_lengths[:, None, None, None])
    scores = scores.masked_fill(~seen, -math.inf)
    if sinks is not None:
        scores = torch.cat(
            [scores, (sinks[:, None] if sinks.dim() == 1 else sinks)[..., None].expand(B, Hq, T, 1)], dim=-1
        )
    lse = torch.logsumexp(scores, dim=-1)
    weights = torch.exp(scores - lse[..., None])[..., :S]
    weights = weights if kept is None else weights * kept
    attn = weights @ v
    if gate is None:
        return attn, lse, attn, weights
    g = GATES[gate_fn](gate)
    return (attn * g if gate_op == "mul" else attn + g), lse, attn, weights


def plain_linear_attention(q, k, v, decay=None, beta=None, *, state=None, rule="gated_delta", scale=None, l2_norm=None):
    """Returns y and the last state, of tensors (B,H,T,D)."""
    Hq, Hv, D = q.shape[1], v.shape[1], q.shape[3]
    if l2_norm is not None:
        q, k = (x / torch.sqrt((x * x).sum(-1, keepdim=True) + l2_norm) for x in (q, k))
    k = k.repeat_interleave(Hv // k.shape[1], dim=1)
    heads = max(Hq, Hv)
    q, scale = q.repeat_interleave(heads // Hq, dim=1), 1 / math.sqrt(D) if scale is None else scale
    S = torch.zeros(*v.shape[:2], D, v.shape[3], dtype=v.dtype) if state is None else state
    y = []
    for t in range(q.shape[2]):
        if decay is not None:
            S = S * torch.exp(decay[:, :, t, :, None])
        if rule in ("delta", "gated_delta"):
            difference = v[:, :, t] - torch.einsum("bhdv,bhd->bhv", S, k[:, :, t])
            new = difference if beta is None else difference * beta[:, :, t]
        else:
            new = v[:, :, t]
        S = S + k[:, :, t, :, None] * new[:, :, None, :]
        y.append(scale * torch.einsum("bhdv,bhd->bhv", S.repeat_interleave(heads // Hv, dim=1), q[:, :, t]))
    return (torch.stack(y, dim=2) if y else q.new_zeros(q.shape[0], heads, 0, v.shape[3])), S


def linear_problem(
    B=2, Hq=2, Hk=1, Hv=2, T=9, D=8, Dv=6, rule="gated_delta", features=1, dtype=torch.float64, seed=0, state=True
):
    """Returns q, k, v, and a dictionary of decay, beta and state as far as the rule has them."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    rest = {}
    if rule in ("gated", "gated_delta"):
        rest["decay"] = -normal(B, Hv, T, features).abs()
    if rule in ("delta", "gated_delta"):
        rest["beta"] = torch.sigmoid(normal(B, Hv, T, 1))
    if state:
        rest["state"] = normal(B, Hv, D, Dv).to(torch.float64 if dtype == torch.float64 else torch.float32)
    k = normal(B, Hk, T, D)
    return normal(B, Hq, T, D), k / (k * k).sum(-1, keepdim=True).sqrt(), normal(B, Hv, T, Dv), rest


def plain_short_convolution(x, weight, bias=None, *, state=None, activation="silu"):
    """Returns y and the last K-1 rows of x, of x (B,T,C) and weight (C,K)."""
    (B, _, C), K = x.shape, weight.shape[1]
    rows = torch.cat([x.new_zeros(B, K - 1, C) if state is None else state, x], dim=1)
    y = torch.nn.functional.conv1d(rows.transpose(1, 2), weight[:, None], bias, groups=C).transpose(1, 2)
    return (GATES[activation](y) if activation != "none" else y), rows[:, rows.shape[1] - (K - 1) :]


def convolution_problem(B=2, T=9, C=5, K=4, dtype=torch.float64, seed=0):
    """Returns x, weight, bias and state."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    return normal(B, T, C), normal(C, K), normal(C), normal(B, K - 1, C)


def plain_gated_norm(x, weight=None, gate=None, *, gate_fn="silu", eps=1e-6):
    """Returns y, of x (B,H,T,D)."""
    y = x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps)
    if weight is not None:
        y = y * (weight[:, None] if weight.dim() == 2 else weight)
    return y if gate is None or gate_fn == "none" else y * GATES[gate_fn](gate)


def norm_problem(B=2, H=3, T=7, D=16, dtype=torch.float64, of_heads=False, seed=0):
    """Returns x, weight and gate."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    return normal(B, H, T, D), normal(*((H, D) if of_heads else (D,))), normal(B, H, T, D)


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
