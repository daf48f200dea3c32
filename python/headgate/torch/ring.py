# SPDX-License-Identifier: Apache-2.0
"""Attention over a sequence that is sharded over the processes of a torch.distributed group.

Each rank keeps the queries of its tokens. Keys and values pass around the ring of ranks. A rank computes attention over
one shard of keys while it receives the next shard. The partial results are merged by their log-sum-exp
(docs/reference/math.md, section 6). The gate is applied once, to the merged result. In the backward pass, keys and
values pass around again, together with the sums of their gradients.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Unpack, overload

import torch
import torch.distributed as dist
from torch import Tensor

import headgate

from ..operations import keeps_output
from .arguments import DIFFERENTIABLE, OPTIONS, TENSORS, options_of, require_known, take_old_name, takes
from .calls import autocast, check_tensors, checked_options, refuse_transforms
from .checks import require_bool
from .errors import call_as, in_words_of
from .gates import detach_unused
from .sharding import Span, agree, describe, own_rank, spans_of
from .transforms import refuse_all_transforms

if TYPE_CHECKING:
    from headgate._arguments import RingArguments

NAME = "ring_attention"
# Input tensors of ring_attention in addition to q, k, v and the gate.
INPUTS = ("key_lengths", "alibi_slopes", "sinks")
# ring_attention supports no lists of keys, and so no block size for them.
SCORING = tuple(name for name in options_of("scores") if name != "key_block_size")
GATING = options_of("gate")
DEFAULTS = {name: OPTIONS[name].default for name in ("layout", *SCORING, *GATING, "threads")}
KEYS_TAG, GRADIENTS_TAG = 0, 1


class Rules(NamedTuple):
    """Holds the rules that determine which keys a query sees. Positions and lengths refer to the whole sequence."""

    causality: str
    window_left: int
    window_right: int
    key_lengths: tuple[int, ...] | None

    def hide(self, q: Span, k: Span) -> bool:
        """Returns whether no query in span q sees any key in span k."""
        return (
            (self.causality == "causal" and k.begin >= q.end)
            or (0 <= self.window_left < q.begin - (k.end - 1))
            or (0 <= self.window_right < k.begin - (q.end - 1))
            or (self.key_lengths is not None and k.begin >= max(self.key_lengths, default=0))
        )


class Block(NamedTuple):
    """A block of work: a range of queries `q` and a range of keys `k`. Both are ranges of token indices within a shard."""

    q: Span
    k: Span
    offset: int  # position of the first query relative to the first key
    keys_begin: int  # position of the first key in the whole sequence
    same_tokens: bool  # whether q and k are the same tokens; if so, the block adds the sinks and computes dgate


class Plan:
    """Assigns blocks of queries and keys to ranks. Each rank has `length` tokens."""

    def __init__(self, ranks: int, length: int, sharding: str, rules: Rules):
        self.rules, self.ranks = rules, ranks
        self.spans = [spans_of(rank, ranks, length, sharding) for rank in range(ranks)]
        self.size = length // len(self.spans[0])
        met = (n for n in range(ranks) if any(self.blocks(rank, rank - n) for rank in range(ranks)))
        self.visited_shards = 1 + max(met, default=0)
        """Number of shards of keys that each rank visits: its own, then those of the preceding ranks. All other shards
        are hidden from every query."""

    def blocks(self, rank: int, source: int) -> list[Block]:
        """Returns the blocks that `rank` computes with the keys of rank `source`.

        Omits blocks whose keys are all hidden. Keeps them if their queries and keys are the same tokens.
        """
        found = []
        for i, q in enumerate(self.spans[rank]):
            for j, k in enumerate(self.spans[source % self.ranks]):
                if q == k or not self.rules.hide(q, k):
                    rows, keys = (Span(n * self.size, (n + 1) * self.size) for n in (i, j))
                    found.append(Block(rows, keys, q.begin - k.begin, k.begin, q == k))
        return found


class Ring(NamedTuple):
    """Holds a process group and this process's rank in the group."""

    group: "dist.ProcessGroup | None"
    rank: int
    ranks: int

    def exchange(self, sent: Tensor, received: Tensor, tag: int, distance: int = 1) -> list[dist.Work]:
        """Starts to send to the rank `distance` places ahead, and to receive from the rank `distance` places behind."""
        to, source = (self.rank + distance) % self.ranks, (self.rank - distance) % self.ranks
        group = dist.group.WORLD if self.group is None else self.group
        return dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, sent, group=group, tag=tag, group_peer=to),
                dist.P2POp(dist.irecv, received, group=group, tag=tag, group_peer=source),
            ]
        )


