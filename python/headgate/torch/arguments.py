# SPDX-License-Identifier: Apache-2.0
"""Helps functions to accept the arguments of the operations (headgate/operations.py) as keywords."""

import inspect
import warnings
from collections.abc import Callable, Collection, Iterable
from typing import Any, TypeVar

import torch
from torch import Tensor

from headgate import _headgate

from ..operations import ATTENTION, OPTION_TYPES, Operation

REQUIRED, OPTIONAL, TENSORS = ATTENTION.required, ATTENTION.optional, ATTENTION.tensors
FORWARD_ONLY, DIFFERENTIABLE, OPTIONS = ATTENTION.forward_only, ATTENTION.differentiable, ATTENTION.options


def options_of(part: str) -> tuple[str, ...]:
    """Returns the names of the options that change `part` of the operation, such as "scores" or "gate".

    Options that only the forward pass supports are left out.
    """
    return tuple(name for name, option in OPTIONS.items() if option.part == part and not option.forward_only)


ADDED = ("gate_fn", "gate_op", "sinks", "softcap", "precision", "threads")
"""Arguments of gated_attention that Headgate's replacements of PyTorch functions accept in addition to the gate."""


def require_known(what: str, given: Iterable[str], names: Collection[str], named: Collection[str] = ()) -> None:
    """Raises TypeError, as Python does, if a keyword in `given` is not in `names`.

    The message names the function `what` and suggests a similar name from `names` and `named`.
    """
    for name in given:
        if name not in names:
            raise TypeError(unexpected(what, name, [*names, *named]))


def unexpected(what: str, name: str, known: Iterable[str]) -> str:
    """Returns Python's error message for an unexpected argument `name` of the function `what`.

    Adds a suggestion from the names `known`, except in compiled programs.
    """
    meant = "" if torch.compiler.is_compiling() else _headgate._meant_instead_of(name, list(known))
    return f"{what}() got an unexpected keyword argument '{name}'{meant}"


def take_old_name(what: str, given: dict[str, Any], old: str, new: str, value: Any) -> Any:
    """Removes the deprecated argument `old` from the keywords `given` and returns its value. Issues a
    DeprecationWarning.

    `new` is the argument's current name in the function `what`. `value` is the value of `new` in the same call. Raises
    TypeError if `value` is not None, since the call then passes both names.
    """
    if value is not None:
        raise TypeError(f"{what}() got both {new} and {old}, its old name")
    warnings.warn(f"{what}: {old} is an old name of {new}", DeprecationWarning, stacklevel=3)
    return given.pop(old)


def _parameter(name: str, operation: Operation) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    if name in operation.tensors:
        return inspect.Parameter(name, kind, default=None, annotation=Tensor | None)
    if name == "threads":  # callers pass None, which the operator's schema stores as 0
        return inspect.Parameter(name, kind, default=None, annotation=int | None)
    option = operation.options[name]
    return inspect.Parameter(name, kind, default=option.default, annotation=OPTION_TYPES[option.type])


Function = TypeVar("Function", bound=Callable[..., Any])


def takes(*names: str, operation: Operation = ATTENTION) -> Callable[[Function], Function]:
    """Decorates a function whose last parameter is **arguments. help() then lists the parameters `names` instead."""

    def decorate(function: Function) -> Function:
        parameters = list(inspect.signature(function).parameters.values())[:-1]
        by_name = (i for i, parameter in enumerate(parameters) if parameter.kind == inspect.Parameter.KEYWORD_ONLY)
        first = next(by_name, len(parameters))
        parameters[first:first] = [_parameter(name, operation) for name in names]
        signature = inspect.signature(function).replace(parameters=parameters)
        function.__signature__ = signature  # type: ignore[attr-defined]
        return function

    return decorate
