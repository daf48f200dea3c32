# SPDX-License-Identifier: Apache-2.0
"""The gated norm as an operation of PyTorch: torch.ops.headgate.gated_norm, and its function."""

from typing import TYPE_CHECKING, Any, Unpack, cast

from torch import Tensor

from . import gpu
from .arguments import GATED_NORM, takes
from .operation import CustomOperation, Named

if TYPE_CHECKING:
    from headgate._arguments import NormArguments

NAME = "gated_norm"


def _empty_y(named: Named, **_: Any) -> Tensor:
    return named["x"].new_empty(named["x"].shape)


_OPERATION = CustomOperation(NAME, GATED_NORM, _empty_y, cast=("x",), cast_unless_f32=("weight", "gate"))


@takes(*_OPERATION.keywords("x", "weight", "gate"), *GATED_NORM.options, operation=GATED_NORM)
def gated_norm(
    x: Tensor, weight: Tensor | None = None, gate: Tensor | None = None, **arguments: "Unpack[NormArguments]"
) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight * g(gate) of each row, with gradients.

    The arguments are those of headgate.gated_norm, as tensors of the CPU with any strides; none is copied. Returns y,
    of x's shape and dtype. x, weight and gate have gradients. Under torch.autocast x is cast to its dtype, and weight
    and gate where they are not float32. Tensors on a GPU go to kernels in Triton (docs/reference/pytorch.md). Raises
    ValueError, in one line, on arguments that do not fit.
    """
    # A gate that is not applied has no gradient.
    read = gate if arguments.get("gate_fn") != "none" else None
    given, others = {"x": x, "weight": weight, "gate": read}, cast("dict[str, Any]", arguments)
    if getattr(x, "is_cuda", False):
        return gpu.gated_norm(given, others)
    return _OPERATION.call(given, others)
