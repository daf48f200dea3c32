# SPDX-License-Identifier: Apache-2.0
"""Short convolution and gated norm in Triton's interpreter: kernels, planted faults, and the operations with autograd."""

import os
from unittest import mock

import interpreter  # noqa: F401, before Triton

# isort: split

import pytest
import torch

import convolution_cases
import faults
import norm_cases
from headgate import torch as on_cpu
from headgate.torch import DeltaNetCache, GatedDeltaNet, delta_convolution, delta_net, gpu
from headgate.torch.gpu import convolution_kernels, convolution_launch, norm_kernels, norm_launch

KINDS = {
    "convolution": (convolution_cases, convolution_launch, convolution_kernels),
    "norm": (norm_cases, norm_launch, norm_kernels),
}
# What other cases and the faults do not show; HEADGATE_TRITON=all takes them all.
QUICK = (
    "no activation",
    "channels first",
    "8 taps",
    "convolution of no tokens",
    "convolution, packed",
    "packed without states",
    "convolution in bf16",
    "weights of heads",
    "no weight",
    "no gate",
    "features first in memory",
    "a feature",
    "norm of no rows",
    "small rows beside eps",
    "norm in f16, others in f32",
)
ALL = os.environ.get("HEADGATE_TRITON") == "all"
CASES = [(kind, name) for kind, (module, _, _) in KINDS.items() for name in module.NAMED if ALL or name in QUICK]


def wrong(kind, name):
    cases = KINDS[kind][0]
    case = cases.NAMED[name]
    problem = cases.problem_of(case)
    return cases.errors_of(case, cases.computed(case, problem), cases.expected_of(case, problem))


@pytest.mark.parametrize("kind, name", CASES)
def test_kernels_case_matches_float64(kind, name):
    assert not wrong(kind, name)


# What is planted: text of the kernels, what replaces its first occurrence, and the case that must see it.
FAULTS = {
    ("convolution", "taps stand in reverse order"): ("rows + (j - K + 1), channels, x_t", "rows - j, channels, x_t", "2 taps"),
    ("convolution", "the state is a row late"): ("rows + (K - 1), channels, state_k", "rows + (K - 2), channels, state_k", "8 taps"),
    ("convolution", "tokens see the sequence before"): ("begin, t = _sequence(n, cu, T)", "begin, t = _sequence(n, cu, T)\n    begin = begin * 0", "convolution, packed"),
    ("convolution", "an empty sequence keeps no state"): ("if first == 0:", "if (first == 0) & (t > 0):", "convolution, packed"),
    ("convolution", "the old state is not handed on"): ("rows + (t - K + 1)", "tl.maximum(rows + (t - K + 1), 0)", "fewer tokens than rows of the state"),
    ("convolution", "the bias is left out"): ("+ _load_channels(bias", "+ 0.0 * _load_channels(bias", "convolution"),
    ("convolution", "the slope of a sigmoid"): ('_gate_slope(total, "silu")', '_gate_slope(total, "sigmoid")', "convolution"),
    ("convolution", "a tile's part of dweight is another's"): ("(part.to(tl.int64) * K + j) * C", "(b.to(tl.int64) * K + j) * C", "convolution"),
    ("convolution", "the new state's gradient is a row off"): ("rows + (K - 1) - t, channels", "rows + K - t, channels", "no activation"),
    ("convolution", "a row behind the tensor is read"): ("(rows < n_rows))[:, None] & (channels < C)[None, :]\n        x = ", "(rows <= n_rows))[:, None] & (channels < C)[None, :]\n        x = ", "2 taps"),
    ("convolution", "a channel behind the tensor is written"): ("(channels < C)[None, :]\n    tl.store", "(channels <= C)[None, :]\n    tl.store", "convolution"),
    ("convolution", "the sum is rounded before the activation"): ('total = _gate(total, "silu")', 'total = _gate(total.to(y.dtype.element_ty).to(tl.float32), "silu")', "convolution in bf16"),
    ("norm", "n is rounded before the gate"): ("n = n * _gate(z", "n = n.to(y.dtype.element_ty).to(tl.float32) * _gate(z", "norm in bf16"),
    ("norm", "eps is left out"): ("/ D + own_eps", "/ D", "no gate"),
    ("norm", "large squares overflow"): ("tl.where(top > LARGE, DOWN,", "tl.where(top > LARGE, 1.0,", "large rows"),
    ("norm", "small squares underflow"): ("tl.where(top < SMALL, up, 1.0)", "tl.where(top < SMALL, 1.0, 1.0)", "small rows"),
    ("norm", "eps is not scaled with small rows"): ("tl.where(top < SMALL, eps_up, eps)", "eps", "small rows beside eps"),
    ("norm", "heads share a weight"): ("weight + h * weight_h", "weight", "weights of heads"),
    ("norm", "the mean's gradient is left out"): ("(e - n * along[:, None])", "(e - 0.0 * n)", "norm of rows"),
    ("norm", "dweight lacks the gate"): ("tl.sum(flow * n, 0)", "tl.sum(n, 0)", "norm of rows"),
    ("norm", "dgate lacks the weight"): ("flow * n * w * _gate_slope", "flow * n * _gate_slope", "norm of rows"),
    ("norm", "a part of dweight is another's"): ("dweight + tl.program_id(0)", "dweight + first", "norm of rows"),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning", "ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("kind, fault", FAULTS)
def test_comparison_planted_fault_is_seen(kind, fault, tmp_path):
    old, new, case = FAULTS[kind, fault]
    _, launch, kernels = KINDS[kind]
    faulty = faults.with_fault(kernels, old, new, tmp_path)
    with mock.patch.object(launch, kernels.__name__.rpartition(".")[2], faulty):
        assert faults.seen(lambda: wrong(kind, case))


class OnGpu:
    """Functions of headgate.torch as they go on with tensors of a GPU."""

    @staticmethod
    def short_convolution(x, weight, bias=None, *, return_state=False, **arguments):
        return gpu.short_convolution({"x": x, "weight": weight, "bias": bias}, arguments, return_state)

    @staticmethod
    def gated_norm(x, weight=None, gate=None, **arguments):
        return gpu.gated_norm({"x": x, "weight": weight, "gate": gate}, arguments)

    @staticmethod
    def linear_attention(q, k, v, decay=None, beta=None, *, return_state=False, **arguments):
        given = {"q": q, "k": k, "v": v, "decay": decay, "beta": beta}
        return gpu.linear_attention(given, arguments, return_state)


def near(ours, theirs, tolerance=5e-6):
    assert ours.shape == theirs.shape and ours.dtype == theirs.dtype
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)


