# SPDX-License-Identifier: Apache-2.0
"""linear_attention and its two passes against the recurrence in float64."""

import ast
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch

import headgate
from support import close, linear_problem, plain_linear_attention

RULES = ("gated_delta", "delta", "gated", "linear")
HEADS = ((2, 1, 2), (4, 2, 2), (2, 2, 4), (1, 1, 1), (6, 1, 3))
"""Hq, Hk, Hv: query heads share a state, and states share a query head."""
ROUNDOFFS = 256
DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def doubled(rest):
    return {name: x.double() for name, x in rest.items()}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("heads", HEADS, ids=str)
def test_forward_each_rule_and_sharing_of_heads_matches_the_recurrence(rule, heads):
    Hq, Hk, Hv = heads
    *qkv, rest = linear_problem(Hq=Hq, Hk=Hk, Hv=Hv, rule=rule)
    found = headgate.linear_attention_forward(*qkv, **rest, rule=rule)
    y, state = plain_linear_attention(*qkv, **rest, rule=rule)
    assert close(found.y, y, ROUNDOFFS) and close(found.state, state, ROUNDOFFS)
    assert torch.equal(headgate.linear_attention(*qkv, **rest, rule=rule), found.y)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("features", (1, 8))
def test_gradients_match_autograd(rule, features):
    *qkv, rest = linear_problem(Hq=4, Hk=1, Hv=2, rule=rule, features=features)
    options = dict(rule=rule, scale=0.7, l2_norm=1e-3)
    leaves = [x.clone().requires_grad_() for x in (*qkv, *rest.values())]
    y, state = plain_linear_attention(*leaves[:3], **dict(zip(rest, leaves[3:])), **options)
    dy, dstate = torch.randn_like(y), torch.randn_like(state)
    ((y * dy).sum() + (state * dstate).sum()).backward()
    found = headgate.linear_attention_backward(dy, *qkv, **rest, dstate=dstate, **options)
    for leaf, name in zip(leaves, ("q", "k", "v", *rest)):
        assert close(getattr(found, "d" + name), leaf.grad, 16 * ROUNDOFFS), name
    for name in {"decay", "beta"} - set(rest):
        assert getattr(found, "d" + name) is None


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_result_has_the_dtype_of_q_and_states_are_wide(dtype):
    *qkv, rest = linear_problem(dtype=dtype)
    found = headgate.linear_attention_forward(*qkv, **rest)
    assert found.y.dtype == dtype
    assert found.state.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    y, state = plain_linear_attention(*(x.double() for x in qkv), **doubled(rest))
    assert close(found.y, y, ROUNDOFFS, dtype) and close(found.state, state, ROUNDOFFS, found.state.dtype)


def test_decay_of_each_feature_matches_the_recurrence():
    *qkv, rest = linear_problem(features=8)
    found = headgate.linear_attention_forward(*qkv, **rest)
    y, state = plain_linear_attention(*qkv, **rest)
    assert close(found.y, y, ROUNDOFFS) and close(found.state, state, ROUNDOFFS)


def test_beta_of_all_heads_is_that_of_each():
    *qkv, rest = linear_problem()
    rest["beta"] = rest["beta"][:, :1]
    dy = torch.ones(2, 2, 9, 6, dtype=torch.float64)
    each = rest | {"beta": rest["beta"].expand(2, 2, 9, 1)}
    assert torch.equal(headgate.linear_attention(*qkv, **rest), headgate.linear_attention(*qkv, **each))
    found = headgate.linear_attention_backward(dy, *qkv, **rest)
    expected = headgate.linear_attention_backward(dy, *qkv, **each)
    assert close(found.dbeta, expected.dbeta.sum(1, keepdim=True), ROUNDOFFS)


def test_parts_of_a_prompt_go_on_from_the_state():
    *qkv, rest = linear_problem(state=False)
    whole = headgate.linear_attention_forward(*qkv, **rest)
    state, y = None, []
    for part in (slice(0, 4), slice(4, 5), slice(5, 9)):
        found = headgate.linear_attention_forward(
            *(x[:, :, part] for x in qkv), *(x[:, :, part] for x in rest.values()), state=state
        )
        y.append(found.y)
        state = found.state
    assert close(torch.cat(y, dim=2), whole.y, ROUNDOFFS) and close(state, whole.state, ROUNDOFFS)


