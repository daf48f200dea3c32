# SPDX-License-Identifier: Apache-2.0
"""Random problems against functions of JAX itself."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from headgate.jax import gated_attention


def plain_attention(q, k, v, gate, is_causal):
    """Attention by jax.nn, times the sigmoid of the gate. jax.nn computes softmax weights in f32 at least."""
    q, k, v = (x.swapaxes(-2, -3) for x in (q, k, v))
    o = jax.nn.dot_product_attention(q, k, v, is_causal=is_causal)
    return o.swapaxes(-2, -3) * jax.nn.sigmoid(gate)


def written_out(q, k, v, gate, is_causal):
    """The formula of docs/reference/math.md, with whole score matrices."""
    k, v = (x.repeat(q.shape[1] // k.shape[1], axis=1) for x in (k, v))
    scores = jnp.einsum("bhtd,bhsd->bhts", q, k) / np.sqrt(q.shape[-1])
    if is_causal:
        scores = jnp.where(
            jnp.tri(*scores.shape[-2:], scores.shape[-1] - scores.shape[-2], dtype=bool), scores, -jnp.inf
        )
    return jnp.einsum("bhts,bhsd->bhtd", jax.nn.softmax(scores), v) * jax.nn.sigmoid(gate)


@pytest.mark.parametrize("seed", range(2))
def test_random_problems_equal_jax_nn(seed):
    random = np.random.default_rng(seed)
    batch, groups, of_group, length, dim = (int(random.integers(1, top)) for top in (4, 4, 4, 40, 33))
    is_causal = bool(seed % 2)
    shapes = [
        (batch, groups * of_group, length, dim),
        *[(batch, groups, length, dim)] * 2,
        (batch, groups * of_group, length, 1),
    ]
    q, k, v, gate = (jnp.asarray(random.normal(size=shape)) for shape in shapes)

    def both(attend):
        def loss(*args):
            y = attend(*args)
            return (y**2).sum(), y

        return jax.jit(jax.value_and_grad(loss, (0, 1, 2, 3), has_aux=True))(q, k, v, gate)

    attend = functools.partial(gated_attention, causality="causal" if is_causal else "none")
    found = jax.tree.leaves(both(attend))
    for x, exact, of_jax in zip(
        found,
        jax.tree.leaves(both(functools.partial(written_out, is_causal=is_causal))),
        jax.tree.leaves(both(functools.partial(plain_attention, is_causal=is_causal))),
    ):
        size = float(jnp.abs(exact).max())
        np.testing.assert_allclose(x, exact, rtol=0, atol=1e-12 * size)
        np.testing.assert_allclose(x, of_jax, rtol=0, atol=1e-5 * size)
