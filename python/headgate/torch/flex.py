# SPDX-License-Identifier: Apache-2.0
"""Runs FlexAttention's BlockMask on Headgate's kernels, one block of queries at a time, without a T × S mask.

A BlockMask lists key blocks for each block of queries. In partial blocks, mask_mod decides which keys a query sees.
Full blocks are visible to all queries of the block. Each kernel call computes one block of queries. It reads all keys
that are listed for any sequence or head, and a mask of these keys.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import AuxOutput, AuxRequest, BlockMask, create_mask

from ..operations import ATTENTION, keeps_output
from .arguments import ADDED, DIFFERENTIABLE, TENSORS, require_known, take_old_name, takes
from .attention import as_returned, gated_attention
from .calls import autocast, checked_options, refuse_transforms
from .checks import require_bool, require_tensor, shown
from .errors import call_as
from .foreign_arguments import KERNEL_OPTIONS, refuse_other_aux
from .gates import detach_unused
from .transforms import refuse_all_transforms

NAME = "flex_attention"
ARGUMENTS = {"q": "query", "k": "key", "v": "value", "mask": "block_mask", "gate": "gate"}
AUX = ("lse", "max_scores")
_INPUTS = ("q", "k", "v", "gate")
_OPTIONS = tuple(name for name in ADDED if name != "sinks")


class _QueryBlock(NamedTuple):
    """A block of queries. `keys` is a range or a list of indices: the keys that the block reads. `mask` is the mask of
    these keys.
    """

    queries: slice
    keys: slice | Tensor
    mask: Tensor | None


def _listed(numbers: Tensor | None, indices: Tensor | None, row: int, blocks: int) -> Tensor | None:
    """Returns a mask (B,H,blocks) of key blocks, true for those that a BlockMask lists for the query block `row`.

    `numbers` holds the lengths of the BlockMask's lists, and `indices` holds the lists.
    """
    if numbers is None:
        return None
    numbers, indices = numbers[:, :, row, None], indices[:, :, row]
    there = torch.arange(indices.shape[-1], device="cpu") < numbers
    found = torch.zeros(*indices.shape[:2], blocks + 1, dtype=torch.bool, device="cpu")
    # Unused entries of `indices` set an extra column at the end, which is then cut off.
    return found.scatter_(2, torch.where(there, indices.long(), blocks), True)[..., :blocks]


def query_blocks(block_mask: BlockMask, sequences: int = 1, heads: int = 1) -> Iterator[_QueryBlock]:
    """Yields the blocks of queries of a BlockMask, for a batch of `sequences` with `heads` query heads.

    If the BlockMask has lists for only one sequence or head, all others share these lists. mask_mod is evaluated for
    each sequence and head.
    """
    T, S = block_mask.seq_lengths
    rows = max(sequences, block_mask.shape[0]), max(heads, block_mask.shape[1])
    block_t, block_s = block_mask.BLOCK_SIZE
    blocks = -(-S // block_s)
    for row, first in enumerate(range(0, T, block_t)):
        partial = _listed(block_mask.kv_num_blocks, block_mask.kv_indices, row, blocks)
        full = _listed(block_mask.full_kv_num_blocks, block_mask.full_kv_indices, row, blocks)
        listed = partial if full is None else partial | full
        numbers = listed.any(0).any(0).nonzero().flatten()
        columns = (numbers[:, None] * block_s + torch.arange(block_s, device="cpu")).flatten()
        columns = columns[columns < S]
        queries = slice(first, min(T, first + block_t))
        yield _QueryBlock(queries, _as_range(columns), _mask_of(block_mask, rows, queries, columns, partial, full))


def _as_range(columns: Tensor) -> slice | Tensor:
    """Converts contiguous columns to a slice. Slices do not copy keys and values."""
    if columns.numel() == 0:
        return slice(0, 0)
    first, end = int(columns[0]), int(columns[-1]) + 1
    return slice(first, end) if end - first == columns.numel() else columns


def _mask_of(
    block_mask: BlockMask,
    rows: tuple[int, int],
    queries: slice,
    columns: Tensor,
    partial: Tensor,
    full: Tensor | None,
) -> Tensor | None:
    """Returns the mask (B|1,H|1,queries,columns), true for visible keys. Returns None if no key of `columns` is hidden.

    `rows` is (B,H).
    """
    if columns.numel() == 0:
        return None
    block = columns // block_mask.BLOCK_SIZE[1]
    always = None if full is None else full[..., block].unsqueeze(2)
    if always is not None and always.all():
        return None

    def visible(b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
        return block_mask.mask_mod(b, h, q + queries.start, columns[kv])

    mask = create_mask(visible, *rows, queries.stop - queries.start, columns.numel(), device="cpu")
    for dim in (0, 1):  # create_mask expands dimensions that mask_mod ignores by stride 0: keeps size 1
        mask = mask.narrow(dim, 0, 1) if mask.stride(dim) == 0 else mask
    mask = mask & partial[..., block].unsqueeze(2)
    return mask if always is None else mask | always


class _FlexAttention(torch.autograd.Function):
    """Computes attention, forward and backward, one block of queries at a time. The backward pass recomputes the masks.

    The forward pass returns y, lse and the largest score of each row. If `keep_max` is false, the largest scores are
    None.
    """

    @staticmethod
    def forward(
        ctx: Any,
        block_mask: BlockMask,
        options: dict[str, Any],
        keep_attn: bool,
        keep_max: bool,
        *tensors: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        q, k, v, gate = tensors
        y = q.new_empty((*q.shape[:3], v.shape[-1]))
        lse = q.new_empty(q.shape[:3], dtype=torch.float64)
        attn = torch.empty_like(y) if keep_attn else None
        max_scores = torch.empty_like(as_returned(lse, y)) if keep_max else None
        kept = {"keep_attn": keep_attn, "max_logit": "rows" if keep_max else "none"}
        for block in query_blocks(block_mask, *q.shape[:2]):
            found = torch.ops.headgate.gated_attention(*_arguments(block, tensors), **options, **kept)
            for output, part in zip((y, lse, attn, max_scores), found):
                if output is not None:
                    output[:, :, block.queries] = part
        ctx.block_mask, ctx.options = block_mask, options
        ctx.save_for_backward(*tensors, y, lse, attn)
        ctx.set_materialize_grads(False)
        if max_scores is not None:
            ctx.mark_non_differentiable(max_scores)
        return y, lse, max_scores

    @staticmethod
    def backward(ctx: Any, dy: Tensor | None, dlse: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
        refuse_all_transforms(NAME, dy, dlse)
        *tensors, y, lse, attn = ctx.saved_tensors
        dy = torch.zeros_like(y) if dy is None else dy
        needed = dict(zip(_INPUTS, ctx.needs_input_grad[4:]))
        # Gradients of keys and values are summed over blocks of queries, in f32 or better.
        found = {
            name: torch.zeros_like(x, dtype=torch.promote_types(x.dtype, torch.float32) if name in "kv" else x.dtype)
            for name, x in zip(_INPUTS, tensors)
            if needed[name]
        }
        wanted = [needed.get(name, False) for name in DIFFERENTIABLE]
        for block in query_blocks(ctx.block_mask, *y.shape[:2]):
            of_queries = [None if x is None else x[:, :, block.queries] for x in (dy, dlse, y, lse, attn)]
            parts = torch.ops.headgate.gated_attention_backward(
                *of_queries, *_arguments(block, tensors), wanted=wanted, **ctx.options
            )
            for name, part in zip(DIFFERENTIABLE, parts):
                if name in ("k", "v") and name in found:
                    found[name][:, :, block.keys] += part
                elif name in found:
                    found[name][:, :, block.queries] = part
        gradients = [found[name].to(x.dtype) if name in found else None for name, x in zip(_INPUTS, tensors)]
        return (None, None, None, None, *gradients)


def _arguments(block: _QueryBlock, tensors: tuple[Tensor | None, ...]) -> list[Tensor | None]:
    """Returns the kernel's inputs for a block of queries, in the order of TENSORS."""
    q, k, v, gate = tensors
    given = {"q": q[:, :, block.queries], "k": k[:, :, block.keys], "v": v[:, :, block.keys], "mask": block.mask}
    given["gate"] = None if gate is None else gate[:, :, block.queries]
    return [given.get(name) for name in TENSORS]


