# SPDX-License-Identifier: Apache-2.0
"""Line charts and bars as SVG, for the experiments' pages. The same figures give the same bytes."""

import html
import math

WIDTH, HEIGHT = 720, 360
LEFT, RIGHT, TOP, BOTTOM = 64, 190, 16, 48  # margins; the legend stands on the right
COLOURS = ("#4d4d4d", "#d95f02", "#1b75bb", "#7a3e9d", "#2a8f5b", "#b5476b")
FONT = 'font-family="sans-serif" font-size="12"'


def element(name, content=None, **attributes):
    """Underscores of attribute names stand for hyphens; numbers are rounded to a tenth of a pixel."""
    written = "".join(
        f' {key.replace("_", "-")}="{value:.1f}"' if isinstance(value, float) else f' {key.replace("_", "-")}="{value}"'
        for key, value in attributes.items()
    )
    return f"<{name}{written}/>" if content is None else f"<{name}{written}>{content}</{name}>"


def text(x, y, words, **attributes):
    return element("text", html.escape(words), x=float(x), y=float(y), fill="#333", **attributes)


def ticks(least, most, count=6):
    """Round numbers that cover a range: steps of 1, 2 or 5 times a power of ten."""
    rough = (most - least) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    first = math.floor(least / step + 1e-9)
    values = [first * step]
    while values[-1] < most - step * 1e-6:
        values.append((first + len(values)) * step)
    return values


class Axes:
    """From figures to pixels; x may be logarithmic with ticks at the given values."""

    def __init__(self, x_range, y_range, x_ticks=None, log_x=False):
        self.log_x = log_x
        self.y_ticks = ticks(*y_range)
        self.x_ticks = x_ticks or ticks(*x_range)
        low, high = (self.x_ticks[0], self.x_ticks[-1])
        self.x_low, self.x_high = self.along(low), self.along(high)
        self.y_low, self.y_high = self.y_ticks[0], self.y_ticks[-1]

    def along(self, x):
        return math.log(x) if self.log_x else x

    def x(self, value):
        return LEFT + (WIDTH - LEFT - RIGHT) * (self.along(value) - self.x_low) / (self.x_high - self.x_low)

    def y(self, value):
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (value - self.y_low) / (self.y_high - self.y_low)

    def grid(self, x_title, y_title):
        right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
        parts = []
        for value in self.y_ticks:
            parts.append(element("line", x1=LEFT, x2=right, y1=self.y(value), y2=self.y(value), stroke="#ddd"))
            parts.append(text(LEFT - 8, self.y(value) + 4, f"{value:.10g}", text_anchor="end"))
        for value in self.x_ticks:
            parts.append(element("line", x1=self.x(value), x2=self.x(value), y1=bottom, y2=bottom + 4, stroke="#888"))
            parts.append(text(self.x(value), bottom + 18, f"{value:.10g}", text_anchor="middle"))
        parts.append(element("line", x1=LEFT, x2=right, y1=bottom, y2=bottom, stroke="#888"))
        parts.append(text((LEFT + right) / 2, HEIGHT - 10, x_title, text_anchor="middle"))
        middle = (TOP + bottom) / 2
        parts.append(text(14, middle, y_title, text_anchor="middle", transform=f"rotate(-90 14 {middle:.1f})"))
        return parts


def document(parts, title, height=HEIGHT):
    body = "\n".join(
        [element("title", html.escape(title)), element("rect", width=WIDTH, height=height, fill="#fff"), *parts]
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'width="{WIDTH}" height="{height}" {FONT}>\n'
        f"{body}\n</svg>\n"
    )


def colour_of(index):
    return COLOURS[index % len(COLOURS)]


def legend(row, colour, label):
    y, x = TOP + 10 + 20 * row, WIDTH - RIGHT + 14
    return [element("line", x1=x, x2=x + 20, y1=y, y2=y, stroke=colour, stroke_width=2), text(x + 26, y + 4, label)]


