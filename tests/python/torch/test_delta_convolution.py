# SPDX-License-Identifier: Apache-2.0
"""The convolution of GatedDeltaNet with a bias, hooks, adapters and other settings."""

import re

import pytest
import torch
from torch.nn import functional as F
from torch.nn.utils import parametrize, prune

from headgate.torch import DeltaNetCache, GatedDeltaNet
from test_delta_net import DV, HK, HV, B, C, D, pair

CHANNELS = 2 * HK * D + HV * DV
OWN = {"in_channels": CHANNELS, "out_channels": CHANNELS, "kernel_size": 4, "padding": 3, "groups": CHANNELS}
OTHERS = {
    "in_channels": 2 * CHANNELS,
    "out_channels": 2 * CHANNELS,
    "kernel_size": 3,
    "stride": 2,
    "padding": 2,
    "dilation": 2,
    "groups": 1,
    "padding_mode": "circular",
}


def test_bias_of_convolution_is_that_of_transformers():
    theirs, ours = pair("qwen3_5")
    theirs.conv1d = ours.conv1d = torch.nn.Conv1d(**OWN, bias=True)
    h = torch.randn(B, 12, C)
    y, expected = ours(h), theirs(h)
    torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-5)
    found, right = (torch.autograd.grad(x.square().sum(), ours.conv1d.bias)[0] for x in (y, expected))
    torch.testing.assert_close(found, right, rtol=1e-3, atol=1e-4 * right.abs().max().item())
    with torch.no_grad():
        cache = DeltaNetCache(keep=3)
        parts = [ours(piece, cache=cache) for piece in h.split((7, 5), dim=1)]
        cache.truncate(9)
        parts = [torch.cat(parts, dim=1)[:, :9], ours(h[:, 9:], cache=cache)]
    torch.testing.assert_close(torch.cat(parts, dim=1), y, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", [name for name in torch.nn.Conv1d.__constants__ if name != "output_padding"])
def test_other_settings_of_convolution_are_refused(name):
    layer = GatedDeltaNet(C, HK, HV, D, DV)
    layer.conv1d = torch.nn.Conv1d(**{**OWN, name: OTHERS[name]}, bias=False)
    with pytest.raises(TypeError, match=f"^GatedDeltaNet: {name} of conv1d is .* but must be [^\n]*$"):
        layer(torch.randn(B, 5, C))


class Adapted(torch.nn.Module):
    """Adds a second convolution, as LoRA does."""

    def __init__(self, base):
        super().__init__()
        self.base_layer, self.weight = base, base.weight
        self.added = torch.nn.Conv1d(**OWN, bias=False)

    def forward(self, x):
        return self.base_layer(x) + self.added(x)


def adapt(layer):
    layer.conv1d = Adapted(layer.conv1d)


def own_forward(layer):
    function = layer.conv1d.forward
    layer.conv1d.forward = lambda x: 2 * function(x)


def own_class(layer):
    kind = type(
        "Doubled", (torch.nn.Conv1d,), {"_conv_forward": lambda _, *x: 2 * F.conv1d(*x, padding=3, groups=CHANNELS)}
    )
    layer.conv1d.__class__ = kind


CHANGES = {
    "adapter": adapt,
    "pruning": lambda layer: prune.l1_unstructured(layer.conv1d, "weight", 0.5),
    "forward": own_forward,
    "class": own_class,
    "forward_hook": lambda layer: layer.conv1d.register_forward_hook(lambda _, given, y: 2 * y),
    "forward_pre_hook": lambda layer: layer.conv1d.register_forward_pre_hook(lambda _, given: (2 * given[0],)),
    "parametrization": lambda layer: parametrize.register_parametrization(layer.conv1d, "weight", torch.nn.Tanh()),
}


@pytest.mark.parametrize("layout", ["qwen3_5", "olmo_hybrid"])
@pytest.mark.parametrize("change", CHANGES)
def test_changed_convolution_computes_as_one_with_the_changed_weight(change, layout):
    (_, ours), (_, other) = pair(layout), pair(layout)
    h, weight = torch.randn(B, 12, C), ours.conv1d.weight.clone()
    other.load_state_dict(ours.state_dict())
    CHANGES[change](ours)
    y, conv = ours(h), ours.conv1d
    with torch.no_grad():
        if change == "adapter":
            other.conv1d.weight.copy_(weight + conv.added.weight)
        elif change in ("pruning", "parametrization"):
            other.conv1d.weight.copy_(conv.weight)
        else:
            other.conv1d.weight.copy_(2 * weight)
    torch.testing.assert_close(y, other(h), rtol=1e-4, atol=1e-5)
    assert not torch.equal(other.conv1d.weight, weight)
    with torch.no_grad():
        cache = DeltaNetCache(keep=3)
        parts = [ours(piece, cache=cache) for piece in h.split((7, 1, 4), dim=1)]
        cache.truncate(9)
        parts = [torch.cat(parts, dim=1)[:, :9], ours(h[:, 9:], cache=cache)]
    torch.testing.assert_close(torch.cat(parts, dim=1), y, rtol=1e-4, atol=1e-5)
    assert ours.statistics(h).mean_reach.isfinite().all()
    if change != "parametrization":
        with pytest.raises(
            TypeError, match="^GatedDeltaNet: conv1d has hooks or other code than Conv1d: with cu_seqlens"
        ):
            ours(h[:1], cu_seqlens=torch.tensor([0, 12]))


@pytest.mark.parametrize(
    "name", [name for name in dir(torch.nn.Module) if re.fullmatch("register_.*ward.*_hook", name)]
)
@pytest.mark.filterwarnings("ignore:Using a non-full backward hook")
def test_hooks_of_convolution_run(name):
    layer, h, runs = GatedDeltaNet(C, HK, HV, D, DV), torch.randn(B, 5, C, requires_grad=True), []
    expected = layer(h)
    handle = getattr(layer.conv1d, name)(lambda *_: runs.append(name))
    y = layer(h)
    y.sum().backward()
    assert runs
    torch.testing.assert_close(y, expected)
    handle.remove()
    assert torch.equal(layer(h), expected)


def test_convolution_that_returns_another_shape_is_refused():
    layer = GatedDeltaNet(C, HK, HV, D, DV)
    layer.conv1d = torch.nn.Identity()
    with pytest.raises(TypeError, match=r"^GatedDeltaNet: conv1d returns shape \(.*\) but must return \(.*\)$"):
        layer(torch.randn(B, 5, C))
