# SPDX-License-Identifier: Apache-2.0
"""torch.ops.headgate.gated_attention_triton with autograd, on tensors of the CPU that the interpreter reads."""

import interpreter  # noqa: F401, before Triton

# isort: split

import pytest
import torch

import cases
from headgate.torch import AttentionCache, GatedAttention, gpu, linear_attention, module, short_convolution
from headgate.torch import gated_attention as on_cpu
from headgate.torch.gpu.support import GATED_ATTENTION


def on_gpu(q, k, v, gate=None, *, return_lse=False, **arguments):
    """gated_attention as it goes on with tensors of a GPU."""
    return gpu.gated_attention({"q": q, "k": k, "v": v, "gate": gate}, arguments, return_lse)


def problem(gate=32, B=2, T=9, S=12, D=32, dtype=torch.float32):
    q, k, v = torch.randn(B, 4, T, D), torch.randn(B, 2, S, D), torch.randn(B, 2, S, D)
    return [x.to(dtype).requires_grad_() for x in (q, k, v, torch.randn(B, 4, T, gate))]


def near(ours, theirs, tolerance=2e-6):
    assert ours.shape == theirs.shape and ours.dtype == theirs.dtype
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", ("sinks", "bf16, gate f32", "half of a projection"))
def test_operation_case_has_exact_gradients(name):
    case = cases.NAMED[name]
    found = cases.problem_of(case, tiles=False)
    tensors = {
        name: x.detach().requires_grad_(x.is_floating_point())
        for name, x in zip(GATED_ATTENTION.tensors, found.inputs)
        if x is not None
    }
    options = {name: value for name, value in found.options._asdict().items() if name != "tiles"}
    given = dict(tensors)
    y, lse = on_gpu(gate=given.pop("gate"), return_lse=True, **given, **options)
    leaves = {name: x for name, x in tensors.items() if x.requires_grad}
    incoming = (found.dy, torch.zeros_like(lse) if found.dlse is None else found.dlse)
    gradients = torch.autograd.grad((y, lse), leaves.values(), incoming)
    results = {"d" + name: gradient for name, gradient in zip(leaves, gradients)} | {"y": y.detach()}
    if case.layout == "bthd":
        results = {name: x.transpose(1, 2) for name, x in results.items()}
    assert not cases.errors_of(case, results | {"lse": lse.detach()}, cases.expected_of(case, found))


@pytest.mark.parametrize("gate_fn", ("sigmoid", "silu"))
def test_operation_some_inputs_need_gradients_only_they_have_them(gate_fn):
    for needed in range(4):
        leaves = [x.detach().requires_grad_(n == needed) for n, x in enumerate(problem(gate=1))]
        ours, theirs = (f(*leaves, causality="causal", gate_fn=gate_fn) for f in (on_gpu, on_cpu))
        near(ours, theirs)
        dy = torch.randn_like(ours)
        near(*(torch.autograd.grad(y, leaves[needed], dy)[0] for y in (ours, theirs)))


def test_operation_log_sum_exp_alone_has_a_gradient():
    leaves = problem()
    ours, theirs = (f(*leaves, return_lse=True)[1] for f in (on_gpu, on_cpu))
    near(*(torch.autograd.grad(lse.square().sum(), leaves[1])[0] for lse in (ours, theirs)), 1e-5)


def test_operation_packed_without_a_batch_matches_cpu():
    q, k, v, gate = (x[0] for x in problem(B=1, T=12))
    starts = torch.tensor([0, 5, 5, 12])
    packed = {"cu_seqlens_q": starts, "cu_seqlens_k": starts, "causality": "causal", "window_left": 3}
    for ours, theirs in zip(*(f(q, k, v, gate, return_lse=True, **packed) for f in (on_gpu, on_cpu))):
        near(ours, theirs)


@pytest.mark.parametrize("name", ("key_lengths", "query_offsets"))
def test_operation_indices_with_strides_match_cpu(name):
    leaves = problem()
    for indices in (torch.tensor([[3, 7], [1, 7]])[:, 0], torch.tensor([5]).expand(2)):
        results = (f(*leaves, causality="causal", **{name: indices}) for f in (on_gpu, on_cpu))
        for ours, theirs in zip(*((y, *torch.autograd.grad(y.square().sum(), leaves)) for y in results)):
            near(ours, theirs, 1e-5)


