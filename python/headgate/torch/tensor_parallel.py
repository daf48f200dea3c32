# SPDX-License-Identifier: Apache-2.0
"""Computes attention on DTensors.

Each process computes some sequences of the batch, or some heads. The processes do not communicate meanwhile.
"""

import math
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor, Placement

# Ways to divide the work along a mesh dimension: by sequences, by heads, or not at all.
_BATCH, _HEADS, _ALL = "batch", "heads", "all"
_WHOLE = ("q", "k", "v", "gate", "k_scale", "v_scale", "k_first", "v_first", "y")  # (B,H,·,·), or (B,·,H,·)
_BROADCAST = ("bias", "key_bias", "mask", "key_indices")  # (B|1,H|1,T|1,·); leading dimensions may be missing
_OF_BATCH, _OF_HEADS = ("key_lengths", "query_offsets"), ("alibi_slopes", "sinks")


def are_dtensors(tensors: dict[str, Tensor | None]) -> bool:
    """Returns whether q is a DTensor.

    Does not import torch.distributed.tensor. No tensor is a DTensor until a program imports this module.
    """
    loaded = sys.modules.get("torch.distributed.tensor")
    return loaded is not None and isinstance(tensors["q"], loaded.DTensor)


def _shared_dim(part: str, name: str, x: Tensor, layout: str) -> int | None:
    """Returns the dimension along which tensor `name` is sharded. Returns None if each process needs the whole tensor.

    `part` tells how the work is divided along a mesh dimension: _BATCH, _HEADS or _ALL.
    """
    if part == _ALL:
        return None
    if name == "sinks" and x.dim() > 1:  # (B|1,H,T) or (H,T)
        if part == _HEADS:
            return x.dim() - 2
        return 0 if x.dim() == 3 and x.shape[0] != 1 else None
    if name == "alibi_slopes" and x.dim() > 1:  # (B,H), or (N,H) of a packed batch
        return 0 if part == _BATCH else 1
    if name in _OF_BATCH + _OF_HEADS:
        return 0 if name in (_OF_BATCH if part == _BATCH else _OF_HEADS) else None
    if name in _BROADCAST:
        at = x.dim() - (4 if part == _BATCH else 3)
        return at if at >= 0 and x.shape[at] != 1 else None
    if name == "lse":  # (B,H,T)
        return x.dim() - (3 if part == _BATCH else 2)
    if name in _WHOLE:
        return 0 if part == _BATCH else x.dim() - (2 if layout == "bthd" else 3)
    return None


def _parts_of(tensors: dict[str, Any], layout: str) -> list[str]:
    """Returns how the work is divided along each dimension of q's device mesh: by sequences, by heads, or not at all.

    Along each mesh dimension, the division follows the sharding of q. The work is not divided in these cases:

    - The number of sequences or heads is not divisible by the number of processes.
    - q is sharded by sequences, but the batch is packed or paged, or q has no batch dimension.
    """
    q, k = tensors["q"], tensors["k"]
    one_batch = any(tensors.get(name) is not None for name in ("cu_seqlens_q", "block_table"))
    ranks = {_BATCH: 1, _HEADS: 1}
    parts = []
    for placement, size in zip(q.placements, q.device_mesh.shape):
        part = _ALL
        for candidate in (_BATCH, _HEADS):
            if candidate == _BATCH and (q.dim() == 3 or one_batch):
                continue
            at = _shared_dim(candidate, "q", q, layout)
            if placement.is_shard(at) and math.gcd(q.shape[at], k.shape[at]) % (ranks[candidate] * size) == 0:
                part = candidate
                ranks[candidate] *= size
        parts.append(part)
    return parts


def _placements(parts: list[str], name: str, x: Tensor, layout: str) -> "list[Placement]":
    from torch.distributed.tensor import Replicate, Shard

    dims = (_shared_dim(part, name, x, layout) for part in parts)
    return [Replicate() if at is None else Shard(at) for at in dims]


def _own_part(x: "DTensor", placements: "list[Placement]", parts: list[str]) -> Tensor:
    """Returns this process's part of a tensor. If several processes read the same part, their gradients for it are
    summed.
    """
    from torch.distributed.tensor import Partial

    sums = [Partial() if at.is_replicate() and part != _ALL else at for at, part in zip(placements, parts)]
    return x.redistribute(x.device_mesh, placements).to_local(grad_placements=sums)


def summed_over_heads(weight: Tensor, projection: Tensor) -> Tensor:
    """Returns `weight` for heads that a projection makes. Each process has some rows of the projection's matrix.

    Every process has the whole weight and uses it for its own heads, so its gradient is summed over the processes.
    """
    loaded = sys.modules.get("torch.distributed.tensor")
    if loaded is None or not isinstance(projection, loaded.DTensor) or isinstance(weight, loaded.DTensor):
        return weight
    mesh, whole = projection.device_mesh, loaded.Replicate()
    sums = [loaded.Partial() if at.is_shard(0) else whole for at in projection.placements]
    replica = loaded.DTensor.from_local(weight, mesh, [whole] * mesh.ndim, run_check=False)
    return replica.to_local(grad_placements=sums)


def attend_on_dtensors(
    what: str, tensors: dict[str, Any], layout: str, attend: Callable[[dict[str, Any]], tuple[Tensor, Tensor]]
) -> "tuple[DTensor, DTensor]":
    """Returns (y, lse) as DTensors. `attend` computes y and lse from a process's local tensors. Redistributes a tensor
    if its placements do not match the division of the work. Raises ValueError if some tensors are plain tensors, or lie
    on another mesh than q."""
    from torch.distributed.tensor import DTensor

    q = tensors["q"]
    plain = [name for name, x in tensors.items() if x is not None and not isinstance(x, DTensor)]
    if plain:
        raise ValueError(f"{what}: {plain[0]} is a plain tensor but q is a DTensor: distribute it")
    for name, x in tensors.items():
        if x is not None and x.device_mesh != q.device_mesh:
            raise ValueError(f"{what}: {name} lies on another device mesh than q: distribute it over q's")
    parts = _parts_of(tensors, layout)
    own = {
        name: None if x is None else _own_part(x, _placements(parts, name, x, layout), parts)
        for name, x in tensors.items()
    }
    y, lse = attend(own)
    return tuple(
        DTensor.from_local(x, q.device_mesh, _placements(parts, name, x, layout), run_check=False)
        for name, x in (("y", y), ("lse", lse))
    )
