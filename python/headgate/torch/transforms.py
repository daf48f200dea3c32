# SPDX-License-Identifier: Apache-2.0
"""Attention under torch.func: derivatives with grad, vjp and jacrev, and batches with vmap.

torch.func cannot use the autograd formulas that attention.py registers for its custom operators. This module wraps the
same operators in functions that torch.func supports.
"""

from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor

from .arguments import DIFFERENTIABLE, TENSORS

SECOND = "headgate::{}_backward: gradients of gradients (double backward) are not supported"
FORWARD_MODE = "has a tangent: forward-mode derivatives, as of jvp, are not supported"

Results = tuple[Tensor, ...]


def transforms_are_active() -> bool:
    """Returns whether a transform of torch.func is active. Always returns false while a program is compiled."""
    return not torch.compiler.is_compiling() and torch._C._functorch.peek_interpreter_stack() is not None


def refuse_all_transforms(what: str, *tensors: Tensor | None) -> None:
    """Raises RuntimeError if a transform of torch.func is active. For functions that support no transforms.

    Batched gradients count as such a transform if any of `tensors` is batched. jacobian(vectorize=True) of
    torch.autograd.functional computes them.
    """
    batched = any(x is not None and torch._C._functorch.is_legacy_batchedtensor(x) for x in tensors)
    if batched or transforms_are_active():
        raise RuntimeError(f"{what}: transforms of torch.func, such as vmap, are not supported: use gated_attention")


def _refuse_tangents(names: tuple[str, ...], tangents: tuple[Any, ...]) -> NoReturn:
    """Raises RuntimeError for forward mode around reverse mode, as in torch.func.hessian.

    The checks of a call's inputs cannot detect the tangents in this combination.
    """
    name = next((name for name, tangent in zip(names, tangents) if tangent is not None), names[0])
    raise RuntimeError(f"gated_attention: {name} {FORWARD_MODE}")


class FunctionalAttention(torch.autograd.Function):
    """Wraps torch.ops.headgate.gated_attention(*tensors, **options, keep_attn=…, max_logit=…) for torch.func."""

    @staticmethod
    def forward(options: dict[str, Any], keep_attn: bool, max_logit: str, *tensors: Tensor | None) -> Results:
        return torch.ops.headgate.gated_attention(*tensors, **options, keep_attn=keep_attn, max_logit=max_logit)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Results) -> None:
        ctx.options, ctx.keeps_attn, _, *tensors = inputs
        y, lse, attn, max_logit = output
        ctx.save_for_backward(*tensors, y, lse, attn)
        ctx.mark_non_differentiable(attn, max_logit)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, dy: Tensor | None, dlse: Tensor | None, *_: Tensor | None) -> tuple[Tensor | None, ...]:
        *tensors, y, lse, attn = ctx.saved_tensors
        needed = dict(zip(TENSORS, ctx.needs_input_grad[3:]))
        wanted = [needed[name] for name in DIFFERENTIABLE]
        dy = torch.zeros_like(y) if dy is None else dy
        saved = (dy, dlse, y, lse, attn if ctx.keeps_attn else None)
        found = dict(zip(DIFFERENTIABLE, _FunctionalBackward.apply(ctx.options, wanted, *saved, *tensors)))
        return (None, None, None, *(found[name] if needed[name] else None for name in TENSORS))

    @staticmethod
    def jvp(ctx: Any, _: None, __: None, ___: None, *tangents: Tensor | None) -> NoReturn:
        _refuse_tangents(TENSORS, tangents)

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[Any, ...], options: Any, keep_attn: bool, max_logit: str, *tensors: Tensor | None
    ) -> Any:
        def call(*x: Tensor | None) -> Results:
            return FunctionalAttention.apply(options, keep_attn, max_logit, *x)

        return over_batch(call, info.batch_size, in_dims[3:], tensors, 0, options)


