# SPDX-License-Identifier: Apache-2.0
"""A sequence that is sharded over the processes of a torch.distributed group: which tokens each of them has."""

from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

SHARDINGS = ("balanced", "contiguous")


class Span(NamedTuple):
    """Tokens begin … end of the whole sequence."""

    begin: int
    end: int


def spans_of(rank: int, ranks: int, length: int, sharding: str) -> list[Span]:
    """Where the `length` tokens of a rank's shard stand in the whole sequence, in the shard's order. Contiguous: one
    span. Balanced: the sequence is cut into 2·ranks chunks, of which the rank has number `rank` and the one as far
    from the end, so that under a causal mask all ranks have the same pairs of queries and keys to compute."""
    if sharding == "contiguous":
        return [Span(rank * length, (rank + 1) * length)]
    half = length // 2
    return [Span(n * half, (n + 1) * half) for n in (rank, 2 * ranks - 1 - rank)]


def own_rank(what: str, group: "dist.ProcessGroup | None") -> tuple[int, int]:
    """This process's rank in the group (None: the default one), and the number of its ranks."""
    if not (dist.is_available() and dist.is_initialized()):
        raise ValueError(f"{what}: torch.distributed has no process group: call init_process_group first")
    rank = dist.get_rank(group)
    if rank < 0:
        raise ValueError(f"{what}: this process is not one of the group")
    return rank, dist.get_world_size(group)


def require_divisible(what: str, length: int, parts: int, of: str, sharding: str) -> None:
    if sharding not in SHARDINGS:
        raise ValueError(f"{what}: sharding: '{sharding}' is none of {', '.join(SHARDINGS)}")
    if length % parts != 0:
        raise ValueError(f"{what}: {of} of {length} tokens cannot be cut into {parts} equal parts ({sharding} sharding)")


def agree(what: str, group: "dist.ProcessGroup | None", facts: dict[str, str], refusal: Exception | None = None) -> None:
    """Raises on every rank where a rank refuses its arguments, or where `facts`, by name, differ among ranks: one that
    raised alone would leave the others waiting."""
    rank, ranks = own_rank(what, group)
    found: list[tuple[dict[str, str], str | None]] = [(facts, None)] * ranks
    if ranks > 1:
        dist.all_gather_object(found, (facts, None if refusal is None else str(refusal)), group=group)
    if refusal is not None:
        raise refusal
    for other, (theirs, error) in enumerate(found):
        if error is not None:
            raise ValueError(f"{what}: refused on rank {other}: {error}")
    for other, (theirs, _) in enumerate(found):
        for name, value in found[0][0].items():
            if theirs[name] != value:
                raise ValueError(f"{what}: {name} is {value} on rank 0 but {theirs[name]} on rank {other}")


def described(x: Tensor | None) -> str:
    """Dtype and shape, as errors name them."""
    return "absent" if x is None else f"{str(x.dtype).removeprefix('torch.')} ({','.join(map(str, x.shape))})"


def shard_sequence(x: Tensor, dim: int, *, group: "dist.ProcessGroup | None" = None,
                   sharding: str = "balanced") -> Tensor:
    """This rank's tokens of x, which has those of the whole sequence in dimension `dim`.

    Balanced: the two chunks that spans_of names, one behind the other, copied; contiguous: a view. Gradients go
    to the rank's own tokens. No communication. ValueError where the tokens cannot be cut into equal parts: 2·ranks of
    them (balanced), or ranks. Positions of a rank's tokens: shard_sequence(torch.arange(T), 0).
    """
    rank, ranks = own_rank("shard_sequence", group)
    T = x.shape[dim]
    require_divisible("shard_sequence", T, 2 * ranks if sharding == "balanced" else ranks, "a sequence", sharding)
    parts = [x.narrow(dim, begin, end - begin) for begin, end in spans_of(rank, ranks, T // ranks, sharding)]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=dim)


def gather_sequence(x: Tensor, dim: int, *, group: "dist.ProcessGroup | None" = None,
                    sharding: str = "balanced") -> Tensor:
    """The whole sequence, on every rank, of the shards x that the ranks have: undoes shard_sequence.

    Without gradients, which ranks that go on differently could not share: x that requires one is refused. ValueError,
    on every rank, where dtypes or shapes differ.
    """
    rank, ranks = own_rank("gather_sequence", group)
    refusal = None
    if torch.is_grad_enabled() and x.requires_grad:
        refusal = ValueError("gather_sequence: x requires a gradient, which is not passed on: detach it")
    else:
        try:
            require_divisible("gather_sequence", x.shape[dim], 2 if sharding == "balanced" else 1, "a shard", sharding)
        except (IndexError, ValueError) as error:
            refusal = error
    agree("gather_sequence", group, {"x": described(x), "dim": str(dim), "sharding": sharding}, refusal)
    own = x.contiguous()
    shards = [torch.empty_like(own) for _ in range(ranks)]
    dist.all_gather([shard.view(-1).view(torch.uint8) for shard in shards], own.view(-1).view(torch.uint8), group=group)
    shape = list(x.shape)
    shape[dim] *= ranks
    whole = x.new_empty(shape)
    for other, shard in enumerate(shards):
        spans = spans_of(other, ranks, x.shape[dim], sharding)
        for (begin, end), part in zip(spans, shard.chunk(len(spans), dim=dim)):
            whole.narrow(dim, begin, end - begin).copy_(part)
    return whole
