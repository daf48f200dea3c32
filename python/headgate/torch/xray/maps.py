# SPDX-License-Identifier: Apache-2.0
"""Averages T × T attention weights to maps of M × M cells, and encodes numbers for the page of an X-ray.

Letters: H heads, T tokens, M cells per side of a map, R queries of a block, S keys of a block.
"""

import base64

import torch
from torch import Tensor

from ..watch.gates import BINS, bins_of

TOP_KEYS = 8


class HeadMaps:
    """Holds the attention maps of a layer, M × M cells for each head.

    Rows stand for queries and columns for keys. Row or column c covers the tokens ⌊cT/M⌋ … ⌊(c+1)T/M⌋ - 1.
    """

    def __init__(self, heads: int, tokens: int, cells: int, device: torch.device) -> None:
        self.size = M = min(tokens, cells)
        begins = torch.arange(M + 1, device=device) * tokens // M
        self.cell_of = torch.repeat_interleave(torch.arange(M, device=device), begins.diff())

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(heads, *shape, dtype=torch.float64, device=device)

        self.sums, self.counts = zeros(M, M), zeros(M, M)
        self.key_sums, self.key_counts = zeros(tokens), zeros(tokens)

    def add(self, at: Tensor, weights: Tensor, visible: Tensor) -> None:
        """Adds the weights (H,R,S) of R queries on the first S tokens.

        `at` holds the R positions of the queries, in ascending order. `visible` (H|1,R,S) is true where a query sees a
        key.
        """
        first, last = int(self.cell_of[at[0]]), int(self.cell_of[at[-1]]) + 1
        rows = self.cell_of[at] - first
        pairs = ((self.sums, self.key_sums, weights), (self.counts, self.key_counts, visible))
        for cells, keys, values in pairs:
            wide = values.double()
            by_row = wide.new_zeros(len(wide), last - first, wide.shape[2]).index_add_(1, rows, wide)
            S = wide.shape[2]
            keys[:, :S] += by_row.sum(1)
            cells[:, first:last].index_add_(2, self.cell_of[:S], by_row.expand(len(cells), -1, -1))

    def triangles(self) -> Tensor:
        """Returns the lower triangles of the maps, row after row, (H, M (M + 1) / 2).

        A cell is the mean weight over its pairs of a query and a key that the query sees.
        """
        row, column = torch.tril_indices(self.size, self.size, device=self.sums.device)
        return _ratio(self.sums, self.counts)[:, row, column]

    def received(self) -> Tensor:
        """Returns the mean weight (H,T) of each key over the queries that see it."""
        return _ratio(self.key_sums, self.key_counts)


def _ratio(sums: Tensor, counts: Tensor) -> Tensor:
    return torch.where(counts > 0, sums / counts, 0.0)


def as_bytes(values: Tensor) -> str:
    """Encodes numbers in [0,1] as bytes, round(255 x), in base64. Clamps other numbers. NaN becomes 0."""
    whole = (values.double().nan_to_num(0.0).clamp(0, 1) * 255 + 0.5).floor()
    return base64.b64encode(whole.to(torch.uint8).cpu().numpy().tobytes()).decode()


def as_roots(values: Tensor) -> str:
    """Encodes the square roots of numbers in [0,1] like as_bytes()."""
    return as_bytes(values.clamp_min(0).sqrt())


def top_keys(received: Tensor) -> list[tuple[int, float]]:
    """Returns (token, weight) of the TOP_KEYS largest elements of `received` (T), in descending order. Equal elements
    are in the order of the tokens.
    """
    values, places = received.cpu().sort(descending=True, stable=True)
    return [(int(token), float(value)) for token, value in zip(places[:TOP_KEYS], values[:TOP_KEYS])]


def histogram(gate: Tensor) -> Tensor:
    """Returns counts (H,20) of gates (H,T,·) in equal bins of [0,1]. Gates outside of [0,1] count in the nearest bin."""
    bins = bins_of(gate).flatten(1)
    counts = torch.zeros(len(gate), BINS, dtype=torch.int64, device=gate.device)
    return counts.scatter_add_(1, bins, torch.ones_like(bins))