def _pack(tensors: list[Tensor]) -> Tensor:
    """Concatenates the elements of several tensors into one message."""
    return torch.cat([x.reshape(-1) for x in tensors])


def _unpack(packed: Tensor, like: list[Tensor]) -> list[Tensor]:
    """Splits the result of _pack() into views with the shapes of the tensors `like`."""
    return [part.view(x.shape) for part, x in zip(packed.split([x.numel() for x in like]), like)]


def _wait(works: list[dist.Work]) -> None:
    for work in works:
        work.wait()


def _ring_shards(ring: Ring, visited_shards: int, shard: list[Tensor]) -> Iterator[list[Tensor]]:
    """Yields this rank's keys and values, then those of the preceding ranks, one rank at a time.

    Receives the next shard while the caller uses the current one. The caller must not keep a shard, since the next
    shards reuse its memory.
    """
    if visited_shards == 1:
        yield shard
        return
    sent = _pack(shard)
    received = torch.empty_like(sent)
    for n in range(visited_shards):
        works = ring.exchange(sent, received, KEYS_TAG) if n + 1 < visited_shards else []
        yield _unpack(sent, shard)
        _wait(works)
        sent, received = received, sent


class _GradientReduction:
    """Sums the gradients of keys and values around the ring. Each rank adds its part to the sum of the preceding ranks."""

    def __init__(self, ring: Ring, visited_shards: int):
        self.ring, self.visited_shards, self.done = ring, visited_shards, 0
        self.works: list[dist.Work] = []
        self.sent = self.received = None

    def add(self, own: Tensor) -> Tensor | None:
        """Adds the gradients `own` of the current shard to the sum of earlier ranks. Sends the sum to the next rank.

        The last call returns the complete sum for this rank's own shard. All other calls return None.
        """
        if self.visited_shards == 1:
            return own
        _wait(self.works)
        if self.received is not None:
            own += self.received
        self.done += 1
        last = self.done == self.visited_shards
        # Sends the last sum to the rank that owns the shard: the rank visited_shards - 1 before this one.
        self.sent, self.received = own, torch.empty_like(own) if self.received is None else self.received
        self.works = self.ring.exchange(own, self.received, GRADIENTS_TAG, 1 - self.visited_shards if last else 1)
        if not last:
            return None
        _wait(self.works)
        return self.received


class Call(NamedTuple):
    """Settings of one ring_attention call. The tensors are not included."""

    ring: Ring
    plan: Plan
    layout: str
    scoring: dict[str, Any]  # scoring options and alibi_slopes
    gating: dict[str, Any]  # options of the gate
    threads: int | None

    def rows(self, x: Tensor | None, span: Span) -> Tensor | None:
        """Returns the tokens of `span` in x. x is (B,H,T,·) or, with layout "bthd", (B,T,H,·)."""
        return None if x is None else x.narrow(-2 if self.layout == "bhtd" else -3, span.begin, span.end - span.begin)

    def options(self, block: Block, batch: int) -> dict[str, Any]:
        """Returns the options of attention over a block. Their positions and lengths are relative to the block's first
        key.
        """
        options = {
            **self.scoring,
            "layout": self.layout,
            "threads": self.threads,
            "query_offsets": torch.full((batch,), block.offset, device="cpu"),
        }
        if self.plan.rules.key_lengths is not None:
            lengths = torch.tensor(self.plan.rules.key_lengths, dtype=torch.int64, device="cpu") - block.keys_begin
            options["key_lengths"] = lengths.clamp(0, block.k.end - block.k.begin)
        return options


def _batch(q: Tensor) -> int:
    return q.shape[0] if q.dim() == 4 else 1


def _widened(x: Tensor | None) -> Tensor | None:
    """Converts x to f32 or better, the dtype of partial results and gradient sums."""
    return None if x is None else x.to(torch.promote_types(x.dtype, torch.float32))