class _FunctionalBackward(torch.autograd.Function):
    """Wraps torch.ops.headgate.gated_attention_backward for torch.func. The tensors are (dy, dlse, y, lse, attn,
    *tensors)."""

    @staticmethod
    def forward(options: dict[str, Any], wanted: list[bool], *tensors: Tensor | None) -> Results:
        return torch.ops.headgate.gated_attention_backward(*tensors, **options, wanted=wanted)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Results) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *_: Tensor | None) -> NoReturn:
        raise RuntimeError(SECOND.format("gated_attention"))

    @staticmethod
    def jvp(ctx: Any, _: None, __: None, *tangents: Tensor | None) -> NoReturn:
        _refuse_tangents(("dy", "dlse", "y", "lse", "attn", *TENSORS), tangents)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], options: Any, wanted: Any, *tensors: Tensor | None) -> Any:
        def call(*x: Tensor | None) -> Results:
            return _FunctionalBackward.apply(options, wanted, *x)

        return over_batch(call, info.batch_size, in_dims[2:], tensors, _SAVED, options)


_SAVED = 5  # number of tensors before q in the backward pass
_IN_BATCHES = 4  # number of leading inputs with rows for each sequence: q, k, v and the gate


def over_batch(
    call: Callable[..., Results],
    size: int,
    in_dims: tuple[Any, ...],
    tensors: tuple[Tensor | None, ...],
    first: int,
    options: dict[str, Any],
) -> tuple[Results, tuple[int | None, ...]]:
    """Returns the outputs of `call` for each of `size` examples. Also returns the dimension of the examples in each
    output. tensors[first] is q.

    If the inputs are only q, k, v and a gate, one call computes all examples. Their sequences form one batch. Two cases
    need one call per example: other tensors, which the sequences of an example may share, and dropout, which depends on
    the index of a sequence in the call. If `size` is 0, a call with zeros gives the shapes of the outputs.
    """
    given = [None if x is None or at is None else x.movedim(at, 0) for x, at in zip(tensors, in_dims)]
    if options.get("dropout") or any(x is not None for x in tensors[first + _IN_BATCHES :]):
        if size == 0:
            given = [None if own is None else own.new_zeros((1, *own.shape[1:])) for own in given]
        rows = []
        for i in range(max(size, 1)):
            rows.append(call(*(shared if own is None else own[i] for shared, own in zip(tensors, given))))
        return tuple(torch.stack(x)[:size] for x in zip(*rows)), (0,) * len(rows[0])
    whole = [
        None if shared is None else shared.expand(size, *shared.shape) if own is None else own
        for shared, own in zip(tensors, given)
    ]
    q = whole[first]  # (examples,B,H,T,D), or (examples,H,T,D) without a batch
    batch = q.shape[1] if q.dim() == 5 else None
    if batch is not None:
        whole = [None if x is None else x.reshape(size * batch, *x.shape[2:]) for x in whole]
    outputs, dims = [], []
    for x in call(*whole):
        absent = x.shape == (0,)  # an output that was not requested
        outputs.append(x if absent or batch is None else x.reshape(size, batch, *x.shape[1:]))
        dims.append(None if absent else 0)
    return tuple(outputs), tuple(dims)


def forward_over_batch(info: Any, in_dims: tuple[Any, ...], *tensors: Tensor | None, **options: Any) -> Any:
    """Implements torch.func.vmap for torch.ops.headgate.gated_attention."""
    return over_batch(
        lambda *x: torch.ops.headgate.gated_attention(*x, **options), info.batch_size, in_dims, tensors, 0, options
    )


def backward_over_batch(info: Any, in_dims: tuple[Any, ...], *tensors: Tensor | None, **options: Any) -> Any:
    """Implements torch.func.vmap for torch.ops.headgate.gated_attention_backward."""
    return over_batch(
        lambda *x: torch.ops.headgate.gated_attention_backward(*x, **options),
        info.batch_size,
        in_dims,
        tensors,
        _SAVED,
        options,
    )
