# SPDX-License-Identifier: Apache-2.0
"""JAX on the CPU: jax.nn.dot_product_attention times a sigmoid, as one jitted function, and its gradients."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from .cases import Case, Refused, Way, bf16_bits, widen_bf16


class Jax:
    """XLA's pool has a thread for each core that the process may use."""

    def __init__(self, threads: int):
        jax.config.update("jax_platforms", "cpu")
        self.version = jax.__version__

    def ways(self, case: Case, inputs: dict) -> dict[str, Way]:
        if case.C:
            raise Refused("compared by attention itself")

        def as_jax(array: np.ndarray) -> jax.Array:
            return jnp.asarray(bf16_bits(array).view(ml_dtypes.bfloat16) if case.dtype == "bfloat16" else array)

        # dot_product_attention takes (B,T,H,D).
        q, k, v, z, dy = (as_jax(inputs[name].swapaxes(1, 2)) for name in ("q", "k", "v", "z", "dy"))

        def attention(q, k, v, z):
            return jax.nn.dot_product_attention(q, k, v, is_causal=case.causal) * jax.nn.sigmoid(z)

        def training(q, k, v, z, dy):
            y, pullback = jax.vjp(attention, q, k, v, z)
            return [y, *pullback(dy)]

        def statistics(q, k, v, z):
            scores = jnp.einsum("bthd,bshd->bhts", q, k) / np.sqrt(case.D).astype(q.dtype)
            if case.causal:
                scores = jnp.where(np.tri(case.T, case.S, case.S - case.T, dtype=bool), scores, -np.inf)
            weights = jax.nn.softmax(scores.astype(jnp.float32), axis=-1)
            y = jnp.einsum("bhts,bshd->bthd", weights.astype(v.dtype), v) * jax.nn.sigmoid(z)
            return [y, weights.max(-1), jax.scipy.special.entr(weights).sum(-1), weights[..., 0], weights.sum(-2)]

        arguments = {"forward": (q, k, v, z), "forward+backward": (q, k, v, z, dy), "statistics": (q, k, v, z)}[case.op]
        function = {"forward": lambda *a: [attention(*a)], "forward+backward": training, "statistics": statistics}
        jitted = jax.jit(function[case.op])
        return {"": Way(lambda: jax.block_until_ready(jitted(*arguments)), self._arrays)}

    @staticmethod
    def _arrays(results: list[jax.Array]) -> list[np.ndarray]:
        arrays = [np.asarray(result) for result in results]
        arrays = [widen_bf16(array) if array.dtype == ml_dtypes.bfloat16 else array for array in arrays]
        return [array.swapaxes(1, 2) if array.ndim == 4 else array for array in arrays]
