# SPDX-License-Identifier: Apache-2.0
"""Runs JAX on the CPU: dot_product_attention or einsums, times a sigmoid, as one jitted function with its gradients."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from .cases import Case, Refused, Way, bf16_bits, widen_bf16


class Jax:
    """Runs JAX. XLA's thread pool has one thread for each core that the process may use."""

    def __init__(self, threads: int):
        jax.config.update("jax_platforms", "cpu")
        self.version = jax.__version__

    def ways(self, case: Case, inputs: dict) -> dict[str, Way]:
        if case.C:
            raise Refused("layers are compared with PyTorch")
        case.require_memory(9 if case.op.endswith("+backward") else 3)
        named = ("q", "k", "v", "z", "dy") if case.op == "forward+backward" else ("q", "k", "v", "z")
        weights_of = self._weights(case)

        def by_einsum(q, k, v, z):
            return jnp.einsum("bhgts,bhsd->bhgtd", weights_of(q, k).astype(v.dtype), v) * jax.nn.sigmoid(z)

        def by_function(q, k, v, z):
            return jax.nn.dot_product_attention(q, k, v, is_causal=case.causal) * jax.nn.sigmoid(z)

        def statistics(q, k, v, z):
            weights = weights_of(q, k)
            y = jnp.einsum("bhgts,bhsd->bhgtd", weights.astype(v.dtype), v) * jax.nn.sigmoid(z)
            return [y, weights.max(-1), jax.scipy.special.entr(weights).sum(-1), weights[..., 0], weights.sum(-2)]

        # einsum takes queries (B,Hkv,Hq/Hkv,T,D) and keys (B,Hkv,S,D), and dot_product_attention takes (B,T,H,D).
        grouped = {
            name: inputs[name] if name in "kv" else inputs[name].reshape(case.B, case.Hkv, -1, case.T, case.D)
            for name in named
        }
        if case.op == "statistics":
            return {"einsum": jitted(case, statistics, grouped, _ungrouped)}
        bthd = {name: inputs[name].swapaxes(1, 2) for name in named}
        return {
            "einsum": jitted(case, by_einsum, grouped, _ungrouped),
            "dot_product_attention": jitted(case, by_function, bthd, lambda _, array: array.swapaxes(1, 2)),
        }

    @staticmethod
    def _weights(case: Case):
        def weights(q, k):
            """Returns softmax(q k^T / sqrt(D)), (B,Hkv,Hq/Hkv,T,S), in f32."""
            scores = jnp.einsum("bhgtd,bhsd->bhgts", q, k, preferred_element_type=jnp.float32) / np.sqrt(case.D)
            if case.causal:
                scores = jnp.where(np.tri(case.T, case.S, case.S - case.T, dtype=bool), scores, -np.inf)
            return jax.nn.softmax(scores.astype(jnp.float32), axis=-1)

        return weights


def jitted(case: Case, function, arrays: dict[str, np.ndarray], as_bhtd=None, kept: tuple[str, ...] = ()) -> Way:
    """Returns the jitted `function` of the arrays, with its gradients if the case has them; dy, the gradient of its
    result, is then the last array. Arrays have the case's dtype, except for those named in `kept`, which stay f32.
    as_bhtd(case, array) converts a result to (B,H,…)."""

    def training(*arrays):
        *inputs, dy = arrays
        y, pullback = jax.vjp(function, *inputs)
        return [y, *pullback(dy)]

    def alone(*inputs):
        found = function(*inputs)
        return found if isinstance(found, list) else [found]

    def converted(name: str, array: np.ndarray) -> jax.Array:
        is_bf16 = case.dtype == "bfloat16" and name not in kept
        return jnp.asarray(bf16_bits(array).view(ml_dtypes.bfloat16) if is_bf16 else array)

    def read(results):
        found = [np.asarray(result) for result in results]
        found = [widen_bf16(array) if array.dtype == ml_dtypes.bfloat16 else array for array in found]
        return [as_bhtd(case, array) for array in found] if as_bhtd else found

    given = [converted(name, array) for name, array in arrays.items()]
    compiled = jax.jit(training if case.op.endswith("+backward") else alone)
    return Way(lambda: jax.block_until_ready(compiled(*given)), read)


def _ungrouped(case: Case, array: np.ndarray) -> np.ndarray:
    """Reshapes (B,Hkv,Hq/Hkv,…) to (B,Hq,…). Returns the gradients of k and v, which are (B,Hkv,S,D), unchanged."""
    if array.shape == (case.B, case.Hkv, case.S, case.D):
        return array
    return array.reshape(case.B, case.Hq, *array.shape[3:])
