# SPDX-License-Identifier: Apache-2.0
"""The largest errors that sdpa_samples.py, bench/fold.py and scripts/check_families.py compare with their tolerances: a
NaN among numbers is the largest one, wherever it stands."""

import importlib.util
import math
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

import sdpa_samples

ROOT = Path(__file__).resolve().parents[3]


def module(monkeypatch, path):
    """Imports a program that is outside the package."""
    monkeypatch.syspath_prepend(str((ROOT / path).parent))
    spec = importlib.util.spec_from_file_location(f"imported_{Path(path).stem}", ROOT / path)
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


class Poisoned(torch.autograd.Function):
    """Returns its input, whose gradient is NaN."""

    @staticmethod
    def forward(_, x):
        return x.clone()

    @staticmethod
    def backward(_, dy):
        return torch.full_like(dy, math.nan)


@pytest.mark.parametrize("tensor", range(3))
def test_samples_with_nan_gradient_fail(tensor):
    def faulty(*tensors, **options):
        tensors = list(tensors)
        tensors[tensor] = Poisoned.apply(tensors[tensor])
        return F.scaled_dot_product_attention(*tensors, **options)

    tensors = [torch.randn(1, 2, 3, 4, requires_grad=True) for _ in range(3)]
    sdpa_samples.differences(F.scaled_dot_product_attention, tensors, {})
    with pytest.raises(AssertionError, match="the largest error is nan"):
        sdpa_samples.differences(faulty, tensors, {})


@pytest.mark.parametrize("place", range(3))
def test_fold_errors_with_nan_are_nan(monkeypatch, place):
    largest_error = module(monkeypatch, "bench/fold.py").largest_error
    expected = [torch.tensor([1.0, -2.0]), torch.tensor([4.0]), torch.tensor([1e-7])]  # the last is a rounding error
    found = [x.clone() for x in expected]
    found[2] *= 2
    found[1] += 1
    assert largest_error(found, expected) == 0.25
    found[place][0] = math.nan
    assert math.isnan(largest_error(found, expected))
    assert math.isnan(largest_error(expected, found))


def test_figures_with_nan_are_furthest(monkeypatch):
    furthest = module(monkeypatch, "scripts/check_families.py").furthest
    expected = {"loss_nats": 2.0, "sink_rate": 0.5, "layers": [{"sink_rate": 0.5}, {"sink_rate": 0.25}]}
    assert furthest({**expected, "loss_nats": 3.0}, expected) == 0.5
    for wrong in ({"loss_nats": math.nan}, {"sink_rate": math.nan}, {"layers": [{"sink_rate": math.nan}, {}]}):
        assert math.isnan(furthest({**expected, **wrong}, expected))
