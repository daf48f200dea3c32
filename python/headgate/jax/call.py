# SPDX-License-Identifier: Apache-2.0
"""Describes a call of an operation: its options, its outputs and gradients, and their shapes."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

try:
    from .. import _jax
except ImportError as error:
    raise ImportError(
        "headgate.jax: this build of the package has no handlers for JAX: build it with jaxlib installed, whose headers "
        "it needs"
    ) from error

Arrays = dict[str, Array]
Results = dict[str, tuple[tuple[int, ...], np.dtype]]

SEED = "dropout_seed"
"""Key of an array with the dropout seed in the arrays of a call. An integer seed is an option instead."""
SAVED_LSE = "saved_lse"
"""Name of the log-sum-exp that the backward pass reads. It holds f64 numbers as pairs of uint32, since JAX has f64 only
with jax_enable_x64."""

SHARED_BY_STRIDE = {
    "gated_attention": ("q", "k", "v", "gate"),
    "linear_attention": ("q", "k", "v", "decay", "beta"),
    "short_convolution": ("x",),
    "gated_norm": ("x", "gate"),
}
"""Inputs that all sequences of a folded call may share. The batch dimension of a shared input is 1."""


class Call(NamedTuple):
    """Describes a call except for its arrays.

    - options: the options that differ from their defaults
    - outputs: the outputs to compute: names in the table of outputs, or SAVED_LSE
    - gradients: the inputs whose gradients to compute, by name
    - folded: whether the call computes all examples of a vmap. All sequences then share an input with a batch of 1.
    """

    operation: str
    options: tuple[tuple[str, Any], ...] = ()
    outputs: tuple[str, ...] = ("y",)
    gradients: tuple[str, ...] = ()
    rows_of_max_logit: bool = False
    folded: bool = False

    def option(self, name: str, default: Any = None) -> Any:
        return dict(self.options).get(name, default)

    def table(self, name: str) -> list[str]:
        """Returns the names in the operation's table `name`, such as "inputs" or "outputs"."""
        return _jax.tables[self.operation][name]


def describe(call: Call, inputs: Arrays, check: bool = False) -> Results:
    """Returns the shapes and dtypes of the outputs of a call. With `check`, raises ValueError if the call's shapes,
    dtypes or options are wrong."""
    for name, x in inputs.items():
        if not all(isinstance(size, int) for size in x.shape):
            shape = ",".join(map(str, x.shape))
            raise ValueError(f"{call.operation}: {name} has shape ({shape}) but its sizes must be numbers, not symbols")
    given = {name: (x.shape, x.dtype.name) for name, x in inputs.items() if name != SEED}
    names = ["lse" if name == SAVED_LSE else name for name in call.outputs]
    compute = getattr(_jax, f"describe_{call.operation}")
    found = compute(given, bit_mask_of(names, call.table("outputs")), dict(call.options), check)
    shapes = {name: (shape, jnp.dtype(dtype)) for name, (shape, dtype) in found.items()}
    y = shapes["y"][1]
    if "max_logit" in shapes and call.rows_of_max_logit:
        shapes["max_logit"] = (_rows_of(call, inputs), shapes["max_logit"][1])
    if "lse" in shapes:
        rows, _ = shapes.pop("lse")
        if "lse" in call.outputs:
            shapes["lse"] = (rows, jnp.dtype("float64" if y == "float64" else "float32"))
        if SAVED_LSE in call.outputs:
            shapes[SAVED_LSE] = ((*rows, 2), jnp.dtype("uint32"))
    return shapes


def _rows_of(call: Call, inputs: Arrays) -> tuple[int, ...]:
    """Returns (B,H,T), the shape of an array with one number per row of q. B is 1 if q has no batch dimension."""
    q = inputs["q"].shape
    batch = q[0] if len(q) == 4 else 1
    rows = q[-3:-1] if call.option("layout", "bhtd") == "bhtd" else (q[-2], q[-3])
    return (batch, *rows)


def bit_mask_of(names: Any, table: list[str]) -> int:
    """Returns a bit mask with bit i set if `names` contains entry i of the table."""
    return sum(1 << i for i, name in enumerate(table) if name in names)


def varying_axes(arrays: Any) -> frozenset[str]:
    """Returns the mesh axes of shard_map over which any of the arrays varies."""
    types = (x if isinstance(x, jax.core.ShapedArray) else jax.typeof(x) for x in arrays)
    return frozenset().union(*(own.manual_axis_type.varying for own in types))


def varying_like(arrays: Arrays, inputs: Arrays) -> Arrays:
    """Marks each array as varying over all shard_map mesh axes over which any input varies. Returns the marked arrays."""
    axes = varying_axes(inputs.values())
    missing = {name: tuple(axes - varying_axes([x])) for name, x in arrays.items()}
    return {name: lax.pcast(x, missing[name], to="varying") if missing[name] else x for name, x in arrays.items()}


def forward_results(call: Call, inputs: Arrays) -> Results:
    """Returns the shapes and dtypes of a call's outputs, in the order of the handler's results.

    The order is that of the table of outputs. SAVED_LSE takes the place of lse. If a call returns both, lse comes last.
    """
    shapes = describe(call, inputs)
    names = [SAVED_LSE if name == "lse" and SAVED_LSE in shapes else name for name in call.table("outputs")]
    names = [name for name in names if name in shapes]
    if "lse" in shapes and "lse" not in names:
        names.append("lse")
    return {name: shapes[name] for name in names}


def backward_results(call: Call, inputs: Arrays) -> Results:
    """Returns the shapes and dtypes of a call's gradients by input name, in the order of the handler's results."""
    names = [name[1:] for name in call.table("gradients") if name[1:] in call.gradients]
    return {name: _gradient_of(call, inputs, name) for name in names}


def _gradient_of(call: Call, inputs: Arrays, name: str) -> tuple[tuple[int, ...], Any]:
    """Returns the shape and dtype of the gradient of an input.

    A folded call returns one gradient per sequence even if the sequences share the input. The first dimension of the
    gradient is then the number of sequences.
    """
    x = inputs[name]
    if call.folded and name in SHARED_BY_STRIDE[call.operation]:
        return (inputs[call.table("inputs")[0]].shape[0], *x.shape[1:]), x.dtype
    return x.shape, x.dtype
