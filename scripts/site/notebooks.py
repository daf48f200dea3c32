# SPDX-License-Identifier: Apache-2.0
"""Converts notebooks to pages. The build executes them, and the pages show their outputs."""

import os
import re
from pathlib import Path

import nbformat
from nbconvert import MarkdownExporter
from nbconvert.preprocessors import ExecutePreprocessor

ROOT = Path(__file__).resolve().parents[2]


def executed(path):
    """Executes a notebook. Returns it as Markdown, and its pictures by name."""
    os.environ["PYTHONPATH"] = str(ROOT / "build" / "python")  # for the kernel that executes the notebook
    notebook = nbformat.read(ROOT / path, as_version=4)
    notebook.metadata["kernelspec"] = {"name": "python3", "language": "python", "display_name": "Python"}
    resources = {"metadata": {"path": str((ROOT / path).parent)}, "unique_key": Path(path).stem}
    ExecutePreprocessor(timeout=600).preprocess(notebook, resources)
    notebook.metadata["language_info"]["name"] = "python"
    text, resources = MarkdownExporter().from_notebook_node(notebook, resources)
    text = re.sub(r"!\[png\]", "![what the code above draws]", text)
    parts = re.split(r"(^```.*?^```$)", text, flags=re.MULTILINE | re.DOTALL)
    return "".join(p if i % 2 else fenced(p) for i, p in enumerate(parts)), resources["outputs"]


def fenced(text):
    """Turns printed text, which nbconvert indents, into blocks without highlighting."""
    return re.sub(
        r"((?:^ {4}[^\n]*\n)+)", lambda m: f"```text\n{re.sub('(?m)^ {4}', '', m[1])}```\n", text, flags=re.MULTILINE
    )