def _check_tensors(query: Any, key: Any, value: Any, gate: Any, enable_gqa: bool) -> None:
    for name, x in (("query", query), ("key", key), ("value", value), ("gate", gate)):
        if x is None and name == "gate":
            continue
        require_tensor(NAME, name, x)
        if x.dim() != 4 or x.device.type != "cpu":
            raise ValueError(
                f"{NAME}: {name} is {list(x.shape)} on {x.device} but must be a tensor (B,H,T,D) in the CPU's memory"
            )
    if query.shape[1] != key.shape[1] and not enable_gqa:
        raise ValueError(
            f"{NAME}: query has {query.shape[1]} heads and key {key.shape[1]}: set enable_gqa=True to share keys"
        )


def _check_mask(block_mask: Any, query: Tensor, key: Tensor, value: Tensor, gate: Tensor | None) -> None:
    if not isinstance(block_mask, BlockMask):
        raise ValueError(f"{NAME}: block_mask is a {type(block_mask).__name__} but must be a BlockMask")
    if block_mask.kv_indices.device.type != "cpu":
        raise ValueError(f"{NAME}: block_mask lies on {block_mask.kv_indices.device} but must be in the CPU's memory")
    lengths = (query.shape[2], key.shape[2])
    if tuple(block_mask.seq_lengths) != lengths:
        raise ValueError(
            f"{NAME}: block_mask is of lengths {tuple(block_mask.seq_lengths)} but query and key have {lengths}"
        )
    # Checks the lengths of value and gate: kernel calls get only slices, whose lengths are right even if these are not.
    for name, x, rows, of in (("value", value, key.shape[2], "key"), ("gate", gate, query.shape[2], "query")):
        if x is not None and x.shape[2] != rows:
            raise ValueError(f"{NAME}: {name} has {x.shape[2]} tokens but must have {rows}, as {of} has")
    for n, name in enumerate(("sequences", "heads")):
        if block_mask.shape[n] not in (1, query.shape[n]):
            raise ValueError(
                f"{NAME}: block_mask is of {block_mask.shape[n]} {name} but must be of 1 or {query.shape[n]}"
            )