def test_snapshots_are_states_of_parts():
    *qkv, rest = linear_problem(dtype=torch.float32)
    lengths = torch.tensor([[2, 5], [0, 9]], dtype=torch.int32)
    found = headgate.linear_attention_forward(*qkv, **rest, snapshot_lengths=lengths)
    assert found.snapshots.shape == (4, *found.state.shape[1:])
    for n, row in enumerate(lengths.tolist()):
        state, first = rest["state"][n : n + 1], 0
        for m, end in enumerate([*row, 9]):
            part = [x[n : n + 1, :, first:end] for x in (*qkv, rest["decay"], rest["beta"])]
            each = headgate.linear_attention_forward(*part, state=state)
            assert torch.equal(each.y, found.y[n : n + 1, :, first:end])
            state, first = each.state, end
            if m < len(row):
                assert torch.equal(state[0], found.snapshots[2 * n + m])
        assert torch.equal(state[0], found.state[n])
    snapshots = np.zeros((2, *found.state.shape[1:]))
    out = headgate.LinearAttentionOutputs(snapshots=snapshots)
    arrays = [x.numpy() for x in qkv]
    headgate.linear_attention_forward(*arrays, snapshot_lengths=np.array([[9]]), out=out)
    assert snapshots.any()


def test_state_given_as_output_is_updated_in_place():
    *qkv, rest = linear_problem(dtype=torch.float32)
    expected = headgate.linear_attention_forward(*qkv, **rest)
    state = rest["state"]
    found = headgate.linear_attention_forward(*qkv, **rest, out=headgate.LinearAttentionOutputs(state=state))
    assert found.state is state and torch.equal(state, expected.state) and torch.equal(found.y, expected.y)
    array = rest["state"].numpy().copy()
    arrays = {name: x.numpy() for name, x in rest.items()} | {"state": array}
    again = headgate.linear_attention_forward(*qkv, **arrays, out=headgate.LinearAttentionOutputs(state=array))
    assert again.state is array and not np.array_equal(array, expected.state.numpy())


def test_outputs_and_gradients_are_chosen_and_written_in_place():
    *qkv, rest = linear_problem(dtype=torch.float32)
    expected = headgate.linear_attention_forward(*qkv, **rest)
    y = torch.full((2, 9, 2, 6), 9.0).transpose(1, 2)
    assert headgate.linear_attention(*qkv, **rest, out=y) is y and torch.equal(y, expected.y)
    assert headgate.linear_attention_forward(*qkv, **rest, outputs=()).state is None
    found = headgate.linear_attention_forward(*qkv, **rest, out=headgate.LinearAttentionOutputs(y=y))
    assert found.y is y and found.state is None
    dy, dq = torch.ones_like(y), torch.empty_like(qkv[0])
    whole = headgate.linear_attention_backward(dy, *qkv, **rest)
    only = headgate.linear_attention_backward(dy, *qkv, **rest, out=headgate.LinearAttentionGradients(dq=dq))
    assert only.dq is dq and only.dk is None and torch.equal(dq, whole.dq)
    named = headgate.linear_attention_backward(dy, *qkv, **rest, gradients=("dv", "dstate"))
    assert named.dq is None and torch.equal(named.dv, whole.dv) and torch.equal(named.dstate, whole.dstate)


def test_any_layout_agrees_and_states_keep_theirs():
    *qkv, rest = linear_problem(dtype=torch.float32)
    expected = headgate.linear_attention_forward(*qkv, **rest)
    turned = [x.transpose(1, 2).contiguous() for x in (*qkv, rest["decay"], rest["beta"])]
    found = headgate.linear_attention_forward(*turned, state=rest["state"], layout="bthd")
    assert found.y.is_contiguous() and torch.equal(found.y.transpose(1, 2), expected.y)
    assert torch.equal(found.state, expected.state)
    dy = torch.randn_like(found.y)
    gradients = headgate.linear_attention_backward(dy, *turned, state=rest["state"], layout="bthd")
    plain = headgate.linear_attention_backward(dy.transpose(1, 2), *qkv, **rest)
    for name in ("dq", "dk", "dv", "ddecay", "dbeta"):
        assert torch.equal(getattr(gradients, name).transpose(1, 2), getattr(plain, name)), name
    assert torch.equal(gradients.dstate, plain.dstate)


