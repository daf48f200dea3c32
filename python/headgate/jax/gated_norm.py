# SPDX-License-Identifier: Apache-2.0
"""The gated norm for JAX."""

from typing import Any

from jax import Array

from ..operations import GATED_NORM
from .arguments import checked, take, takes
from .call import Call
from .differentiable import compute

NAME = "gated_norm"


@takes(GATED_NORM)
def gated_norm(x: Array, weight: Array | None = None, gate: Array | None = None, **arguments: Any) -> Array:
    """Computes x / sqrt(mean(x^2) + eps) * weight * g(gate) for each row, with gradients.

    The arguments are those of headgate.gated_norm, as arrays of JAX or NumPy. Returns y, with x's shape and dtype. x,
    weight and gate have gradients. CPUs compute the call with libheadgate, other devices with jax.numpy
    (docs/reference/jax.md). Raises ValueError with a one-line message if shapes, dtypes or options are invalid.
    """
    arrays, options = take(NAME, GATED_NORM, {"x": x, "weight": weight, "gate": gate}, arguments)
    call = Call(NAME, tuple(sorted(options.items())))
    arrays = checked(call, arrays)
    if options.get("gate_fn") == "none":
        arrays.pop("gate", None)  # with gate_fn "none", the call ignores the gate
    return compute(call, arrays)["y"]
