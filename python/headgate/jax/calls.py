# SPDX-License-Identifier: Apache-2.0
"""Calls libheadgate by XLA's foreign function interface, and makes the calls functions that JAX can transform.

Each pass of an operation is a primitive. For CPUs it is lowered to one FFI call, for other platforms to code of
jax.numpy (fallback.py). Under vmap it stays one call (batching.py). Derivatives of a pass are refused by name:
differentiable.py gives the operations their gradients.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

import jax.numpy as jnp
import numpy as np
from jax.custom_batching import custom_vmap
from jax.extend.core import Primitive
from jax.interpreters import ad, mlir
from jax.sharding import ManualAxisType, NamedSharding, PartitionSpec

import jax
from jax import Array, lax

from ..openmp import load_with_short_spins
from . import batching, fallback

load_with_short_spins("headgate._headgate")

try:
    from .. import _jax
except ImportError as error:
    raise ImportError(
        "headgate.jax: this build of the package has no handlers for JAX: build it with jaxlib installed, whose headers "
        "it needs"
    ) from error

for _name, _handler in _jax.handlers.items():
    jax.ffi.register_ffi_target(f"headgate_{_name}", _handler, platform="cpu")

Arrays = dict[str, Array]
Results = dict[str, tuple[tuple[int, ...], np.dtype]]

SEED = "dropout_seed"
"""Name of the seed among the arrays of a call, if it is an array."""
SAVED_LSE = "saved_lse"
"""Name of the log-sum-exp that the backward pass reads: f64 numbers as pairs of uint32, since JAX has f64 only with
jax_enable_x64."""

SECOND = "{}: gradients of gradients and forward-mode derivatives, as of jvp, jacfwd and hessian, are not supported"


class Call(NamedTuple):
    """Describes a call except for its arrays. `options` are those that differ from their defaults. `outputs` are names
    of a table of outputs, or SAVED_LSE; `gradients` are names of inputs. `folded` marks a call that computes all
    examples of a vmap: inputs with a batch of 1 are then shared by all sequences."""

    operation: str
    options: tuple[tuple[str, Any], ...] = ()
    outputs: tuple[str, ...] = ("y",)
    gradients: tuple[str, ...] = ()
    rows_of_max_logit: bool = False
    folded: bool = False

    def option(self, name: str, default: Any = None) -> Any:
        return dict(self.options).get(name, default)

    def table(self, name: str) -> list[str]:
        """Returns the names of a table of the operation: "inputs", "outputs", …"""
        return _jax.tables[self.operation][name]


def describe(call: Call, inputs: Arrays, check: bool = False) -> Results:
    """Returns the shapes and dtypes of the outputs of a call. With `check`, raises ValueError if the call's shapes,
    dtypes or options are wrong."""
    given = {name: (x.shape, x.dtype.name) for name, x in inputs.items() if name != SEED}
    names = ["lse" if name == SAVED_LSE else name for name in call.outputs]
    compute = getattr(_jax, f"describe_{call.operation}")
    found = compute(given, _set_of(names, call.table("outputs")), dict(call.options), check)
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
    """Returns the shape of a number for each row (B,H,T). B is 1 without a batch."""
    q = inputs["q"].shape
    batch = q[0] if len(q) == 4 else 1
    rows = q[-3:-1] if call.option("layout", "bhtd") == "bhtd" else (q[-2], q[-3])
    return (batch, *rows)


def _set_of(names: Any, table: list[str]) -> int:
    """Returns a set of rows of a table as an integer with a bit for each."""
    return sum(1 << i for i, name in enumerate(table) if name in names)


def varying_axes(arrays: Any) -> frozenset[str]:
    """Returns the mesh axes of shard_map that an array of `arrays` varies over."""
    types = (x if isinstance(x, jax.core.ShapedArray) else jax.typeof(x) for x in arrays)
    return frozenset().union(*(own.manual_axis_type.varying for own in types))


def varying_like(arrays: Arrays, inputs: Arrays) -> Arrays:
    """Returns the arrays, which then vary over all mesh axes of shard_map that an input varies over."""
    axes = varying_axes(inputs.values())
    missing = {name: tuple(axes - varying_axes([x])) for name, x in arrays.items()}
    return {name: lax.pcast(x, missing[name], to="varying") if missing[name] else x for name, x in arrays.items()}


def _attributes(call: Call, inputs: Arrays) -> dict[str, Any]:
    """Returns the FFI attributes that both passes read."""
    attributes: dict[str, Any] = {"inputs": np.int64(_set_of(inputs, call.table("inputs")))}
    for name, value in call.options:
        attributes[name] = value if isinstance(value, str) else _scalar(value)
    if call.folded:
        attributes["folded"] = True
    if SEED in inputs:
        attributes["traced_seed"] = True
    return attributes


def _scalar(value: int | float) -> np.int64 | np.float64:
    return np.int64(value) if isinstance(value, int) else np.float64(value)


def _operands(call: Call, inputs: Arrays) -> list[Array]:
    """Returns the inputs in the order of the table, and a seed that is an array last."""
    ordered = [inputs[name] for name in call.table("inputs") if name in inputs]
    return [*ordered, inputs[SEED]] if SEED in inputs else ordered


def forward_results(call: Call, inputs: Arrays) -> Results:
    """Returns the shapes and dtypes of the outputs of a call, in the order of the handler's results: those of the table,
    with SAVED_LSE in the place of lse, and lse last if both are asked for."""
    shapes = describe(call, inputs)
    names = [SAVED_LSE if name == "lse" and SAVED_LSE in shapes else name for name in call.table("outputs")]
    names = [name for name in names if name in shapes]
    if "lse" in shapes and "lse" not in names:
        names.append("lse")
    return {name: shapes[name] for name in names}


def backward_results(call: Call, inputs: Arrays) -> Results:
    """Returns the shapes and dtypes of the gradients of a call, by the names of their inputs and in the order of the
    handler's results."""
    names = [name[1:] for name in call.table("gradients") if name[1:] in call.gradients]
    return {name: _gradient_of(call, inputs, name) for name in names}


