# SPDX-License-Identifier: Apache-2.0
"""short_convolution and its two passes against torch.nn.functional.conv1d in float64."""

import ast
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch

import headgate
from support import close, convolution_problem, plain_short_convolution

ROUNDOFFS = 64
DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


@pytest.mark.parametrize("activation", ("silu", "none"))
@pytest.mark.parametrize("taps", range(2, 9))
def test_forward_each_number_of_taps_matches_conv1d(activation, taps):
    x, weight, bias, state = convolution_problem(K=taps)
    found = headgate.short_convolution_forward(x, weight, bias, state=state, activation=activation)
    y, new_state = plain_short_convolution(x, weight, bias, state=state, activation=activation)
    assert close(found.y, y, ROUNDOFFS) and torch.equal(found.state, new_state)
    assert torch.equal(headgate.short_convolution(x, weight, bias, state=state, activation=activation), found.y)


def test_forward_without_bias_and_state_matches_conv1d():
    x, weight, *_ = convolution_problem()
    found = headgate.short_convolution_forward(x, weight)
    y, state = plain_short_convolution(x, weight)
    assert close(found.y, y, ROUNDOFFS) and torch.equal(found.state, state)


@pytest.mark.parametrize("activation", ("silu", "none"))
def test_gradients_match_autograd(activation):
    leaves = [x.requires_grad_() for x in convolution_problem()]
    x, weight, bias, state = leaves
    y, new_state = plain_short_convolution(x, weight, bias, state=state, activation=activation)
    dy, dstate = torch.randn_like(y), torch.randn_like(new_state)
    ((y * dy).sum() + (new_state * dstate).sum()).backward()
    inputs = [leaf.detach() for leaf in leaves]
    found = headgate.short_convolution_backward(dy, *inputs[:3], state=inputs[3], dstate=dstate, activation=activation)
    for leaf, name in zip(leaves, ("x", "weight", "bias", "state")):
        assert close(getattr(found, "d" + name), leaf.grad, 16 * ROUNDOFFS), name
    bare = headgate.short_convolution_backward(dy, *inputs[:2], activation=activation)
    assert bare.dbias is None and bare.dstate is None


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_results_have_the_dtype_of_x_and_a_state_that_of_the_old_one(dtype):
    x, weight, bias, state = convolution_problem(dtype=dtype)
    found = headgate.short_convolution_forward(x, weight, bias)
    y, new_state = plain_short_convolution(x.double(), weight.double(), bias.double())
    assert found.y.dtype == dtype and found.state.dtype == dtype
    assert close(found.y, y, ROUNDOFFS, dtype) and torch.equal(found.state.double(), new_state)
    if dtype != torch.float64:
        wide = headgate.short_convolution_forward(x, weight, bias, state=state.float())
        assert wide.state.dtype == torch.float32


def test_parts_of_a_prompt_have_the_bits_of_the_whole():
    x, weight, bias, state = convolution_problem(T=9)
    whole = headgate.short_convolution_forward(x, weight, bias, state=state)
    y = []
    for part in (slice(0, 1), slice(1, 3), slice(3, 9)):
        found = headgate.short_convolution_forward(x[:, part], weight, bias, state=state)
        y.append(found.y)
        state = found.state
    assert torch.equal(torch.cat(y, dim=1), whole.y) and torch.equal(state, whole.state)


def test_state_given_as_output_is_updated_in_place():
    x, weight, bias, state = convolution_problem(dtype=torch.float32)
    expected = headgate.short_convolution_forward(x, weight, bias, state=state)
    out = headgate.ShortConvolutionOutputs(state=state)
    found = headgate.short_convolution_forward(x, weight, bias, state=state, out=out)
    assert found.state is state and torch.equal(state, expected.state) and torch.equal(found.y, expected.y)


