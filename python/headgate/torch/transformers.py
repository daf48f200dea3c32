# SPDX-License-Identifier: Apache-2.0
"""headgate for Hugging Face's transformers: register() makes attn_implementation="headgate" known, and computes linear
attention on CPUs."""

from collections.abc import Callable
from typing import Any, NamedTuple

from ..extras import require

require("transformers", "headgate.torch.transformers")  # before the imports that need it

import torch
import transformers
from torch import Tensor, nn
from transformers.masking_utils import causal_mask_function, prepare_padding_mask, sdpa_mask

from . import hub_functions, mask_functions
from .added_gate import require_gate, take_gate
from .attention import gated_attention
from .attention_weights import attention_weights
from .errors import call_as
from .packed_rows import begins_of, one_row
from .sharding import described

__all__ = ["register", "unregister"]

NAME = "headgate"
# The interface's names of gated_attention's arguments.
ARGUMENTS = {
    "q": "query",
    "k": "key",
    "v": "value",
    "mask": "attention_mask",
    "bias": "attention_mask or position_bias",
    "scale": "scaling",
    "sinks": "s_aux",
    "cu_seqlens_q": "cu_seq_lens_q",
    "cu_seqlens_k": "cu_seq_lens_k",
}


class KeyMask(NamedTuple):
    """A causal mask as rules, in O(S) memory, with bottom-right alignment. It is not a tensor, so that a caller's mask
    is never mistaken for one. Models pass it on to the attention as they pass a BlockMask."""

    keys: Tensor | None  # (B,1,1,S), false at padding; None where no key is hidden
    window: int | None  # how many keys a query sees, itself the last; None: all before it
    sequences: Tensor | None = None  # cu_seqlens (N+1) of the sequences in B rows of T tokens

    # generate() and the mask functions of transformers use these of a mask that they made before.
    ndim = 4  # type: ignore[misc]

    def contiguous(self) -> "KeyMask":
        return self

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"{NAME}: this model's own code reads '{name}' of its attention mask, so that its attention is not one of "
            "transformers' AttentionInterface: use attn_implementation='eager'"
        )

    def rules(self) -> dict[str, Any]:
        """Returns the mask as arguments of gated_attention."""
        rules: dict[str, Any] = {"causality": "causal"}
        if self.window is not None:
            rules["window_left"] = self.window - 1
        if self.keys is not None:
            rules["mask"] = self.keys
        return rules


def make_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] = causal_mask_function,
    attention_mask: Tensor | KeyMask | None = None,
    local_size: int | None = None,
    allow_is_causal_skip: bool = True,
    config: Any = None,
    **given: Any,
) -> Tensor | KeyMask | None:
    """The mask interface of transformers, whose attention_mask (B,S) is false at padding. Causal masks, those of
    windows and those of rows that hold several sequences are rules; all others, and those of static caches, are what
    sdpa_mask makes, (B,1,T,S)."""
    if isinstance(attention_mask, KeyMask):
        return attention_mask
    tracing = torch.compiler.is_compiling()
    padded = attention_mask is not None and (tracing or not bool(attention_mask.all()))
    numbers = None if padded else mask_functions.numbers_of(mask_function, local_size)
    windowed = local_size is not None and kv_length >= local_size
    aligned = isinstance(q_offset, int) and q_offset + q_length == kv_offset + kv_length
    known = mask_function is causal_mask_function or (
        local_size is not None
        and local_size == getattr(config, "sliding_window", None)
        and getattr(config, "attention_chunk_size", None) is None
    )
    ruled = numbers is not None or (allow_is_causal_skip and known)
    if not (ruled and aligned):
        return sdpa_mask(
            batch_size,
            q_length,
            kv_length,
            q_offset,
            kv_offset,
            mask_function,
            attention_mask,
            local_size,
            allow_is_causal_skip,
            config=config,
            **given,
        )
    keys = None
    if padded:
        keys = prepare_padding_mask(attention_mask, kv_length, kv_offset)[:, kv_offset : kv_offset + kv_length]
        keys = keys[:, None, None]
    sequences = None if numbers is None else begins_of(numbers)
    return KeyMask(keys, local_size if windowed else None, sequences)  # type: ignore[call-arg]


def _refuse_unknown(module: nn.Module, given: dict[str, Any]) -> None:
    if given.get("cache") is not None:
        raise ValueError(f"{NAME}: {type(module).__name__}: cache is not supported")


