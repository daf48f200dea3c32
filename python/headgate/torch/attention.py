# SPDX-License-Identifier: Apache-2.0
"""Registers attention as the PyTorch operator torch.ops.headgate.gated_attention, and defines the public function.

The operator and its backward pass are custom operators with fake kernels. torch.compile, torch.export and autograd can
therefore trace them. Eager calls bypass the dispatcher (eager.py). All computation happens in
headgate.attention_forward and attention_backward.
"""

from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Unpack, overload

import torch
from torch import Tensor

import headgate

from ..operations import ATTENTION, keeps_output
from . import observers
from .arguments import DIFFERENTIABLE, OPTIONS, TENSORS, take_old_name, takes
from .autograd import register_attention
from .backends import backend_of
from .calls import (
    KEYWORDS,
    autocast,
    check_tensors,
    checked_options,
    empty_output,
    refuse_transforms,
    sort_arguments,
)
from .checks import require_bool, shown
from .dropout import draw_seed
from .eager import EagerOperation, Named, RecordedCall
from .errors import in_words_of
from .gates import detach_unused
from .nested import unnest
from .tensor_parallel import are_dtensors, attend_on_dtensors
from .transforms import backward_over_batch, forward_over_batch, transforms_are_active

if TYPE_CHECKING:
    from headgate._arguments import AttentionArguments

NAME = "gated_attention"


_INPUTS, _SETTINGS = ATTENTION.schema_of_tensors(), ATTENTION.schema_of_options()


class Saved(NamedTuple):
    """Results of a forward pass.

    - y: the output
    - lse: log-sum-exp (B,H,T) in f64
    - attn: the output before the gate; an empty tensor if it is not kept
    - max_logit: the largest scores; an empty tensor if they are not requested
    """

    y: Tensor
    lse: Tensor
    attn: Tensor
    max_logit: Tensor


# Values of the operator's argument max_logit: the call returns no largest scores, one per head, or one per row.
_NO_MAX, _HEADS, _ROWS = "none", "heads", "rows"


def _rows_shape(q: Tensor, layout: str) -> list[int]:
    """Returns the shape of lse: (B,H,T), or (H,T) without a batch."""
    *batch, first, second, _ = q.shape
    return [*batch, first, second] if layout == "bhtd" else [*batch, second, first]


@torch.library.custom_op(
    "headgate::gated_attention",
    mutates_args=(),
    device_types="cpu",
    schema=f"({_INPUTS}, *, {_SETTINGS}, bool keep_attn=False, str max_logit='{_NO_MAX}') "
    "-> (Tensor y, Tensor lse, Tensor attn, Tensor max_logit)",
)
@in_words_of(NAME, {})
def _forward(*tensors: Tensor | None, keep_attn: bool = False, max_logit: str = _NO_MAX, **options: Any) -> Saved:
    outputs = _Y_LSE_ATTN if keep_attn else _Y_LSE
    named = _given(tensors)
    logits = _empty_max_logit(named, max_logit, options.get("layout", "bhtd"))
    placed = None if max_logit == _NO_MAX else _placed(logits, max_logit)
    out = headgate.attention_forward(outputs=outputs, out=placed, **named, **ATTENTION.changed(options))
    return Saved(out.y, out.lse, out.attn if keep_attn else tensors[0].new_empty(0), logits)


def _empty_max_logit(named: Named, max_logit: str, layout: str) -> Tensor:
    """Returns an uninitialized max_logit.

    - Heads: (B,H), or (N,H) for a packed batch
    - Rows: (B,H,T)
    - Not requested: an empty tensor

    Without a batch dimension in q, B is omitted.
    """
    q = named["q"]
    if max_logit == _NO_MAX:
        return q.new_empty(0)
    if max_logit not in (_HEADS, _ROWS):
        raise ValueError(f"{NAME}: max_logit is '{max_logit}', which is none of {_NO_MAX}, {_HEADS}, {_ROWS}")
    shape = _rows_shape(q, layout)
    starts = named.get("cu_seqlens_q")
    if max_logit == _HEADS:
        shape = shape[:-1] if starts is None else [starts.shape[0] - 1, shape[-2]]
    return q.new_empty(shape, dtype=torch.float64 if q.dtype == torch.float64 else torch.float32)


