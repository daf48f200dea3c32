# SPDX-License-Identifier: Apache-2.0
"""One line that names the function and the argument: when JAX traces the call where shapes, dtypes and options decide,
otherwise when it runs."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import headgate
from cases import CASES
from headgate.jax import gated_attention, gated_norm, linear_attention, short_convolution
from headgate.jax.differentiable import OPERATIONS

Q, K, GATE = jnp.ones((2, 4, 5, 8)), jnp.ones((2, 2, 7, 8)), jnp.ones((2, 4, 5, 1))

TRACED = {
    "batch": (lambda: gated_attention(Q, K[:1], K), "k has shape (1,2,7,8) but q has shape (2,4,5,8): B is 1 and 2"),
    "rank": (lambda: gated_attention(Q[0, 0], K, K), "q has shape (5,8) but must be (B,H,T,D) or (H,T,D)"),
    "many dimensions": (
        lambda: gated_attention(Q[None], K, K),
        "q has shape (1,2,4,5,8) but must be (B,H,T,D) or (H,T,D)",
    ),
    "layout": (lambda: gated_attention(Q, K, K, layout="thd"), "layout: 'thd' is none of bhtd, bthd"),
    "dtype": (
        lambda: gated_attention(Q, K, K, mask=jnp.ones((5, 7), jnp.uint8)),
        "mask has dtype uint8 but must be one of float32, float64, bfloat16, float16, bool, int32, int64, int8",
    ),
    "dtypes": (lambda: gated_attention(Q, K.astype(jnp.float32), K), "k has dtype f32 but q has dtype f64"),
    "word": (
        lambda: gated_attention(Q, K, K, GATE, gate_fn="tanh"),
        "gate_fn: 'tanh' is none of sigmoid, sigmoid2, ns_sigmoid, silu, softplus, identity, none",
    ),
    "softcap": (lambda: gated_attention(Q, K, K, softcap=-1), "softcap is -1 but must be 0 for none, or positive"),
    "no number": (lambda: gated_attention(Q, K, K, softcap="1"), "softcap is '1' but must be a number"),
    "flag for a number": (
        lambda: linear_attention(Q, Q, Q, l2_norm=True),
        "l2_norm is True but must be a number or None",
    ),
    "flag for an integer": (
        lambda: gated_attention(Q, K, K, window_left=np.True_),
        "window_left is np.True_ but must be a whole number",
    ),
    "several lines": (
        lambda: gated_attention(Q, K, K, scale=np.ones((9, 2))),
        "scale is an array of float64 but must be a number",
    ),
    "lines in a word": (lambda: gated_attention(Q, K, K, layout="a\nb"), "layout: 'a\\x0ab' is none of bhtd, bthd"),
    "masked": (
        lambda: gated_attention(np.ma.array(np.ones(Q.shape), mask=True), K, K),
        "q is an array of float64, which JAX does not take: ",
    ),
    "no integer": (lambda: gated_attention(Q, K, K, window_left=1.5), "window_left is 1.5 but must be a whole number"),
    "huge integer": (
        lambda: gated_attention(Q, K, K, window_left=2**63),
        "window_left is 9223372036854775808 but must",
    ),
    "threads": (lambda: gated_attention(Q, K, K, threads=0), "threads is 0 but must be 1 to"),
    "target": (lambda: gated_attention(Q, K, K, target="x"), "target: find_target names vector target 'x'"),
    "bounds": (
        lambda: gated_attention(Q[:1], K[:1], K[:1], cu_seqlens_q=jnp.array([0, 5])),
        "cu_seqlens_q is given but",
    ),
    "seed": (lambda: gated_attention(Q, K, K, dropout=0.1), "dropout needs dropout_seed, such as jax.random.bits(key)"),
    "seeds": (
        lambda: gated_attention(Q, K, K, dropout=0.1, dropout_seed=jnp.ones(2)),
        "dropout_seed has shape (2,) and dtype float64 but must be one integer",
    ),
    "key as a seed": (
        lambda: gated_attention(Q, K, K, dropout=0.1, dropout_seed=jax.random.key(0)),
        "dropout_seed has shape () and dtype key<",
    ),
    "max_logit": (lambda: gated_attention(Q, K, K, return_max_logit="all"), "return_max_logit is 'all' but must be"),
    "flag": (lambda: gated_attention(Q, K, K, return_lse="no"), "return_lse is 'no' but must be True or False"),
    "traced flag": (
        lambda: jax.jit(lambda flag: linear_attention(Q, Q, Q, return_state=flag))(True),
        "return_state is traced but must be True or False",
    ),
    "huge shape": (
        lambda: jax.eval_shape(gated_attention, *[jax.ShapeDtypeStruct((1, 1, 2**55, 64), jnp.float32)] * 3),
        "y of shape (1,1,36028797018963968,64) exceeds the memory",
    ),
    "one bound": (
        lambda: gated_attention(Q[:1], K[:1], K[:1], cu_seqlens_q=jnp.array([0]), cu_seqlens_k=jnp.array([0])),
        "cu_seqlens_q[0] is 0 but must be",
    ),
    "huge length": (
        lambda: linear_attention(Q, Q, Q, snapshot_lengths=[2**40]),
        "snapshot_lengths contains 1099511627776 but a length must be 0 to",
    ),
    "linear": (lambda: linear_attention(Q, Q, K), "q has shape (2,4,5,8) but v has shape (2,2,7,8): T is 5 and 7"),
    "rule": (lambda: linear_attention(Q, Q, Q, GATE, rule="delta"), "decay is given but the rule delta has none"),
    "taps": (
        lambda: short_convolution(Q[0], jnp.ones((8, 9))),
        "weight has shape (1,1,8,9): K is 9 but must be 2 to 8",
    ),
    "eps": (lambda: gated_norm(Q, eps=-1.0), "eps is -1 but must be"),
}


@pytest.mark.parametrize("name", TRACED)
def test_wrong_arguments_are_refused_when_the_call_is_traced(name):
    call, message = TRACED[name]
    with pytest.raises(ValueError) as caught:
        jax.eval_shape(call)
    function, _, rest = str(caught.value).partition(": ")
    assert function in CASES
    assert rest.startswith(message) and "\n" not in rest


TYPES = {
    "tensor": (
        lambda: gated_attention(torch.ones(2, 4, 5, 8), K, K),
        "q is a Tensor but must be an array of JAX or NumPy",
    ),
    "objects": (
        lambda: gated_attention(np.full((1, 1, 1, 8), None), K, K),
        "q has dtype object, which JAX does not have",
    ),
    "byte order": (
        lambda: gated_attention(np.ones(Q.shape, ">f4"), K, K),
        "q has dtype >f4 but must be in this machine's byte order",
    ),
    "flags for lengths": (
        lambda: linear_attention(Q, Q, Q, snapshot_lengths=[True]),
        "snapshot_lengths is a list with a bool but must be an array or a list of integers",
    ),
    "none": (lambda: gated_attention(Q, None, K), "k is required but None"),
    "lengths": (
        lambda: linear_attention(Q, Q, Q, snapshot_lengths=[1.5]),
        "snapshot_lengths is a list with a float but must be an array or a list of integers",
    ),
}


@pytest.mark.parametrize("name", TYPES)
def test_wrong_types_are_refused(name):
    call, message = TYPES[name]
    with pytest.raises(TypeError) as caught:
        call()
    assert str(caught.value).endswith(message)


def test_unknown_arguments_are_refused_with_a_suggestion():
    with pytest.raises(
        TypeError,
        match=r"^gated_attention\(\) got an unexpected keyword argument 'causalty'; did you mean causality\?$",
    ):
        gated_attention(Q, K, K, causalty="causal")
    with pytest.raises(TypeError, match="it is called gate$"):
        gated_attention(Q, K, K, gate_logits=GATE)


def test_integers_that_jax_would_cut_are_refused():
    q, k = Q.astype(jnp.float32), K.astype(jnp.float32)
    with jax.enable_x64(False):
        for name, value in (("key_lengths", np.array([3, 2**32 + 1])), ("dropout_seed", np.array(2**40 + 5))):
            message = (
                f"^gated_attention: {name} contains {value.max()}, which int32 cannot hold: enable jax_enable_x64$"
            )
            with pytest.raises(ValueError, match=message):
                gated_attention(q, k, k, dropout=0.1, **{"dropout_seed": 1, name: value})


def test_none_is_the_default_of_options_that_have_it_elsewhere():
    given = dict.fromkeys(("dropout_seed", "backend", "target", "threads"))
    np.testing.assert_array_equal(gated_attention(Q, K, K, **given), gated_attention(Q, K, K))


def test_options_that_jax_traces_are_refused():
    with pytest.raises(
        ValueError, match="^gated_attention: scale is traced but must be known .* static_argnames of jit"
    ):
        jax.jit(lambda scale: gated_attention(Q, K, K, scale=scale))(1.0)


def test_wrong_elements_are_refused_when_the_call_runs():
    attend = jax.jit(lambda lengths: gated_attention(Q, K, K, key_lengths=lengths))
    assert attend(jnp.array([7, 0])).shape == Q.shape
    with pytest.raises(
        (ValueError, jax.errors.JaxRuntimeError), match=r"gated_attention: key_lengths\[1\] is 8 but must be 0 to S = 7"
    ):
        attend(jnp.array([7, 8])).block_until_ready()


@pytest.mark.parametrize("operation", CASES)
def test_derivatives_that_are_lacking_are_refused_by_name(operation):
    case = CASES[operation][1]
    first = OPERATIONS[operation].required[0]
    others = {name: jnp.asarray(x) for name, x in case.arrays.items() if name != first}
    function = getattr(headgate.jax, operation)

    def loss(x):
        return (function(**{first: x}, **others, **case.options) ** 2).sum()

    x = jnp.asarray(case.arrays[first])
    message = (
        f"^{operation}: gradients of gradients and forward-mode derivatives, as of jvp, jacfwd and hessian, are not"
    )
    with pytest.raises(NotImplementedError, match=message):
        jax.jvp(loss, (x,), (x,))
    for transform in (
        lambda: jax.grad(lambda x: jax.grad(loss)(x).sum())(x),
        lambda: jax.hessian(loss)(x),
        lambda: jax.jacfwd(jax.grad(loss))(x),
    ):
        with pytest.raises(NotImplementedError, match=message):
            jax.eval_shape(transform)


def test_forward_mode_under_jit_is_refused_by_jax():
    with pytest.raises(TypeError, match="forward-mode"):
        jax.jit(lambda q: jax.jvp(lambda q: gated_attention(q, K, K), (q,), (q,)))(Q)


@pytest.mark.parametrize(
    ("name", "value"), [("alibi_slopes", jnp.ones(4)), ("key_bias", jnp.ones((1, 1, 1, 7)))], ids=["slopes", "key_bias"]
)
def test_gradients_that_an_input_lacks_are_refused(name, value):
    def loss(q, other):
        return gated_attention(q, K, K, **{name: other}).sum()

    message = f"^gated_attention: {name} is differentiated but has no gradient: use jax.lax.stop_gradient"
    with pytest.raises(ValueError, match=message):
        jax.grad(loss, (0, 1))(Q, value)
    assert jax.grad(lambda q, other: loss(q, jax.lax.stop_gradient(other)), (0, 1))(Q, value)[1].any() == False  # noqa: E712
    assert jax.jit(jax.grad(loss))(Q, value).shape == Q.shape


def test_calls_without_gradients_are_refused_under_grad():
    quantized, scale = headgate.quantize(np.asarray(K))
    with pytest.raises(ValueError, match="^gated_attention: with k_scale there are no gradients"):
        jax.grad(lambda q: gated_attention(q, quantized, quantized, k_scale=scale, v_scale=scale).sum())(Q)
    with pytest.raises(ValueError, match="^gated_attention: with gate_threshold there are no gradients"):
        jax.grad(lambda q: gated_attention(q, K, K, GATE, gate_threshold=0.1).sum())(Q)


def test_package_without_handlers_says_so():
    program = "import sys; sys.modules['headgate._jax'] = None\nimport headgate\nimport headgate.jax"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert found.returncode == 1
    message = "ImportError: headgate.jax: this build of the package has no handlers for JAX: build it with jaxlib"
    assert found.stderr.splitlines()[-1].startswith(message)


@pytest.mark.parametrize("dtype", ("float32", "bfloat16"))
def test_array_of_jax_as_output_of_other_functions_is_refused(dtype):
    """Arrays of JAX are immutable: a program may share the memory of several."""
    x, out = jnp.ones((1, 2, 3, 8), dtype), jnp.zeros((1, 2, 3, 8), dtype)
    with pytest.raises(
        ValueError, match="^attention: y is an array of JAX, which is read-only: give an array of NumPy$"
    ):
        headgate.attention(x, x, x, out=out)
    assert (out == 0).all()


@pytest.mark.parametrize("name", CASES)
def test_symbolic_sizes_are_refused_by_name(name):
    function = getattr(headgate.jax, name)
    case = CASES[name][0]
    arrays = case.arrays
    (batch,) = jax.export.symbolic_shape("b")
    for symbolic in arrays:
        given = {
            key: jax.ShapeDtypeStruct((batch, *x.shape[1:]) if key == symbolic else x.shape, x.dtype)
            for key, x in arrays.items()
        }
        with pytest.raises(ValueError, match=rf"^{name}: {symbolic} has shape \(b.*\) but its sizes must be numbers"):
            jax.export.export(jax.jit(lambda given: function(**given, **case.options)))(given)
