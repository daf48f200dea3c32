# SPDX-License-Identifier: Apache-2.0
"""Computes the operations on platforms other than CPUs."""

from typing import TYPE_CHECKING, Any, NoReturn

import jax
from jax.extend.core import Primitive
from jax.interpreters import mlir

if TYPE_CHECKING:
    from .calls import Arrays, Call

_cpu_only = Primitive("headgate_cpu_only")
_cpu_only.multiple_results = True


@_cpu_only.def_abstract_eval
def _(*_: Any, message: str, results: tuple[Any, ...]) -> list[Any]:
    return [jax.core.ShapedArray(x.shape, x.dtype, manual_axis_type=x.manual_axis_type) for x in results]


def _refuse(*_: Any, message: str, results: tuple[Any, ...]) -> NoReturn:
    raise NotImplementedError(message)


_cpu_only.def_impl(_refuse)
mlir.register_lowering(_cpu_only, _refuse)


def forward(call: "Call", inputs: "Arrays") -> "Arrays":
    from .calls import forward_results

    found = forward_results(call, inputs)
    message = f"{call.operation}: runs on CPUs only"
    return dict(zip(found, _cpu_only.bind(*inputs.values(), message=message, results=tuple(found.values()))))


def backward(call: "Call", incoming: "Arrays", saved: "Arrays", inputs: "Arrays") -> "Arrays":
    from .calls import backward_results

    found = backward_results(call, inputs)
    message = f"{call.operation}: runs on CPUs only"
    return dict(zip(found, _cpu_only.bind(*inputs.values(), message=message, results=tuple(found.values()))))