def path_of(points):
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def series_parts(axes, colour, points):
    """points: (x, mean, least, most) in order of x. A band from least to most, a line and dots through the means."""
    parts = []
    if any(least != most for _, _, least, most in points):
        band = [(axes.x(x), axes.y(most)) for x, _, _, most in points] + [
            (axes.x(x), axes.y(least)) for x, _, least, _ in points[::-1]
        ]
        parts.append(element("polygon", points=path_of(band), fill=colour, fill_opacity="0.15"))
    line = [(axes.x(x), axes.y(mean)) for x, mean, _, _ in points]
    parts.append(element("polyline", points=path_of(line), fill="none", stroke=colour, stroke_width=2))
    return parts + [element("circle", cx=x, cy=y, r=2.5, fill=colour) for x, y in line]


def cross(x, y, colour):
    return element("path", d=f"M{x - 4:.1f} {y - 4:.1f}l8 8m0 -8l-8 8", stroke=colour, stroke_width=2, fill="none")


def lines(title, x_title, y_title, series, log_x=False, x_ticks=None, crosses=()):
    """series: [(label, points)]; crosses: [(index of the series, x)], drawn along the top edge. A series' place decides
    its colour, and one without points or crosses is not shown."""
    everything = [point for _, points in series for point in points]
    if not everything:
        return None
    y_low, y_high = min(point[2] for point in everything), max(point[3] for point in everything)
    if y_low == y_high:
        y_low, y_high = y_low - 0.5, y_high + 0.5
    xs = [point[0] for point in everything]
    x_range = (min(xs), max(xs)) if min(xs) < max(xs) else (min(xs) - 0.5, max(xs) + 0.5)
    axes = Axes(x_range, (y_low, y_high), x_ticks, log_x)
    parts = axes.grid(x_title, y_title)
    shown = [index for index, (_, points) in enumerate(series) if points or index in {index for index, _ in crosses}]
    for row, index in enumerate(shown):
        label, points = series[index]
        parts += legend(row, colour_of(index), label) + (series_parts(axes, colour_of(index), points) if points else [])
    for index, x in crosses:
        parts.append(cross(axes.x(x), TOP + 6.0 + 9 * index, colour_of(index)))
    return document(parts, title)


def bars(title, x_title, rows, most=None):
    """rows: [(label, [(mean, least, most), …])]: a bar from 0 for each figure of a row, a whisker from least to most."""
    if not rows:
        return None
    label_width, row_height = 210, 24
    most = most or max(figure[2] for _, figures in rows for figure in figures) or 1.0
    marks = [mark for mark in ticks(0.0, most)]
    bottom = TOP + row_height * len(rows)
    span = WIDTH - label_width - 24

    def at(value):
        return label_width + span * value / marks[-1]

    parts = []
    for mark in marks:
        parts.append(element("line", x1=at(mark), x2=at(mark), y1=TOP, y2=bottom, stroke="#ddd"))
        parts.append(text(at(mark), bottom + 16, f"{mark:.10g}", text_anchor="middle"))
    parts.append(text(label_width + span / 2, bottom + 36, x_title, text_anchor="middle"))
    for i, (label, figures) in enumerate(rows):
        top = TOP + row_height * i
        parts.append(text(label_width - 8, top + row_height / 2 + 4, label, text_anchor="end"))
        thickness = (row_height - 6) / len(figures)
        for j, (mean, least, largest) in enumerate(figures):
            y = top + 3 + thickness * j
            parts.append(
                element(
                    "rect",
                    x=label_width,
                    y=float(y),
                    width=max(0.0, at(mean) - label_width),
                    height=thickness,
                    fill=colour_of(1 + j),
                )
            )
            middle = y + thickness / 2
            parts.append(element("line", x1=at(least), x2=at(largest), y1=middle, y2=middle, stroke="#333"))
    return document(parts, title, bottom + 48)
