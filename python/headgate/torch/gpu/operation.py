# SPDX-License-Identifier: Apache-2.0
"""headgate.torch.gated_attention on GPUs: torch.ops.headgate.gated_attention_triton, and the checks before it.

The operation and its backward pass are triton_ops: torch.compile sees the kernels within them. Arguments are those of the
operation for CPUs, of which support.py lists the ones that GPUs compute.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.library import triton_op, wrap_triton

from ..arguments import ATTENTION, TENSORS
from ..attention import (
    NAME,
    autocast,
    checked_options,
    refuse_transforms,
    register_gradients,
    sort_arguments,
    unnest,
)
from ..errors import GATE_LOGITS, in_words_of
from ..gates import keeps_output
from . import checks, launch
from .support import DECLINED, DTYPES, GATE_FUNCTIONS, MAX_HEAD_DIM, SUPPORTED_OPTIONS, SUPPORTED_TENSORS

_OPERATION = "gated_attention_triton"
_OPTIONS = tuple(name for name in SUPPORTED_OPTIONS if name != "precision")  # which changes nothing
_DIFFERENTIABLE = launch.Gradients._fields


# triton_op reads the schema off the signature, so the arguments of support.py are written out here.
@triton_op(f"headgate::{_OPERATION}", mutates_args=())
def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gate: Tensor | None = None,
    key_lengths: Tensor | None = None,
    sinks: Tensor | None = None,
    query_offsets: Tensor | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    *,
    layout: str = "bhtd",
    scale: float | None = None,
    softcap: float = 0.0,
    causality: str = "none",
    window_left: int = -1,
    window_right: int = -1,
    gate_fn: str = "sigmoid",
    gate_op: str = "mul",
    keep_attn: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    inputs = launch.Inputs(q, k, v, gate, key_lengths, sinks, query_offsets, cu_seqlens_q, cu_seqlens_k)
    options = launch.Options(layout, scale, softcap, causality, window_left, window_right, gate_fn, gate_op)
    y, lse, attn = launch.forward(inputs, options, keep_attn, wrap_triton)
    return y, lse, q.new_empty(0) if attn is None else attn


@triton_op(f"headgate::{_OPERATION}_backward", mutates_args=())
def _backward(
    dy: Tensor,
    dlse: Tensor | None,
    y: Tensor,
    lse: Tensor,
    attn: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gate: Tensor | None = None,
    key_lengths: Tensor | None = None,
    sinks: Tensor | None = None,
    query_offsets: Tensor | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    *,
    wanted: Sequence[bool],
    layout: str = "bhtd",
    scale: float | None = None,
    softcap: float = 0.0,
    causality: str = "none",
    window_left: int = -1,
    window_right: int = -1,
    gate_fn: str = "sigmoid",
    gate_op: str = "mul",
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    inputs = launch.Inputs(q, k, v, gate, key_lengths, sinks, query_offsets, cu_seqlens_q, cu_seqlens_k)
    options = launch.Options(layout, scale, softcap, causality, window_left, window_right, gate_fn, gate_op)
    names = tuple(name for name, asked in zip(_DIFFERENTIABLE, wanted) if asked)
    found = launch.backward(dy, dlse, y, lse, attn, inputs, options, names, wrap_triton)
    return tuple(dy.new_empty(0) if gradient is None else gradient for gradient in found)


register_gradients(_OPERATION, _forward, _backward, SUPPORTED_TENSORS, _OPTIONS, _DIFFERENTIABLE)


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

    def shape(heads: Any, rows: Any, features: Any) -> tuple[Any, ...]:
        whole = (batch, heads, rows, features) if layout == "bhtd" else (batch, rows, heads, features)
        return whole if q.dim() == 4 else whole[1:]

    checks.require_shape(NAME, "k", k, shape(kv_heads, keys, D))
    checks.require_shape(NAME, "v", v, shape(kv_heads, keys, DV))
    if kv_heads == 0 or heads % kv_heads != 0:
        raise ValueError(f"{NAME}: q has {heads} heads but must have a multiple of k's {kv_heads}")
    checks.require_shape(NAME, "gate", tensors["gate"], shape(heads, queries, 1), shape(heads, queries, DV))
    checks.require_shape(NAME, "sinks", tensors["sinks"], (heads,))
    starts, starts_k = tensors["cu_seqlens_q"], tensors["cu_seqlens_k"]
    if (starts is None) != (starts_k is None):
        raise ValueError(f"{NAME}: cu_seqlens_q and cu_seqlens_k must be given together on GPUs")
    sequences = batch
    if starts is not None:
        if batch != 1 or starts.dim() != 1 or starts.shape[0] < 2:
            raise ValueError(f"{NAME}: cu_seqlens_q must be (N+1), N >= 1, and q have a batch of 1")
        checks.require_shape(NAME, "cu_seqlens_k", starts_k, tuple(starts.shape))
        sequences = starts.shape[0] - 1
    for name in ("key_lengths", "query_offsets"):
        checks.require_shape(NAME, name, tensors[name], (sequences,))


_CHOICES = {
    "layout": ("bhtd", "bthd"),
    "causality": ("none", "causal"),
    "gate_fn": ("none", *GATE_FUNCTIONS),
    "gate_op": ("mul", "add"),
    "precision": ("exact", "native16"),
}


def _check_options(options: dict[str, Any], q: Tensor) -> None:
    checks.check_choices(NAME, options, _CHOICES)
    if options["precision"] == "native16" and q.dtype != torch.bfloat16:
        raise ValueError(f"{NAME}: precision native16 is for bfloat16, and q is {checks.word(q.dtype)}")
    for name in ("window_left", "window_right"):
        if options[name] < -1:
            raise ValueError(f"{NAME}: {name} is {options[name]} but must be at least -1")
    checks.require_finite(NAME, options, "scale")
    checks.require_finite(NAME, options, "softcap", 0.0)


@in_words_of(NAME, GATE_LOGITS)
def gated_attention(
    given: dict[str, Tensor | None], arguments: dict[str, Any], return_lse: bool
) -> Tensor | tuple[Tensor, Tensor]:
    """headgate.torch.gated_attention of tensors on a GPU. Raises ValueError, in one line, on what GPUs do not compute."""
    tensors = {**dict.fromkeys(TENSORS), **given}
    options = sort_arguments(NAME, tensors, arguments)
    recorded = torch.is_grad_enabled() and any(isinstance(t, Tensor) and t.requires_grad for t in tensors.values())
    refuse_transforms(NAME, {**tensors, **options})
    checks.refuse_declined(NAME, DECLINED, tensors, options, ATTENTION)
    options = {**ATTENTION.defaults(), **checked_options(NAME, options)}
    checks.check_tensors(NAME, tensors, tensors["q"], _DIFFERENTIABLE, recorded)
    nested = unnest(tensors, options["layout"])
    autocast(tensors, device=tensors["q"].device.type)
    tensors = {name: tensors[name] for name in SUPPORTED_TENSORS}
    dtype = tensors["q"].dtype
    own = {"q": DTYPES, "k": (dtype,), "v": (dtype,), "gate": (dtype, torch.float32)}
    checks.check_types(NAME, tensors, own | _TYPES)
    _check_options(options, tensors["q"])
    _check_shapes(tensors, options["layout"])
    if options["gate_fn"] == "none":
        tensors["gate"] = None
    keep_attn = recorded and tensors["gate"] is not None and keeps_output(options["gate_fn"], options["gate_op"])
    settings = {name: options[name] for name in _OPTIONS}
    y, lse, _ = torch.ops.headgate.gated_attention_triton(*tensors.values(), **settings, keep_attn=keep_attn)
    if nested is not None:
        y = torch.nested.nested_tensor_from_jagged(y, nested.offsets(), jagged_dim=nested._ragged_idx)
        lse = torch.nested.nested_tensor_from_jagged(lse, nested.offsets(), jagged_dim=2) if return_lse else lse
    return (y, lse) if return_lse else y
