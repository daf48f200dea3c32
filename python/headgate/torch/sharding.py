# SPDX-License-Identifier: Apache-2.0
"""Shards a sequence over the processes of a torch.distributed group, and gathers the shards again."""

from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from .checks import is_whole

SHARDINGS = ("balanced", "contiguous")


class Span(NamedTuple):
    """Tokens begin … end - 1 of the whole sequence."""

    begin: int
    end: int


def chunks_of(rank: int, ranks: int, sharding: str) -> list[int]:
    """Returns the indices of the chunks that form a rank's shard.

    - Contiguous sharding cuts the sequence into `ranks` equal chunks. Rank r has chunk r.
    - Balanced sharding cuts the sequence into 2·ranks equal chunks. Rank r has chunks r and 2·ranks - 1 - r. With a
      causal mask, all ranks then compute the same number of pairs of queries and keys.
    """
    if sharding not in SHARDINGS:
        raise ValueError(f"sharding: '{sharding}' is none of {', '.join(SHARDINGS)}")
    return [rank] if sharding == "contiguous" or ranks == 1 else [rank, 2 * ranks - 1 - rank]


def spans_of(rank: int, ranks: int, length: int, sharding: str) -> list[Span]:
    """Returns the positions of a rank's `length` tokens in the whole sequence: one span for each chunk, in the order of
    the shard.
    """
    chunks = chunks_of(rank, ranks, sharding)
    if length % len(chunks) != 0:
        raise ValueError(f"a {sharding} shard of {length} tokens cannot be cut into {len(chunks)} equal chunks")
    size = length // len(chunks)
    return [Span(n * size, (n + 1) * size) for n in chunks]


def own_rank(what: str, group: "dist.ProcessGroup | None") -> tuple[int, int]:
    """Returns this process's rank in `group`, and the number of ranks. A `group` of None means the default group."""
    if not (dist.is_available() and dist.is_initialized()):
        raise ValueError(f"{what}: torch.distributed has no process group: call init_process_group first")
    rank = dist.get_rank(group)
    if rank < 0:
        raise ValueError(f"{what}: this process is not one of the group")
    return rank, dist.get_world_size(group)


def agree(what: str, group: "dist.ProcessGroup | None", facts: dict[str, str], refusal: Exception | None) -> None:
    """Raises an error on every rank if any rank rejects its arguments, or if a value in `facts` differs among ranks.

    If only one rank raised an error, the others would wait forever.
    """
    _, ranks = own_rank(what, group)
    found: list[tuple[dict[str, str], str | None]] = [(facts, None)] * ranks
    if ranks > 1:
        dist.all_gather_object(found, (facts, None if refusal is None else str(refusal)), group=group)
    if refusal is not None:
        raise refusal
    for other, (_, error) in enumerate(found):
        if error is not None:
            raise ValueError(f"{what}: refused on rank {other}: {error}")
    for other, (theirs, _) in enumerate(found):
        for name, value in found[0][0].items():
            if theirs[name] != value:
                raise ValueError(f"{what}: {name} is {value} on rank 0 but {theirs[name]} on rank {other}")


def describe(x: Tensor | None) -> str:
    """Formats the dtype and shape of x for errors, for example as "float32 (2,3)"."""
    return "absent" if x is None else f"{str(x.dtype).removeprefix('torch.')} ({','.join(map(str, x.shape))})"


def _tokens(x: Any, dim: Any) -> int:
    """Returns the size of dimension `dim` of x. Raises TypeError if x is no tensor, and ValueError if it has no such
    dimension."""
    if not isinstance(x, Tensor):
        raise TypeError(f"x is a {type(x).__name__} but must be a tensor")
    if not is_whole(dim) or not -x.dim() <= dim < x.dim():
        raise ValueError(f"dim is {dim!r} but x has {x.dim()} dimensions")
    return x.shape[dim]


def shard_sequence(
    x: Tensor, dim: int, *, group: "dist.ProcessGroup | None" = None, sharding: str = "balanced"
) -> Tensor:
    """Returns this rank's tokens of x. Along dimension `dim`, x holds the tokens of the whole sequence.

    Contiguous sharding cuts the tokens into `ranks` equal chunks. Rank r gets a view of chunk r. Balanced sharding cuts
    them into 2·ranks equal chunks. Rank r gets a copy of chunks r and 2·ranks - 1 - r, concatenated. With one rank, it
    returns x. Gradients flow to this rank's tokens only. Does not communicate. Raises ValueError if the tokens cannot
    be cut into equal chunks.
    """
    rank, ranks = own_rank("shard_sequence", group)
    try:
        tokens, parts = _tokens(x, dim), ranks * len(chunks_of(rank, ranks, sharding))
        if tokens % parts != 0:
            raise ValueError(f"{tokens} tokens cannot be cut into {parts} equal chunks for {ranks} ranks")
    except (TypeError, ValueError) as error:
        raise type(error)(f"shard_sequence: {error}") from None
    spans = spans_of(rank, ranks, tokens // ranks, sharding)
    found = [x.narrow(dim, begin, end - begin) for begin, end in spans]
    return found[0] if len(found) == 1 else torch.cat(found, dim=dim)


def shard_positions(length: int, *, group: "dist.ProcessGroup | None" = None, sharding: str = "balanced") -> Tensor:
    """Returns the positions of this rank's `length` tokens in the whole sequence, as a tensor (length)."""
    rank, ranks = own_rank("shard_positions", group)
    try:
        return torch.cat([torch.arange(*span, device="cpu") for span in spans_of(rank, ranks, length, sharding)])
    except ValueError as error:
        raise ValueError(f"shard_positions: {error}") from None


def gather_sequence(
    x: Tensor, dim: int, *, group: "dist.ProcessGroup | None" = None, sharding: str = "balanced"
) -> Tensor:
    """Joins the shards x of all ranks, and returns the whole sequence on every rank. Inverse of shard_sequence.

    Has no gradients, since each rank might compute a different loss. Rejects an x that requires a gradient. Raises
    ValueError on every rank if dtypes or shapes differ among ranks, or if a shard cannot be cut into its chunks.
    """
    rank, ranks = own_rank("gather_sequence", group)
    refusal, facts, spans = None, {}, []
    try:
        tokens = _tokens(x, dim)
        if torch.is_grad_enabled() and x.requires_grad:
            raise ValueError("x requires a gradient, which is not passed on: detach it")
        spans = [spans_of(other, ranks, tokens, sharding) for other in range(ranks)]
        facts = {"x": describe(x), "dim": str(dim), "sharding": sharding}
    except (TypeError, ValueError) as error:
        refusal = type(error)(f"gather_sequence: {error}")
    agree("gather_sequence", group, facts, refusal)
    # Ranks send raw bytes, so a lazy negation or conjugation must be applied first.
    own = x.resolve_conj().resolve_neg().contiguous()
    shards = [torch.empty_like(own) for _ in range(ranks)]
    dist.all_gather([shard.view(-1).view(torch.uint8) for shard in shards], own.view(-1).view(torch.uint8), group=group)
    shape = list(x.shape)
    shape[dim] *= ranks
    whole = x.new_empty(shape)
    for of_rank, shard in zip(spans, shards):
        for (begin, end), part in zip(of_rank, shard.chunk(len(of_rank), dim=dim)):
            whole.narrow(dim, begin, end - begin).copy_(part)
    return whole
