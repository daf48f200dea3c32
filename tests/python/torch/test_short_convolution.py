# SPDX-License-Identifier: Apache-2.0
"""headgate.torch.short_convolution against torch.nn.functional.conv1d, which autograd differentiates."""

import pytest
import torch

import headgate.torch as ht


def convolution(x, weight, bias=None, state=None, activation="silu"):
    """y and the last K-1 rows of x, of x (B,T,C)."""
    (batch, _, channels), taps = x.shape, weight.shape[1]
    rows = torch.cat([x.new_zeros(batch, taps - 1, channels) if state is None else state, x], dim=1)
    y = torch.nn.functional.conv1d(rows.transpose(1, 2), weight[:, None], bias, groups=channels).transpose(1, 2)
    return torch.nn.functional.silu(y) if activation == "silu" else y, rows[:, rows.shape[1] - taps + 1 :]


def problem(tokens=9, channels=5, taps=4, batch=2, state=True):
    """The tensors of a random problem, in f64, each with a gradient."""
    generator = torch.Generator().manual_seed(tokens + 100 * taps)

    def random(*shape):
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    found = {"x": random(batch, tokens, channels), "weight": random(channels, taps), "bias": random(channels)}
    if state:
        found["state"] = random(batch, taps - 1, channels)
    return {name: tensor.requires_grad_() for name, tensor in found.items()}


@pytest.mark.parametrize("activation", ["silu", "none"])
@pytest.mark.parametrize("taps", [2, 4, 8])
@pytest.mark.parametrize("tokens", [1, 9])
def test_gradients_random_problem_are_those_of_conv1d(activation, taps, tokens):
    tensors = problem(tokens, taps=taps)
    y, state = ht.short_convolution(**tensors, activation=activation, return_state=True)
    expected_y, expected_state = convolution(**tensors, activation=activation)
    torch.testing.assert_close(y, expected_y)
    torch.testing.assert_close(state, expected_state)
    dy, dstate = torch.randn_like(y), torch.randn_like(state)
    gradients = torch.autograd.grad([y, state], list(tensors.values()), [dy, dstate])
    expected = torch.autograd.grad([expected_y, expected_state], list(tensors.values()), [dy, dstate])
    for name, gradient, right in zip(tensors, gradients, expected):
        torch.testing.assert_close(gradient, right, msg=lambda text, name=name: f"d{name}: {text}")


def test_gradients_of_x_and_weight_alone_are_those_of_conv1d():
    tensors = {name: tensor for name, tensor in problem().items() if name in ("x", "weight")}
    y, expected = ht.short_convolution(**tensors), convolution(**tensors)[0]
    torch.testing.assert_close(y, expected)
    for gradient, right in zip(
        torch.autograd.grad(y.square().sum(), list(tensors.values())),
        torch.autograd.grad(expected.square().sum(), list(tensors.values())),
    ):
        torch.testing.assert_close(gradient, right)


def test_gradients_state_alone_used_are_those_of_the_rows():
    tensors = problem(tokens=2)
    _, state = ht.short_convolution(**tensors, return_state=True)
    gradients = torch.autograd.grad(state.sum(), [tensors["x"], tensors["state"]])
    torch.testing.assert_close(gradients[0], torch.ones_like(tensors["x"]))
    assert gradients[1][:, -1].eq(1).all() and not gradients[1][:, :-1].any()


def test_operation_gradcheck_passes():
    tensors = problem(tokens=5, channels=2, batch=1)

    def run(*values):
        return ht.short_convolution(**dict(zip(tensors, values)), return_state=True)

    assert torch.autograd.gradcheck(run, tuple(tensors.values()))


@pytest.mark.parametrize("keep_state", [False, True])
@pytest.mark.parametrize("with_state", [False, True])
@pytest.mark.parametrize("lengths", [None, [[0, 2, 4]]])
def test_operation_opcheck_passes(keep_state, with_state, lengths):
    arguments = problem(tokens=4, state=with_state)
    if lengths is not None:
        arguments = {name: x.detach() for name, x in arguments.items()} | {"snapshot_lengths": torch.tensor(lengths)}
    arguments["keep_state"] = keep_state
    results = torch.library.opcheck(torch.ops.headgate.short_convolution.default, (), arguments)
    assert set(results.values()) == {"SUCCESS"}


@pytest.mark.parametrize("compiles", [False, True])
def test_snapshots_are_the_rows_before_each_token(compiles):
    tensors = {name: x.detach() for name, x in problem().items()}

    def run(lengths):
        return ht.short_convolution(**tensors, return_state=True, snapshot_lengths=lengths)

    call = torch.compile(run, backend="aot_eager", fullgraph=True) if compiles else run
    y, state, snapshots = call([0, 2, 9])
    assert torch.equal(y, ht.short_convolution(**tensors)) and snapshots.shape == (6, 3, 5)
    rows = torch.cat([tensors["state"], tensors["x"]], 1)
    for n, m, first in ((n, m, first) for n in range(2) for m, first in enumerate((0, 2, 9))):
        assert torch.equal(snapshots[3 * n + m], rows[n, first : first + 3])
    assert torch.equal(snapshots[2::3], state)


def test_snapshots_with_gradients_are_refused():
    tensors = problem()
    with pytest.raises(
        ValueError, match=r"^short_convolution: with snapshot_lengths there are no gradients: .*no_grad"
    ):
        ht.short_convolution(**tensors, snapshot_lengths=[2])
    with torch.no_grad():
        _, snapshots = ht.short_convolution(**tensors, snapshot_lengths=[2])
    assert not snapshots.requires_grad