def _forward(
    call: Call, q: Tensor, k: Tensor, v: Tensor, gate: Tensor | None, sinks: Tensor | None, keep_attn: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Computes this rank's y, lse and attn in f32 or better. If `keep_attn` is false, attn is None."""
    parts: dict[Span, list[tuple[Tensor, Tensor]]] = {}
    settings: dict[str, Any] = {"layout": call.layout, "threads": call.threads}
    wide = _widened(q)
    for n, shard in enumerate(_ring_shards(call.ring, call.plan.visited_shards, [k, v])):
        keys, values = map(_widened, shard)
        for block in call.plan.blocks(call.ring.rank, call.ring.rank - n):
            out = headgate.attention_forward(
                call.rows(wide, block.q),
                call.rows(keys, block.k),
                call.rows(values, block.k),
                outputs=["y", "lse"],
                sinks=sinks if block.same_tokens else None,
                **call.options(block, _batch(q)),
            )
            found = parts.setdefault(block.q, [])
            if len(found) == 2:  # merges now, to keep at most two partial results
                merged = headgate.attention_merge(found, outputs=["attn", "lse"], **settings)
                found[:] = [(merged.attn, merged.lse)]
            found.append((out.y, out.lse))
    y = wide.new_empty([*q.shape[:-1], v.shape[-1]])
    heads, T = (q.shape[-3], q.shape[-2]) if call.layout == "bhtd" else (q.shape[-2], q.shape[-3])
    lse = wide.new_empty([*q.shape[:-3], heads, T])
    attn = torch.empty_like(y) if keep_attn else None
    for span, found in parts.items():
        whole = headgate.AttentionOutputs(
            y=call.rows(y, span), lse=lse[..., span.begin : span.end], attn=call.rows(attn, span)
        )
        headgate.attention_merge(found, call.rows(_widened(gate), span), out=whole, **call.gating, **settings)
    return y, lse, attn


def _backward(
    call: Call,
    dy: Tensor,
    dlse: Tensor | None,
    tensors: list[Tensor | None],
    saved: list[Tensor | None],
    wanted: dict[str, bool],
) -> dict[str, Tensor]:
    """Computes the requested gradients of q, k, v, gate and sinks, in f32 or better.

    The weights of each block are computed with the lse over all keys. The gradients of the blocks therefore add up to
    the gradients of the whole.
    """
    q, k, v, gate, sinks = tensors
    dy, q, gate, y, attn = map(_widened, (dy, q, gate, saved[0], saved[2]))
    lse = saved[1]
    sums = {name: torch.zeros_like(x) for name, x in (("q", q), ("gate", gate), ("sinks", sinks)) if wanted[name]}
    needs_dkv = wanted["k"] or wanted["v"]
    reduction, total = _GradientReduction(call.ring, call.plan.visited_shards), None
    for n, shard in enumerate(_ring_shards(call.ring, call.plan.visited_shards, [k, v])):
        keys, values = map(_widened, shard)
        own = torch.zeros(k.numel() + v.numel(), dtype=q.dtype) if needs_dkv else None
        dk, dv = _unpack(own, [k, v]) if needs_dkv else (None, None)
        for block in call.plan.blocks(call.ring.rank, call.ring.rank - n):
            named = [name for name in sums if block.same_tokens or name == "q"] + (["k", "v"] if needs_dkv else [])
            if not named:
                continue
            part = [call.rows(x, block.q) for x in (dy, q, gate, y, attn)]
            found = headgate.attention_backward(
                part[0],
                part[1],
                call.rows(keys, block.k),
                call.rows(values, block.k),
                part[2],
                y=part[3],
                attn=part[4],
                lse=lse[..., block.q.begin : block.q.end],
                sinks=sinks if block.same_tokens else None,
                dlse=None if dlse is None else dlse[..., block.q.begin : block.q.end],
                gradients=["d" + name for name in named],
                **call.gating,
                **call.options(block, _batch(q)),
            )
            places = {
                "q": call.rows(sums.get("q"), block.q),
                "gate": call.rows(sums.get("gate"), block.q),
                "k": call.rows(dk, block.k),
                "v": call.rows(dv, block.k),
                "sinks": sums.get("sinks"),
            }
            for name in named:
                places[name] += getattr(found, "d" + name)
        if needs_dkv:
            total = reduction.add(own)
    return sums | (dict(zip("kv", _unpack(total, [k, v]))) if needs_dkv else {})


class _RingAttention(torch.autograd.Function):
    """Computes y and lse of this rank's queries. The backward pass computes gradients of this rank's q, k, v, gate and
    sinks.
    """

    @staticmethod
    def forward(ctx: Any, call: Call, keep_attn: bool, *tensors: Tensor | None) -> tuple[Tensor, Tensor]:
        q, k, v, gate, sinks = tensors
        y, lse, attn = _forward(call, q, k, v, gate, sinks, keep_attn)
        y = y.to(tensors[0].dtype)
        ctx.call = call
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors, y, lse, attn)
        return y, lse

    @staticmethod
    def backward(ctx: Any, dy: Tensor | None, dlse: Tensor | None) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError(f"{NAME}: gradients of gradients (create_graph) are not supported")
        *tensors, y, lse, attn = ctx.saved_tensors
        wanted = dict(zip(RING_DIFFERENTIABLE, ctx.needs_input_grad[2:]))
        dy = torch.zeros_like(y) if dy is None else dy
        found = _backward(ctx.call, dy, dlse, tensors, [y, lse, attn], wanted)
        return (
            None,
            None,
            *(found[name].to(x.dtype) if wanted[name] else None for name, x in zip(RING_DIFFERENTIABLE, tensors)),
        )


