# SPDX-License-Identifier: Apache-2.0
"""Computes the operations with jax.numpy on platforms other than CPUs.

JAX refuses calls with unsupported arguments when it compiles them for such a platform.
"""

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


_OF_SCORES = "scale softcap causality window_left window_right key_block_size"
_OF_SEQUENCES = "cu_seqlens snapshot_lengths state"
COMPUTED = {
    name: frozenset(words.split())
    for name, words in {
        "gated_attention": "q k v gate bias mask key_lengths alibi_slopes sinks query_offsets cu_seqlens_q cu_seqlens_k "
        f"block_table k_scale v_scale key_bias key_indices k_first v_first gate_fn gate_op gate_threshold {_OF_SCORES}",
        "linear_attention": f"q k v decay beta rule scale l2_norm {_OF_SEQUENCES}",
        "short_convolution": f"x weight bias activation {_OF_SEQUENCES}",
        "gated_norm": "x weight gate eps gate_fn",
    }.items()
}
"""Arguments that the code for other platforms supports. Calls with other arguments are refused."""
WITHOUT_EFFECT = frozenset("layout precision dropout_seed threads target backend".split())
"""Other arguments that calls for other platforms may have. Every function supports `layout`. The remaining arguments do
not change results: `dropout_seed` matters only with dropout, which is refused."""


def _refusal(call: Call, inputs: Arrays) -> str | None:
    """Returns the name of an argument that forward() and backward() do not support. Returns None if they support all
    arguments of the call.
    """
    options = dict(call.options)
    for name in (*inputs, *options):
        if name not in COMPUTED[call.operation] | WITHOUT_EFFECT:
            return name
    if options.get("gate_fn", "sigmoid") not in fallback_attention.GATES and "gate" in inputs:
        return f"gate_fn {options['gate_fn']}"
    return fallback_attention.refusal(inputs) if call.operation == "gated_attention" else None


def _require_computable(call: Call, inputs: Arrays) -> None:
    """Raises NotImplementedError if forward() and backward() do not support an argument of the call."""
    reason = _refusal(call, inputs)
    if reason is not None:
        raise NotImplementedError(f"{call.operation}: {reason} is computed on CPUs only")


def forward(call: Call, inputs: Arrays) -> Arrays:
    """Computes the outputs of a call by name. The saved log-sum-exp holds only zeros: backward() does not read it, but
    computes the attention weights again.
    """
    _require_computable(call, inputs)
    results = forward_results(call, inputs)
    found = _COMPUTE[call.operation](call, inputs)
    found[SAVED_LSE] = jnp.zeros((), jnp.uint32)
    return {name: jnp.broadcast_to(found[name], shape).astype(dtype) for name, (shape, dtype) in results.items()}


def backward(call: Call, incoming: Arrays, saved: Arrays, inputs: Arrays) -> Arrays:
    """Computes gradients by input name."""
    _require_computable(call, inputs)
    results = backward_results(call, inputs)
    wanted = {name: inputs[name] for name in results}
    if call.folded:  # returns one gradient per sequence even if sequences share the input
        sequences = inputs[call.table("inputs")[0]].shape[0]
        for name in wanted.keys() & set(SHARED_BY_STRIDE[call.operation]):
            wanted[name] = jnp.broadcast_to(wanted[name], (sequences, *wanted[name].shape[1:]))

    def outputs(some: Arrays) -> Arrays:
        found = _COMPUTE[call.operation](call, {**inputs, **some})
        return {"d" + name: found[name].astype(incoming["d" + name].dtype) for name in found if "d" + name in incoming}

    _, pull_back = jax.vjp(outputs, wanted)
    (gradients,) = pull_back(incoming)
    return {name: gradients[name] for name in results}
