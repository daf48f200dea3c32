# SPDX-License-Identifier: Apache-2.0
"""headgate as an attention of Hugging Face's transformers: register(), then attn_implementation="headgate"."""

from typing import Any

from ..extras import require

require("transformers", "headgate.torch.transformers")  # before what imports it

import torch
import transformers
from torch import Tensor, nn
from transformers.masking_utils import causal_mask_function, prepare_padding_mask, sdpa_mask

from .attention import gated_attention
from .retrofit import take_gate

NAME = "headgate"

# A mask of one of these types is of keys alone, (B,1,1,S), or (1,1,1,1) where none is hidden: the last query stands at
# the last key, and causality, and of the second type the layer's sliding_window, are left to the kernel.
CAUSAL_KEYS = torch.uint8
WINDOW_KEYS = torch.int8


def make_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int = 0,
    kv_offset: int = 0,
    mask_function: Any = causal_mask_function,
    attention_mask: Tensor | None = None,
    local_size: int | None = None,
    allow_is_causal_skip: bool = True,
    config: Any = None,
    **given: Any,
) -> Tensor | None:
    """The mask interface of transformers, whose attention_mask (B,S) is false at padding. Causal masks and those of
    windows are of keys alone; all others, and those of static caches, are what sdpa_mask makes, (B,1,T,S)."""
    windowed = local_size is not None and kv_length >= local_size
    aligned = isinstance(q_offset, int) and q_offset + q_length == kv_offset + kv_length
    known = mask_function is causal_mask_function or (
        local_size is not None
        and local_size == getattr(config, "sliding_window", None)
        and getattr(config, "attention_chunk_size", None) is None
    )
    padded = attention_mask is not None and (torch.compiler.is_compiling() or not bool(attention_mask.all()))
    plain = q_length == kv_length and not windowed and not padded  # None says it
    if not (allow_is_causal_skip and aligned and known) or plain:
        return sdpa_mask(
            batch_size, q_length, kv_length, q_offset, kv_offset, mask_function, attention_mask, local_size,
            allow_is_causal_skip, config=config, **given,
        )
    dtype = WINDOW_KEYS if windowed else CAUSAL_KEYS
    if not padded:
        return torch.ones(1, 1, 1, 1, dtype=dtype)
    visible = prepare_padding_mask(attention_mask, kv_length, kv_offset)
    return visible[:, None, None, kv_offset : kv_offset + kv_length].to(dtype)


def _rules_of_keys(mask: Tensor, S: int, what: str, sliding_window: int | None) -> dict[str, Any]:
    """What the kernel is told where a mask is of keys alone."""
    rules: dict[str, Any] = {"causality": "causal"}
    if mask.dtype == WINDOW_KEYS:
        if sliding_window is None:
            raise ValueError(f"{NAME}: {what} has a mask of a sliding window but does not say how long the window is")
        rules["window_left"] = sliding_window - 1
    if mask.shape[-1] > 1 or S == 1:
        rules["mask"] = mask.bool()
    return rules


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
    sliding_window: int | None = None,
    **given: Any,
) -> tuple[Tensor, None]:
    """The interface of transformers: query (B,Hq,T,D), key and value (B,Hkv,S,·) to y (B,T,Hq,Dv), without weights.

    The mask is what make_mask made: of keys alone; or (B,1,T,S), true where visible, windows included; or None where
    causality says all. A mask of numbers, the caller's own, is added to the scores.
    """
    _refuse_unknown(module, dropout, given)
    rules: dict[str, Any] = {"softcap": softcap or 0.0, "scale": scaling, **take_gate(module)}
    T, S = query.shape[2], key.shape[2]
    packed = cu_seq_lens_q is not None
    if packed:
        rules |= {"cu_seqlens_q": cu_seq_lens_q, "cu_seqlens_k": cu_seq_lens_k}
    if attention_mask is not None and attention_mask.dtype in (CAUSAL_KEYS, WINDOW_KEYS):
        rules |= _rules_of_keys(attention_mask, S, type(module).__name__, sliding_window)
    elif attention_mask is not None:
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
    transformers.AttentionMaskInterface.register(NAME, make_mask)
    return NAME
