# SPDX-License-Identifier: Apache-2.0
"""PyTorch operators for linear attention, short convolution and gated norm. They return y, and some also return states.

The custom operators have fake kernels, like those of attention.py. The functions of `headgate` with the same names do
the computation.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import headgate

from ..operations import Operation
from .autograd import register_operation
from .calls import autocast, check_tensors, checked_options, refuse_transforms, sort_arguments
from .checks import require_bool
from .eager import EagerOperation, Named, RecordedCall
from .errors import call_as, in_words_of
from .transforms import transforms_are_active

SNAPSHOT_LENGTHS = "snapshot_lengths"


class CustomOperation:
    """The operators torch.ops.headgate.NAME and NAME_backward, registered with autograd and torch.compile.

    The functions NAME and NAME_backward of `headgate` compute the results. For operators with a state, NAME_forward
    replaces NAME. `empty_y` and `empty_state` create the results of the fake kernel.

    An operator with a state returns (y, state, snapshots). The state is empty unless keep_state is true. The snapshots
    are empty without snapshot_lengths. torch.autocast casts the inputs in `cast`. It casts those in `cast_unless_f32`
    only if they are not float32.
    """

    def __init__(
        self,
        name: str,
        arguments: Operation,
        empty_y: Callable[..., Tensor],
        empty_state: Callable[..., Tensor] | None = None,
        *,
        cast: tuple[str, ...],
        cast_unless_f32: tuple[str, ...],
    ):
        self.name = name
        self.arguments = arguments
        self.has_state = empty_state is not None
        self._empty_y, self._empty_state = empty_y, empty_state
        self._cast, self._cast_unless_f32 = cast, cast_unless_f32
        self._eager = _EagerCustomOperation(name, arguments, self.has_state, empty_y)
        self._register()

    def _register(self) -> None:
        inputs, settings = self.arguments.schema_of_tensors(), self.arguments.schema_of_options()
        gradients = ", ".join("Tensor d" + name for name in self.arguments.differentiable)
        keep, outputs = (
            (", bool keep_state=False", "(Tensor y, Tensor state, Tensor snapshots)")
            if self.has_state
            else ("", "Tensor")
        )
        dstate = ", Tensor? dstate" if self.has_state else ""
        renames = in_words_of(self.name, {})

        forward = torch.library.custom_op(
            f"headgate::{self.name}",
            renames(self._forward),
            mutates_args=(),
            device_types="cpu",
            schema=f"({inputs}, *, {settings}{keep}) -> {outputs}",
        )
        forward.register_fake(self._fake_forward)

        backward = torch.library.custom_op(
            f"headgate::{self.name}_backward",
            renames(self._backward if self.has_state else self._backward_of_y),
            mutates_args=(),
            device_types="cpu",
            schema=f"(Tensor dy{dstate}, {inputs}, *, bool[] wanted, {settings}) -> ({gradients})",
        )
        backward.register_fake(self._fake_backward)
        own = self.arguments
        self._functional = register_operation(
            self.name, forward, backward, own.tensors, tuple(own.options), own.differentiable, self.has_state
        )

    def _named(self, tensors: tuple[Tensor | None, ...]) -> Named:
        return {name: tensor for name, tensor in zip(self.arguments.tensors, tensors) if tensor is not None}

    def _forward(self, *tensors: Tensor | None, keep_state: bool = False, **options: Any) -> Any:
        named, changed = self._named(tensors), self.arguments.changed(options)
        if not self.has_state:
            return getattr(headgate, self.name)(**named, **changed)
        found = getattr(headgate, self.name + "_forward")(outputs=_outputs(named, keep_state), **named, **changed)
        return found.y, *(tensors[0].new_empty(0) if x is None else x for x in (found.state, found.snapshots))

    def _fake_forward(self, *tensors: Tensor | None, keep_state: bool = False, **options: Any) -> Any:
        named = self._named(tensors)
        y = self._empty_y(named, **options)
        if not self.has_state:
            return y
        state, snapshots = self._empty_state(named, **options), y.new_empty(0)
        if SNAPSHOT_LENGTHS in named:
            snapshots = state.new_empty([state.shape[0] * named[SNAPSHOT_LENGTHS].shape[-1], *state.shape[1:]])
        return y, state if keep_state else y.new_empty(0), snapshots

    def _backward(
        self, dy: Tensor, dstate: Tensor | None, *tensors: Tensor | None, wanted: list[bool], **options: Any
    ) -> tuple[Tensor, ...]:
        states = {} if dstate is None else {"dstate": dstate}
        names = ["d" + name for name, is_wanted in zip(self.arguments.differentiable, wanted) if is_wanted]
        compute = getattr(headgate, self.name + "_backward")
        found = compute(dy, gradients=names, **states, **self._named(tensors), **self.arguments.changed(options))
        gradients = [getattr(found, "d" + name) for name in self.arguments.differentiable]
        return tuple(dy.new_empty(0) if gradient is None else gradient for gradient in gradients)

    def _backward_of_y(self, dy: Tensor, *tensors: Tensor | None, **arguments: Any) -> tuple[Tensor, ...]:
        return self._backward(dy, None, *tensors, **arguments)

    def _fake_backward(
        self, dy: Tensor, *tensors: Tensor | None, wanted: list[bool], **options: Any
    ) -> tuple[Tensor, ...]:
        inputs = dict(zip(self.arguments.tensors, tensors[1:] if self.has_state else tensors))
        return tuple(
            torch.empty_like(inputs[name]) if is_wanted else dy.new_empty(0)
            for name, is_wanted in zip(self.arguments.differentiable, wanted)
        )

    def keywords(self, *positional: str) -> tuple[str, ...]:
        """Returns the names of the public function's keyword-only inputs: all inputs except `positional`."""
        return tuple(name for name in self.arguments.tensors if name not in positional)

    def call(self, given: dict[str, Any], arguments: dict[str, Any], **keep: bool) -> Any:
        """Calls the operator with the tensors `given` and the inputs and options in `arguments`.

        Returns y. With keep_state=True or snapshot_lengths, returns a tuple: y, the state if keep_state is true, the
        snapshots if there are snapshot_lengths.
        """
        keep_state = keep.get("keep_state", False)
        require_bool(self.name, "return_state", keep_state)
        result = self._eager.call(given, arguments, keep_state)
        if result is None:
            return call_as(self.name, {}, self._call_generally, given, arguments, **keep)
        return result

    def _call_generally(self, given: dict[str, Any], arguments: dict[str, Any], **keep: bool) -> Any:
        """Calls the operator through PyTorch's dispatcher (torch.ops.headgate)."""
        tensors = {**dict.fromkeys(self.arguments.tensors), **given}
        options = sort_arguments(self.name, tensors, arguments, self.keywords(*given), self.arguments)
        recorded = torch.is_grad_enabled() and any(isinstance(t, Tensor) and t.requires_grad for t in tensors.values())
        refuse_transforms(self.name, {**tensors, **options}, self.arguments.differentiable)
        check_tensors(self.name, tensors, recorded, self.arguments)
        options = {**self.arguments.defaults(), **checked_options(self.name, options, self.arguments)}
        autocast(tensors, self._cast_unless_f32, self._cast)
        if transforms_are_active():
            result = self._functional.apply({**options, **keep}, *tensors.values())
        else:
            result = getattr(torch.ops.headgate, self.name)(*tensors.values(), **options, **keep)
        return _wanted(result, keep["keep_state"], tensors[SNAPSHOT_LENGTHS] is not None) if self.has_state else result


