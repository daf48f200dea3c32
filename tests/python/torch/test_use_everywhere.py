# SPDX-License-Identifier: Apache-2.0
"""use_everywhere(): which calls of PyTorch's function Headgate computes, and what is left when it ends."""

import functools
import inspect
import threading
import time

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention.bias import causal_lower_right, causal_upper_left

from headgate.torch import gated_attention, use_everywhere
from headgate.torch.switches import MOST_REASONS, OTHER_REASONS, Handle, Switch

ORIGINAL = F.scaled_dot_product_attention
Q = torch.randn(2, 4, 5, 8)


@pytest.fixture(autouse=True)
def off():
    yield
    use_everywhere(False)
    assert F.scaled_dot_product_attention is ORIGINAL
    assert torch.backends.mha.get_fastpath_enabled()


def test_calls_are_computed_by_headgate_within_the_block():
    q = Q.clone().requires_grad_()
    with use_everywhere() as served:
        y = F.scaled_dot_product_attention(q, Q, Q, is_causal=True)
        F.scaled_dot_product_attention(Q, Q, Q, None, 0.0, False, scale=0.5)
        gradient = torch.autograd.grad(y.sum(), q)[0]
    assert F.scaled_dot_product_attention is ORIGINAL
    assert "HeadgateCall" in type(y.grad_fn).__name__ and served.calls == 2 and not served.declined
    expected = ORIGINAL(q, Q, Q, is_causal=True)
    torch.testing.assert_close(y, expected)
    torch.testing.assert_close(gradient, torch.autograd.grad(expected.sum(), q)[0])
    assert repr(served) == "<use_everywhere: 2 calls computed, 0 left to PyTorch>"


def test_switch_is_on_until_off():
    first, second = use_everywhere(), use_everywhere()
    F.scaled_dot_product_attention(Q, Q, Q)
    first.off()
    first.off()
    F.scaled_dot_product_attention(Q, Q, Q)
    assert F.scaled_dot_product_attention is not ORIGINAL
    second.off()
    assert F.scaled_dot_product_attention is ORIGINAL
    assert (first.calls, second.calls) == (1, 2)
    third = use_everywhere()
    assert use_everywhere(False) is None
    ORIGINAL(Q, Q, Q)
    assert F.scaled_dot_product_attention is ORIGINAL and third.calls == 0


def test_nested_blocks_and_exceptions_restore():
    with pytest.raises(ZeroDivisionError), use_everywhere() as outer:
        with pytest.raises(RuntimeError), use_everywhere() as inner:
            F.scaled_dot_product_attention(Q, Q[..., :3], Q)
        assert F.scaled_dot_product_attention is not ORIGINAL
        raise ZeroDivisionError
    assert F.scaled_dot_product_attention is ORIGINAL
    assert inner.declined == outer.declined and outer.declined.total() == 1


class Named(torch.Tensor):
    pass


LEFT_TO_PYTORCH = {
    "dropout": (lambda f: f(Q, Q, Q, dropout_p=1.0), "dropout of 1.0 is not supported"),
    "large heads": (lambda f: f(*[torch.ones(1, 1, 2, 584)] * 3), "at most 576"),
    "meta": (lambda f: f(*[Q.to("meta")] * 3), "a tensor on meta"),
    "subclass": (lambda f: f(Q.as_subclass(Named), Q, Q), "a subclass of Tensor"),
    "nested": (
        lambda f: f(*[torch.nested.nested_tensor([Q[0, 0], Q[0, 0, :3]]).unsqueeze(1)] * 3),
        "a nested or sparse tensor",
    ),
    "forward mode": (lambda f: torch.func.jvp(lambda q: f(q, Q, Q, torch.zeros(5, 5)), (Q,), (Q,))[0], "forward-mode"),
}


@pytest.mark.parametrize("name", LEFT_TO_PYTORCH)
def test_other_calls_go_to_pytorch(name):
    call, reason = LEFT_TO_PYTORCH[name]
    with use_everywhere() as served:
        try:
            found = call(F.scaled_dot_product_attention)
        except RuntimeError as error:
            with pytest.raises(type(error)):
                call(ORIGINAL)
            found = None
    assert served.calls == 0 and reason in next(iter(served.declined))
    if found is not None:
        expected = call(ORIGINAL)
        assert type(found) is type(expected) and found.device == expected.device
        if found.device.type == "cpu" and not found.is_nested:
            assert torch.equal(found, expected)


