# SPDX-License-Identifier: Apache-2.0
"""Implements headgate.torch.gated_attention on GPUs. Contains the checks and the operator
torch.ops.headgate.gated_attention_triton.

The operator and its backward pass are triton_ops, so that torch.compile can trace their kernels. The arguments are
those of the CPU operator. support.py lists the arguments that GPUs support.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.library import triton_op, wrap_triton

from ...operations import keeps_output
from ..autograd import register_attention
from ..calls import autocast
from ..errors import in_words_of
from ..nested import unnest
from . import checks, launch
from .support import DTYPES, GATE_FUNCTIONS, GATED_ATTENTION, LAYOUTS, MAX_HEAD_DIM
from .triton_operation import leading, sorted_and_checked, with_signature

NAME = "gated_attention"
_OPERATION = "gated_attention_triton"
_OPTIONS = tuple(name for name in GATED_ATTENTION.options if name != "precision")  # precision has no effect on GPUs
_DIFFERENTIABLE = launch.Gradients._fields


def _forward(*tensors: Tensor | None, keep_attn: bool = False, **options: Any) -> tuple[Tensor, Tensor, Tensor]:
    y, lse, attn = launch.forward(launch.Inputs(*tensors), launch.Options(**options), keep_attn, wrap_triton)
    return y, lse, y.new_empty(0) if attn is None else attn


def _backward(
    dy: Tensor,
    dlse: Tensor | None,
    y: Tensor,
    lse: Tensor,
    attn: Tensor | None,
    *tensors: Tensor | None,
    wanted: Sequence[bool],
    **options: Any,
) -> tuple[Tensor, ...]:
    names = tuple(name for name, is_wanted in zip(_DIFFERENTIABLE, wanted) if is_wanted)
    inputs, settings = launch.Inputs(*tensors), launch.Options(**options)
    found = launch.backward(dy, dlse, y, lse, attn, inputs, settings, names, wrap_triton)
    return tuple(dy.new_empty(0) if gradient is None else gradient for gradient in found)


_SAVED = leading(dy=Tensor, dlse=Tensor | None, y=Tensor, lse=Tensor, attn=Tensor | None)
with_signature(_forward, (), GATED_ATTENTION, _OPTIONS, {"keep_attn": bool}, tuple[Tensor, Tensor, Tensor])
_GRADIENTS: Any = tuple[(Tensor,) * len(_DIFFERENTIABLE)]  # type: ignore[misc]
with_signature(_backward, _SAVED, GATED_ATTENTION, _OPTIONS, {"wanted": Sequence[bool]}, _GRADIENTS)
register_attention(
    _OPERATION,
    triton_op(f"headgate::{_OPERATION}", _forward, mutates_args=()),
    triton_op(f"headgate::{_OPERATION}_backward", _backward, mutates_args=()),
    GATED_ATTENTION.tensors,
    _OPTIONS,
    _DIFFERENTIABLE,
)


_TYPES = {
    "key_lengths": checks.INDICES,
    "query_offsets": checks.INDICES,
    "cu_seqlens_q": checks.INDICES,
    "cu_seqlens_k": checks.INDICES,
    "sinks": (torch.float32, torch.float64),
}


def _check_shapes(tensors: dict[str, Tensor | None], layout: str) -> None:
    q, k, v = tensors["q"], tensors["k"], tensors["v"]
    checks.check_features(NAME, {"q": q, "k": k, "v": v}, MAX_HEAD_DIM)
    batch, heads, queries, D = launch.sizes(q, layout)
    _, kv_heads, keys, _ = launch.sizes(k, layout)
    DV = v.shape[-1]

    def shape(heads: int, rows: int, features: int) -> tuple[int, ...]:
        return checks.shape_like(q, layout, batch, heads, rows, features)

    checks.require_shape(NAME, "k", k, shape(kv_heads, keys, D))
    checks.require_shape(NAME, "v", v, shape(kv_heads, keys, DV))
    if kv_heads == 0 or heads % kv_heads != 0:
        raise ValueError(f"{NAME}: q has {heads} heads but must have a multiple of k's {kv_heads}")
    checks.require_shape(NAME, "gate", tensors["gate"], shape(heads, queries, 1), shape(heads, queries, DV))
    of_queries = ((heads, queries), (1, heads, queries), (batch, heads, queries))
    checks.require_shape(NAME, "sinks", tensors["sinks"], (heads,), *of_queries)
    starts, starts_k = tensors["cu_seqlens_q"], tensors["cu_seqlens_k"]
    if (starts is None) != (starts_k is None):
        raise ValueError(f"{NAME}: cu_seqlens_q and cu_seqlens_k must be given together on GPUs")
    sequences = checks.count_sequences(NAME, "cu_seqlens_q", starts, batch, "q")
    if starts is not None:
        checks.require_shape(NAME, "cu_seqlens_k", starts_k, tuple(starts.shape))
    for name in ("key_lengths", "query_offsets"):
        checks.require_shape(NAME, name, tensors[name], (sequences,))


_CHOICES = {
    "layout": LAYOUTS,
    "causality": ("none", "causal"),
    "gate_fn": ("none", *GATE_FUNCTIONS),
    "gate_op": ("mul", "add"),
    "precision": ("exact", "native16"),
}


def _check_options(options: dict[str, Any], q: Tensor) -> None:
    checks.check_choices(NAME, options, _CHOICES)
    checks.check_precision(NAME, options, q.dtype)
    for name in ("window_left", "window_right"):
        if options[name] < -1:
            raise ValueError(f"{NAME}: {name} is {options[name]} but must be at least -1")
    checks.require_finite(NAME, options, "scale")
    checks.require_finite(NAME, options, "softcap", 0.0)


@in_words_of(NAME, {})
def gated_attention(
    given: dict[str, Tensor | None], arguments: dict[str, Any], return_lse: bool
) -> Tensor | tuple[Tensor, Tensor]:
    """Computes headgate.torch.gated_attention for GPU tensors. Raises ValueError with a one-line message for calls that
    GPUs do not support."""
    tensors, options, recorded = sorted_and_checked(NAME, given, arguments, GATED_ATTENTION, _DIFFERENTIABLE)
    nested = unnest(NAME, tensors, options["layout"])
    autocast(tensors, device=tensors["q"].device.type)
    tensors = {name: tensors[name] for name in GATED_ATTENTION.tensors}
    dtype = tensors["q"].dtype
    own = {"q": DTYPES, "k": (dtype,), "v": (dtype,), "gate": (dtype, torch.float32)}
    checks.check_types(NAME, tensors, own | _TYPES)
    _check_options(options, tensors["q"])
    _check_shapes(tensors, options["layout"])
    if options["gate_fn"] == "none":
        tensors["gate"] = None
    gating = options["gate_fn"], options["gate_op"]
    keep_attn = recorded and tensors["gate"] is not None and keeps_output(*gating, dtype == torch.float16)
    settings = {name: options[name] for name in _OPTIONS}
    y, lse, _ = torch.ops.headgate.gated_attention_triton(*tensors.values(), **settings, keep_attn=keep_attn)
    if nested is not None:
        y = torch.nested.nested_tensor_from_jagged(y, nested.offsets(), jagged_dim=nested._ragged_idx)
        lse = torch.nested.nested_tensor_from_jagged(lse, nested.offsets(), jagged_dim=2) if return_lse else lse
    return (y, lse) if return_lse else y
