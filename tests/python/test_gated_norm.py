# SPDX-License-Identifier: Apache-2.0
"""gated_norm and its gradients against the plain norm in float64."""

import ast
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch

import headgate
from support import GATES, close, norm_problem, plain_gated_norm

ROUNDOFFS = 64
DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


@pytest.mark.parametrize("gate_fn", (*GATES, "none"))
@pytest.mark.parametrize("of_heads", (False, True))
def test_forward_each_gate_function_matches_the_plain_norm(gate_fn, of_heads):
    x, weight, gate = norm_problem(of_heads=of_heads)
    found = headgate.gated_norm(x, weight, gate, gate_fn=gate_fn, eps=0.01)
    assert close(found, plain_gated_norm(x, weight, gate, gate_fn=gate_fn, eps=0.01), ROUNDOFFS)


def test_forward_of_x_alone_matches_the_plain_norm():
    x, weight, gate = norm_problem()
    assert close(headgate.gated_norm(x), plain_gated_norm(x), ROUNDOFFS)
    assert close(headgate.gated_norm(x, weight), plain_gated_norm(x, weight), ROUNDOFFS)
    assert close(headgate.gated_norm(x, gate=gate), plain_gated_norm(x, gate=gate), ROUNDOFFS)


@pytest.mark.parametrize("gate_fn", (*GATES, "none"))
@pytest.mark.parametrize("of_heads", (False, True))
def test_gradients_match_autograd(gate_fn, of_heads):
    leaves = [x.requires_grad_() for x in norm_problem(of_heads=of_heads)]
    y = plain_gated_norm(*leaves, gate_fn=gate_fn, eps=0.01)
    dy = torch.randn_like(y)
    (y * dy).sum().backward()
    found = headgate.gated_norm_backward(dy, *(leaf.detach() for leaf in leaves), gate_fn=gate_fn, eps=0.01)
    for leaf, name in zip(leaves, ("x", "weight", "gate")):
        gradient = getattr(found, "d" + name)
        assert gradient is leaf.grad is None or close(gradient, leaf.grad, 16 * ROUNDOFFS), name


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_result_has_the_dtype_of_x(dtype):
    x, weight, gate = norm_problem(dtype=dtype)
    found = headgate.gated_norm(x, weight, gate)
    assert found.dtype == dtype
    assert close(found, plain_gated_norm(x.double(), weight.double(), gate.double()), ROUNDOFFS, dtype)
    if dtype != torch.float64:
        assert torch.equal(headgate.gated_norm(x, weight.float(), gate.float()), found)


def test_results_are_chosen_and_written_in_place():
    x, weight, gate = norm_problem(dtype=torch.float32)
    expected = headgate.gated_norm(x, weight, gate)
    y = torch.full((2, 7, 3, 16), 9.0).transpose(1, 2)
    assert headgate.gated_norm(x, weight, gate, out=y) is y and torch.equal(y, expected)
    dy, dweight = torch.ones_like(x), torch.empty_like(weight)
    whole = headgate.gated_norm_backward(dy, x, weight, gate)
    out = headgate.GatedNormGradients(dweight=dweight)
    only = headgate.gated_norm_backward(dy, x, weight, gate, out=out)
    assert only.dweight is dweight and only.dx is None and torch.equal(dweight, whole.dweight)
    named = headgate.gated_norm_backward(dy, x, weight, gate, gradients=("dx", "dgate"))
    assert named.dweight is None and torch.equal(named.dx, whole.dx) and torch.equal(named.dgate, whole.dgate)


def test_any_layout_agrees():
    x, weight, gate = norm_problem(dtype=torch.float32, of_heads=True)
    dy = torch.randn_like(x)
    turned = [tensor.transpose(1, 2).contiguous() for tensor in (dy, x, gate)]
    found = headgate.gated_norm(turned[1], weight, turned[2], layout="bthd")
    assert found.is_contiguous() and torch.equal(found.transpose(1, 2), headgate.gated_norm(x, weight, gate))
    gradients = headgate.gated_norm_backward(turned[0], turned[1], weight, turned[2], layout="bthd")
    plain = headgate.gated_norm_backward(dy, x, weight, gate)
    assert torch.equal(gradients.dx.transpose(1, 2), plain.dx) and torch.equal(gradients.dweight, plain.dweight)
    assert torch.equal(gradients.dgate.transpose(1, 2), plain.dgate)


def test_batch_of_one_needs_no_dimension():
    x, weight, gate = norm_problem(B=1)
    expected = headgate.gated_norm(x, weight, gate)
    assert torch.equal(headgate.gated_norm(x[0], weight, gate[0]), expected[0])
    gradients = headgate.gated_norm_backward(x[0], x[0], weight, gate[0])
    assert gradients.dx.shape == x[0].shape


