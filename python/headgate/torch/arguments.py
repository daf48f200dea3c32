# SPDX-License-Identifier: Apache-2.0
"""The arguments of attention by the rows of libheadgate: attention_tensors.hpp, attention_options.hpp of its core.

gated_attention and ring_attention take theirs as keywords and sort them by these lists, so that an argument is a row
there and nothing here.
"""

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor

from headgate import _headgate


class Option(NamedTuple):
    """An option of the operation: its type in the schema, its default, and the part of the operation it changes."""

    type: str
    default: Any
    part: str
    forward_only: bool


_inputs = _headgate._rows["inputs"]

REQUIRED = tuple(name for name, required, _ in _inputs if required)
OPTIONAL = tuple(name for name, required, _ in _inputs if not required)
TENSORS = REQUIRED + OPTIONAL
FORWARD_ONLY = tuple(name for name, _, forward_only in _inputs if forward_only)
"""With these there are no gradients at all."""
DIFFERENTIABLE = tuple(_headgate._rows["gradients"])
"""The inputs that have a gradient, in the order in which the backward pass returns them."""

OPTIONS = {"layout": Option("str", "bhtd", "layout", False)}
OPTIONS |= {name: Option(*option) for name, *option in _headgate._rows["options"]}


def options_of(part: str) -> tuple[str, ...]:
    """The options of a part of the operation that are for forward and backward passes."""
    return tuple(name for name, option in OPTIONS.items() if option.part == part and not option.forward_only)


_TYPES = {"str": str, "int": int, "float": float, "float?": float | None}


def _parameter(name: str) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    if name in TENSORS:
        return inspect.Parameter(name, kind, default=None, annotation=Tensor | None)
    if name == "threads":  # 0 in the schema
        return inspect.Parameter(name, kind, default=None, annotation=int | None)
    return inspect.Parameter(name, kind, default=OPTIONS[name].default, annotation=_TYPES[OPTIONS[name].type])


def takes(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorates a function whose last parameter, **arguments, takes arguments of these names: help() shows them."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        parameters = list(inspect.signature(function).parameters.values())[:-1]
        first = next(i for i, parameter in enumerate(parameters) if parameter.kind == inspect.Parameter.KEYWORD_ONLY)
        parameters[first:first] = map(_parameter, names)
        function.__signature__ = inspect.signature(function).replace(parameters=parameters)
        return function

    return decorate
