# SPDX-License-Identifier: Apache-2.0
"""Sums the metrics of a layer over calls, micro-batches and ranks. Nothing is copied from a device before scalars()."""

from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass
class LayerSums:
    """Holds the metrics of a layer by key, as tensors (H) with an element per head.

    A mean is stored as the sum of its values in `sums` and their number in `counts`. A maximum is stored in `maxima`.
    """

    kind: str
    sums: dict[str, Tensor] = field(default_factory=dict)
    counts: dict[str, Tensor] = field(default_factory=dict)
    maxima: dict[str, Tensor] = field(default_factory=dict)
    places: dict[str, Tensor] = field(default_factory=dict)  # (H,3): sequence, token and channel of each maximum
    histogram: Tensor | None = None  # (H,20)
    hidden: Tensor | None = None  # number of queries that do not see the first token of their sequence

    def add(self, key: str, total: Tensor, count: Tensor) -> None:
        """Adds sums (H) of values. `count` is the number of values in each sum, (H) or a scalar."""
        count = count.double().expand_as(total)
        if key in self.sums:
            total, count = self.sums[key] + total, self.counts[key] + count
        self.sums[key], self.counts[key] = total, count

    def add_queries(self, key: str, values: Tensor, counted: Tensor) -> None:
        """Adds the values (B,H,T) of the queries for which `counted` (B|1,T) is true."""
        kept = counted.expand(values.shape[0], -1)[:, None]
        self.add(key, torch.where(kept, values.double(), 0.0).sum((0, 2)), kept.sum())

    def add_maximum(self, key: str, values: Tensor, place: Tensor | None = None) -> None:
        """Updates the maxima with new values (H). `place` (H,3) holds the sequence, token and channel of each value."""
        values = values.double()
        if key in self.maxima:
            old = self.maxima[key]
            if place is not None:  # NaN exceeds all numbers; of equal maxima, the old one is kept
                larger = ~old.isnan() & ~(values <= old)
                place = torch.where(larger[:, None], place, self.places[key])
            values = torch.maximum(values, old)
        self.maxima[key] = values
        if place is not None:
            self.places[key] = place

    def add_hidden(self, count: Tensor) -> None:
        self.hidden = count if self.hidden is None else self.hidden + count

    def add_histogram(self, counts: Tensor) -> None:
        self.histogram = counts if self.histogram is None else self.histogram + counts

    def merge(self, other: "LayerSums") -> None:
        """Adds the sums of another rank. All tensors are on CPUs."""
        for key, total in other.sums.items():
            self.add(key, total, other.counts[key])
        for key, values in other.maxima.items():
            self.add_maximum(key, values, other.places.get(key))
        if other.histogram is not None:
            self.add_histogram(other.histogram)
        if other.hidden is not None:
            self.add_hidden(other.hidden)

    def on_cpu(self) -> "LayerSums":
        def moved(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
            return {key: tensor.cpu() for key, tensor in tensors.items()}

        rest = [None if x is None else x.cpu() for x in (self.histogram, self.hidden)]
        return LayerSums(self.kind, *map(moved, (self.sums, self.counts, self.maxima, self.places)), *rest)
