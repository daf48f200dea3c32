# SPDX-License-Identifier: Apache-2.0
"""Calls of equal shapes of which different inputs are differentiated, in one program and one after the other."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from headgate.jax import differentiable, gated_attention, gated_norm, linear_attention, short_convolution

RANDOM = np.random.default_rng(7)
B, H, T, D = 2, 2, 5, 4


def normal(*shape: int) -> jax.Array:
    return jnp.asarray(RANDOM.normal(size=shape))


HEADS = {name: normal(B, H, T, D) for name in ("q", "k", "v")}
CASES = {
    "attention": (gated_attention, {**HEADS, "gate": normal(B, H, T, 1), "bias": normal(H, T, T), "sinks": normal(H)}),
    "linear_attention": (
        linear_attention,
        {**HEADS, "decay": -abs(normal(B, H, T, 1)), "beta": normal(B, H, T, 1), "state": normal(B, H, D, D)},
    ),
    "short_convolution": (
        short_convolution,
        {"x": normal(B, T, D), "weight": normal(D, 3), "bias": normal(D), "state": normal(B, 2, D)},
    ),
    "gated_norm": (gated_norm, {"x": HEADS["q"], "weight": normal(D), "gate": HEADS["k"]}),
}


def loss(function, arrays):
    return (function(**arrays) ** 2).sum()


def subsets_of(names):
    """Returns all names, each alone, and all but each."""
    names = list(names)
    return [names, *([name] for name in names), *([other for other in names if other != name] for name in names)]


def assert_near(found, expected):
    np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("name", CASES)
def test_two_calls_in_a_row_have_their_own_gradients(name):
    """The second call takes the result of the first one for its first input."""
    function, arrays = CASES[name]
    lead = next(iter(arrays))
    y, back = jax.vjp(lambda x: function(**x), arrays)
    of_second = jax.grad(lambda x: loss(function, x))(arrays | {lead: y})
    of_first = back(of_second.pop(lead))[0]

    def total(x, first, second):
        y = function(**arrays | {name: x[name] for name in first})
        return loss(function, arrays | {name: x[name] for name in second} | {lead: y})

    whole, *others = subsets_of(arrays)
    for first, second in [(whole, whole), *zip(others, [whole] * len(others)), *zip([whole] * len(others), others)]:
        differentiable._function.cache_clear()  # JAX keeps what it has traced of a function
        found = jax.grad(total)(arrays, first, second)
        for input_name, gradient in found.items():
            expected = of_first[input_name] if input_name in first else jnp.zeros_like(gradient)
            if input_name in second and input_name != lead:
                expected += of_second[input_name]
            assert_near(gradient, expected)


def in_scan(f, x):
    return jax.lax.scan(lambda sum, _: (sum + f(x), None), 0.0, None, length=1)[0]


WRAPPERS = {
    "plain": lambda f, x: f(x),
    "jit": lambda f, x: jax.jit(f)(x),
    "checkpoint": lambda f, x: jax.checkpoint(f)(x),
    "scan": in_scan,
    "cond": lambda f, x: jax.lax.cond(True, f, lambda x: 0.0 * f(x), x),
    "vmap": lambda f, x: jax.vmap(f)(jax.tree.map(lambda y: y[None], x))[0],
    "fori_loop": lambda f, x: jax.lax.fori_loop(0, 1, lambda _, sum: sum + f(x), 0.0),
}


@pytest.mark.parametrize("name", CASES)
def test_gradients_do_not_depend_on_earlier_calls(name):
    function, arrays = CASES[name]
    expected = jax.grad(lambda x: loss(function, x))(arrays)
    subsets = subsets_of(arrays)
    for wrapper in RANDOM.permutation(list(WRAPPERS)).tolist() * 2:
        for wanted in (subsets[0], subsets[RANDOM.integers(1, len(subsets))], subsets[0]):
            others = {name: x for name, x in arrays.items() if name not in wanted}
            given = {name: arrays[name] for name in wanted}
            found = jax.grad(lambda x: WRAPPERS[wrapper](lambda x: loss(function, x | others), x))(given)  # noqa: B023
            for input_name, gradient in found.items():
                assert_near(gradient, expected[input_name])


def test_two_layers_of_which_one_is_frozen_have_the_gradients_of_the_formula():
    x, weight, frozen = normal(B, H, T, D), normal(D), normal(D)

    def formula(x, weight):
        return x / jnp.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * weight

    def total(norm):
        return lambda x, weight: (norm(norm(x, weight), frozen) * HEADS["v"]).sum()

    found, expected = (
        jax.grad(total(norm), (0, 1))(x, weight) for norm in (lambda x, w: gated_norm(x, w, eps=1e-6), formula)
    )
    for ours, right in zip(found, expected):
        np.testing.assert_allclose(ours, right, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", CASES)
def test_inputs_of_which_some_are_sharded_have_gradients(name):
    function, arrays = CASES[name]
    expected = jax.grad(lambda x: loss(function, x))(arrays)
    mesh = Mesh(np.array(jax.devices("cpu")[:2]), ("data",))
    for sharded in subsets_of(arrays):
        given = dict(arrays)
        for input_name in sharded:
            x = arrays[input_name]
            axes = [None] * x.ndim
            axes[0] = "data" if x.shape[0] % 2 == 0 else None
            given[input_name] = jax.device_put(x, NamedSharding(mesh, PartitionSpec(*axes)))
        for transform in (lambda f: f, jax.jit):
            found = transform(jax.grad(lambda x: loss(function, x)))(given)
            for input_name, gradient in found.items():
                assert_near(gradient, expected[input_name])
