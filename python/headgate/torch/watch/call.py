# SPDX-License-Identifier: Apache-2.0
"""Describes one call of softmax attention, and which keys its queries see.

Letters: B batch, N sequences, T queries, S keys, Hq query heads, Hkv key/value heads, D features of a head.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass
class AttentionCall:
    """Holds the arguments of one attention call that determine its weights. Tensors are detached, except in override()."""

    q: Tensor  # (B,Hq,T,D)
    k: Tensor  # (B,Hkv,S,D)
    v: Tensor | None = None  # (B,Hkv,S,Dv)
    scale: float | None = None  # None means 1/sqrt(D)
    softcap: float = 0.0
    causal: bool = False  # whether queries see no later keys; query i is at position i + S - T
    window: int | None = None  # number of keys that a query sees, including its own; requires `causal`
    slides: bool = False  # whether the layer has a window, even if the window hides no key in this call
    mask: Tensor | None = None  # (B|1,H|1,T|1,S) bool, true for visible keys
    listed: Tensor | None = None  # (B|1,Hq|1,T,S) bool: keys that an indexer selected; not used to find sequences
    bias: Tensor | None = None  # (B|1,Hq|1,T|1,S), added to the scores
    sinks: Tensor | None = None  # (Hq) or (B|1,Hq,T): sink logits of heads, or of heads and queries
    cu_seqlens: Tensor | None = None  # (N+1): first token of each sequence, counted over the B·T tokens of all rows
    cross: bool = False  # whether the keys belong to another sequence than the queries
    kind: str = "causal"  # kind of attention in results: causal, bidirectional or cross
    real: Tensor | None = None  # (B|1,S) bool, true for real keys; only if an indexer chose the keys in `mask`
    positions: Tensor | None = None  # (B|1,T): positions of queries; set if a cache may lack the first keys

    def __post_init__(self) -> None:
        if self.scale is None:
            self.scale = 1 / math.sqrt(self.q.shape[-1])
        if self.cross:
            self.kind = "cross"

    def kernel_arguments(self) -> dict[str, Any]:
        """Returns options, mask, bias and sinks as arguments of headgate.attention_forward. Omits cu_seqlens."""
        rules: dict[str, Any] = {"scale": self.scale, "softcap": self.softcap}
        if self.causal:
            rules["causality"] = "causal"
            if self.window is not None:
                rules["window_left"] = self.window - 1
        if self.bias is not None:
            rules["bias"] = self.bias
        if (visible := both(self.mask, self.listed)) is not None:
            rules["mask"] = visible
        if self.sinks is not None:
            rules["sinks"] = self.sinks.float()
        return rules

    def sink_rows(self, wide: torch.dtype) -> Tensor:
        """Returns the sink logits, (1,Hq,1) or (B|1,Hq,T), in the dtype `wide`."""
        sinks = self.sinks.to(wide)
        return sinks[None, :, None] if sinks.dim() == 1 else sinks


def both(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    """Returns the logical and of two masks. A mask that is None is true everywhere."""
    return b if a is None else a if b is None else a & b


@dataclass
class Geometry:
    """Holds the position of each query, and the first key of its sequence.

    A dimension is 1 where all rows of the batch, or all queries, have the same values.
    """

    own_key: Tensor  # (B|1,T): index of the key at each query's position; S, which is no key, in cross-attention
    first: Tensor  # (B|1,T|1): index of the first visible key in each query's sequence
    not_padding: Tensor  # (B|1,T) bool: whether each query is a real token, not padding
    after_first: Tensor  # (B|1,T) bool: whether each query is a real token, and not the first of its sequence
    sees_first: Tensor  # (B|1,T) bool: whether each query sees the key `first`, which a window may hide
    keys: Tensor  # (B|1,T): number of keys that each query sees; ignores `window` unless an indexer selected keys
    sequence: Tensor | None = None  # (B,T): index of each token's sequence; None if each row is one sequence


def sequence_numbers(cu_seqlens: Tensor, B: int, T: int) -> Tensor:
    """Returns the index (B,T) of the sequence to which each token belongs."""
    tokens = torch.arange(B * T, device=cu_seqlens.device, dtype=cu_seqlens.dtype)
    return torch.searchsorted(cu_seqlens[1:].contiguous(), tokens, right=True).view(B, T)


def geometry_of(call: AttentionCall) -> Geometry:
    """Derives the geometry of a call from its mask, its rules and the positions of its queries.

    Raises ValueError for packed cross-attention.
    """
    if call.cross and call.cu_seqlens is not None:
        raise ValueError("packed cross-attention is not read")
    found = _geometry_of(call)
    if call.positions is not None:  # query p sees the first key only if it has p + 1 visible keys
        found.sees_first = found.sees_first & (call.positions < found.keys)
        for name in ("after_first", "not_padding", "keys"):
            setattr(found, name, getattr(found, name).expand_as(found.sees_first))
    if call.listed is not None:
        found.keys = _visible(call, found, slice(None)).any(1).sum(-1)
    return found


def _geometry_of(call: AttentionCall) -> Geometry:
    """Derives the geometry of a call from its mask and rules.

    - Self-attention with a T × T mask: a sequence begins at a token if neither this token nor a later one sees an
      earlier token. A query that does not see itself is padding, unless `real` tells.
    - T × S mask with more keys than queries: the first key is the first one that any query of the row sees. A query is
      at the position of the last key that it sees. Later keys are unused slots of a static cache.
    - Cross-attention: the first key is the first one that any query of the row sees. Queries have no position among the
      keys.

    The field `window` affects only `sees_first`.
    """
    (B, _, T, _), S, device = call.q.shape, call.k.shape[2], call.q.device
    t, s = torch.arange(T, device=device)[None], torch.arange(S, device=device)[None]
    mask = None if call.mask is None else call.mask.any(1)  # (b,T|1,S)
    dense = mask is not None and (mask.shape[1] != 1 or (T == 1 and call.cu_seqlens is None))
    at = t + (S - T)
    if call.causal and (call.cross or dense):
        earlier = s[:, None] <= at[..., None]
        mask = earlier if mask is None else mask & earlier
    near = call.window if call.causal and call.window is not None else S + 1  # the window; S + 1 hides no key
    if dense and T != S and call.real is not None:
        first, not_padding = call.real.int().argmax(-1, keepdim=True), call.real[:, S - T :]
        at, first, not_padding, keys = torch.broadcast_tensors(at, first, not_padding, mask.sum(-1))
        return Geometry(at, first, not_padding, not_padding & (at != first), at - first < near, keys)
    if call.cross or (dense and T != S):
        seen = torch.ones(1, 1, S, dtype=torch.bool, device=device) if mask is None else mask
        first = seen.any(1).int().argmax(-1, keepdim=True)
        own_key = torch.full_like(t, S) if call.cross else S - 1 - seen.flip(-1).int().argmax(-1)
        not_padding = seen.any(-1)
        sees = seen.gather(-1, first[:, None].expand(-1, seen.shape[1], 1))[..., 0] & (at - first < near)
        b = seen.shape[0]
        own_key, not_padding, sees, keys = (x.expand(b, T) for x in (own_key, not_padding, sees, seen.sum(-1)))
        return Geometry(own_key, first, not_padding, not_padding & (own_key != first), sees, keys)
    sequence = None if call.cu_seqlens is None else sequence_numbers(call.cu_seqlens, B, T)
    if dense:
        if sequence is not None:
            mask = mask & (sequence[:, :, None] == sequence[:, None])
        real = mask.diagonal(dim1=1, dim2=2) if call.real is None else call.real.expand(len(mask), T)
        lowest = torch.where(real & mask.any(-1), mask.byte().argmax(-1), S)  # first key that each query sees
        lowest = lowest.flip(-1).cummin(-1).values.flip(-1)  # minimum over this query and later ones
        first = torch.where(real & (lowest >= s), s, 0).cummax(-1).values
        sees = mask.gather(-1, first[..., None])[..., 0] if call.real is None else torch.ones_like(real)
        sees = sees & (at - first < near)
        return Geometry(at.expand_as(first), first, real, real & (at != first), sees, mask.sum(-1), sequence)
    visible = torch.ones(1, S, dtype=torch.bool, device=device) if mask is None else mask[:, 0]
    # For each key: the first visible key at or after it.
    following = torch.where(visible, s, S).flip(-1).cummin(-1).values.flip(-1)
    if sequence is None:
        first = following[:, :1]
    else:
        starts = torch.ones_like(sequence, dtype=torch.bool)
        starts[:, 1:] = sequence[:, 1:] != sequence[:, :-1]
        begin = torch.where(starts, s, 0).cummax(-1).values
        first = following.expand(B, S).gather(-1, begin)
    b = first.shape[0]
    at = at.expand(b, T).clamp_min(0)
    not_padding = visible.expand(b, S).gather(-1, at)
    # Without causality, the first visible key may follow the query.
    after_first = not_padding & (at > first if call.causal else at != first)
    before = visible.expand(b, S).cumsum(-1)
    if call.causal:
        keys = before.gather(-1, at) - before.gather(-1, first.clamp_max(S - 1).expand(b, T)) + 1
        sees = at - first < near
    elif sequence is None:
        keys, sees = before[:, -1:].expand(b, T), torch.ones_like(after_first)
    else:
        of_begin = torch.zeros_like(begin).scatter_add(-1, begin, visible.expand(B, S).long())
        keys, sees = of_begin.gather(-1, begin), torch.ones_like(after_first)
    return Geometry(at, first.clamp_max(S - 1), not_padding, after_first, sees, keys, sequence)


def _visible(call: AttentionCall, geometry: Geometry, queries: Tensor | slice) -> Tensor | None:
    """Returns a mask (B|1,Hq|1,R|1,S) of the keys that the chosen queries see. Returns None if they see all keys."""
    S, device = call.k.shape[2], call.q.device
    rows = torch.arange(call.q.shape[2], device=device)[queries]
    visible = call.mask if call.mask is None or call.mask.shape[-2] == 1 else call.mask[..., rows, :]
    if call.listed is not None:
        visible = both(visible, call.listed[..., rows, :])
    if call.causal:
        key = torch.arange(S, device=device)
        at = (rows + (S - call.q.shape[2]))[:, None]
        near = key <= at
        if call.window is not None:
            near = near & (key > at - call.window)
        visible = both(visible, near)
    if geometry.sequence is not None:
        number = geometry.sequence
        visible = both(visible, (number[:, rows, None] == number[:, None])[:, None])
    return visible


def scores(call: AttentionCall, geometry: Geometry, queries: Tensor | slice) -> Tensor:
    """Returns the scores (B,Hq,R,S) of the chosen queries in f32 or better. Scores of hidden keys are -inf."""
    q, k = call.q[:, :, queries], call.k
    wide = torch.promote_types(q.dtype, torch.float32)
    B, Hq, R, D = q.shape
    S = k.shape[2]
    found = q.to(wide).reshape(B, k.shape[1], -1, D) @ k.to(wide).transpose(-1, -2)
    found = found.view(B, Hq, R, S) * call.scale
    if call.softcap:
        found = call.softcap * torch.tanh(found / call.softcap)
    rows = torch.arange(call.q.shape[2], device=q.device)[queries]
    if call.bias is not None:
        found = found + (call.bias if call.bias.shape[-2] == 1 else call.bias[..., rows, :])
    visible = _visible(call, geometry, rows)
    return found if visible is None else found.masked_fill(~visible, -math.inf)


def scores_of_first(call: AttentionCall, geometry: Geometry) -> Tensor:
    """Returns the score (B,Hq,T) of each query on the first key of its sequence, even if a window hides that key.

    If an indexer selected keys for a query but not the first key, the score is -inf.
    """
    q, k, first = call.q, call.k, geometry.first
    B, Hq, T, D = q.shape
    wide = torch.promote_types(q.dtype, torch.float32)
    at = first.expand(B, -1)[:, None, :, None].expand(-1, k.shape[1], -1, D)
    of_first = k.gather(2, at).to(wide)  # (B,Hkv,t,D)
    grouped = q.to(wide).unflatten(1, (k.shape[1], -1))  # (B,Hkv,G,T,D)
    if of_first.shape[2] == 1:
        found = (grouped @ of_first[:, :, None].transpose(-1, -2))[..., 0]
    else:
        found = torch.einsum("bhgtd,bhtd->bhgt", grouped, of_first)
    found = found.reshape(B, Hq, T) * call.scale
    if call.softcap:
        found = call.softcap * torch.tanh(found / call.softcap)
    if call.bias is not None:
        bias = call.bias.expand(B, -1, T, -1)
        at = first.expand(B, T)[:, None, :, None].expand(-1, bias.shape[1], -1, 1)
        found = found + bias.gather(-1, at)[..., 0]
    if call.listed is not None:
        listed = call.listed.expand(B, -1, -1, -1)
        at = first.expand(B, T)[:, None, :, None].expand(-1, listed.shape[1], -1, 1)
        found = found.masked_fill(~listed.gather(-1, at)[..., 0], -math.inf)
    return found
