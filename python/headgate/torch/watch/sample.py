# SPDX-License-Identifier: Apache-2.0
"""Holds samples from which metrics are computed: attention calls, linear attention calls, and outputs of blocks."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from .call import AttentionCall, Geometry

BLOCK_ELEMENTS = 1 << 20
"""Number of elements of token vectors that are rounded at the same time: 8 MiB in float64."""


@dataclass
class AttentionSample:
    """An attention call with its statistics. `gate` (B,Hq,T,1|Dv) multiplies the outputs. None means no known gate."""

    call: AttentionCall
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
        """The log-sum-exp (B,Hq,T), replaced by 0 in rows that see no key."""
        lse = self.statistics["lse"]
        return self.once("lse", lambda: lse.masked_fill(lse.isinf(), 0.0))

    def _at_queries(self, x: Tensor | None) -> Tensor | None:
        """Returns x (B,H,T,D) if the call has one key for each query. Otherwise returns None, as in calls that read a
        cache. Also returns None in cross-attention.
        """
        return None if x is None or self.call.cross or self.call.k.shape[2] != self.call.q.shape[2] else x

    def vectors(self, name: str) -> "TokenVectors | None":
        """Returns the keys ("k") or values ("v") of the call.

        Returns None in cross-attention, and if there is not one vector for each query.
        """
        x = self._at_queries(getattr(self.call, name))
        if x is None:
            return None
        return self.once(name, lambda: TokenVectors(x, self.geometry.not_padding, self.geometry.after_first))

    def norm_ratio(self, x: Tensor | None) -> tuple[Tensor, Tensor] | None:
        """Returns, for each head of x (B,H,T,D), the sum over sequences of ‖x₀‖ / mean ‖x_j‖, and the number of
        sequences.

        x₀ belongs to the first token of a sequence, x_j to its other tokens. Returns None if x is None, in
        cross-attention, and if the call does not have one key for each query.
        """
        x = self._at_queries(x)
        if x is None:
            return None
        norms = x.double().norm(dim=-1)
        counted = self.geometry.after_first.expand(len(x), -1)[:, None].expand_as(norms)
        first = self.geometry.first.expand(len(x), x.shape[2])[:, None].expand_as(norms)
        total = torch.zeros_like(norms).scatter_add(-1, first, torch.where(counted, norms, 0.0))
        count = torch.zeros_like(norms).scatter_add(-1, first, counted.double())
        some = count > 0
        ratio = torch.where(some, norms * count / total, 0.0)
        return ratio.sum((0, 2)), some.sum((0, 2))


@dataclass
class LinearSample:
    """A linear attention call. decay, (B,Hv,T,1|D), is the logarithm of the decay. beta is (B,Hv,T)."""

    decay: Tensor
    beta: Tensor
    statistics: dict[str, Tensor]  # (B,Hv,T)
    not_padding: Tensor  # (B,T) bool
    after_first: Tensor  # (B,T) bool: whether the token is no padding and not the first of its sequence


@dataclass
class TokenVectors:
    """Vectors x (B,H,T,D) of tokens: keys, values, or the output of a block (where H is 1).

    `not_padding` (B|1,T) is false at padding. `after_first` (B|1,T) is also false at the first token of each sequence.
    """

    x: Tensor
    not_padding: Tensor
    after_first: Tensor

    def powers(self, counted: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the sums (4) of x, x², x³ and x⁴ over the tokens for which `counted` (B|1,T) is true. Also returns the
        number of entries.
        """
        B, H, T, D = self.x.shape
        x = torch.where(counted[:, None, :, None], self.x.double(), 0.0)
        square = x.square()
        sums = torch.stack([x.sum(), square.sum(), (square * x).sum(), square.square().sum()])
        return sums, counted.expand(B, T).sum() * (H * D)

    @cached_property
    def _largest(self) -> Tensor:
        """The largest absolute value (B,H,T) of each vector."""
        return self.x.abs().amax(-1).double()

    def largest(self) -> tuple[Tensor, Tensor]:
        """Returns the largest absolute value of each head (H), and its sequence, token and channel (H,3)."""
        H, T = self.x.shape[1:3]
        found = self._largest.masked_fill(~self.not_padding[:, None], -math.inf).transpose(0, 1)
        at = found.flatten(1).argmax(-1)
        head, sequence, token = torch.arange(H, device=at.device), at // T, at % T
        channel = self.x[sequence, head, token].abs().argmax(-1)
        return found[head, sequence, token], torch.stack((sequence, token, channel), -1)

    def _squared_distances(self, scale: Tensor | None = None) -> Tensor:
        """Returns ‖x - x̂‖² (B,H,T) in f64, where x̂ = s · round(x / s) and s (B|1,H,T|1) is `scale`.

        Without a scale, x̂ = 0.
        """
        B, H, T, D = self.x.shape
        scales = None if scale is None else torch.where(scale == 0, 1.0, scale).expand(B, H, T)[..., None]
        size = max(1, BLOCK_ELEMENTS // (B * H * D))
        found = torch.empty(B, H, T, dtype=torch.float64, device=self.x.device)
        for begin in range(0, T, size):
            tokens = slice(begin, begin + size)
            part = self.x[:, :, tokens].to(torch.float64, copy=True)
            if scales is not None:
                s = scales[:, :, tokens]
                part -= (part / s).round_().mul_(s)
            found[:, :, tokens] = part.square_().sum(-1)
        return found

    def _errors(self, scaled: Tensor) -> Tensor:
        """Returns the squared errors (B,H,T) of rounding to int8 with one scale for each sequence and head.

        The scale is the largest absolute value in the tokens for which `scaled` (B|1,T) is true, divided by 127.
        """
        sizes = torch.where(scaled[:, None], self._largest, 0.0)
        sequence = (self.not_padding & ~self.after_first).cumsum(-1)[:, None].expand_as(sizes)  # index of the sequence
        largest = sizes.new_zeros(*sizes.shape[:2], sizes.shape[2] + 1).scatter_reduce(-1, sequence, sizes, "amax")
        return self._squared_distances(largest.gather(-1, sequence) / 127)

    @cached_property
    def errors(self) -> Tensor:
        """The squared errors (B,H,T) of rounding to int8 with one scale for each sequence and head."""
        return self._errors(self.not_padding)

    @cached_property
    def errors_without_first(self) -> Tensor:
        """Like `errors`, but the first token of each sequence does not affect the scale."""
        return self._errors(self.after_first)

    @cached_property
    def errors_per_token(self) -> Tensor:
        """The squared errors (B,H,T) of rounding to int8 with a scale for each vector."""
        return self._squared_distances(self._largest / 127)

    @cached_property
    def _squares(self) -> Tensor:
        return self._squared_distances()

    def relative(self, errors: Tensor, counted: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the sums (H) of `errors` (B,H,T) and of ‖x‖² over the tokens for which `counted` (B|1,T) is true."""
        error, square = (torch.where(counted[:, None], x, 0.0).sum((0, 2)) for x in (errors, self._squares))
        return error, square
