# SPDX-License-Identifier: Apache-2.0
"""Registers backward operators with autograd, for both the CPU and the GPU operators."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor

from .transforms import SECOND, attention_over_batch, each_example, functional


def register_autograd(
    name: str,
    forward: Any,
    backward: Any,
    tensors: tuple[str, ...],
    differentiable: tuple[str, ...],
    save: Callable[..., None],
    read: Callable[..., tuple[Sequence[Tensor | None], Sequence[Tensor | None]]],
) -> None:
    """Registers the operator headgate::NAME_backward as the backward pass of headgate::NAME. Double backward raises an
    error.

    `save(ctx, inputs, keyword_only_inputs, output)` saves what the backward pass needs, and sets ctx.options.
    `read(ctx, *gradients of the results)` returns two lists of arguments of the backward operator: the first arguments,
    such as dy, and the inputs of the forward pass, which come next.
    """

    def gradients(ctx: Any, *incoming: Tensor | None) -> tuple[Tensor | None, ...]:
        leading, inputs = read(ctx, *incoming)
        # PyTorch omits trailing None inputs, so needs_input_grad may be shorter than `tensors`.
        needed = dict(zip(tensors, ctx.needs_input_grad))
        wanted = [needed.get(tensor, False) for tensor in differentiable]
        found = backward(*leading, *inputs, wanted=wanted, **ctx.options)
        by_name = {tensor: gradient for tensor, gradient, is_wanted in zip(differentiable, found, wanted) if is_wanted}
        return tuple(by_name.get(tensor) for tensor in tensors)

    def refuse_second(ctx: Any, *_: Tensor | None) -> NoReturn:
        raise RuntimeError(SECOND.format(name))

    forward.register_autograd(gradients, setup_context=save)
    backward.register_autograd(refuse_second)


def register_attention(
    name: str,
    forward: Any,
    backward: Any,
    tensors: tuple[str, ...],
    options: Iterable[str],
    differentiable: tuple[str, ...],
) -> type[torch.autograd.Function]:
    """Calls register_autograd for an attention operator. Only y and lse have gradients. Returns its function for
    torch.func.

    The operator's schema is (*tensors, *, **options, keep_attn) -> (y, lse, attn, …).
    """

    def save(ctx: Any, inputs: tuple[Any, ...], keyword_only_inputs: dict[str, Any], output: Any) -> None:
        y, lse, attn, *others = output
        ctx.options = {option: keyword_only_inputs[option] for option in options}
        ctx.keeps_attn = keyword_only_inputs["keep_attn"]
        ctx.save_for_backward(*inputs, y, lse, attn)
        ctx.mark_non_differentiable(attn, *others)
        ctx.set_materialize_grads(False)

    def read(ctx: Any, dy: Tensor | None, dlse: Tensor | None, *_: Tensor | None) -> tuple[Any, Any]:
        *inputs, y, lse, attn = ctx.saved_tensors
        dy = torch.zeros_like(y) if dy is None else dy
        return (dy, dlse, y, lse, attn if ctx.keeps_attn else None), inputs

    register_autograd(name, forward, backward, tensors, differentiable, save, read)
    saved = ("dy", "dlse", "y", "lse", "attn")
    return functional(name, tensors, differentiable, saved, save, read, attention_over_batch)


def register_operation(
    name: str,
    forward: Any,
    backward: Any,
    tensors: tuple[str, ...],
    options: tuple[str, ...],
    differentiable: tuple[str, ...],
    has_state: bool,
) -> type[torch.autograd.Function]:
    """Calls register_autograd for an operator with or without a state. Only y and the state have gradients. Returns the
    operator's function for torch.func.

    Without a state, the schema is (*tensors, *, **options) -> y. With a state, it is (*tensors, *, **options,
    keep_state) -> (y, state, …).
    """

    def save(ctx: Any, inputs: tuple[Any, ...], keyword_only_inputs: dict[str, Any], output: Any) -> None:
        y, *others = output if has_state else (output,)
        ctx.options = {option: keyword_only_inputs[option] for option in options}
        ctx.y_shape = y.shape
        ctx.save_for_backward(*inputs)
        if has_state:
            ctx.mark_non_differentiable(*others[1 if keyword_only_inputs["keep_state"] else 0 :])
        ctx.set_materialize_grads(False)

    def read(ctx: Any, dy: Tensor | None, *others: Tensor | None) -> tuple[Any, Any]:
        inputs = ctx.saved_tensors
        return (inputs[0].new_zeros(ctx.y_shape) if dy is None else dy, *others[:1]), inputs

    register_autograd(name, forward, backward, tensors, differentiable, save, read)
    saved = ("dy", "dstate") if has_state else ("dy",)
    return functional(name, tensors, differentiable, saved, save, read, each_example)