def _mask_rules(what: str, mask: Tensor | KeyMask) -> dict[str, Any]:
    """Returns a mask as arguments of gated_attention. Refuses integers, as PyTorch's own attention does: they may mean
    either kind."""
    if isinstance(mask, KeyMask):
        return mask.rules()
    if mask.dtype == torch.bool:
        return {"mask": mask}
    if mask.is_floating_point():
        return {"bias": mask}
    raise ValueError(
        f"{what}: attention_mask is {described(mask)} but must be bool, true where visible, or floating point, added "
        "to the scores: convert it, or give one of padding (B,S) to the model"
    )


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
    position_bias: Tensor | None = None,
    output_attentions: bool | None = None,
    **given: Any,
) -> tuple[Tensor, Tensor | None]:
    """The interface of transformers: query (B,Hq,T,D), key and value (B,Hkv,S,·) to y (B,T,Hq,Dv), and the weights
    (B,Hq,T,S) where output_attentions asks for them.

    The mask is what make_mask made: rules; or (B,1,T,S), true where visible, windows included; or None where the module's
    is_causal says all. A mask of floating point, the caller's own, is added to the scores. position_bias (B|1,Hq|1,T|1,S) is
    added too, and has a gradient. cu_seq_lens_q and cu_seq_lens_k (N+1) say where the sequences of a row begin; where
    they are not given, the rules may.
    """
    _refuse_unknown(module, given)
    require_gate(module)
    what = f"{NAME}: {type(module).__name__}"
    rules: dict[str, Any] = {"softcap": softcap or 0.0, "scale": scaling, **take_gate(module)}
    if dropout:
        rules["dropout"] = dropout
    T = query.shape[2]
    if query.shape[0] != key.shape[0]:  # learned queries, which every sequence has
        query = query.expand(key.shape[0], -1, -1, -1)
    if cu_seq_lens_q is not None:
        rules |= {"cu_seqlens_q": cu_seq_lens_q, "cu_seqlens_k": cu_seq_lens_k}
    if attention_mask is not None:
        rules |= _mask_rules(what, attention_mask)
    elif getattr(module, "is_causal", True) if is_causal is None else is_causal:
        rules["causality"] = "causal"
        if T > 1 and cu_seq_lens_q is None:  # keys behind the queries are slots of a cache that are not filled yet
            key, value = key[:, :, :T], value[:, :, :T]
    if position_bias is not None:
        rules["bias"] = _with_position_bias(position_bias, rules.get("bias"), key.shape[2])
    if s_aux is not None:
        rules["sinks"] = s_aux.to(torch.promote_types(s_aux.dtype, torch.float32))
    sequences = attention_mask.sequences if isinstance(attention_mask, KeyMask) else None
    if sequences is not None and cu_seq_lens_q is None:
        rules |= {"cu_seqlens_q": sequences, "cu_seqlens_k": sequences}
    if not output_attentions:
        return _attend(what, query, key, value, rules)[0], None
    y, lse = _attend(what, query, key, value, {**rules, "return_lse": True})
    return y, _weights(query, key, lse, rules)


def _with_position_bias(position_bias: Tensor, bias: Tensor | None, keys: int) -> Tensor:
    """The sum of both that is added to the scores, for the first `keys` keys."""
    position_bias = position_bias[..., :keys].expand(*position_bias.shape[:-1], keys)
    return position_bias if bias is None else position_bias + bias


def _attend(
    what: str, query: Tensor, key: Tensor, value: Tensor, rules: dict[str, Any]
) -> tuple[Tensor, Tensor | None]:
    """y (B,T,Hq,Dv), and the log-sum-exp (B,Hq,T) where the rules have return_lse. Rows of packed sequences are one row
    for the kernel."""
    query, key, value = (x.transpose(1, 2) for x in (query, key, value))
    B, T, heads = query.shape[:3]
    packed = "cu_seqlens_q" in rules and B > 1
    if packed:
        query, key, value = map(one_row, (query, key, value))
        if "gate" in rules:
            rules = {**rules, "gate": one_row(rules["gate"])}
    found = call_as(what, ARGUMENTS, gated_attention, query, key, value, layout="bthd", **rules)
    y, lse = found if "return_lse" in rules else (found, None)
    if packed:
        y = y.view(B, T, heads, -1)
        lse = None if lse is None else lse.view(heads, B, T).transpose(0, 1)
    return y, lse


def _weights(query: Tensor, key: Tensor, lse: Tensor, rules: dict[str, Any]) -> Tensor:
    """The weights (B,Hq,T,S) of a call. Packed sequences are those of one row after the other, B rows."""
    B, _, T, _ = query.shape
    if "cu_seqlens_q" not in rules or B == 1:
        return attention_weights(query, key, lse, rules)
    rows = []
    for b in range(B):
        begins = (rules["cu_seqlens_q"] - b * T).clamp(0, T)
        own = {**rules, "cu_seqlens_q": begins, "cu_seqlens_k": begins}
        rows.append(attention_weights(query[b : b + 1], key[b : b + 1], lse[b : b + 1], own))
    return torch.cat(rows)


def register(*, functions: bool = True) -> str:
    """Makes `attn_implementation="headgate"` known to transformers, for every model whose attention goes through its
    AttentionInterface; returns that name.

    Also computes the linear attention of Qwen3-Next, Qwen3.5, OLMo-Hybrid and Kimi-Linear on CPUs, whatever their
    attn_implementation: the chunked and the recurrent (gated) delta rule, and the causal convolution before it
    (hub_functions.py). That serves models built before the call too. `functions=False` leaves these functions alone.

    Calls after the first do nothing; unregister() undoes the replacement of functions.
    """
    transformers.AttentionInterface.register(NAME, attention_forward)
    transformers.AttentionMaskInterface.register(NAME, make_mask)
    mask_functions.register()
    if functions:
        hub_functions.register()
    return NAME


def unregister() -> None:
    """Gives all models transformers' own functions of linear attention back. `attn_implementation="headgate"` stays
    known, as it changes no model that does not ask for it."""
    hub_functions.unregister()