def test_compiled_function_equals_the_eager_one():
    tensors = problem()

    def loss(**named):
        y, state = ht.short_convolution(**named, return_state=True)
        return y.square().sum() + state.sum()

    eager = torch.autograd.grad(loss(**tensors), list(tensors.values()))
    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    for found, expected in zip(torch.autograd.grad(compiled(**tensors), list(tensors.values())), eager):
        torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_weight_of_conv1d_and_channels_first_memory_have_gradients():
    layer = torch.nn.Conv1d(5, 5, 4, groups=5, padding=3).double()
    x = torch.randn(2, 5, 9, dtype=torch.float64, requires_grad=True)
    y = ht.short_convolution(x.transpose(1, 2), layer.weight[:, 0], layer.bias).transpose(1, 2)
    expected = torch.nn.functional.silu(layer(x)[..., :9])
    torch.testing.assert_close(y, expected)
    leaves = [x, layer.weight, layer.bias]
    for found, right in zip(
        torch.autograd.grad(y.square().sum(), leaves), torch.autograd.grad(expected.square().sum(), leaves)
    ):
        torch.testing.assert_close(found, right)


@pytest.mark.parametrize("compiles", [False, True])
def test_packed_batch_equals_its_sequences(compiles):
    tensors = {name: tensor.detach() for name, tensor in problem(tokens=20, batch=1, state=False).items()}
    bounds = [0, 7, 7, 20]

    def run(**named):
        return ht.short_convolution(**named, return_state=True)

    call = torch.compile(run, backend="aot_eager", fullgraph=True) if compiles else run
    y, state = call(**tensors, cu_seqlens=torch.tensor(bounds, dtype=torch.int32))
    assert state.shape == (3, 3, 5) and not state[1].any()
    for n, (first, end) in enumerate(zip(bounds, bounds[1:])):
        own_y, own_state = ht.short_convolution(**tensors | {"x": tensors["x"][:, first:end]}, return_state=True)
        torch.testing.assert_close(y[:, first:end], own_y, rtol=0, atol=0)
        torch.testing.assert_close(state[n], own_state[0], rtol=0, atol=0)


def test_batch_of_one_needs_no_dimension():
    tensors = {name: tensor.detach() for name, tensor in problem(batch=1).items()}
    y, state = ht.short_convolution(**tensors, return_state=True)
    own_y, own_state = ht.short_convolution(**tensors | {"x": tensors["x"][0]}, return_state=True)
    assert torch.equal(own_y, y[0]) and torch.equal(own_state, state)


@pytest.mark.parametrize("state_dtype", [torch.float32, torch.bfloat16])
def test_autocast_bf16_casts_x_and_keeps_the_dtype_of_the_state(state_dtype):
    tensors = {name: tensor.detach().float() for name, tensor in problem().items()}
    tensors["state"] = tensors["state"].to(state_dtype)
    with torch.autocast("cpu", torch.bfloat16):
        y, state = ht.short_convolution(**tensors, return_state=True)
    assert y.dtype == torch.bfloat16 and state.dtype == state_dtype
    expected = ht.short_convolution(**tensors | {"x": tensors["x"].bfloat16()})
    assert torch.equal(y, expected)


def test_autocast_has_gradients_in_the_dtypes_of_the_leaves():
    leaves = {name: tensor.detach().float().requires_grad_() for name, tensor in problem().items()}
    with torch.autocast("cpu", torch.bfloat16):
        y = ht.short_convolution(**leaves)
    for gradient in torch.autograd.grad(y.float().sum(), list(leaves.values())):
        assert gradient.dtype == torch.float32 and gradient.any()


def test_state_handed_on_token_by_token_equals_one_call():
    tensors = {name: tensor.detach() for name, tensor in problem(tokens=5).items()}
    whole = ht.short_convolution(**tensors)
    x, state, parts = tensors.pop("x"), tensors.pop("state"), []
    for t in range(5):
        y, state = ht.short_convolution(x[:, t : t + 1], **tensors, state=state, return_state=True)
        parts.append(y)
    assert torch.equal(torch.cat(parts, 1), whole)


def test_wrong_arguments_raise_one_line():
    tensors = {name: tensor.detach() for name, tensor in problem().items()}
    with pytest.raises(ValueError, match=r"^short_convolution: weight has shape .*: K is 1 but must be 2 to 8$"):
        ht.short_convolution(tensors["x"], tensors["weight"][:, :1])
    with pytest.raises(ValueError, match=r"^short_convolution: activation: 'sigmoid' is none of silu, none$"):
        ht.short_convolution(**tensors, activation="sigmoid")
    with pytest.raises(TypeError, match="unexpected keyword argument 'layout'"):
        ht.short_convolution(**tensors, layout="bthd")
    with pytest.raises(TypeError, match=r"^short_convolution: weight is a int but must be a tensor$"):
        ht.short_convolution(tensors["x"], 3)


def test_second_gradients_raise_an_error():
    tensors = problem()
    (gradient,) = torch.autograd.grad(ht.short_convolution(**tensors).sum(), tensors["x"], create_graph=True)
    with pytest.raises(RuntimeError, match=r"short_convolution_backward: .* \(double backward\)"):
        gradient.sum().backward()
