# SPDX-License-Identifier: Apache-2.0
"""The operations under torch.func: derivatives and batches are those of autograd and of loops."""

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
    "mask": {"mask": (torch.rand(B, 1, T, S) > 0.3).logical_or(torch.arange(S) == 0)},  # every query sees a key
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


LINEAR = [normal(X, B, 2, T, D), normal(X, B, 2, T, D), normal(X, B, H, T, 4), -normal(X, B, H, T, 1).abs()]
LINEAR += [normal(X, B, H, T, 1).sigmoid(), normal(X, B, H, D, 4)]
STARTS = torch.tensor([0, 2, T])
OTHERS = {
    "linear_attention": (linear_attention, LINEAR[:5]),
    "linear_attention of a state": (
        lambda *x: torch.cat([part.flatten() for part in linear_attention(*x[:5], state=x[5], return_state=True)]),
        LINEAR,
    ),
    "linear_attention of packed tokens": (
        lambda *x: linear_attention(*x, cu_seqlens=STARTS, l2_norm=1e-6),
        [x[:, :1] for x in LINEAR[:5]],
    ),
    "gated_norm": (gated_norm, [normal(X, B, H, T, D), normal(X, D), normal(X, B, H, T, D)]),
    "gated_norm without a gate": (gated_norm, [normal(X, B, H, T, D), normal(X, D)]),
    "short_convolution": (short_convolution, [normal(X, B, T, D), normal(X, D, 3), normal(X, D), normal(X, B, 2, D)]),
}
INPUTS = {"short_convolution": ("x", "weight", "bias", "state")}


def of_others(name):
    """Returns the function of a case with positional tensors, and its tensors, one row an example."""
    call, tensors = OTHERS[name]
    names = INPUTS.get(name)
    return (call if names is None else lambda *x: call(**dict(zip(names, x)))), tensors


@pytest.mark.parametrize("name", OTHERS)
def test_other_operations_have_gradients_and_batches_of_examples(name):
    call, tensors = of_others(name)
    argnums = tuple(range(len(tensors)))
    y, gradients = vmap(call)(*tensors), vmap(grad(total_of(call), argnums))(*tensors)
    whole = grad(lambda *x: vmap(total_of(call))(*x).sum(), argnums)(*tensors)
    for i in range(X):
        leaves = [x[i].clone().requires_grad_() for x in tensors]
        expected = call(*leaves)
        assert_near(y[i], expected)
        for of_examples, of_all, right in zip(
            gradients, whole, torch.autograd.grad(expected.square().sum(), leaves), strict=True
        ):
            assert_near(of_examples[i], right)
            assert_near(of_all[i], right)


@pytest.mark.parametrize("name", OTHERS)
def test_other_operations_have_jacobians_and_shared_inputs(name):
    call, tensors = of_others(name)
    first, others = tensors[0], [x[0] for x in tensors[1:]]
    found = jacrev(lambda x: call(x, *others))(first[0])
    expected = torch.autograd.functional.jacobian(lambda x: call(x, *others), first[0])
    assert_near(found, expected)
    in_dims = (0, *(None for _ in others))
    gradients = grad(lambda *x: vmap(total_of(call), in_dims)(*x).sum(), argnums=1)(first, *others)
    leaf = others[0].clone().requires_grad_()
    total = sum(total_of(call)(x, leaf, *others[1:]) for x in first)
    assert_near(gradients, torch.autograd.grad(total, leaf)[0])
    assert vmap(call)(*(x[:0] for x in tensors)).shape == (0, *call(first[0], *others).shape)


def test_gradients_of_examples_reach_all_parameters_of_the_layer():
    layer, h = GatedDeltaNet(8, 2, 4, 4, 4).double(), normal(X, T, 8)
    parameters = {name: x.detach() for name, x in layer.named_parameters()}

    def total(parameters, h):
        return functional_call(layer, parameters, (h[None],)).square().sum()

    found = vmap(grad(total), in_dims=(None, 0))(parameters, h)
    for i in range(X):
        expected = torch.autograd.grad(layer(h[i : i + 1]).square().sum(), list(layer.parameters()))
        for ours, right in zip(found.values(), expected, strict=True):
            assert_near(ours[i], right)


Q = torch.randn(B, H, T, D)
DELTA = GatedDeltaNet(8, 2)
# Functions of one tensor, and how each names it in forward mode.
FORWARD_INPUTS = {
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


@pytest.mark.parametrize("name", FORWARD_INPUTS)
def test_forward_mode_and_second_derivatives_of_others_are_refused_by_name(name):
    call, x, argument = FORWARD_INPUTS[name]

    def total(x):
        return call(x).square().sum()

    for transformed in (lambda x: jvp(total, (x,), (x,)), hessian(total), lambda x: vmap(hessian(total))(x[None])):
        with pytest.raises(RuntimeError, match=r"^[\w]+: \w+ has a tangent: forward-mode") as error:
            transformed(x)
        assert "\n" not in str(error.value)
    with pytest.raises(RuntimeError, match=f"^{argument} has a tangent: forward-mode"):
        jvp(total, (x,), (x,))
    with pytest.raises(RuntimeError, match=r"headgate::\w+_backward: gradients of gradients"):
        grad(lambda x: grad(total)(x).sum())(x)


def test_snapshots_are_refused_under_a_gradient():
    q = Q[0]
    with pytest.raises(ValueError, match="with snapshot_lengths there are no gradients"):
        grad(lambda x: linear_attention(x, q, q, snapshot_lengths=[1])[0].sum())(q)


@pytest.mark.parametrize("name", ("attention", "linear_attention", "gated_norm", "short_convolution", "GatedDeltaNet"))
def test_forward_mode_in_a_compiled_program_is_refused(name):
    call, x, argument = {"attention": (lambda x: gated_attention(Q, x, Q), Q, "gated_attention: k"), **FORWARD_INPUTS}[
        name
    ]
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