def test_batch_of_one_needs_no_dimension():
    *qkv, rest = linear_problem(B=1)
    expected = headgate.linear_attention_forward(*qkv, **rest)
    found = headgate.linear_attention_forward(*(x[0] for x in (*qkv, rest["decay"], rest["beta"])), state=rest["state"])
    assert torch.equal(found.y, expected.y[0]) and torch.equal(found.state, expected.state)


@pytest.mark.parametrize("integers", (torch.int32, torch.int64), ids=str)
def test_packed_batch_is_separate_calls(integers):
    lengths = (3, 0, 7)
    parts = [linear_problem(B=1, T=T, seed=n) for n, T in enumerate(lengths)]
    packed = [torch.cat([part[i] for part in parts], dim=2) for i in range(3)]
    rest = {name: torch.cat([part[3][name] for part in parts], dim=2) for name in ("decay", "beta")}
    rest["state"] = torch.cat([part[3]["state"] for part in parts])
    bounds = torch.tensor([0, *np.cumsum(lengths)], dtype=integers)
    found = headgate.linear_attention_forward(*packed, **rest, cu_seqlens=bounds)
    separate = [headgate.linear_attention_forward(*part[:3], **part[3]) for part in parts]
    assert torch.equal(found.y, torch.cat([x.y for x in separate], dim=2))
    assert torch.equal(found.state, torch.cat([x.state for x in separate]))
    rows = [x[0].transpose(0, 1) for x in (*packed, rest["decay"], rest["beta"])]
    by_rows = headgate.linear_attention(*rows, state=rest["state"], cu_seqlens=bounds, layout="bthd")
    assert torch.equal(by_rows, found.y[0].transpose(0, 1))


def test_numpy_and_pytorch_give_the_same_bits():
    for dtype, name in ((torch.float32, np.float32), (torch.float16, np.float16), (torch.bfloat16, ml_dtypes.bfloat16)):
        *qkv, rest = linear_problem(dtype=dtype)
        as_arrays = [x.float().numpy().astype(name) for x in (*qkv, rest["decay"], rest["beta"])]
        found = headgate.linear_attention_forward(*as_arrays, state=rest["state"].numpy())
        assert isinstance(found.y, np.ndarray) and found.y.dtype == name and found.state.dtype == np.float32
        expected = headgate.linear_attention_forward(*qkv, **rest)
        assert isinstance(expected.state, torch.Tensor)
        assert np.array_equal(found.y.astype(np.float32), expected.y.float().numpy())
        assert np.array_equal(found.state, expected.state.numpy())


def test_every_target_and_number_of_threads_agrees():
    *qkv, rest = linear_problem(T=70)
    y, state = plain_linear_attention(*qkv, **rest)
    for target in headgate.supported_targets():
        found = [
            headgate.linear_attention_forward(*qkv, **rest, target=target, threads=n, backend="cpu") for n in (1, 2, 3)
        ]
        assert torch.equal(found[0].y, found[1].y) and torch.equal(found[0].state, found[2].state)
        assert close(found[0].y, y, 4 * ROUNDOFFS) and close(found[0].state, state, 4 * ROUNDOFFS)


def test_no_tokens_leave_the_state():
    q, k, v, rest = linear_problem(T=0)
    found = headgate.linear_attention_forward(q, k, v, **rest)
    assert found.y.shape == (2, 2, 0, 6) and torch.equal(found.state, rest["state"])


Q, K, V, REST = linear_problem(dtype=torch.float32)
DY = torch.ones(2, 2, 9, 6)


