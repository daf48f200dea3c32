# SPDX-License-Identifier: Apache-2.0
"""Rows packed by position_ids alone, in a small random model of each family of transformers that is all attention."""

import inspect
import re
import sys

import pytest
import torch
import transformers
from transformers import masking_utils

import headgate.torch.transformers
import watch_reference

headgate.torch.transformers.register(functions=False)
SCRIPT = watch_reference.small_models()
FAMILIES = {family: name for task, family, name in SCRIPT.families([]) if task == "causal"}
# Layers that mix tokens without the attention interface, or choose the keys of queries over the whole row.
OTHER_LAYERS = re.compile("conv|delta|indexer|lightning|linearattention|mamba|lstm|compressor", re.IGNORECASE)
IDS = torch.arange(3, 27).view(2, 12)


def made(name):
    """Makes a model, or skips the test if no small one can be made or its layers need more than position_ids."""
    kind = getattr(transformers, name)
    if "position_ids" not in inspect.signature(kind.forward).parameters:
        pytest.skip("takes no position_ids")
    if not hasattr(sys.modules[kind.__module__], "ALL_ATTENTION_FUNCTIONS"):
        pytest.skip("does not call the interface")
    if "Llama4" in name and not hasattr(masking_utils, "remap_positions_for_packed_sequence"):
        pytest.skip("has chunks that this version of transformers counts in the row")
    try:
        config = SCRIPT.config_of(kind)
        with torch.device("meta"):
            small = sum(p.numel() for p in kind(config).parameters()) <= SCRIPT.LARGEST
        model = SCRIPT.made(kind, config, "headgate").eval() if small else None
        SCRIPT.made(kind, config, "eager")(IDS) if small else None
    except Exception:  # raised for configs with rules of their own
        model = None
    if model is None or getattr(config, "is_decoder", None) is False:
        pytest.skip("has no small model, or no causal attention")
    if any(OTHER_LAYERS.search(type(module).__name__) for module in model.modules()):
        pytest.skip("has layers that do not read position_ids")
    return model


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_packed_by_positions_equal_their_sequences_apart(family):
    model = made(FAMILIES[family])
    positions = torch.tensor([[*range(5), *range(7)], [*range(12)]])
    with torch.no_grad():
        apart = [model(x, use_cache=False).logits for x in (IDS[:1, :5], IDS[:1, 5:], IDS[1:])]
        try:
            packed = model(IDS, position_ids=positions, use_cache=False).logits
        except AttributeError as error:
            assert str(error).endswith("use attn_implementation='eager'")
            return
    expected = torch.cat((torch.cat(apart[:2], 1), apart[2]))
    torch.testing.assert_close(packed, expected, rtol=1e-4, atol=1e-4 * expected.abs().max().item())


def test_positions_that_do_not_restart_or_have_a_cache_leave_rows_whole():
    forward = headgate.torch.transformers.attention_forward
    layer = torch.nn.Module()
    x, rules = torch.randn(1, 2, 6, 8), headgate.torch.transformers.KeyMask(None, None)
    whole = forward(layer, x, x, x, rules)[0]
    restart = torch.tensor([[0, 1, 2, 0, 1, 2]])
    for given in (
        {"position_ids": torch.tensor([[0, 1, 1, 1, 2, 5]])},
        {"position_ids": torch.tensor([[7, 8, 9, 10, 11, 12]])},
        {"position_ids": restart, "use_cache": True},
        {"position_ids": restart.expand(3, 1, 6)},
    ):
        assert torch.equal(forward(layer, x, x, x, rules, **given)[0], whole)
    for positions in (restart, restart + 4):
        packed = forward(layer, x, x, x, rules, position_ids=positions, use_cache=False)[0]
        parts = [forward(layer, *[x[:, :, part]] * 3, rules)[0] for part in (slice(3), slice(3, 6))]
        torch.testing.assert_close(packed, torch.cat(parts, 1))