F64 = [Q.double()] * 3
# Calls that Headgate does not compute, though it takes such tensors.
AS_PYTORCH = {
    "scale that is a word": ((Q, Q, Q), {"scale": "a"}),
    "scale that is complex": ((Q, Q, Q), {"scale": 1j}),
    "scale beyond float32": ((Q, Q, Q), {"scale": 1e300}),
    "scale beyond float64": ((Q, Q, Q), {"scale": 10**400}),
    "scale that is a tensor": ((Q, Q, Q), {"scale": torch.tensor(0.5)}),
    "dropout that is a word": ((Q, Q, Q), {"dropout_p": "a"}),
    "dropout that is not a number": ((Q, Q, Q), {"dropout_p": float("nan")}),
    "causality of another type": ((Q, Q, Q), {"is_causal": 1}),
    "grouping of another type": ((Q, Q, Q), {"enable_gqa": None}),
    "missing value": ((Q, Q), {}),
    "too many arguments": ((Q, Q, Q, None, 0.0, False, 0.3), {}),
    "argument given twice": ((Q, Q, Q), {"query": Q}),
    "unknown argument": ((Q, Q, Q), {"gate": Q}),
    "mask of one dimension": ((Q, Q, Q, torch.zeros(5)), {}),
    "mask without dimensions": ((Q, Q, Q, torch.tensor(True)), {}),
    "mask that is a list": ((Q, Q, Q, [[0.0]]), {}),
    "mask of float64": ((Q, Q, Q, torch.zeros(5, 5).double()), {}),
    "mask of integers": ((Q, Q, Q, torch.zeros(5, 5).int()), {}),
    "mixed types": ((Q.double(), Q, Q), {}),
}


