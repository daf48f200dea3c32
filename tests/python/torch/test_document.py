# SPDX-License-Identifier: Apache-2.0
"""The code blocks of README.md and docs/reference/pytorch.md run, one after the other, as they stand there."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def run_blocks(document):
    """The names that the blocks leave, and how many there are."""
    blocks = re.findall(r"```python\n(.*?)```", document.read_text(), re.DOTALL)
    names = {}
    for block in blocks:
        exec(compile(block, str(document), "exec"), names)
    return names, len(blocks)


def test_readme_blocks_run():
    names, count = run_blocks(ROOT / "README.md")
    assert count >= 1
    assert names["y"].shape == names["q"].shape and names["out"].shape == (2, 256, 512)


def test_pytorch_blocks_run():
    names, count = run_blocks(ROOT / "docs" / "reference" / "pytorch.md")
    assert count >= 7
    assert names["y"].is_nested and len(names["gate_parameters"](names["model"])) == 2
    assert names["mixed"].shape == (2, 1, 4, 32) and names["state"].shape == (2, 4, 32, 32)
    assert names["c"].shape == (2, 1, 96) and names["rows"].shape == (2, 3, 96) and names["z"].grad is not None