class _EagerCustomOperation(EagerOperation):
    def __init__(self, name: str, arguments: Operation, has_state: bool, empty_y: Callable[..., Tensor]):
        super().__init__(arguments)
        self._name, self._has_state, self._empty_y = name, has_state, empty_y
        self._y_alone = getattr(headgate, name)
        self._forward = getattr(headgate, name + "_forward", None)
        self._backward = getattr(headgate, name + "_backward")

    def forward(
        self, named: Named, options: dict[str, Any], extra_outputs: bool, recorded: bool
    ) -> tuple[Any, tuple[Any, ...]]:
        keep_state = extra_outputs
        if not keep_state and SNAPSHOT_LENGTHS not in named:
            return self._y_alone(**named, **options), ()
        found = self._forward(outputs=_outputs(named, keep_state), **named, **options)
        return _wanted((found.y, found.state, found.snapshots), keep_state, SNAPSHOT_LENGTHS in named), ()

    def backward(self, recorded: RecordedCall, names: tuple[str, ...]) -> Any:
        dy, dstate = self._incoming(recorded)
        states = {"dstate": dstate} if len(recorded.incoming) == 2 else {}
        return self._backward(dy, gradients=names, **states, **recorded.named, **recorded.options)

    def general_backward(self, recorded: RecordedCall, wanted: tuple[str, ...]) -> dict[str, Tensor]:
        dy, dstate = self._incoming(recorded)
        states = [dstate] if self._has_state else []
        inputs, settings = self.all_arguments(recorded, wanted)
        compute = getattr(torch.ops.headgate, self._name + "_backward")
        return dict(zip(self.arguments.differentiable, compute(dy, *states, *inputs, **settings)))

    def _incoming(self, recorded: RecordedCall) -> tuple[Tensor, Tensor | None]:
        """Returns dy and the gradient of the state. An absent dy is replaced by zeros. The gradient of the state may be
        None.
        """
        dy, dstate = recorded.incoming if len(recorded.incoming) == 2 else (*recorded.incoming, None)
        return self._empty_y(recorded.named, **recorded.options).zero_() if dy is None else dy, dstate


def _outputs(named: Named, keep_state: bool) -> list[str]:
    """Returns the names of the results that NAME_forward must compute."""
    return ["y"] + ["state"] * keep_state + ["snapshots"] * (SNAPSHOT_LENGTHS in named)


def _wanted(result: tuple[Any, Any, Any], keep_state: bool, snapshots: bool) -> Any:
    """Returns y, or a tuple of y and the wanted states: the state, the snapshots, or both."""
    y, *states = result
    wanted = [state for state, keep in zip(states, (keep_state, snapshots)) if keep]
    return (y, *wanted) if wanted else y


def lengths_for(what: str, x: Tensor, lengths: Any) -> Any:
    """Returns snapshot lengths as a tensor on x's device.

    Converts a list of integers to one row that applies to all sequences. Errors name the function `what`.
    """
    if not isinstance(lengths, (list, tuple)):
        return lengths
    for length in lengths:
        if not isinstance(length, (int, torch.SymInt)):
            found = f"a {type(lengths).__name__} with a {type(length).__name__}"
            raise TypeError(f"{what}: {SNAPSHOT_LENGTHS} is {found} but must be a tensor or a list of integers")
    return torch.tensor([lengths], dtype=torch.int64, device=x.device if isinstance(x, Tensor) else None)


def sequences_of(named: Named, batch: int) -> int:
    """Returns the number of sequences of a call. Without cu_seqlens, this is `batch`."""
    return named["cu_seqlens"].shape[0] - 1 if "cu_seqlens" in named else batch
