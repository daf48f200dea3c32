# SPDX-License-Identifier: Apache-2.0
"""Converts masks of attention calls to rules: causality, a window, a remaining mask, and a bias.

Kernels skip the keys that causality or a window hides. This halves the cost of causal attention.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor


class Rules(NamedTuple):
    """Describes a mask by the fields of AttentionCall with the same names.

    `mask` holds the part of the mask that the other fields cannot express. It is (B|1,1,1,S) if that part is the same
    for all queries and heads.
    """

    causal: bool = False
    window: int | None = None
    mask: Tensor | None = None
    bias: Tensor | None = None


def split_bias(mask: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """Splits an additive mask into a bool mask, true for visible keys, and a finite bias.

    A key is hidden if its value is at most finfo(dtype).min / 2. On CPUs, returns None for a mask that hides nothing,
    and for a bias of zeros.
    """
    visible = mask > torch.finfo(mask.dtype).min / 2
    bias = mask.masked_fill(~visible, 0)
    if mask.device.type != "cpu":
        return visible, bias
    return None if visible.all() else visible, bias if bias.any() else None


def find_rules(visible: Tensor | None, bias: Tensor | None, T: int, S: int, window: int | None) -> Rules:
    """Finds causality and a window in a mask `visible` (B|1,H|1,T|1,S), which is true for visible keys.

    Reads the elements of masks on CPUs. Returns masks on other devices unchanged.
    """
    if visible is None or visible.shape[-2] == 1 or visible.device.type != "cpu" or visible.shape[1] != 1 or T > S:
        return Rules(mask=visible, bias=bias)
    if torch.equal(visible, visible[:, :, :1].expand_as(visible)) and T > 1:
        return Rules(mask=visible[:, :, :1], bias=bias)
    at = torch.arange(S - T, S, device="cpu")[:, None]
    key = torch.arange(S, device="cpu")
    own = visible.diagonal(S - T, 2, 3)[:, :, None]  # (B,1,1,T)
    before = visible[:, :, -1:, : S - T]
    keys = torch.cat((before, own), -1)
    for width in (None, window):
        near = key <= at
        if width is not None:
            near = near & (key > at - width)
        if torch.equal(visible, near & keys):
            return Rules(True, width, None if keys.all() else keys, bias)
    return Rules(mask=visible, bias=bias)


def _dense(block_mask: Any, T: int, S: int) -> Tensor:
    """Converts a BlockMask on the CPU to a mask (B,H,T,S), true for visible keys."""
    from ..flex import query_blocks

    if tuple(block_mask.seq_lengths) != (T, S):
        raise ValueError(f"the BlockMask is of lengths {tuple(block_mask.seq_lengths)} but query and key have {(T, S)}")
    if block_mask.kv_indices.device.type != "cpu":
        raise ValueError(f"a BlockMask on {block_mask.kv_indices.device} is not read")
    visible = torch.zeros(*block_mask.shape[:2], T, S, dtype=torch.bool)
    for block in query_blocks(block_mask):
        visible[:, :, block.queries, block.keys] = True if block.mask is None else block.mask
    return visible


class MaskCache:
    """Caches the Rules of each mask during a forward pass, in which all layers get the same masks."""

    def __init__(self) -> None:
        self._found: dict[tuple, tuple[Any, Rules]] = {}

    def rules(self, mask: Any, T: int, S: int, window: int | None) -> Rules:
        """Returns the Rules of a mask of one of three types:

        - bool tensor (…,T|1,S): true for visible keys
        - floating-point tensor: added to the scores
        - BlockMask of FlexAttention: converted to a bool tensor
        """
        version = 0 if not isinstance(mask, Tensor) or mask.is_inference() else mask._version
        key = (id(mask), version, T, S, window)
        if key not in self._found:
            given = mask.detach()[..., :S] if isinstance(mask, Tensor) else _dense(mask, T, S)
            given = given.reshape((1,) * (4 - given.dim()) + given.shape)
            visible, bias = (given, None) if given.dtype == torch.bool else split_bias(given)
            self._found[key] = mask, find_rules(visible, bias, T, S, window)
        return self._found[key][1]

    def clear(self) -> None:
        self._found.clear()
