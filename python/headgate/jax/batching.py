# SPDX-License-Identifier: Apache-2.0
"""Computes all examples of a vmap in one call, the folded call.

Folding merges the examples into another dimension. Usually, the examples become sequences of one batch. Examples with
separate weights become heads or channels. The FFI handler broadcasts a shared input with a batch of 1 by stride 0,
without a copy.

Packed batches, pages and dropout need one call for each example, since their results depend on the whole batch of a
call. Packed batches of the short convolution are an exception: their examples become channels.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from .call import SHARED_BY_STRIDE, Arrays, Call, describe


class FoldedArray(NamedTuple):
    """Holds an input of a folded call, which computes all examples of a vmap at once.

    gradients(x) splits x, the gradient of the input, into one gradient per example: (examples, *shape).
    """

    array: Array
    gradients: Callable[[Array], Array]


class VmapArray(NamedTuple):
    """Holds an array of a call under vmap. If `batched`, the first dimension enumerates the examples. Otherwise all
    examples share the array.
    """

    array: Array
    batched: bool
    size: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one example."""
        return self.array.shape[1:] if self.batched else self.array.shape

    def repeated(self) -> Array:
        """Returns the array with the examples in the first dimension."""
        return self.array if self.batched else jnp.broadcast_to(self.array, (self.size, *self.array.shape))


def forward(run: Callable[..., Arrays], call: Call, size: int, batched: Any, inputs: Arrays) -> Any:
    """Returns the outputs of `size` examples, with the examples in the first dimension.

    run(call, inputs) is the forward pass. The second result maps each output to True, which tells custom_vmap that the
    output is batched.
    """

    def compute(each: Arrays) -> Arrays:
        return run(call, each)

    if _needs_calls(call, inputs, batched[0]):
        outputs = _compute_each(compute, batched, (inputs,))
    else:
        arrays = _vmap_arrays(size, batched[0], inputs)
        folded_call = _FOLD_FUNCTIONS[call.operation](call, size, arrays, frozenset())
        folded_inputs = {name: own.array for name, own in folded_call.inputs.items()}
        found = run(call._replace(folded=True), folded_inputs)
        one_example = {name: jax.ShapeDtypeStruct(x.shape, x.array.dtype) for name, x in arrays.items()}
        described = describe(call, one_example)
        outputs = {name: folded_call.unfold(name, x, described[name][0]) for name, x in found.items()}
    return outputs, dict.fromkeys(outputs, True)


def backward(
    run: Callable[..., Arrays], call: Call, size: int, batched: Any, incoming: Arrays, saved: Arrays, inputs: Arrays
) -> Any:
    """Returns the gradients of `size` examples, with the examples in the first dimension.

    run(call, incoming, saved, inputs) is the backward pass. The second result maps each gradient to True, which tells
    custom_vmap that the gradient is batched.
    """

    def compute(*each: Arrays) -> Arrays:
        return run(call, *each)

    if _needs_calls(call, inputs, batched[2]):
        found = _compute_each(compute, batched, (incoming, saved, inputs))
        return found, dict.fromkeys(found, True)
    arrays = _vmap_arrays(size, batched[2], inputs)
    folded_call = _FOLD_FUNCTIONS[call.operation](call, size, arrays, frozenset(call.gradients))
    folded_rows = [
        {name: folded_call.fold_rows(name, x) for name, x in _vmap_arrays(size, which, rows).items()}
        for which, rows in zip(batched, (incoming, saved))
    ]
    folded_inputs = {name: own.array for name, own in folded_call.inputs.items()}
    given = run(call._replace(folded=True), *folded_rows, folded_inputs)
    found = {name: folded_call.inputs[name].gradients(x) for name, x in given.items()}
    return found, dict.fromkeys(found, True)


def _vmap_arrays(size: int, batched: dict[str, bool], arrays: Arrays) -> dict[str, VmapArray]:
    return {name: VmapArray(x, batched[name], size) for name, x in arrays.items()}


_FOLDABLE_INPUTS = {
    name: frozenset(words.split())
    for name, words in {
        "gated_attention": "q k v gate bias mask key_lengths alibi_slopes sinks query_offsets k_scale v_scale key_bias "
        "key_indices k_first v_first",
        "linear_attention": "q k v decay beta state snapshot_lengths",
        "short_convolution": "x weight bias state cu_seqlens snapshot_lengths",
        "gated_norm": "x weight gate",
    }.items()
}
"""Inputs that a folded call supports. A call with other inputs, such as those of packed batches, is made for each
example."""