def leaves_of(*shapes):
    return [torch.randn(shape, requires_grad=True) for shape in shapes]


@pytest.mark.parametrize("packed", (False, True), ids=("batch", "packed"))
def test_convolution_operation_matches_cpu(packed):
    x, weight, bias, state = leaves_of((1, 9, 6) if packed else (2, 9, 6), (6, 4), (6,), (2, 3, 6))
    starts = torch.tensor([0, 2, 9]) if packed else None
    results = []
    for functions in (OnGpu, on_cpu):
        found = functions.short_convolution(x, weight, bias, state=state, cu_seqlens=starts, return_state=True)
        torch.manual_seed(1)
        incoming = [torch.randn_like(y) for y in found]
        results.append((*found, *torch.autograd.grad(found, (x, weight, bias, state), incoming)))
    for ours, theirs in zip(*results):
        near(ours, theirs)


def test_operations_some_inputs_need_gradients_only_they_have_them():
    x, weight, gate = leaves_of((1, 5, 6), (6, 3), (5, 6))
    for functions in (OnGpu, on_cpu):
        y = functions.short_convolution(x[0].detach(), weight)  # without a batch
        convolution = torch.autograd.grad(y.square().sum(), weight)[0]
        y = functions.gated_norm(x.detach(), gate=gate[None], gate_fn="sigmoid")
        norm = torch.autograd.grad(y.square().sum(), gate)[0]
        if functions is OnGpu:
            ours = convolution, norm
    near(ours[0], convolution)
    near(ours[1], norm)


def test_convolution_operation_state_alone_has_a_gradient():
    x, weight = leaves_of((1, 5, 6), (6, 3))
    _, state = OnGpu.short_convolution(x, weight, return_state=True)
    (dx,) = torch.autograd.grad(state.sum(), x)
    assert torch.equal(dx, torch.cat([torch.zeros(1, 3, 6), torch.ones(1, 2, 6)], dim=1))


def test_norm_operation_weights_of_heads_and_rows_of_heads_match_cpu():
    leaves = leaves_of((2, 5, 3, 8), (3, 8), (2, 5, 3, 8))
    found = [functions.gated_norm(*leaves, layout="bthd", eps=0.1) for functions in (OnGpu, on_cpu)]
    near(*found)
    dy = torch.randn_like(found[0])
    for ours, theirs in zip(*(torch.autograd.grad(y, leaves, dy) for y in found)):
        near(ours, theirs)


def test_norm_operation_gate_without_a_function_matches_cpu():
    x, gate = torch.randn(1, 2, 5, 8, requires_grad=True), torch.randn(1, 2, 5, 8)
    found = [functions.gated_norm(x, gate=gate, gate_fn="none") for functions in (OnGpu, on_cpu)]
    near(*found)
    near(*(torch.autograd.grad(y.square().sum(), x)[0] for y in found))
    for functions in (OnGpu, on_cpu):
        with pytest.raises(ValueError, match="gate has shape"):
            functions.gated_norm(x, gate=gate[..., :3], gate_fn="none")


@pytest.mark.parametrize("name", ("short_convolution", "gated_norm"))
def test_operations_second_derivative_is_refused(name):
    x, weight = leaves_of((1, 5, 6), (6, 3) if name == "short_convolution" else (6,))
    y = getattr(OnGpu, name)(x, weight)
    gradient = torch.autograd.grad(y.sum(), x, create_graph=True)[0]
    with pytest.raises(RuntimeError, match=rf"{name}.*double backward"):
        gradient.sum().backward()


@pytest.mark.parametrize("layout", delta_net.WEIGHT_LAYOUTS)
def test_layer_computed_by_the_kernels_matches_cpu(monkeypatch, layout):
    layer = GatedDeltaNet(32, 1, 1 if layout == "kimi_linear" else 2, 16, weight_layout=layout)
    h = torch.randn(1, 9, 32)

    def results():
        packed = layer(h, cu_seqlens=torch.tensor([0, 4, 9], dtype=torch.int32))
        gradients = torch.autograd.grad(packed.square().sum(), list(layer.parameters()))
        with torch.no_grad():
            cache = DeltaNetCache()
            return packed, *gradients, *(layer(part, cache=cache) for part in h.split((5, 4), dim=1))

    theirs = results()
    for module, name in (
        (delta_convolution, "short_convolution"),
        (delta_net, "linear_attention"),
        (delta_net, "gated_norm"),
    ):
        monkeypatch.setattr(module, name, getattr(OnGpu, name))
    for ours, other in zip(results(), theirs, strict=True):
        near(ours, other, 1e-5)
