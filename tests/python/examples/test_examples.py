# SPDX-License-Identifier: Apache-2.0
"""Each example at a small size: it learns, every gate has as many parameters, and a seed gives one result."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import classify
import debian_packages
import graph
import length
import mixers
import recurrent
import training

EXAMPLES = Path(training.__file__).parent
SMALL = ["--batch", "32", "--dim", "16", "--heads", "2", "--lr", "0.01"]
CLASSIFY = ["--steps", "60", *SMALL, "--dropout", "0"]
TEXT = [*SMALL, "--batch", "8", "--length", "32", "--eval-bytes", "1024"]


def figures(result):
    """Returns the figures that do not depend on the machine's speed."""
    return {key: value for key, value in result.items() if key != "seconds"}


def run(example, arguments, packages_file, *more):
    return example.main([*arguments, "--data", str(packages_file), *more])


@pytest.mark.parametrize("gate", training.GATES)
def test_classify_learns(gate, packages_file):
    result = run(classify, CLASSIFY, packages_file, "--gate", gate)
    assert result["metrics"]["accuracy"] > 0.9 and result["metrics"]["loss_nats"] < 0.5
    assert 0 < result["metrics"]["attention_entropy"] < 3 and len(result["metrics"]["layers"]) == 2


@pytest.mark.parametrize("gate", ["none", "elementwise"])
def test_graph_learns(gate, packages_file):
    result = run(graph, [*CLASSIFY, "--neighbours", "2"], packages_file, "--gate", gate)
    assert result["metrics"]["accuracy"] > 0.9
    assert 0 < result["metrics"]["first_weight"] < 1


def test_neighbours_values_by_hand():
    """A node with few neighbours sees each once; one with many sees as many as asked, all of them its own."""
    names = ["hub", *(f"leaf{n}" for n in range(9)), "alone"]
    depends = {"hub": (), "alone": ("nowhere", "alone"), "leaf0": ("hub", "leaf1", "hub")}
    packages = [debian_packages.Package(name, "s", "d", depends.get(name, ("hub",))) for name in names]
    made = graph.Graph(packages, ["s"])
    assert made.degree.tolist() == [9, 2, 2, *[1] * 7, 0]
    places, filled = made.around(torch.arange(11), 3, torch.Generator().manual_seed(0))
    assert places[:, 0].tolist() == list(range(11)) and filled.sum(1).tolist() == [4, 3, 3, *[2] * 7, 1]
    assert set(places[0, 1:].tolist()) <= set(range(1, 10))
    assert places[1][filled[1]].tolist() == [1, 0, 2] and places[5][filled[5]].tolist() == [5, 0]


def test_neighbours_hidden_do_not_count(packages_file):
    """Values in places without a neighbour change nothing; values of neighbours do."""
    options = training.parse(
        "", [*CLASSIFY, "--neighbours", "3"], graph.more_options, steps=1, batch=1, dim=16, heads=2, lr=1
    )
    packages = [*debian_packages.read_list(packages_file).packages, debian_packages.Package("alone", "doc", "", ())]
    made = graph.Graph(packages, ["doc", "games", "libdevel", "libs"])
    model = graph.Classifier(options, made, 4).eval()
    alone = (made.degree == 0).nonzero().flatten()[:1]
    near = (made.degree > 0).nonzero().flatten()[:1]

    def logits(node):
        return model(node, torch.Generator().manual_seed(0))

    before = logits(alone), logits(near)
    kept = {int(alone), int(near)}
    for node in range(len(made.pieces)):
        if node not in kept:
            made.pieces[node] = 5
    assert torch.equal(logits(alone), before[0]) and not torch.allclose(logits(near), before[1])


@pytest.mark.parametrize(("memory", "gate"), [("none", "none"), ("attention", "none"), ("attention", "headwise")])
def test_recurrent_learns(memory, gate, packages_file):
    result = run(recurrent, [*TEXT, "--steps", "40"], packages_file, "--memory", memory, "--gate", gate)
    assert result["metrics"]["loss_nats"] < 3.2 and result["metrics"]["head_loss_nats"] > 0
    assert ("attention_entropy" in result["metrics"]) == (memory == "attention")


@pytest.mark.parametrize("gate", ["none", "headwise"])
def test_length_learns_and_reads_longer_texts(gate, packages_file):
    result = run(length, [*TEXT, "--steps", "40", "--layers", "2", "--longest", "128"], packages_file, "--gate", gate)
    at = result["metrics"]["at"]
    assert list(at) == ["32", "64", "128"] and at["32"]["loss_nats"] < 3.2
    assert at["32"]["beyond_loss_nats"] is None and at["128"]["beyond_loss_nats"] > 0
    assert 1 / 128 < at["128"]["first_weight"] <= at["128"]["most_first_weight"] < 1


MIXERS = [("attention", "none"), ("attention", "elementwise"), ("delta", "none"), ("hybrid", "elementwise")]


@pytest.mark.parametrize(("mixer", "gate"), MIXERS)
def test_mixers_learn_text(mixer, gate, packages_file):
    result = run(mixers, [*TEXT, "--task", "text", "--steps", "40"], packages_file, "--mixer", mixer, "--gate", gate)
    at = result["metrics"]["at"]
    assert list(at) == ["32", "128"] and at["32"]["loss_nats"] < 3.2 and at["128"]["beyond_loss_nats"] > 0
    assert ("delta_reach" in at["32"]) == (mixer != "attention")
    assert ("attention_entropy" in at["32"]) == (mixer != "delta")
    if mixer != "attention":
        assert 0 < at["32"]["delta_decay"] < 1 and 0 < at["32"]["delta_beta"] < 1
        assert 0 < at["32"]["delta_first_share"] < 1 and 0 < at["32"]["delta_reach"] < 32
        assert 1 <= at["32"]["delta_effective_rank"] <= 8 and 0 <= at["32"]["delta_closed"] <= 1


