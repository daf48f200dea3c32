# SPDX-License-Identifier: Apache-2.0
"""Implements varlen_attn with the kernels of gated_attention. Arguments and semantics are those of
torch.nn.attention.varlen.
"""

import operator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .arguments import ADDED, require_known, takes
from .attention import gated_attention
from .checks import require_bool, require_tensors, shape_of, shown
from .errors import call_as
from .foreign_arguments import refuse_other_aux

NAME = "varlen_attn"
# Maps argument names of gated_attention to the names that varlen_attn uses.
_ARGUMENTS = {
    "q": "query",
    "k": "key",
    "v": "value",
    "cu_seqlens_q": "cu_seq_q",
    "cu_seqlens_k": "cu_seq_k",
    "key_lengths": "seqused_k",
    "window_left": "window_size",
    "window_right": "window_size",
}


class AuxRequest(NamedTuple):
    """Selects results of varlen_attn in addition to its output. varlen_attn also accepts PyTorch's AuxRequest."""

    lse: bool = False
    """Whether to return the log-sum-exp of each query's scores."""


def _require_heads(query: Tensor, key: Tensor, enable_gqa: bool) -> None:
    heads, kv_heads = query.shape[1], key.shape[-2]
    if not enable_gqa and heads != kv_heads:
        raise ValueError(f"{NAME}: query has {heads} heads and key {kv_heads}: set enable_gqa=True for grouped queries")
    if enable_gqa and (kv_heads < 1 or heads % kv_heads != 0):
        raise ValueError(f"{NAME}: query has {heads} heads, which {kv_heads} of key do not divide")


def _wants_lse(return_aux: Any) -> bool:
    if not hasattr(return_aux, "lse"):
        raise TypeError(f"{NAME}: return_aux is {shown(return_aux)} but must be an AuxRequest or None")
    refuse_other_aux(NAME, return_aux, AuxRequest._fields)
    return return_aux.lse


def _window(window_size: tuple[int, int]) -> dict[str, Any]:
    try:
        left, right = (x if isinstance(x, (int, torch.SymInt)) else operator.index(x) for x in window_size)
    except (TypeError, ValueError):
        raise ValueError(
            f"{NAME}: window_size is {shown(window_size)} but must be two whole numbers, (left, right)"
        ) from None
    if right == 0:  # window_right 0 hides later keys, which is a causal mask
        return {"causality": "causal", "window_left": left}
    return {"window_left": left, "window_right": right}


def _paged(key: Tensor, value: Tensor, block_table: Tensor, seqused_k: Tensor | None) -> tuple[Tensor, Tensor]:
    """Checks that k and v are pages (P,page,Hkv,D), and returns them."""
    if seqused_k is None:
        raise ValueError(f"{NAME}: block_table needs seqused_k, the tokens of each sequence")
    if key.dim() != 4 or value.dim() != 4 or block_table.dim() != 2:
        raise ValueError(
            f"{NAME}: with block_table (N,M), key and value must be pages (P,page,H,D) but have {key.dim()} and "
            f"{value.dim()} dimensions"
        )
    return key, value


@takes(*ADDED)
def varlen_attn(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    *,
    return_aux: Any = None,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
    enable_gqa: bool = False,
    seqused_k: Tensor | None = None,
    block_table: Tensor | None = None,
    num_splits: int | None = None,
    gate: Tensor | None = None,
    **options: Any,
) -> Tensor | tuple[Tensor, Tensor]:
    """Computes torch.nn.attention.varlen.varlen_attn with a gate: attention over a packed batch without padding.

    query (Tq,H,D), key (Tk,Hkv,D) and value (Tk,Hkv,Dv) hold N consecutive sequences. cu_seq_q and cu_seq_k (N+1) give
    their first tokens. The output is (Tq,H,Dv). With return_aux=AuxRequest(lse=True), also returns the log-sum-exp
    (H,Tq) in f32 or f64, which is differentiable.

    window_size (left, right) is the number of keys that a query sees before and after its own position. -1 means no
    limit, and (-1, 0) is causal. The last query of a sequence is at the position of the last key. With enable_gqa, the
    number of heads of key must divide that of query. seqused_k (N) gives the number of keys that each sequence uses.
    With block_table (N,M), key and value are pages (P,page,Hkv,D), and there are no gradients. Results do not depend on
    max_q, max_k and num_splits.

    gate, (Tq,H,1) or (Tq,H,Dv), holds the raw logits of the gate. gate_fn, gate_op, sinks, softcap, precision and
    threads are arguments of gated_attention. Raises ValueError with a one-line message for invalid arguments.
    """
    del max_q, max_k, num_splits
    require_known(NAME, options, ADDED, ("query", "key", "value", *_ARGUMENTS.values(), "gate"))
    require_bool(NAME, "enable_gqa", enable_gqa)
    needed = {"query": query, "key": key, "value": value, "cu_seq_q": cu_seq_q}
    require_tensors(NAME, needed, {"seqused_k": seqused_k, "block_table": block_table, "gate": gate})
    for name, x, dims in (("query", query, 3), ("key", key, 4 if block_table is not None else 3)):
        if x.dim() != dims:
            raise ValueError(f"{NAME}: {name} has {x.dim()} dimensions but must have {dims}")
    if cu_seq_k is None and block_table is None:
        raise ValueError(f"{NAME}: cu_seq_k is None but there is no block_table")
    _require_heads(query, key, enable_gqa)
    rules = {**options, **_window(window_size), "layout": "bthd"}
    if scale is not None:
        rules["scale"] = scale
    if seqused_k is not None:
        if seqused_k.dim() != 1 or seqused_k.shape[0] != cu_seq_q.numel() - 1:
            found = f"seqused_k has shape {shape_of(seqused_k)} and cu_seq_q {shape_of(cu_seq_q)}"
            raise ValueError(f"{NAME}: {found} but must be (N) and (N+1)")
        rules["key_lengths"] = seqused_k
        if block_table is None:  # aligns the last query with the last used key, as with a block_table
            rules["query_offsets"] = seqused_k - cu_seq_q.diff().to(seqused_k.dtype)
    if block_table is not None:
        key, value = _paged(key, value, block_table, seqused_k)
        rules["block_table"] = block_table
        query, gate = query.unsqueeze(0), None if gate is None else gate.unsqueeze(0)
    else:
        rules["cu_seqlens_k"] = cu_seq_k
    wants_lse = return_aux is not None and _wants_lse(return_aux)
    y, lse = call_as(
        NAME, _ARGUMENTS, gated_attention, query, key, value, gate, cu_seqlens_q=cu_seq_q, return_lse=True, **rules
    )
    if block_table is not None:
        y, lse = y.squeeze(0), lse.squeeze(0)
    return (y, lse) if wants_lse else y
