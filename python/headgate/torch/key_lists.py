# SPDX-License-Identifier: Apache-2.0
"""Checks lists of visible keys, and converts them for gated_attention. In models with sparse attention, an indexer
selects keys for each query and produces these lists.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .checks import shape_of


class KeyLists(NamedTuple):
    """Lists of the keys that each query sees.

    The query heads form G groups of Hq/G consecutive heads. Each query has one list of K entries per group. An entry e
    stands for `block` consecutive keys, from key e * block on. An entry of -1 stands for no key.
    """

    entries: Tensor  # (B,G,T,K), int32 or int64
    block: int
    keys: int  # number of keys S, listed or not

    def rules(self, keys: int, kv_heads: int) -> dict[str, Any]:
        """Converts the lists to arguments of gated_attention, for a call with only the first `keys` keys.

        `kv_heads` is the number of key/value heads. G must divide it.
        """
        entries = self.entries
        if entries.shape[1] not in (1, kv_heads):
            entries = entries.repeat_interleave(kv_heads // entries.shape[1], dim=1)
        if keys < self.keys:
            entries = entries.masked_fill(entries >= -(-keys // self.block), -1)
        return {"key_indices": entries, "key_block_size": self.block}

    def in_sequences(self, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor) -> "KeyLists":
        """Returns the lists for a packed batch, in which all B·T queries form one row. Requires `block` = 1.

        The entries of this object count keys within a row of the batch. The entries of the result count keys within the
        query's sequence. An entry for a key of another sequence becomes -1.
        """
        B, G, T, K = self.entries.shape
        queries = torch.arange(B * T, device=self.entries.device)
        sequence = torch.searchsorted(cu_seqlens_q[1:].contiguous(), queries.to(cu_seqlens_q.dtype), right=True)
        sequence = sequence.clamp(max=len(cu_seqlens_q) - 2)  # keeps the index in range if cu_seqlens is invalid
        begin, end = (cu_seqlens_k[n].view(B, 1, T, 1) for n in (sequence, sequence + 1))
        key = self.entries + self.keys * torch.arange(B, device=begin.device).view(B, 1, 1, 1)
        own = (self.entries >= 0) & (key >= begin) & (key < end)
        entries = torch.where(own, key - begin, -1).to(self.entries.dtype)
        return KeyLists(entries.transpose(0, 1).reshape(1, G, B * T, K), 1, B * self.keys)

    def mask(self, heads: int, keys: int) -> Tensor:
        """Returns the lists as a mask (B,1|heads,T,keys) of the first `keys` keys, true for visible keys."""
        size = -(-keys // self.block)
        listed = torch.where((self.entries < 0) | (self.entries >= size), size, self.entries).long()
        # Entries of -1, and blocks after the first `keys` keys, set an extra last column, which is then cut off.
        found = torch.zeros(*listed.shape[:-1], size + 1, dtype=torch.bool, device=listed.device)
        found = found.scatter_(-1, listed, True)[..., :size]
        if self.block > 1:
            found = found.repeat_interleave(self.block, dim=-1)[..., :keys]
        groups = found.shape[1]
        return found if groups == 1 else found.repeat_interleave(heads // groups, dim=1)


def lists_of_index(
    what: str, module: nn.Module, queries: Tensor, keys: int, indices: Tensor | None, block_indices: Tensor | None
) -> list[KeyLists]:
    """Returns the lists of keys that an indexer chose among `keys` keys for `queries` (B,Hq,T,D). Raises ValueError for
    invalid shapes, types and entries. Errors name the function `what`.

    `indices` (B,T,K) lists keys for all heads. `block_indices` (B,G,T,K) lists blocks of keys. Each of its G lists
    applies to Hq/G consecutive heads. `module.config` gives the size of a block, index_block_size.
    """
    B, heads, T, _ = queries.shape
    lists = []
    if indices is not None:
        if indices.dim() != 3 or indices.shape[:2] != (B, T):
            raise ValueError(f"{what}: indices has shape {shape_of(indices)} but must be ({B},{T},K)")
        lists.append(_checked(what, "indices", KeyLists(indices.unsqueeze(1), 1, keys)))
    if block_indices is not None:
        block = getattr(getattr(module, "config", None), "index_block_size", None)
        if block is None or block < 1:
            raise ValueError(
                f"{what}: block_indices need the keys of a block, but config.index_block_size is {block}: set it"
            )
        shape = block_indices.shape
        if len(shape) != 4 or (shape[0], shape[2]) != (B, T) or heads % max(1, shape[1]) != 0:
            raise ValueError(
                f"{what}: block_indices has shape {shape_of(block_indices)} but must be ({B},G,{T},K), G a divisor of "
                f"{heads} heads"
            )
        lists.append(_checked(what, "block_indices", KeyLists(block_indices, block, keys)))
    return lists


def _checked(what: str, name: str, lists: KeyLists) -> KeyLists:
    entries = lists.entries
    if entries.dtype not in (torch.int32, torch.int64):
        raise ValueError(f"{what}: {name} is {entries.dtype} but must be int32 or int64")
    if torch.compiler.is_compiling():
        return lists
    most = -(-lists.keys // lists.block) - 1
    wrong = (entries < -1) | (entries > most)
    if bool(wrong.any()):
        raise ValueError(f"{what}: {name} has entry {int(entries[wrong][0])} but must be -1 to {most}")
    return lists