def test_outputs_and_gradients_are_chosen_and_written_in_place():
    x, weight, bias, state = convolution_problem(dtype=torch.float32)
    expected = headgate.short_convolution(x, weight, bias, state=state)
    y = torch.full((2, 5, 9), 9.0).transpose(1, 2)
    assert headgate.short_convolution(x, weight, bias, state=state, out=y) is y and torch.equal(y, expected)
    assert headgate.short_convolution_forward(x, weight, bias, outputs=()).state is None
    dy, dweight = torch.ones_like(x), torch.empty_like(weight)
    whole = headgate.short_convolution_backward(dy, x, weight, bias, state=state)
    out = headgate.ShortConvolutionGradients(dweight=dweight)
    only = headgate.short_convolution_backward(dy, x, weight, bias, state=state, out=out)
    assert only.dweight is dweight and only.dx is None and torch.equal(dweight, whole.dweight)
    named = headgate.short_convolution_backward(dy, x, weight, bias, state=state, gradients=("dx", "dstate"))
    assert named.dbias is None and torch.equal(named.dx, whole.dx) and torch.equal(named.dstate, whole.dstate)


def test_channels_first_memory_and_weights_of_conv1d_are_views():
    x, weight, bias, _ = convolution_problem(dtype=torch.float32)
    layer = torch.nn.Conv1d(5, 5, 4, groups=5)
    with torch.no_grad():
        layer.weight[:, 0] = weight
    expected = headgate.short_convolution(x, weight, bias)
    turned = x.transpose(1, 2).contiguous().transpose(1, 2)
    assert torch.equal(headgate.short_convolution(turned, layer.weight.detach()[:, 0], bias), expected)


def test_batch_of_one_needs_no_dimension():
    x, weight, bias, state = convolution_problem(B=1)
    expected = headgate.short_convolution_forward(x, weight, bias, state=state)
    found = headgate.short_convolution_forward(x[0], weight, bias, state=state)
    assert torch.equal(found.y, expected.y[0]) and torch.equal(found.state, expected.state)
    dy = torch.ones_like(x)
    gradients = headgate.short_convolution_backward(dy[0], x[0], weight, bias, state=state)
    whole = headgate.short_convolution_backward(dy, x, weight, bias, state=state)
    assert torch.equal(gradients.dx, whole.dx[0]) and torch.equal(gradients.dstate, whole.dstate)


@pytest.mark.parametrize("integers", (torch.int32, torch.int64), ids=str)
def test_packed_batch_is_separate_calls(integers):
    lengths = (3, 0, 7)
    _, weight, bias, _ = convolution_problem()
    parts = [convolution_problem(B=1, T=T, seed=n) for n, T in enumerate(lengths)]
    x, state = torch.cat([part[0] for part in parts], dim=1), torch.cat([part[3] for part in parts])
    bounds = torch.tensor([0, *np.cumsum(lengths)], dtype=integers)
    found = headgate.short_convolution_forward(x, weight, bias, state=state, cu_seqlens=bounds)
    separate = [headgate.short_convolution_forward(part[0], weight, bias, state=part[3]) for part in parts]
    assert torch.equal(found.y, torch.cat([one.y for one in separate], dim=1))
    assert torch.equal(found.state, torch.cat([one.state for one in separate]))


def test_numpy_and_pytorch_give_the_same_bits():
    for dtype, name in ((torch.float32, np.float32), (torch.float16, np.float16), (torch.bfloat16, ml_dtypes.bfloat16)):
        tensors = convolution_problem(dtype=dtype)
        x, weight, bias, state = (tensor.float().numpy().astype(name) for tensor in tensors)
        found = headgate.short_convolution_forward(x, weight, bias, state=state)
        assert isinstance(found.y, np.ndarray) and found.y.dtype == name and found.state.dtype == name
        expected = headgate.short_convolution_forward(*tensors[:3], state=tensors[3])
        assert isinstance(expected.state, torch.Tensor)
        assert np.array_equal(found.y.astype(np.float32), expected.y.float().numpy())
        assert np.array_equal(found.state.astype(np.float32), expected.state.float().numpy())


def test_every_target_and_number_of_threads_agrees():
    x, weight, bias, state = convolution_problem(T=70, C=33)
    y, _ = plain_short_convolution(x, weight, bias, state=state)
    for target in headgate.supported_targets():
        found = [
            headgate.short_convolution(x, weight, bias, state=state, target=target, threads=n, backend="cpu")
            for n in (1, 3)
        ]
        assert torch.equal(found[0], found[1]) and close(found[0], y, ROUNDOFFS)


