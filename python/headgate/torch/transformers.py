# SPDX-License-Identifier: Apache-2.0
"""headgate as an attention of Hugging Face's transformers: register(), then attn_implementation="headgate"."""

from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers.masking_utils import sdpa_mask

from .attention import gated_attention
from .retrofit import take_gate

NAME = "headgate"


def _refuse_unknown(module: nn.Module, dropout: float, given: dict[str, Any]) -> None:
    what = type(module).__name__
    if dropout > 0:
        raise ValueError(f"{NAME}: {what}: dropout of {dropout} is not supported: set attention_dropout to 0")
    if given.get("output_attentions"):
        raise ValueError(f"{NAME}: {what}: output_attentions is not supported: use attn_implementation='eager'")
    for name in ("position_bias", "cache"):
        if given.get(name) is not None:
            raise ValueError(f"{NAME}: {what}: {name} is not supported")


def attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    cu_seq_lens_q: Tensor | None = None,
    cu_seq_lens_k: Tensor | None = None,
    **given: Any,
) -> tuple[Tensor, None]:
    """The interface of transformers: query (B,Hq,T,D), key and value (B,Hkv,S,·) to y (B,T,Hq,Dv), without weights.

    The mask is what create_causal_mask and its like made by `sdpa_mask`: (B,1,T,S), true where visible, windows
    and padding included, or None where causality says all; a mask of numbers is added to the scores.
    """
    _refuse_unknown(module, dropout, given)
    rules: dict[str, Any] = {"softcap": softcap or 0.0, "scale": scaling, **take_gate(module)}
    T, S = query.shape[2], key.shape[2]
    packed = cu_seq_lens_q is not None
    if packed:
        rules |= {"cu_seqlens_q": cu_seq_lens_q, "cu_seqlens_k": cu_seq_lens_k}
    if attention_mask is not None:
        rules["mask" if attention_mask.dtype == torch.bool else "bias"] = attention_mask
    elif getattr(module, "is_causal", True) if is_causal is None else is_causal:
        rules["causality"] = "causal"
        if T > 1 and not packed:  # without a mask, keys behind the queries are slots of a cache that are not filled yet
            key, value = key[:, :, :T], value[:, :, :T]
    if s_aux is not None:
        rules["sinks"] = s_aux.to(torch.promote_types(s_aux.dtype, torch.float32))
    query, key, value = (x.transpose(1, 2) for x in (query, key, value))
    return gated_attention(query, key, value, layout="bthd", **rules), None


def register() -> str:
    """Makes `attn_implementation="headgate"` known to transformers, for every model whose attention goes through its
    AttentionInterface; returns that name. Calls after the first do nothing."""
    transformers.AttentionInterface.register(NAME, attention_forward)
    transformers.AttentionMaskInterface.register(NAME, sdpa_mask)
    return NAME
