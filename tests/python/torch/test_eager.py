# SPDX-License-Identifier: Apache-2.0
"""The short way of calls in eager mode: the same results as by torch.ops.headgate, and when it is not taken."""

import signal

import pytest
import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from headgate.torch import eager, gated_attention, gated_norm, linear_attention, short_convolution, use_everywhere

H, T, D = 2, 5, 4


def normal(*shape):
    return torch.randn(*shape, requires_grad=True)


CALLS = {
    "attention": (gated_attention, lambda: [normal(1, H, T, D) for _ in range(4)], {}),
    "attention with options": (
        gated_attention,
        lambda: [normal(1, T, H, D) for _ in range(4)],
        {"layout": "bthd", "causality": "causal", "scale": 2, "threads": None, "gate_fn": "silu"},
    ),
    "attention with lse": (gated_attention, lambda: [normal(1, H, T, D) for _ in range(4)], {"return_lse": True}),
    "attention with its largest logit": (
        gated_attention,
        lambda: [normal(1, H, T, D) for _ in range(4)],
        {"return_max_logit": True},
    ),
    "attention with a bias": (gated_attention, lambda: [normal(H, T, D) for _ in range(3)], {"bias": normal(T, T)}),
    "linear attention": (
        linear_attention,
        lambda: [*(normal(1, H, T, D) for _ in range(3)), normal(1, H, T, 1)],
        {"return_state": True, "l2_norm": 1e-6},
    ),
    "convolution": (short_convolution, lambda: [normal(1, T, 3), normal(3, 2)], {}),
    "norm": (gated_norm, lambda: [normal(1, H, T, D), normal(D), normal(1, H, T, D)], {}),
}


class SeenOperations(TorchDispatchMode):
    """The operations of headgate that the dispatcher sees."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if "headgate" in str(function):
            self.names.append(str(function))
        return function(*args, **(kwargs or {}))


def results_and_gradients(function, tensors, arguments):
    outputs = function(*tensors, **arguments)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    learned = [*tensors, *(x for x in arguments.values() if isinstance(x, torch.Tensor))]
    gradients = torch.autograd.grad(sum(y.square().sum() for y in outputs), learned)
    return [*outputs, *gradients]


@pytest.mark.parametrize("name", CALLS)
def test_short_way_gives_the_bits_of_the_general_way(name, monkeypatch):
    function, make, arguments = CALLS[name]
    tensors = make()
    monkeypatch.setattr(eager.EagerOperation, "call", record := Recorder(eager.EagerOperation.call))
    short = results_and_gradients(function, tensors, arguments)
    assert record.results and all(result is not None for result in record.results)
    monkeypatch.setattr(eager, "is_eager", lambda: False)
    general = results_and_gradients(function, tensors, arguments)
    assert record.results[-1] is None
    for one, other in zip(short, general, strict=True):
        assert torch.equal(one, other)


class Recorder:
    """A method that keeps what it returned."""

    def __init__(self, method):
        self.method, self.results = method, []

    def __get__(self, instance, owner):
        def call(*args):
            self.results.append(self.method(instance, *args))
            return self.results[-1]

        return call


@pytest.mark.parametrize("name", CALLS)
def test_dispatch_mode_sees_the_operation(name):
    function, make, arguments = CALLS[name]
    with SeenOperations() as seen:
        function(*make(), **arguments)
    assert seen.names


def test_profiler_sees_the_operation():
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        gated_attention(*(torch.randn(1, H, T, D) for _ in range(3)))
    assert any(event.key == "headgate::gated_attention" for event in profile.key_averages())


def test_subclass_is_not_lost():
    class Named(torch.Tensor):
        pass

    q = torch.randn(1, H, T, D)
    assert type(gated_attention(q.as_subclass(Named), q, q)) is Named


def test_subclass_that_requires_a_gradient_gets_it():
    class Named(torch.Tensor):
        pass

    class NamedParameter(torch.nn.Parameter):
        pass

    q, k = (torch.randn(1, H, T, D) for _ in range(2))
    plain = q.clone().requires_grad_()
    expected = torch.autograd.grad(gated_attention(plain, k, k).sum(), plain)[0]
    for own in (q.clone().as_subclass(Named).requires_grad_(), NamedParameter(q.clone())):
        y = gated_attention(own, k, k)
        y.sum().backward()
        assert torch.equal(own.grad.as_subclass(torch.Tensor), expected)
        with torch.no_grad():
            assert torch.equal(gated_attention(own, k, k).as_subclass(torch.Tensor), y.as_subclass(torch.Tensor))


def test_lazy_negation_is_carried_out():
    q, k = (torch.randn(1, H, T, D) for _ in range(2))
    assert torch.equal(gated_attention(q, torch._neg_view(k), k), gated_attention(q, -k, k))


def test_inputs_changed_in_place_are_refused_backward():
    q, k, v = (normal(1, H, T, D) for _ in range(3))
    scaled = q * 1
    y = gated_attention(scaled, k, v)
    scaled.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_saved_tensors_pass_hooks():
    packed = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: packed.append(x) or x.clone(), lambda x: x):
        y = gated_attention(*(normal(1, H, T, D) for _ in range(4)))
    y.sum().backward()
    assert len(packed) == 6  # four inputs, y and lse


@pytest.mark.parametrize("attend", (gated_attention, lambda *qkv: F.scaled_dot_product_attention(*qkv)))
def test_error_of_a_hook_is_not_caught(attend):
    packed = []

    def pack(x):
        packed.append(x)
        if len(packed) == 1:
            raise ValueError("disk full")
        return x

    with use_everywhere(), torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        with pytest.raises(ValueError, match="^disk full$"):
            attend(*(normal(1, H, T, D) for _ in range(3)))
    assert len(packed) == 1


@pytest.mark.parametrize("backward", (False, True))
def test_error_of_a_signal_handler_ends_the_call(backward):
    def handle(*_):
        raise RuntimeError("time is over")

    q = torch.full((1, 4, 8192, 64), 0.01).requires_grad_()
    y = gated_attention(q, q, q, threads=1) if backward else None
    before = signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        with pytest.raises(RuntimeError, match="^time is over$"):
            y.backward(q) if backward else gated_attention(q, q, q, threads=1)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
