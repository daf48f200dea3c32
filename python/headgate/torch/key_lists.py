# SPDX-License-Identifier: Apache-2.0
"""Lists of the keys that each query sees, as models with an index hand them over, made boolean masks."""

import torch
from torch import Tensor

from .checks import shape_of


def _listed(what: str, name: str, listed: Tensor, size: int) -> Tensor:
    """Whether each number below `size` stands in the lists (…,K) of whole numbers, (…,size). Negative entries are
    empty."""
    if listed.dtype not in (torch.int32, torch.int64):
        raise ValueError(f"{what}: {name} is {listed.dtype} but must be int32 or int64")
    if not torch.compiler.is_compiling() and bool((listed >= size).any()):
        raise ValueError(f"{what}: {name} has entry {int(listed.max())} but must be below {size}")
    found = torch.zeros(*listed.shape[:-1], size + 1, dtype=torch.bool, device=listed.device)
    # Empty entries go to a column that is cut off.
    return found.scatter_(-1, torch.where(listed < 0, size, listed).long(), True)[..., :size]


def mask_of_keys(what: str, name: str, keys: Tensor, queries: Tensor, key_count: int) -> Tensor:
    """(B,1,T,key_count), true at the keys (B,T,K) that all heads of each of the `queries` (B,Hq,T,D) see."""
    B, _, T, _ = queries.shape
    if keys.dim() != 3 or keys.shape[:2] != (B, T):
        raise ValueError(f"{what}: {name} has shape {shape_of(keys)} but must be ({B},{T},K)")
    return _listed(what, name, keys, key_count).unsqueeze(1)


def mask_of_blocks(what: str, name: str, blocks: Tensor, queries: Tensor, key_count: int, block: int) -> Tensor:
    """(B,Hq,T,key_count), true at the keys in the blocks (B,G,T,K), of `block` keys, that each of the `queries`
    (B,Hq,T,D) sees. A list is for Hq/G heads, one after the other."""
    B, heads, T, _ = queries.shape
    if blocks.dim() != 4 or (blocks.shape[0], blocks.shape[2]) != (B, T) or heads % max(1, blocks.shape[1]) != 0:
        raise ValueError(
            f"{what}: {name} has shape {shape_of(blocks)} but must be ({B},G,{T},K), G a divisor of {heads} heads"
        )
    seen = _listed(what, name, blocks, -(-key_count // block)).repeat_interleave(block, dim=-1)
    return seen[..., :key_count].repeat_interleave(heads // blocks.shape[1], dim=1)
