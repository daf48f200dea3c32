# SPDX-License-Identifier: Apache-2.0
"""Registers the gated norm as the PyTorch operator torch.ops.headgate.gated_norm, and defines the public function."""

from typing import TYPE_CHECKING, Any, Unpack, cast

import torch
from torch import Tensor

from ..operations import GATED_NORM
from .arguments import takes
from .backends import backend_of
from .gates import detach_unused
from .operation import CustomOperation, Named

if TYPE_CHECKING:
    from headgate._arguments import NormArguments

NAME = "gated_norm"


def _empty_y(named: Named, **_: Any) -> Tensor:
    return torch.empty_like(named["x"])


_OPERATION = CustomOperation(NAME, GATED_NORM, _empty_y, cast=("x",), cast_unless_f32=("weight", "gate"))


@takes(*_OPERATION.keywords("x", "weight", "gate"), *GATED_NORM.options, operation=GATED_NORM)
def gated_norm(
    x: Tensor, weight: Tensor | None = None, gate: Tensor | None = None, **arguments: "Unpack[NormArguments]"
) -> Tensor:
    """Computes x / sqrt(mean(x^2) + eps) * weight * g(gate) for each row, with gradients.

    The arguments are those of headgate.gated_norm, as CPU tensors with any strides. No tensor is copied. Returns y,
    with x's shape and dtype. x, weight and gate have gradients. torch.autocast casts x, and also weight and gate unless
    they are float32. Triton kernels compute GPU tensors (docs/reference/pytorch.md). Raises ValueError with a one-line
    message for invalid arguments.
    """
    others = cast("dict[str, Any]", arguments)
    given = {"x": x, "weight": weight, "gate": detach_unused(gate, others)}
    backend = backend_of(x)
    if backend is not None:
        return backend.gated_norm(given, others)
    return _OPERATION.call(given, others)
