#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws docs/images/speed.svg, the bar chart of README.md, from the table "Both CPUs" of docs/design/performance.md.

speed_chart.py            writes the picture
speed_chart.py --check    fails if the picture does not match the table
"""

from chart import BAR, GAP, GROUP, RIGHT, ROOT, WIDTH, frame, rows_of_section, text_at, write_or_check

PAGE, PICTURE = ROOT / "docs/design/performance.md", ROOT / "docs/images/speed.svg"

COLOURS = ("#00796b", "#f9a825")  # one per CPU, paler from the least ratio to the greatest
LABELS, TOP = 352, 62


def table(cells):
    """Returns (names of the CPUs, [(case, [(least, most) for each CPU])]) from the cells of the table."""
    return cells[0][1:], [(row[0], [tuple(map(float, cell.split(" to "))) for cell in row[1:]]) for row in cells[1:]]


def draw(cpus, cases):
    """Returns the lines of the picture. All bars have the same scale. The line at 1 marks Headgate's time."""
    unit = (WIDTH - LABELS - RIGHT) / max(most for _, ranges in cases for _, most in ranges)
    group = len(cpus) * (BAR + GAP) + GROUP
    height = TOP + len(cases) * group + 26
    out = [
        *frame(height, f"PyTorch’s time over Headgate’s on {' and '.join(cpus)}"),
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
    return out


if __name__ == "__main__":
    write_or_check(draw(*table(rows_of_section(PAGE, "Both CPUs"))), PICTURE)
