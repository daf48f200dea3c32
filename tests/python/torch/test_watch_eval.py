# SPDX-License-Identifier: Apache-2.0
"""watch() and `headgate eval` give the same figures of the same model on the same tokens."""

import json
import subprocess

import numpy
import pytest
import torch
import transformers

import headgate.torch
import models
import tool_runs
import watch_reference

READ = ("llama", "qwen3", "qwen3 with windows", "qwen3-next", "qwen3.5", "olmo-hybrid", "afmoe", "gpt-oss")
OTHERS = ("mistral", "qwen2", "gemma3_text", "qwen3_5_moe_text")  # small models of the script's
T = 24
TOLERANCE = 2e-5


def evaluated(model, tokens, where):
    """The JSON of `headgate eval` with figures of heads."""
    model.save_pretrained(where / "model")
    numpy.save(where / "tokens.npy", torch.cat((tokens.flatten(), tokens[0, :1])).int().numpy())
    words = ["eval", where / "model", "--metrics", "all", "--token-ids", where / "tokens.npy", "--seq-len", T,
             "--threads", 1, "--json"]  # fmt: skip
    done = subprocess.run([str(word) for word in (tool_runs.TOOL, *words)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def made(family):
    if family in READ:
        return models.model(family, "eager").eval()
    script = watch_reference.small_models()
    name = script.TASKS["causal"][family]
    kind = getattr(transformers, name if isinstance(name, str) else name[0])
    return script.made(kind, script.config_of(kind, {**script.LIMITS, "sliding_window": 64}), "eager").eval()


@pytest.mark.parametrize("family", READ + OTHERS)
def test_figures_equal_those_of_eval(family, tmp_path):
    model = made(family)
    tokens = models.tokens(3, T)
    with torch.no_grad(), headgate.torch.watch(model, "all") as seen:
        model(tokens)
    expected = evaluated(model, tokens, tmp_path)
    assert not seen.not_seen
    compared = set()
    for ours, theirs in zip(seen.layers, expected["layers"], strict=True):
        for key in ours.keys() & theirs.keys():
            wanted = theirs[key]
            assert (ours[key] is None) == (wanted is None), (key, ours[key], wanted)
            if wanted is not None:
                assert ours[key] == pytest.approx(wanted, rel=TOLERANCE, abs=TOLERANCE), key
                compared.add(key)
    assert {"first_token_attention", "sink_rate", "attention_entropy", "massive_activation", "kurtosis"} <= compared
    overall = seen.scalars(by_layer=False)
    assert compared - overall.keys() <= {"massive_activation_token", "massive_activation_channel"}
    for key in compared & overall.keys():
        assert overall[key] == pytest.approx(expected[key], rel=TOLERANCE, abs=TOLERANCE), key


class OneLayer(torch.nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.attention = layer

    def forward(self, h):
        return self.attention(h)


@pytest.mark.parametrize(
    "layer, names",
    [
        (
            lambda: headgate.torch.GatedAttention(32, 4, num_key_value_heads=2, gate_grain="headwise"),
            {
                "mean_first": "first_token_attention",
                "mean_first_gated": "first_token_attention_gated",
                "mean_entropy": "attention_entropy",
            },
        ),
        (
            lambda: headgate.torch.GatedDeltaNet(32, 2, 4, linear_key_head_dim=8),
            {
                "mean_first_share": "hidden_first_token",
                "mean_reach": "reach",
                "mean_decay": "mean_decay",
                "half_life": "half_life",
                "mean_beta": "mean_beta",
            },
        ),
    ],
)
def test_statistics_of_layers_have_the_definitions_of_watch(layer, names):
    model, h = OneLayer(layer()), torch.randn(1, T, 32)
    with torch.no_grad(), headgate.torch.watch(model, "all") as seen:
        model(h)
    frame = seen.head_frame()
    found = model.attention.statistics(h, list(names))
    for name, key in names.items():
        assert torch.as_tensor(getattr(found, name)).flatten().tolist() == pytest.approx(frame[key], rel=TOLERANCE), key
