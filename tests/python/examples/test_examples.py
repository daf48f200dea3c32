# SPDX-License-Identifier: Apache-2.0
"""Each example at a small size: it learns, every gate has as many parameters, and a seed gives one result."""

import json
import subprocess
import sys
from pathlib import Path

import classify
import pytest
import torch
import training

EXAMPLES = Path(training.__file__).parent
CLASSIFY = ["--steps", "60", "--batch", "32", "--dim", "16", "--heads", "2", "--lr", "0.01", "--dropout", "0"]


def figures(result):
    """What must not depend on the machine's speed."""
    return {key: value for key, value in result.items() if key != "seconds"}


def run(example, arguments, packages_file, *more):
    return example.main([*arguments, "--data", str(packages_file), *more])


@pytest.mark.parametrize("gate", training.GATES)
def test_classify_learns(gate, packages_file):
    result = run(classify, CLASSIFY, packages_file, "--gate", gate)
    assert result["metrics"]["accuracy"] > 0.9 and result["metrics"]["loss_nats"] < 0.5
    assert 0 < result["metrics"]["attention_entropy"] < 3 and len(result["metrics"]["layers"]) == 2


def test_parameters_are_equal(packages_file):
    small = ["--steps", "1", *CLASSIFY[2:]]
    counts = {gate: run(classify, small, packages_file, "--gate", gate)["parameters"] for gate in training.GATES}
    assert len(set(counts.values())) == 1, counts


def test_a_seed_gives_one_result(packages_file, tmp_path):
    path = tmp_path / "result.json"
    small = ["--steps", "5", *CLASSIFY[2:], "--gate", "headwise"]
    first = run(classify, small, packages_file, "--json", str(path))
    assert figures(json.loads(path.read_text()))["metrics"]["loss_nats"] == first["metrics"]["loss_nats"]
    assert figures(run(classify, small, packages_file)) == figures(first)
    assert figures(run(classify, small, packages_file, "--seed", "2"))["metrics"] != first["metrics"]


def test_figures_of_predictions():
    """Two classes, by hand: sure and right, sure and wrong, and one that is 60% sure and right."""
    p = torch.tensor([[1 - 1e-9, 1e-9], [1 - 1e-9, 1e-9], [0.4, 0.6]], dtype=torch.float64)
    found = training.classification(p.log(), torch.tensor([0, 1, 1]), bins=10)
    assert found["accuracy"] == pytest.approx(2 / 3) and found["confidence"] == pytest.approx(2.6 / 3)
    assert found["brier"] == pytest.approx((0 + 2 + 2 * 0.16) / 3)
    assert found["ece"] == pytest.approx(2 / 3 * 0.5 + 1 / 3 * 0.4)
    assert found["loss_nats"] == pytest.approx(-(p[1, 1].log() + p[2, 1].log()).item() / 3)
    assert [row for row in found["reliability"] if row[0]] == [(1, pytest.approx(0.6), 1.0), (2, pytest.approx(1.0), 0.5)]


def test_reliability_diagram(packages_file, tmp_path):
    path = tmp_path / "diagram.png"
    run(classify, ["--steps", "1", *CLASSIFY[2:]], packages_file, "--figure", str(path))
    assert path.read_bytes().startswith(b"\x89PNG")


def call(example, *arguments):
    command = [sys.executable, EXAMPLES / example, *arguments]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--gate", "sideways"], 2, "argument --gate: invalid choice"),
        (["--steps", "0"], 2, "--steps is at least 1"),
        (["--dim", "20", "--heads", "4"], 2, "--dim is a multiple of twice --heads"),
        (["--data", "/nowhere/Packages"], 1, "classify.py: /nowhere/Packages: No such file or directory"),
    ],
)
def test_bad_options(arguments, status, message):
    refused = call("classify.py", *arguments)
    assert refused.returncode == status and message in refused.stderr.splitlines()[-1]


def test_divergence_ends_a_run_in_one_line(packages_file):
    refused = call("classify.py", *CLASSIFY, "--lr", "1e30", "--data", str(packages_file))
    assert refused.returncode == 1 and refused.stderr.count("\n") == 1
    assert "step " in refused.stderr and "the loss is nan" in refused.stderr


def test_sizes_of_the_examples():
    """They are for reading."""
    for name in ("classify",):
        assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) <= 120
