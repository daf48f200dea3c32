# SPDX-License-Identifier: Apache-2.0
"""Lists the arguments of the operations, read from the tables of libheadgate's core: attention_tensors.hpp,
attention_options.hpp, linear_attention_rows.hpp, short_convolution_rows.hpp and gated_norm_rows.hpp.

Functions take arguments as keywords and use these lists to tell tensors from options. A new argument is a new row in a
table, and needs no change here.
"""

import inspect
import warnings
from collections.abc import Callable, Collection, Iterable
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from headgate import _headgate


class Option(NamedTuple):
    """Describes an option of an operation: `type` and `default` in the operator schema, the `part` of the operation
    that it changes, such as "scores", whether it is for forward passes only, and the `annotation` for type checkers."""

    type: str
    default: Any
    part: str
    forward_only: bool
    annotation: str


class Operation:
    """Describes the arguments of an operation: the names of its tensors, and its options by name."""

    def __init__(self, rows: dict[str, Any]):
        inputs = rows["inputs"]
        self.required = tuple(name for name, required, _ in inputs if required)
        self.optional = tuple(name for name, required, _ in inputs if not required)
        self.tensors = self.required + self.optional
        self.forward_only = tuple(name for name, _, forward_only in inputs if forward_only)
        """Inputs that only forward passes support. A call with one of them has no gradients."""
        self.differentiable = tuple(rows["gradients"])
        """Inputs with a gradient, in the order in which the backward pass returns the gradients."""
        self.options = {"layout": Option("str", "bhtd", "layout", False, rows["layout"])} if rows["layout"] else {}
        self.options |= {name: Option(*option) for name, *option in rows["options"]}

    def schema_of_tensors(self) -> str:
        """Returns the inputs as text of a PyTorch operator schema."""
        return ", ".join(
            [f"Tensor {name}" for name in self.required] + [f"Tensor? {name}=None" for name in self.optional]
        )

    def schema_of_options(self) -> str:
        """Returns the options as text of a PyTorch operator schema."""
        return ", ".join(f"{option.type} {name}={_literal(option.default)}" for name, option in self.options.items())

    def changed(self, options: dict[str, Any]) -> dict[str, Any]:
        """Returns those of the given options that differ from their defaults."""
        return {name: value for name, value in options.items() if value != self.options[name].default}

    def defaults(self) -> dict[str, Any]:
        """Returns the default of each option."""
        return {name: option.default for name, option in self.options.items()}


def _literal(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)


ATTENTION = Operation(_headgate._rows)
LINEAR_ATTENTION = Operation(_headgate._linear_rows)
SHORT_CONVOLUTION = Operation(_headgate._convolution_rows)
GATED_NORM = Operation(_headgate._norm_rows)

REQUIRED, OPTIONAL, TENSORS = ATTENTION.required, ATTENTION.optional, ATTENTION.tensors
FORWARD_ONLY, DIFFERENTIABLE, OPTIONS = ATTENTION.forward_only, ATTENTION.differentiable, ATTENTION.options


def options_of(part: str) -> tuple[str, ...]:
    """Returns the names of the options of `part` ("scores", "gate", …) that the backward pass takes too."""
    return tuple(name for name, option in OPTIONS.items() if option.part == part and not option.forward_only)


ADDED = ("gate_fn", "gate_op", "sinks", "softcap", "precision", "threads")
"""Arguments of gated_attention that Headgate's versions of PyTorch functions accept in addition to the gate."""


def require_known(what: str, given: Iterable[str], names: Collection[str], named: Collection[str] = ()) -> None:
    """Raises TypeError, like Python does, if a keyword of `given` is not in `names`. The message names the function
    `what` and suggests a similar name from `names` and `named`."""
    for name in given:
        if name not in names:
            raise TypeError(unexpected(what, name, [*names, *named]))


def unexpected(what: str, name: str, known: Iterable[str]) -> str:
    """Returns Python's error message for an unexpected argument `name` of the function `what`. Adds a suggestion from
    the names `known`, except in compiled programs."""
    meant = "" if torch.compiler.is_compiling() else _headgate._meant_instead_of(name, list(known))
    return f"{what}() got an unexpected keyword argument '{name}'{meant}"


def take_old_name(what: str, given: dict[str, Any], old: str, new: str, value: Any) -> Any:
    """Returns the value of the argument `old`, the deprecated name of `new` in the function `what`. Removes `old` from
    the keywords `given`, and issues a DeprecationWarning. `value` is the value of `new` in the same call; raises
    TypeError unless it is None."""
    if value is not None:
        raise TypeError(f"{what}() got both {new} and {old}, its old name")
    warnings.warn(f"{what}: {old} is an old name of {new}", DeprecationWarning, stacklevel=3)
    return given.pop(old)


TYPES = {"str": str, "int": int, "float": float, "float?": float | None}
"""Maps types in an operator schema to Python types."""


def _parameter(name: str, operation: Operation) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    if name in operation.tensors:
        return inspect.Parameter(name, kind, default=None, annotation=Tensor | None)
    if name == "threads":  # callers pass None where the schema has 0
        return inspect.Parameter(name, kind, default=None, annotation=int | None)
    option = operation.options[name]
    return inspect.Parameter(name, kind, default=option.default, annotation=TYPES[option.type])


Function = TypeVar("Function", bound=Callable[..., Any])


def takes(*names: str, operation: Operation = ATTENTION) -> Callable[[Function], Function]:
    """Decorates a function whose last parameter is **arguments. help() then shows the parameters `names` in place of
    **arguments."""

    def decorate(function: Function) -> Function:
        parameters = list(inspect.signature(function).parameters.values())[:-1]
        by_name = (i for i, parameter in enumerate(parameters) if parameter.kind == inspect.Parameter.KEYWORD_ONLY)
        first = next(by_name, len(parameters))
        parameters[first:first] = [_parameter(name, operation) for name in names]
        signature = inspect.signature(function).replace(parameters=parameters)
        function.__signature__ = signature  # type: ignore[attr-defined]
        return function

    return decorate
