# SPDX-License-Identifier: Apache-2.0
"""The code blocks of docs/reference/pytorch.md run, one after the other, as they stand there."""

import re
from pathlib import Path

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "reference" / "pytorch.md"


def test_examples():
    blocks = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    assert len(blocks) >= 6
    names = {}
    for block in blocks:
        exec(compile(block, str(DOCUMENT), "exec"), names)
    assert names["y"].is_nested and len(names["gate_parameters"](names["model"])) == 2
