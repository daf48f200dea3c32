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
    dtype. With return_state, also returns the last K-1 rows of x (N,K-1,C). The state is differentiable. The call for
    the next tokens takes it as `state`.

    snapshot_lengths (N|1,M) holds numbers of tokens, in non-decreasing order. A list of M numbers applies to every
    sequence. The call then also returns snapshots (N*M,K-1,C). Row n*M + m is the state of sequence n after its first
    snapshot_lengths[n,m] tokens. Calls with snapshots have no gradients.

    x, weight, bias and state have gradients. CPUs compute the call with libheadgate, other devices with jax.numpy
    (docs/reference/jax.md). Raises ValueError with a one-line message if shapes, dtypes or options are invalid.
    """
    given = {"x": x, "weight": weight, "bias": bias}
    return call_with_states(NAME, SHORT_CONVOLUTION, given, arguments, snapshot_lengths, return_state)
