# SPDX-License-Identifier: Apache-2.0
"""Gated attention of one sequence in float64: by autograd, and written out with roundings where a kernel must round.

The second is the floor of a kernel's error: no kernel that multiplies 16-bit numbers can be more accurate. Tensors are
(H,T,·); what a query sees is a Rule.
"""

import math
from typing import NamedTuple

import torch

FUNCTIONS = {
    "sigmoid": torch.sigmoid,
    "sigmoid2": lambda z: 2 * torch.sigmoid(z),
    "ns_sigmoid": lambda z: 0.5 + 0.5 * torch.sigmoid(z),
    "silu": lambda z: z * torch.sigmoid(z),
    "softplus": lambda z: torch.logaddexp(z, torch.zeros_like(z)),
    "identity": lambda z: z * 1.0,
}


class Rule(NamedTuple):
    """Query i sees keys j < seen with i + shift - left <= j <= i + shift + right; None: no limit."""

    shift: int
    seen: int
    left: int | None
    right: int | None

    def visible(self, t, s):
        at, key = torch.arange(t)[:, None] + self.shift, torch.arange(s)[None, :]
        visible = (key < self.seen) & (at == at)
        if self.left is not None:
            visible = visible & (key >= at - self.left)
        if self.right is not None:
            visible = visible & (key <= at + self.right)
        return visible


class Arithmetic(NamedTuple):
    """The options that change numbers."""

    scale: float
    softcap: float = 0.0
    gate_fn: str = "sigmoid"
    gate_op: str = "mul"


def _by_row(sinks):
    """Sinks (H) or (H,T) as (H,1|T)."""
    return sinks[:, None] if sinks.dim() == 1 else sinks


def _weights(q, k, sinks, rule, arithmetic):
    """P and lse; k has a head for each of q's. Rows that see nothing have P = 0 and lse = -inf."""
    x = q @ k.mT * arithmetic.scale
    if arithmetic.softcap > 0:
        x = arithmetic.softcap * torch.tanh(x / arithmetic.softcap)
    hidden = ~rule.visible(q.shape[1], k.shape[1])
    blind = hidden.all(1, keepdim=True) & (sinks is None)
    x = x.masked_fill(hidden, -math.inf).masked_fill(blind, 0.0)
    columns = x if sinks is None else torch.cat((x, _by_row(sinks).expand(-1, q.shape[1])[..., None]), dim=-1)
    if columns.shape[-1] == 0:
        columns = torch.zeros(*columns.shape[:-1], 1, dtype=x.dtype)
    lse = torch.logsumexp(columns, dim=-1, keepdim=True)
    return torch.exp(x - lse).masked_fill(blind, 0.0), lse.masked_fill(blind, -math.inf).squeeze(-1)


def _shared(k, q):
    return k.repeat_interleave(q.shape[0] // k.shape[0], dim=0)


def attention(q, k, v, gate, sinks, rule, arithmetic):
    """y and lse, for autograd."""
    p, lse = _weights(q, _shared(k, q), sinks, rule, arithmetic)
    o = p @ _shared(v, q)
    if gate is None:
        return o, lse
    g = FUNCTIONS[arithmetic.gate_fn](gate)
    return (o + g if arithmetic.gate_op == "add" else o * g), lse


def floor(q, k, v, gate, sinks, dy, dlse, rule, arithmetic, rounded, rounded_gate):
    """y, lse, dq, dk, dv, dgate and dsinks, rounded only where weights, ds and do meet the next product, and where they are
    stored."""
    key, value = _shared(k, q), _shared(v, q)
    p, lse = _weights(q, key, sinks, rule, arithmetic)
    o = rounded(p) @ value
    multiplies = gate is not None and arithmetic.gate_op == "mul"
    y, do, dz = rounded(o), dy, None
    if gate is not None:
        z = gate.detach().requires_grad_()
        with torch.enable_grad():
            g = FUNCTIONS[arithmetic.gate_fn](z)
            slope = torch.autograd.grad(g.sum(), z)[0]
        g = g.detach()
        y = rounded(o * g if multiplies else o + g)
        do = rounded(dy * g) if multiplies else dy
        if not multiplies:
            dz = dy * slope
        elif arithmetic.gate_fn in ("silu", "identity"):
            dz = dy * rounded(o) * slope
        else:
            dz = dy * y * (slope / g)
        dz = rounded_gate(dz if gate.shape[-1] == dy.shape[-1] else dz.sum(-1, keepdim=True))
    delta = (dy * (y if multiplies or gate is None else rounded(o))).sum(-1)
    if dlse is not None:
        delta = delta - dlse
    ds = p * (do @ value.mT - delta[..., None])
    if arithmetic.softcap > 0:
        ds = ds * (1 - torch.tanh(q @ key.mT * arithmetic.scale / arithmetic.softcap) ** 2)
    ds = rounded(ds.masked_fill(~rule.visible(q.shape[1], k.shape[1]), 0.0))

    def folded(x):
        return x.unflatten(0, (k.shape[0], -1)).sum(1)

    dq = rounded(ds @ key * arithmetic.scale)
    dk = rounded(folded(ds.mT @ q) * arithmetic.scale)
    dv = rounded(folded(rounded(p).mT @ do))
    dsinks = None
    if sinks is not None:
        dsinks = -(torch.exp(_by_row(sinks) - lse) * delta)
        dsinks = dsinks.sum(1) if sinks.dim() == 1 else dsinks
    return y, lse, dq, dk, dv, dz, dsinks
