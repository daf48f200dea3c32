# SPDX-License-Identifier: Apache-2.0
"""Calls libheadgate through XLA's foreign function interface (FFI), and lets JAX transform these calls.

Each forward or backward pass of an operation is a JAX primitive. On CPUs, the primitive becomes one FFI call. On other
platforms, it becomes jax.numpy code (fallback.py). Under vmap, it stays one call (batching.py). A pass itself cannot be
differentiated: differentiable.py gives the operations their gradients.
"""

import functools
from collections.abc import Callable
from typing import Any, NoReturn

import jax
import numpy as np
from jax import Array
from jax.custom_batching import custom_vmap
from jax.extend.core import Primitive
from jax.interpreters import ad, mlir
from jax.sharding import ManualAxisType, NamedSharding, PartitionSpec

from .. import _jax
from . import batching, fallback
from .call import SAVED_LSE, SEED, Arrays, Call, Results, backward_results, bit_mask_of, forward_results, varying_axes

for _name, _handler in _jax.handlers.items():
    jax.ffi.register_ffi_target(f"headgate_{_name}", _handler, platform="cpu")

SECOND = "{}: gradients of gradients and forward-mode derivatives, as of jvp, jacfwd and hessian, are not supported"


def _attributes(call: Call, inputs: Arrays) -> dict[str, Any]:
    """Returns the FFI attributes that are the same for forward and backward passes."""
    attributes: dict[str, Any] = {"inputs": np.int64(bit_mask_of(inputs, call.table("inputs")))}
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
    """Returns the inputs in the order of the operation's table. A dropout seed that is an array comes last."""
    ordered = [inputs[name] for name in call.table("inputs") if name in inputs]
    return [*ordered, inputs[SEED]] if SEED in inputs else ordered


_pass = Primitive("headgate")
"""JAX primitive of a forward or a backward pass. Its parameters are the call and the pytree structure of the arrays:
(inputs,) or (incoming, saved, inputs)."""
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
        attributes["outputs"] = np.int64(bit_mask_of(wanted, call.table("outputs")))
        order, direction = _operands(call, *groups), "forward"
    else:
        tables = _jax.tables[call.operation]
        incoming, saved, inputs = groups
        selected = {"incoming": incoming, "saved": saved, "gradients": ["d" + name for name in call.gradients]}
        attributes |= {name: np.int64(bit_mask_of(names, tables.get(name, ()))) for name, names in selected.items()}
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
    # Traces with types without the mesh axes of shard_map, which do not change the code of the program.
    types = {
        name: [jax.core.ShapedArray(x.shape, x.dtype) for x in getattr(context, name)]
        for name in ("avals_in", "avals_out")
    }
    return mlir.lower_fun(_elsewhere)(context.replace(**types), *operands, **parameters)


def _refuse(*_: Any, call: Call, tree: Any) -> NoReturn:
    raise NotImplementedError(SECOND.format(call.operation))


@_pass.def_impl
def _(*arrays: Array, **parameters: Any) -> list[Array]:
    # JAX gets here only within jax.disable_jit(). XLA must compile a pass even then.
    with jax.disable_jit(False):
        return jax.jit(functools.partial(_pass.bind, **parameters))(*arrays)


mlir.register_lowering(_pass, _lower_elsewhere)
mlir.register_lowering(_pass, _lower_on_cpu, platform="cpu")
ad.primitive_jvps[_pass] = _refuse


def _bind(call: Call, *groups: Arrays) -> Arrays:
    arrays, tree = jax.tree.flatten(groups)
    names = _results_of(call, tree, [jax.typeof(x) for x in arrays])
    return dict(zip(names, _pass.bind(*arrays, call=call, tree=tree)))


@functools.lru_cache(maxsize=4096)
def _function(call: Call, rule: Callable[..., Any]) -> Any:
    """Returns the pass as a function of dicts of arrays. vmap transforms the function with `rule`."""

    @custom_vmap
    def compute(*groups: Arrays) -> Arrays:
        return _bind(call, *groups)

    compute.def_vmap(functools.partial(rule, call))
    return jax.jit(compute)


def forward(call: Call, inputs: Arrays) -> Arrays:
    """Computes the outputs of a call by name."""
    return _function(call, _forward_of_examples)(inputs)


def backward(call: Call, incoming: Arrays, saved: Arrays, inputs: Arrays) -> Arrays:
    """Returns the gradients of inputs by input name.

    `incoming` holds the gradients of the outputs: dy, and dlse or dstate. `saved` holds outputs of the forward pass.
    """
    return _function(call, _backward_of_examples)(incoming, saved, inputs)


def _forward_of_examples(*arguments: Any) -> Any:
    return batching.forward(forward, *arguments)


def _backward_of_examples(*arguments: Any) -> Any:
    return batching.backward(backward, *arguments)
