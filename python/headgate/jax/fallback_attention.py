# SPDX-License-Identifier: Apache-2.0
"""Gated attention with jax.numpy, computed in blocks of queries. Memory is O(T), as in libheadgate."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from .call import Arrays, Call

BLOCK = 128
"""Number of queries in a block. Only the scores of one block are in memory at the same time."""

GATES = {
    "sigmoid": jax.nn.sigmoid,
    "sigmoid2": lambda z: 2 * jax.nn.sigmoid(z),
    "ns_sigmoid": lambda z: 0.5 + 0.5 * jax.nn.sigmoid(z),
    "silu": jax.nn.silu,
    "softplus": jax.nn.softplus,
    "identity": lambda z: z,
}


def refusal(inputs: Arrays) -> str | None:
    """Returns a text that names inputs whose combination is unsupported. Returns None if this module supports all
    inputs together.
    """
    for name in ("block_table", "k_first"):
        if name in inputs and "cu_seqlens_q" in inputs:
            return f"{name} with cu_seqlens_q"
    return None


class Sequences(NamedTuple):
    """Positions of queries and keys within their sequences, which decide what each query may see. Arrays of queries are
    (T,B), arrays of keys (S,B).
    """

    position: Array  # position of each query among the keys of its sequence
    key: Array  # index of each key in its sequence
    of_query: Array  # index of the sequence that each query belongs to
    of_key: Array  # index of the sequence that each key belongs to
    is_read: Array  # false for keys beyond key_lengths


def compute(call: Call, inputs: Arrays) -> Arrays:
    """Returns y, attn, lse and max_logit, in the shapes of headgate.attention_forward."""
    bhtd = call.option("layout", "bhtd") == "bhtd"
    has_batch = inputs["q"].ndim == 4
    dtype = jnp.float64 if inputs["q"].dtype == jnp.float64 else jnp.float32

    def heads(x: Array) -> Array:
        x = x if x.ndim == 4 else x[None]
        return (x if bhtd else x.swapaxes(1, 2)).astype(dtype)

    q = heads(inputs["q"])
    k, v = _keys(inputs, heads, q.shape[0])
    places = _places(call, inputs, q.shape, k.shape[2])
    k, v = (jnp.where(places.is_read.T[:, None, :, None], x, 0) for x in (k, v))
    attn, lse, largest = _attend(call, inputs, places, q, k, v)

    y = attn
    if "gate" in inputs:
        g = GATES[call.option("gate_fn", "sigmoid")](heads(inputs["gate"]))
        y = attn + g if call.option("gate_op", "mul") == "add" else attn * g
        threshold = call.option("gate_threshold", 0.0)
        if threshold > 0:
            closed = (jnp.abs(g) <= threshold).all(-1)
            y, attn = (jnp.where(closed[..., None], 0, x) for x in (y, attn))
            lse, largest = jnp.where(closed, jnp.inf, lse), jnp.where(closed, -jnp.inf, largest)
    if not call.rows_of_max_logit:
        largest = _largest_of_heads(inputs, places, largest)

    def back(x: Array) -> Array:
        x = x if bhtd else x.swapaxes(1, 2)
        return x if has_batch else x[0]

    packed = "cu_seqlens_q" in inputs
    keeps = has_batch or call.rows_of_max_logit or packed
    return {
        "y": back(y),
        "attn": back(attn),
        "lse": lse if has_batch else lse[0],
        "max_logit": largest if keeps else largest[0],
    }


def _keys(inputs: Arrays, heads: Any, batch: int) -> tuple[Array, Array]:
    """Returns keys and values (B,Hkv,S,D). Inputs that the call lacks are skipped:

    - Gathers the keys and values from the pages of block_table.
    - Multiplies them by k_scale and v_scale.
    - Replaces the first rows by k_first and v_first.
    """
    found = []
    for name in ("k", "v"):
        x = heads(inputs[name])
        if f"{name}_scale" in inputs:
            x = x * heads(inputs[f"{name}_scale"])
        if "block_table" in inputs:
            pages = x[inputs["block_table"]]  # (B,M,Hkv,page,D)
            x = pages.swapaxes(1, 2).reshape((pages.shape[0], pages.shape[2], -1, pages.shape[4]))
        if f"{name}_first" in inputs:
            first = heads(inputs[f"{name}_first"])[:, :, : x.shape[2]]
            first = jnp.broadcast_to(first, (batch, *first.shape[1:]))
            x = jnp.broadcast_to(x, (batch, *x.shape[1:])).at[:, :, : first.shape[2]].set(first)
        found.append(jnp.broadcast_to(x, (batch, *x.shape[1:])))
    return found[0], found[1]


def _places(call: Call, inputs: Arrays, q: tuple[int, ...], keys: int) -> Sequences:
    batch, _, queries, _ = q
    i, j = jnp.arange(queries)[:, None], jnp.arange(keys)[:, None]
    if "cu_seqlens_q" not in inputs:
        b = jnp.arange(batch)[None]
        of_query, of_key = jnp.broadcast_to(b, (queries, batch)), jnp.broadcast_to(b, (keys, batch))
        shift = jnp.full((batch,), keys - queries)
    else:
        cu_q, cu_k = inputs["cu_seqlens_q"], inputs["cu_seqlens_k"]
        of_query = jnp.searchsorted(cu_q, i, side="right") - 1
        of_key = jnp.searchsorted(cu_k, j, side="right") - 1
        i, j = i - cu_q[of_query], j - cu_k[of_key]
        shift = jnp.diff(cu_k) - jnp.diff(cu_q)
    shift = inputs.get("query_offsets", shift)
    j = jnp.broadcast_to(j, of_key.shape)
    is_read = j < inputs["key_lengths"][of_key] if "key_lengths" in inputs else jnp.ones(of_key.shape, bool)
    return Sequences(i + shift[of_query], j, of_query, of_key, is_read)


def _full(x: Array) -> Array:
    """Expands an array that broadcasts to the scores to four dimensions, and moves the queries first: (T,B,H,S)."""
    return jnp.moveaxis(x.reshape((*(1,) * (4 - x.ndim), *x.shape)), 2, 0)


def _attend(call: Call, inputs: Arrays, places: Sequences, q: Array, k: Array, v: Array) -> tuple[Array, Array, Array]:
    """Returns the output before the gate (B,H,T,Dv), its log-sum-exp (B,H,T) and the largest scores (B,H,T)."""
    batch, heads, queries, dim = q.shape
    groups = k.shape[1]
    size = min(BLOCK, max(queries, 1))
    blocks = -(-queries // size)
    if queries == 0 or batch == 0 or heads == 0 or k.shape[2] == 0:
        rows = jnp.full((batch, heads, queries), -jnp.inf, q.dtype)
        lse = jnp.maximum(rows, _sinks_by_row(inputs, q).transpose(1, 2, 0)) if "sinks" in inputs else rows
        return jnp.zeros((batch, heads, queries, v.shape[3]), q.dtype), lse, rows

    rows = {"q": q.transpose(2, 0, 1, 3).reshape((queries, batch, groups, heads // groups, dim))}
    rows |= {"position": places.position, "of_query": places.of_query}
    whole: Arrays = {}  # biases, masks and key lists that all queries share
    for name in ("bias", "key_bias", "mask", "key_indices"):
        if name in inputs:
            x = _full(inputs[name])
            (whole if x.shape[0] == 1 and queries > 1 else rows)[name] = x
    if "sinks" in inputs:
        rows["sinks"] = _sinks_by_row(inputs, q)

    def in_blocks(x: Array) -> Array:
        padded = jnp.pad(x, [(0, blocks * size - queries)] + [(0, 0)] * (x.ndim - 1))
        return padded.reshape((blocks, size, *x.shape[1:]))

    def block(some: Arrays) -> tuple[Array, Array, Array]:
        return _attend_rows(call, inputs.get("alibi_slopes"), places, {**whole, **some}, k, v)

    def together(x: Array) -> Array:
        x = x.reshape((blocks * size, batch, heads, *x.shape[5:]))[:queries]
        return jnp.moveaxis(x, 0, 2)

    if blocks == 1:
        return tuple(together(x[None]) for x in block(rows))
    o, lse, largest = lax.map(jax.checkpoint(block), {name: in_blocks(x) for name, x in rows.items()})
    return together(o), together(lse), together(largest)


def _sinks_by_row(inputs: Arrays, q: Array) -> Array:
    """Returns one sink per query and head, (T,B,H)."""
    batch, heads, queries, _ = q.shape
    sinks = inputs["sinks"].astype(q.dtype)
    if sinks.ndim == 1:
        return jnp.broadcast_to(sinks, (queries, batch, heads))
    sinks = sinks if sinks.ndim == 3 else sinks[None]
    return jnp.broadcast_to(sinks, (batch, heads, queries)).transpose(2, 0, 1)


def _attend_rows(
    call: Call, slopes: Array | None, places: Sequences, rows: Arrays, k: Array, v: Array
) -> tuple[Array, Array, Array]:
    """Computes attention for a block of queries (T,B,Hkv,G,D), with G query heads per key/value head.

    Results are (T,B,Hkv,G,…).
    """
    q = rows["q"]
    groups, of_group = q.shape[2:4]

    def grouped(x: Array) -> Array:
        """Splits H query heads into Hkv key/value heads of G query heads: (T,B,H|1,S) to (T,B,Hkv|1,G|1,S)."""
        return x[:, :, :, None] if x.shape[2] == 1 else x.reshape((*x.shape[:2], groups, of_group, x.shape[3]))

    scale = call.option("scale")
    scores = jnp.einsum("tbkgd,bksd->tbkgs", q, k) * (q.shape[-1] ** -0.5 if scale is None else scale)
    softcap = call.option("softcap", 0.0)
    if softcap > 0:
        scores = softcap * jnp.tanh(scores / softcap)
    at, key = rows["position"][:, :, None], places.key.T[None]
    if slopes is not None:
        own = slopes.astype(q.dtype) if slopes.ndim == 1 else slopes.astype(q.dtype)[rows["of_query"]]
        own = jnp.broadcast_to(own, (*q.shape[:2], groups * of_group))
        scores -= grouped(own[..., None] * jnp.abs(at - key)[:, :, None].astype(q.dtype))
    for name in ("bias", "key_bias"):
        if name in rows:
            scores += grouped(rows[name].astype(q.dtype))

    seen = _seen(call, rows, places, at, key)[:, :, None, None]
    if "mask" in rows:
        seen = seen & grouped(rows["mask"])
    if "key_indices" in rows:
        seen = seen & _listed(call, rows["key_indices"], places)[:, :, :, None]
    scores = jnp.where(seen, scores, -jnp.inf)
    largest = scores.max(-1)
    return *_softmax(scores, largest, rows.get("sinks"), v), largest


def _seen(call: Call, rows: Arrays, places: Sequences, at: Array, key: Array) -> Array:
    """Returns (T,B,S): true for keys that a query sees by its sequence and position."""
    seen = (rows["of_query"][:, :, None] == places.of_key.T[None]) & places.is_read.T[None]
    left, right = call.option("window_left", -1), call.option("window_right", -1)
    if call.option("causality", "none") == "causal":
        seen &= key <= at
    if left != -1:
        seen &= key >= at - left
    if right != -1:
        seen &= key <= at + right
    return seen


def _listed(call: Call, lists: Array, places: Sequences) -> Array:
    """Returns (T,B,H,S): true for keys in the blocks that the lists (T,B|1,H|1,K) name.

    Each entry of a list is the index of a block of key_block_size keys, counted within the query's sequence. Negative
    entries are ignored.
    """
    size = call.option("key_block_size", 1)
    blocks = -(-places.key.shape[0] // size)
    at = jnp.where(lists < 0, blocks, lists)
    marks = jnp.zeros((*lists.shape[:3], blocks), bool)
    t, b, h = (jnp.arange(n).reshape(shape) for n, shape in zip(lists.shape, ((-1, 1, 1, 1), (-1, 1, 1), (-1, 1))))
    marks = marks.at[t, b, h, at].set(True, mode="drop")
    wanted = (places.key.T // size)[None, :, None]
    marks = jnp.broadcast_to(marks, (lists.shape[0], wanted.shape[1], *marks.shape[2:]))
    return jnp.take_along_axis(marks, wanted, axis=-1)


def _softmax(scores: Array, largest: Array, sinks: Array | None, v: Array) -> tuple[Array, Array]:
    """Returns the attention output and the log-sum-exp. In a row that sees no key, the output is 0. Its log-sum-exp is
    the row's sink, or -inf without sinks.
    """
    sink = None if sinks is None else sinks.reshape(largest.shape)
    top = largest if sink is None else jnp.maximum(largest, sink)
    top = lax.stop_gradient(jnp.where(jnp.isneginf(top), 0, top))
    weights = jnp.exp(scores - top[..., None])
    total = weights.sum(-1)
    if sink is not None:
        total += jnp.exp(sink - top)
    none = total == 0
    total = jnp.where(none, 1, total)
    o = jnp.einsum("tbkgs,bksd->tbkgd", weights, v) / total[..., None]
    return o, jnp.where(none, -jnp.inf, top + jnp.log(total))


def _largest_of_heads(inputs: Arrays, places: Sequences, largest: Array) -> Array:
    """Returns the largest score of each sequence and head, (N,H)."""
    if "cu_seqlens_q" not in inputs:
        return largest.max(-1, initial=-jnp.inf)
    sequences = inputs["cu_seqlens_q"].shape[0] - 1
    return jax.ops.segment_max(largest[0].T, places.of_query[:, 0], sequences)
