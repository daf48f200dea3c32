# SPDX-License-Identifier: Apache-2.0
"""Gated linear attention as an operation of PyTorch: torch.ops.headgate.linear_attention, and its function.

As attention.py: custom operations with fake kernels, which compute by headgate.linear_attention_forward and
linear_attention_backward.
"""

from typing import Any

import torch
from torch import Tensor

import headgate

from .arguments import LINEAR_ATTENTION, takes
from .attention import autocast, check_tensors, checked_options, refuse_transforms, sort_arguments
from .errors import in_words_of

NAME = "linear_attention"

_OPERATION = LINEAR_ATTENTION
_TENSORS, _DIFFERENTIABLE = _OPERATION.tensors, _OPERATION.differentiable
_INPUTS, _SETTINGS = _OPERATION.schema_of_tensors(), _OPERATION.schema_of_options()


def _named(tensors: tuple[Tensor | None, ...]) -> dict[str, Tensor]:
    """The tensors that are there, by their names."""
    return {name: tensor for name, tensor in zip(_TENSORS, tensors) if tensor is not None}


@torch.library.custom_op(
    "headgate::linear_attention",
    mutates_args=(),
    device_types="cpu",
    schema=f"({_INPUTS}, *, {_SETTINGS}, bool keep_state=False) -> (Tensor y, Tensor state)",
)
@in_words_of(NAME, {})
def _forward(*tensors: Tensor | None, keep_state: bool = False, **options: Any) -> tuple[Tensor, Tensor]:
    outputs = ["y", "state"] if keep_state else ["y"]
    out = headgate.linear_attention_forward(outputs=outputs, **_named(tensors), **_OPERATION.changed(options))
    return out.y, out.state if keep_state else tensors[0].new_empty(0)


@_forward.register_fake
def _(*tensors: Tensor | None, keep_state: bool = False, layout: str = "bhtd", **options: Any) -> tuple[Tensor, Tensor]:
    named = _named(tensors)
    q, v = named["q"], named["v"]
    heads = -3 if layout == "bhtd" else -2
    shape = list(q.shape)
    shape[heads], shape[-1] = max(q.shape[heads], v.shape[heads]), v.shape[-1]
    y = q.new_empty(shape)
    if not keep_state:
        return y, q.new_empty(0)
    cu_seqlens = named.get("cu_seqlens")
    sequences = cu_seqlens.shape[0] - 1 if cu_seqlens is not None else q.shape[0] if q.dim() == 4 else 1
    dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
    return y, q.new_empty([sequences, v.shape[heads], q.shape[-1], v.shape[-1]], dtype=dtype)


@torch.library.custom_op(
    "headgate::linear_attention_backward",
    mutates_args=(),
    device_types="cpu",
    schema=f"(Tensor dy, Tensor? dstate, {_INPUTS}, *, bool[] wanted, {_SETTINGS}) "
    f"-> ({', '.join('Tensor d' + name for name in _DIFFERENTIABLE)})",
)
@in_words_of(NAME, {})
def _backward(
    dy: Tensor, dstate: Tensor | None, *tensors: Tensor | None, wanted: list[bool], **options: Any
) -> tuple[Tensor, ...]:
    names = ["d" + name for name, asked in zip(_DIFFERENTIABLE, wanted) if asked]
    found = headgate.linear_attention_backward(
        dy, dstate=dstate, gradients=names, **_named(tensors), **_OPERATION.changed(options)
    )
    gradients = [getattr(found, "d" + name) for name in _DIFFERENTIABLE]
    return tuple(dy.new_empty(0) if gradient is None else gradient for gradient in gradients)


@_backward.register_fake
def _(
    dy: Tensor, dstate: Tensor | None, *tensors: Tensor | None, wanted: list[bool], **options: Any
) -> tuple[Tensor, ...]:
    inputs = dict(zip(_TENSORS, tensors))
    return tuple(
        inputs[name].new_empty(inputs[name].shape) if asked else dy.new_empty(0)
        for name, asked in zip(_DIFFERENTIABLE, wanted)
    )


def _save(ctx: Any, inputs: tuple[Any, ...], keyword_only_inputs: dict[str, Any], output: Any) -> None:
    y, state = output
    ctx.options = {name: keyword_only_inputs[name] for name in _OPERATION.options}
    ctx.y_shape = y.shape
    ctx.save_for_backward(*inputs)
    if not keyword_only_inputs["keep_state"]:
        ctx.mark_non_differentiable(state)
    ctx.set_materialize_grads(False)


def _gradients(ctx: Any, dy: Tensor | None, dstate: Tensor | None) -> tuple[Tensor | None, ...]:
    inputs = ctx.saved_tensors
    # PyTorch leaves out the last inputs where they have their default, None.
    needed = dict(zip(_TENSORS, ctx.needs_input_grad))
    wanted = [needed.get(name, False) for name in _DIFFERENTIABLE]
    gradients = torch.ops.headgate.linear_attention_backward(
        inputs[0].new_zeros(ctx.y_shape) if dy is None else dy, dstate, *inputs, wanted=wanted, **ctx.options
    )
    by_name = {name: gradient for name, gradient, asked in zip(_DIFFERENTIABLE, gradients, wanted) if asked}
    return tuple(by_name.get(name) for name in _TENSORS)


_forward.register_autograd(_gradients, setup_context=_save)


def _refuse_second(ctx: Any, *_: Tensor | None) -> None:
    raise RuntimeError(
        "headgate::linear_attention_backward: gradients of gradients (double backward) are not supported"
    )


_backward.register_autograd(_refuse_second)

_KEYWORDS = tuple(name for name in _OPERATION.optional if name not in ("decay", "beta"))


@takes(*_KEYWORDS, *_OPERATION.options, operation=_OPERATION)
@in_words_of(NAME, {})
def linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor | None = None,
    beta: Tensor | None = None,
    *,
    return_state: bool = False,
    **arguments: Any,
) -> Tensor | tuple[Tensor, Tensor]:
    """Gated linear attention with the delta rule, the recurrence of Gated DeltaNet, with gradients.

    The arguments are those of headgate.linear_attention, as tensors of the CPU with any strides; none is copied.
    Returns y, of q's dtype; with return_state also the state after the last token (N,Hv,D,Dv), which has a gradient
    too and is the `state` of the call for the next tokens. q, k, v, decay, beta and state have gradients. Under
    torch.autocast q, k and v are cast to its dtype, and decay and beta where they are not float32. Raises ValueError, in
    one line, on arguments that do not fit.
    """
    tensors = {**dict.fromkeys(_TENSORS), "q": q, "k": k, "v": v, "decay": decay, "beta": beta}
    given = sort_arguments(NAME, tensors, arguments, _KEYWORDS, _OPERATION)
    recorded = torch.is_grad_enabled() and any(isinstance(t, Tensor) and t.requires_grad for t in tensors.values())
    refuse_transforms(NAME, {**tensors, **given})
    check_tensors(NAME, tensors, recorded, _OPERATION)
    options = {**_OPERATION.defaults(), **checked_options(NAME, given, _OPERATION)}
    autocast(tensors, ("decay", "beta"))
    y, state = torch.ops.headgate.linear_attention(*tensors.values(), **options, keep_state=return_state)
    return (y, state) if return_state else y
