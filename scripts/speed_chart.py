#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws docs/images/speed.svg, the bar chart of README.md, from the table "Both CPUs" of docs/design/performance.md.

speed_chart.py            writes the picture
speed_chart.py --check    fails if the picture does not match the table
"""

import re
import sys
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE, PICTURE = ROOT / "docs/design/performance.md", ROOT / "docs/images/speed.svg"

COLOURS = ("#00796b", "#f9a825")  # one per CPU, paler from the least ratio to the greatest
WIDTH, LABELS, RIGHT, TOP = 880, 352, 90, 62
BAR, GAP, GROUP = 15, 3, 14
FONT = 'font-family="system-ui, sans-serif" font-size="14"'


def table(text):
    """Returns (names of the CPUs, [(case, [(least, most) for each CPU])]) from the page."""
    section = text[text.index("## Both CPUs") :].partition("\n## ")[0]
    head, _, *rows = re.findall(r"^\|(.*)\|$", section, re.MULTILINE)
    cells = [[cell.strip() for cell in row.split("|")] for row in (head, *rows)]
    return cells[0][1:], [(row[0], [tuple(map(float, cell.split(" to "))) for cell in row[1:]]) for row in cells[1:]]


def text_at(x, y, words, **attributes):
    more = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in attributes.items())
    return f'<text x="{x:.0f}" y="{y:.0f}"{more}>{escape(words)}</text>'


def draw(cpus, cases):
    """Returns the picture as SVG. All bars have the same scale. The line at 1 marks Headgate's time."""
    unit = (WIDTH - LABELS - RIGHT) / max(most for _, ranges in cases for _, most in ranges)
    group = len(cpus) * (BAR + GAP) + GROUP
    height = TOP + len(cases) * group + 26
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" {FONT} fill="#212121">',
        f"<title>PyTorch’s time over Headgate’s on {escape(' and '.join(cpus))}</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        text_at(16, 24, "PyTorch’s time over Headgate’s, least to most of each row’s shapes", font_weight="bold"),
    ]
    x = LABELS
    for cpu, colour in zip(cpus, COLOURS):
        out.append(f'<rect x="{x}" y="37" width="{BAR}" height="{BAR}" fill="{colour}"/>')
        out.append(text_at(x + BAR + 6, 49, f"AMD {cpu}"))
        x += 120
    y = TOP
    for case, ranges in cases:
        out.append(text_at(LABELS - 12, y + group / 2 - 3, case, text_anchor="end"))
        for (least, most), colour in zip(ranges, COLOURS):
            for ratio, opacity in ((most, 0.4), (least, 1)):
                size = f'width="{ratio * unit:.1f}" height="{BAR}"'
                out.append(f'<rect x="{LABELS}" y="{y}" {size} fill="{colour}" fill-opacity="{opacity}"/>')
            out.append(text_at(LABELS + most * unit + 6, y + BAR - 3, f"{least:.1f} to {most:.1f}"))
            y += BAR + GAP
        y += GROUP
    line = LABELS + unit
    ends = f'x1="{line:.1f}" y1="{TOP - 4}" x2="{line:.1f}" y2="{y - GROUP + 4}"'
    out.append(f'<line {ends} stroke="#212121" stroke-dasharray="4 3"/>')
    out.append(text_at(line, y - GROUP + 20, "1: as fast as Headgate", text_anchor="middle"))
    return "\n".join([*out, "</svg>"]) + "\n"


def main():
    picture = draw(*table(PAGE.read_text(encoding="utf-8")))
    if "--check" in sys.argv[1:]:
        if not PICTURE.exists() or PICTURE.read_text(encoding="utf-8") != picture:
            sys.exit(f"speed_chart: {PICTURE.relative_to(ROOT)} is not of the table: run scripts/speed_chart.py")
        return
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(picture, encoding="utf-8")


if __name__ == "__main__":
    main()
