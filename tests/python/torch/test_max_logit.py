# SPDX-License-Identifier: Apache-2.0
"""return_max_logit of gated_attention and max_scores of flex_attention against plain formulas."""

import numpy as np
import pytest
import torch
from torch.nn.attention import flex_attention as pytorch_flex

import headgate
from headgate.torch import attention, gated_attention
from headgate.torch.flex import flex_attention

B, HQ, HKV, T, S, D = 2, 4, 2, 6, 9, 8


def problem(queries=T, keys=S, dtype=torch.float64):
    shapes = ((HQ, queries), (HKV, keys), (HKV, keys))
    return [torch.randn(B, heads, rows, D, dtype=dtype) for heads, rows in shapes]


def scores_of(q, k, visible=None, softcap=None):
    scores = q @ k.repeat_interleave(HQ // HKV, 1).mT / D**0.5
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    return scores if visible is None else scores.masked_fill(~visible, -torch.inf)


@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 1e-5)])
@pytest.mark.parametrize("queries, keys", [(1, 40), (T, S), (300, 310)])
def test_max_logit_heads_and_rows_match_the_formula(queries, keys, dtype, tolerance):
    q, k, v = problem(queries, keys, dtype)
    visible = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)
    expected = scores_of(q.double(), k.double(), visible, 3.0)
    given = {"causality": "causal", "softcap": 3.0, "sinks": torch.full((HQ,), 5.0)}
    kept = torch.float64 if dtype == torch.float64 else torch.float32
    for return_lse in (False, True):
        for asked, largest in ((True, expected.amax((-1, -2))), ("rows", expected.amax(-1))):
            found = gated_attention(q, k, v, return_lse=return_lse, return_max_logit=asked, **given)
            assert len(found) == 2 + return_lse
            torch.testing.assert_close(found[-1], largest.to(kept), rtol=tolerance, atol=tolerance)


def test_max_logit_row_without_keys_is_minus_infinity():
    q, k, v = problem()
    _, rows = gated_attention(q, k, v, mask=torch.zeros(T, S, dtype=torch.bool), return_max_logit="rows")
    assert (rows == -torch.inf).all()


def test_max_logit_closed_row_is_minus_infinity():
    q, k, v = problem()
    z = torch.full((B, HQ, T, 1), 9.0, dtype=torch.float64)
    z[:, 1] = -9.0
    _, heads = gated_attention(q, k, v, z, gate_threshold=0.5, return_max_logit=True)
    expected = scores_of(q, k).amax((-1, -2))
    expected[:, 1] = -torch.inf
    torch.testing.assert_close(heads, expected)


def test_max_logit_packed_batch_has_a_figure_for_each_sequence():
    q, k, v = (x[:1] for x in problem(S))
    begins = torch.tensor([0, 4, 4, 9], dtype=torch.int32)
    _, heads = gated_attention(q, k, v, cu_seqlens_q=begins, cu_seqlens_k=begins, return_max_logit=True)
    assert heads.shape == (3, HQ)
    for n, rows in ((0, slice(0, 4)), (2, slice(4, 9))):
        alone = gated_attention(q[:, :, rows], k[:, :, rows], v[:, :, rows], return_max_logit=True)[1]
        assert torch.equal(heads[n], alone[0])
    assert (heads[1] == -torch.inf).all()


def test_max_logit_without_a_batch_has_none():
    q, k, v = problem()
    for asked in (True, "rows"):
        expected = gated_attention(q, k, v, return_max_logit=asked)[1]
        assert torch.equal(gated_attention(q[1], k[1], v[1], return_max_logit=asked)[1], expected[1])


def test_max_logit_recorded_call_has_no_gradient_and_keeps_the_others():
    leaves = [x.requires_grad_() for x in problem()]
    y, lse, heads = gated_attention(*leaves, return_lse=True, return_max_logit=True)
    assert y.requires_grad and lse.requires_grad and not heads.requires_grad
    ours = torch.autograd.grad(y.sum() + lse.sum(), leaves)
    y, lse = gated_attention(*leaves, return_lse=True)
    assert all(map(torch.equal, ours, torch.autograd.grad(y.sum() + lse.sum(), leaves)))


def test_max_logit_compiled_in_one_graph_is_that_of_eager():
    q, k, v = (x.requires_grad_() for x in problem())

    def attend(q):
        return gated_attention(q, k, v, return_max_logit=True)

    y, heads = torch.compile(attend, backend="aot_eager", fullgraph=True)(q)
    assert torch.equal(heads, attend(q)[1]) and not heads.requires_grad
    ours, theirs = (torch.autograd.grad(x.sum(), q)[0] for x in (y, attend(q)[0]))
    assert torch.equal(ours, theirs)


def test_max_logit_vmap_is_that_of_each_example():
    q, k, v = (torch.stack([x, 2 * x]) for x in problem())
    _, heads = torch.func.vmap(lambda *x: gated_attention(*x, return_max_logit=True))(q, k, v)
    expected = torch.stack([gated_attention(*x, return_max_logit=True)[1] for x in zip(q, k, v)])
    assert torch.equal(heads, expected)


def test_max_logit_other_words_are_refused():
    with pytest.raises(ValueError, match="^gated_attention: return_max_logit is 'heads' but must be True, False or"):
        gated_attention(*problem(), return_max_logit="heads")


def test_max_logit_of_another_backend_is_refused_by_name(monkeypatch):
    monkeypatch.setattr(attention, "backend_of", lambda _: object())
    with pytest.raises(ValueError, match="^gated_attention: return_max_logit is supported on CPUs only, and q lies on"):
        gated_attention(*problem(), return_max_logit=True)


@pytest.mark.parametrize("masked", (False, True))
def test_flex_attention_max_scores_match_the_formula(masked):
    q, k, v = problem(40, 40, torch.float32)
    q.requires_grad_()
    mask = None
    if masked:
        mask = pytorch_flex.create_block_mask(lambda b, h, i, j: i >= j, None, None, 40, 40, "cpu", 16)
    request = pytorch_flex.AuxRequest(max_scores=True)
    y, aux = flex_attention(q, k, v, block_mask=mask, enable_gqa=True, return_aux=request)
    assert aux.lse is None and not aux.max_scores.requires_grad
    visible = torch.ones(40, 40, dtype=torch.bool).tril() if masked else None
    torch.testing.assert_close(aux.max_scores, scores_of(q.detach(), k, visible).amax(-1))
    y.sum().backward()
    assert q.grad is not None


@pytest.mark.parametrize("batch", (True, False))
def test_attention_forward_max_logit_of_numpy_needs_no_values(batch):
    q, k, _ = (x.numpy() if batch else x[0].numpy() for x in problem())
    expected = scores_of(*(torch.from_numpy(x).reshape(-1, *x.shape[-3:]) for x in (q, k))).numpy()
    found = headgate.attention_forward(q, k, outputs=["max_logit"])
    np.testing.assert_allclose(found.max_logit, expected.max((-1, -2)).reshape(q.shape[:-2]), rtol=1e-12)
    rows = headgate.AttentionOutputs(max_logit=np.empty(expected.shape[:-1]))
    headgate.attention_forward(q, k, out=rows)
    np.testing.assert_allclose(rows.max_logit, expected.max(-1), rtol=1e-12)
