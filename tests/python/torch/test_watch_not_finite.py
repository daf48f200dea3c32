# SPDX-License-Identifier: Apache-2.0
"""Models whose numbers are not finite: watch(), its records and xray() say so, as the tool does."""

import json
import math
import subprocess

import numpy
import pytest
import torch

import headgate.torch
import models
import tool_runs
from headgate.torch import watch, xray
from headgate.torch.watch.figures import BY_KEY

LAYERS = 3
T = 20
NOT_FINITE = "The model gives numbers that are not finite."
FAMILIES = {
    "llama": {},
    "gpt-oss": {"layer_types": ["full_attention"] * LAYERS},
    "qwen3.5": {"layer_types": ["full_attention", "linear_attention", "full_attention"]},
}
MATRICES = ("down_proj", "q_proj", "v_proj", "in_proj_qkv")
FOUND_BY_VALUES = ("value_output_rank", "written_rank")
"""Metrics of matrices that xray() finds by comparing outputs, which it cannot where these are NaN."""


def made(family):
    return models.model(family, "eager", num_hidden_layers=LAYERS, **FAMILIES[family]).eval()


def matrices_of(layer):
    found = {name.split(".")[-2]: x for name, x in layer.named_parameters() if name.endswith(".weight")}
    return {name: found[name] for name in MATRICES if name in found}


PLACES = [
    (family, layer, name)
    for family in FAMILIES
    for layer, of in enumerate(made(family).model.layers)
    for name in matrices_of(of)
]


def overflow(layer, name):
    """Makes one product of each sum infinite, so that the sums do not depend on their order."""
    with torch.no_grad():
        if name == "down_proj":
            layer.mlp.up_proj.weight.mul_(1e8)
        else:
            layer.input_layernorm.weight.fill_(100.0)
        matrices_of(layer)[name].zero_()[:, 0] = 3e38


def nulls(figures):
    return {key for key, value in figures.items() if value is None}


@pytest.mark.parametrize("family, layer, name", PLACES)
def test_figures_of_a_model_that_overflows_are_null_where_those_of_the_tool_are(family, layer, name, tmp_path):
    model, ids = made(family), models.tokens(1, T + 1)
    overflow(model.model.layers[layer], name)
    model.save_pretrained(tmp_path / "model")
    numpy.save(tmp_path / "ids.npy", ids.flatten().int().numpy())
    words = ("xray", tmp_path / "model", "--token-ids", tmp_path / "ids.npy", "--tokens", T, "--threads", 1, "--json")
    done = subprocess.run([str(word) for word in (tool_runs.TOOL, *words)], capture_output=True, text=True)
    assert done.returncode == 1 and "numbers that are not finite" in done.stderr
    theirs = json.loads(done.stdout)["models"][0]
    ours = xray(model, None, ids).report["models"][0]
    assert nulls(ours["figures"]) == nulls(theirs["figures"])
    for mine, wanted in zip(ours["layer_figures"], theirs["layer_figures"], strict=True):
        assert nulls(mine) - {*FOUND_BY_VALUES} == nulls(wanted) - {*FOUND_BY_VALUES}
    assert ours["verdict"].startswith(NOT_FINITE) == theirs["verdict"].startswith(NOT_FINITE)
    first = next(n for n, row in enumerate(theirs["layer_figures"]) if row["massive_activation"] is None)
    assert (ours["largest_activation"]["value"], ours["largest_activation"]["layer"]) == (None, first)


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("family, layer, name", PLACES)
def test_every_figure_behind_a_value_that_is_not_finite_is_not_finite(family, layer, name, value, tmp_path):
    model, ids = made(family), models.tokens(2, T)
    with torch.no_grad():
        fine = watch(model, "all").probe(input_ids=ids)
        matrices_of(model.model.layers[layer])[name].fill_(value)
        seen = watch(model, "all").probe(input_ids=ids)
    before, found = fine.scalars(by_layer=False), seen.scalars(by_layer=False)
    assert found.keys() == before.keys()
    rows = zip(fine.layers, seen.layers, strict=True)
    for n, (row, now) in enumerate(rows):
        assert row.keys() == now.keys()
        for key in BY_KEY.keys() & row.keys():
            if n < layer:
                assert now[key] == row[key]
            elif n > layer and row[key] is not None and key != "first_token_attention_uniform":
                assert now[key] is not None and not math.isfinite(now[key]), (n, key)
    for key in found:
        values = [row[key] for row in seen.layers if row.get(key) is not None]
        assert math.isfinite(found[key]) == all(map(math.isfinite, values)), key
    seen.log(tmp_path, 1)
    record = json.loads((tmp_path / "metrics.jsonl").read_text(encoding="utf-8"))["eval"]
    names = {"hidden_first_token": "hidden_first_token_share"}
    assert nulls(record) == {names.get(key, key) for key in found if not math.isfinite(found[key])}
    (run,) = headgate.runs(tmp_path)
    assert all(record[key] is not None for key, curve in run.curves.items() if len(curve.values))
