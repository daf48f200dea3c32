# SPDX-License-Identifier: Apache-2.0
"""Registers gated linear attention as the PyTorch operator torch.ops.headgate.linear_attention, and defines the public
function."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

import torch
from torch import Tensor

from ..operations import LINEAR_ATTENTION
from . import observers
from .arguments import takes
from .backends import backend_of
from .calls import empty_output
from .operation import SNAPSHOT_LENGTHS, CustomOperation, Named, lengths_for, sequences_of

if TYPE_CHECKING:
    from headgate._arguments import LinearArguments

NAME = "linear_attention"
L2_NORM_EPS = 1e-6
"""Value of `l2_norm` in Gated DeltaNet. Functions of transformers use it if use_qk_l2norm_in_kernel is true."""


def _empty_y(named: Named, layout: str = "bhtd", **_: Any) -> Tensor:
    q, v = named["q"], named["v"]
    heads = -3 if layout == "bhtd" else -2
    shape = list(q.shape)
    shape[heads], shape[-1] = max(q.shape[heads], v.shape[heads]), v.shape[-1]
    return empty_output(q, shape)


def _empty_state(named: Named, layout: str = "bhtd", **_: Any) -> Tensor:
    q, v = named["q"], named["v"]
    heads = -3 if layout == "bhtd" else -2
    sequences = sequences_of(named, q.shape[0] if q.dim() == 4 else 1)
    dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
    return q.new_empty([sequences, v.shape[heads], q.shape[-1], v.shape[-1]], dtype=dtype)


_OPERATION = CustomOperation(
    NAME, LINEAR_ATTENTION, _empty_y, _empty_state, cast=("q", "k", "v"), cast_unless_f32=("decay", "beta")
)


@overload
def linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor | None = None,
    beta: Tensor | None = None,
    *,
    snapshot_lengths: None = None,
    return_state: Literal[False] = False,
    **arguments: "Unpack[LinearArguments]",
) -> Tensor: ...
@overload
def linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor | None = None,
    beta: Tensor | None = None,
    *,
    snapshot_lengths: None = None,
    return_state: Literal[True],
    **arguments: "Unpack[LinearArguments]",
) -> tuple[Tensor, Tensor]: ...
@overload
def linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor | None = None,
    beta: Tensor | None = None,
    *,
    snapshot_lengths: Tensor | Sequence[int],
    return_state: Literal[False] = False,
    **arguments: "Unpack[LinearArguments]",
) -> tuple[Tensor, Tensor]: ...
@overload
def linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor | None = None,
    beta: Tensor | None = None,
    *,
    snapshot_lengths: Tensor | Sequence[int],
    return_state: Literal[True],
    **arguments: "Unpack[LinearArguments]",
) -> tuple[Tensor, Tensor, Tensor]: ...
@takes(
    *_OPERATION.keywords("q", "k", "v", "decay", "beta", SNAPSHOT_LENGTHS),
    *LINEAR_ATTENTION.options,
    operation=LINEAR_ATTENTION,
)
def linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor | None = None,
    beta: Tensor | None = None,
    *,
    snapshot_lengths: Tensor | Sequence[int] | None = None,
    return_state: bool = False,
    **arguments: Any,
) -> Tensor | tuple[Tensor, ...]:
    """Computes gated linear attention with the delta rule, the recurrence of Gated DeltaNet, with gradients.

    The arguments are those of headgate.linear_attention, as CPU tensors with any strides. No tensor is copied. Returns
    y in q's dtype. With return_state, also returns the state after the last token (N,Hv,D,Dv). The state is
    differentiable. The call for the next tokens takes it as `state`.

    snapshot_lengths (N|1,M) holds numbers of tokens, in non-decreasing order. A list of M numbers applies to every
    sequence. The call then also returns snapshots (N*M,Hv,D,Dv). Row n*M + m is the state of sequence n after its first
    snapshot_lengths[n,m] tokens. Calls with snapshots have no gradients. Make them under torch.no_grad(), or with
    inputs that require no gradient.

    q, k, v, decay, beta and state have gradients. torch.autocast casts q, k and v, and also decay and beta unless they
    are float32. Triton kernels compute GPU tensors. They support fewer arguments (docs/reference/pytorch.md). Raises
    ValueError with a one-line message for invalid arguments.
    """
    given = {"q": q, "k": k, "v": v, "decay": decay, "beta": beta}
    if snapshot_lengths is not None:
        arguments[SNAPSHOT_LENGTHS] = lengths_for(NAME, q, snapshot_lengths)
    for observer in observers.LINEAR_ATTENTION:
        observer(given, arguments)
    backend = backend_of(q)
    if backend is not None:
        return backend.linear_attention(given, arguments, return_state)
    return _OPERATION.call(given, arguments, keep_state=return_state)