def _gradient_of(call: Call, inputs: Arrays, name: str) -> tuple[tuple[int, ...], Any]:
    """Returns the shape and dtype of the gradient of an input. The gradient of an input that the sequences of a folded
    call share has a row for each of them."""
    x = inputs[name]
    if call.folded and name in batching.SHARED_BY_STRIDE.get(call.operation, ()):
        return (inputs[call.table("inputs")[0]].shape[0], *x.shape[1:]), x.dtype
    return x.shape, x.dtype


_pass = Primitive("headgate")
"""A forward or a backward pass. Parameters are the call and the tree of its arrays: (inputs,) or (incoming, saved,
inputs)."""
_pass.multiple_results = True


def _results_of(call: Call, tree: Any, arrays: Any) -> Results:
    groups = tree.unflatten(arrays)
    return forward_results(call, *groups) if len(groups) == 1 else backward_results(call, groups[-1])


@_pass.def_abstract_eval
def _(*arrays: Any, call: Call, tree: Any) -> list[Any]:
    mesh, axes = arrays[0].sharding.mesh, ManualAxisType(varying=varying_axes(arrays))
    types = []
    for shape, dtype in _results_of(call, tree, arrays).values():
        sharding = NamedSharding(mesh, PartitionSpec(*[None] * len(shape)))
        types.append(jax.core.ShapedArray(shape, dtype, sharding=sharding, manual_axis_type=axes))
    return types


def _lower_on_cpu(context: Any, *operands: Any, call: Call, tree: Any) -> Any:
    groups = tree.unflatten(range(len(operands)))
    types = tree.unflatten(context.avals_in)
    attributes = _attributes(call, types[-1])
    if len(groups) == 1:
        wanted = {"lse" if name == SAVED_LSE else name for name in forward_results(call, *types)}
        attributes["outputs"] = np.int64(_set_of(wanted, call.table("outputs")))
        order, direction = _operands(call, *groups), "forward"
    else:
        tables = _jax.tables[call.operation]
        incoming, saved, inputs = groups
        sets = {"incoming": incoming, "saved": saved, "gradients": ["d" + name for name in call.gradients]}
        attributes |= {name: np.int64(_set_of(names, tables.get(name, ()))) for name, names in sets.items()}
        order = [incoming[name] for name in tables["incoming"] if name in incoming]
        order += [saved[name] for name in tables.get("saved", ()) if name in saved]
        order, direction = order + _operands(call, inputs), "backward"
    ordered = context.replace(avals_in=[context.avals_in[i] for i in order])
    lower = jax.ffi.ffi_lowering(f"headgate_{call.operation}_{direction}")
    return lower(ordered, *(operands[i] for i in order), **attributes)


def _elsewhere(*arrays: Array, call: Call, tree: Any) -> list[Array]:
    groups = tree.unflatten(arrays)
    found = fallback.forward(call, *groups) if len(groups) == 1 else fallback.backward(call, *groups)
    return [found[name] for name in _results_of(call, tree, arrays)]


def _lower_elsewhere(context: Any, *operands: Any, **parameters: Any) -> Any:
    # Without the mesh axes of shard_map, which concern the types of a traced program and not its code.
    types = {
        name: [jax.core.ShapedArray(x.shape, x.dtype) for x in getattr(context, name)]
        for name in ("avals_in", "avals_out")
    }
    return mlir.lower_fun(_elsewhere)(context.replace(**types), *operands, **parameters)


def _refuse(*_: Any, call: Call, tree: Any) -> NoReturn:
    raise NotImplementedError(SECOND.format(call.operation))


mlir.register_lowering(_pass, _lower_elsewhere)
mlir.register_lowering(_pass, _lower_on_cpu, platform="cpu")
ad.primitive_jvps[_pass] = _refuse


def _bind(call: Call, *groups: Arrays) -> Arrays:
    arrays, tree = jax.tree.flatten(groups)
    names = _results_of(call, tree, [jax.typeof(x) for x in arrays])
    return dict(zip(names, _pass.bind(*arrays, call=call, tree=tree)))


@functools.lru_cache(maxsize=4096)
def _function(call: Call, rule: Callable[..., Any]) -> Any:
    """Returns the pass as a function of dicts of arrays, which vmap transforms by `rule`."""

    @custom_vmap
    def compute(*groups: Arrays) -> Arrays:
        return _bind(call, *groups)

    compute.def_vmap(functools.partial(rule, call))
    return jax.jit(compute)


def forward(call: Call, inputs: Arrays) -> Arrays:
    """Computes the outputs of a call, by name."""
    return _function(call, batching.forward)(inputs)


def backward(call: Call, incoming: Arrays, saved: Arrays, inputs: Arrays) -> Arrays:
    """Computes gradients, by the names of their inputs, from those of the outputs, dy and dlse or dstate, and from
    what the forward pass has saved."""
    return _function(call, batching.backward)(incoming, saved, inputs)