def _needs_calls(call: Call, inputs: Arrays, batched: dict[str, bool]) -> bool:
    """Returns whether each example needs a separate call."""
    if call.option("dropout") or not inputs.keys() <= _FOLDABLE_INPUTS[call.operation]:
        return True
    if call.operation != "short_convolution":
        return False
    # Examples of the convolution become channels if they have separate weights or are packed batches.
    # All channels share cu_seqlens and snapshot_lengths, so all examples must have equal ones.
    are_channels = "cu_seqlens" in inputs or batched["weight"] or batched.get("bias", False)
    return are_channels and any(batched.get(name, False) for name in ("cu_seqlens", "snapshot_lengths"))


def _compute_each(compute: Callable[..., Any], batched: Any, arrays: Any) -> Arrays:
    """Computes one example after the other."""
    own = [{name: x for name, x in some.items() if which[name]} for which, some in zip(batched, arrays)]
    shared = [{name: x for name, x in some.items() if not which[name]} for which, some in zip(batched, arrays)]

    def example(each: Any) -> Arrays:
        return compute(*({**of_all, **some} for of_all, some in zip(shared, each)))

    return lax.map(example, own)


class FoldedCall(NamedTuple):
    """Holds the inputs of a folded call, which computes all examples of a vmap at once, and two functions.

    - fold_rows(name, x) merges the examples of an incoming gradient or of a saved output.
    - unfold(name, array, shape) splits an output into one array per example, (examples, *shape).
    """

    inputs: dict[str, FoldedArray]
    fold_rows: Callable[[str, VmapArray], Array]
    unfold: Callable[[str, Array, tuple[int, ...]], Array]


def _as_sequences(x: VmapArray, rank: int, batch: int) -> Array:
    """Merges the dimensions of examples and sequences of an array. Each example has `batch` sequences.

    An example with fewer than `rank` dimensions has no batch dimension. It is one sequence.
    """
    rows = x.repeated()
    if len(x.shape) < rank:
        return rows
    if x.shape[0] == 1:
        rows = jnp.broadcast_to(rows, (x.size, batch, *x.shape[1:]))
    return rows.reshape((rows.shape[0] * rows.shape[1], *x.shape[1:]))


def _fold_sequences(x: VmapArray, rank: int, batch: int, may_share: bool) -> FoldedArray:
    """Folds an array with a batch. If `may_share` is true, keeps a batch of 1 that all examples share."""
    has_batch = len(x.shape) == rank
    shares = may_share and not x.batched and (not has_batch or x.shape[0] == 1)
    array = x.array.reshape((1, *x.shape[-(rank - 1) :])) if shares else _as_sequences(x, rank, batch)
    own = (batch, *x.shape[1:]) if has_batch else x.shape
    return FoldedArray(array, lambda gradient: gradient.reshape((x.size, *own)))


def _fold_into_batch(size: int, rank: int, batch: int, inputs: dict[str, FoldedArray]) -> FoldedCall:
    """Returns a folded call, in which the sequences of all examples of a vmap are one batch.

    `rank` is the rank of q or x including its batch dimension.
    """
    ranks = {"dlse": rank - 1, "dstate": rank if rank == 4 else 3}
    return FoldedCall(
        inputs,
        lambda name, x: _as_sequences(x, ranks.get(name, rank), batch),
        lambda _, array, shape: array.reshape((size, *shape)),
    )


def _share(x: VmapArray) -> FoldedArray:
    return FoldedArray(x.array, lambda gradient: gradient)


def _fold_scores(x: VmapArray, batch: int, wanted: bool) -> FoldedArray:
    """Merges the examples into the batch dimension of an array (B|1,H|1,T|1,S). The array may lack leading dimensions."""
    shape = (*(1,) * (4 - len(x.shape)), *x.shape)
    if not (x.batched or wanted) and shape[0] == 1:
        return _share(x)
    rows = x.repeated().reshape((x.size, *shape))
    rows = jnp.broadcast_to(rows, (x.size, batch, *shape[1:])).reshape((x.size * batch, *shape[1:]))

    def gradients(gradient: Array) -> Array:
        each = gradient.reshape((x.size, batch, *shape[1:]))
        if shape[0] == 1 and batch > 1:
            each = each.astype(jnp.promote_types(each.dtype, jnp.float32)).sum(1)
        return each.astype(gradient.dtype).reshape((x.size, *x.shape))

    return FoldedArray(rows, gradients)


