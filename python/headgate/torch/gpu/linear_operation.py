# SPDX-License-Identifier: Apache-2.0
"""headgate.torch.linear_attention on GPUs: torch.ops.headgate.linear_attention_triton, and the checks before it."""

from collections.abc import Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.library import triton_op, wrap_triton

from ..arguments import LINEAR_ATTENTION
from ..attention import autocast, checked_options, refuse_transforms, sort_arguments
from ..errors import in_words_of
from . import checks, launch, linear_launch
from .support import DTYPES, LINEAR_DECLINED, LINEAR_MAX_STATE_ROWS, LINEAR_OPTIONS, LINEAR_TENSORS, MAX_HEAD_DIM

NAME = "linear_attention"
_OPERATION = "linear_attention_triton"
_DIFFERENTIABLE = linear_launch.Gradients._fields


# triton_op reads the schema off the signature, so the arguments of support.py are written out here.
@triton_op(f"headgate::{_OPERATION}", mutates_args=())
def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor | None = None,
    beta: Tensor | None = None,
    state: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    *,
    layout: str = "bhtd",
    rule: str = "gated_delta",
    scale: float | None = None,
    l2_norm: float | None = None,
    keep_state: bool = False,
) -> tuple[Tensor, Tensor]:
    inputs = linear_launch.Inputs(q, k, v, decay, beta, state, cu_seqlens)
    options = linear_launch.Options(layout, rule, scale, l2_norm)
    y, new_state = linear_launch.forward(inputs, options, keep_state, wrap_triton)
    return y, q.new_empty(0) if new_state is None else new_state


