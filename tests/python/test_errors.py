# SPDX-License-Identifier: Apache-2.0
"""Arguments that do not fit: one line that names the argument, before anything is computed."""

import numpy as np
import pytest
import torch

import headgate
from support import problem

Q, K, V, GATE = problem(dtype=torch.float32)


def refused(message, call, error=ValueError):
    with pytest.raises(error) as caught:
        call()
    assert str(caught.value) == message


@pytest.mark.parametrize(
    "message, arguments",
    (
        ("attention: q is required but None", (None, K, V)),
        ("attention: k is a list but must be an array (NumPy's, PyTorch's or another with DLPack)", (Q, [1.0], V)),
        ("attention: q has shape (7,16) but must be (B,H,T,D) or (H,T,D)", (Q[0, 0], K, V)),
        ("attention_forward: k has shape (2,2,9,8) but q has shape (2,4,7,16): D is 8 and 16", (Q, K[..., :8], V)),
        ("attention_forward: q has dtype i32 but must be f32 or f64 or bf16 or f16", (Q.int(), K, V)),
        (
            "attention: q has dtype torch.uint8 but must be one of float32, float64, bfloat16, float16, bool, int32, "
            "int64, int8",
            (Q.to(torch.uint8), K, V),
        ),
        (
            "attention: v of dtype torch.float32 cannot be read as an array of the CPU: Cannot pack tensors on meta",
            (Q, K, V.to("meta")),
        ),
        (
            "attention: q requires a gradient, which autograd would not get of this call: detach it, or call under "
            "no_grad",
            (Q.clone().requires_grad_(), K, V),
        ),
    ),
)
def test_arrays(message, arguments):
    refused(message, lambda: headgate.attention(*arguments))


@pytest.mark.parametrize(
    "message, options",
    (
        ("attention: causality: 'yes' is none of none, causal", dict(causality="yes")),
        ("attention: layout: 'tbhd' is none of bhtd, bthd", dict(layout="tbhd")),
        (
            "attention: gate_fn: 'relu' is none of sigmoid, sigmoid2, ns_sigmoid, silu, softplus, identity, none",
            dict(gate_fn="relu"),
        ),
        ("attention_forward: threads is -1 but must be at least 0", dict(threads=-1)),
        ("attention: mask has shape (7) but must be (B,H,T,S), (H,T,S) or (T,S), each but S full or 1",
         dict(mask=torch.ones(7, dtype=torch.bool))),
    ),
)
def test_options(message, options):
    refused(message, lambda: headgate.attention(Q, K, V, GATE, **options))


def test_types_of_options():
    refused("attention: softcap is 'x' but must be a number", lambda: headgate.attention(Q, K, V, softcap="x"), TypeError)
    refused("attention: there is no argument 'causal'", lambda: headgate.attention(Q, K, V, causal=True), TypeError)
    refused("attention_forward: outputs: 'z' is none of y, lse, attn, weights",
            lambda: headgate.attention_forward(Q, K, V, outputs=["z"]))
    refused("AttentionOutputs: there is no argument 'z'", lambda: headgate.AttentionOutputs(z=Q), TypeError)


def test_backward():
    saved = headgate.attention_forward(Q, K, V)
    dy = torch.ones_like(saved.y)
    refused("attention_backward: dgate is asked for but gate is None",
            lambda: headgate.attention_backward(dy, Q, K, V, y=saved.y, lse=saved.lse, gradients=["dgate"]))
    refused("attention_backward: y is required but absent", lambda: headgate.attention_backward(dy, Q, K, V))


def test_a_recorded_tensor_is_read_under_no_grad():
    recorded = Q.clone().requires_grad_()
    with torch.no_grad():
        y = headgate.attention(recorded, K, V)
    assert torch.equal(y, headgate.attention(Q, K, V)) and not y.requires_grad


def test_a_refused_call_writes_nothing():
    out = np.full((2, 4, 7, 12), 5.0, np.float32)
    with pytest.raises(ValueError):
        headgate.attention(Q.numpy(), K.numpy(), V.numpy(), softcap=-1.0, out=out)
    assert (out == 5.0).all()


def test_an_output_that_overlaps_an_input():
    x = np.ones((1, 1, 4, 8), np.float32)
    with pytest.raises(ValueError, match="^attention_forward: y overlaps q in memory"):
        headgate.attention(x, x.copy(), x.copy(), out=x)