def _placed(logits: Tensor, max_logit: str) -> headgate.AttentionOutputs:
    """Returns the argument `out` that makes headgate.attention_forward write max_logit to the tensor `logits`."""
    without_batch = max_logit == _ROWS and logits.dim() == 2
    return headgate.AttentionOutputs(max_logit=logits.unsqueeze(0) if without_batch else logits)


_Y_LSE, _Y_LSE_ATTN = ("y", "lse"), ("y", "lse", "attn")


@_forward.register_fake
def _(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *tensors: Tensor | None,
    keep_attn: bool = False,
    max_logit: str = _NO_MAX,
    layout: str = "bhtd",
    **options: Any,
) -> Saved:
    y = empty_output(q, [*q.shape[:-1], v.shape[-1]])
    lse = q.new_empty(_rows_shape(q, layout), dtype=torch.float64)
    logits = _empty_max_logit(_given((q, k, v, *tensors)), max_logit, layout)
    return Saved(y, lse, torch.empty_like(y) if keep_attn else q.new_empty(0), logits)


def _given(tensors: tuple[Tensor | None, ...]) -> dict[str, Any]:
    """Returns a dict of the tensors that are not None. `tensors` is in the order of TENSORS, possibly shorter."""
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
    names = ["d" + name for name, is_wanted in zip(DIFFERENTIABLE, wanted) if is_wanted]
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
        torch.empty_like(inputs[name]) if is_wanted else dy.new_empty(0)
        for name, is_wanted in zip(DIFFERENTIABLE, wanted)
    )


_FUNCTIONAL = register_attention(NAME, _forward, _backward, TENSORS, OPTIONS, DIFFERENTIABLE)
_forward.register_vmap(forward_over_batch)
_backward.register_vmap(backward_over_batch)


_DEFAULTS = ATTENTION.defaults()
_NO_TENSORS = dict.fromkeys(TENSORS)


def as_returned(lse: Tensor, y: Tensor) -> Tensor:
    """Converts the log-sum-exp for the caller: f64 if y is f64, otherwise f32. The backward pass uses f64."""
    return lse if y.dtype == torch.float64 else lse.float()


def _keeps_output(q: Tensor, options: dict[str, Any]) -> bool:
    """Calls keeps_output for a call with these options. Missing options have their defaults."""
    gate_fn, gate_op = (options.get(name, _DEFAULTS[name]) for name in ("gate_fn", "gate_op"))
    return keeps_output(gate_fn, gate_op, q.dtype == torch.float16)


class _EagerAttention(EagerOperation):
    def forward(
        self, named: Named, options: dict[str, Any], extra_outputs: "_ExtraOutputs | None", recorded: bool
    ) -> tuple[Any, tuple[Any, ...]]:
        if not (extra_outputs or recorded):
            return headgate.attention(**named, **options), ()
        keep_attn = recorded and "gate" in named and _keeps_output(named["q"], options)
        logits = placed = None
        if extra_outputs and extra_outputs.max_logit != _NO_MAX:
            logits = _empty_max_logit(named, extra_outputs.max_logit, options.get("layout", "bhtd"))
            placed = _placed(logits, extra_outputs.max_logit)
        out = headgate.attention_forward(outputs=_Y_LSE_ATTN if keep_attn else _Y_LSE, out=placed, **named, **options)
        y, lse = out.y, out.lse
        observers.report_lse(lse)
        return extra_outputs.select(y, lse, logits) if extra_outputs else y, (y, lse, out.attn)

    def without_gradient(self, result: Any, extra_outputs: "_ExtraOutputs") -> tuple[Tensor, ...]:
        return () if extra_outputs.max_logit == _NO_MAX else (result[-1],)

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
        """Returns dy and the gradient of lse. An absent dy is replaced by zeros. The gradient of lse may be None."""
        dy, dlse = (*recorded.incoming, None)[:2]
        return torch.zeros_like(recorded.saved[0]) if dy is None else dy, dlse


