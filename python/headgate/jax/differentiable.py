# SPDX-License-Identifier: Apache-2.0
"""Gives the operations their gradients with jax.custom_vjp and the backward calls of libheadgate."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero

from ..operations import ATTENTION, GATED_NORM, LINEAR_ATTENTION, SHORT_CONVOLUTION
from .call import SAVED_LSE, Arrays, Call, bit_mask_of, describe
from .passes import SECOND, backward, forward

OPERATIONS = {
    "gated_attention": ATTENTION,
    "linear_attention": LINEAR_ATTENTION,
    "short_convolution": SHORT_CONVOLUTION,
    "gated_norm": GATED_NORM,
}
WITHOUT_GRADIENT = ("max_logit", "snapshots")
"""Outputs that are not differentiated."""


def _refuse_gradients(call: Call, perturbed: set[str], inputs: Arrays) -> None:
    """Raises ValueError if JAX asks for a gradient that the operation does not compute."""
    what, operation = call.operation, OPERATIONS[call.operation]
    for name in operation.tensors:
        if name in inputs and name in operation.forward_only:
            raise ValueError(f"{what}: with {name} there are no gradients: call it outside of jax.grad")
        if name in perturbed and name not in operation.differentiable:
            raise ValueError(f"{what}: {name} is differentiated but has no gradient: use jax.lax.stop_gradient({name})")
    if call.option("gate_threshold", 0.0) > 0:
        raise ValueError(f"{what}: with gate_threshold there are no gradients: call it outside of jax.grad")


def _saved_outputs(call: Call, keeps_output: bool) -> tuple[str, ...]:
    """Returns the names of the forward outputs that the backward pass reads."""
    if call.operation != "gated_attention":
        return ()
    return ("y", SAVED_LSE, "attn") if keeps_output else ("y", SAVED_LSE)


def _sharded_like(x: jax.Array, gradient: jax.Array) -> jax.Array:
    """Reshards a gradient to the sharding of x. On meshes with explicit axes, the sharding is part of an array's type."""
    own = jax.typeof(x).sharding
    is_same = own.mesh.empty or jax.typeof(gradient).sharding == own
    return gradient if is_same else jax.sharding.reshard(gradient, own)


# JAX traces a forward rule once for each set of differentiated inputs. It keeps the residuals' shapes of every trace, but
# their tree structure only of the last one. So the tree structure is the same for all sets, and a shape holds the set.


def _as_shape(call: Call, names: set[str]) -> jax.Array:
    """Encodes which differentiable inputs are in `names`, as the shape (bit mask, 0) of an empty array."""
    return jnp.zeros((bit_mask_of(names, list(OPERATIONS[call.operation].differentiable)), 0), bool)


def _from_shape(call: Call, wanted: jax.Array) -> tuple[str, ...]:
    """Returns the names of the inputs that _as_shape() encoded."""
    return tuple(name for i, name in enumerate(OPERATIONS[call.operation].differentiable) if wanted.shape[0] >> i & 1)


@functools.lru_cache(maxsize=4096)
def _function(call: Call, keeps_output: bool) -> Any:
    @jax.custom_vjp
    def compute(inputs: Arrays) -> Arrays:
        return forward(call, inputs)

    def compute_and_save(given: dict[str, Any]) -> Any:
        inputs = {name: x.value for name, x in given.items()}
        perturbed = {name for name, x in given.items() if x.perturbed and jnp.issubdtype(x.value.dtype, jnp.inexact)}
        _refuse_gradients(call, perturbed, inputs)
        saved = _saved_outputs(call, keeps_output)
        outputs = forward(call._replace(outputs=tuple(dict.fromkeys((*call.outputs, *saved)))), inputs)
        kept = {
            "inputs": inputs,
            "saved": {name: outputs[name] for name in saved},
            "wanted": _as_shape(call, perturbed),
        }
        return {name: outputs[name] for name in call.outputs}, kept

    def gradients(kept: Any, incoming: dict[str, Any]) -> Any:
        inputs, saved = kept["inputs"], kept["saved"]
        found = {
            "d" + name: dy
            for name, dy in incoming.items()
            if name not in WITHOUT_GRADIENT and not isinstance(dy, SymbolicZero)
        }
        if "dy" not in found:
            shape, dtype = describe(call, inputs)["y"]
            found["dy"] = jnp.zeros(shape, dtype)
        saved = {"lse" if name == SAVED_LSE else name: x for name, x in saved.items()}
        wanted = _from_shape(call, kept["wanted"])
        backward_call = call._replace(outputs=("y",), gradients=wanted, rows_of_max_logit=False)
        given = backward(backward_call, found, saved, inputs) if wanted else {}
        return ({name: _sharded_like(x, given[name]) if name in given else None for name, x in inputs.items()},)

    compute.defvjp(compute_and_save, gradients, symbolic_zeros=True)
    return jax.jit(compute)  # shard_map refuses symbolic_zeros outside of jit


def compute(call: Call, inputs: Arrays, keeps_output: bool = False) -> Arrays:
    """Computes the outputs of a call by name, with gradients. `keeps_output` also saves the attention output before the
    gate, for the backward pass.
    """
    try:
        found = _function(call, keeps_output)(inputs)
    except TypeError as error:
        if "forward-mode" not in str(error):
            raise
        raise NotImplementedError(SECOND.format(call.operation)) from None
    return {name: jax.lax.stop_gradient(x) if name in WITHOUT_GRADIENT else x for name, x in found.items()}