def test_operations_packed_by_starts_with_strides_match_cpu():
    starts = torch.tensor([[0, 9], [5, 9], [12, 9]])[:, 0]
    q, k, v, gate = (x.detach() for x in problem(B=1, T=12))
    both = {"cu_seqlens_q": starts, "cu_seqlens_k": starts}
    near(on_gpu(q, k, v, gate, **both), on_cpu(q, k, v, gate, **both))
    given, options = {"q": k, "k": k, "v": v, "decay": None, "beta": None}, {"rule": "linear", "cu_seqlens": starts}
    near(gpu.linear_attention(given, dict(options), False), linear_attention(k, k, v, **options), 1e-5)
    given = {"x": torch.randn(1, 12, 8), "weight": torch.randn(8, 4), "bias": None}
    near(
        gpu.short_convolution(given, {"cu_seqlens": starts}, False),
        short_convolution(given["x"], given["weight"], cu_seqlens=starts),
    )


@pytest.mark.parametrize("options", ({}, {"gate_fn": "silu"}, {"gate_op": "add"}), ids=str)
def test_operation_saved_tensors_return_with_other_strides_has_the_same_gradients(options):
    leaves = problem()
    y = on_gpu(*leaves, **options)
    dy = torch.randn_like(y)
    expected = torch.autograd.grad(y, leaves, dy)

    def restrided(x):
        return x.mT.contiguous().mT if x.dim() > 1 else x

    with torch.autograd.graph.saved_tensors_hooks(lambda x: x, restrided):
        y = on_gpu(*leaves, **options)
    for ours, theirs in zip(torch.autograd.grad(y, leaves, dy), expected):
        assert torch.equal(ours, theirs)


def test_operation_nested_batch_is_nested_as_q():
    parts = [torch.randn(n, 2, 16) for n in (3, 7, 1)]
    nested = torch.nested.nested_tensor(parts, layout=torch.jagged)
    ours, theirs = (f(nested, nested, nested, nested, layout="bthd", causality="causal") for f in (on_gpu, on_cpu))
    assert ours.is_nested and torch.equal(ours.offsets(), theirs.offsets())
    near(ours.values(), theirs.values())


def test_operation_gate_fn_none_ignores_the_gate():
    q, k, v, gate = (x.detach() for x in problem())
    assert torch.equal(on_gpu(q, k, v, gate, gate_fn="none"), on_gpu(q, k, v))


def test_operation_second_derivative_is_refused():
    leaves = problem()
    gradient = torch.autograd.grad(on_gpu(*leaves).sum(), leaves[0], create_graph=True)[0]
    with pytest.raises(RuntimeError, match="double backward"):
        gradient.sum().backward()


def test_operation_output_before_the_gate_is_kept_only_where_the_gate_may_be_zero():
    q, k, v, gate = problem()
    for options, kept in (
        ({}, False),
        ({"gate_fn": "softplus"}, False),
        ({"gate_fn": "silu"}, True),
        ({"gate_fn": "identity"}, True),
        ({"gate_op": "add"}, True),
    ):
        y = on_gpu(q, k, v, gate, **options)
        assert (y.grad_fn.saved_tensors[-1].numel() > 0) == kept


@pytest.mark.parametrize(
    "options",
    ({}, {"attention_window": 4, "attention_sinks": "off_by_one"}, {"gate_grain": "headwise", "gate_fn": "silu"}),
    ids=("plain", "window and sinks", "headwise"),
)
def test_layer_computed_by_the_kernels_matches_cpu(options, monkeypatch):
    layer = GatedAttention(hidden_size=32, num_attention_heads=4, num_key_value_heads=2, head_dim=16, **options)
    h = torch.randn(1, 9, 32)

    def results():
        packed = layer(h, cu_seqlens=torch.tensor([0, 4, 9], dtype=torch.int32))
        gradients = torch.autograd.grad(packed.square().sum(), list(layer.parameters()))
        with torch.no_grad():
            cache = AttentionCache()
            return packed, *gradients, *(layer(part, cache=cache) for part in h.split((5, 4), dim=1))

    theirs = results()
    monkeypatch.setattr(module, "gated_attention", on_gpu)
    for ours, other in zip(results(), theirs, strict=True):
        near(ours, other, 1e-5)
