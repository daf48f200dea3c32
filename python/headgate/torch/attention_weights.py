# SPDX-License-Identifier: Apache-2.0
"""Computes the T × S attention weights for callers that request them. The kernels never store the whole matrix."""

import math
from typing import Any

import torch
from torch import Tensor

from .key_lists import KeyLists


def _visible(rules: dict[str, Any], heads: int, T: int, S: int, device: torch.device) -> Tensor | None:
    """Returns the mask of visible keys, broadcastable to (B,H,T,S). Returns None if all keys are visible.

    `rules` are arguments of gated_attention.
    """
    found = rules.get("mask")
    if (entries := rules.get("key_indices")) is not None:
        listed = KeyLists(entries, rules["key_block_size"], S).mask(heads, S)
        found = listed if found is None else found & listed
    at = torch.arange(T, device=device).unsqueeze(1)
    key = torch.arange(S, device=device)
    if (begins := rules.get("cu_seqlens_q")) is not None:
        begins_k = rules["cu_seqlens_k"]
        sequence = torch.searchsorted(begins[1:].contiguous(), at, right=True)
        same = sequence == torch.searchsorted(begins_k[1:].contiguous(), key, right=True)
        found = same if found is None else found & same
        at = at - begins[1:][sequence] + begins_k[1:][sequence]
    else:
        at = at + (S - T)
    if rules.get("causality") == "causal":
        found = key <= at if found is None else found & (key <= at)
    if rules.get("window_left", -1) != -1:
        near = key >= at - rules["window_left"]
        found = near if found is None else found & near
    return found


def attention_weights(q: Tensor, k: Tensor, lse: Tensor, rules: dict[str, Any]) -> Tensor:
    """Returns the attention weights exp(s - lse) (B,Hq,T,S) in q's dtype, computed in f32 or better.

    q is (B,Hq,T,D), k (B,Hkv,S,D). lse (B,Hq,T) is the log-sum-exp that gated_attention returned. `rules` are the
    arguments of that call: scale, softcap, bias, mask, key_indices, key_block_size, causality, window_left, cu_seqlens.
    q, k, bias and lse have gradients. A query that sees no key has weights 0.
    """
    wide = torch.promote_types(q.dtype, torch.float32)
    scale = rules.get("scale")
    k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1).to(wide)
    scores = q.to(wide) @ k.transpose(-1, -2) * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    if rules.get("softcap"):
        scores = rules["softcap"] * torch.tanh(scores / rules["softcap"])
    if rules.get("bias") is not None:
        scores = scores + rules["bias"]
    lse = lse.masked_fill(lse == -math.inf, 0.0).unsqueeze(-1)  # avoids -inf - (-inf), which is NaN
    visible = _visible(rules, q.shape[1], q.shape[2], k.shape[2], q.device)
    difference = scores - lse
    if visible is not None:
        difference = difference.masked_fill(~visible, -math.inf)
    return difference.exp().to(q.dtype)
