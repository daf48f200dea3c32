# SPDX-License-Identifier: Apache-2.0
"""Holds what figures read of one attention call, one call of linear attention, or one block's output."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from .call import Call, Geometry


@dataclass
class AttentionSample:
    """An attention call with its statistics. `gate` (B,Hq,T,1|Dv) is the gate of its outputs, None if unknown."""

    call: Call
    geometry: Geometry
    statistics: dict[str, Tensor]  # of statistics_of()
    gate: Tensor | None = None
    _found: dict[str, Any] = field(default_factory=dict)

    def once(self, name: str, compute: Callable[[], Any]) -> Any:
        if name not in self._found:
            self._found[name] = compute()
        return self._found[name]

    @property
    def lse_or_0(self) -> Tensor:
        """The log-sum-exp (B,Hq,T), 0 in rows that see no key."""
        lse = self.statistics["lse"]
        return self.once("lse", lambda: lse.masked_fill(lse.isinf(), 0.0))

    def norm_ratio(self, x: Tensor | None) -> tuple[Tensor, Tensor] | None:
        """Returns, for each head of x (B,H,T,D), the sum over sequences of ‖x₀‖ / mean ‖x_j‖, and the number of
        sequences. None if the rows of x do not stand at the queries."""
        if x is None or self.call.cross or x.shape[2] != self.call.q.shape[2]:
            return None
        norms = x.double().norm(dim=-1)
        counted = self.geometry.counted.expand(len(x), -1)[:, None].expand_as(norms)
        first = self.geometry.first.expand(len(x), x.shape[2])[:, None].expand_as(norms)
        total = torch.zeros_like(norms).scatter_add(-1, first, norms * counted)
        count = torch.zeros_like(norms).scatter_add(-1, first, counted.double())
        some = count > 0
        ratio = torch.where(some, norms * count / total, 0.0)
        return ratio.sum((0, 2)), some.sum((0, 2))


@dataclass
class LinearSample:
    """A call of linear attention. decay, the logarithm, is (B,Hv,T,1|D), beta (B,Hv,T)."""

    decay: Tensor
    beta: Tensor
    statistics: dict[str, Tensor]  # (B,Hv,T)
    real: Tensor  # (B,T) bool: the token is not padding
    but_first: Tensor  # (B,T) bool: neither padding nor the first token of a sequence


@dataclass
class BlockSample:
    """Output x (B,T,C) of a block. `real` (b,T) is false at padding, `first` (b,T) true at first tokens."""

    x: Tensor
    real: Tensor | None = None
    first: Tensor | None = None

    def powers(self, counted: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the sums (4) of x, x², x³ and x⁴ over channels and counted (b,T) tokens, and the number of entries."""
        x = self.x.double() * counted[..., None]
        square = x.square()
        sums = torch.stack([x.sum(), square.sum(), (square * x).sum(), square.square().sum()])
        return sums, counted.expand(self.x.shape[:2]).sum() * self.x.shape[-1]

    def largest(self) -> tuple[Tensor, Tensor]:
        """Returns the largest absolute value, and (sequence, token, channel) as a tensor of 3 integers."""
        size = self.x.abs()
        if self.real is not None:
            size = size.masked_fill(~self.real[..., None].expand_as(size), -math.inf)
        at = size.flatten().argmax()
        T, C = self.x.shape[-2:]
        return size.take(at).double(), torch.stack((at // (T * C), at // C % T, at % C))
