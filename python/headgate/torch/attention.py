# SPDX-License-Identifier: Apache-2.0
"""Registers attention as the PyTorch operator torch.ops.headgate.gated_attention, and defines the public function.

The operator and its backward pass are custom operators with fake kernels, which torch.compile, torch.export and
autograd can trace. Eager calls bypass the dispatcher (eager.py). headgate.attention_forward and attention_backward do
all computation.
"""

from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Unpack, overload

import torch
from torch import Tensor

import headgate

from . import observers
from .arguments import ATTENTION, DIFFERENTIABLE, OPTIONS, TENSORS, take_old_name, takes
from .autograd import register_attention
from .backends import backend_of
from .calls import KEYWORDS, autocast, check_tensors, checked_options, refuse_transforms, sort_arguments
from .dropout import draw_seed
from .eager import EagerOperation, Named, RecordedCall
from .errors import in_words_of
from .gates import keeps_output
from .nested import unnest
from .tensor_parallel import are_dtensors, attend_on_dtensors
from .transforms import FunctionalAttention, backward_over_batch, forward_over_batch, transforms_are_active

if TYPE_CHECKING:
    from headgate._arguments import AttentionArguments

NAME = "gated_attention"


_INPUTS, _SETTINGS = ATTENTION.schema_of_tensors(), ATTENTION.schema_of_options()


class Saved(NamedTuple):
    """Results of a forward pass: y; lse (B,H,T) in f64; attn, the output before the gate, or an empty tensor if not
    kept."""

    y: Tensor
    lse: Tensor
    attn: Tensor


def _rows_shape(q: Tensor, layout: str) -> list[int]:
    """Returns the shape of lse: (B,H,T), or (H,T) without a batch."""
    *batch, first, second, _ = q.shape
    return [*batch, first, second] if layout == "bhtd" else [*batch, second, first]


@torch.library.custom_op(
    "headgate::gated_attention",
    mutates_args=(),
    device_types="cpu",
    schema=f"({_INPUTS}, *, {_SETTINGS}, bool keep_attn=False) -> (Tensor y, Tensor lse, Tensor attn)",
)
@in_words_of(NAME, {})
def _forward(*tensors: Tensor | None, keep_attn: bool = False, **options: Any) -> tuple[Tensor, Tensor, Tensor]:
    outputs = ["y", "lse", "attn"] if keep_attn else ["y", "lse"]
    out = headgate.attention_forward(outputs=outputs, **_given(tensors), **ATTENTION.changed(options))
    return out.y, out.lse, out.attn if keep_attn else tensors[0].new_empty(0)


