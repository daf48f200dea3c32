# SPDX-License-Identifier: Apache-2.0
"""Figures of attention weights (B,H,T,S) that a model returns, from their definitions, with loops over sequences."""

import importlib.util
import math
from pathlib import Path

import torch

_SCRIPT = Path(__file__).parents[3] / "scripts" / "check_attention_families.py"


def small_models():
    """The script that makes a small random model of any family."""
    spec = importlib.util.spec_from_file_location("check_attention_families", _SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def sequences_of(visible, kind):
    """(row, first key, queries) of each sequence. visible (B,S) is false at padding."""
    for b, row in enumerate(visible.bool()):
        first = int(row.nonzero()[0])
        yield b, first, [t for t in range(len(row)) if row[t] and t != first]


def figures(weights, sequences, kind="causal", indexed=False):
    """{key: value of the layer, or None}, and under "heads" {key: (H)}. sequences lists (row, first key, queries).

    Figures of the first key are None if a window hides it from a query, but not if an indexer did not choose it.
    """
    weights = weights.detach().double()
    first, entropy, of_keys, distance, hidden = [], [], [], [], False
    for b, key, queries in sequences:
        for t in queries:
            w = weights[b, :, t]
            first.append(w[:, key])
            hidden |= bool((w[:, key] == 0).all())
            total = w.sum(-1)
            sink = (1 - total).clamp_min(0)
            one = -torch.special.xlogy(w, w).sum(-1)
            entropy.append(one - torch.where(sink > 1e-5, torch.special.xlogy(sink, sink), 0.0))
            normal = w / total[:, None]
            of_keys.append(-torch.special.xlogy(normal, normal).sum(-1))
            distance.append((normal * (t - torch.arange(w.shape[-1])).abs()).sum(-1))
    names = ("first_token_attention", "attention_entropy", "attention_entropy_of_keys", "mean_distance")
    heads = {name: torch.stack(x).mean(0) for name, x in zip(names, (first, entropy, of_keys, distance))}
    found = {name: x.mean().item() for name, x in heads.items()}
    found["sink_rate"] = (heads["first_token_attention"] > 0.3).double().mean().item()
    if hidden and not indexed:
        found |= {"first_token_attention": None, "sink_rate": None}
    if kind == "cross":
        found.pop("mean_distance")
    return {**found, "heads": heads}


def close(ours, expected, tolerance=1e-5):
    if expected is None or ours is None:
        return ours is None and expected is None
    return math.isclose(ours, expected, rel_tol=tolerance, abs_tol=tolerance)


def assert_row(row, expected, tolerance=1e-5):
    for key, value in expected.items():
        if key != "heads":
            assert close(row.get(key), value, tolerance), (row["module"], key, row.get(key), value)
