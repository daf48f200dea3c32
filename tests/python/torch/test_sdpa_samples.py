# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own samples of scaled_dot_product_attention through Headgate: all of OpInfo, and some of the larger grid,
which sdpa_samples.py runs whole."""

import pytest
import torch
from torch.nn import functional as F

import sdpa_samples
from headgate.torch import scaled_dot_product_attention, use_everywhere


@pytest.mark.parametrize("dtype", sdpa_samples.DTYPES, ids=str)
def test_opinfo_samples_match_pytorch(dtype):
    samples = list(sdpa_samples.opinfo_samples(dtype))
    assert len(samples) >= 13
    for tensors, options in samples:
        sdpa_samples.differences(scaled_dot_product_attention, tensors, options)


def test_opinfo_samples_pass_gradcheck():
    for tensors, options in sdpa_samples.opinfo_samples(torch.float64):
        assert sdpa_samples.check_gradients(scaled_dot_product_attention, tensors, options, fast_mode=True)


def test_opinfo_samples_are_served_everywhere():
    samples = list(sdpa_samples.opinfo_samples(torch.float32))
    with use_everywhere() as served:
        for tensors, options in samples:
            F.scaled_dot_product_attention(*tensors, **options)
    assert served.calls == len(samples) and not served.declined


@pytest.mark.parametrize("dtype", sdpa_samples.DTYPES, ids=str)
def test_grid_samples_match_pytorch(dtype):
    count = 0
    for tensors, options in sdpa_samples.grid_samples(dtype, every=61):
        sdpa_samples.differences(scaled_dot_product_attention, tensors, options)
        count += 1
    assert count >= 50