def test_numpy_and_pytorch_give_the_same_bits():
    for dtype, name in ((torch.float32, np.float32), (torch.float16, np.float16), (torch.bfloat16, ml_dtypes.bfloat16)):
        tensors = norm_problem(dtype=dtype)
        found = headgate.gated_norm(*(tensor.float().numpy().astype(name) for tensor in tensors))
        assert isinstance(found, np.ndarray) and found.dtype == name
        assert np.array_equal(found.astype(np.float32), headgate.gated_norm(*tensors).float().numpy())


def test_every_target_and_number_of_threads_agrees():
    tensors = norm_problem(T=70, D=33)
    y = plain_gated_norm(*tensors)
    for target in headgate.supported_targets():
        found = [headgate.gated_norm(*tensors, target=target, threads=n, backend="cpu") for n in (1, 3)]
        assert torch.equal(found[0], found[1]) and close(found[0], y, ROUNDOFFS)


X, WEIGHT, GATE = norm_problem(dtype=torch.float32)


@pytest.mark.parametrize(
    "message, call, error",
    (
        ("gated_norm: x is required but None", lambda: headgate.gated_norm(None), ValueError),
        (
            "gated_norm: x has shape (7,16) but must be (B,H,T,D) or (H,T,D)",
            lambda: headgate.gated_norm(X[0, 0]),
            ValueError,
        ),
        (
            "gated_norm: weight has shape (1,1,16) but must be (D) or (H,D)",
            lambda: headgate.gated_norm(X, WEIGHT[None, None]),
            ValueError,
        ),
        (
            "gated_norm_forward: weight has shape (1,1,1,15) but must be (1,1,1,D) = (1,1,1,16) or (1,H,1,D) = "
            "(1,3,1,16)",
            lambda: headgate.gated_norm(X, WEIGHT[:15]),
            ValueError,
        ),
        (
            "gated_norm: gate_fn: 'tanh' is none of sigmoid, sigmoid2, ns_sigmoid, silu, softplus, identity, none",
            lambda: headgate.gated_norm(X, gate_fn="tanh"),
            ValueError,
        ),
        (
            "gated_norm_forward: eps is -1 but must be at least 0 and finite",
            lambda: headgate.gated_norm(X, eps=-1.0),
            ValueError,
        ),
        (
            "gated_norm_backward: dgate is asked for but gate is None",
            lambda: headgate.gated_norm_backward(X, X, WEIGHT, gradients=["dgate"]),
            ValueError,
        ),
        (
            "gated_norm_backward: dgate is asked for but gate_fn is none",
            lambda: headgate.gated_norm_backward(X, X, WEIGHT, GATE, gate_fn="none", gradients=["dgate"]),
            ValueError,
        ),
        (
            "gated_norm: takes 3 arguments by position but got 4",
            lambda: headgate.gated_norm(X, WEIGHT, GATE, "silu"),
            TypeError,
        ),
        ("gated_norm: eps is 'x' but must be a number", lambda: headgate.gated_norm(X, eps="x"), TypeError),
        ("gated_norm_backward: x is missing", lambda: headgate.gated_norm_backward(X), TypeError),
    ),
)
def test_argument_bad_is_refused_in_one_line(message, call, error):
    with pytest.raises(error) as caught:
        call()
    assert str(caught.value) == message


def test_output_overlapping_an_input_is_refused():
    x = np.ones((1, 1, 4, 8), np.float32)
    with pytest.raises(ValueError, match="^gated_norm_forward: y overlaps x in memory"):
        headgate.gated_norm(x, out=x)


def test_every_argument_is_documented_and_taken_with_its_default():
    tree = ast.parse((Path(headgate.__file__).parent / "_headgate.pyi").read_text())
    stubs = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    for name, more in (("", "out"), ("_backward", "dy")):
        arguments = stubs["gated_norm" + name].args
        names = [argument.arg for argument in arguments.args + arguments.kwonlyargs]
        assert more in names and "eps" in names
        for argument in names:
            assert f"    {argument}: " in getattr(headgate, "gated_norm" + name).__doc__, argument
    arguments = stubs["gated_norm"].args
    defaults = {
        argument.arg: ast.literal_eval(value) for argument, value in zip(arguments.kwonlyargs, arguments.kw_defaults)
    }
    assert defaults["eps"] == 1e-6 and defaults["gate_fn"] == "silu"
    assert torch.equal(headgate.gated_norm(X, WEIGHT, GATE, **defaults), headgate.gated_norm(X, WEIGHT, GATE))