class _ExtraOutputs(NamedTuple):
    """Tells which outputs a call returns in addition to y. `max_logit` is one of _NO_MAX, _HEADS and _ROWS."""

    lse: bool
    max_logit: str

    def select(self, y: Tensor, lse: Tensor, max_logit: Tensor | None) -> tuple[Tensor, ...]:
        """Returns y, and the log-sum-exp and max_logit if they are requested."""
        own = (as_returned(lse, y),) if self.lse else ()
        return (y, *own) if self.max_logit == _NO_MAX else (y, *own, max_logit)


def _select_extra_outputs(return_lse: bool, return_max_logit: Any) -> _ExtraOutputs | None:
    """Returns which outputs a call returns in addition to y. Returns None if it returns only y."""
    require_bool(NAME, "return_lse", return_lse)
    if return_max_logit is False:
        return _ExtraOutputs(True, _NO_MAX) if return_lse else None
    if return_max_logit is not True and not (isinstance(return_max_logit, str) and return_max_logit == _ROWS):
        raise ValueError(f"{NAME}: return_max_logit is {shown(return_max_logit)} but must be True, False or '{_ROWS}'")
    return _ExtraOutputs(return_lse, _HEADS if return_max_logit is True else _ROWS)


_EAGER = _EagerAttention(ATTENTION)


@overload
def gated_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gate: Tensor | None = None,
    *,
    return_lse: Literal[False] = False,
    return_max_logit: Literal[False] = False,
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
    return_max_logit: Literal[False] = False,
    **arguments: "Unpack[AttentionArguments]",
) -> tuple[Tensor, Tensor]: ...
@overload
def gated_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gate: Tensor | None = None,
    *,
    return_lse: Literal[False] = False,
    return_max_logit: Literal[True, "rows"],
    **arguments: "Unpack[AttentionArguments]",
) -> tuple[Tensor, Tensor]: ...
@overload
def gated_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gate: Tensor | None = None,
    *,
    return_lse: Literal[True],
    return_max_logit: Literal[True, "rows"],
    **arguments: "Unpack[AttentionArguments]",
) -> tuple[Tensor, Tensor, Tensor]: ...
@takes(*KEYWORDS, *OPTIONS)
def gated_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gate: Tensor | None = None,
    *,
    return_lse: bool = False,
    return_max_logit: bool | Literal["rows"] = False,
    **arguments: Any,
) -> Tensor | tuple[Tensor, ...]:
    """Computes y = g(gate) * softmax(scale q k^T + bias, mask) v, with gradients.

    The arguments are those of headgate.attention, as CPU tensors with any strides. No tensor is copied. `gate`,
    (B,H,T,1) or (B,H,T,Dv), holds the raw logits of the gate. Returns y (B,H,T,Dv) with q's dtype. With return_lse,
    also returns the log-sum-exp (B,H,T), which is differentiable.

    With return_max_logit, the last result holds the largest scores over the visible keys. They include scale, softcap,
    biases and ALiBi, but not the sink, and have no gradient. True returns one score per head: (B,H), or (N,H) for a
    packed batch. "rows" returns one score per row, (B,H,T). A score is -inf if no key is visible. Rows that
    gate_threshold closes are not computed, so their scores are also -inf.

    q, k, v, gate, bias and sinks have gradients. Calls with block_table, k_scale, v_scale, k_first, v_first or
    gate_threshold have no gradients. Without a dropout_seed, dropout draws a seed from PyTorch's default generator.

    Jagged nested tensors (N,H,T*,D), or (N,T*,H,D) with layout "bthd", are a packed batch. The result is then nested
    like q. torch.autocast casts q, k and v, and also gate and bias unless they are float32. Triton kernels compute GPU
    tensors. They support fewer arguments (docs/reference/pytorch.md). Raises ValueError with a one-line message for
    invalid arguments.
    """
    if "gate_logits" in arguments:
        gate = take_old_name(NAME, arguments, "gate_logits", "gate", gate)
    given = {"q": q, "k": k, "v": v, "gate": detach_unused(gate, arguments)}
    for observer in observers.ATTENTION:
        observer(given, arguments)
    extra_outputs = _select_extra_outputs(return_lse, return_max_logit)
    backend = backend_of(q)
    if backend is not None:
        if extra_outputs and extra_outputs.max_logit != _NO_MAX:
            raise ValueError(f"{NAME}: return_max_logit is supported on CPUs only, and q lies on {q.device}")
        return backend.gated_attention(given, arguments, return_lse)
    dropout = arguments.get("dropout")
    if not isinstance(dropout, (int, float, type(None))):
        dropout = checked_options(NAME, {"dropout": dropout})["dropout"]
    if dropout and arguments.get("dropout_seed") is None:
        arguments["dropout_seed"] = draw_seed()
    result = _EAGER.call(given, arguments, extra_outputs)
    return _call_generally(given, arguments, extra_outputs) if result is None else result


