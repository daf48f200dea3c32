# SPDX-License-Identifier: Apache-2.0
"""attention_statistics against figures of the whole matrix of weights."""

import pytest
import torch

import headgate
from support import close, plain_attention, problem, visible


def test_statistics_each_matches_numpy():
    q, k, v, gate = problem(T=8, S=8)
    options = dict(causality="causal")
    saved = headgate.attention_forward(q, k, v, gate, **options)
    weights = plain_attention(q, k, v, **options)[3]
    found = headgate.attention_statistics(
        saved.lse,
        q,
        k,
        None,
        gate,
        keys=torch.tensor([3, 0]),
        queries=torch.tensor([7, 1]),
        window=2,
        top_keys=3,
        outputs=[name for name in dir(headgate.AttentionStatistics) if not name.startswith("_")],
        **options,
    )
    distance = (torch.arange(8)[:, None] - torch.arange(8)[None, :]).abs()
    figures = {
        "row_max": weights.amax(-1),
        "entropy": torch.special.entr(weights).sum(-1),
        "first": weights[..., 0],
        "first_gated": weights[..., 0] * torch.sigmoid(gate).mean(-1),
        "window_share": (weights * (distance <= 2)).sum(-1),
        "key_weights": weights[..., [3, 0]],
    }
    for name, expected in figures.items():
        assert close(getattr(found, name), expected, 64), name
        assert close(getattr(found, "mean_" + name), expected[:, :, 1:].mean(2), 64), name  # query 0 sees itself alone
    assert close(found.key_mass, weights.sum(2), 64)
    assert close(found.rows, weights[:, :, [7, 1]], 64)
    top = weights.topk(3, dim=-1)
    assert close(found.topk_weight, top.values, 64)
    enough = visible(8, 8, **options).sum(-1) >= 3
    assert torch.equal(found.topk_index[:, :, enough], top.indices[:, :, enough])
    assert (found.topk_index[:, :, 0, 1:] == -1).all()


def test_statistics_none_named_computes_the_defaults():
    q, k, v, _ = problem()
    lse = headgate.attention_forward(q, k, v).lse
    found = headgate.attention_statistics(lse, q, k)
    assert repr(found).startswith("AttentionStatistics(row_max: ") and found.window_share is None
    assert found.entropy is not None and found.key_mass.shape == (2, 4, 9) and found.first_gated is None
    assert headgate.attention_statistics(lse, q, k, window=1).window_share is not None


def test_mean_packed_batch_has_one_for_each_sequence():
    parts = [problem(B=1, T=T, S=T, seed=T) for T in (3, 5)]
    q, k, v, _ = (torch.cat([part[i] for part in parts], dim=2) for i in range(4))
    cu = torch.tensor([0, 3, 8])
    lse = headgate.attention_forward(q, k, v, cu_seqlens_q=cu, cu_seqlens_k=cu).lse
    found = headgate.attention_statistics(
        lse, q, k, cu_seqlens_q=cu, cu_seqlens_k=cu, outputs=("mean_entropy", "first")
    )
    assert found.mean_entropy.shape == (2, 4) and found.first.shape == (1, 4, 8)
    for n, part in enumerate(parts):
        alone = headgate.attention_forward(*part[:3])
        entropy = headgate.attention_statistics(alone.lse, *part[:2]).entropy
        assert close(found.mean_entropy[n], entropy[0].mean(-1), 16)


def test_mean_leaves_out_the_query_at_the_first_key_of_a_causal_mask():
    q, k, v, _ = problem(T=8, S=8)
    for rules, counted in (
        (dict(causality="causal"), slice(1, None)),
        (dict(window_right=0), slice(1, None)),
        (dict(causality="none"), slice(None)),
        (dict(causality="causal", query_offsets=torch.tensor([-2] * q.shape[0])), [0, 1, 3, 4, 5, 6, 7]),
        (dict(causality="causal", query_offsets=torch.tensor([1] * q.shape[0])), slice(None)),
    ):
        lse = headgate.attention_forward(q, k, v, **rules).lse
        found = headgate.attention_statistics(lse, q, k, outputs=["first", "mean_first", "key_mass"], **rules)
        assert close(found.mean_first, found.first[:, :, counted].mean(2), 16), rules
        assert close(found.key_mass[..., 0], found.first.sum(2), 16), rules
    alone = headgate.attention_forward(q[:, :, :1], k[:, :, :1], v[:, :, :1])
    one = headgate.attention_statistics(
        alone.lse, q[:, :, :1], k[:, :, :1], outputs=["mean_first"], causality="causal"
    ).mean_first
    assert (one == 0).all()


def test_packed_batch_without_a_batch_dimension_leaves_it_out_of_all_but_sequences():
    q, k, v, _ = (x[0] for x in problem(B=1, T=8, S=8))
    cu = torch.tensor([0, 3, 8])
    packed = dict(cu_seqlens_q=cu, cu_seqlens_k=cu)
    lse = headgate.attention_forward(q, k, v, **packed).lse
    outputs = ["key_mass", "rows", "first", "mean_first"]
    found = headgate.attention_statistics(lse, q, k, queries=torch.tensor([1, 4]), outputs=outputs, **packed)
    heads = q.shape[0]
    assert found.key_mass.shape == (heads, 8) and found.rows.shape == (heads, 2, 8)
    assert found.first.shape == (heads, 8) and found.mean_first.shape == (2, heads)


def test_errors():
    q, k, v, _ = problem()
    lse = headgate.attention_forward(q, k, v).lse
    with pytest.raises(ValueError, match="^attention_statistics: top_keys is 2000 but must be 0 to 1024$"):
        headgate.attention_statistics(lse, q, k, top_keys=2000)
    out = headgate.AttentionStatistics(entropy=torch.empty(2, 4, 8))
    with pytest.raises(ValueError, match=r"^attention_statistics: entropy has shape \(2,4,8\) but must be \(2,4,7\)$"):
        headgate.attention_statistics(lse, q, k, out=out)