@triton_op(f"headgate::{_OPERATION}_backward", mutates_args=())
def _backward(
    dy: Tensor,
    dstate: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor | None = None,
    beta: Tensor | None = None,
    state: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    *,
    wanted: Sequence[bool],
    layout: str = "bhtd",
    rule: str = "gated_delta",
    scale: float | None = None,
    l2_norm: float | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    inputs = linear_launch.Inputs(q, k, v, decay, beta, state, cu_seqlens)
    options = linear_launch.Options(layout, rule, scale, l2_norm)
    names = tuple(name for name, asked in zip(_DIFFERENTIABLE, wanted) if asked)
    found = linear_launch.backward(dy, dstate, inputs, options, names, wrap_triton)
    return tuple(dy.new_empty(0) if gradient is None else gradient for gradient in found)


def _save(ctx: Any, inputs: tuple[Any, ...], keyword_only_inputs: dict[str, Any], output: Any) -> None:
    y, state = output
    ctx.options = {name: keyword_only_inputs[name] for name in LINEAR_OPTIONS}
    ctx.y_shape = y.shape
    ctx.save_for_backward(*inputs)
    if not keyword_only_inputs["keep_state"]:
        ctx.mark_non_differentiable(state)
    ctx.set_materialize_grads(False)


def _gradients(ctx: Any, dy: Tensor | None, dstate: Tensor | None) -> tuple[Tensor | None, ...]:
    inputs = ctx.saved_tensors
    # PyTorch leaves out the last inputs where they have their default, None.
    needed = dict(zip(LINEAR_TENSORS, ctx.needs_input_grad))
    wanted = [needed.get(name, False) for name in _DIFFERENTIABLE]
    dy = inputs[0].new_zeros(ctx.y_shape) if dy is None else dy
    gradients = torch.ops.headgate.linear_attention_triton_backward(dy, dstate, *inputs, wanted=wanted, **ctx.options)
    by_name = {name: gradient for name, gradient, asked in zip(_DIFFERENTIABLE, gradients, wanted) if asked}
    return tuple(by_name.get(name) for name in LINEAR_TENSORS)


_forward.register_autograd(_gradients, setup_context=_save)


def _refuse_second(ctx: Any, *_: Tensor | None) -> NoReturn:
    raise RuntimeError(f"headgate::{_OPERATION}_backward: gradients of gradients (double backward) are not supported")


_backward.register_autograd(_refuse_second)

_RULES = {"layout": ("bhtd", "bthd"), "rule": ("gated_delta", "delta", "gated", "linear")}


def _check_rule(tensors: dict[str, Tensor | None], rule: str) -> None:
    for name, rules in (("decay", ("gated_delta", "gated")), ("beta", ("gated_delta", "delta"))):
        if tensors[name] is not None and rule not in rules:
            raise ValueError(f"{NAME}: {name} is not for the rule {rule}: leave it out")


def _check_shapes(tensors: dict[str, Tensor | None], layout: str) -> None:
    q, k, v = tensors["q"], tensors["k"], tensors["v"]
    checks.check_features(NAME, {"q": q, "k": k}, LINEAR_MAX_STATE_ROWS)
    checks.check_features(NAME, {"q": q, "v": v}, MAX_HEAD_DIM)
    batch, query_heads, tokens, D = launch.sizes(q, layout)
    _, key_heads, _, _ = launch.sizes(k, layout)
    _, heads, _, DV = launch.sizes(v, layout)

    def shape(heads: Any, features: Any) -> tuple[Any, ...]:
        whole = (batch, heads, tokens, features) if layout == "bhtd" else (batch, tokens, heads, features)
        return whole if q.dim() == 4 else whole[1:]

    checks.require_shape(NAME, "k", k, shape(key_heads, D))
    checks.require_shape(NAME, "v", v, shape(heads, DV))
    for name, count in (("q", query_heads), ("k", key_heads)):
        if count == 0 or heads % count != 0:
            raise ValueError(f"{NAME}: v has {heads} heads but must have a multiple of {name}'s {count} on GPUs")
    checks.require_shape(NAME, "decay", tensors["decay"], shape(heads, 1))
    checks.require_shape(NAME, "beta", tensors["beta"], shape(heads, 1), shape(1, 1))
    starts, sequences = tensors["cu_seqlens"], batch
    if starts is not None:
        if batch != 1 or starts.dim() != 1 or starts.shape[0] < 2:
            raise ValueError(f"{NAME}: cu_seqlens must be (N+1), N >= 1, and q have a batch of 1")
        sequences = starts.shape[0] - 1
    checks.require_shape(NAME, "state", tensors["state"], (sequences, heads, D, DV))


@in_words_of(NAME, {})
def linear_attention(
    given: dict[str, Tensor | None], arguments: dict[str, Any], return_state: bool
) -> Tensor | tuple[Tensor, Tensor]:
    """headgate.torch.linear_attention of tensors on a GPU. Raises ValueError, in one line, on what GPUs do not compute."""
    tensors = {**dict.fromkeys(LINEAR_ATTENTION.tensors), **given}
    options = sort_arguments(NAME, tensors, arguments, ("state", "cu_seqlens"), LINEAR_ATTENTION)
    recorded = torch.is_grad_enabled() and any(isinstance(t, Tensor) and t.requires_grad for t in tensors.values())
    refuse_transforms(NAME, {**tensors, **options})
    checks.refuse_declined(NAME, LINEAR_DECLINED, tensors, options, LINEAR_ATTENTION)
    options = {**LINEAR_ATTENTION.defaults(), **checked_options(NAME, options, LINEAR_ATTENTION)}
    checks.check_tensors(NAME, tensors, tensors["q"], _DIFFERENTIABLE, recorded)
    autocast(tensors, ("decay", "beta"), device=tensors["q"].device.type)
    dtype = tensors["q"].dtype
    types = {"q": DTYPES, "k": (dtype,), "v": (dtype,), "decay": (dtype, torch.float32)}
    types |= {"beta": types["decay"], "state": (torch.float32, torch.float64), "cu_seqlens": checks.INDICES}
    checks.check_types(NAME, tensors, types)
    checks.check_choices(NAME, options, _RULES)
    checks.require_finite(NAME, options, "scale")
    checks.require_finite(NAME, options, "l2_norm", 0.0)
    _check_rule(tensors, options["rule"])
    _check_shapes(tensors, options["layout"])
    settings = {name: options[name] for name in LINEAR_OPTIONS}
    y, state = torch.ops.headgate.linear_attention_triton(*tensors.values(), **settings, keep_state=return_state)
    return (y, state) if return_state else y
