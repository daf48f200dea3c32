# SPDX-License-Identifier: Apache-2.0
"""jit, vmap, scan, remat, shard_map and donation: the results of plain calls, and one call of the library for each
transformed one."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

import headgate
from headgate.jax import gated_attention, gated_norm, linear_attention, short_convolution

RANDOM = np.random.default_rng(5)
N, B, HQ, HKV, T, S, D = 3, 2, 4, 2, 5, 6, 8


def normal(*shape: int) -> jax.Array:
    return jnp.asarray(RANDOM.normal(size=shape))


def attention_arrays(*lead: int) -> tuple[jax.Array, ...]:
    return normal(*lead, HQ, T, D), normal(*lead, HKV, S, D), normal(*lead, HKV, S, D), normal(*lead, HQ, T, 1)


def calls_in(function, *args) -> tuple[int, int]:
    """Returns how many FFI calls, and how many loops, a compiled function has."""
    text = jax.jit(function).lower(*args).as_text()
    return text.count("stablehlo.custom_call @headgate_"), text.count("stablehlo.while")


def assert_same(found, expected) -> None:
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert x.shape == y.shape and x.dtype == y.dtype
        np.testing.assert_allclose(x, y, rtol=1e-12, atol=1e-12)


def each_in_turn(function, axes, args):
    """Returns what vmap(function, axes) returns, by a call for each example."""
    rows = [function(*(x if at is None else x[i] for x, at in zip(args, axes))) for i in range(N)]
    return jax.tree.map(lambda *x: jnp.stack(x), *rows)


def with_gradients(function):
    def compute(*args):
        def loss(*inexact):
            return sum((y**2).sum() for y in jax.tree.leaves(function(*inexact)))

        return function(*args), jax.grad(loss, tuple(range(len(args))))(*args)

    return compute


def attend_with_bias(q, k, v, bias):
    return gated_attention(q, k, v, bias=bias, return_lse=True)


def attend_with_sinks(q, k, v, sinks):
    return gated_attention(q, k, v, sinks=sinks, causality="causal")


def convolve(x, weight, bias, state):
    return short_convolution(x, weight, bias, state=state, return_state=True)


def recur(q, k, v, decay, state):
    return linear_attention(q, k, v, decay, state=state, return_state=True)


RECURRENT = (normal(N, B, 2, T, D), normal(N, B, 2, T, D) / 3, normal(N, B, 4, T, D))
STATES = (-jnp.abs(normal(N, B, 4, T, 1)), normal(N, B, 4, D, D))
CHANNELS = (normal(N, B, T, 3), normal(N, 3, 4), normal(N, 3), normal(N, B, 3, 3))
NORM = (normal(N, B, HQ, T, D), normal(N, D), normal(N, B, HQ, T, D))
FOLDS = [
    ("attention", gated_attention, (0, 0, 0, 0), attention_arrays(N, B)),
    ("shared keys", gated_attention, (0, None, None, None), attention_arrays(N, 1)),
    ("shared queries", gated_attention, (None, 0, 0, None), attention_arrays(N, B)),
    ("no batch", gated_attention, (0, None, 0, 0), attention_arrays(N)),
    ("own bias", attend_with_bias, (0, 0, 0, 0), (*attention_arrays(N, B)[:3], normal(N, 1, HQ, T, S))),
    ("shared bias", attend_with_bias, (0, 0, None, None), (*attention_arrays(N, B)[:3], normal(N, T, S))),
    ("own sinks", attend_with_sinks, (0, 0, 0, 0), (*attention_arrays(N, B)[:3], normal(N, HQ))),
    ("shared sinks", attend_with_sinks, (0, None, 0, None), (*attention_arrays(N, B)[:3], normal(N, HQ))),
    ("sinks of queries", attend_with_sinks, (0, None, 0, 0), (*attention_arrays(N, B)[:3], normal(N, HQ, T))),
    ("linear attention", recur, (0, 0, 0, 0, 0), (*RECURRENT, *STATES)),
    ("shared state", recur, (0, None, None, None, None), (*RECURRENT, *STATES)),
    ("convolution", convolve, (0, None, None, 0), CHANNELS),
    ("own weights", convolve, (0, 0, None, None), CHANNELS),
    ("norm", gated_norm, (0, None, 0), NORM),
    ("own norms", gated_norm, (None, 0, None), NORM),
]


@pytest.mark.parametrize(("name", "function", "axes", "arrays"), FOLDS, ids=[row[0] for row in FOLDS])
def test_vmap_is_one_call(name, function, axes, arrays):
    args = [x if at == 0 else x[0] for x, at in zip(arrays, axes)]
    both = with_gradients(function)
    assert_same(jax.jit(jax.vmap(both, axes))(*args), each_in_turn(jax.jit(both), axes, args))
    assert calls_in(jax.vmap(function, axes), *args) == (1, 0)


EMPTY = [
    ("no queries", gated_attention, (normal(N, B, HQ, 0, D), *attention_arrays(N, B)[1:3], normal(N, B, HQ, 0, 1))),
    ("no keys", gated_attention, (normal(N, B, HQ, T, D), *[normal(N, B, HKV, 0, D)] * 2, normal(N, B, HQ, T, 1))),
    ("no queries with sinks", attend_with_sinks, (normal(N, B, HQ, 0, D), *attention_arrays(N, B)[1:3], normal(N, HQ))),
    ("no tokens", recur, (*(x[..., :0, :] for x in (*RECURRENT, STATES[0])), STATES[1])),
    ("no rows", convolve, (CHANNELS[0][:, :, :0], *CHANNELS[1:])),
    ("no rows to normalize", gated_norm, (NORM[0][:, :, :, :0], NORM[1], NORM[2][:, :, :, :0])),
]


@pytest.mark.parametrize(("name", "function", "args"), EMPTY, ids=[row[0] for row in EMPTY])
def test_vmap_of_empty_arrays_equals_separate_calls(name, function, args):
    axes = (0,) * len(args)
    both = with_gradients(function)
    assert_same(jax.vmap(both, axes)(*args), each_in_turn(both, axes, args))


def test_calls_within_disable_jit_give_the_same_result():
    arrays = attention_arrays(B)
    expected = with_gradients(gated_attention)(*arrays)
    with jax.disable_jit():
        assert_same(with_gradients(gated_attention)(*arrays), expected)


def test_packed_batch_has_a_largest_score_for_each_sequence():
    q, k, v, _ = (np.asarray(x) for x in attention_arrays())
    bounds = {"cu_seqlens_q": np.array([0, 2, 2, T]), "cu_seqlens_k": np.array([0, 2, S, S])}
    outputs = headgate.attention_forward(q, k, v, outputs=["y", "max_logit"], **bounds)
    found = gated_attention(q, k, v, return_max_logit=True, **bounds)
    assert found[1].shape == (3, HQ)
    assert_same(found, (outputs.y, outputs.max_logit))


def test_keys_that_examples_share_are_not_copied():
    q, k, v, _ = attention_arrays(N, 1)
    text = jax.jit(jax.vmap(gated_attention, (0, None, None))).lower(q, k[0], v[0]).as_text()
    call = next(line for line in text.splitlines() if "@headgate_gated_attention_forward" in line)
    assert f"(tensor<{N}x{HQ}x{T}x{D}xf64>, tensor<1x{HKV}x{S}x{D}xf64>, tensor<1x{HKV}x{S}x{D}xf64>)" in call


def test_nested_vmap_is_one_call():
    q, k, v, gate = attention_arrays(N, 1)
    inner = jax.vmap(with_gradients(gated_attention), (0, None, None, None))

    def outer(x, y):
        return jax.vmap(inner, (None, 0, None, 0))(x, y, v[0], gate)

    expected = [
        [jax.jit(with_gradients(gated_attention))(q[i], k[j], v[0], gate[j]) for i in range(N)] for j in range(N)
    ]
    rows = [jax.tree.map(lambda *x: jnp.stack(x), *row) for row in expected]
    assert_same(jax.jit(outer)(q, k), jax.tree.map(lambda *x: jnp.stack(x), *rows))


@pytest.mark.parametrize(
    "options",
    [
        {"key_lengths": jnp.array([[3, 0], [6, 1], [2, 2]])},
        {"query_offsets": jnp.array([[3, 0], [6, 1], [2, 2]]), "causality": "causal"},
        {"alibi_slopes": jnp.abs(normal(N, HQ))},
        {"mask": normal(N, B, 1, T, S) > -1},
        {"key_indices": jnp.asarray(RANDOM.integers(-1, S, size=(N, T, 3)))},
    ],
    ids=lambda options: next(iter(options)),
)
def test_vmap_of_other_inputs_is_one_call(options):
    q, k, v, _ = attention_arrays(N, B)
    own = {name: x for name, x in options.items() if name != "causality"}
    others = {name: x for name, x in options.items() if name == "causality"}

    def attend(q, own):
        return gated_attention(q, k[0], v[0], **own, **others)

    expected = jnp.stack([attend(q[i], {name: x[i] for name, x in own.items()}) for i in range(N)])
    assert_same(jax.vmap(attend)(q, own), expected)
    assert calls_in(jax.vmap(attend), q, own) == (1, 0)


def test_vmap_of_int8_keys_is_one_call():
    def quantized():
        return (x[:, None] for x in headgate.quantize(np.asarray(normal(N, HKV, S, D), np.float32)))

    q = np.asarray(normal(N, 1, HQ, T, D), np.float32)
    (k, k_scale), (v, v_scale) = (quantized() for _ in range(2))
    first = np.asarray(normal(N, 1, HKV, 2, D), np.float32)

    def attend(q, k, k_scale, first):
        scales = {"k_scale": k_scale, "v_scale": v_scale[0]}
        return gated_attention(q, k, v[0], **scales, k_first=first, v_first=first)

    for axes in ((0, 0, 0, 0), (0, None, None, None)):
        args = [x if at == 0 else x[0] for x, at in zip((q, k, k_scale, first), axes)]
        assert_same(jax.vmap(attend, axes)(*args), each_in_turn(attend, axes, args))
        assert calls_in(jax.vmap(attend, axes), *args) == (1, 0)


def test_vmap_of_dropout_and_of_packed_batches_takes_a_call_for_each_example():
    q, k, v, _ = attention_arrays(N, 1)
    dropped = functools.partial(gated_attention, dropout=0.3, dropout_seed=4)
    bounds = jnp.array([0, 2, 5])
    packed = functools.partial(gated_attention, cu_seqlens_q=bounds, cu_seqlens_k=jnp.array([0, 2, 6]))
    for function in (dropped, packed):
        assert_same(jax.vmap(function)(q, k, v), each_in_turn(function, (0, 0, 0), (q, k, v)))
        assert calls_in(jax.vmap(function), q, k, v) == (1, 1)


def test_scan_over_layers_equals_a_loop():
    layers = {"q": normal(N, D, D) / 3, "gate": normal(N, D, 1)}
    x = normal(B, HQ, T, D)

    def layer(x, weights):
        return x + gated_attention(x @ weights["q"], x, x, x @ weights["gate"], causality="causal"), None

    def scanned(layers, x, wrap=lambda f: f):
        return (jax.lax.scan(wrap(layer), x, layers)[0] ** 2).sum()

    def looped(layers, x):
        for i in range(N):
            x, _ = layer(x, jax.tree.map(lambda w, i=i: w[i], layers))
        return (x**2).sum()

    expected = jax.jit(jax.value_and_grad(looped, (0, 1)))(layers, x)
    assert_same(jax.jit(jax.value_and_grad(scanned, (0, 1)))(layers, x), expected)
    rematerialized = functools.partial(scanned, wrap=jax.checkpoint)
    assert_same(jax.jit(jax.value_and_grad(rematerialized, (0, 1)))(layers, x), expected)


def test_scan_over_tokens_continues_from_the_state():
    q, k, v = (x[0] for x in RECURRENT)

    def token(state, row):
        y, state = linear_attention(*(x[:, :, None] for x in row), state=state, return_state=True)
        return state, y[:, :, 0]

    rows = tuple(jnp.moveaxis(x, 2, 0) for x in (q, k, v))
    state, y = jax.lax.scan(token, jnp.zeros((B, 4, D, D)), rows)
    assert_same((jnp.moveaxis(y, 0, 2), state), linear_attention(q, k, v, return_state=True))


def test_only_the_gradients_that_are_asked_for_are_computed():
    q, k, v, gate = attention_arrays(B)
    text = jax.jit(jax.grad(lambda k: gated_attention(q, k, v, gate).sum())).lower(k).as_text()
    call = next(line for line in text.splitlines() if "@headgate_gated_attention_backward" in line)
    assert call.endswith(f"-> tensor<{B}x{HKV}x{S}x{D}xf64>")


def test_gradients_of_one_result_alone_are_those_of_the_numpy_package():
    arrays = attention_arrays(B)
    found = jax.grad(lambda *x: gated_attention(*x, return_lse=True)[1].sum(), (0, 1, 2, 3))(*arrays)
    q, k, v, gate = map(np.asarray, arrays)
    saved = headgate.attention_forward(q, k, v, gate)
    zeros, ones = np.zeros_like(q), np.ones(q.shape[:3])
    expected = headgate.attention_backward(zeros, q, k, v, gate, y=saved.y, lse=saved.lse, dlse=ones)
    assert_same(found, [expected.dq, expected.dk, expected.dv, expected.dgate])

    q, k, v = (np.asarray(x[0]) for x in RECURRENT)
    found = jax.grad(lambda *x: linear_attention(*x, return_state=True)[1].sum(), (0, 1, 2))(q, k, v)
    expected = headgate.linear_attention_backward(np.zeros_like(v), q, k, v, dstate=np.ones((B, 4, D, D)))
    assert_same(found, [expected.dq, expected.dk, expected.dv])


@pytest.mark.parametrize("spec", [("data", None), (None, "data")], ids=["batch", "heads"])
def test_shard_map_over_two_devices(spec):
    q, k, v, gate = attention_arrays(B)
    mesh = Mesh(np.array(jax.devices("cpu")[:2]), ("data",))
    rows, heads = PartitionSpec(*spec), PartitionSpec(spec[1])
    sinks = normal(HQ)

    @functools.partial(jax.shard_map, mesh=mesh, in_specs=(rows, rows, rows, rows, heads), out_specs=rows)
    def attend(q, k, v, gate, sinks):
        return gated_attention(q, k, v, gate, sinks=sinks, causality="causal")

    def plain(q, k, v, gate, sinks):
        return gated_attention(q, k, v, gate, sinks=sinks, causality="causal")

    both = [jax.jit(with_gradients(f))(q, k, v, gate, sinks) for f in (attend, plain)]
    assert_same(*both)
    assert_same(attend(q, k, v, gate, sinks), both[1][0])  # without jit


def test_shard_map_of_the_other_operations():
    mesh = Mesh(np.array(jax.devices("cpu")[:2]), ("data",))
    shard, whole = PartitionSpec("data"), PartitionSpec()
    cases = [
        (recur, [x[0] for x in (*RECURRENT, *STATES)], (shard,) * 5),
        (convolve, [x[0] for x in CHANNELS], (shard, whole, whole, shard)),
        (gated_norm, [x[0] for x in NORM], (shard, whole, shard)),
    ]
    for function, args, specs in cases:
        sharded = jax.shard_map(function, mesh=mesh, in_specs=specs, out_specs=shard)
        assert_same(jax.jit(with_gradients(sharded))(*args), jax.jit(with_gradients(function))(*args))


@pytest.mark.parametrize("axis_type", [jax.sharding.AxisType.Auto, jax.sharding.AxisType.Explicit], ids=str)
def test_sharded_arrays_under_jit_alone_give_the_same_result(axis_type):
    arrays = attention_arrays(B)
    expected = jax.jit(with_gradients(gated_attention))(*arrays)
    mesh = jax.make_mesh((2,), ("data",), (axis_type,))
    shard = jax.sharding.NamedSharding(mesh, PartitionSpec("data"))
    with jax.set_mesh(mesh):
        assert_same(jax.jit(with_gradients(gated_attention))(*(jax.device_put(x, shard) for x in arrays)), expected)


def test_donated_arrays_give_the_same_result():
    q, k, v, gate = attention_arrays(B)
    expected = gated_attention(q, k, v, gate)
    donated = jax.jit(gated_attention, donate_argnums=0)
    found = donated(q.copy(), k, v, gate)
    assert_same(found, expected)


def test_seed_that_is_an_array_has_the_bits_of_the_number():
    q, k, v, _ = attention_arrays(B)
    attend = jax.jit(lambda seed: gated_attention(q, k, v, dropout=0.5, dropout_seed=seed))
    for dtype in (jnp.int32, jnp.int64, jnp.uint32, jnp.uint64):
        expected = headgate.attention(*map(np.asarray, (q, k, v)), dropout=0.5, dropout_seed=77)
        np.testing.assert_array_equal(attend(jnp.array(77, dtype)), expected)

    def loss(q, seed):
        return (gated_attention(q, k, v, dropout=0.5, dropout_seed=seed) ** 2).sum()

    assert_same(jax.jit(jax.grad(loss))(q, jnp.array(77)), jax.grad(loss)(q, 77))


def test_x64_off_keeps_precision_and_dtypes():
    arrays = [np.asarray(x, np.float32) * 100 for x in attention_arrays(B)]
    dy = RANDOM.normal(size=arrays[0].shape).astype(np.float32)
    saved = headgate.attention_forward(*arrays)
    expected = headgate.attention_backward(dy, *arrays, y=saved.y, lse=saved.lse)
    with jax.enable_x64(False):
        y, pull_back = jax.vjp(gated_attention, *map(jnp.asarray, arrays))
        found = pull_back(jnp.asarray(dy))
        lse = gated_attention(*map(jnp.asarray, arrays), return_lse=True)[1]
    assert lse.dtype == jnp.float32
    np.testing.assert_array_equal(lse, saved.lse.astype(np.float32))
    for x, name in zip((y, *found), ("y", "dq", "dk", "dv", "dgate")):
        assert x.dtype == jnp.float32
        np.testing.assert_array_equal(x, saved.y if name == "y" else getattr(expected, name))
