# SPDX-License-Identifier: Apache-2.0
"""The fenced blocks of documents.

Every block names its language. A comment `<!-- not run: REASON -->` on the line above a block says why no test runs it."""

import re
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
import check_links

CODE = ("python", "sh", "cpp", "c", "cmake", "json")
OTHER = ("text", "math")
# Whose `sh` blocks record how something was measured, or what a developer does: their options are checked, they do not run.
RECORDS = ("docs/design/", "bench/", "experiments/", "CONTRIBUTING.md", "SECURITY.md")

FENCE = re.compile(
    r"^(?P<indent> *)(?:<!-- not run: (?P<reason>[^\n]+?) -->\n *)?```(?P<language>[^\n]*)\n(?P<text>.*?)^ *```[ ]*$",
    re.MULTILINE | re.DOTALL,
)


@dataclass
class Block:
    page: str
    line: int
    language: str
    text: str
    reason: str | None  # why it does not run

    def __str__(self):
        return f"{self.page}:{self.line}"


def blocks_of(page):
    """The blocks of a page, a path from the repository's root."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return [
        Block(page, text.count("\n", 0, m.start("text")), m["language"].strip(),
              re.sub("^" + m["indent"], "", m["text"], flags=re.MULTILINE), m["reason"])
        for m in FENCE.finditer(text)
    ]  # fmt: skip


def pages():
    return [path.relative_to(ROOT).as_posix() for path in check_links.documents(ROOT)]


def runs(block):
    return block.language in CODE and not block.reason and not block.page.startswith(RECORDS)
