# SPDX-License-Identifier: Apache-2.0
"""Computes the operations on platforms other than CPUs, by jax.numpy. What it lacks is refused when JAX compiles the
call for such a platform."""

import jax
import jax.numpy as jnp

from . import fallback_attention, fallback_recurrent
from .call import SAVED_LSE, SHARED_BY_STRIDE, Arrays, Call, backward_results, forward_results

_COMPUTE = {
    "gated_attention": fallback_attention.compute,
    "linear_attention": fallback_recurrent.linear_attention,
    "short_convolution": fallback_recurrent.short_convolution,
    "gated_norm": fallback_recurrent.gated_norm,
}


def _require_computable(call: Call, inputs: Arrays) -> None:
    """Raises NotImplementedError if the code below cannot compute the call."""
    reason = fallback_attention.refusal(call, inputs) if call.operation == "gated_attention" else None
    if reason is not None:
        raise NotImplementedError(f"{call.operation}: {reason} is computed on CPUs only")


def forward(call: Call, inputs: Arrays) -> Arrays:
    """Computes the outputs of a call, by name. The saved log-sum-exp is empty of meaning: backward() computes the
    weights again."""
    _require_computable(call, inputs)
    results = forward_results(call, inputs)
    found = _COMPUTE[call.operation](call, inputs)
    found[SAVED_LSE] = jnp.zeros((), jnp.uint32)
    return {name: jnp.broadcast_to(found[name], shape).astype(dtype) for name, (shape, dtype) in results.items()}


def backward(call: Call, incoming: Arrays, saved: Arrays, inputs: Arrays) -> Arrays:
    """Computes gradients, by the names of their inputs."""
    _require_computable(call, inputs)
    results = backward_results(call, inputs)
    wanted = {name: inputs[name] for name in results}
    if call.folded:  # a gradient for each sequence
        sequences = inputs[call.table("inputs")[0]].shape[0]
        for name in wanted.keys() & set(SHARED_BY_STRIDE[call.operation]):
            wanted[name] = jnp.broadcast_to(wanted[name], (sequences, *wanted[name].shape[1:]))

    def outputs(some: Arrays) -> Arrays:
        found = _COMPUTE[call.operation](call, {**inputs, **some})
        return {"d" + name: found[name].astype(incoming["d" + name].dtype) for name in found if "d" + name in incoming}

    _, pull_back = jax.vjp(outputs, wanted)
    (gradients,) = pull_back(incoming)
    return {name: gradients[name] for name in results}
