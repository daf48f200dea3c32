#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws docs/gallery/int8.svg, a chart of points, from the table of the section "What int8 costs" of docs/gallery/README.md.

int8_chart.py            writes the picture
int8_chart.py --check    fails if the picture does not match the table
"""

import math

from chart import BAR, GAP, GROUP, RIGHT, ROOT, WIDTH, frame, rows_of_section, text_at, write_or_check

PAGE, PICTURE = ROOT / "docs/gallery/README.md", ROOT / "docs/gallery/int8.svg"

COLOURS = ("#00796b", "#0288d1", "#c62828", "#f9a825")  # one per column
LABELS, TOP = 200, 92


def table(cells):
    """Returns (titles of the columns, [(model, [KL in nats a token])]) from the cells of the table."""
    return cells[0][1:], [(row[0], [float(cell) for cell in row[1:]]) for row in cells[1:]]


def decimal(value):
    """Writes a number without an exponent: 0.000012."""
    return f"{value:.7f}".rstrip("0").rstrip(".")


def draw(columns, models):
    """Returns the lines of the picture. The axis is logarithmic, from a power of ten to a power of ten."""
    values = [value for _, row in models for value in row]
    least, most = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    unit = (WIDTH - LABELS - RIGHT) / (most - least)
    group = len(columns) * (BAR + GAP) + GROUP
    height = TOP + len(models) * group + 26
    title = "KL divergence from the unrounded model, nats a token"
    out = [
        *frame(height, title),
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
    return out


if __name__ == "__main__":
    write_or_check(draw(*table(rows_of_section(PAGE, "What int8 costs"))), PICTURE)