def _attend_in_blocks(
    tensors: dict[str, Tensor | None], block_mask: BlockMask, options: dict[str, Any], keep_max: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Returns y, the log-sum-exp, and the largest score of each row if `keep_max` is true. Keys of `tensors` are
    argument names of gated_attention.
    """
    refuse_transforms(NAME, {ARGUMENTS[name]: x for name, x in tensors.items()} | options)
    refuse_all_transforms(NAME)
    settings = {**ATTENTION.defaults(), **checked_options(NAME, options)}
    autocast(tensors)
    gate = tensors["gate"]
    recorded = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors.values())
    is_f16 = tensors["q"].dtype == torch.float16
    keep_attn = recorded and gate is not None and keeps_output(settings["gate_fn"], settings["gate_op"], is_f16)
    given = (tensors[name] for name in _INPUTS)
    y, lse, max_scores = _FlexAttention.apply(block_mask, settings, keep_attn, keep_max, *given)
    return y, as_returned(lse, y), max_scores


def _checked_aux(return_lse: bool, return_aux: Any) -> AuxRequest:
    """Returns an AuxRequest that names the results to return in addition to y. Checks the arguments."""
    if return_aux is None:
        return AuxRequest(lse=return_lse)
    if not isinstance(return_aux, AuxRequest):
        raise TypeError(f"{NAME}: return_aux is {shown(return_aux)} but must be an AuxRequest or None")
    if return_lse:
        raise ValueError(f"{NAME}: return_lse and return_aux cannot be given together: use AuxRequest(lse=True)")
    refuse_other_aux(NAME, return_aux, AUX)
    return return_aux


@torch.compiler.disable(reason="it reads the lists of a BlockMask")
@takes(*_OPTIONS)
def flex_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: None = None,
    block_mask: BlockMask | None = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    kernel_options: Any = None,
    *,
    return_aux: AuxRequest | None = None,
    gate: Tensor | None = None,
    **options: Any,
) -> Tensor | tuple[Tensor, Tensor] | tuple[Tensor, AuxOutput]:
    """Computes torch.nn.attention.flex_attention.flex_attention with a BlockMask and a gate, with gradients.

    Takes O(T + S) memory and a mask for one block of queries. Without a block_mask, every query sees every key.

    query is (B,Hq,T,D), key and value are (B|1,Hkv,S,·). gate, (B,Hq,T,1) or (B,Hq,T,Dv), holds the raw logits of the
    gate. `options` are gate_fn, gate_op, softcap, precision and threads of gated_attention. A score_mod is rejected,
    since the kernels cannot run Python code. kernel_options are hints for other kernels. Known hints have no effect,
    unknown ones are rejected.

    Returns y. With return_lse, also returns the log-sum-exp (B,Hq,T). With return_aux=AuxRequest(lse=True,
    max_scores=True), also returns an AuxOutput. It holds the log-sum-exp and the largest score of each row, (B,Hq,T)
    each. max_scores has no gradient. Under torch.compile, the call is a graph break. Raises ValueError with a one-line
    message for invalid arguments.
    """
    if "gate_logits" in options:
        gate = take_old_name(NAME, options, "gate_logits", "gate", gate)
    require_known(NAME, options, _OPTIONS, (*ARGUMENTS.values(), "scale", "gate"))
    for name, flag in (("enable_gqa", enable_gqa), ("return_lse", return_lse)):
        require_bool(NAME, name, flag)
    if not isinstance(kernel_options, (Mapping, type(None))):
        raise TypeError(f"{NAME}: kernel_options is {shown(kernel_options)} but must be a dict or None")
    for name in map(str, kernel_options or ()):
        if name.removeprefix("fwd_").removeprefix("bwd_") not in KERNEL_OPTIONS:
            raise ValueError(f"{NAME}: kernel_options has '{name}', which is none of {', '.join(KERNEL_OPTIONS)}")
    if score_mod is not None:
        raise ValueError(f"{NAME}: score_mod is not supported: use gated_attention's bias, alibi_slopes or softcap")
    aux = _checked_aux(return_lse, return_aux)
    _check_tensors(query, key, value, gate, enable_gqa)
    gate = detach_unused(gate, options)
    if key.shape[0] == value.shape[0] == 1:
        key, value = (x.expand(query.shape[0], -1, -1, -1) for x in (key, value))
    options["scale"] = scale
    if block_mask is None:
        more = {"return_lse": True, "return_max_logit": "rows" if aux.max_scores else False}
        y, lse, *rest = call_as(NAME, ARGUMENTS, gated_attention, query, key, value, gate, **more, **options)
    else:
        _check_mask(block_mask, query, key, value, gate)
        tensors = {"q": query, "k": key, "v": value, "gate": gate}
        y, lse, *rest = call_as(NAME, ARGUMENTS, _attend_in_blocks, tensors, block_mask, options, aux.max_scores)
    if return_aux is not None:
        return y, AuxOutput(lse=lse if aux.lse else None, max_scores=rest[0] if aux.max_scores else None)
    return (y, lse) if aux.lse else y
