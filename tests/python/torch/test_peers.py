# SPDX-License-Identifier: Apache-2.0
"""bench/peers.py with PyTorch, transformers and JAX as the only peers, at sizes that take milliseconds."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import headgate

PEERS = Path(__file__).resolve().parents[3] / "bench" / "peers.py"

WRONG = """
class Peer:
    version = "1"

    def __init__(self, threads):
        import torch
        from peer.cases import Way
        from peer.torch_sdpa import Flash
        self.inner, self.Way = Flash(threads), Way

    def ways(self, case, inputs):
        way = self.inner.ways(case, inputs)[""]
        return {"": self.Way(way.run, lambda found: [2 * array for array in way.read(found)])}
"""

FAULTY = """
import os

class Peer:
    version = "1"

    def __init__(self, threads):
        from peer.cases import Way
        from peer.torch_sdpa import Flash
        self.inner, self.Way = Flash(threads), Way

    def ways(self, case, inputs):
        way = self.inner.ways(case, inputs)[""]
        if case.dtype != "float32":
            return {"": way}
        for_turns = []

        def read(found):
            for_turns.append(True)
            return way.read(found)

        return {"": self.Way(lambda: os._exit(7) if for_turns else way.run(), read)}
"""

MISSING = """
import a_package_that_is_not_installed
"""


def run(*arguments):
    # torch.compile does nothing: a compiler would take a minute.
    return subprocess.run(
        [
            sys.executable,
            PEERS,
            "--package",
            Path(headgate.__file__).parents[1],
            "--threads",
            "1",
            *map(str, arguments),
        ],
        capture_output=True,
        text=True,
        env={**os.environ, "TORCHDYNAMO_DISABLE": "1"},
    )


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Returns the report and the tables of a run with a missing peer and one whose results are wrong."""
    folder = tmp_path_factory.mktemp("peers")
    (folder / "doubling.py").write_text(WRONG)
    (folder / "absent.py").write_text(MISSING)
    peers = f"headgate,torch-math,transformers,{folder}/doubling.py,{folder}/absent.py"
    done = run(
        "--tiny", "--rounds", 2, "--peers", peers, "--json", folder / "report.json", "--markdown", folder / "tables.md"
    )
    assert done.returncode == 0, done.stderr
    return json.loads((folder / "report.json").read_text()), (folder / "tables.md").read_text(), folder


def test_every_case_is_measured_and_correct(measured):
    report, _, _ = measured
    assert {case["op"] for case in report["cases"]} == {
        "forward",
        "forward+backward",
        "pair",
        "pair+backward",
        "listed",
        "listed+backward",
        "statistics",
        "layer",
        "layer+backward",
        "linear",
        "linear+backward",
    }
    for case in report["cases"]:
        results = {result["peer"]: result for result in case["results"]}
        peer, other = (
            ("transformers", "torch-math") if case["op"].startswith("linear") else ("torch-math", "transformers")
        )
        assert "refused" in results[other]
        for name in ("headgate", peer):
            low, middle, high = results[name]["seconds"]
            assert 0 < low <= middle <= high
            assert results[name]["error"] < (1e-5 if case["dtype"] == "float32" else 5e-2), case["name"]
            assert results[name]["gflops"] > 0
        assert results["headgate"]["ratio"] == [1, 1, 1]
        assert case["base"] == "headgate"


def test_calls_from_jax_are_correct(tmp_path):
    kinds = "^(attention/forward.backward/float32/.*/causal|pair/pair/|linear-decode/|statistics/)"
    peers = ["--peers", "headgate,headgate-jax", "--filter", kinds]
    done = run("--tiny", "--rounds", 1, *peers, "--json", tmp_path / "report.json")
    assert done.returncode == 0, done.stderr
    cases = json.loads((tmp_path / "report.json").read_text())["cases"]
    assert {case["op"] for case in cases} == {"forward+backward", "pair", "linear", "statistics"}
    for case in cases:
        ours, of_jax = case["results"]
        assert case["base"] == ours["peer"] == "headgate"
        if case["op"] == "statistics":
            assert of_jax["refused"] == "headgate.jax has no statistics"
        else:
            assert of_jax["seconds"] and of_jax["error"] < (1e-5 if case["dtype"] == "float32" else 5e-2), case["name"]


def test_wrong_results_are_not_timed(measured):
    report, tables, _ = measured
    found = [result for case in report["cases"] for result in case["results"] if result["peer"] == "doubling"]
    assert len(found) == len(report["cases"])
    assert all("seconds" not in result and "refused" in result for result in found)
    assert any(result["refused"].startswith("wrong: the error of y is 1.0e+00") for result in found)
    assert "- doubling: wrong: the error of y is" in tables


def test_peer_that_crashes_is_named_and_restarted(tmp_path):
    (tmp_path / "faulty.py").write_text(FAULTY)
    done = run(
        "--tiny",
        "--rounds",
        1,
        "--filter",
        "^small/forward/",
        "--peers",
        f"headgate,{tmp_path}/faulty.py",
        "--json",
        tmp_path / "report.json",
    )
    assert done.returncode == 0, done.stderr
    cases = json.loads((tmp_path / "report.json").read_text())["cases"]
    assert {case["dtype"] for case in cases} == {"float32", "bfloat16"}
    for case in cases:
        ours, faulty = case["results"]
        assert ours["seconds"]
        if case["dtype"] == "float32":
            assert faulty["refused"].startswith("its process ended with status 7") and "seconds" not in faulty
        else:
            assert faulty["seconds"]


def test_missing_peers_are_named(measured):
    report, tables, _ = measured
    why = "No module named 'a_package_that_is_not_installed'"
    assert report["missing"] == {"absent": why}
    assert f"- absent is missing: {why}" in tables
    assert "absent" not in report["versions"]


def test_tables(measured):
    report, tables, folder = measured
    rows = [line for line in tables.splitlines() if line.startswith(("| forward", "| layer/", "| layer+"))]
    timed = [case for case in report["cases"] if case["group"] in ("attention", "small", "decode", "layer")]
    assert len(rows) == len(timed)
    assert "| case | headgate | torch-math |" in tables
    summary = tables.split("### Times over headgate's")[1].split("###")[0]
    ratios = [
        result["ratio"][1]
        for case in timed
        if case["group"] == "decode" and case["dtype"] == "float32"
        for result in case["results"]
        if result["peer"] == "torch-math"
    ]
    assert len(ratios) == 2
    assert f"{min(ratios):.2f}" in next(line for line in summary.splitlines() if "decode: forward, float32" in line)
    again = run("--table", folder / "report.json", folder / "report.json")
    assert again.stdout == tables


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--rounds", "0"], "--rounds: 0 is less than 1"),
        (["--peers", "headgate,tensorflow"], "--peers: 'tensorflow' is none of headgate,"),
        (["--filter", "no such case"], "--filter: no case matches 'no such case'"),
        (["--threads", "4096"], "--threads: 4096, but this process may use"),
    ],
)
def test_errors(arguments, message):
    done = run("--tiny", *arguments)
    assert done.returncode == 2
    assert message in done.stderr.splitlines()[-1]
