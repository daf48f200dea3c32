# SPDX-License-Identifier: Apache-2.0
"""Line charts and bars by matplotlib as SVG, for the experiments' pages. The same figures give the same bytes."""

import io

import plan

# Okabe and Ito's colours, which colour-blind readers tell apart; grey, for the baseline, in place of black. Markers tell
# lines apart without colours.
COLOURS = ("#4d4d4d", "#d55e00", "#0072b2", "#cc79a7", "#009e73", "#e69f00")
BAR_COLOUR = "#56b4e9"  # another of theirs, on which a whisker shows
MARKERS = ("o", "s", "^", "D", "v", "P")
STYLE = {
    "axes.edgecolor": "#888888",
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.constrained_layout.use": True,
    "font.family": "sans-serif",
    "font.size": 9,
    "grid.color": "#dddddd",
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "lines.markersize": 4,
    "svg.fonttype": "none",  # letters stay letters
    "svg.hashsalt": "headgate",  # names of clip paths do not change from run to run
}


def in_style(draw):
    """Calls draw(figure class) with matplotlib's own defaults and STYLE, whatever the user has set."""
    try:
        import matplotlib.figure
        import matplotlib.style
    except ImportError as error:
        raise plan.ExperimentError("figures are drawn by matplotlib (Debian: python3-matplotlib)") from error
    with matplotlib.style.context(["default", STYLE], after_reset=True):
        return draw(matplotlib.figure.Figure)


def svg_of(figure, title):
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Title": title, "Date": None})
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + "\n"


def draw_series(axes, index, label, points):
    """points: (x, mean, least, most) in order of x. A band from least to most, a line and markers through the means."""
    colour = COLOURS[index % len(COLOURS)]
    xs, means, least, most = zip(*points) if points else ([], [], [], [])
    if least != most:
        axes.fill_between(xs, least, most, color=colour, alpha=0.15, linewidth=0)
    axes.plot(xs, means, color=colour, marker=MARKERS[index % len(MARKERS)], label=label)


def draw_lines(figure_class, x_title, y_title, series, log_x, x_ticks, crosses):
    figure = figure_class(figsize=(7.5, 3.6))
    axes = figure.add_subplot(xlabel=x_title, ylabel=y_title)
    axes.grid(axis="x", visible=False)
    if log_x:
        axes.set_xscale("log")
    for index, (label, points) in enumerate(series):
        if points or index in {crossed for crossed, _ in crosses}:
            draw_series(axes, index, label, points)
    for index, x in crosses:
        at = {"transform": axes.get_xaxis_transform(), "clip_on": False}  # y counts from 0 to 1 along the axis
        axes.plot([x], [1 - 0.03 * index], "x", color=COLOURS[index % len(COLOURS)], markersize=7, **at)
    if x_ticks:
        axes.set_xticks(x_ticks, [f"{tick:.10g}" for tick in x_ticks])
        axes.minorticks_off()
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), borderaxespad=0.0)
    return figure


def lines_figure(x_title, y_title, series, log_x=False, x_ticks=None, crosses=()):
    """series: [(label, points)]; crosses: [(index of the series, x)], drawn along the top edge. A series' place decides
    its colour, and one without points or crosses is not shown. None where no series has a point."""
    if not any(points for _, points in series):
        return None
    return in_style(lambda figure: draw_lines(figure, x_title, y_title, series, log_x, x_ticks, crosses))


def draw_bars(figure_class, x_title, rows, most):
    figure = figure_class(figsize=(7.5, 0.7 + 0.25 * len(rows)))
    axes = figure.add_subplot(xlabel=x_title)
    axes.grid(axis="y", visible=False)
    labels, means, least, largest = zip(*rows)
    below = [mean - low for mean, low in zip(means, least)]
    above = [high - mean for mean, high in zip(means, largest)]
    whiskers = {"elinewidth": 1, "ecolor": "#333333", "capsize": 2}
    axes.barh(range(len(rows)), means, color=BAR_COLOUR, xerr=(below, above), error_kw=whiskers)
    axes.set_yticks(range(len(rows)), labels)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(rows) - 0.4, -0.6)  # the first row on top
    axes.set_xlim(0, most)
    return figure


def bars_figure(x_title, rows, most=None):
    """rows: [(label, mean, least, largest)]: a bar from 0 to the mean, a whisker from least to largest; the axis ends at
    `most`. None without rows."""
    return in_style(lambda figure: draw_bars(figure, x_title, rows, most)) if rows else None


def lines(title, *arguments, **options):
    """The SVG of lines_figure; None where that draws nothing."""
    figure = lines_figure(*arguments, **options)
    return figure and in_style(lambda _: svg_of(figure, title))


def bars(title, *arguments, **options):
    """The SVG of bars_figure; None where that draws nothing."""
    figure = bars_figure(*arguments, **options)
    return figure and in_style(lambda _: svg_of(figure, title))
