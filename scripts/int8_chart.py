#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws docs/gallery/int8.svg, a chart of points, from the table of the section "What int8 costs" of docs/gallery/README.md.

int8_chart.py            writes the picture
int8_chart.py --check    fails if the picture does not match the table
"""

import math
import re
import sys
from html import escape
from pathlib import Path

from speed_chart import FONT, text_at

ROOT = Path(__file__).resolve().parents[1]
PAGE, PICTURE = ROOT / "docs/gallery/README.md", ROOT / "docs/gallery/int8.svg"

COLOURS = ("#00796b", "#0288d1", "#c62828", "#f9a825")  # one per column
WIDTH, LABELS, RIGHT, TOP = 880, 200, 90, 92
BAR, GAP, GROUP = 15, 3, 14


def table(text):
    """Returns (titles of the columns, [(model, [KL in nats a token])]) from the page."""
    section = text[text.index("## What int8 costs") :].partition("\n## ")[0]
    head, _, *rows = re.findall(r"^\|(.*)\|$", section, re.MULTILINE)
    cells = [[cell.strip() for cell in row.split("|")] for row in (head, *rows)]
    return cells[0][1:], [(row[0], [float(cell) for cell in row[1:]]) for row in cells[1:]]


def decimal(value):
    """Writes a number without an exponent: 0.000012."""
    return f"{value:.7f}".rstrip("0").rstrip(".")


def draw(columns, models):
    """Returns the picture as SVG. The axis is logarithmic, from a power of ten to a power of ten."""
    values = [value for _, row in models for value in row]
    least, most = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    unit = (WIDTH - LABELS - RIGHT) / (most - least)
    group = len(columns) * (BAR + GAP) + GROUP
    height = TOP + len(models) * group + 26
    title = "KL divergence from the unrounded model, nats a token"
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" {FONT} fill="#212121">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        text_at(16, 24, title, font_weight="bold"),
    ]
    for index, (column, colour) in enumerate(zip(columns, COLOURS)):
        x, y = 16 + index % 2 * 430, 37 + index // 2 * 22
        out.append(f'<rect x="{x}" y="{y}" width="{BAR}" height="{BAR}" fill="{colour}"/>')
        out.append(text_at(x + BAR + 6, y + 12, column))
    bottom = TOP + len(models) * group - GROUP
    for power in range(least, most + 1):
        x = LABELS + (power - least) * unit
        out.append(f'<line x1="{x:.1f}" y1="{TOP - 4}" x2="{x:.1f}" y2="{bottom + 4}" stroke="#bdbdbd"/>')
        out.append(text_at(x, bottom + 20, decimal(10.0**power), text_anchor="middle"))
    y = TOP
    for model, row in models:
        out.append(text_at(LABELS - 12, y + group / 2 - 3, model, text_anchor="end"))
        for value, colour in zip(row, COLOURS):
            x = LABELS + (math.log10(value) - least) * unit
            out.append(f'<circle cx="{x:.1f}" cy="{y + BAR / 2:.1f}" r="{BAR / 2 - 1:.1f}" fill="{colour}"/>')
            out.append(text_at(x + BAR, y + BAR - 3, decimal(value)))
            y += BAR + GAP
        y += GROUP
    return "\n".join([*out, "</svg>"]) + "\n"


def main():
    picture = draw(*table(PAGE.read_text(encoding="utf-8")))
    if "--check" in sys.argv[1:]:
        if not PICTURE.exists() or PICTURE.read_text(encoding="utf-8") != picture:
            sys.exit(f"int8_chart: {PICTURE.relative_to(ROOT)} is not of the table: run scripts/int8_chart.py")
        return
    PICTURE.write_text(picture, encoding="utf-8")


if __name__ == "__main__":
    main()