@pytest.mark.parametrize(("mixer", "gate"), MIXERS)
def test_mixers_recall_runs(mixer, gate, packages_file):
    small = ["--task", "recall", "--steps", "4", *SMALL, "--batch", "1", "--tests", "256"]
    result = run(mixers, small, packages_file, "--mixer", mixer, "--gate", gate)
    accuracy = result["metrics"]["accuracy"]
    assert list(accuracy) == ["4", "8", "16", "32", "64"] and all(0 <= share < 0.5 for share in accuracy.values())


def test_recall_batch_has_each_pair_twice():
    tokens = mixers.recall_batch(8, 3, torch.Generator().manual_seed(1)).view(3, 16, 2)
    for sequence in tokens.tolist():
        first, again = ([tuple(pair) for pair in part] for part in (sequence[:8], sequence[8:]))
        assert first != again and sorted(first) == sorted(again) and len({key for key, _ in first}) == 8
        assert all(key < mixers.KEYS <= value < 2 * mixers.KEYS for key, value in first)


def test_mixers_have_nearly_equal_parameters():
    options = training.parse("", ["--dim", "64"], mixers.more_options, steps=1, batch=1, dim=64, heads=4, lr=1)
    counts = []
    for options.mixer, options.gate in MIXERS:
        counts.append(training.count(mixers.Model(options, 257)))
    assert max(counts) - min(counts) < 0.004 * min(counts), counts


@pytest.mark.parametrize("example", [recurrent, length])
def test_model_later_tokens_do_not_change_earlier_outputs(example):
    """A prediction does not depend on later bytes."""
    options = training.parse("", TEXT, example.more_options, steps=1, batch=1, dim=16, heads=2, lr=1)
    model = example.Model(options)
    tokens = torch.randint(256, (1, 12))
    changed = tokens.clone()
    changed[0, 8:] = 0
    assert torch.allclose(model(tokens)[:, :8], model(changed)[:, :8], atol=1e-6)
    assert not torch.allclose(model(tokens)[:, 8:], model(changed)[:, 8:], atol=1e-3)


def test_windows_values_by_hand():
    text = torch.arange(100)
    windows = training.all_windows(text, 8, 30)
    assert windows.shape == (3, 9) and (windows[:, 0] == training.BEGIN).all()
    assert windows[:, 1:].flatten().tolist() == list(range(24))
    drawn = training.some_windows(text, 100, 2, torch.Generator().manual_seed(0))
    assert drawn[1].tolist() == [training.BEGIN, *range(100)]
    with pytest.raises(SystemExit, match="a text of 100 bytes has no window of 128"):
        training.all_windows(text, 128, 1000)


@pytest.mark.parametrize(
    ("example", "arguments"),
    [(classify, CLASSIFY), (graph, CLASSIFY), (recurrent, TEXT), (length, [*TEXT, "--longest", "32"])],
)
def test_parameters_of_all_variants_are_equal(example, arguments, packages_file):
    small = [*arguments, "--steps", "1"]
    counts = {gate: run(example, small, packages_file, "--gate", gate)["parameters"] for gate in training.GATES}
    assert len(set(counts.values())) == 1, counts
    if example is recurrent:
        assert run(example, small, packages_file, "--memory", "none")["parameters"] == counts["none"]


def test_run_same_seed_same_result(packages_file, tmp_path):
    path = tmp_path / "result.json"
    small = ["--steps", "5", *CLASSIFY[2:], "--gate", "headwise"]
    first = run(classify, small, packages_file, "--json", str(path))
    assert figures(json.loads(path.read_text()))["metrics"]["loss_nats"] == first["metrics"]["loss_nats"]
    assert figures(run(classify, small, packages_file)) == figures(first)
    assert figures(run(classify, small, packages_file, "--seed", "2"))["metrics"] != first["metrics"]


def test_prediction_figures_values_by_hand():
    """Two classes, by hand: confident and right, confident and wrong, and one that is 60% confident and right."""
    p = torch.tensor([[1 - 1e-9, 1e-9], [1 - 1e-9, 1e-9], [0.4, 0.6]], dtype=torch.float64)
    found = training.classification(p.log(), torch.tensor([0, 1, 1]), bins=10)
    assert found["accuracy"] == pytest.approx(2 / 3) and found["confidence"] == pytest.approx(2.6 / 3)
    assert found["brier"] == pytest.approx((0 + 2 + 2 * 0.16) / 3)
    assert found["ece"] == pytest.approx(2 / 3 * 0.5 + 1 / 3 * 0.4)
    assert found["loss_nats"] == pytest.approx(-(p[1, 1].log() + p[2, 1].log()).item() / 3)
    assert [row for row in found["reliability"] if row[0]] == [
        (1, pytest.approx(0.6), 1.0),
        (2, pytest.approx(1.0), 0.5),
    ]


def test_figure_option_writes_a_diagram(packages_file, tmp_path):
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
def test_options_bad_are_named(arguments, status, message):
    refused = call("classify.py", *arguments)
    assert refused.returncode == status and message in refused.stderr.splitlines()[-1]


def test_run_diverged_ends_in_one_line(packages_file):
    refused = call("classify.py", *CLASSIFY, "--lr", "1e30", "--data", str(packages_file))
    assert refused.returncode == 1 and refused.stderr.count("\n") == 1
    assert "step " in refused.stderr and "the loss is nan" in refused.stderr


def test_examples_stay_short():
    """Examples are written for readers."""
    for name in ("classify", "graph", "recurrent", "length", "debian_packages"):
        assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) <= 120
