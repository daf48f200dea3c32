# SPDX-License-Identifier: Apache-2.0
"""Gated linear attention for JAX."""

from collections.abc import Sequence
from typing import Any

from jax import Array

from ..operations import LINEAR_ATTENTION
from .arguments import takes
from .recurrent import call_with_states

NAME = "linear_attention"


@takes(LINEAR_ATTENTION)
def linear_attention(
    q: Array,
    k: Array,
    v: Array,
    decay: Array | None = None,
    beta: Array | None = None,
    *,
    snapshot_lengths: Array | Sequence[int] | None = None,
    return_state: bool = False,
    **arguments: Any,
) -> Array | tuple[Array, ...]:
    """Computes gated linear attention with the delta rule, the recurrence of Gated DeltaNet, with gradients.

    The arguments are those of headgate.linear_attention, as arrays of JAX or NumPy. Returns y in q's dtype. With
    return_state, also returns the state after the last token (N,Hv,D,Dv). That state is differentiable, and is the
    argument `state` of the call for the next tokens.

    With snapshot_lengths, also returns snapshots (N*M,Hv,D,Dv): states after these numbers of tokens. Row n*M + m is
    the state of sequence n after entry [n,m]. The lengths are an array (N|1,M), or M numbers for every sequence, in
    non-decreasing order. Calls with snapshots are not differentiated.

    q, k, v, decay, beta and state have gradients. CPUs compute the call by libheadgate, other devices by jax.numpy
    (docs/reference/jax.md). Raises ValueError with a one-line message if shapes, dtypes or options are invalid.
    """
    given = {"q": q, "k": k, "v": v, "decay": decay, "beta": beta}
    return call_with_states(NAME, LINEAR_ATTENTION, given, arguments, snapshot_lengths, return_state)
