# SPDX-License-Identifier: Apache-2.0
"""linear_attention_weights and linear_attention_statistics against weights that autograd takes from the recurrence."""

import math

import numpy as np
import pytest
import torch

import headgate
from support import close, linear_problem, plain_linear_attention

RULES = ("gated_delta", "delta", "gated", "linear")
ROUNDOFFS = 256


def plain_weights(q, k, v, **options):
    """The weights (B,Ho,T,T) and what is left of the queries, (B,Ho,T,D): y is linear in v and the initial state."""
    B, Hv, T, _ = v.shape
    D = q.shape[3]
    unit = torch.eye(T, dtype=v.dtype).expand(B, Hv, T, T)
    state = torch.eye(D, dtype=v.dtype).expand(B, Hv, D, D)
    values = torch.cat([unit, v.new_zeros(B, Hv, T, D)], dim=-1)
    states = torch.cat([v.new_zeros(B, Hv, D, T), state], dim=-1)
    y, _ = plain_linear_attention(q, k, values, **(options | {"state": states}))
    return y[..., :T], y[..., T:]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("heads", ((2, 1, 2), (4, 2, 2), (2, 2, 4)), ids=str)
def test_weights_of_chosen_queries_match_the_recurrence(rule, heads):
    Hq, Hk, Hv = heads
    *qkv, rest = linear_problem(Hq=Hq, Hk=Hk, Hv=Hv, rule=rule)
    options = dict(rule=rule, scale=0.7, l2_norm=1e-3)
    weights, state_query = plain_weights(*qkv, **rest, **options)
    chosen = torch.tensor([8, 0, 5])
    found = headgate.linear_attention_weights(chosen, *qkv, **rest, **options)
    assert close(found.weights, weights[:, :, chosen], ROUNDOFFS)
    assert close(found.state_query, state_query[:, :, chosen], ROUNDOFFS)


@pytest.mark.parametrize("features", (1, 8))
def test_statistics_each_matches_the_weights(features):
    *qkv, rest = linear_problem(Hq=4, Hk=1, Hv=2, features=features)
    weights, _ = plain_weights(*qkv, **rest)
    state = plain_linear_attention(*qkv, **rest)[1]
    found = headgate.linear_attention_statistics(*qkv, **rest)
    distance = torch.arange(9.0)[:, None] - torch.arange(9.0)
    total = weights.abs().sum(-1)
    figures = {
        "first": weights[..., 0],
        "first_share": weights[..., 0].abs() / total,
        "reach": (weights.abs() * distance).sum(-1) / total,
        "absolute_sum": total,
        "weight_sum": weights.sum(-1),
    }
    for name, expected in figures.items():
        assert close(getattr(found, name), expected, ROUNDOFFS), name
        assert close(getattr(found, "mean_" + name), expected[..., 1:].mean(-1), ROUNDOFFS), name  # but the first query
    decay = rest["decay"].mean((-1, -2))
    singular = torch.linalg.svdvals(state)
    states = {
        "mean_decay": rest["decay"].exp().mean((-1, -2)),
        "mean_beta": rest["beta"].mean((-1, -2)),
        "half_life": math.log(2) / -decay,
        "effective_rank": (singular**2).sum(-1) ** 2 / (singular**4).sum(-1),
        "state_norm": (singular**2).sum(-1).sqrt(),
    }
    for name, expected in states.items():
        assert close(getattr(found, name), expected, ROUNDOFFS), name


def test_packed_batch_is_that_of_separate_calls():
    *qkv, rest = linear_problem(B=1, state=False)
    cu = np.array([0, 4, 9], np.int32)
    packed = headgate.linear_attention_statistics(*qkv, **rest, cu_seqlens=cu, outputs=["reach", "mean_reach"])
    assert packed.reach.shape == (1, 2, 9) and packed.mean_reach.shape == (2, 2) and packed.first is None
    weights = headgate.linear_attention_weights(np.array([6]), *qkv, **rest, cu_seqlens=cu, outputs=["weights"])
    assert weights.state_query is None and (weights.weights[..., :4] == 0).all()
    tail = [x[:, :, 4:] for x in qkv]
    rest = {name: x[:, :, 4:] for name, x in rest.items()}
    alone = headgate.linear_attention_weights(np.array([2]), *tail, **rest)
    assert torch.equal(alone.weights, weights.weights[..., 4:])
    reach = headgate.linear_attention_statistics(*tail, **rest, outputs=["reach"]).reach
    assert torch.equal(reach, packed.reach[:, :, 4:])


def test_arrays_layouts_and_a_missing_batch():
    *qkv, rest = linear_problem(B=1, features=8)
    whole = headgate.linear_attention_statistics(*qkv, **rest)
    rows = headgate.linear_attention_weights(np.array([3, 8]), *qkv, **rest)
    thd = [x[0].transpose(0, 1).numpy() for x in (*qkv, rest["decay"], rest["beta"])]
    options = dict(state=rest["state"], layout="bthd")
    found = headgate.linear_attention_statistics(*thd, **options)
    assert isinstance(found.reach, np.ndarray) and found.reach.shape == (2, 9) and found.half_life.shape == (2,)
    assert np.array_equal(found.reach, whole.reach[0]) and np.array_equal(found.state_norm, whole.state_norm[0])
    weights = np.empty((2, 2, 9))
    out = headgate.LinearAttentionWeights(weights=weights)
    assert headgate.linear_attention_weights(np.array([3, 8]), *thd, **options, out=out).weights is weights
    assert np.array_equal(weights, rows.weights[0])
    named = headgate.linear_attention_weights(np.array([3, 8]), *thd, **options)
    assert repr(named) == "LinearAttentionWeights(weights: (2, 2, 9), state_query: (2, 2, 8))"


def test_errors():
    *qkv, rest = linear_problem()
    with pytest.raises(
        ValueError, match=r"^linear_attention_weights: queries\[0\] is 9 but must be at least 0 and less"
    ):
        headgate.linear_attention_weights(np.array([9]), *qkv, **rest)
    with pytest.raises(ValueError, match="^linear_attention_weights: queries is required but None$"):
        headgate.linear_attention_weights(None, *qkv, **rest)
    out = headgate.LinearAttentionStatistics(reach=torch.empty(2, 2, 8))
    message = r"^linear_attention_statistics: reach has shape \(2,2,8\) but must be \(2,2,9\)$"
    with pytest.raises(ValueError, match=message):
        headgate.linear_attention_statistics(*qkv, **rest, out=out)
    with pytest.raises(
        ValueError, match="^linear_attention_statistics: outputs: 'rank' is none of first, first_share,"
    ):
        headgate.linear_attention_statistics(*qkv, **rest, outputs=["rank"])
