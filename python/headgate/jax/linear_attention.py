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
    return_state, also returns the state after the last token (N,Hv,D,Dv). The state is differentiable. The call for the
    next tokens takes it as `state`.

    snapshot_lengths (N|1,M) holds numbers of tokens, in non-decreasing order. A list of M numbers applies to every
    sequence. The call then also returns snapshots (N*M,Hv,D,Dv). Row n*M + m is the state of sequence n after its first
    snapshot_lengths[n,m] tokens. Calls with snapshots have no gradients.

    q, k, v, decay, beta and state have gradients. CPUs compute the call with libheadgate, other devices with jax.numpy
    (docs/reference/jax.md). Raises ValueError with a one-line message if shapes, dtypes or options are invalid.
    """
    given = {"q": q, "k": k, "v": v, "decay": decay, "beta": beta}
    return call_with_states(NAME, LINEAR_ATTENTION, given, arguments, snapshot_lengths, return_state)
