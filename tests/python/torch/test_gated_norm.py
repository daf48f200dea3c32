# SPDX-License-Identifier: Apache-2.0
"""headgate.torch.gated_norm against the plain norm, which autograd differentiates."""

import pytest
import torch

import headgate.torch as ht


def norm(x, weight=None, gate=None, gate_fn="silu", eps=1e-6):
    """y of x (B,H,T,D)."""
    y = x * (x.square().mean(-1, keepdim=True) + eps).rsqrt()
    if weight is not None:
        y = y * (weight[:, None] if weight.dim() == 2 else weight)
    return y if gate is None else y * ht.GATE_FUNCTIONS[gate_fn].compute(gate)


def problem(tokens=5, dim=6, heads=3, batch=2, of_heads=False):
    """The tensors of a random problem, in f64, each with a gradient."""
    generator = torch.Generator().manual_seed(tokens + 100 * dim)

    def random(*shape):
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    shape = (batch, heads, tokens, dim)
    found = {"x": random(*shape), "weight": random(*((heads, dim) if of_heads else (dim,))), "gate": random(*shape)}
    return {name: tensor.requires_grad_() for name, tensor in found.items()}


@pytest.mark.parametrize("gate_fn", list(ht.GATE_FUNCTIONS))
@pytest.mark.parametrize("of_heads", [False, True])
def test_gradients_random_problem_are_those_of_the_plain_norm(gate_fn, of_heads):
    tensors = problem(of_heads=of_heads)
    y, expected_y = (run(**tensors, gate_fn=gate_fn, eps=0.01) for run in (ht.gated_norm, norm))
    torch.testing.assert_close(y, expected_y)
    dy = torch.randn_like(y)
    gradients = torch.autograd.grad(y, list(tensors.values()), dy)
    expected = torch.autograd.grad(expected_y, list(tensors.values()), dy)
    for name, gradient, right in zip(tensors, gradients, expected):
        torch.testing.assert_close(gradient, right, msg=lambda text, name=name: f"d{name}: {text}")


@pytest.mark.parametrize("names", [("x",), ("x", "weight"), ("x", "gate")])
def test_inputs_left_out_are_left_out(names):
    tensors = {name: tensor for name, tensor in problem().items() if name in names}
    y, expected = ht.gated_norm(**tensors), norm(**tensors)
    torch.testing.assert_close(y, expected)
    leaves = list(tensors.values())
    for gradient, right in zip(
        torch.autograd.grad(y.square().sum(), leaves), torch.autograd.grad(expected.square().sum(), leaves)
    ):
        torch.testing.assert_close(gradient, right)


def test_gate_without_a_function_is_not_applied_and_has_no_gradient():
    tensors = problem()
    y = ht.gated_norm(**tensors, gate_fn="none")
    assert torch.equal(y, ht.gated_norm(tensors["x"], tensors["weight"]))
    y.sum().backward()
    assert tensors["gate"].grad is None and tensors["x"].grad is not None


def test_operation_gradcheck_passes():
    tensors = problem(tokens=2, dim=3, heads=2)
    assert torch.autograd.gradcheck(ht.gated_norm, tuple(tensors.values()))


@pytest.mark.parametrize("count", [1, 2, 3])
def test_operation_opcheck_passes(count):
    arguments = tuple(problem().values())[:count]
    results = torch.library.opcheck(torch.ops.headgate.gated_norm.default, arguments)
    assert set(results.values()) == {"SUCCESS"}


def test_compiled_function_equals_the_eager_one():
    tensors = problem()

    def loss(**named):
        return ht.gated_norm(**named, gate_fn="sigmoid").square().sum()

    eager = torch.autograd.grad(loss(**tensors), list(tensors.values()))
    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    for found, expected in zip(torch.autograd.grad(compiled(**tensors), list(tensors.values())), eager):
        torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_layout_bthd_equals_transposed_bhtd():
    tensors = {name: tensor.detach() for name, tensor in problem(of_heads=True).items()}
    rows = {name: tensor if name == "weight" else tensor.transpose(1, 2) for name, tensor in tensors.items()}
    assert torch.equal(ht.gated_norm(**rows, layout="bthd").transpose(1, 2), ht.gated_norm(**tensors))


def test_autocast_bf16_casts_x_and_keeps_f32_beside_it():
    tensors = {name: tensor.detach().float() for name, tensor in problem().items()}
    with torch.autocast("cpu", torch.bfloat16):
        y = ht.gated_norm(**tensors)
    assert y.dtype == torch.bfloat16
    assert torch.equal(y, ht.gated_norm(tensors["x"].bfloat16(), tensors["weight"], tensors["gate"]))
    with torch.autocast("cpu", torch.bfloat16):
        assert ht.gated_norm(tensors["x"], gate=tensors["gate"].half()).dtype == torch.bfloat16


def test_autocast_has_gradients_in_the_dtypes_of_the_leaves():
    leaves = {name: tensor.detach().float().requires_grad_() for name, tensor in problem().items()}
    with torch.autocast("cpu", torch.bfloat16):
        y = ht.gated_norm(**leaves)
    for gradient in torch.autograd.grad(y.float().sum(), list(leaves.values())):
        assert gradient.dtype == torch.float32 and gradient.any()


def test_wrong_arguments_raise_one_line():
    tensors = {name: tensor.detach() for name, tensor in problem().items()}
    with pytest.raises(ValueError, match=r"^gated_norm: gate has shape .* but \(B,H,T,D\) is"):
        ht.gated_norm(tensors["x"], gate=tensors["gate"][..., :1])
    with pytest.raises(ValueError, match=r"^gated_norm: eps is -1 but must be at least 0 and finite$"):
        ht.gated_norm(**tensors, eps=-1.0)
    with pytest.raises(ValueError, match=r"^gated_norm: eps requires a gradient but has none: detach it$"):
        ht.gated_norm(**tensors, eps=torch.tensor(1.0, requires_grad=True))
    with pytest.raises(TypeError, match="unexpected keyword argument 'epsilon'"):
        ht.gated_norm(**tensors, epsilon=1.0)


def test_second_gradients_raise_an_error():
    tensors = problem()
    (gradient,) = torch.autograd.grad(ht.gated_norm(**tensors).sum(), tensors["x"], create_graph=True)
    with pytest.raises(RuntimeError, match=r"gated_norm_backward: .* \(double backward\)"):
        gradient.sum().backward()
