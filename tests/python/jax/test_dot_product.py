# SPDX-License-Identifier: Apache-2.0
"""dot_product_attention computes what jax.nn.dot_product_attention does, for each of its arguments."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from headgate.jax import dot_product_attention

B, T, S, HQ, HKV, D = 2, 5, 7, 4, 2, 8
RANDOM = np.random.default_rng(12)


def normal(*shape: int) -> np.ndarray:
    return RANDOM.normal(size=shape).astype(np.float32)  # the masks of JAX 0.10.0 make NaN of float64


QUERY, KEY, VALUE = normal(B, T, HQ, D), normal(B, S, HKV, D), normal(B, S, HKV, D)
VISIBLE = RANDOM.random((B, 1, T, S)) < 0.6
VISIBLE[..., range(T), [0, 0, 1, 2, 3]] = True  # each query sees a key at least, under all arguments together too

ARGUMENTS = {
    "bias": [normal(B, HQ, T, S), normal(HQ, T, S), normal(1, 1, T, S)],
    "mask": [VISIBLE, VISIBLE[0]],
    "scale": [0.3],
    "is_causal": [True],
    "query_seq_lengths": [np.array([3, 5], np.int32)],
    "key_value_seq_lengths": [np.array([7, 4], np.int32)],
    "local_window_size": [2, (3, 1), (0, 2)],
    "return_residual": [True],
}
"""Values to try for each argument. implementation is refused."""


def results(attend, given):
    """Returns the results of a call and its gradients."""
    arrays = {"query": QUERY, "key": KEY, "value": VALUE}
    arrays |= {name: x for name, x in given.items() if name == "bias"}
    options = {name: x for name, x in given.items() if name != "bias"}

    def loss(arrays):
        found = attend(**arrays, **options)
        y = found[0] if isinstance(found, tuple) else found
        return (y**2).sum(), found

    return jax.value_and_grad(loss, has_aux=True)({name: jnp.asarray(x) for name, x in arrays.items()})


def assert_close(found, expected):
    for x, exact in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert x.shape == exact.shape and x.dtype == exact.dtype
        np.testing.assert_allclose(x, exact, rtol=0, atol=5e-6 * float(jnp.abs(exact).max()))


CASES = [
    {},
    *[{name: value} for name, values in ARGUMENTS.items() for value in values],
    *[
        {name: values[0] for name, values in ARGUMENTS.items() if name != left_out}
        for left_out in ("scale", "mask", "bias")
    ],
]


@pytest.mark.parametrize("given", CASES, ids=lambda given: "+".join(given))
def test_each_argument_has_the_results_of_jax_nn(given):
    found, expected = (results(attend, given) for attend in (dot_product_attention, jax.nn.dot_product_attention))
    if "query_seq_lengths" in given and "return_residual" in given:
        (value, (y, lse)), gradients = found  # jax.nn has a finite log-sum-exp where a row is no query
        rows = np.arange(T) < given["query_seq_lengths"][:, None]
        assert np.isneginf(lse[~rows]).all()
        lse = jnp.where(rows[..., None], lse, expected[0][1][1])
        found = (value, (y, lse)), gradients
    assert_close(found, expected)


def test_arguments_are_those_of_jax_nn():
    def parameters(function):
        return {name: (own.kind, own.default) for name, own in inspect.signature(function).parameters.items()}

    ours, theirs = parameters(dot_product_attention), parameters(jax.nn.dot_product_attention)
    assert {name: own for name, own in ours.items() if name != "gate"} == theirs
    assert theirs.keys() == {"query", "key", "value", "implementation", *ARGUMENTS}


@pytest.mark.parametrize("features", [1, D])
def test_gate_multiplies_the_output(features):
    gate = normal(B, T, HQ, features)
    y = dot_product_attention(QUERY, KEY, VALUE, gate=gate, is_causal=True)
    expected = jax.nn.dot_product_attention(QUERY, KEY, VALUE, is_causal=True) * jax.nn.sigmoid(gate)
    np.testing.assert_allclose(y, expected, atol=2e-6)


def test_arrays_without_a_batch():
    given = {"bias": normal(HQ, T, S), "return_residual": True}
    found = dot_product_attention(QUERY[0], KEY[0], VALUE[0], **given, gate=np.full((T, HQ, 1), 100, np.float32))
    assert_close(found, jax.nn.dot_product_attention(QUERY[0], KEY[0], VALUE[0], **given))


def test_bias_and_mask_of_one_column_are_for_all_keys():
    rows = np.arange(T)[:, None] < 3
    for given, full in (
        ({"mask": rows}, {"mask": np.broadcast_to(rows, (T, S))}),
        ({"bias": normal(HQ, T, 1)}, {}),  # a number added to all scores of a row has no effect
    ):
        found = dot_product_attention(QUERY, KEY, VALUE, **given)
        assert_close(found, dot_product_attention(QUERY, KEY, VALUE, **full))


def test_row_that_sees_no_key_is_zero():
    y, lse = dot_product_attention(QUERY, KEY, VALUE, mask=np.zeros((T, S), bool), return_residual=True)
    assert not y.any() and np.isneginf(lse).all()


@pytest.mark.parametrize(
    "change, message",
    [
        ({"implementation": "cudnn"}, "implementation is 'cudnn' but must be None: Headgate computes the call"),
        (
            {"local_window_size": -1},
            "local_window_size is -1 but must be a number of keys, or (left, right), from 0 on",
        ),
        ({"local_window_size": (1, 2, 3)}, "local_window_size is (1, 2, 3) but must be"),
        ({"local_window_size": (1, 2.5)}, "local_window_size is (1, 2.5) but must be"),
        ({"is_causal": 1}, "is_causal is 1 but must be True or False"),
        ({"return_residual": "yes"}, "return_residual is 'yes' but must be True or False"),
        ({"key": KEY[0]}, "key has shape (7, 2, 8) but must be (B,T,H,D)"),
        ({"query": QUERY[0]}, "key has shape (2, 7, 2, 8) but must be (T,H,D), as query is"),
        ({"gate": QUERY[0]}, "gate has shape (5, 4, 8) but must be (B,T,H,D)"),
        ({"query_seq_lengths": np.ones(3, np.int32)}, "query_seq_lengths has shape (3,) and dtype int32 but must be"),
        ({"query_seq_lengths": np.ones(2)}, "query_seq_lengths has shape (2,) and dtype float64 but must be"),
        (
            {"key_value_seq_lengths": np.ones((2, 1), np.int32)},
            "key_value_seq_lengths has shape (2, 1) and dtype int32",
        ),
        ({"mask": np.ones((T, S))}, "mask"),
        ({"bias": np.ones((1, 1, 1, T, S), np.float32)}, "bias"),
        ({"bias": np.ones((3, T, S), np.float32)}, "bias"),
        ({"key_value_seq_lengths": np.array([7, 8], np.int32)}, "key_lengths[1] is 8 but must be 0 to S = 7"),
    ],
)
def test_errors(change, message):
    arguments = {"query": QUERY, "key": KEY, "value": VALUE, **change}
    with pytest.raises((ValueError, jax.errors.JaxRuntimeError)) as raised:
        jax.block_until_ready(dot_product_attention(**arguments))
    text = str(raised.value)
    assert message in text and "\n" not in text


@pytest.mark.parametrize("name", ["query_seq_lengths", "key_value_seq_lengths"])
def test_lengths_that_jax_would_cut_are_refused(name):
    with jax.enable_x64(False), pytest.raises(ValueError, match=f"{name} contains 4294967299, which int32 cannot hold"):
        dot_product_attention(QUERY, KEY, VALUE, **{name: np.array([3, 2**32 + 3])})
