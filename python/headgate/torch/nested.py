# SPDX-License-Identifier: Apache-2.0
"""Converts jagged nested tensors to a packed batch."""

import torch
from torch import Tensor

from .arguments import FORWARD_ONLY


def _same_lengths(one: Tensor, other: Tensor, ragged: int) -> bool:
    """Returns whether two nested tensors have equal sequence lengths.

    A compiled program cannot read the lengths. There, both tensors must share their offsets.
    """
    if one.shape[ragged] == other.shape[ragged]:
        return True
    return not torch.compiler.is_compiling() and torch.equal(one.offsets(), other.offsets())


def unnest(what: str, tensors: dict[str, Tensor | None], layout: str) -> Tensor | None:
    """Converts jagged nested tensors in `tensors` to a packed batch, in place.

    Returns the original q. Returns None if no tensor is nested. Errors name the function `what`.
    """
    nested = [name for name, tensor in tensors.items() if tensor is not None and tensor.is_nested]
    if not nested:
        return None
    ragged = 1 if layout == "bthd" else 2
    for name in ("q", "k", "v", "gate"):
        tensor = tensors[name]
        if tensor is None:
            continue
        if name not in nested or tensor.layout != torch.jagged or tensor.dim() != 4 or tensor._ragged_idx != ragged:
            letters = "(N,T*,H,D)" if layout == "bthd" else "(N,H,T*,D)"
            raise ValueError(f"{what}: {name} must be a jagged nested tensor {letters} like q, k, v and gate beside it")
        if tensor.lengths() is not None:
            raise ValueError(f"{what}: {name} is a nested tensor with holes: make it contiguous")
    others = [name for name in nested if name not in ("q", "k", "v", "gate")]
    packed = [name for name in ("cu_seqlens_q", "cu_seqlens_k", *FORWARD_ONLY) if tensors[name] is not None]
    if others or packed:
        raise ValueError(f"{what}: {(others + packed)[0]} cannot be given with nested q, k and v")
    q = tensors["q"]
    for name, other in (("gate", "q"), ("v", "k")):
        if tensors[name] is not None and not _same_lengths(tensors[name], tensors[other], ragged):
            raise ValueError(f"{what}: {name} has sequences of other lengths than {other}")
    if tensors["k"].shape[0] != q.shape[0]:
        raise ValueError(f"{what}: k holds {tensors['k'].shape[0]} sequences but q holds {q.shape[0]}")
    tensors["cu_seqlens_q"], tensors["cu_seqlens_k"] = q.offsets(), tensors["k"].offsets()
    for name in ("q", "k", "v", "gate"):
        tensors[name] = None if tensors[name] is None else tensors[name].values()
    return q