def _fold_slopes(x: VmapArray, batch: int) -> FoldedArray:
    """Folds ALiBi slopes, (H) or (B,H)."""
    if not x.batched and len(x.shape) == 1:
        return _share(x)
    heads = x.shape[-1]
    rows = x.repeated().reshape((x.size, x.shape[0] if len(x.shape) == 2 else 1, heads))
    rows = jnp.broadcast_to(rows, (x.size, batch, heads)).reshape((x.size * batch, heads))
    return FoldedArray(rows, lambda gradient: gradient)


def _fold_sinks(x: VmapArray, batch: int, heads: int, queries: int, wanted: bool) -> FoldedArray:
    """Merges the examples of sink logits: (H), or per query (H,T) or (B|1,H,T).

    Expands sinks to (examples·B,H,T) if they differ between examples or sequences, or need gradients.
    """
    by_query = len(x.shape) > 1
    if not (x.batched or wanted) and (not by_query or len(x.shape) == 2 or x.shape[0] == 1):
        return _share(x) if len(x.shape) != 2 else FoldedArray(x.array[None], lambda gradient: gradient)
    leading = x.shape[0] if len(x.shape) == 3 else 1
    rows = x.repeated().reshape((x.size, leading, heads, queries if by_query else 1))
    rows = jnp.broadcast_to(rows, (x.size, batch, heads, queries)).reshape((x.size * batch, heads, queries))

    def gradients(gradient: Array) -> Array:
        each = gradient.reshape((x.size, batch, heads, queries))
        if not by_query:
            each = each.sum((1, 3))
        elif leading == 1:  # an example's sequences share its sinks
            each = each.sum(1)
        return each.reshape((x.size, *x.shape))

    return FoldedArray(rows, gradients)


def _fold_attention(call: Call, size: int, inputs: dict[str, VmapArray], wanted: frozenset[str]) -> FoldedCall:
    q = inputs["q"].shape
    batch = q[0] if len(q) == 4 else 1
    heads, queries = q[-3:-1] if call.option("layout", "bhtd") == "bhtd" else (q[-2], q[-3])
    folded = {}
    for name, x in inputs.items():
        if name in ("bias", "mask", "key_bias", "key_indices"):
            folded[name] = _fold_scores(x, batch, name in wanted)
        elif name == "alibi_slopes":
            folded[name] = _fold_slopes(x, batch)
        elif name == "sinks":
            folded[name] = _fold_sinks(x, batch, heads, queries, name in wanted)
        elif name in ("key_lengths", "query_offsets"):
            folded[name] = _fold_sequences(x, 1, batch, False)
        else:
            folded[name] = _fold_sequences(x, 4, batch, name != "q" and name in SHARED_BY_STRIDE[call.operation])
    return _fold_into_batch(size, 4, batch, folded)


def _fold_linear_attention(call: Call, size: int, inputs: dict[str, VmapArray], wanted: frozenset[str]) -> FoldedCall:
    q = inputs["q"].shape
    batch = q[0] if len(q) == 4 else 1
    folded = {}
    for name, x in inputs.items():
        if name == "snapshot_lengths":
            folded[name] = _fold_lengths(x, batch)
        else:
            folded[name] = _fold_sequences(x, 4, batch, name not in ("q", "state"))
    return _fold_into_batch(size, 4, batch, folded)


def _fold_lengths(x: VmapArray, batch: int) -> FoldedArray:
    """Merges the examples into the first dimension of snapshot_lengths, (N|1,M)."""
    if not x.batched and x.shape[0] == 1:
        return _share(x)
    rows = jnp.broadcast_to(x.repeated(), (x.size, batch, x.shape[1]))
    return FoldedArray(rows.reshape((x.size * batch, x.shape[1])), lambda gradient: gradient)


