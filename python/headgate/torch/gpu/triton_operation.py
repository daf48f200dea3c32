# SPDX-License-Identifier: Apache-2.0
"""PyTorch operators that Triton kernels compute: schemas, registration and calls.

The operators are triton_ops, so that torch.compile can trace their kernels.
"""

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.library import triton_op, wrap_triton

from ...operations import OPTION_TYPES
from ..autograd import register_operation
from ..calls import autocast, checked_options, refuse_transforms, sort_arguments
from ..errors import in_words_of
from . import checks
from .support import Supported


def with_signature(
    function: Callable[..., Any],
    leading: Iterable[inspect.Parameter],
    supported: Supported,
    options: Iterable[str],
    flags: dict[str, Any],
    results: Any,
) -> Callable[..., Any]:
    """Sets the signature of `function`. triton_op derives the operator schema from the signature.

    The parameters are `leading`, the inputs, and the keyword-only `flags` and options. Flags of type bool default to
    False. Other flags are required.
    """
    positional, by_name = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
    operation = supported.operation
    parameters = list(leading)
    for name in supported.tensors:
        required = name in operation.required
        kind: Any = Tensor if required else Tensor | None
        default: Any = inspect.Parameter.empty if required else None
        parameters.append(inspect.Parameter(name, positional, default=default, annotation=kind))
    for name, kind in flags.items():
        default = False if kind is bool else inspect.Parameter.empty
        parameters.append(inspect.Parameter(name, by_name, default=default, annotation=kind))
    for name in options:
        option = operation.options[name]
        parameters.append(
            inspect.Parameter(name, by_name, default=option.default, annotation=OPTION_TYPES[option.type])
        )
    signature = inspect.Signature(parameters, return_annotation=results)
    function.__signature__ = signature  # type: ignore[attr-defined]
    return function


def leading(**kinds: Any) -> list[inspect.Parameter]:
    """Returns a required parameter for each name and type in `kinds`. In a signature, these parameters precede the
    inputs.
    """
    return [
        inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=kind)
        for name, kind in kinds.items()
    ]


def sorted_and_checked(
    what: str,
    given: dict[str, Any],
    arguments: dict[str, Any],
    supported: Supported,
    differentiable: tuple[str, ...],
) -> tuple[dict[str, Any], dict[str, Any], bool]:
    """Returns the inputs and the options of a call of the function `what`, and whether autograd records the call.

    Rejects arguments that GPUs do not support. Does not check types and shapes.
    """
    operation = supported.operation
    tensors = {**dict.fromkeys(operation.tensors), **given}
    keywords = tuple(name for name in operation.tensors if name not in given)
    options = sort_arguments(what, tensors, arguments, keywords, operation)
    recorded = torch.is_grad_enabled() and any(isinstance(t, Tensor) and t.requires_grad for t in tensors.values())
    refuse_transforms(what, {**tensors, **options})
    checks.refuse_unsupported(what, supported.unsupported, tensors, options, operation)
    options = {**operation.defaults(), **checked_options(what, options, operation)}
    checks.check_tensors(what, tensors, tensors[operation.tensors[0]], differentiable, recorded)
    return tensors, options, recorded


class TritonOperation:
    """Registers the operators torch.ops.headgate.NAME_triton and NAME_triton_backward. Computes the function NAME of
    headgate.torch on GPUs.

    The module `compute` implements the operation. It contains Inputs, Options, Gradients, forward and backward.
    `check(tensors, options)` raises ValueError for invalid types, shapes or values. The option `precision` has no
    effect if Options has no such field. The other arguments are those of CustomOperation.
    """

    def __init__(
        self,
        name: str,
        supported: Supported,
        compute: Any,
        check: Callable[[dict[str, Any], dict[str, Any]], None],
        *,
        has_state: bool,
        cast: tuple[str, ...],
        cast_unless_f32: tuple[str, ...],
    ):
        self.name, self.supported, self._compute, self._check = name, supported, compute, check
        self._has_state, self._cast, self._cast_unless_f32 = has_state, cast, cast_unless_f32
        self._differentiable = compute.Gradients._fields
        fields = compute.Options._fields
        self._options = tuple(name for name in supported.options if name in fields or name != "precision")
        self._register()
        self.call = in_words_of(name, {})(self._call)

    def _register(self) -> None:
        compute, has_state, differentiable = self._compute, self._has_state, self._differentiable

        def forward(*tensors: Tensor | None, keep_state: bool = False, **options: Any) -> Any:
            inputs, settings = compute.Inputs(*tensors), compute.Options(**options)
            if not has_state:
                return compute.forward(inputs, settings, wrap_triton)
            y, state = compute.forward(inputs, settings, keep_state, wrap_triton)
            return y, y.new_empty(0) if state is None else state

        def backward(dy: Tensor, *tensors: Tensor | None, wanted: Sequence[bool], **options: Any) -> Any:
            incoming, inputs = ((dy, tensors[0]), tensors[1:]) if has_state else ((dy,), tensors)
            names = tuple(name for name, is_wanted in zip(differentiable, wanted) if is_wanted)
            found = compute.backward(*incoming, compute.Inputs(*inputs), compute.Options(**options), names, wrap_triton)
            return tuple(dy.new_empty(0) if gradient is None else gradient for gradient in found)

        name, options = f"{self.name}_triton", self._options
        results = tuple[Tensor, Tensor] if has_state else Tensor
        with_signature(forward, (), self.supported, options, {"keep_state": bool} if has_state else {}, results)
        before = leading(dy=Tensor, dstate=Tensor | None) if has_state else leading(dy=Tensor)
        gradients = tuple[(Tensor,) * len(differentiable)]  # type: ignore[misc, valid-type]
        with_signature(backward, before, self.supported, options, {"wanted": Sequence[bool]}, gradients)
        operation, operation_backward = (
            triton_op(f"headgate::{own}", function, mutates_args=())
            for own, function in ((name, forward), (f"{name}_backward", backward))
        )
        register_operation(
            name, operation, operation_backward, self.supported.tensors, options, differentiable, has_state
        )

    def _call(self, given: dict[str, Any], arguments: dict[str, Any], keep_state: bool = False) -> Any:
        tensors, options, _ = sorted_and_checked(self.name, given, arguments, self.supported, self._differentiable)
        autocast(tensors, self._cast_unless_f32, self._cast, device=tensors[self._cast[0]].device.type)
        tensors = {name: tensors[name] for name in self.supported.tensors}
        self._check(tensors, options)
        settings = {name: options[name] for name in self._options}
        compute = getattr(torch.ops.headgate, f"{self.name}_triton")
        if not self._has_state:
            return compute(*tensors.values(), **settings)
        y, state = compute(*tensors.values(), **settings, keep_state=keep_state)
        return (y, state) if keep_state else y