def _call_with_lse(tensors: dict[str, Tensor | None], options: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Calls gated_attention with return_lse. `tensors` maps argument names to tensors."""
    others = {name: x for name, x in tensors.items() if x is not None and name not in ("q", "k", "v", "gate")}
    q, k, v, gate = (tensors[name] for name in ("q", "k", "v", "gate"))
    return gated_attention(q, k, v, gate, return_lse=True, **others, **options)


@in_words_of(NAME, {})
def _call_generally(
    given: dict[str, Tensor | None], arguments: dict[str, Any], extra_outputs: _ExtraOutputs | None
) -> Tensor | tuple[Tensor, ...]:
    """Computes gated_attention through PyTorch's dispatcher (torch.ops.headgate)."""
    tensors = {**_NO_TENSORS, **given}
    given = sort_arguments(NAME, tensors, arguments)
    recorded = torch.is_grad_enabled() and any(isinstance(t, Tensor) and t.requires_grad for t in tensors.values())
    refuse_transforms(NAME, {**tensors, **given}, DIFFERENTIABLE)
    check_tensors(NAME, tensors, recorded, nested=True)
    options = {**_DEFAULTS, **checked_options(NAME, given)}
    if recorded and options["gate_threshold"] > 0:
        raise ValueError(f"{NAME}: with gate_threshold there are no gradients: call it under torch.no_grad()")
    max_logit = extra_outputs.max_logit if extra_outputs else _NO_MAX
    if are_dtensors(tensors):
        if max_logit != _NO_MAX:
            raise ValueError(f"{NAME}: return_max_logit does not support DTensors: call it on their local tensors")
        if options["dropout"] > 0:  # dropout depends on head and sequence numbers, which each process counts from 0
            raise ValueError(f"{NAME}: dropout does not support DTensors: call it on their local tensors")
        y, lse = attend_on_dtensors(NAME, tensors, options["layout"], lambda own: _call_with_lse(own, given))
        return (y, lse) if extra_outputs else y
    nested = unnest(NAME, tensors, options["layout"])
    autocast(tensors)
    transformed = transforms_are_active()
    keep_attn = (recorded or transformed) and tensors["gate"] is not None and _keeps_output(tensors["q"], options)
    keywords = {**options, "keep_attn": keep_attn, "max_logit": max_logit}
    if transformed:
        y, lse, _, logits = _FUNCTIONAL.apply(keywords, *tensors.values())
    else:
        y, lse, _, logits = torch.ops.headgate.gated_attention(*tensors.values(), **keywords)
    if nested is not None:
        y = torch.nested.nested_tensor_from_jagged(y, nested.offsets(), jagged_dim=nested._ragged_idx)
        if extra_outputs and extra_outputs.lse:
            lse = torch.nested.nested_tensor_from_jagged(lse, nested.offsets(), jagged_dim=2)
        if max_logit == _ROWS:
            logits = torch.nested.nested_tensor_from_jagged(logits, nested.offsets(), jagged_dim=2)
    return extra_outputs.select(y, lse, logits) if extra_outputs else y
