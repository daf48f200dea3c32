# SPDX-License-Identifier: Apache-2.0
"""Writes the metrics of watch() to records of metrics.jsonl, which `headgate compare` and headgate.runs read."""

import json
import math
import os
import reprlib
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .figures import size_of

if TYPE_CHECKING:
    from .handle import Watch

COUNTS = ("tokens",)
MOST_COUNTED = 2**53
"""Largest step and count that readers of metrics.jsonl accept."""
STEP_FIGURES = ("loss", "loss_bits_per_byte", "grad_norm", "lr", "tokens_per_second", "mfu", *COUNTS)
"""Keys of a training step in a record, as in records of `headgate train`."""
EVALUATION_FIGURES = ("loss_nats", "bits_per_byte", "perplexity")
"""Keys of an evaluation in a record, in addition to the metrics of watch()."""
OTHER_NAMES = {"hidden_first_token": "hidden_first_token_share"}
"""Maps names of metrics in watch() to different names in records."""


def _number(name: str, value: Any) -> float | int | None:
    """Converts a value to a number of a record. Converts numbers that are not finite to None, but refuses such counts.

    Raises ValueError for values that readers of metrics.jsonl refuse, and for bools and texts.
    """
    wanted = f"a whole number from 0 to {MOST_COUNTED}" if name in COUNTS else "a number that float64 can hold"
    try:
        plain = value.item() if hasattr(value, "item") else value  # of a tensor, or of NumPy
        if isinstance(plain, (bool, str, bytes, bytearray)):
            raise TypeError
        number = float(plain)
        if name in COUNTS:
            if not (number.is_integer() and 0 <= plain <= MOST_COUNTED):
                raise ValueError
            return int(plain)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise ValueError(f"watch: log: {name} is {reprlib.repr(value)} but must be {wanted}") from None
    return number if math.isfinite(number) else None  # null, as `headgate train` writes it


def _named(row: dict[str, Any]) -> dict[str, Any]:
    found = {OTHER_NAMES.get(key, key): value for key, value in row.items()}
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in found.items()}


def evaluation_of(seen: "Watch") -> dict[str, Any]:
    """Returns the "eval" entry of a record: the metrics of the model and of each layer, measured by a handle."""
    layers, key = seen.layers, "massive_activation"
    found = seen.scalars(by_layer=False)
    rows = [row for row in layers if row.get(key) is not None and row["kind"] != "cross"]
    largest = max(rows, key=lambda row: size_of(row[key]), default={})
    places = {name: place for name, place in largest.items() if name.startswith(f"{key}_")}
    return {**_named({**found, **places}), "layers": [_named(row) for row in layers]}


def record_of(step: Any, figures: dict[str, Any], evaluation: dict[str, Any]) -> dict[str, Any]:
    """Returns the record of a training step: the step, the given values `figures`, and the metrics `evaluation`.

    Raises ValueError for an invalid step, an unknown name in `figures`, and a value that is no number.
    """
    if not isinstance(step, Integral) or isinstance(step, bool) or not 1 <= int(step) <= MOST_COUNTED:
        raise ValueError(
            f"watch: log: step is {reprlib.repr(step)} but must be a whole number from 1 on, at most {MOST_COUNTED}"
        )
    record: dict[str, Any] = {"step": int(step)}
    found = dict(evaluation)
    for name, value in figures.items():
        if name not in STEP_FIGURES + EVALUATION_FIGURES:
            raise ValueError(f"watch: log: '{name}' is none of {', '.join(STEP_FIGURES + EVALUATION_FIGURES)}")
        (record if name in STEP_FIGURES else found)[name] = _number(name, value)
    return {**record, "eval": found} if found else record


class RunLog:
    """Writes the metrics.jsonl of a run's directory, one record per step. The file has each value as soon as it is added."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.path = Path(directory) / "metrics.jsonl"
        self._step = 0
        self._figures: dict[str, Any] = {}
        self._evaluation: dict[str, Any] = {}
        self._last = 0, 0
        """Where the record of this step begins and ends in the file."""

    def add(self, step: Any, figures: dict[str, Any], evaluation: dict[str, Any] | None = None) -> None:
        """Adds values to the record of a step. Appends the record, or rewrites the last one if it is of the same step."""
        evaluation = evaluation or {}
        record_of(step, figures, evaluation)  # refuses wrong values before they join others
        if step != self._step:
            self._step, self._figures, self._evaluation, self._last = step, {}, {}, (0, 0)
        self._figures |= figures
        self._evaluation |= evaluation
        if self._figures or self._evaluation:
            self._write((json.dumps(record_of(step, self._figures, self._evaluation)) + "\n").encode())

    def _write(self, line: bytes) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        begin, end = self._last
        rewrites = end > 0 and self.path.exists() and self.path.stat().st_size == end  # nobody else has appended
        with open(self.path, "r+b" if rewrites else "ab") as file:
            begin = file.seek(begin) if rewrites else file.tell()
            file.write(line)
            file.truncate()
        self._last = begin, begin + len(line)
