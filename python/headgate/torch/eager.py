# SPDX-License-Identifier: Apache-2.0
"""The short way of a call in eager mode: past PyTorch's dispatcher, straight to the functions of `headgate`.

A custom operation of PyTorch takes longer to dispatch than small problems take to compute. Where nothing but autograd
watches a call, its result is that of headgate's function, recorded by a torch.autograd.Function where a gradient is
needed. Every other call goes the general way, by torch.ops.headgate: under torch.compile, export, tracing, torch.func,
forward mode, autocast, the profiler and modes, with subclasses of tensors, and with arguments of other types. So does a
call that fails, which then raises the general way's error.
"""

import functools
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from .arguments import Operation

_PLAIN_TENSORS = frozenset({Tensor, torch.nn.Parameter})
_PLAIN_OPTIONS = {
    "str": frozenset({str}),
    "int": frozenset({int}),
    "float": frozenset({float, int}),
    "float?": frozenset({float, int, type(None)}),
}

_is_grad_enabled = torch.is_grad_enabled
_is_compiling = torch.compiler.is_compiling
_dispatch_modes = torch._C._len_torch_dispatch_stack
_function_modes = torch._C._len_torch_function_stack
_transforms = torch._C._functorch.peek_interpreter_stack
_autocasts = torch._C._is_any_autocast_enabled
_tracing = torch._C._get_tracing_state
_profiling = torch.autograd._profiler_enabled

# After one of these a call goes the general way.
_ERRORS = (ValueError, TypeError, RuntimeError, BufferError)


def is_eager() -> bool:
    """Whether nothing but autograd watches what PyTorch computes."""
    return not (
        _is_compiling()
        or _dispatch_modes()
        or _function_modes()
        or _transforms() is not None
        or forward_ad._current_level >= 0
        or _autocasts()
        or _tracing() is not None
        or _profiling()
    )


def are_plain(tensors: Iterable[Any]) -> bool:
    """Whether each is a tensor of no subclass."""
    for tensor in tensors:
        if type(tensor) not in _PLAIN_TENSORS:
            return False
    return True


Named = dict[str, Tensor]
"""The tensors of a call that are there, by their names."""


class RecordedCall(NamedTuple):
    """A call that autograd has recorded, when its gradients are asked for."""

    named: Named
    options: dict[str, Any]
    saved: tuple[Any, ...]
    """What forward() kept for the backward pass."""
    incoming: tuple[Any, ...]
    """The gradients of what forward() returned; None where there is none."""


class EagerOperation:
    """An operation whose calls may go the short way. A subclass says which functions of `headgate` compute it."""

    def __init__(self, arguments: Operation):
        self.arguments = arguments

    def forward(self, named: Named, options: dict[str, Any], keep: bool, recorded: bool) -> tuple[Any, tuple[Any, ...]]:
        """What a call returns, and what its backward pass needs beside the inputs. `keep`: with the second output."""
        raise NotImplementedError

    def backward(self, recorded: RecordedCall, names: tuple[str, ...]) -> Any:
        """The gradients `names`, "dNAME" of an input, as attributes of a result. Raises if it cannot."""
        raise NotImplementedError

    def general_backward(self, recorded: RecordedCall, wanted: tuple[str, ...]) -> dict[str, Tensor]:
        """The gradients of the inputs `wanted` by torch.ops.headgate, by the inputs' names."""
        raise NotImplementedError

    def call(self, given: dict[str, Tensor | None], arguments: dict[str, Any], keep: bool) -> Any:
        """The result of a call with the tensors `given` and further `arguments`; None where it goes the general way."""
        if not is_eager():
            return None
        named = {}
        recorded = False
        for name, tensor in given.items():
            if tensor is not None:
                if type(tensor) not in _PLAIN_TENSORS:
                    return None
                named[name] = tensor
                recorded = recorded or tensor.requires_grad
        options = {}
        if arguments:
            options = self._take_options(named, given, arguments)
            if options is None:
                return None
            recorded = any([tensor.requires_grad for tensor in named.values()])
        try:
            if not (recorded and _is_grad_enabled()):
                return self.forward(named, options, keep, False)[0]
            # Every input that functions take by position has a gradient.
            if not arguments or self._has_gradients(named, options):
                return _record((self, named, options, keep), *named.values())
        except _ERRORS:
            pass
        return None

    def _take_options(self, named: Named, given: dict[str, Any], arguments: dict[str, Any]) -> dict[str, Any] | None:
        """Moves the tensors among `arguments` to `named` and returns the options; None if one is not as usual."""
        options = {}
        for name, value in arguments.items():
            option = self.arguments.options.get(name)
            if option is None:
                if name in given or name not in self.arguments.tensors:
                    return None
                if value is not None:
                    if type(value) not in _PLAIN_TENSORS:
                        return None
                    named[name] = value
            elif type(value) in _PLAIN_OPTIONS[option.type] or (name == "threads" and value is None):
                options[name] = value
            else:
                return None
        return options

    def _has_gradients(self, named: Named, options: dict[str, Any]) -> bool:
        """Whether a recorded call has every gradient that is asked for: the general way refuses the others."""
        operation = self.arguments
        for name in options:
            if operation.options[name].forward_only:
                return False
        for name, tensor in named.items():
            if name not in operation.differentiable and (tensor.requires_grad or name in operation.forward_only):
                return False
        return True

    def all_arguments(self, recorded: RecordedCall, wanted: tuple[str, ...]) -> tuple[list[Any], dict[str, Any]]:
        """The inputs and the options of the operation's backward pass in torch.ops.headgate."""
        operation = self.arguments
        given = {name: value for name, value in recorded.options.items() if value is not None}
        settings = {**operation.defaults(), **given, "wanted": [name in wanted for name in operation.differentiable]}
        return [recorded.named.get(name) for name in operation.tensors], settings


@functools.cache
def _wanted(names: tuple[str, ...], asked: tuple[bool, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The inputs whose gradients are asked for, and the names of these."""
    wanted = tuple(name for name, needed in zip(names, asked) if needed)
    return wanted, tuple("d" + name for name in wanted)


class HeadgateCall(torch.autograd.Function):
    """A call of an EagerOperation that autograd records."""

    @staticmethod
    def forward(ctx: Any, call: tuple[EagerOperation, Named, dict[str, Any], bool], *tensors: Tensor) -> Any:
        operation, named, options, keep = call  # `tensors` are those of `named`
        result, saved = operation.forward(named, options, keep, True)
        ctx.call = operation, tuple(named), options
        ctx.save_for_backward(*tensors, *saved)
        ctx.set_materialize_grads(False)
        return result

    @staticmethod
    def backward(ctx: Any, *incoming: Tensor | None) -> tuple[Tensor | None, ...]:
        operation, names, options = ctx.call
        saved = ctx.saved_tensors
        recorded = RecordedCall(dict(zip(names, saved)), options, saved[len(names) :], incoming)
        wanted, attributes = _wanted(names, ctx.needs_input_grad[1:])
        # A backward pass that is recorded itself goes the general way, which refuses second derivatives.
        if not _is_grad_enabled() and is_eager() and are_plain([dy for dy in incoming if dy is not None]):
            try:
                found = operation.backward(recorded, attributes)
                return (None, *[getattr(found, "d" + name, None) for name in names])
            except _ERRORS:
                pass
        general = operation.general_backward(recorded, wanted)
        return (None, *[general[name] if name in wanted else None for name in names])


# What Function.apply calls when no transform of torch.func is active, which is_eager() has made sure of.
_record = super(torch.autograd.Function, HeadgateCall).apply
