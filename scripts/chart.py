# SPDX-License-Identifier: Apache-2.0
"""What the programs that draw a chart from a table of a document share: reading the table, and writing or checking the
picture."""

import re
import sys
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WIDTH, RIGHT = 880, 90
BAR, GAP, GROUP = 15, 3, 14
FONT = 'font-family="system-ui, sans-serif" font-size="14"'


def rows_of_section(page, heading):
    """Returns the cells of the tables in a section of a page, row by row, without the rows of dashes."""
    text = page.read_text(encoding="utf-8")
    section = text[text.index(f"## {heading}") :].partition("\n## ")[0]
    head, _, *rows = re.findall(r"^\|(.*)\|$", section, re.MULTILINE)
    return [[cell.strip() for cell in row.split("|")] for row in (head, *rows)]


def text_at(x, y, words, **attributes):
    more = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in attributes.items())
    return f'<text x="{x:.0f}" y="{y:.0f}"{more}>{escape(words)}</text>'


def frame(height, title):
    """Returns the first lines of a picture: the opening tag, the title for screen readers, and the background."""
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" {FONT} fill="#212121">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
    ]


def write_or_check(lines, path):
    """Writes the picture of these lines, without its closing tag, to a file. With --check, fails unless the file holds
    this picture."""
    picture = "\n".join([*lines, "</svg>"]) + "\n"
    if "--check" not in sys.argv[1:]:
        path.parent.mkdir(exist_ok=True)
        path.write_text(picture, encoding="utf-8")
    elif not path.exists() or path.read_text(encoding="utf-8") != picture:
        program = Path(sys.argv[0]).name
        name = path.relative_to(ROOT)
        sys.exit(f"{program.removesuffix('.py')}: {name} is not of the table: run scripts/{program}")
