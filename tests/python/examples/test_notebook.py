# SPDX-License-Identifier: Apache-2.0
"""The notebook: executed from top to bottom, without errors, small; and its cells run, on few tokens."""

import json
import re
from pathlib import Path

import matplotlib
import matplotlib.pyplot
import pytest

ROOT = Path(__file__).resolve().parents[3]
NOTEBOOK = ROOT / "examples" / "python" / "gated_attention.ipynb"


@pytest.fixture
def cells():
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert notebook["nbformat"] == 4
    return notebook["cells"]


def source(cell):
    return "".join(cell["source"])


def test_it_was_executed_as_it_stands(cells):
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell["outputs"]]
    assert {output["output_type"] for output in outputs} <= {"stream", "display_data", "execute_result"}
    assert sum("image/png" in output.get("data", {}) for output in outputs) >= 6
    assert NOTEBOOK.stat().st_size < 1 << 20
    said = "".join("".join(output.get("text", "")) for output in outputs)
    assert "0.3349 0.1651" in said and "attention to the first token: 0." in said
    assert str(ROOT) not in NOTEBOOK.read_text(encoding="utf-8")


def test_its_links_lead_somewhere(cells):
    links = [link for cell in cells if cell["cell_type"] == "markdown" for link in re.findall(r"\]\(([^)]+)\)", source(cell))]
    assert links and all((NOTEBOOK.parent / link).exists() for link in links if "://" not in link)


def test_its_cells_run(cells, monkeypatch, capsys):
    matplotlib.use("Agg")
    monkeypatch.setenv("HEADGATE_NOTEBOOK_SMALL", "1")
    monkeypatch.chdir(NOTEBOOK.parent)
    names = {}
    for cell in cells:
        if cell["cell_type"] == "code":
            exec(compile(source(cell), "the notebook", "exec"), names)
            matplotlib.pyplot.close("all")
    said = capsys.readouterr().out
    assert "[0.3349 0.1651]" in said and "True" in said and "False" not in said
    assert names["records"]("classify")["none"][1]["accuracy"] > 0