def _fold_short_convolution(call: Call, size: int, inputs: dict[str, VmapArray], wanted: frozenset[str]) -> FoldedCall:
    own_weights = any(name in wanted or inputs[name].batched for name in ("weight", "bias") if name in inputs)
    if own_weights or "cu_seqlens" in inputs:
        return _fold_into_channels(size, inputs)
    x = inputs["x"].shape
    batch = x[0] if len(x) == 3 else 1
    folded = {}
    for name, array in inputs.items():
        if name in ("weight", "bias"):
            folded[name] = _share(array)
        elif name == "snapshot_lengths":
            folded[name] = _fold_lengths(array, batch)
        else:
            folded[name] = _fold_sequences(array, 3, batch, False)
    return _fold_into_batch(size, 3, batch, folded)


def _fold_into_channels(size: int, inputs: dict[str, VmapArray]) -> FoldedCall:
    """Folds the examples into channels: the C channels of example e get the indices e*C to e*C + C - 1."""

    def at_end(x: VmapArray) -> Array:
        rows = jnp.moveaxis(x.repeated(), 0, -2)
        return rows.reshape((*rows.shape[:-2], rows.shape[-2] * rows.shape[-1]))

    def to_front(array: Array, shape: tuple[int, ...]) -> Array:
        rows = array.reshape((*array.shape[:-1], size, shape[-1]))
        return jnp.moveaxis(rows, -2, 0).reshape((size, *shape))

    def folded(name: str, x: VmapArray) -> FoldedArray:
        if name in ("cu_seqlens", "snapshot_lengths"):
            return _share(x)
        if name in ("weight", "bias"):
            rows = x.repeated().reshape((size * x.shape[0], *x.shape[1:]))
            return FoldedArray(rows, lambda gradient: gradient.reshape((size, *x.shape)))
        return FoldedArray(at_end(x), lambda gradient: to_front(gradient, x.shape))

    own = {name: folded(name, x) for name, x in inputs.items()}
    return FoldedCall(own, lambda _, x: at_end(x), lambda _, array, shape: to_front(array, shape))


def _fold_gated_norm(call: Call, size: int, inputs: dict[str, VmapArray], wanted: frozenset[str]) -> FoldedCall:
    weight = inputs.get("weight")
    if weight is not None and (weight.batched or "weight" in wanted):
        return _fold_into_heads(call, size, inputs)
    x = inputs["x"].shape
    batch = x[0] if len(x) == 4 else 1
    folded = {
        name: _share(array) if name == "weight" else _fold_sequences(array, 4, batch, name == "gate")
        for name, array in inputs.items()
    }
    return _fold_into_batch(size, 4, batch, folded)


def _fold_into_heads(call: Call, size: int, inputs: dict[str, VmapArray]) -> FoldedCall:
    """Folds the examples into heads: the H heads of example e get the indices e*H to e*H + H - 1."""
    axis = -3 if call.option("layout", "bhtd") == "bhtd" else -2
    heads = inputs["x"].shape[axis]

    def fold_rows(_: str, x: VmapArray) -> Array:
        rows = jnp.moveaxis(x.repeated(), 0, axis - 1)
        return rows.reshape((*rows.shape[: axis - 1], size * heads, *rows.shape[axis + 1 :]))

    def unfold(array: Array) -> Array:
        rows = array.reshape((*array.shape[:axis], size, heads, *array.shape[axis + 1 :]))
        return jnp.moveaxis(rows, axis - 1, 0)

    def folded(name: str, x: VmapArray) -> FoldedArray:
        if name != "weight":
            return FoldedArray(fold_rows(name, x), unfold)
        by_head = len(x.shape) == 2
        dim = x.shape[-1]
        rows = x.repeated().reshape((size, heads if by_head else 1, dim))
        rows = jnp.broadcast_to(rows, (size, heads, dim)).reshape((size * heads, dim))

        def gradients(gradient: Array) -> Array:
            each = gradient.reshape((size, heads, dim))
            return each if by_head else _sum_in_f32(each)

        return FoldedArray(rows, gradients)

    return FoldedCall(
        {name: folded(name, x) for name, x in inputs.items()}, fold_rows, lambda _, array, __: unfold(array)
    )


def _sum_in_f32(each: Array) -> Array:
    """Returns the sums over dimension 1, computed in f32 or better."""
    return each.astype(jnp.promote_types(each.dtype, jnp.float32)).sum(1).astype(each.dtype)


_FOLD_FUNCTIONS = {
    "gated_attention": _fold_attention,
    "linear_attention": _fold_linear_attention,
    "short_convolution": _fold_short_convolution,
    "gated_norm": _fold_gated_norm,
}
