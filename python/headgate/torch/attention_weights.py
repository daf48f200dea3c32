# SPDX-License-Identifier: Apache-2.0
"""The weights of attention, T × S, for callers that ask for them: the kernels never hold them all."""

import math
from typing import Any

import torch
from torch import Tensor


def _visible(rules: dict[str, Any], T: int, S: int, device: torch.device) -> Tensor | None:
    """What query i sees, broadcast to (B,H,T,S), by the rules of gated_attention; None where all is visible."""
    found = rules.get("mask")
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
    """exp(s - lse) (B,Hq,T,S), in q's dtype, computed in f32 or better, of q (B,Hq,T,D), k (B,Hkv,S,D) and the
    log-sum-exp (B,Hq,T) of the call with these rules of gated_attention: scale, softcap, bias, mask, causality,
    window_left, cu_seqlens. Gradients go to q, k, the bias and lse. A query that sees no key has weights 0."""
    wide = torch.promote_types(q.dtype, torch.float32)
    scale = rules.get("scale")
    k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1).to(wide)
    scores = q.to(wide) @ k.transpose(-1, -2) * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    if rules.get("softcap"):
        scores = rules["softcap"] * torch.tanh(scores / rules["softcap"])
    if rules.get("bias") is not None:
        scores = scores + rules["bias"]
    lse = lse.masked_fill(lse == -math.inf, 0.0).unsqueeze(-1)  # -inf - (-inf) is NaN
    visible = _visible(rules, q.shape[2], k.shape[2], q.device)
    difference = scores - lse
    if visible is not None:
        difference = difference.masked_fill(~visible, -math.inf)
    return difference.exp().to(q.dtype)
