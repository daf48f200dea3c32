# SPDX-License-Identifier: Apache-2.0
"""Converts lists of visible keys, as models with an index produce them, to boolean masks."""

import torch
from torch import Tensor

from .checks import shape_of


def _listed(what: str, name: str, listed: Tensor, size: int) -> Tensor:
    """Converts lists of indices (…,K) to bools (…,size), true at each listed index. Negative entries are ignored."""
    if listed.dtype not in (torch.int32, torch.int64):
        raise ValueError(f"{what}: {name} is {listed.dtype} but must be int32 or int64")
    if not torch.compiler.is_compiling() and bool((listed >= size).any()):
        raise ValueError(f"{what}: {name} has entry {int(listed.max())} but must be below {size}")
    found = torch.zeros(*listed.shape[:-1], size + 1, dtype=torch.bool, device=listed.device)
    # Negative entries are written to an extra column, which is cut off.
    return found.scatter_(-1, torch.where(listed < 0, size, listed).long(), True)[..., :size]


def mask_of_keys(what: str, name: str, keys: Tensor, queries: Tensor, key_count: int) -> Tensor:
    """Returns the mask (B,1,T,key_count) of the `keys` (B,T,K) visible to all heads of each query in `queries`
    (B,Hq,T,D)."""
    B, _, T, _ = queries.shape
    if keys.dim() != 3 or keys.shape[:2] != (B, T):
        raise ValueError(f"{what}: {name} has shape {shape_of(keys)} but must be ({B},{T},K)")
    return _listed(what, name, keys, key_count).unsqueeze(1)


def mask_of_blocks(what: str, name: str, blocks: Tensor, queries: Tensor, key_count: int, block: int) -> Tensor:
    """Returns the mask (B,Hq,T,key_count) of the key blocks visible to each query in `queries` (B,Hq,T,D).

    `blocks` (B,G,T,K) lists blocks of `block` keys. Each of the G lists is for Hq/G consecutive heads.
    """
    B, heads, T, _ = queries.shape
    if blocks.dim() != 4 or (blocks.shape[0], blocks.shape[2]) != (B, T) or heads % max(1, blocks.shape[1]) != 0:
        raise ValueError(
            f"{what}: {name} has shape {shape_of(blocks)} but must be ({B},G,{T},K), G a divisor of {heads} heads"
        )
    seen = _listed(what, name, blocks, -(-key_count // block)).repeat_interleave(block, dim=-1)
    return seen[..., :key_count].repeat_interleave(heads // blocks.shape[1], dim=1)