RING_DIFFERENTIABLE = tuple(name for name in DIFFERENTIABLE if name != "bias")


def _require_shards(tensors: dict[str, Tensor | None], layout: str) -> None:
    """Raises ValueError unless q, k, v and gate have the same number of tokens. The kernels do not check this."""
    letters, dim = ("(B,T,H,D)", -3) if layout == "bthd" else ("(B,H,T,D)", -2)
    for name in ("q", "k", "v", "gate"):
        x = tensors[name]
        if x is None:
            continue
        if x.is_nested or x.dim() not in (3, 4):
            raise ValueError(f"{NAME}: {name} must be a tensor {letters} of this rank's tokens")
        if x.shape[dim] != tensors["q"].shape[dim]:
            raise ValueError(
                f"{NAME}: {name} has {x.shape[dim]} tokens but q has {tensors['q'].shape[dim]}: all are of the same"
            )
    if tensors["q"].shape[dim] == 0:
        raise ValueError(f"{NAME}: q has no tokens")


def _lengths(key_lengths: Tensor | None, batch: int, keys: int) -> tuple[int, ...] | None:
    if key_lengths is None:
        return None
    if key_lengths.shape != (batch,) or key_lengths.dtype not in (torch.int32, torch.int64):
        raise ValueError(f"{NAME}: key_lengths is {describe(key_lengths)} but must be integers ({batch})")
    lengths = tuple(key_lengths.tolist())
    if not all(0 <= n <= keys for n in lengths):
        raise ValueError(f"{NAME}: key_lengths must lie within 0 and {keys}, the tokens of the whole sequence")
    return lengths


def _make_plan(ranks: int, length: int, sharding: str, rules: Rules, by_position: bool) -> Plan:
    try:
        plan = Plan(ranks, length, sharding, rules)
    except ValueError as error:
        raise ValueError(f"{NAME}: {error}") from None
    # One block per shard suffices without causality, windows, key_lengths and ALiBi slopes, which depend on positions.
    return plan if by_position else Plan(ranks, length, "contiguous", rules)


def _make_call(ring: Ring, sharding: str, tensors: dict[str, Tensor | None], options: dict[str, Any]) -> Call:
    """Returns the settings of a call. Raises an error for invalid arguments.

    Calls the kernels with zero tokens, so that they check the arguments.
    """
    layout = options["layout"]
    _require_shards(tensors, layout)
    q, slopes, sinks = tensors["q"], tensors["alibi_slopes"], tensors["sinks"]
    if sinks is not None and sinks.dim() > 1:
        raise ValueError(f"{NAME}: sinks is {describe(sinks)} but must be of one dimension, a logit for each head")
    T = q.shape[-3 if layout == "bthd" else -2]
    key_lengths = _lengths(tensors["key_lengths"], _batch(q), ring.ranks * T)
    rules = Rules(options["causality"], options["window_left"], options["window_right"], key_lengths)
    by_position = rules != Rules("none", -1, -1, None) or slopes is not None
    plan = _make_plan(ring.ranks, T, sharding, rules, by_position)
    scoring = {name: options[name] for name in SCORING}
    gating = {name: options[name] for name in GATING}
    call = Call(ring, plan, layout, {**scoring, "alibi_slopes": slopes}, gating, options["threads"] or None)
    given = {name: None if tensors[name] is None else tensors[name].detach() for name in RING_DIFFERENTIABLE}
    no_q, no_k, no_v, no_gate = (call.rows(given[name], Span(0, 0)) for name in ("q", "k", "v", "gate"))
    headgate.attention_forward(no_q, no_k, no_v, no_gate, sinks=given["sinks"], layout=layout, **call.scoring, **gating)
    return call


def _refuse_others(others: dict[str, Any]) -> None:
    require_known(NAME, others, (*TENSORS, *OPTIONS, "return_max_logit"))
    for name in others:
        raise ValueError(f"{NAME}: {name} is not supported")


