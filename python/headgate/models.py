# SPDX-License-Identifier: Apache-2.0
"""Models that `headgate` reads, what they do on a text, worked problems, and runs of `headgate train`.

A text is a str, or a pathlib.Path of a file or directory. Reports are those of the command line: docs/XRAY.md and
docs/TRAINING.md say what each figure means.
"""

from __future__ import annotations

import base64
import contextlib
import json
import math
import os
import tempfile
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Iterator, Mapping, Sequence

import numpy as np

Figures = dict[str, "float | None"]


@cache
def _models():
    """The extension module, which needs more libraries than the operation."""
    from . import _models as module

    return module


@contextlib.contextmanager
def _paths(text: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> Iterator[list[str]]:
    """The files of a text: those that are given, or one for the time of the call that holds a str."""
    if isinstance(text, os.PathLike):
        yield [os.fspath(text)]
    elif isinstance(text, str):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "text"
            path.write_text(text, encoding="utf-8", newline="")
            yield [str(path)]
    else:
        raise TypeError(f"text is a {type(text).__name__} but must be a str or a pathlib.Path")


def _frame(rows: Any):
    import pandas

    return pandas.DataFrame(rows)


def _bytes(text: str | None) -> np.ndarray | None:
    """Base64 of bytes as numbers of [0,1]."""
    return None if text is None else np.frombuffer(base64.b64decode(text), np.uint8).astype(np.float32) / 255


@dataclass(frozen=True)
class Evaluation:
    """Figures of a model on a text, by their keys; None where the model or the text has no such figure."""

    figures: Figures
    layers: list[Figures]
    heads: list[list[Figures]]  # of each layer; empty lists where they were not asked for
    tokens: int
    backcopy: Figures | None = None  # by trigger, of tasks that have triggers

    def frame(self):
        """Layers as rows of a pandas.DataFrame."""
        return _frame(self.layers).rename_axis("layer")

    def head_frame(self):
        """Heads as rows, by layer and head."""
        rows = [{"layer": l, "head": h, **f} for l, heads in enumerate(self.heads) for h, f in enumerate(heads)]
        return _frame(rows).set_index(["layer", "head"])


@dataclass(frozen=True)
class Head:
    """What an X-ray keeps of a head over T tokens: weights to a 255th of their root, gates to a 255th."""

    map: np.ndarray  # (M,M): the mean weight of a query's cell (row) on a key's; 0 above the diagonal
    received: np.ndarray  # (T): the mean weight that a token has from those that see it
    gate: np.ndarray | None  # (T): mean over features
    gate_histogram: np.ndarray | None  # counts in the twentieths of [0,1]
    top_keys: list[tuple[int, float]]
    singular_values: np.ndarray  # of W_v W_o


@dataclass(frozen=True)
class Xray:
    """A model on the first tokens of a text, head by head."""

    name: str
    gate: str
    figures: Figures
    layer_figures: list[Figures]
    head_figures: list[list[Figures]]
    text: list[str]  # what each token adds
    token_losses: np.ndarray  # (T): -log p of the token that follows; nan where it does not count
    heads: list[list[Head]]
    sentences: dict[str, str]  # what each figure means
    overrides: dict[str, Any] | None = None
    report: dict[str, Any] = field(default_factory=dict, repr=False)  # all of it, as `headgate xray --json` has it

    def frame(self):
        """Layers as rows of a pandas.DataFrame."""
        return _frame(self.layer_figures).rename_axis("layer")

    def head_frame(self):
        """Heads as rows, by layer and head."""
        rows = [{"layer": l, "head": h, **f} for l, of in enumerate(self.head_figures) for h, f in enumerate(of)]
        return _frame(rows).set_index(["layer", "head"])


@dataclass(frozen=True)
class Curve:
    """A figure over the steps of a run; nan where a record has none."""

    steps: np.ndarray
    values: np.ndarray


@dataclass(frozen=True)
class Run:
    """What metrics.jsonl says of a run of `headgate train`."""

    name: str
    steps: np.ndarray
    tokens: int | None
    spikes: list[int]
    curves: dict[str, Curve]

    def frame(self):
        """Steps as rows of a pandas.DataFrame, figures as columns."""
        import pandas

        columns = {key: pandas.Series(curve.values, index=curve.steps) for key, curve in self.curves.items()}
        return pandas.DataFrame(columns).rename_axis("step")


def _head(found: Mapping[str, Any], size: int) -> Head:
    cells = _bytes(found["map"])
    whole = np.zeros((size, size), np.float32)
    whole[np.tril_indices(size)] = cells**2
    histogram = found["gate_histogram"]
    return Head(
        map=whole,
        received=_bytes(found["received"]) ** 2,
        gate=_bytes(found["gate"]),
        gate_histogram=None if histogram is None else np.array(histogram),
        top_keys=[(int(token), float(weight)) for token, weight in found["top_keys"]],
        singular_values=np.array(found["singular_values"]),
    )


class Model:
    """A model that `headgate` has read."""

    name: str
    gate: str
    parameters: int
    layers: int
    heads: int
    kv_heads: int
    dim: int
    vocab: int
    reads_bytes: bool  # its tokens are bytes, not a tokenizer's

    def __init__(self, path: str | os.PathLike[str]):
        self._loaded = _models().load(os.fspath(path))
        for key, value in json.loads(self._loaded.facts()).items():
            setattr(self, key, value)

    def __repr__(self) -> str:
        return f"Model({self.name!r}, {self.layers} layers of {self.heads} heads, gate {self.gate})"

    def eval(
        self,
        text: str | os.PathLike[str],
        *,
        metrics: Sequence[str] = (),
        tokens: int | None = None,
        seq_len: int | None = None,
        heads: bool = False,
        threads: int = 0,
    ) -> Evaluation:
        """What `headgate eval --json` prints: loss, sinks, activations and gates on a text, at most `tokens` of it in
        sequences of `seq_len`. metrics: names; none for the usual ones. heads: figures of each head too."""
        with _paths(text) as data:
            found = json.loads(
                _models().evaluate(
                    self._loaded, data, list(metrics), tokens=tokens, seq_len=seq_len, heads=heads, threads=threads
                )
            )
        layers = found.pop("layers")
        return Evaluation(
            heads=[layer.pop("heads", []) for layer in layers],
            layers=layers,
            tokens=found.pop("tokens"),
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
        threads: int = 0,
    ) -> Xray:
        """What `headgate xray --json` writes: maps, gates, sinks and ranks of every head on the first tokens of a text.
        override: "heads" or "layers", to measure what each is worth too."""
        with _paths(text) as files:
            report = json.loads(
                _models().xray(self._loaded, files, tokens, map_cells, override, override_tokens, threads)
            )
        found = report["models"][0]
        losses = [math.nan if loss is None else loss for loss in found["token_losses"]]
        return Xray(
            name=found["name"],
            gate=found["gate"],
            figures=found["figures"],
            layer_figures=found["layer_figures"],
            head_figures=found["head_figures"],
            text=found["text"],
            token_losses=np.array(losses, np.float32),
            heads=[[_head(head, found["map_size"]) for head in layer] for layer in found["heads"]],
            sentences={figure["key"]: figure["sentence"] for figure in report["figures"]},
            overrides=found["overrides"],
            report=report,
        )


def load(path: str | os.PathLike[str]) -> Model:
    """The model in a run of `headgate train`, a directory of Hugging Face's, also in the Hub's cache, or a GGUF file.
    Raises ValueError, in one line that begins with the path, on what cannot be read."""
    return Model(path)


def explain(problem: Mapping[str, Any] | str | os.PathLike[str]) -> dict[str, Any]:
    """The steps of a small attention problem in float64, those of `headgate explain --json`: Q, K, V, scores, weights,
    attention, gate, output. The problem is a dict of the keys that `headgate explain --help` describes, whose matrices
    are nested lists or arrays, or the path of such a JSON file."""
    if isinstance(problem, (str, os.PathLike)):
        text = _models().explain(os.fspath(problem))
    else:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "problem.json"
            path.write_text(json.dumps({k: getattr(v, "tolist", lambda v=v: v)() for k, v in problem.items()}))
            try:
                text = _models().explain(str(path))
            except ValueError as error:
                raise ValueError(str(error).replace(str(path), "problem")) from None
    return {name: np.array(value) for name, value in json.loads(text).items()}


def runs(*directories: str | os.PathLike[str]) -> list[Run]:
    """What was recorded of runs of `headgate train`; of a directory without metrics.jsonl, of the runs in it."""
    paths: list[str] = []
    for directory in map(Path, directories):
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
