# SPDX-License-Identifier: Apache-2.0
"""Models of libraries on top of JAX: a transformer in Equinox learns as its twin in PyTorch does, and AlphaFold's gated
attention in Haiku is one call."""

import equinox as eqx
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.nn import functional

import headgate.torch
from headgate.jax import gated_attention, gated_norm, linear_attention, short_convolution

VOCABULARY, WIDTH, HEADS, LENGTH = 11, 16, 4, 12


class Transformer(eqx.Module):
    """A layer of gated attention, and one of linear attention with its convolution and norm. As is usual in Equinox, it
    computes one sequence, and the caller maps it over a batch."""

    embed: eqx.nn.Embedding
    linears: dict[str, eqx.nn.Linear]
    taps: jax.Array
    norm: jax.Array

    def __init__(self, key: jax.Array):
        embed, taps, *keys = jax.random.split(key, 8)
        widths = {
            "qkv": 3 * WIDTH,
            "gate": HEADS,
            "out": WIDTH,
            "linear": 3 * WIDTH,
            "decay": HEADS,
            "head": VOCABULARY,
        }
        self.embed = eqx.nn.Embedding(VOCABULARY, WIDTH, key=embed)
        self.linears = {
            name: eqx.nn.Linear(WIDTH, width, use_bias=False, key=one)
            for (name, width), one in zip(widths.items(), keys, strict=True)
        }
        self.taps = jax.random.normal(taps, (WIDTH, 3)) / 2
        self.norm = jnp.ones(WIDTH // HEADS)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        def project(name: str, x: jax.Array) -> jax.Array:
            return jax.vmap(self.linears[name])(x)

        def heads(x: jax.Array) -> jax.Array:
            return x.reshape(1, len(tokens), HEADS, -1)  # (B,T,H,D) with B = 1

        def rows(y: jax.Array) -> jax.Array:
            return y.reshape(len(tokens), WIDTH)

        x = jax.vmap(self.embed)(tokens)
        q, k, v = map(heads, jnp.split(project("qkv", x), 3, axis=-1))
        y = gated_attention(q, k, v, heads(project("gate", x)), layout="bthd", causality="causal")
        x = x + project("out", rows(y))
        mixed = short_convolution(x[None], self.taps)[0]
        q, k, v = map(heads, jnp.split(project("linear", mixed), 3, axis=-1))
        decay = -jax.nn.softplus(heads(project("decay", x)))
        y = linear_attention(q, k, v, decay, layout="bthd", l2_norm=1e-6)
        return project("head", x + rows(gated_norm(y, self.norm, q, layout="bthd")))


def logits_of_torch(weights: dict[str, torch.Tensor], tokens: torch.Tensor) -> torch.Tensor:
    """The same model for a batch of sequences."""

    def project(name: str, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, weights[name])

    def heads(x: torch.Tensor) -> torch.Tensor:
        return x.unflatten(-1, (HEADS, -1))

    x = weights["embed"][tokens]
    q, k, v = map(heads, project("qkv", x).chunk(3, dim=-1))
    gate = heads(project("gate", x))
    y = headgate.torch.gated_attention(q, k, v, gate, layout="bthd", causality="causal")
    x = x + project("out", y.flatten(-2))
    mixed = headgate.torch.short_convolution(x, weights["taps"])
    q, k, v = map(heads, project("linear", mixed).chunk(3, dim=-1))
    decay = -functional.softplus(heads(project("decay", x)))
    y = headgate.torch.linear_attention(q, k, v, decay, layout="bthd", l2_norm=1e-6)
    y = headgate.torch.gated_norm(y, weights["norm"], q, layout="bthd")
    return project("head", x + y.flatten(-2))


def batches() -> np.ndarray:
    random = np.random.default_rng(9)
    start, step = random.integers(0, VOCABULARY, (20, 4, 1)), random.integers(1, 4, (20, 4, 1))
    return (start + step * np.arange(LENGTH + 1)) % VOCABULARY


def train_in_equinox(model: Transformer) -> list[float]:
    def loss(model, tokens):
        rows = jax.nn.log_softmax(jax.vmap(model)(tokens[:, :-1]))
        return -jnp.take_along_axis(rows, tokens[:, 1:, None], -1).mean()

    @eqx.filter_jit
    def step(model, tokens):
        value, gradients = eqx.filter_value_and_grad(loss)(model, tokens)
        return value, eqx.apply_updates(model, jax.tree.map(lambda g: -0.3 * g, gradients))

    losses = []
    for tokens in batches():
        value, model = step(model, tokens)
        losses.append(float(value))
    return losses


def train_in_torch(model: Transformer) -> list[float]:
    arrays = {name: linear.weight for name, linear in model.linears.items()}
    arrays |= {"embed": model.embed.weight, "taps": model.taps, "norm": model.norm}
    weights = {name: torch.tensor(np.asarray(x), requires_grad=True) for name, x in arrays.items()}
    optimizer, losses = torch.optim.SGD(weights.values(), lr=0.3), []
    for tokens in torch.from_numpy(batches()):
        logits = logits_of_torch(weights, tokens[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_equinox_model_has_the_loss_curve_of_pytorch():
    model = Transformer(jax.random.key(3))
    found, expected = train_in_equinox(model), train_in_torch(model)
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    assert expected[-1] < 0.8 * expected[0]


class FoldingAttention(hk.Module):
    """The gated attention of AlphaFold (Jumper et al. 2021, supplementary algorithms 7, 13 and 14), with the names and
    shapes of its parameters. `fused` computes it by one call of headgate.jax."""

    def __init__(self, heads: int, output_width: int, fused: bool):
        super().__init__(name="attention")
        self.heads, self.output_width, self.fused = heads, output_width, fused

    def __call__(self, q_data, m_data, bias, pair_bias=None):
        """Attends from q_data (B,T,C) to m_data (B,S,C). bias (B,1,1,S) is 0 at visible keys and −10⁹ at others.
        pair_bias (H,T,S) is learned. Returns (B,T,output_width)."""
        width, head_width = q_data.shape[-1], q_data.shape[-1] // self.heads
        fan_in = hk.initializers.VarianceScaling(1.0, "fan_in", "truncated_normal")
        ones = hk.initializers.Constant(1.0)

        def weight(name: str, *shape: int, init=fan_in) -> jax.Array:
            return hk.get_parameter(name, shape, q_data.dtype, init)

        q = jnp.einsum("btc,chd->bthd", q_data, weight("query_w", width, self.heads, head_width))
        k = jnp.einsum("bsc,chd->bshd", m_data, weight("key_w", width, self.heads, head_width))
        v = jnp.einsum("bsc,chd->bshd", m_data, weight("value_w", width, self.heads, head_width))
        gate = jnp.einsum("btc,chd->bthd", q_data, weight("gating_w", width, self.heads, head_width))
        gate = gate + weight("gating_b", self.heads, head_width, init=ones)
        if self.fused:
            learned = None if pair_bias is None else pair_bias[None]
            y = gated_attention(q, k, v, gate, bias=learned, key_bias=bias, layout="bthd")
        else:
            scores = jnp.einsum("bthd,bshd->bhts", q * head_width**-0.5, k) + bias
            if pair_bias is not None:
                scores = scores + pair_bias
            y = jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(scores), v) * jax.nn.sigmoid(gate)
        output = jnp.einsum("bthd,hdo->bto", y, weight("output_w", self.heads, head_width, self.output_width))
        return output + weight("output_b", self.output_width)


@pytest.mark.parametrize("has_pair_bias", [True, False])
def test_attention_of_alphafold_is_one_call(has_pair_bias):
    random = np.random.default_rng(4)
    B, T, S, C, H = 3, 7, 9, 12, 3
    q_data, m_data = random.normal(size=(B, T, C)), random.normal(size=(B, S, C))
    mask = random.random((B, S)) < 0.7
    mask[1] = False  # all keys of this row are padding: each has the weight 1/S
    inputs = (q_data, m_data, 1e9 * (mask - 1.0)[:, None, None], random.normal(size=(H, T, S)))[: 3 + has_pair_bias]

    plain, fused = (
        hk.without_apply_rng(hk.transform(lambda *arrays, fused=fused: FoldingAttention(H, 5, fused)(*arrays)))
        for fused in (False, True)
    )
    parameters = plain.init(jax.random.key(0), *inputs)

    def results(attend):
        def loss(parameters, q_data, m_data, bias, *pair_bias):
            y = attend.apply(parameters, q_data, m_data, bias, *pair_bias)
            return (y**2).sum(), y

        wanted = (0, 1, 2, *[4] * has_pair_bias)
        return jax.jit(jax.value_and_grad(loss, wanted, has_aux=True))(parameters, *inputs)

    text = jax.jit(fused.apply).lower(parameters, *inputs).as_text()
    assert text.count("custom_call @headgate_") == 1
    for x, exact in zip(jax.tree.leaves(results(fused)), jax.tree.leaves(results(plain)), strict=True):
        np.testing.assert_allclose(x, exact, rtol=0, atol=1e-6 * float(jnp.abs(exact).max() + 1))  # scores near -1e9
