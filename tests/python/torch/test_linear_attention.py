# SPDX-License-Identifier: Apache-2.0
"""headgate.torch.linear_attention against the plain recurrence, which autograd differentiates."""

import pytest
import torch
from torch import Tensor

import headgate.torch as ht

RULES = ["gated_delta", "delta", "gated", "linear"]


def recurrence(q, k, v, decay=None, beta=None, state=None, scale=None, l2_norm=None):
    """y and the last state, token by token, of tensors (B,H,T,X)."""
    if l2_norm is not None:
        q, k = (x / (x.square().sum(-1, keepdim=True) + l2_norm).sqrt() for x in (q, k))
    batch, _, tokens, dim = q.shape
    heads = v.shape[1]
    k = k.repeat_interleave(heads // k.shape[1], 1)
    out_heads = max(q.shape[1], heads)
    q = q.repeat_interleave(out_heads // q.shape[1], 1)
    S = q.new_zeros(batch, heads, dim, v.shape[-1]) if state is None else state.to(q.dtype)
    y = []
    for t in range(tokens):
        if decay is not None:
            S = S * decay[:, :, t, :, None].exp()
        u = v[:, :, t]
        if beta is not None:
            u = beta[:, :, t] * (u - torch.einsum("bhd,bhdv->bhv", k[:, :, t], S))
        S = S + k[:, :, t, :, None] * u[:, :, None]
        read = S.repeat_interleave(out_heads // heads, 1)
        y.append((scale or dim**-0.5) * torch.einsum("bhd,bhdv->bhv", q[:, :, t], read))
    return torch.stack(y, 2), S


def problem(rule, per_feature=False, heads=(2, 2, 4), tokens=70, dims=(5, 7), state=True, batch=2):
    """The tensors of a random problem, in f64, each with a gradient."""
    generator = torch.Generator().manual_seed(len(rule) + 10 * per_feature + 100 * sum(heads) + tokens)

    def random(*shape):
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    (Hq, Hk, Hv), (D, Dv) = heads, dims
    found = {
        "q": random(batch, Hq, tokens, D),
        "k": random(batch, Hk, tokens, D) / D**0.5,
        "v": random(batch, Hv, tokens, Dv),
    }
    if rule.startswith("gated"):
        found["decay"] = -random(batch, Hv, tokens, D if per_feature else 1).abs()
    if rule.endswith("delta"):
        found["beta"] = random(batch, Hv, tokens, 1).sigmoid() * 1.5
    if state:
        found["state"] = random(batch, Hv, D, Dv)
    return {name: tensor.requires_grad_() for name, tensor in found.items()}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("per_feature", [False, True])
@pytest.mark.parametrize("heads", [(2, 2, 4), (4, 2, 2), (1, 1, 1)])
@pytest.mark.parametrize("l2_norm", [None, 1e-6])
def test_gradients_random_problem_are_those_of_the_recurrence(rule, per_feature, heads, l2_norm):
    tensors = problem(rule, per_feature, heads)
    y, state = ht.linear_attention(**tensors, rule=rule, l2_norm=l2_norm, return_state=True)
    expected_y, expected_state = recurrence(**tensors, l2_norm=l2_norm)
    torch.testing.assert_close(y, expected_y)
    torch.testing.assert_close(state, expected_state)
    dy, dstate = torch.randn_like(y), torch.randn_like(state)
    gradients = torch.autograd.grad([y, state], list(tensors.values()), [dy, dstate])
    expected = torch.autograd.grad([expected_y, expected_state], list(tensors.values()), [dy, dstate])
    for name, gradient, right in zip(tensors, gradients, expected):
        torch.testing.assert_close(gradient, right, msg=lambda text, name=name: f"d{name}: {text}")


def test_gradients_state_alone_used_are_those_of_the_state():
    tensors = problem("gated_delta", tokens=5)
    _, state = ht.linear_attention(**tensors, return_state=True)
    _, expected = recurrence(**tensors)
    for gradient, right in zip(
        torch.autograd.grad(state.sum(), [tensors["k"], tensors["state"]]),
        torch.autograd.grad(expected.sum(), [tensors["k"], tensors["state"]]),
    ):
        torch.testing.assert_close(gradient, right)


@pytest.mark.parametrize("rule", ["gated_delta", "gated"])
def test_operation_gradcheck_passes(rule):
    tensors = problem(rule, per_feature=True, tokens=6, dims=(3, 2), batch=1)

    def run(*values):
        return ht.linear_attention(**dict(zip(tensors, values)), rule=rule, return_state=True)

    assert torch.autograd.gradcheck(run, tuple(tensors.values()))


@pytest.mark.parametrize("keep_state", [False, True])
@pytest.mark.parametrize("lengths", [None, [[0, 2, 4]]])
def test_operation_opcheck_passes(keep_state, lengths):
    tensors = problem("gated_delta", tokens=4)
    arguments = {name: tensors[name] for name in ("q", "k", "v", "decay", "beta", "state")}
    if lengths is not None:
        arguments = {name: x.detach() for name, x in arguments.items()} | {"snapshot_lengths": torch.tensor(lengths)}
    arguments["keep_state"] = keep_state
    results = torch.library.opcheck(torch.ops.headgate.linear_attention.default, (), arguments)
    assert set(results.values()) == {"SUCCESS"}


@pytest.mark.parametrize("compiles", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_snapshots_are_the_states_of_calls_that_end_there(compiles, dtype):
    tensors = {name: x.detach().to(dtype) for name, x in problem("gated_delta", tokens=70).items()}
    tensors["state"] = tensors["state"].to(torch.float64 if dtype == torch.float64 else torch.float32)

    def run(lengths):
        return ht.linear_attention(**tensors, return_state=True, snapshot_lengths=lengths)

    call = torch.compile(run, backend="aot_eager", fullgraph=True) if compiles else run
    y, state, snapshots = call([0, 33, 70])
    assert y.shape == tensors["v"].shape and snapshots.shape == (6, 4, 5, 7) and snapshots.dtype == state.dtype
    each = snapshots.reshape(2, 3, 4, 5, 7)
    assert torch.equal(each[:, 0], tensors["state"]) and torch.equal(each[:, 2], state)
    before, parts = tensors.pop("state"), []
    for m, tokens in enumerate((slice(0, 33), slice(33, 70))):
        part = {name: x[:, :, tokens] for name, x in tensors.items()}
        y_part, before = ht.linear_attention(**part, state=before, return_state=True)
        assert torch.equal(each[:, m + 1], before)
        parts.append(y_part)
    assert torch.equal(torch.cat(parts, 2), y)
    rows = torch.tensor([[5, 5], [0, 70]], dtype=torch.int32)
    _, alone = ht.linear_attention(**tensors, snapshot_lengths=rows)
    assert torch.equal(alone[0], alone[1]) and not alone[2].any()


def test_snapshots_with_gradients_are_refused():
    tensors = problem("gated_delta", tokens=4)
    with pytest.raises(ValueError, match=r"^linear_attention: with snapshot_lengths there are no gradients: .*no_grad"):
        ht.linear_attention(**tensors, snapshot_lengths=[2])
    with torch.no_grad():
        y, snapshots = ht.linear_attention(**tensors, snapshot_lengths=[2])
    assert snapshots.shape == (2, 4, 5, 7) and not snapshots.requires_grad and not y.requires_grad
    detached = {name: x.detach() for name, x in tensors.items()}
    assert torch.equal(ht.linear_attention(**detached, snapshot_lengths=[2])[1], snapshots)
    with pytest.raises(ValueError, match=r"snapshot_lengths\[0,1\] is 1 but must be 2 to 4") as error:
        ht.linear_attention(**detached, snapshot_lengths=[2, 1])
    assert "\n" not in str(error.value)
    with pytest.raises(
        TypeError, match="snapshot_lengths is a list with a float but must be a tensor or a list of int"
    ):
        ht.linear_attention(**detached, snapshot_lengths=[1.5])


def test_compiled_function_equals_the_eager_one():
    tensors = problem("gated_delta", tokens=9)

    def loss(**named: Tensor) -> Tensor:
        y, state = ht.linear_attention(**named, l2_norm=1e-6, return_state=True)
        return y.square().sum() + state.sum()

    eager = torch.autograd.grad(loss(**tensors), list(tensors.values()))
    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    for found, expected in zip(torch.autograd.grad(compiled(**tensors), list(tensors.values())), eager):
        torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_layout_bthd_equals_transposed_bhtd():
    tensors = problem("gated_delta", per_feature=True)
    y = ht.linear_attention(**tensors)
    rows = {name: tensor if name == "state" else tensor.transpose(1, 2) for name, tensor in tensors.items()}
    torch.testing.assert_close(ht.linear_attention(**rows, layout="bthd").transpose(1, 2), y, rtol=0, atol=0)


def test_packed_batch_equals_its_sequences():
    tensors = problem("gated_delta", tokens=40, batch=1, state=False)
    bounds = [0, 13, 13, 40]
    cu_seqlens = torch.tensor(bounds, dtype=torch.int32)
    y, state = ht.linear_attention(**tensors, cu_seqlens=cu_seqlens, return_state=True)
    assert state.shape[0] == 3 and not state[1].any()
    for n, (first, end) in enumerate(zip(bounds, bounds[1:])):
        part = {name: tensor[:, :, first:end] for name, tensor in tensors.items()}
        own_y, own_state = ht.linear_attention(**part, return_state=True)
        torch.testing.assert_close(y[:, :, first:end], own_y, rtol=0, atol=0)
        torch.testing.assert_close(state[n], own_state[0], rtol=0, atol=0)


def test_autocast_bf16_casts_q_k_and_v():
    tensors = {name: tensor.detach().float() for name, tensor in problem("gated_delta").items()}
    with torch.autocast("cpu", torch.bfloat16):
        y, state = ht.linear_attention(**tensors, return_state=True)
    assert y.dtype == torch.bfloat16 and state.dtype == torch.float32


def test_state_handed_on_token_by_token_equals_one_call():
    tensors = {name: tensor.detach() for name, tensor in problem("gated_delta", tokens=5).items()}
    whole = ht.linear_attention(**tensors)
    state, parts = tensors.pop("state"), []
    for t in range(5):
        token = {name: tensor[:, :, t : t + 1] for name, tensor in tensors.items()}
        y, state = ht.linear_attention(**token, state=state, return_state=True)
        parts.append(y)
    torch.testing.assert_close(torch.cat(parts, 2), whole)


def test_wrong_arguments_raise_one_line():
    tensors = {name: tensor.detach() for name, tensor in problem("gated_delta").items()}
    with pytest.raises(ValueError, match=r"^linear_attention: decay is given but the rule delta has none$"):
        ht.linear_attention(**tensors, rule="delta")
    with pytest.raises(TypeError, match="unexpected keyword argument 'betas'"):
        ht.linear_attention(**tensors, betas=1)
    with pytest.raises(ValueError, match=r"^linear_attention: scale requires a gradient but has none: detach it$"):
        ht.linear_attention(**tensors, scale=torch.tensor(1.0, requires_grad=True))
    with pytest.raises(ValueError, match=r"^linear_attention: q has shape .* but v has shape .*: T is 70 and 3$"):
        ht.linear_attention(tensors["q"], tensors["k"], tensors["v"][:, :, :3])


def test_second_gradients_raise_an_error():
    tensors = problem("gated_delta", tokens=3)
    (gradient,) = torch.autograd.grad(ht.linear_attention(**tensors).sum(), tensors["q"], create_graph=True)
    with pytest.raises(RuntimeError, match="double backward"):
        gradient.sum().backward()
