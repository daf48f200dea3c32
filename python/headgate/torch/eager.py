# SPDX-License-Identifier: Apache-2.0
"""Fast path for eager calls: bypasses PyTorch's dispatcher and calls the functions of `headgate` directly.

For small problems, dispatching a custom operator takes longer than the computation. The fast path handles plain eager
calls. If a gradient is needed, a torch.autograd.Function records the call. Every other call takes the general path,
torch.ops.headgate. These are calls under torch.compile, export, tracing, torch.func, forward mode, autocast, the
profiler or a PyTorch mode, and calls with tensor subclasses or unexpected argument types. A call that fails on the fast
path is repeated on the general path, which then raises its own error. Errors of the caller's code, such as a signal
handler, are not caught.
"""

import functools
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ..operations import Operation
from .errors import is_of_caller

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

# After one of these errors, a call is repeated on the general path.
_ERRORS = (ValueError, TypeError, RuntimeError, BufferError)


def is_eager() -> bool:
    """Returns True if only autograd may intercept operations. Returns False, for example, under torch.compile or a
    PyTorch mode.
    """
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


def can_read_values(tensor: Tensor) -> bool:
    """Returns whether Python code may read the values of a tensor and depend on them.

    Returns False under torch.compile, tracing, torch.func and PyTorch's dispatch modes, such as FakeTensorMode.
    """
    hidden = _is_compiling() or _dispatch_modes() or _transforms() is not None or _tracing() is not None
    return not hidden and type(tensor) in _PLAIN_TENSORS


def are_plain(tensors: Iterable[Any]) -> bool:
    """Returns whether the type of each tensor is exactly Tensor or Parameter."""
    for tensor in tensors:
        if type(tensor) not in _PLAIN_TENSORS:
            return False
    return True


Named = dict[str, Tensor]
"""Maps names of inputs to tensors. Inputs that the call lacks are omitted."""


class RecordedCall(NamedTuple):
    """Holds the data of a recorded call for its backward pass."""

    named: Named
    options: dict[str, Any]
    saved: tuple[Any, ...]
    """Values that forward() saved for the backward pass."""
    incoming: tuple[Any, ...]
    """Gradients of the outputs of forward(). None means that an output has no gradient."""


class EagerOperation:
    """Base class of an operation with a fast path. Subclasses call the functions of `headgate` that compute the
    operation.
    """

    def __init__(self, arguments: Operation):
        self.arguments = arguments

    def forward(
        self, named: Named, options: dict[str, Any], extra_outputs: Any, recorded: bool
    ) -> tuple[Any, tuple[Any, ...]]:
        """Computes a call. Returns its result and a tuple of values that the backward pass needs in addition to the
        inputs.

        `extra_outputs` selects what the result holds in addition to y. `recorded` is true if autograd records the call.
        """
        raise NotImplementedError

    def without_gradient(self, result: Any, extra_outputs: Any) -> tuple[Tensor, ...]:
        """Returns the non-differentiable tensors in `result`, which forward() returned for the same `extra_outputs`."""
        return ()

    def backward(self, recorded: RecordedCall, names: tuple[str, ...]) -> Any:
        """Computes the gradients `names`, such as "dq" of the input q. Returns an object with an attribute for each
        gradient.

        Raises an error if this path does not support the call.
        """
        raise NotImplementedError

    def general_backward(self, recorded: RecordedCall, wanted: tuple[str, ...]) -> dict[str, Tensor]:
        """Computes the gradients of the inputs `wanted` with torch.ops.headgate. Returns a dict from input name to
        gradient."""
        raise NotImplementedError

    def call(self, given: dict[str, Tensor | None], arguments: dict[str, Any], extra_outputs: Any) -> Any:
        """Returns the result of a call with the tensors `given` and the other `arguments`. Returns None if the call
        needs the general path.
        """
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
                return self.forward(named, options, extra_outputs, False)[0]
            # The operation has gradients for all tensors in `given`. Those in `arguments` need a check.
            if not arguments or self._has_gradients(named, options):
                return _record((self, named, options, extra_outputs), *named.values())
        except _ERRORS as error:
            if is_of_caller(error):
                raise
        return None

    def _take_options(self, named: Named, given: dict[str, Any], arguments: dict[str, Any]) -> dict[str, Any] | None:
        """Copies the tensors in `arguments` to `named`. Returns the other arguments, which are options. Returns None if
        the call needs the general path.
        """
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
        """Returns whether every requested gradient can be computed. If one cannot, the general path raises the error."""
        operation = self.arguments
        for name in options:
            if operation.options[name].forward_only:
                return False
        for name, tensor in named.items():
            if name not in operation.differentiable and (tensor.requires_grad or name in operation.forward_only):
                return False
        return True

    def all_arguments(self, recorded: RecordedCall, wanted: tuple[str, ...]) -> tuple[list[Any], dict[str, Any]]:
        """Returns the inputs and options for the backward operator in torch.ops.headgate."""
        operation = self.arguments
        given = {name: value for name, value in recorded.options.items() if value is not None}
        settings = {**operation.defaults(), **given, "wanted": [name in wanted for name in operation.differentiable]}
        return [recorded.named.get(name) for name in operation.tensors], settings


@functools.cache
def _wanted(names: tuple[str, ...], needs_gradient: tuple[bool, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the inputs that need a gradient, and the names of the gradients."""
    wanted = tuple(name for name, needed in zip(names, needs_gradient) if needed)
    return wanted, tuple("d" + name for name in wanted)


class HeadgateCall(torch.autograd.Function):
    """Records a call of an EagerOperation for autograd."""

    @staticmethod
    def forward(ctx: Any, call: tuple[EagerOperation, Named, dict[str, Any], Any], *tensors: Tensor) -> Any:
        operation, named, options, extra_outputs = call  # `tensors` holds the values of the dict `named`
        result, saved = operation.forward(named, options, extra_outputs, True)
        ctx.call = operation, tuple(named), options
        ctx.save_for_backward(*tensors, *saved)
        ctx.set_materialize_grads(False)
        if extra_outputs:
            ctx.mark_non_differentiable(*operation.without_gradient(result, extra_outputs))
        return result

    @staticmethod
    def backward(ctx: Any, *incoming: Tensor | None) -> tuple[Tensor | None, ...]:
        operation, names, options = ctx.call
        saved = ctx.saved_tensors
        recorded = RecordedCall(dict(zip(names, saved)), options, saved[len(names) :], incoming)
        wanted, attributes = _wanted(names, ctx.needs_input_grad[1:])
        # With create_graph=True, PyTorch records the backward pass. The general path then rejects double backward.
        if not _is_grad_enabled() and is_eager() and are_plain([dy for dy in incoming if dy is not None]):
            try:
                found = operation.backward(recorded, attributes)
                return (None, *[getattr(found, "d" + name, None) for name in names])
            except _ERRORS as error:
                if is_of_caller(error):
                    raise
        general = operation.general_backward(recorded, wanted)
        return (None, *[general[name] if name in wanted else None for name in names])


# Calls HeadgateCall without Function.apply's check for torch.func transforms, since is_eager() has excluded them.
_record = super(torch.autograd.Function, HeadgateCall).apply
