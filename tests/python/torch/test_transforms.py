# SPDX-License-Identifier: Apache-2.0
"""gated_attention under torch.func: derivatives and batches are those of autograd and of loops."""

import pytest
import torch
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

import plain
from headgate.torch import (
    GatedAttention,
    GatedDeltaNet,
    gated_attention,
    gated_norm,
    linear_attention,
    scaled_dot_product_attention,
    short_convolution,
)

X, B, H, T, S, D = 3, 2, 4, 5, 6, 3


def normal(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def assert_near(ours, expected):
    torch.testing.assert_close(ours, expected, rtol=1e-11, atol=1e-11)


CASES = {
    "plain": {},
    "causal": {"causality": "causal"},
    "silu gate": {"gate_fn": "silu"},
    "bias": {"bias": normal(1, H, T, S)},
    "sinks": {"sinks": normal(H)},
    "sinks of each query": {"sinks": normal(B, H, T)},
    "mask": {"mask": torch.rand(B, 1, T, S) > 0.3},
}


@pytest.fixture
def tensors():
    return normal(X, B, H, T, D), normal(B, 2, S, D), normal(X, B, 2, S, D), normal(B, H, T, 1)


def of(function, options):
    return lambda q, k, v, z: function(q, k, v, z, **options)


def total_of(call):
    return lambda *x: call(*x).square().sum()


def formula(q, k, v, z, **options):
    return plain.attention(q, k, v, z, **options)[0]


@pytest.mark.parametrize("name", CASES)
def test_gradients_match_the_formulas(name, tensors):
    q, k, v, z = tensors[0][0], tensors[1], tensors[2][0], tensors[3]
    found = []
    for function in (gated_attention, formula):
        call = of(function, CASES[name])
        found.append(grad(total_of(call), argnums=(0, 1, 2, 3))(q, k, v, z))
        found[-1] += vjp(call, q, k, v, z)[1](torch.ones(B, H, T, D, dtype=torch.float64))
    for ours, expected in zip(*found, strict=True):
        assert_near(ours, expected)


@pytest.mark.parametrize("name", CASES)
def test_batches_and_gradients_of_examples_match_a_loop(name, tensors):
    options, in_dims = CASES[name], (0, None, 0, None)
    call = of(gated_attention, options)
    y = vmap(call, in_dims)(*tensors)
    one = grad(lambda *x: call(*x).square().sum(), argnums=(0, 1, 2, 3))
    gradients = vmap(one, in_dims)(*tensors)
    for i in range(X):
        example = [x[i] if at == 0 else x for x, at in zip(tensors, in_dims)]
        assert_near(y[i], formula(*example, **options))
        for ours, expected in zip(gradients, one(*example), strict=True):
            assert_near(ours[i], expected)
    whole = grad(lambda *x: vmap(call, in_dims)(*x).square().sum(), argnums=(0, 1, 2, 3))(*tensors)
    for ours, of_examples, at in zip(whole, gradients, in_dims):
        assert_near(ours, of_examples if at == 0 else of_examples.sum(0))


def test_jacobians_match_the_formulas():
    q, k, z = normal(2, 3, D), normal(2, 3, D), normal(2, 3, 1)
    for at in range(3):
        ours = jacrev(lambda q, k, z: gated_attention(q, k, k, z, gate_fn="silu", causality="causal"), argnums=at)
        theirs = jacrev(
            lambda q, k, z: formula(q[None], k[None], k[None], z[None], gate_fn="silu", causality="causal")[0],
            argnums=at,
        )
        assert_near(ours(q, k, z), theirs(q, k, z))


def test_log_sum_exp_has_a_gradient_and_a_batch():
    q, k = normal(X, B, H, T, D), normal(X, B, H, T, D)

    def total(function):
        return lambda q, k: function(q, k)[1].square().sum()

    ours, theirs = (
        vmap(grad(total(function)))(q, k)
        for function in (lambda q, k: gated_attention(q, k, k, return_lse=True), lambda q, k: plain.attention(q, k, k))
    )
    assert_near(ours, theirs)


def test_examples_of_other_dimensions_match_a_loop():
    q, masks = normal(B, H, X, T, D), torch.rand(X, B, 1, T, T) > 0.4
    masks[..., 0] = True
    y = vmap(lambda q, mask: gated_attention(q, q, q, mask=mask), in_dims=(2, 0), out_dims=1)(q, masks)
    for i in range(X):
        assert_near(y[:, i], formula(q[:, :, i], q[:, :, i], q[:, :, i], None, mask=masks[i]))


def test_scaled_dot_product_attention_has_transforms_too():
    q = normal(X, H, T, D)

    def total(q):
        return scaled_dot_product_attention(q, q, q, is_causal=True).square().sum()

    gradients = vmap(grad(total))(q)
    for i in range(X):
        leaf = q[i].clone().requires_grad_()
        assert_near(gradients[i], torch.autograd.grad(total(leaf), leaf)[0])


@pytest.mark.parametrize("has_mask", [False, True])
def test_vmap_without_examples_gives_empty_results(has_mask):
    q, masks = torch.zeros(0, 1, 2, 5, 8), torch.zeros(0, 1, 1, 5, 5, dtype=torch.bool)

    def call(q, mask):
        return gated_attention(q, q, q, mask=mask if has_mask else None)

    assert vmap(call)(q, masks).shape == (0, 1, 2, 5, 8)
    assert vmap(grad(lambda q, mask: call(q, mask).sum()))(q, masks).shape == q.shape


def test_second_derivatives_are_refused_by_name():
    q = normal(H, T, D)

    def total(q):
        return gated_attention(q, q, q).square().sum()

    with pytest.raises(RuntimeError, match="headgate::gated_attention_backward: gradients of gradients"):
        grad(lambda q: grad(total)(q).sum())(q)


FORWARD = {
    "jvp": lambda f, q: jvp(f, (q,), (q,)),
    "jacfwd": lambda f, q: jacfwd(f)(q),
    "hessian": lambda f, q: hessian(f)(q),
    "of a gradient": lambda f, q: jacfwd(grad(f))(q),
    "of examples": lambda f, q: vmap(hessian(f))(q.unsqueeze(0)),
}


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("name", FORWARD)
def test_forward_mode_is_refused_by_name(name, gated):
    k, z = normal(H, T, D), normal(H, T, 1)

    def total(x):
        return (gated_attention(k, k, k, x) if gated else gated_attention(x, k, k)).square().sum()

    argument = "gate" if gated else "q"
    with pytest.raises(RuntimeError, match=f"^gated_attention: {argument} has a tangent: forward-mode") as error:
        FORWARD[name](total, z if gated else k)
    assert "\n" not in str(error.value)


Q = torch.randn(B, H, T, D)
DELTA = GatedDeltaNet(8, 2)
# Functions whose gradients are autograd's alone, and how each names what it is differentiated by.
OTHERS = {
    "linear_attention": (lambda x: linear_attention(Q, x, Q), Q, "linear_attention: k"),
    "gated_norm": (lambda x: gated_norm(x), Q, "gated_norm: x"),
    "short_convolution": (lambda x: short_convolution(Q[0], x), torch.randn(D, 3), "short_convolution: weight"),
    "GatedDeltaNet": (DELTA, torch.randn(B, T, 8), "GatedDeltaNet: h"),
    "parameter": (
        lambda x: functional_call(DELTA, {"A_log": x}, (torch.ones(1, T, 8),)),
        torch.zeros(2),
        "GatedDeltaNet: A_log",
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_gradients_of_other_functions_are_refused_by_name(name):
    call, x, argument = OTHERS[name]

    def total(x):
        return call(x).square().sum()

    for transformed in (
        grad(total),
        grad(lambda x: vmap(total)(x.unsqueeze(0)).sum()),
        lambda x: vmap(grad(total))(x.unsqueeze(0)),
    ):
        with pytest.raises(RuntimeError, match=f"^{argument} is differentiated by torch.func, which is not supported"):
            transformed(x)
    with pytest.raises(RuntimeError, match=f"^{argument} has a tangent: forward-mode"):
        jvp(total, (x,), (x,))


@pytest.mark.parametrize("name", ("attention", "linear_attention", "gated_norm", "short_convolution", "GatedDeltaNet"))
def test_forward_mode_in_a_compiled_program_is_refused(name):
    call, x, argument = {"attention": (lambda x: gated_attention(Q, x, Q), Q, "gated_attention: k"), **OTHERS}[name]
    forward = torch.compile(lambda x: jvp(call, (x,), (x,)), backend="aot_eager")
    with pytest.raises(RuntimeError, match=f"{argument} has a tangent: forward-mode"):
        forward(x)


def test_call_without_tangents_in_a_compiled_forward_mode_is_computed():
    forward = torch.compile(lambda x: jvp(lambda z: z * gated_attention(Q, Q, Q), (x,), (x,)), backend="aot_eager")
    torch.testing.assert_close(forward(Q)[1], Q * gated_attention(Q, Q, Q))


def test_layer_names_its_input_in_forward_mode():
    layer, h = GatedAttention(8, 2), torch.randn(1, T, 8)
    with pytest.raises(RuntimeError, match="^GatedAttention: h has a tangent: forward-mode"):
        jvp(layer, (h,), (h,))
    found = grad(lambda h: layer(h).square().sum())(h)
    leaf = h.clone().requires_grad_()
    torch.testing.assert_close(found, torch.autograd.grad(layer(leaf).square().sum(), leaf)[0])
