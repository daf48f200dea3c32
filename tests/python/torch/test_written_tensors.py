# SPDX-License-Identifier: Apache-2.0
"""Tensors that a call writes to: autograd sees it as it sees operations in place."""

import ast
from pathlib import Path

import numpy as np
import pytest
import torch

import headgate
from headgate.torch import gated_attention

B, H, T, D, C, K = 1, 2, 6, 4, 8, 3

torch.manual_seed(0)


def heads(n=T, width=D):
    return torch.randn(B, H, n, width)


Q, X, ROWS = heads(), torch.randn(B, T, C), torch.randn(B, H, T)
G, BETA = -torch.rand(B, H, T, 1), torch.rand(B, H, T, 1)
STATE = torch.zeros(B, H, D, D)
SAVED = headgate.attention_forward(Q, Q, Q)

# Of every function that writes to arrays of its caller: calls that write to `to`, and what `to` is like.
WRITERS = {
    "attention": [(Q, lambda to: headgate.attention(Q, Q, Q, out=to))],
    "attention_forward": [
        (Q, lambda to: headgate.attention_forward(Q, Q, Q, out=headgate.AttentionOutputs(y=to))),
        (ROWS, lambda to: headgate.attention_forward(Q, Q, Q, out=headgate.AttentionOutputs(y=Q.clone(), lse=to))),
    ],
    "attention_backward": [
        (
            Q,
            lambda to: headgate.attention_backward(
                Q, Q, Q, Q, y=SAVED.y, lse=SAVED.lse, out=headgate.AttentionGradients(dk=to)
            ),
        )
    ],
    "attention_merge": [
        (Q, lambda to: headgate.attention_merge([(Q, ROWS), (Q, ROWS)], out=headgate.AttentionOutputs(y=to)))
    ],
    "attention_statistics": [
        (
            ROWS,
            lambda to: headgate.attention_statistics(SAVED.lse, Q, Q, out=headgate.AttentionStatistics(entropy=to)),
        )
    ],
    "linear_attention": [(Q, lambda to: headgate.linear_attention(Q, Q, Q, G, BETA, out=to))],
    "linear_attention_forward": [
        (
            STATE,
            lambda to: headgate.linear_attention_forward(
                Q, Q, Q, G, BETA, state=to, out=headgate.LinearAttentionOutputs(state=to)
            ),
        )
    ],
    "linear_attention_backward": [
        (
            Q,
            lambda to: headgate.linear_attention_backward(
                Q, Q, Q, Q, G, BETA, out=headgate.LinearAttentionGradients(dv=to)
            ),
        )
    ],
    "linear_attention_weights": [
        (
            torch.zeros(B, H, 1, T),
            lambda to: headgate.linear_attention_weights(
                torch.tensor([3]), Q, Q, Q, G, BETA, out=headgate.LinearAttentionWeights(weights=to)
            ),
        )
    ],
    "linear_attention_statistics": [
        (
            ROWS,
            lambda to: headgate.linear_attention_statistics(
                Q, Q, Q, G, BETA, out=headgate.LinearAttentionStatistics(reach=to)
            ),
        )
    ],
    "short_convolution": [(X, lambda to: headgate.short_convolution(X, torch.randn(C, K), out=to))],
    "short_convolution_forward": [
        (
            torch.zeros(B, K - 1, C),
            lambda to: headgate.short_convolution_forward(
                X, torch.randn(C, K), state=to, out=headgate.ShortConvolutionOutputs(state=to)
            ),
        )
    ],
    "short_convolution_backward": [
        (
            X,
            lambda to: headgate.short_convolution_backward(
                X, X, torch.randn(C, K), out=headgate.ShortConvolutionGradients(dx=to)
            ),
        )
    ],
    "gated_norm": [(Q, lambda to: headgate.gated_norm(Q, torch.ones(D), out=to))],
    "gated_norm_backward": [
        (Q, lambda to: headgate.gated_norm_backward(Q, Q, torch.ones(D), out=headgate.GatedNormGradients(dx=to)))
    ],
    "convert": [(Q, lambda to: headgate.convert(Q, out=to))],
}
CALLS = [pytest.param(like, call, id=name) for name, calls in WRITERS.items() for like, call in calls]


def test_writers_are_all_functions_that_take_out():
    stub = ast.parse((Path(headgate.__file__).parent / "_headgate.pyi").read_text())
    functions = [node for node in stub.body if isinstance(node, ast.FunctionDef)]
    named = {f.name for f in functions if "out" in {a.arg for a in (*f.args.args, *f.args.kwonlyargs)}}
    assert named == set(WRITERS)


@pytest.mark.parametrize("like, call", CALLS)
def test_tensor_saved_for_backward_and_written_raises(like, call):
    to = like.clone()
    leaf = torch.ones_like(to).requires_grad_()
    y = leaf * to  # saves `to`
    call(to)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@pytest.mark.parametrize("like, call", CALLS)
def test_view_of_a_saved_tensor_written_raises(like, call):
    base = torch.stack([like, like])
    leaf = torch.ones_like(base).requires_grad_()
    y = leaf * base
    call(base[1])
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_key_of_gated_attention_written_raises():
    q, k, v = (heads().requires_grad_() for _ in range(3))
    key = k * 1
    y = gated_attention(q, key, v)
    with torch.no_grad():
        headgate.attention(Q, Q, Q, out=key)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@pytest.mark.parametrize("like, call", CALLS)
def test_refused_call_leaves_the_version(like, call):
    wrong = torch.zeros(*like.shape[:-1], like.shape[-1] + 1, dtype=torch.int16)
    before = wrong._version
    with pytest.raises((ValueError, TypeError)):
        call(wrong)
    assert wrong._version == before


def test_leaf_that_requires_a_gradient_is_refused_as_in_pytorch():
    leaf = heads().requires_grad_()
    with pytest.raises(RuntimeError, match="leaf"):
        leaf.copy_(Q)
    with pytest.raises(ValueError, match="y requires a gradient"):
        headgate.attention(Q, Q, Q, out=leaf)
    with torch.no_grad():
        headgate.attention(Q, Q, Q, out=leaf)
    assert leaf._version == 1


def test_inference_tensors_and_arrays_of_numpy_are_written():
    with torch.inference_mode():
        to = heads()
        headgate.attention(Q, Q, Q, out=to)
    array = np.zeros((B, H, T, D), np.float32)
    headgate.attention(Q, Q, Q, out=array)
    assert np.array_equal(array, to.numpy())
