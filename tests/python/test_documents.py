# SPDX-License-Identifier: Apache-2.0
"""The blocks of Python of documents that need nothing but NumPy run, one after the other, as they stand there."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.mark.parametrize("name", ("tutorials/decode-with-a-cache.md", "reference/conventions.md"))
def test_document_blocks_run(name):
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / name).read_text(), re.DOTALL)
    assert blocks
    names = {}
    for block in blocks:
        exec(compile(block, name, "exec"), names)
    assert names["y"].shape[-1] == 64