@_forward.register_fake
def _(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *tensors: Tensor | None,
    keep_attn: bool = False,
    layout: str = "bhtd",
    **options: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    y = q.new_empty([*q.shape[:-1], v.shape[-1]])
    lse = q.new_empty(_rows_shape(q, layout), dtype=torch.float64)
    return y, lse, q.new_empty(y.shape if keep_attn else 0)


def _given(tensors: tuple[Tensor | None, ...]) -> dict[str, Any]:
    """Returns the tensors that are not None, by name. `tensors` may end before the last optional ones."""
    return {name: tensor for name, tensor in zip(TENSORS, tensors) if tensor is not None}


@torch.library.custom_op(
    "headgate::gated_attention_backward",
    mutates_args=(),
    device_types="cpu",
    schema=f"(Tensor dy, Tensor? dlse, Tensor y, Tensor lse, Tensor? attn, {_INPUTS}, *, bool[] wanted, {_SETTINGS}) "
    f"-> ({', '.join('Tensor d' + name for name in DIFFERENTIABLE)})",
)
@in_words_of(NAME, {})
def _backward(
    dy: Tensor,
    dlse: Tensor | None,
    y: Tensor,
    lse: Tensor,
    attn: Tensor | None,
    *tensors: Tensor | None,
    wanted: list[bool],
    **options: Any,
) -> tuple[Tensor, ...]:
    names = ["d" + name for name, asked in zip(DIFFERENTIABLE, wanted) if asked]
    saved: dict[str, Any] = {"y": y, "lse": lse, "attn": attn, "dlse": dlse}
    found = headgate.attention_backward(dy, gradients=names, **saved, **_given(tensors), **ATTENTION.changed(options))
    gradients = [getattr(found, "d" + name) for name in DIFFERENTIABLE]
    return tuple(dy.new_empty(0) if gradient is None else gradient for gradient in gradients)


@_backward.register_fake
def _(
    dy: Tensor,
    dlse: Tensor | None,
    y: Tensor,
    lse: Tensor,
    attn: Tensor | None,
    *tensors: Tensor | None,
    wanted: list[bool],
    **options: Any,
) -> tuple[Tensor, ...]:
    inputs = dict(zip(TENSORS, tensors))
    return tuple(
        inputs[name].new_empty(inputs[name].shape) if asked else dy.new_empty(0)
        for name, asked in zip(DIFFERENTIABLE, wanted)
    )


register_attention(NAME, _forward, _backward, TENSORS, OPTIONS, DIFFERENTIABLE)
_forward.register_vmap(forward_over_batch)
_backward.register_vmap(backward_over_batch)


_DEFAULTS = ATTENTION.defaults()
_NO_TENSORS = dict.fromkeys(TENSORS)


def as_returned(lse: Tensor, y: Tensor) -> Tensor:
    """Converts the log-sum-exp to the dtype that callers get: f64 if y is f64, otherwise f32. The backward pass uses
    f64."""
    return lse if y.dtype == torch.float64 else lse.float()


class _EagerAttention(EagerOperation):
    def forward(self, named: Named, options: dict[str, Any], keep: bool, recorded: bool) -> tuple[Any, tuple[Any, ...]]:
        if not (keep or recorded):
            return headgate.attention(**named, **options), ()
        keep_attn = (
            recorded
            and "gate" in named
            and keeps_output(options.get("gate_fn", _DEFAULTS["gate_fn"]), options.get("gate_op", _DEFAULTS["gate_op"]))
        )
        out = headgate.attention_forward(outputs=_Y_LSE_ATTN if keep_attn else _Y_LSE, **named, **options)
        y, lse = out.y, out.lse
        observers.report_lse(lse)
        return (y, as_returned(lse, y)) if keep else y, (y, lse, out.attn)

    def backward(self, recorded: RecordedCall, names: tuple[str, ...]) -> Any:
        named, options, (y, lse, attn), _ = recorded
        dy, dlse = self._incoming(recorded)
        return headgate.attention_backward(dy, y=y, lse=lse, attn=attn, dlse=dlse, gradients=names, **named, **options)

    def general_backward(self, recorded: RecordedCall, wanted: tuple[str, ...]) -> dict[str, Tensor]:
        dy, dlse = self._incoming(recorded)
        inputs, settings = self.all_arguments(recorded, wanted)
        found = torch.ops.headgate.gated_attention_backward(dy, dlse, *recorded.saved, *inputs, **settings)
        return dict(zip(DIFFERENTIABLE, found))

    def _incoming(self, recorded: RecordedCall) -> tuple[Tensor, Tensor | None]:
        """Returns dy, zeros if absent, and the gradient of lse, or None."""
        dy, dlse = recorded.incoming if len(recorded.incoming) == 2 else (*recorded.incoming, None)
        return torch.zeros_like(recorded.saved[0]) if dy is None else dy, dlse


_Y_LSE, _Y_LSE_ATTN = ("y", "lse"), ("y", "lse", "attn")
_EAGER = _EagerAttention(ATTENTION)


@overload
def gated_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gate: Tensor | None = None,
    *,
    return_lse: Literal[False] = False,
    **arguments: "Unpack[AttentionArguments]",
) -> Tensor: ...
@overload
def gated_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gate: Tensor | None = None,
    *,
    return_lse: Literal[True],
    **arguments: "Unpack[AttentionArguments]",
) -> tuple[Tensor, Tensor]: ...
@takes(*KEYWORDS, *OPTIONS)
def gated_attention(
    q: Tensor, k: Tensor, v: Tensor, gate: Tensor | None = None, *, return_lse: bool = False, **arguments: Any
) -> Tensor | tuple[Tensor, Tensor]:
    """Computes y = g(gate) * softmax(scale q k^T + bias, mask) v, with gradients.

    The arguments are those of headgate.attention, as CPU tensors with any strides; none is copied. `gate`, (B,H,T,1) or
    (B,H,T,Dv), holds the raw logits of the gate. Returns y, with q's dtype and shape except for Dv features. With
    return_lse, also returns the log-sum-exp (B,H,T), which is differentiable.

    q, k, v, gate, bias and sinks have gradients. block_table, k_scale, v_scale and gate_threshold need calls without
    gradients. Without a dropout_seed, dropout draws a seed from PyTorch's default generator.

    Jagged nested tensors (N,H,T*,D), or (N,T*,H,D) with layout "bthd", are a packed batch. The result is then nested
    like q. torch.autocast casts q, k and v, and also gate and bias unless they are float32. Triton kernels compute GPU
    tensors; they support fewer arguments (docs/reference/pytorch.md). Raises ValueError with a one-line message for
    invalid arguments.
    """
    if "gate_logits" in arguments:
        gate = take_old_name(NAME, arguments, "gate_logits", "gate", gate)
    given = {"q": q, "k": k, "v": v, "gate": gate}
    for observer in observers.ATTENTION:
        observer(given, arguments)
    backend = backend_of(q)
    if backend is not None:
        return backend.gated_attention(given, arguments, return_lse)
    if arguments.get("dropout") and arguments.get("dropout_seed") is None:
        arguments["dropout_seed"] = draw_seed()
    result = _EAGER.call(given, arguments, return_lse)
    return _call_generally(given, arguments, return_lse) if result is None else result