@pytest.mark.parametrize(
    "message, call, error",
    (
        (
            "linear_attention: q is required but None",
            lambda: headgate.linear_attention(None, K, V),
            ValueError,
        ),
        (
            "linear_attention_forward: decay is given but the rule delta has none",
            lambda: headgate.linear_attention(Q, K, V, REST["decay"], rule="delta"),
            ValueError,
        ),
        (
            "linear_attention: rule: 'double' is none of gated_delta, delta, gated, linear",
            lambda: headgate.linear_attention(Q, K, V, rule="double"),
            ValueError,
        ),
        (
            "linear_attention: state has shape (8,6) but must be (N,H,D,Dv)",
            lambda: headgate.linear_attention(Q, K, V, state=REST["state"][0, 0]),
            ValueError,
        ),
        (
            "linear_attention_forward: l2_norm is -1 but must be at least 0 and finite: it is the eps of the norm",
            lambda: headgate.linear_attention(Q, K, V, l2_norm=-1.0),
            ValueError,
        ),
        (
            "linear_attention_forward: outputs: 'z' is none of y, state, snapshots",
            lambda: headgate.linear_attention_forward(Q, K, V, outputs=["z"]),
            ValueError,
        ),
        (
            "linear_attention_backward: dbeta is asked for but beta is None",
            lambda: headgate.linear_attention_backward(DY, Q, K, V, gradients=["dbeta"]),
            ValueError,
        ),
        (
            "linear_attention: takes 5 arguments by position but got 6",
            lambda: headgate.linear_attention(Q, K, V, REST["decay"], REST["beta"], REST["state"]),
            TypeError,
        ),
        (
            "linear_attention: scale is 'x' but must be a number",
            lambda: headgate.linear_attention(Q, K, V, scale="x"),
            TypeError,
        ),
        (
            "linear_attention: there is no argument 'snapshot_lengths'",
            lambda: headgate.linear_attention(Q, K, V, snapshot_lengths=np.array([[2]])),
            TypeError,
        ),
        ("linear_attention: v is missing", lambda: headgate.linear_attention(Q, K), TypeError),
        (
            "LinearAttentionOutputs: there is no argument 'lse'",
            lambda: headgate.LinearAttentionOutputs(lse=Q),
            TypeError,
        ),
    ),
)
def test_argument_bad_is_refused_in_one_line(message, call, error):
    with pytest.raises(error) as caught:
        call()
    assert str(caught.value) == message


def test_wide_heads_are_refused_before_states_are_made():
    q, v = np.ones((1, 1, 1, 1 << 20), np.float32), np.ones((1, 1, 1, 1 << 20), np.float32)
    with pytest.raises(ValueError, match="D is 1048576 but must be 1 to 256"):
        headgate.linear_attention_forward(q, q, v)


def test_call_refused_writes_nothing():
    out, state = np.full((2, 2, 9, 6), 5.0, np.float32), np.full((2, 2, 8, 6), 5.0, np.float32)
    outputs = headgate.LinearAttentionOutputs(y=out, state=state)
    with pytest.raises(ValueError):
        headgate.linear_attention_forward(Q.numpy(), K.numpy(), V.numpy(), l2_norm=-1.0, out=outputs)
    assert (out == 5.0).all() and (state == 5.0).all()


def test_output_overlapping_an_input_is_refused():
    x = np.ones((1, 1, 4, 8), np.float32)
    with pytest.raises(ValueError, match="^linear_attention_forward: y overlaps q in memory"):
        headgate.linear_attention(x, x.copy(), x.copy(), out=x)


def test_every_argument_is_documented_and_taken_with_its_default():
    tree = ast.parse((Path(headgate.__file__).parent / "_headgate.pyi").read_text())
    stubs = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    for name, more in (("", "out"), ("_forward", "outputs"), ("_backward", "dstate")):
        arguments = stubs["linear_attention" + name].args
        names = [argument.arg for argument in arguments.args + arguments.kwonlyargs]
        assert more in names and "l2_norm" in names
        for argument in names:
            assert f"    {argument}: " in getattr(headgate, "linear_attention" + name).__doc__, argument
    arguments = stubs["linear_attention"].args
    defaults = {
        argument.arg: ast.literal_eval(value) for argument, value in zip(arguments.kwonlyargs, arguments.kw_defaults)
    }
    found = headgate.linear_attention(Q, K, V, None, None, **defaults)
    assert torch.equal(found, headgate.linear_attention(Q, K, V))
