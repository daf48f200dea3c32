# SPDX-License-Identifier: Apache-2.0
"""Gated linear attention in Triton's interpreter: kernels, planted faults, and the operation with autograd."""

import os
from unittest import mock

import interpreter  # noqa: F401, before Triton

# isort: split

import pytest
import torch

import faults
import linear_cases as cases
from headgate.torch import gpu
from headgate.torch import linear_attention as on_cpu
from headgate.torch.gpu import linear_kernels, linear_launch

QUICK = (
    "gated delta",
    "delta",
    "gated",
    "shared heads",
    "strong decays",
    "columns in blocks",
    "packed",
    "decays of features",
    "decays of features, strong",
    "no tokens",
    "bf16",
)


def wrong(case):
    problem = cases.problem_of(case)
    return cases.errors_of(case, cases.computed(case, problem), cases.expected_of(case, problem))


@pytest.mark.parametrize("name", cases.NAMED if os.environ.get("HEADGATE_TRITON") == "all" else QUICK)
def test_linear_kernels_case_matches_float64(name):
    assert not wrong(cases.NAMED[name])


# What is planted: text of linear_kernels.py, what replaces its first occurrence, and the case that must see it.
FAULTS = {
    "a token sees itself in A": ("rows[:, None] > rows[None, :], b_rows", "rows[:, None] >= rows[None, :], b_rows", "delta"),
    "the state does not decay": ("u, gamma_c * s, input", "u, s, input", "gated delta"),
    "keys do not decay to the chunk's end": ("eta * k_rows), u", "k_rows), u", "gated"),
    "one step of substitution is left out": ("tl.range(1, C)", "tl.range(2, C)", "one beta"),
    "value heads share keys in another order": ("b, h // GROUP_K, begin", "b, h % (H // GROUP_K), begin", "shared heads"),
    "a state of another sequence": ("(tl.load(cu + n) // C).to(tl.int32) + n", "(tl.load(cu + n) // C).to(tl.int32)", "packed"),
    "the norm's gradient is left out": ("- x * tl.sum(dx * x, 1)[:, None]", "- 0.0 * x", "columns in blocks"),
    "the decay's gradient lacks later tokens": ("reverse=True) + tl.sum(dwhole)", "reverse=True)", "gated"),
    "keys lack the gradient from those that read them": ("        dk_rows += dk_pairs", "        dk_rows += 0.0", "one beta"),
    "beta's gradient lacks the state": ("dreading -= gamma * through_state", "dreading -= 0.0", "gated delta"),
    "a token's decays are another's": ("_row(sums, j, C)[None, :], 0.0))\n            column", "_row(sums, 0, C)[None, :], 0.0))\n            column", "decays of features"),
    "gradients of pairs lack decays": ("tl.exp(tl.minimum(sums - _row(sums, j, C)[None, :], 0.0))\n            dx", "1.0\n            dx", "decays of features"),
    "decays of features lack later tokens": ("reverse=True) + tl.trans(dwhole)", "reverse=True)", "decays of features"),
    "the gradient of another chunk's state": ("_load_state(dstates, chunk", "_load_state(dstates, chunk * 0", "columns in blocks"),
    "the state's gradient is not passed on": ("of_chunk = before", "of_chunk = of_chunk", "gated delta"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_linear_comparison_planted_fault_is_seen(fault, tmp_path):
    old, new, case = FAULTS[fault]
    faulty = faults.with_fault(linear_kernels, old, new, tmp_path)
    with mock.patch.object(linear_launch, "linear_kernels", faulty):
        assert faults.seen(lambda: wrong(cases.NAMED[case]))


def on_gpu(q, k, v, decay=None, beta=None, *, return_state=False, **arguments):
    """linear_attention as it goes on with tensors of a GPU."""
    return gpu.linear_attention({"q": q, "k": k, "v": v, "decay": decay, "beta": beta}, arguments, return_state)


def leaves_of(T=7, decays=1):
    q, k, v, decay, beta = torch.randn(1, T, 1, 16), torch.randn(1, T, 2, 16), torch.randn(1, T, 2, 8), -torch.rand(1, T, 2, decays), torch.rand(1, T, 2, 1)  # fmt: skip
    return [x.requires_grad_() for x in (q, k, v, decay, beta)]


def near(ours, theirs):
    assert ours.shape == theirs.shape and ours.dtype == theirs.dtype
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("decays", (1, 16), ids=("", "decays of features"))
@pytest.mark.parametrize("packed", (False, True), ids=("one sequence", "packed"))
def test_linear_operation_matches_cpu(packed, decays):
    leaves = leaves_of(decays=decays)
    starts = torch.tensor([0, 3, 7]) if packed else None
    state = torch.randn(2 if packed else 1, 2, 16, 8, requires_grad=True)
    results = []
    for function in (on_gpu, on_cpu):
        found = function(*leaves, state=state, cu_seqlens=starts, l2_norm=1e-6, layout="bthd", return_state=True)
        torch.manual_seed(1)
        incoming = [torch.randn_like(x) for x in found]
        results.append((*found, *torch.autograd.grad(found, (*leaves, state), incoming)))
    for ours, theirs in zip(*results):
        near(ours, theirs)


def test_linear_operation_state_handed_on_equals_one_call():
    tensors = [x.detach() for x in leaves_of(T=9)]
    whole = on_gpu(*tensors, l2_norm=1e-6, layout="bthd")
    first, state = on_gpu(*(x[:, :5] for x in tensors), l2_norm=1e-6, layout="bthd", return_state=True)
    second = on_gpu(*(x[:, 5:] for x in tensors), state=state, l2_norm=1e-6, layout="bthd")
    near(torch.cat((first, second), dim=1), whole)


def test_linear_operation_without_a_batch_or_all_gradients():
    q, k, v, decay, beta = (x[0].detach().transpose(0, 1) for x in leaves_of())
    decay.requires_grad_()
    ours, theirs = (function(q, k, v, decay, beta, l2_norm=1e-6) for function in (on_gpu, on_cpu))
    near(ours, theirs)
    near(*(torch.autograd.grad(y.square().sum(), decay)[0] for y in (ours, theirs)))


def test_linear_operation_second_derivative_is_refused():
    leaves = leaves_of()
    gradient = torch.autograd.grad(on_gpu(*leaves, layout="bthd").sum(), leaves[0], create_graph=True)[0]
    with pytest.raises(RuntimeError, match="double backward"):
        gradient.sum().backward()
