# SPDX-License-Identifier: Apache-2.0
"""Random problems against functions of JAX itself, and a model's training against PyTorch."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import headgate.torch
from headgate.jax import gated_attention, gated_norm, linear_attention, short_convolution


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


VOCABULARY, WIDTH, HEADS, LENGTH = 11, 16, 4, 12


def weights_of_a_model() -> dict[str, np.ndarray]:
    random = np.random.default_rng(8)

    def draw(*shape: int) -> np.ndarray:
        return random.normal(size=shape) / np.sqrt(shape[0])

    return {
        "embed": draw(VOCABULARY, WIDTH) * 3,
        "qkv": draw(WIDTH, 3 * WIDTH),
        "gate": draw(WIDTH, HEADS),
        "out": draw(WIDTH, WIDTH),
        "taps": random.normal(size=(WIDTH, 3)) / 2,
        "linear": draw(WIDTH, 3 * WIDTH),
        "decay": draw(WIDTH, HEADS),
        "norm": np.ones(WIDTH // HEADS),
        "head": draw(WIDTH, VOCABULARY),
    }


class OfJax:
    attention, linear = staticmethod(gated_attention), staticmethod(linear_attention)
    convolution, norm = staticmethod(short_convolution), staticmethod(gated_norm)
    concatenate, softplus = staticmethod(jnp.concatenate), staticmethod(jax.nn.softplus)
    split = staticmethod(lambda x: jnp.split(x, 3, axis=-1))


class OfTorch:
    attention, linear = headgate.torch.gated_attention, headgate.torch.linear_attention
    convolution, norm = headgate.torch.short_convolution, headgate.torch.gated_norm
    softplus = torch.nn.functional.softplus
    split = staticmethod(lambda x: x.chunk(3, dim=-1))


def logits_of(of, weights, tokens):
    """A layer of gated attention, and one of linear attention with its convolution and norm."""
    batch, length = tokens.shape
    x = weights["embed"][tokens]

    def heads(x):
        return x.reshape(batch, length, HEADS, -1)

    q, k, v = map(heads, of.split(x @ weights["qkv"]))
    y = of.attention(q, k, v, heads(x @ weights["gate"]), layout="bthd", causality="causal")
    x = x + y.reshape(batch, length, WIDTH) @ weights["out"]
    q, k, v = map(heads, of.split(of.convolution(x, weights["taps"]) @ weights["linear"]))
    y = of.linear(q, k, v, -of.softplus(heads(x @ weights["decay"])), layout="bthd", l2_norm=1e-6)
    return (x + of.norm(y, weights["norm"], q, layout="bthd").reshape(batch, length, WIDTH)) @ weights["head"]


def batches():
    random = np.random.default_rng(9)
    start, step = random.integers(0, VOCABULARY, (20, 4, 1)), random.integers(1, 4, (20, 4, 1))
    return (start + step * np.arange(LENGTH + 1)) % VOCABULARY


def train_by_jax() -> list[float]:
    def loss(weights, tokens):
        rows = jax.nn.log_softmax(logits_of(OfJax, weights, tokens[:, :-1]))
        return -jnp.take_along_axis(rows, tokens[:, 1:, None], -1).mean()

    @jax.jit
    def step(weights, tokens):
        value, gradients = jax.value_and_grad(loss)(weights, tokens)
        return value, jax.tree.map(lambda w, g: w - 0.2 * g, weights, gradients)

    weights, losses = jax.tree.map(jnp.asarray, weights_of_a_model()), []
    for tokens in batches():
        value, weights = step(weights, tokens)
        losses.append(float(value))
    return losses


def train_by_torch() -> list[float]:
    weights = {name: torch.tensor(w, requires_grad=True) for name, w in weights_of_a_model().items()}
    optimizer, losses = torch.optim.SGD(weights.values(), lr=0.2), []
    for tokens in torch.from_numpy(batches()):
        logits = logits_of(OfTorch, weights, tokens[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_training_has_the_curve_of_pytorch():
    found, expected = train_by_jax(), train_by_torch()
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    assert expected[-1] < 0.8 * expected[0]
