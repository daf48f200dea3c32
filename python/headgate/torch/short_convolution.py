# SPDX-License-Identifier: Apache-2.0
"""The short convolution as an operation of PyTorch: torch.ops.headgate.short_convolution, and its function."""

from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

from torch import Tensor

from . import gpu
from .arguments import SHORT_CONVOLUTION, takes
from .operation import CustomOperation, Named, sequences_of

if TYPE_CHECKING:
    from headgate._arguments import ConvolutionArguments

NAME = "short_convolution"


def _empty_y(named: Named, **_: Any) -> Tensor:
    return named["x"].new_empty(named["x"].shape)


def _empty_state(named: Named, **_: Any) -> Tensor:
    x, taps = named["x"], named["weight"].shape[-1]
    sequences = sequences_of(named, x.shape[0] if x.dim() == 3 else 1)
    return named.get("state", x).new_empty([sequences, taps - 1, x.shape[-1]])


_OPERATION = CustomOperation(
    NAME, SHORT_CONVOLUTION, _empty_y, _empty_state, cast=("x",), cast_unless_f32=("weight", "bias", "state")
)


@overload
def short_convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    return_state: Literal[False] = False,
    **arguments: "Unpack[ConvolutionArguments]",
) -> Tensor: ...
@overload
def short_convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    return_state: Literal[True],
    **arguments: "Unpack[ConvolutionArguments]",
) -> tuple[Tensor, Tensor]: ...
@takes(*_OPERATION.keywords("x", "weight", "bias"), *SHORT_CONVOLUTION.options, operation=SHORT_CONVOLUTION)
def short_convolution(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, return_state: bool = False, **arguments: Any
) -> Tensor | tuple[Tensor, Tensor]:
    """The causal depthwise convolution that stands before gated linear attention, with its activation and gradients.

    The arguments are those of headgate.short_convolution, as tensors of the CPU with any strides; none is copied. The
    weight of a torch.nn.Conv1d is weight[:, 0] here. Returns y, of x's shape and dtype; with return_state also the last
    K-1 rows of x (N,K-1,C), which have a gradient too and are the `state` of the call for the next tokens. x, weight,
    bias and state have gradients. Under torch.autocast x is cast to its dtype, and weight, bias and state where they
    are not float32. Tensors on a GPU go to kernels in Triton (docs/reference/pytorch.md). Raises ValueError, in one
    line, on arguments that do not fit.
    """
    given = {"x": x, "weight": weight, "bias": bias}
    if getattr(x, "is_cuda", False):
        return gpu.short_convolution(given, arguments, return_state)
    return _OPERATION.call(given, arguments, keep_state=return_state)
