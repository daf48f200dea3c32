# SPDX-License-Identifier: Apache-2.0
"""The short convolution for JAX."""

from collections.abc import Sequence
from typing import Any

from jax import Array

from ..operations import SHORT_CONVOLUTION
from .arguments import takes
from .recurrent import call_with_states

NAME = "short_convolution"


@takes(SHORT_CONVOLUTION)
def short_convolution(
    x: Array,
    weight: Array,
    bias: Array | None = None,
    *,
    snapshot_lengths: Array | Sequence[int] | None = None,
    return_state: bool = False,
    **arguments: Any,
) -> Array | tuple[Array, ...]:
    """Computes the causal depthwise convolution that precedes gated linear attention, with its activation and
    gradients.

    The arguments are those of headgate.short_convolution, as arrays of JAX or NumPy. Returns y, with x's shape and
    dtype. With return_state, also returns the last K-1 rows of x (N,K-1,C). That state is differentiable, and is the
    argument `state` of the call for the next tokens.

    With snapshot_lengths, also returns snapshots (N*M,K-1,C): states after these numbers of tokens. Row n*M + m is the
    state of sequence n after entry [n,m]. The lengths are an array (N|1,M), or M numbers for every sequence, in
    non-decreasing order. Calls with snapshots are not differentiated.

    x, weight, bias and state have gradients. CPUs compute the call by libheadgate, other devices by jax.numpy
    (docs/reference/jax.md). Raises ValueError with a one-line message if shapes, dtypes or options are invalid.
    """
    given = {"x": x, "weight": weight, "bias": bias}
    return call_with_states(NAME, SHORT_CONVOLUTION, given, arguments, snapshot_lengths, return_state)