def _facts(
    call: Call, sharding: str, tensors: dict[str, Tensor | None], options: dict[str, Any], recorded: bool
) -> dict[str, str]:
    """Returns the values that must be equal on every rank, keyed by names for error messages."""
    needs_dkv = recorded and (tensors["k"].requires_grad or tensors["v"].requires_grad)
    return {
        **{name: describe(x) for name, x in tensors.items()},
        **{name: str(x) for name, x in options.items() if name != "threads"},
        "sharding": sharding,
        "key_lengths": str(call.plan.rules.key_lengths),
        "the gradient of k and v": "wanted" if needs_dkv else "not wanted",
    }


def _prepare(
    ring: Ring,
    sharding: str,
    tensors: dict[str, Tensor | None],
    options: dict[str, Any],
    others: dict[str, Any],
    recorded: bool,
) -> tuple[Call, dict[str, str]]:
    """Returns a call's settings, and the values that must be equal on every rank. Casts `tensors` under autocast."""
    _refuse_others(others)
    check_tensors(NAME, tensors, recorded)
    options = {**DEFAULTS, **checked_options(NAME, options)}
    autocast(tensors)
    call = _make_call(ring, sharding, tensors, options)
    return call, _facts(call, sharding, tensors, options, recorded)


@overload
def ring_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gate: Tensor | None = None,
    *,
    group: "dist.ProcessGroup | None" = None,
    sharding: Literal["balanced", "contiguous"] = "balanced",
    return_lse: Literal[False] = False,
    **arguments: "Unpack[RingArguments]",
) -> Tensor: ...
@overload
def ring_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gate: Tensor | None = None,
    *,
    group: "dist.ProcessGroup | None" = None,
    sharding: Literal["balanced", "contiguous"] = "balanced",
    return_lse: Literal[True],
    **arguments: "Unpack[RingArguments]",
) -> tuple[Tensor, Tensor]: ...
@takes(*INPUTS, *DEFAULTS)
@torch._disable_dynamo  # like torch.compiler.disable, without an import that takes seconds
@in_words_of(NAME, {})
def ring_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gate: Tensor | None = None,
    *,
    group: "dist.ProcessGroup | None" = None,
    sharding: str = "balanced",
    return_lse: bool = False,
    **arguments: Any,
) -> Tensor | tuple[Tensor, Tensor]:
    """Computes gated_attention over a sequence that is sharded over the ranks of `group` (see shard_sequence).

    q, k, v and gate hold this rank's tokens, (B,H,T,D) or, with `layout` "bthd", (B,T,H,D). T is the number of tokens
    of one rank. Returns this rank's y (B,Hq,T,Dv) in q's dtype. With return_lse, also returns the log-sum-exp (B,Hq,T).
    `sharding`, "balanced" or "contiguous", determines which tokens a rank has. key_lengths (B) counts keys of the whole
    sequence. The other arguments are those of gated_attention. Positions refer to the whole sequence. Unsupported
    arguments raise ValueError.

    The result is exact: partial results are computed and merged in f32 or better. The gate is applied to the merged
    result, and y is rounded only once. q, k, v, gate and sinks have gradients. All ranks have the same sinks. The
    gradient of the sinks includes only this rank's queries.

    Every rank of the group must make the call. If one rank runs the backward pass, all ranks must run it. If arguments
    are invalid or differ among ranks, every rank raises ValueError with a one-line message. In addition to its own
    tensors, a rank needs memory for two shards of keys and values. The backward pass also needs memory for three shards
    of gradients in f32.
    """
    if "gate_logits" in arguments:
        gate = take_old_name(NAME, arguments, "gate_logits", "gate", gate)
    require_bool(NAME, "return_lse", return_lse)
    ring = Ring(group, *own_rank(NAME, group))
    tensors = {"q": q, "k": k, "v": v, "gate": detach_unused(gate, arguments)}
    tensors |= {name: arguments.pop(name, None) for name in INPUTS}
    options = {name: arguments.pop(name) for name in DEFAULTS if name in arguments}
    refuse_transforms(NAME, {**tensors, **options})  # raises an error before ranks communicate
    refuse_all_transforms(NAME)
    recorded = torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in tensors.values())
    call, refusal, facts = None, None, {}
    try:
        call, facts = call_as(NAME, {}, _prepare, ring, sharding, tensors, options, arguments, recorded)
    except Exception as error:  # agree() raises this rank's error on all ranks
        refusal = error
    agree(NAME, group, facts, refusal)
    keep_attn = recorded and gate is not None and keeps_output(**call.gating, is_f16=q.dtype == torch.float16)
    y, lse = _RingAttention.apply(call, keep_attn, *(tensors[name] for name in RING_DIFFERENTIABLE))
    return (y, lse) if return_lse else y
