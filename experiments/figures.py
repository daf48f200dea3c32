# SPDX-License-Identifier: Apache-2.0
"""The kinds of figures that a config may ask for, each of the records of a block's runs."""

import statistics

import plan
import plot
from tables import finished, runs_of, value_at


def figure_point(x, values):
    return (x, statistics.fmean(values), min(values), max(values))


def curve_figure(experiment, spec, records):
    """A figure over training for each variant: mean over seeds, and a band from the least to the largest."""
    block = experiment.block(spec.get("block", "main"))
    series = []
    for variant in block.variants:
        by_step = {}
        for record in runs_of(block, records, variant=variant)[0]:
            for point in record["curve"]:
                value = value_at(point, spec["value"])
                if value is not None:
                    by_step.setdefault(point["step"], []).append(value)
        series.append((variant.label, [figure_point(step, by_step[step]) for step in sorted(by_step)]))
    return plot.lines(spec["title"], "step", spec["title"], series)


def sweep_figure(experiment, spec, records):
    """A figure over the swept option for each variant; a cross where a run diverged."""
    block = experiment.block(spec.get("block", "main"))
    series, crosses = [], []
    for index, variant in enumerate(block.variants):
        line = []
        for point in plan.points(block):
            own, x = runs_of(block, records, variant=variant, point=point)[0], point[block.swept]
            values = [value_at(record, spec["value"]) for record in finished(own)]
            values = [value for value in values if value is not None]
            line += [figure_point(x, values)] if values else []
            crosses += [(index, x)] if len(finished(own)) < len(own) else []
        series.append((variant.label, line))
    at = [point[block.swept] for point in plan.points(block)]
    return plot.lines(
        spec["title"], spec.get("x", block.swept), spec["title"], series, log_x=True, x_ticks=at, crosses=crosses
    )


def bars_figure(experiment, spec, records):
    """A bar for each variant: mean over seeds, and a whisker from the least to the largest."""
    rows = []
    for name in spec.get("blocks", ["main"]):
        block = experiment.block(name)
        for variant in block.variants:
            own = finished(runs_of(block, records, variant=variant)[0])
            values = [value for value in (value_at(record, spec["value"]) for record in own) if value is not None]
            rows += [(variant.label, *figure_point(0, values)[1:])] if values else []
    return plot.bars(spec["title"], spec["title"], rows, spec.get("most"))


def values_figure(experiment, spec, records):
    """Draws a line for each variant: the value at the path spec["value"], with each x of spec["x"] put into it."""
    block = experiment.block(spec.get("block", "main"))
    series = []
    for variant in block.variants:
        own = finished(runs_of(block, records, variant=variant)[0])
        found = {x: [value_at(record, spec["value"].format(x=x)) for record in own] for x in spec["x"]}
        line = [figure_point(x, values) for x, values in found.items() if values and None not in values]
        series.append((variant.label, line))
    return plot.lines(spec["title"], spec["x-title"], spec["title"], series, log_x=True, x_ticks=spec["x"])


def reliability_figure(experiment, spec, records):
    """Draws accuracy over confidence for each variant, and the diagonal of perfect calibration. Bins of confidence join
    the predictions of all seeds."""
    block = experiment.block(spec.get("block", "main"))
    diagonal = [(0.0, 0.0, 0.0, 0.0), (1.0, 1.0, 1.0, 1.0)]
    series = [("as sure as right", diagonal)]
    for variant in block.variants:
        own = finished(runs_of(block, records, variant=variant)[0])
        line = []
        for rows in zip(*(record["eval"]["reliability"] for record in own)):
            count = sum(row[0] for row in rows)
            if count:
                confidence, accuracy = (sum(row[0] * row[i] for row in rows) / count for i in (1, 2))
                line.append((confidence, accuracy, accuracy, accuracy))
        series.append((variant.label, line))
    return plot.lines(spec["title"], "confidence", "accuracy", series) if any(line for _, line in series[1:]) else None


FIGURES = {
    "curve-figure": curve_figure,
    "sweep-figure": sweep_figure,
    "bars-figure": bars_figure,
    "values-figure": values_figure,
    "reliability-figure": reliability_figure,
}
