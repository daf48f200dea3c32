# SPDX-License-Identifier: Apache-2.0
"""Loads models, evaluates them on a text, solves worked problems, and reads runs of `headgate train`.

A text is a str, or a pathlib.Path of a file or directory. Reports are the same as those of the command line.
docs/reference/xray.md and docs/reference/training.md define each metric.
"""

from __future__ import annotations

import base64
import contextlib
import json
import math
import os
import reprlib
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from .extras import require

Figures = dict[str, "float | None"]


@cache
def _models():
    """Imports the extension module for models on first use. It needs more libraries than attention does."""
    from . import _models as module

    return module


def _refusal(name: str, value: Any, wanted: str) -> TypeError:
    found = "None" if value is None else f"a {type(value).__name__}"
    return TypeError(f"{name} is {found} but must be {wanted}")


def _path(name: str, value: Any) -> str:
    """Converts the argument `name`, a path, to a str."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.nn.Module):
        wanted = "a path: headgate.torch.xray(model, tokenizer, text) and headgate.torch.watch(model) look into modules"
        raise TypeError(f"{name} is a {type(value).__name__}, a module of PyTorch, but must be {wanted}")
    if not isinstance(value, (str, os.PathLike)):
        raise _refusal(name, value, "a str or a pathlib.Path")
    return os.fspath(value)


@contextlib.contextmanager
def _written(name: str, content: str) -> Iterator[str]:
    """Yields the path of a temporary file that contains `content`. Replaces this path by `name` in ValueErrors."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_text(content, encoding="utf-8", newline="")
        try:
            yield str(path)
        except ValueError as error:
            raise ValueError(str(error).replace(str(path), name)) from None


@contextlib.contextmanager
def _paths(text: str | os.PathLike[str]) -> Iterator[list[str]]:
    """Yields a list with one path. A str is written to a temporary file, and a path is used as it is."""
    path = _path("text", text)
    if not isinstance(text, str):
        yield [path]
    elif text == "":
        raise ValueError("text is empty")
    else:
        with _written("text", text) as file:
            yield [file]


def _frame(rows: Any):
    return require("pandas", "frame()").DataFrame(rows)


def _head_frame(heads: list[list[Figures]]):
    """Returns a pandas.DataFrame with a row for each head, indexed by layer and head. It is empty without heads."""
    rows = [{"layer": layer, "head": h, **f} for layer, of in enumerate(heads) for h, f in enumerate(of)]
    pandas = require("pandas", "frame()")
    return pandas.DataFrame(rows, columns=None if rows else ["layer", "head"]).set_index(["layer", "head"])


def _some(figures: Figures, most: int = 3) -> str:
    """Formats the first `most` metrics and the number of the others, for a repr."""
    known = [f"{key} {value:.4g}" for key, value in figures.items() if isinstance(value, (int, float))]
    more = len(figures) - len(known[:most])
    return ", ".join(known[:most] + ([f"{more} more figures"] if more > 0 else []))


def _bytes(text: str | None) -> np.ndarray | None:
    """Decodes base64 to bytes and divides them by 255. Returns float32 numbers in [0,1], or None if `text` is None."""
    return None if text is None else np.frombuffer(base64.b64decode(text), np.uint8).astype(np.float32) / 255


@dataclass(frozen=True, repr=False)
class Evaluation:
    """Metrics of a model on a text, by key. A metric is None if the model or the text does not define it."""

    figures: Figures
    layers: list[Figures]
    heads: list[list[Figures]]  # metrics by layer and head; the lists of heads are empty without heads=True in eval()
    tokens: int
    seq_len: int  # tokens of a sequence; metrics such as entropy depend on this length
    backcopy: Figures | None = None  # metrics, separately for trigger tokens; None if the task has no triggers

    def __repr__(self) -> str:
        return f"Evaluation({self.tokens} tokens, {len(self.layers)} layers; {_some(self.figures)})"

    def frame(self):
        """Returns a pandas.DataFrame with a row for each layer."""
        return _frame(self.layers).rename_axis("layer")

    def head_frame(self):
        """Returns a pandas.DataFrame with a row for each head, indexed by layer and head. Without heads=True in eval(), it
        has no rows.
        """
        return _head_frame(self.heads)


@dataclass(frozen=True, repr=False)
class Head:
    """Attention of one head over T tokens. The gates and the square roots of weights are rounded to multiples of 1/255."""

    map: np.ndarray  # (M,M), lower triangular: [i,j] is the mean weight of queries in cell i on keys in cell j
    received: np.ndarray  # (T): mean weight that each key receives from the queries that see it
    gate: np.ndarray | None  # (T): gate of each token, averaged over features
    gate_histogram: np.ndarray | None  # number of gate values in each of 20 equal bins of [0,1]
    top_keys: list[tuple[int, float]]
    singular_values: np.ndarray  # singular values of W_v W_o

    def __repr__(self) -> str:
        gate = "no gate" if self.gate is None else f"mean gate {self.gate.mean():.4g}"
        return f"Head(map {self.map.shape}, {len(self.received)} tokens, {gate})"


