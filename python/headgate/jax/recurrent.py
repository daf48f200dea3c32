# SPDX-License-Identifier: Apache-2.0
"""Code shared by linear attention and the short convolution, which both return y and states."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from ..operations import Operation
from .arguments import checked, flag, take
from .call import Call
from .differentiable import compute


def call_with_states(
    what: str,
    operation: Operation,
    given: dict[str, Any],
    arguments: dict[str, Any],
    snapshot_lengths: Any,
    return_state: bool,
) -> Array | tuple[Array, ...]:
    """Calls the operation `what` and returns y.

    If return_state is true or snapshot_lengths are given, returns a tuple: y, the state if asked for, the snapshots if
    asked for.
    """
    if snapshot_lengths is not None:
        given["snapshot_lengths"] = _lengths(what, snapshot_lengths)
    arrays, options = take(what, operation, given, arguments)
    outputs = (
        "y",
        *["state"] * flag(what, "return_state", return_state),
        *["snapshots"] * (snapshot_lengths is not None),
    )
    call = Call(what, tuple(sorted(options.items())), outputs)
    found = compute(call, checked(call, arrays))
    results = [found[name] for name in outputs]
    return tuple(results) if len(results) > 1 else results[0]


def _lengths(what: str, lengths: Array | Sequence[int]) -> Any:
    """Returns snapshot lengths as an array. Converts a list of integers to one row that applies to all sequences."""
    if not isinstance(lengths, list | tuple):
        return lengths
    for length in lengths:
        if not isinstance(length, int | np.integer) or isinstance(length, bool):
            found = f"a {type(lengths).__name__} with a {type(length).__name__}"
            raise TypeError(f"{what}: snapshot_lengths is {found} but must be an array or a list of integers")
        if not 0 <= length < 2**31:
            raise ValueError(f"{what}: snapshot_lengths contains {length} but a length must be 0 to the sequence's")
    return jnp.asarray(np.asarray([lengths], np.int32))
