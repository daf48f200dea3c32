# SPDX-License-Identifier: Apache-2.0
"""gated_attention under torch.func: derivatives and batches are those of autograd and of loops."""

import pytest
import torch
from torch.func import grad, jacrev, vjp, vmap

import plain
from headgate.torch import gated_attention, scaled_dot_product_attention

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


def test_second_derivatives_are_refused_by_name():
    q = normal(H, T, D)

    def total(q):
        return gated_attention(q, q, q).square().sum()

    with pytest.raises(RuntimeError, match="headgate::gated_attention_backward: gradients of gradients"):
        grad(lambda q: grad(total)(q).sum())(q)
