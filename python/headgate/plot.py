# SPDX-License-Identifier: Apache-2.0
"""Draws figures with matplotlib (the extra `plot`). Each function draws on `axes` and returns them. If `axes` is None,
it creates new ones.
"""

from __future__ import annotations

from numbers import Integral
from typing import TYPE_CHECKING, Any

import numpy as np

from .extras import require
from .models import Evaluation, Run, Xray, _refusal

if TYPE_CHECKING:
    from matplotlib.axes import Axes


REPORT = "an Xray, as Model.xray returns"


def _of_type(name: str, value: Any, types: Any, wanted: str) -> Any:
    if not isinstance(value, types):
        raise _refusal(f"plot: {name}", value, wanted)
    return value


def _each_of_type(name: str, values: tuple[Any, ...], types: Any, wanted: str) -> None:
    require("matplotlib", "headgate.plot")  # a missing package is named before wrong values
    for n, value in enumerate(values):
        _of_type(f"{name}[{n}]", value, types, wanted)
    if not values:
        raise ValueError(f"plot: {name} is empty but must hold at least one")


def _index(name: str, value: Any, count: int) -> int:
    """Checks the index of a layer or a head. Negative indices are refused."""
    if not isinstance(value, Integral) or isinstance(value, bool) or not 0 <= int(value) < count:
        raise ValueError(f"plot: {name} is {value!r} but must be a whole number from 0 to {count - 1}")
    return int(value)


def _axes(axes: Axes | None) -> Axes:
    if axes is not None:
        return _of_type("axes", axes, require("matplotlib.axes", "headgate.plot").Axes, "Axes of matplotlib")
    return require("matplotlib.pyplot", "headgate.plot").subplots(layout="constrained")[1]


def _count(axis) -> None:
    """Restricts the ticks of an axis to whole numbers. Used for layers, steps and cells."""
    axis.get_major_locator().set_params(integer=True)


def _numbers(rows, key: str) -> np.ndarray:
    if not any(key in row for row in rows):
        raise ValueError(f"plot: there is no figure '{key}'; there are {', '.join(rows[0]) if rows else 'none'}")
    return np.array([np.nan if row.get(key) is None else row[key] for row in rows], float)


def layer_figure(
    *reports: Evaluation | Xray, key: str = "first_token_attention", labels=None, axes: Axes | None = None
) -> Axes:
    """Plots the metric `key` of each layer, with a line for each report. `labels` holds the names of the reports.

    The default metric is first-token attention.
    """
    _each_of_type("reports", reports, (Evaluation, Xray), "an Evaluation or an Xray")
    _of_type("key", key, str, "a str")
    if labels is not None and (
        isinstance(labels, str) or not hasattr(labels, "__len__") or len(labels) != len(reports)
    ):
        raise ValueError(f"plot: labels is {labels!r} but must be a list of {len(reports)} names")
    names = [getattr(report, "name", None) for report in reports] if labels is None else list(labels)
    lines = [
        _numbers(report.layers if isinstance(report, Evaluation) else report.layer_figures, key) for report in reports
    ]
    axes = _axes(axes)
    for name, values in zip(names, lines):
        axes.plot(range(len(values)), values, marker="o", label=name)
    axes.set_xlabel("layer")
    _count(axes.xaxis)
    axes.set_ylabel(key.replace("_", " "))
    if labels is not None or any(isinstance(report, Xray) for report in reports):
        axes.legend()
    return axes


def gate_histogram(report: Xray, layer: int | None = None, *, axes: Axes | None = None) -> Axes:
    """Plots a histogram of gates in [0,1] over the heads of a layer. If `layer` is None, uses all layers.

    Attention and linear attention have separate lines. A line shows the share of the gates in each bin.
    """
    _of_type("report", report, Xray, REPORT)
    layers = range(len(report.heads)) if layer is None else [_index("layer", layer, len(report.heads))]
    counts: dict[str, list[np.ndarray]] = {}
    for n in layers:
        is_linear = n < len(report.layer_types) and report.layer_types[n] == "linear_attention"
        found = [head.gate_histogram for head in report.heads[n] if head.gate_histogram is not None]
        if found:
            counts.setdefault("linear attention" if is_linear else "attention", []).extend(found)
    if not counts:
        raise ValueError(f"plot: no head of {report.name} has a gate of its own there")
    axes = _axes(axes)
    for kind, of_kind in counts.items():
        total = np.sum(of_kind, axis=0)
        edges = np.linspace(0, 1, len(total) + 1)
        axes.stairs(total / total.sum(), edges, fill=len(counts) == 1, label=kind)
    if len(counts) > 1:
        axes.legend()
    axes.set_xlabel("gate")
    axes.set_ylabel("share")
    return axes


def head_map(report: Xray, layer: int, head: int, *, axes: Axes | None = None) -> Axes:
    """Plots a head's attention map: queries downwards, keys to the right.

    The colour of a cell shows the square root of the mean weight that its queries give to its keys.
    """
    _of_type("report", report, Xray, REPORT)
    layer = _index("layer", layer, len(report.heads))
    head = _index("head", head, len(report.heads[layer]))
    axes = _axes(axes)
    image = axes.imshow(np.sqrt(report.heads[layer][head].map), vmin=0, vmax=1, cmap="viridis")
    axes.figure.colorbar(image, ax=axes, label="root of the weight")
    axes.set_title(f"layer {layer}, head {head}")
    axes.set_xlabel("key")
    axes.set_ylabel("query")
    _count(axes.xaxis)
    _count(axes.yaxis)
    return axes


def curves(*runs: Run, key: str = "loss", axes: Axes | None = None) -> Axes:
    """Plots the metric `key` of each run over its steps."""
    _each_of_type("runs", runs, Run, "a Run, as headgate.runs returns")
    _of_type("key", key, str, "a str")
    for run in runs:
        if key not in run.curves:
            raise ValueError(f"plot: {run.name} has no curve '{key}'; it has {', '.join(run.curves)}")
    axes = _axes(axes)
    for run in runs:
        axes.plot(run.curves[key].steps, run.curves[key].values, label=run.name)
    axes.set_xlabel("step")
    _count(axes.xaxis)
    axes.set_ylabel(key.replace("_", " "))
    axes.legend()
    return axes
