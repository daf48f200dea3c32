# SPDX-License-Identifier: Apache-2.0
"""Writes the metrics of watch() to records of metrics.jsonl, which `headgate compare` and headgate.runs read."""

import json
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ..checks import is_whole
from .figures import size_of

if TYPE_CHECKING:
    from .handle import Watch

COUNTS = ("tokens",)
STEP_FIGURES = ("loss", "loss_bits_per_byte", "grad_norm", "lr", "tokens_per_second", "mfu", *COUNTS)
"""Keys of a training step in a record, as in records of `headgate train`."""
EVALUATION_FIGURES = ("loss_nats", "bits_per_byte", "perplexity")
"""Keys of an evaluation in a record, in addition to the metrics of watch()."""
OTHER_NAMES = {"hidden_first_token": "hidden_first_token_share"}
"""Maps names of metrics in watch() to different names in records."""


def _number(name: str, value: Any) -> float | int | None:
    try:
        number = float(value.detach() if isinstance(value, Tensor) else value)
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(f"watch: log: {name} is {value!r} but must be a number") from None
    if not math.isfinite(number):
        return None  # null, as `headgate train` writes for numbers that are not finite
    return int(number) if name in COUNTS else number


def _named(row: dict[str, Any]) -> dict[str, Any]:
    found = {OTHER_NAMES.get(key, key): value for key, value in row.items()}
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in found.items()}


def evaluation_of(seen: "Watch") -> dict[str, Any]:
    """Returns the "eval" entry of a record: the metrics of the model and of each layer, measured by a handle."""
    layers, key = seen.layers, "massive_activation"
    found = seen.scalars(by_layer=False)
    rows = [row for row in layers if key in row and row["kind"] != "cross"]
    largest = max(rows, key=lambda row: size_of(row[key]), default={})
    places = {name: place for name, place in largest.items() if name.startswith(f"{key}_")}
    return {**_named({**found, **places}), "layers": [_named(row) for row in layers]}


def record_of(step: Any, figures: dict[str, Any], evaluation: dict[str, Any]) -> dict[str, Any]:
    """Returns the record of a training step: the step, the given values `figures`, and the metrics `evaluation`.

    Raises ValueError for an invalid step, an unknown name in `figures`, and a value that is no number.
    """
    if not is_whole(step) or step < 1:
        raise ValueError(f"watch: log: step is {step!r} but must be a whole number from 1 on")
    record: dict[str, Any] = {"step": step}
    found = dict(evaluation)
    for name, value in figures.items():
        if name not in STEP_FIGURES + EVALUATION_FIGURES:
            raise ValueError(f"watch: log: '{name}' is none of {', '.join(STEP_FIGURES + EVALUATION_FIGURES)}")
        (record if name in STEP_FIGURES else found)[name] = _number(name, value)
    return {**record, "eval": found} if found else record


class RunLog:
    """Writes the metrics.jsonl of a run's directory. Collects the values of a step, and writes one record per step."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.path = Path(directory) / "metrics.jsonl"
        self._step = 0
        self._figures: dict[str, Any] = {}
        self._evaluation: dict[str, Any] = {}

    def add(self, step: int, figures: dict[str, Any], evaluation: dict[str, Any] | None = None) -> None:
        """Adds values to the record of a step. If the step is new, first writes the record of the previous step."""
        if step != self._step:
            self.flush()
        self._step = step
        self._figures |= figures
        self._evaluation |= evaluation or {}

    def flush(self) -> None:
        """Appends the collected record to the file."""
        if self._figures or self._evaluation:
            line = json.dumps(record_of(self._step, self._figures, self._evaluation))
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(line + "\n")
        self._figures, self._evaluation = {}, {}
