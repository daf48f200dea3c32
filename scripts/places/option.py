# SPDX-License-Identifier: Apache-2.0
"""Checks for places.sh that the made-up option of additions.py works in the Python package and in PyTorch."""

import inspect

import torch

import headgate
from headgate.torch import gated_attention, ring_attention

q, k, v = (torch.randn(1, 2, 5, 4) for _ in range(3))
sharp, scaled = {"sharpness": 0.5}, {"scale": 1.5 / 2}

assert "sharpness" in headgate.attention.__doc__
assert torch.equal(headgate.attention(q, k, v, **sharp), headgate.attention(q, k, v, **scaled))
print("headgate.attention(…, sharpness)")

assert "float sharpness=0." in str(torch.ops.headgate.gated_attention.default._schema)
for function in (gated_attention, ring_attention):
    assert inspect.signature(function).parameters["sharpness"].default == 0.0, function
found = []
for options in (sharp, scaled):
    x = q.clone().requires_grad_()
    gated_attention(x, k, v, **options).square().sum().backward()
    found.append(x.grad)
assert torch.equal(*found)
print("torch.ops.headgate.gated_attention(…, sharpness)")
