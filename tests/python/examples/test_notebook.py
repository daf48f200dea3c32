# SPDX-License-Identifier: Apache-2.0
"""The notebook is kept without outputs; its cells run from top to bottom, on few tokens."""

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


def test_notebook_as_committed_has_no_outputs(cells):
    assert all(cell["metadata"] == {} for cell in cells)
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert code and all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)


def test_notebook_links_lead_somewhere(cells):
    links = [
        link for cell in cells if cell["cell_type"] == "markdown" for link in re.findall(r"\]\(([^)]+)\)", source(cell))
    ]
    assert links and all((NOTEBOOK.parent / link).exists() for link in links if "://" not in link)


def test_notebook_cells_run(cells, monkeypatch, capsys):
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