def result_or_error(function, arguments, options):
    try:
        return function(*arguments, **options)
    except Exception as error:
        return type(error), str(error)


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("name", AS_PYTORCH)
def test_calls_that_headgate_refuses_are_those_of_pytorch(name, autocast):
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        expected = result_or_error(ORIGINAL, *AS_PYTORCH[name])
        with use_everywhere() as served:
            found = result_or_error(F.scaled_dot_product_attention, *AS_PYTORCH[name])
    assert served.calls == 0 and served.declined.total() == 1
    if isinstance(expected, tuple):
        assert found == expected
    else:
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("of_query", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("of_mask", [torch.bool, torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_masks_of_each_type_under_autocast_are_as_in_pytorch(of_query, of_mask):
    q, mask = Q.to(of_query), torch.ones(5, 5).to(of_mask)
    with torch.autocast("cpu", torch.bfloat16):
        expected = result_or_error(ORIGINAL, (q, q, q, mask), {})
        with use_everywhere() as served:
            found = result_or_error(F.scaled_dot_product_attention, (q, q, q, mask), {})
    assert served.calls == (0 if isinstance(expected, tuple) else 1)
    if isinstance(expected, tuple):
        assert found == expected
    else:
        torch.testing.assert_close(found, expected, rtol=0, atol=0.02)


def test_call_that_fails_in_the_kernels_is_left_to_pytorch(monkeypatch):
    fails = functools.partial(gated_attention, softcap=-1.0)
    monkeypatch.setattr("headgate.torch.scaled_dot_product.gated_attention", fails)
    with use_everywhere() as served:
        assert torch.equal(F.scaled_dot_product_attention(Q, Q, Q), ORIGINAL(Q, Q, Q))
    assert served.calls == 0
    assert [reason.partition(" but ")[0] for reason in served.declined] == ["gated_attention: softcap is -1"]


@pytest.mark.parametrize(
    "arguments, options",
    [
        ((Q, Q, Q), {"scale": True}),
        ((Q, Q, Q), {"dropout_p": 0}),
        ((*F64, torch.randn(5, 5)), {}),
        (F64, {"scale": 1e40}),
    ],
)
def test_calls_that_pytorch_computes_are_served(arguments, options):
    with use_everywhere() as served:
        found = F.scaled_dot_product_attention(*arguments, **options)
    assert served.calls == 1 and not served.declined
    torch.testing.assert_close(found, ORIGINAL(*arguments, **options))


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("bias", [causal_lower_right, causal_upper_left])
def test_causal_biases_are_those_of_pytorch(bias, compiled):
    """They hold no values: PyTorch recognises them in calls of its own function."""

    def call(q, by_name):
        mask = {"attn_mask": bias(3, 5)}
        return F.scaled_dot_product_attention(q, Q, Q, *([] if by_name else mask.values()), **(mask if by_name else {}))

    q = Q[:, :, :3]
    expected = call(q, True)
    run = torch.compile(call, backend="aot_eager") if compiled else call
    with use_everywhere() as served:
        for by_name in (True, False):
            torch.testing.assert_close(run(q, by_name), expected)
    assert served.calls == (0 if compiled else 2) and not served.declined


def test_signature_is_that_of_pytorch():
    with use_everywhere():
        names = list(inspect.signature(F.scaled_dot_product_attention).parameters)
    assert names == ["query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa"]


def test_errors_are_those_of_pytorch():
    bad = torch.randn(2, 3, 5, 8)
    with pytest.raises(RuntimeError) as expected:
        ORIGINAL(Q, bad, bad)
    with use_everywhere(), pytest.raises(RuntimeError) as found:
        F.scaled_dot_product_attention(Q, bad, bad)
    assert str(found.value) == str(expected.value)
    with use_everywhere(), pytest.raises(TypeError):
        F.scaled_dot_product_attention(Q, None, Q)


def test_function_that_others_put_there_stays():
    def others(*args, **options):
        return inner(*args, **options)

    handle = use_everywhere()
    inner, F.scaled_dot_product_attention = F.scaled_dot_product_attention, others
    try:
        handle.off()
        assert F.scaled_dot_product_attention is others
        assert torch.equal(F.scaled_dot_product_attention(Q, Q, Q), ORIGINAL(Q, Q, Q)) and handle.calls == 0
        with use_everywhere() as again:
            F.scaled_dot_product_attention(Q, Q, Q)
        assert again.calls == 1 and F.scaled_dot_product_attention is others
    finally:
        F.scaled_dot_product_attention = ORIGINAL


def test_threads_share_the_switch():
    barrier, found = threading.Barrier(4), []

    def work():
        for _ in range(20):
            with use_everywhere() as served:
                y = F.scaled_dot_product_attention(Q, Q, Q)
                found.append(served.calls >= 1 and y.shape == Q.shape)
            barrier.wait()

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(found) == 80 and all(found)


def test_threads_that_count_at_the_same_time_lose_no_call():
    class SlowHandle(Handle):
        @property
        def calls(self):
            found = self.__dict__.get("calls", 0)
            time.sleep(0.01)  # lets other threads run between the read and the write of +=
            return found

        @calls.setter
        def calls(self, value):
            self.__dict__["calls"] = value

    switch = Switch("test", "nobody", lambda: None, lambda: None)
    handle = SlowHandle(switch, "exact")
    switch.active.append(handle)
    workers = [
        threading.Thread(target=switch.call_or_fall_back, args=(lambda: (1, None), None, (), {})) for _ in range(8)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert handle.calls == 8


def test_many_reasons_are_counted_in_bounded_memory():
    switch = Switch("test", "nobody", lambda: None, lambda: None)
    with switch.begin() as handle:
        for _ in range(2):
            for size in range(300):
                switch.call_or_fall_back(lambda x: (None, f"x has the shape ({x})"), lambda x: x, (size,), {})
    assert handle.declined.total() == 600 and handle.declined["x has the shape (7)"] == 2
    assert len(handle.declined) == MOST_REASONS + 1 and handle.declined[OTHER_REASONS] == 600 - 2 * MOST_REASONS


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("masked", ["none", "padding", "causal", "both"])
def test_transformer_encoder_layer_matches(training, masked):
    layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True).train(training)
    x = torch.randn(3, 6, 16)
    options = {}
    if masked in ("padding", "both"):
        options["src_key_padding_mask"] = torch.arange(6) >= torch.tensor([[6], [4], [1]])
    if masked in ("causal", "both"):
        options |= {"src_mask": nn.Transformer.generate_square_subsequent_mask(6), "is_causal": True}
    found = []
    for on in (False, True):
        layer.zero_grad()
        handle = use_everywhere() if on else None
        y = layer(x, **options)
        y.square().mean().backward()
        found.append([y.detach(), *(p.grad.clone() for p in layer.parameters())])
    assert handle.calls == 1 and not handle.declined
    for expected, ours in zip(*found, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-6)
    with torch.no_grad():
        layer.eval()(x, **options)
    assert handle.calls == 2


def test_multihead_attention_matches():
    layer = nn.MultiheadAttention(16, 4, bias=True, add_bias_kv=True)
    q, k = torch.randn(5, 2, 16), torch.randn(7, 2, 16)
    expected = layer(q, k, k, need_weights=False)[0]
    with use_everywhere() as served:
        torch.testing.assert_close(layer(q, k, k, need_weights=False)[0], expected)
        layer(q, k, k)  # which wants weights, and calls no scaled_dot_product_attention
    assert served.calls == 1


def test_compiled_program_runs_within_and_after_the_block():
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True), backend="aot_eager", fullgraph=True
    )
    expected = compiled(Q)
    with use_everywhere() as served:
        torch.testing.assert_close(compiled(Q), expected)
        torch._dynamo.reset()
        torch.testing.assert_close(compiled(Q), expected)
        dropped = torch.compile(lambda q: F.scaled_dot_product_attention(q, q, q, dropout_p=1.0), backend="aot_eager")
        assert not dropped(Q).any()
    torch.testing.assert_close(compiled(Q), expected)
    assert served.calls == 0


def test_models_of_transformers_are_served():
    import models

    model = models.model("llama", "sdpa").eval()
    ids = models.tokens(2, 9)
    expected = model(ids).logits
    with use_everywhere() as served:
        torch.testing.assert_close(model(ids).logits, expected, rtol=1e-4, atol=1e-4)
    assert served.calls == 2 and not served.declined