def _call_with_lse(tensors: dict[str, Tensor | None], options: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Calls gated_attention with return_lse on tensors given by name."""
    others = {name: x for name, x in tensors.items() if x is not None and name not in ("q", "k", "v", "gate")}
    q, k, v, gate = (tensors[name] for name in ("q", "k", "v", "gate"))
    return gated_attention(q, k, v, gate, return_lse=True, **others, **options)


@in_words_of(NAME, {})
def _call_generally(
    given: dict[str, Tensor | None], arguments: dict[str, Any], return_lse: bool
) -> Tensor | tuple[Tensor, Tensor]:
    """Computes gated_attention through PyTorch's dispatcher, with torch.ops.headgate."""
    tensors = {**_NO_TENSORS, **given}
    given = sort_arguments(NAME, tensors, arguments)
    recorded = torch.is_grad_enabled() and any(isinstance(t, Tensor) and t.requires_grad for t in tensors.values())
    refuse_transforms(NAME, {**tensors, **given}, DIFFERENTIABLE)
    check_tensors(NAME, tensors, recorded, nested=True)
    options = {**_DEFAULTS, **checked_options(NAME, given)}
    if recorded and options["gate_threshold"] > 0:
        raise ValueError(f"{NAME}: with gate_threshold there are no gradients: call it under torch.no_grad()")
    if are_dtensors(tensors):
        y, lse = attend_on_dtensors(NAME, tensors, options["layout"], lambda own: _call_with_lse(own, given))
        return (y, lse) if return_lse else y
    nested = unnest(NAME, tensors, options["layout"])
    autocast(tensors)
    transformed = transforms_are_active()
    keep_attn = (
        (recorded or transformed)
        and tensors["gate"] is not None
        and keeps_output(options["gate_fn"], options["gate_op"])
    )
    if transformed:
        y, lse, _ = FunctionalAttention.apply(options, keep_attn, *tensors.values())
    else:
        y, lse, _ = torch.ops.headgate.gated_attention(*tensors.values(), **options, keep_attn=keep_attn)
    lse = as_returned(lse, y) if return_lse else lse
    if nested is not None:
        y = torch.nested.nested_tensor_from_jagged(y, nested.offsets(), jagged_dim=nested._ragged_idx)
        lse = torch.nested.nested_tensor_from_jagged(lse, nested.offsets(), jagged_dim=2) if return_lse else lse
    return (y, lse) if return_lse else y