@dataclass(frozen=True, repr=False)
class Xray:
    """Measurements of a model on the first tokens of a text, for each head."""

    name: str
    gate: str
    verdict: str  # summary in words of the metrics on sinks and the largest activation
    figures: Figures
    layer_figures: list[Figures]
    head_figures: list[list[Figures]]
    text: list[str]  # text of each token
    token_losses: np.ndarray  # (T): -log p of the next token; nan if the loss ignores that token
    heads: list[list[Head]]
    sentences: dict[str, str]  # explanation of each metric, by the metric's key
    overrides: dict[str, Any] | None = None
    layer_types: list[str] = field(default_factory=list)  # full_attention, sliding_attention or linear_attention
    not_shown: list[str] = field(default_factory=list)  # measurements that headgate.torch.xray omitted, with reasons
    report: dict[str, Any] = field(default_factory=dict)  # the whole report, as in `headgate xray --json`

    def __repr__(self) -> str:
        heads = "/".join(dict.fromkeys(str(len(layer)) for layer in self.heads))
        return (
            f"Xray({self.name!r}, gate {self.gate}, {len(self.text)} tokens, {len(self.heads)} layers of {heads} heads; "
            f"{_some(self.figures)})"
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the HTML page of `headgate xray --out`. The page is one file and needs no network."""
        page([self]).save(path)

    def frame(self):
        """Returns a pandas.DataFrame with a row for each layer."""
        return _frame(self.layer_figures).rename_axis("layer")

    def head_frame(self):
        """Returns a pandas.DataFrame with a row for each head, indexed by layer and head."""
        return _head_frame(self.head_figures)


@dataclass(frozen=True, repr=False)
class Page:
    """An HTML page that shows X-ray reports side by side and needs no network."""

    html: str

    def __repr__(self) -> str:
        return f"Page({len(self.html)} characters)"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the page to a file."""
        Path(_path("path", path)).write_text(self.html, encoding="utf-8", newline="")


@dataclass(frozen=True, repr=False)
class Curve:
    """Values of one metric over the steps of a run. A value is nan if the metric is undefined at that step."""

    steps: np.ndarray
    values: np.ndarray

    def __repr__(self) -> str:
        if len(self.steps) == 0:
            return "Curve(no steps)"
        ends = [f"{self.values[n]:.4g} at step {self.steps[n]}" for n in (0, -1)]
        return f"Curve({len(self.steps)} steps: {' to '.join(ends)})"


@dataclass(frozen=True, repr=False)
class Run:
    """A run of `headgate train`, as recorded in metrics.jsonl."""

    name: str
    steps: np.ndarray
    tokens: int | None
    spikes: list[int]
    curves: dict[str, Curve]

    def __repr__(self) -> str:
        last = int(self.steps[-1]) if len(self.steps) else 0
        spikes = f"{len(self.spikes)} loss spike{'' if len(self.spikes) == 1 else 's'}"
        some = [f"{key} {curve.values[-1]:.4g}" for key, curve in self.curves.items() if len(curve.values)][:1]
        return f"Run({self.name!r}, step {last}, {', '.join([*some, spikes])}, {len(self.curves)} curves)"

    def frame(self):
        """Returns a pandas.DataFrame with a row for each step and a column for each metric."""
        pandas = require("pandas", "frame()")
        columns = {key: pandas.Series(curve.values, index=curve.steps) for key, curve in self.curves.items()}
        return pandas.DataFrame(columns).rename_axis("step")


def _number(value: float | None) -> float:
    """Converts a number from a report's JSON to a float. null becomes nan."""
    return math.nan if value is None else float(value)


def _head(found: Mapping[str, Any], size: int) -> Head:
    cells = _bytes(found["map"])
    whole: np.ndarray = np.zeros((size, size), np.float32)
    whole[np.tril_indices(size)] = cells**2
    histogram = found["gate_histogram"]
    return Head(
        map=whole,
        received=_bytes(found["received"]) ** 2,
        gate=_bytes(found["gate"]),
        gate_histogram=None if histogram is None else np.array(histogram),
        top_keys=[(int(token), _number(weight)) for token, weight in found["top_keys"]],
        singular_values=np.array([_number(value) for value in found["singular_values"]]),
    )


def _xray_of(report: dict[str, Any]) -> Xray:
    """Converts the first model of a report to an Xray. The dict has the keys of `headgate xray --json`."""
    found = report["models"][0]
    losses = [_number(loss) for loss in found["token_losses"]]
    return Xray(
        name=found["name"],
        gate=found["gate"],
        verdict=found["verdict"],
        figures=found["figures"],
        layer_figures=found["layer_figures"],
        head_figures=found["head_figures"],
        text=found["text"],
        token_losses=np.array(losses, np.float32),
        heads=[[_head(head, found["map_size"]) for head in layer] for layer in found["heads"]],
        sentences={figure["key"]: figure["sentence"] for figure in report["figures"]},
        overrides=found["overrides"],
        layer_types=found["layer_types"],
        not_shown=found.get("not_shown", []),
        report=report,
    )


class Model:
    """A loaded model."""

    name: str
    gate: str
    parameters: int
    layers: int
    heads: int
    kv_heads: int
    dim: int
    vocab: int
    reads_bytes: bool  # tokens are bytes, so the model needs no tokenizer

    def __init__(self, path: str | os.PathLike[str]):
        self._loaded = _models().load(_path("path", path))
        for key, value in json.loads(self._loaded.facts()).items():
            setattr(self, key, value)

    def __repr__(self) -> str:
        return f"Model({self.name!r}, {self.layers} layers of {self.heads} heads, gate {self.gate})"

    def eval(
        self,
        text: str | os.PathLike[str],
        *,
        metrics: Sequence[str] = (),
        tokens: int | Literal["all"] | None = None,
        seq_len: int | None = None,
        heads: bool = False,
        cache_dtype: Literal["i8"] | None = None,
        cache_first: int | None = None,
        activations: Sequence[str] = (),
        against: Model | None = None,
        threads: int | None = None,
    ) -> Evaluation:
        """Evaluates the model on a text, like `headgate eval --json`: loss, sinks, activations and gates.

        Args:
          metrics: names of metrics. An empty list selects the default ones.
          tokens: the maximum number of tokens, or "all". None means 65536.
          seq_len: number of tokens of a sequence.
          heads: whether to also return the metrics of each head.
          cache_dtype: "i8" also evaluates the model with keys and values rounded to int8. `figures["cache"]` of the
            result compares both.
          cache_first: number of first tokens whose keys and values cache_dtype does not round. None means 0.
          activations: "i8-token", "i8-tensor" or "i8-tensor-keep-first" also evaluate the model with the inputs of its
            matrix products rounded to int8 (simulated). `figures["activations"]` has a comparison for each.
          against: another model, which must read the same tokens. `figures["against"]` compares both models.
          threads: 1 to headgate.max_threads(). None means headgate.default_threads().
        """
        if against is not None and not isinstance(against, Model):
            raise _refusal("against", against, "a Model, as headgate.load returns")
        with _paths(text) as data:
            found = json.loads(
                _models().eval(
                    self._loaded,
                    data,
                    metrics,
                    tokens=tokens,
                    seq_len=seq_len,
                    heads=heads,
                    cache_dtype=cache_dtype,
                    cache_first=cache_first,
                    activations=activations,
                    against=None if against is None else against._loaded,
                    threads=threads,
                )
            )
        layers = found.pop("layers")
        return Evaluation(
            heads=[layer.pop("heads", []) for layer in layers],
            layers=layers,
            tokens=found.pop("tokens"),
            seq_len=found.pop("seq_len"),
            backcopy=found.pop("backcopy", None),
            figures=found,
        )

    def xray(
        self,
        text: str | os.PathLike[str],
        *,
        tokens: int = 2048,
        map_cells: int = 96,
        override: str | None = None,
        override_tokens: int = 256,
        threads: int | None = None,
    ) -> Xray:
        """Returns the report of `headgate xray --json`: maps, gates, sinks and ranks of every head on a text.

        Args:
          tokens: the maximum number of tokens, from the start of the text.
          map_cells: the maximum number of cells per side of a head's map.
          override: "heads" or "layers" also measures how the loss changes if gates are closed, open or at their mean.
            "heads" changes the gates of one head at a time, "layers" those of all heads of a layer.
          override_tokens: like `tokens`, for the measurements of `override`.
          threads: 1 to headgate.max_threads(). None means headgate.default_threads().
        """
        with _paths(text) as files:
            report = json.loads(
                _models().xray(self._loaded, files, tokens, map_cells, override, override_tokens, threads)
            )
        if isinstance(text, str):
            report["text"] = "text"  # replaces the path of the temporary file that held the text
        return _xray_of(report)


def load(path: str | os.PathLike[str]) -> Model:
    """Loads a model from a run of `headgate train`, a Hugging Face directory (also in the Hub's cache), or a GGUF file.

    Raises FileNotFoundError if there is no model at `path`, and ValueError if the model cannot be read. The message has
    one line and begins with the path.
    """
    return Model(path)


def _not_json(place: str, value: Any) -> tuple[str, Any] | None:
    """Returns the place and the value of the first part of `value` that JSON cannot hold. None if it can hold all."""
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                return f"a key of {place}", key
        parts: Iterable[tuple[str, Any]] = ((f"{place}.{key}", part) for key, part in value.items())
    elif isinstance(value, (list, tuple)):
        parts = ((f"{place}[{n}]", part) for n, part in enumerate(value))
    else:
        fits = (
            value is None or isinstance(value, (bool, int, str)) or (isinstance(value, float) and math.isfinite(value))
        )
        return None if fits else (place, value)
    return next((found for at, part in parts if (found := _not_json(at, part)) is not None), None)


def _json_of(name: str, report: dict[str, Any]) -> str:
    """Converts a report to JSON. Raises ValueError, which names the place, if a value is not one of JSON."""
    try:
        if (found := _not_json(name, report)) is None:
            return json.dumps(report, allow_nan=False)
    except RecursionError:
        raise ValueError(f"{name} is nested too deeply, or contains itself") from None
    place, value = found
    wanted = "None, a bool, a finite number, a str, a list or a dict of Python"
    raise ValueError(f"{place} is {reprlib.repr(value)} ({type(value).__name__}) but must be {wanted}")


def page(reports: Sequence[Xray | Mapping[str, Any] | str]) -> Page:
    """Puts the models of all reports side by side on one page, like `headgate xray --from`.

    A report is the result of Model.xray, a dict with the keys of `headgate xray --json`, or its JSON text. If models
    have the same name, later ones get a number: "name (2)". Raises ValueError, which names the invalid part, if a
    report is invalid.
    """
    if isinstance(reports, (str, Mapping, Xray)) or not isinstance(reports, Iterable):
        raise _refusal("reports", reports, "a list of reports")
    texts = []
    for n, report in enumerate(reports):
        if isinstance(report, Xray):
            texts.append(_json_of(f"reports[{n}]", report.report))
        elif isinstance(report, Mapping):
            texts.append(_json_of(f"reports[{n}]", dict(report)))
        elif isinstance(report, str):
            texts.append(report)
        else:
            raise _refusal(f"reports[{n}]", report, "an Xray, a dict or JSON text")
    if not texts:
        raise ValueError("reports is empty")
    return Page(_models().page(texts))


def _listed(key: str, value: Any) -> Any:
    """Converts a value of a problem to JSON: nested lists, a number, a str or a bool."""
    listed = value.tolist() if hasattr(value, "tolist") else value
    try:
        json.dumps(listed)
    except (TypeError, ValueError):
        raise _refusal(f"problem: {key}", value, "an array, nested lists, a number, a str or a bool") from None
    return listed


def explain(problem: Mapping[str, Any] | str | os.PathLike[str]) -> dict[str, Any]:
    """Computes the steps of a small attention problem in float64, like `headgate explain --json`. The steps are Q, K,
    V, scores, weights, attention, gate and output.

    `problem` is a dict with the keys that `headgate explain --help` describes, or the path of a JSON file with them.
    Matrices in a dict are nested lists or arrays.
    """
    if isinstance(problem, (str, os.PathLike)):
        text = _models().explain(os.fspath(problem))
    elif not isinstance(problem, Mapping):
        raise _refusal("problem", problem, "a dict, or the path of a JSON file")
    else:
        with _written("problem", json.dumps({key: _listed(key, value) for key, value in problem.items()})) as path:
            text = _models().explain(path)
    return {name: np.array(value) for name, value in json.loads(text).items()}


def runs(*directories: str | os.PathLike[str]) -> list[Run]:
    """Reads the metrics that `headgate train` recorded in each directory. If a directory has no metrics.jsonl, reads
    the runs in its subdirectories.
    """
    paths: list[str] = []
    for directory in (Path(_path("directory", given)) for given in directories):
        inner = sorted(path.parent for path in directory.glob("*/metrics.jsonl"))
        paths += map(str, inner if inner and not (directory / "metrics.jsonl").exists() else [directory])
    return [
        Run(
            name=run["name"],
            steps=np.array(run["steps"]),
            tokens=run["tokens"],
            spikes=run["spikes"],
            curves={
                key: Curve(
                    np.array(curve["steps"]), np.array([math.nan if v is None else v for v in curve["values"]], float)
                )
                for key, curve in run["curves"].items()
            },
        )
        for run in json.loads(_models().runs(paths))
    ]