def test_no_tokens_leave_the_state():
    x, weight, bias, state = convolution_problem(T=0)
    found = headgate.short_convolution_forward(x, weight, bias, state=state)
    assert found.y.shape == (2, 0, 5) and torch.equal(found.state, state)


X, WEIGHT, BIAS, STATE = convolution_problem(dtype=torch.float32)


@pytest.mark.parametrize(
    "message, call, error",
    (
        (
            "short_convolution: x is required but None",
            lambda: headgate.short_convolution(None, WEIGHT),
            ValueError,
        ),
        (
            "short_convolution: x has shape (1,2,9,5) but must be (B,T,C) or (T,C)",
            lambda: headgate.short_convolution(X[None], WEIGHT),
            ValueError,
        ),
        (
            "short_convolution: state has shape (3,5) but must be (N,K-1,C)",
            lambda: headgate.short_convolution(X, WEIGHT, state=STATE[0]),
            ValueError,
        ),
        (
            "short_convolution: activation: 'sigmoid' is none of silu, none",
            lambda: headgate.short_convolution(X, WEIGHT, activation="sigmoid"),
            ValueError,
        ),
        (
            "short_convolution_forward: weight has shape (1,1,5,1): K is 1 but must be 2 to 8",
            lambda: headgate.short_convolution(X, WEIGHT[:, :1]),
            ValueError,
        ),
        (
            "short_convolution_forward: outputs: 'z' is none of y, state, snapshots",
            lambda: headgate.short_convolution_forward(X, WEIGHT, outputs=["z"]),
            ValueError,
        ),
        (
            "short_convolution_backward: dbias is asked for but bias is None",
            lambda: headgate.short_convolution_backward(X, X, WEIGHT, gradients=["dbias"]),
            ValueError,
        ),
        (
            "short_convolution: takes 3 arguments by position but got 4",
            lambda: headgate.short_convolution(X, WEIGHT, BIAS, STATE),
            TypeError,
        ),
        (
            "short_convolution: there is no argument 'layout'",
            lambda: headgate.short_convolution(X, WEIGHT, layout="bthd"),
            TypeError,
        ),
        (
            "short_convolution: there is no argument 'snapshot_lengths'",
            lambda: headgate.short_convolution(X, WEIGHT, snapshot_lengths=np.array([[2]])),
            TypeError,
        ),
        ("short_convolution: weight is missing", lambda: headgate.short_convolution(X), TypeError),
    ),
)
def test_argument_bad_is_refused_in_one_line(message, call, error):
    with pytest.raises(error) as caught:
        call()
    assert str(caught.value) == message


def test_taps_without_bound_are_refused_before_a_state_is_made():
    weight = np.broadcast_to(np.float32(1), (5, 1 << 40))
    with pytest.raises(ValueError, match="K is 1099511627776 but must be 2 to 8"):
        headgate.short_convolution_forward(X.numpy(), weight)


def test_call_refused_writes_nothing():
    out, state = np.full((2, 9, 5), 5.0, np.float32), np.full((2, 3, 5), 5.0, np.float32)
    outputs = headgate.ShortConvolutionOutputs(y=out, state=state)
    with pytest.raises(ValueError):
        headgate.short_convolution_forward(X.numpy(), WEIGHT.numpy()[:4], out=outputs)
    assert (out == 5.0).all() and (state == 5.0).all()


def test_every_argument_is_documented_and_taken_with_its_default():
    tree = ast.parse((Path(headgate.__file__).parent / "_headgate.pyi").read_text())
    stubs = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    for name, more in (("", "out"), ("_forward", "outputs"), ("_backward", "dstate")):
        arguments = stubs["short_convolution" + name].args
        names = [argument.arg for argument in arguments.args + arguments.kwonlyargs]
        assert more in names and "activation" in names and "layout" not in names
        for argument in names:
            assert f"    {argument}: " in getattr(headgate, "short_convolution" + name).__doc__, argument
    arguments = stubs["short_convolution"].args
    defaults = {
        argument.arg: ast.literal_eval(value) for argument, value in zip(arguments.kwonlyargs, arguments.kw_defaults)
    }
    found = headgate.short_convolution(X, WEIGHT, None, **defaults)
    assert torch.equal(found, headgate.short_convolution(X, WEIGHT))
