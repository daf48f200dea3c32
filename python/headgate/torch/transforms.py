# SPDX-License-Identifier: Apache-2.0
"""Operators under torch.func: derivatives with grad, vjp and jacrev, and batches with vmap.

torch.func cannot use the autograd formulas that autograd.py registers for custom operators. This module wraps the same
operators and formulas in functions that torch.func supports.
"""

from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor

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


def _refuse_tangents(what: str, names: tuple[str, ...], tangents: tuple[Any, ...]) -> NoReturn:
    """Raises RuntimeError for forward mode around reverse mode, as in torch.func.hessian.

    The checks of a call's inputs cannot detect the tangents in this combination.
    """
    name = next((name for name, tangent in zip(names, tangents) if tangent is not None), names[0])
    raise RuntimeError(f"{what}: {name} {FORWARD_MODE}")


def functional(
    name: str,
    tensors: tuple[str, ...],
    differentiable: tuple[str, ...],
    saved: tuple[str, ...],
    save: Callable[..., None],
    read: Callable[..., Any],
    over_batch: Callable[..., Any],
) -> type[torch.autograd.Function]:
    """Returns a function that wraps the operator torch.ops.headgate.NAME for torch.func.

    Its apply() takes a dict of the operator's keyword arguments, and then the tensors. `save` and `read` are those of
    register_autograd(). The backward operator takes the tensors that `saved` names, and then the inputs of NAME.
    over_batch(call, size, in_dims, tensors, first, keywords) computes a batch of calls. tensors[first] is the first
    input of NAME.
    """

    class Backward(torch.autograd.Function):
        @staticmethod
        def forward(keywords: dict[str, Any], *given: Tensor | None) -> Results:
            return getattr(torch.ops.headgate, f"{name}_backward")(*given, **keywords)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Results) -> None:
            pass

        @staticmethod
        def backward(ctx: Any, *_: Tensor | None) -> NoReturn:
            raise RuntimeError(SECOND.format(name))

        @staticmethod
        def jvp(ctx: Any, _: None, *tangents: Tensor | None) -> NoReturn:
            _refuse_tangents(name, (*saved, *tensors), tangents)

        @staticmethod
        def vmap(info: Any, in_dims: tuple[Any, ...], keywords: dict[str, Any], *given: Tensor | None) -> Any:
            def call(*x: Tensor | None) -> Results:
                return Backward.apply(keywords, *x)

            return over_batch(call, info.batch_size, in_dims[1:], given, len(saved), keywords)

    class Forward(torch.autograd.Function):
        @staticmethod
        def forward(keywords: dict[str, Any], *given: Tensor | None) -> Tensor | Results:
            return getattr(torch.ops.headgate, name)(*given, **keywords)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor | Results) -> None:
            save(ctx, inputs[1:], inputs[0], output)

        @staticmethod
        def backward(ctx: Any, *incoming: Tensor | None) -> tuple[Tensor | None, ...]:
            leading, inputs = read(ctx, *incoming)
            needed = dict(zip(tensors, ctx.needs_input_grad[1:]))
            wanted = [needed[tensor] for tensor in differentiable]
            found = dict(zip(differentiable, Backward.apply({**ctx.options, "wanted": wanted}, *leading, *inputs)))
            return (None, *(found[tensor] if needed[tensor] else None for tensor in tensors))

        @staticmethod
        def jvp(ctx: Any, _: None, *tangents: Tensor | None) -> NoReturn:
            _refuse_tangents(name, tensors, tangents)

        @staticmethod
        def vmap(info: Any, in_dims: tuple[Any, ...], keywords: dict[str, Any], *given: Tensor | None) -> Any:
            def call(*x: Tensor | None) -> Tensor | Results:
                return Forward.apply(keywords, *x)

            return over_batch(call, info.batch_size, in_dims[1:], given, 0, keywords)

    return Forward


def each_example(
    call: Callable[..., Any], size: int, in_dims: tuple[Any, ...], tensors: tuple[Tensor | None, ...], *_: Any
) -> tuple[Any, Any]:
    """Returns the outputs of a call for each of `size` examples, and the dimension of the examples in each output.

    If `size` is 0, a call with zeros gives the shapes of the outputs.
    """
    given = [None if x is None or at is None else x.movedim(at, 0) for x, at in zip(tensors, in_dims)]
    if size == 0:
        given = [None if own is None else own.new_zeros((1, *own.shape[1:])) for own in given]
    rows = []
    for i in range(max(size, 1)):
        rows.append(call(*(shared if own is None else own[i] for shared, own in zip(tensors, given))))
    if isinstance(rows[0], Tensor):
        return torch.stack(rows)[:size], 0
    return tuple(torch.stack(x)[:size] for x in zip(*rows)), (0,) * len(rows[0])


_SAVED = 5  # number of tensors before q in the backward pass
_IN_BATCHES = 4  # number of leading inputs with rows for each sequence: q, k, v and the gate


def attention_over_batch(
    call: Callable[..., Results],
    size: int,
    in_dims: tuple[Any, ...],
    tensors: tuple[Tensor | None, ...],
    first: int,
    options: dict[str, Any],
) -> tuple[Results, tuple[int | None, ...]]:
    """Returns the outputs of `call` for each of `size` examples. Also returns the dimension of the examples in each
    output. tensors[first] is q.

    If the inputs are only q, k, v and a gate, one call computes all examples. Their sequences form one batch. With any
    other input, each example needs its own call, since the sequences of an example may share that input. Dropout needs
    the same, since it depends on the index of a sequence in the call.
    """
    if options.get("dropout") or any(x is not None for x in tensors[first + _IN_BATCHES :]):
        return each_example(call, size, in_dims, tensors)
    whole = [
        None if x is None else x.expand(size, *x.shape) if at is None else x.movedim(at, 0)
        for x, at in zip(tensors, in_dims)
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
    return attention_over_batch(
        lambda *x: torch.ops.headgate.gated_attention(*x, **options), info.batch_size, in_dims, tensors, 0, options
    )


def backward_over_batch(info: Any, in_dims: tuple[Any, ...], *tensors: Tensor | None, **options: Any) -> Any:
    """Implements torch.func.vmap for torch.ops.headgate.gated_attention_backward."""
    return attention_over_batch(
        lambda *x: torch.ops.headgate.gated_attention_backward(*x, **options),
        info.batch_size,
        in_dims,
        tensors,
        _SAVED,
        options,
    )
