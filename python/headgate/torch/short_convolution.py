# SPDX-License-Identifier: Apache-2.0
"""Registers the short convolution as the PyTorch operator torch.ops.headgate.short_convolution, and defines the public
function."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

import torch
from torch import Tensor

from ..operations import SHORT_CONVOLUTION
from .arguments import takes
from .backends import backend_of
from .operation import SNAPSHOT_LENGTHS, CustomOperation, Named, lengths_for, sequences_of

if TYPE_CHECKING:
    from headgate._arguments import ConvolutionArguments

NAME = "short_convolution"


def _empty_y(named: Named, **_: Any) -> Tensor:
    return torch.empty_like(named["x"])


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
    snapshot_lengths: None = None,
    return_state: Literal[False] = False,
    **arguments: "Unpack[ConvolutionArguments]",
) -> Tensor: ...
@overload
def short_convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    snapshot_lengths: None = None,
    return_state: Literal[True],
    **arguments: "Unpack[ConvolutionArguments]",
) -> tuple[Tensor, Tensor]: ...
@overload
def short_convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    snapshot_lengths: Tensor | Sequence[int],
    return_state: Literal[False] = False,
    **arguments: "Unpack[ConvolutionArguments]",
) -> tuple[Tensor, Tensor]: ...
@overload
def short_convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    snapshot_lengths: Tensor | Sequence[int],
    return_state: Literal[True],
    **arguments: "Unpack[ConvolutionArguments]",
) -> tuple[Tensor, Tensor, Tensor]: ...
@takes(
    *_OPERATION.keywords("x", "weight", "bias", SNAPSHOT_LENGTHS),
    *SHORT_CONVOLUTION.options,
    operation=SHORT_CONVOLUTION,
)
def short_convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    snapshot_lengths: Tensor | Sequence[int] | None = None,
    return_state: bool = False,
    **arguments: Any,
) -> Tensor | tuple[Tensor, ...]:
    """Computes the causal depthwise convolution that precedes gated linear attention, with its activation and
    gradients.

    The arguments are those of headgate.short_convolution, as CPU tensors with any strides. No tensor is copied. For the
    weight of a torch.nn.Conv1d, pass weight[:, 0]. Returns y, with x's shape and dtype. With return_state, also returns
    the last K-1 rows of x (N,K-1,C). The state is differentiable. The call for the next tokens takes it as `state`.

    snapshot_lengths (N|1,M) holds numbers of tokens, in non-decreasing order. A list of M numbers applies to every
    sequence. The call then also returns snapshots (N*M,K-1,C). Row n*M + m is the state of sequence n after its first
    snapshot_lengths[n,m] tokens. Calls with snapshots have no gradients. Make them under torch.no_grad(), or with
    inputs that require no gradient.

    x, weight, bias and state have gradients. torch.autocast casts x, and also weight, bias and state unless they are
    float32. Triton kernels compute GPU tensors (docs/reference/pytorch.md). Raises ValueError with a one-line message
    for invalid arguments.
    """
    given = {"x": x, "weight": weight, "bias": bias}
    if snapshot_lengths is not None:
        arguments[SNAPSHOT_LENGTHS] = lengths_for(NAME, x, snapshot_lengths)
    backend = backend_of(x)
    if backend is not None:
        return backend.short_convolution(given, arguments, return_state)
    return _OPERATION.call(given, arguments, keep_state=return_state)
