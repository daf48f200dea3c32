# SPDX-License-Identifier: Apache-2.0
"""Implements linear attention (one token at a time), the short convolution and the gated norm in jax.numpy."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from .call import Arrays, Call
from .fallback_attention import GATES

BLOCK = 64
"""Number of tokens in a block. The backward pass stores the first state of each block, and all states of one block."""


def linear_attention(call: Call, inputs: Arrays) -> Arrays:
    """Returns y, the state and, with snapshot_lengths, snapshots."""
    dtype = jnp.float64 if inputs["q"].dtype == jnp.float64 else jnp.float32
    bhtd = call.option("layout", "bhtd") == "bhtd"
    batch = inputs["q"].shape[0] if inputs["q"].ndim == 4 else 1

    def tokens(name: str) -> Array:
        """Returns an input as (T,B,H,X)."""
        x = inputs[name] if inputs[name].ndim == 4 else inputs[name][None]
        x = (x.transpose(2, 0, 1, 3) if bhtd else x.swapaxes(0, 1)).astype(dtype)
        return jnp.broadcast_to(x, (x.shape[0], batch, *x.shape[2:]))

    rows: Arrays = {name: tokens(name) for name in ("q", "k", "v", "decay", "beta") if name in inputs}
    eps = call.option("l2_norm")
    if eps is not None:
        rows |= {name: _normalized(rows[name], eps, jnp.sum) for name in ("q", "k")}
    count, heads, dim = rows["q"].shape[0], rows["v"].shape[2], rows["q"].shape[3]
    rows["k"] = rows["k"].repeat(heads // max(rows["k"].shape[2], 1), axis=2)
    packed = "cu_seqlens" in inputs
    sequences = inputs["cu_seqlens"].shape[0] - 1 if packed else batch
    if packed:
        rows["sequence"] = jnp.searchsorted(inputs["cu_seqlens"], jnp.arange(count), side="right") - 1
    state = jnp.zeros((sequences, heads, dim, rows["v"].shape[3]), dtype)
    if "state" in inputs:
        state = inputs["state"].astype(dtype)
    carry = {"state": state, "tokens": jnp.zeros(sequences, jnp.int32)}
    if "snapshot_lengths" in inputs:
        lengths = jnp.broadcast_to(inputs["snapshot_lengths"], (sequences, inputs["snapshot_lengths"].shape[1]))
        carry["snapshots"] = jnp.broadcast_to(state[:, None], (*lengths.shape, *state.shape[1:]))
    else:
        lengths = None
    carry, y = _scan(lambda c, row: _step(call, lengths, packed, c, row), carry, rows, count)
    y = y.transpose(1, 2, 0, 3) if bhtd else y.swapaxes(0, 1)
    found = {"y": y if inputs["q"].ndim == 4 else y[0], "state": carry["state"]}
    if lengths is not None:
        found["snapshots"] = carry["snapshots"].reshape((-1, *state.shape[1:]))
    return found


def _scan(step: Any, carry: Any, rows: Arrays, count: int) -> tuple[Any, Array]:
    """Runs lax.scan block by block. The backward pass keeps only the state at the start of each block, and recomputes
    the others.
    """
    size = min(BLOCK, max(count, 1))
    blocks = -(-count // size)
    is_row = jnp.arange(blocks * size) < count

    def in_blocks(x: Array) -> Array:
        padded = jnp.pad(x, [(0, blocks * size - count)] + [(0, 0)] * (x.ndim - 1))
        return padded.reshape((blocks, size, *x.shape[1:]))

    def guarded(carry: Any, row: Any) -> tuple[Any, Array]:
        after, y = step(carry, row[0])
        return jax.tree.map(lambda new, old: jnp.where(row[1], new, old), after, carry), y

    def block(carry: Any, some: Any) -> tuple[Any, Array]:
        return lax.scan(guarded, carry, some)

    blocked = jax.tree.map(in_blocks, rows), is_row.reshape((blocks, size))
    carry, y = lax.scan(jax.checkpoint(block), carry, blocked)
    return carry, y.reshape((-1, *y.shape[2:]))[:count]


def _step(call: Call, lengths: Array | None, packed: bool, carry: Arrays, row: Arrays) -> tuple[Any, Array]:
    """Updates the states with one token. Returns the new states and the token's y."""
    rule = call.option("rule", "gated_delta")
    q, k, v = (row[name] for name in ("q", "k", "v"))
    state = carry["state"][row["sequence"]][None] if packed else carry["state"]
    if "decay" in row:
        state = state * jnp.exp(row["decay"])[..., None]
    if rule in ("delta", "gated_delta"):
        v = v - jnp.einsum("bhde,bhd->bhe", state, k)
        v = v * row["beta"] if "beta" in row else v
    state = state + k[..., :, None] * v[..., None, :]
    heads = max(q.shape[1], state.shape[1])
    read = state.repeat(heads // state.shape[1], axis=1)
    scale = call.option("scale")
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    y = scale * jnp.einsum("bhde,bhd->bhe", read, q.repeat(heads // q.shape[1], axis=1))

    after = dict(carry)
    if packed:
        after["state"] = carry["state"].at[row["sequence"]].set(state[0])
        after["tokens"] = carry["tokens"].at[row["sequence"]].add(1)
    else:
        after["state"], after["tokens"] = state, carry["tokens"] + 1
    if lengths is not None:
        chosen = (lengths == after["tokens"][:, None])[..., None, None, None]
        after["snapshots"] = jnp.where(chosen, after["state"][:, None], carry["snapshots"])
    return after, y


def _normalized(x: Array, eps: float, combine: Callable[..., Array]) -> Array:
    """Returns x / sqrt(combine(x²) + eps), where combine is jnp.sum or jnp.mean of a row.

    Divides each row by its largest magnitude first. Otherwise, the squares of large elements would overflow, and the
    squares of small elements would become 0.
    """
    largest = jnp.maximum(jnp.abs(x).max(-1, keepdims=True, initial=0), eps**0.5)
    largest = lax.stop_gradient(jnp.where(largest == 0, 1, largest))
    rows = x / largest
    squares = combine(rows * rows, -1, keepdims=True) + (eps**0.5 / largest) ** 2
    is_zero = squares == 0
    return jnp.where(is_zero, 0, rows * lax.rsqrt(jnp.where(is_zero, 1, squares)))


def short_convolution(call: Call, inputs: Arrays) -> Arrays:
    """Returns y, the state and, with snapshot_lengths, snapshots."""
    dtype = jnp.float64 if inputs["x"].dtype == jnp.float64 else jnp.float32
    x = inputs["x"].astype(dtype)
    x = x if x.ndim == 3 else x[None]
    weight = inputs["weight"].astype(dtype)
    batch, count, channels = x.shape
    taps = weight.shape[1]
    packed = "cu_seqlens" in inputs
    bounds = inputs["cu_seqlens"] if packed else jnp.array([0, count])
    sequences = bounds.shape[0] - 1 if packed else batch
    state = jnp.zeros((sequences, taps - 1, channels), dtype)
    if "state" in inputs:
        state = inputs["state"].astype(dtype)
    t = jnp.arange(count)
    of_row = jnp.searchsorted(bounds, t, side="right") - 1
    place = t - bounds[of_row]
    total = jnp.zeros_like(x)
    for j in range(taps):
        before = taps - 1 - j
        rows = jnp.pad(x, ((0, 0), (before, 0), (0, 0)))[:, :count]
        at = jnp.clip(place - before + taps - 1, 0, taps - 2)
        old = state[of_row, at][None] if packed else state[:, at]
        total += weight[:, j] * jnp.where((place >= before)[:, None], rows, old)
    if "bias" in inputs:
        total += inputs["bias"].astype(dtype)
    y = total if call.option("activation", "silu") == "none" else jax.nn.silu(total)

    def rows_before(lengths: Array) -> Array:
        """Returns (N,M,K-1,C): the K-1 rows of sequence n that precede its token lengths[n,m]."""
        n = jnp.arange(sequences)[:, None, None]
        place = lengths[..., None] - (taps - 1) + jnp.arange(taps - 1)
        start = bounds[:-1][:, None, None] if packed else 0
        at = jnp.clip(start + place, 0, max(count - 1, 0))
        old = state[n, jnp.clip(place + taps - 1, 0, taps - 2)]
        if count == 0:
            return old
        return jnp.where((place >= 0)[..., None], x[0 if packed else n, at], old)

    all_tokens = jnp.diff(bounds) if packed else jnp.full((batch,), count)
    found = {"y": y if inputs["x"].ndim == 3 else y[0], "state": rows_before(all_tokens[:, None])[:, 0]}
    if "snapshot_lengths" in inputs:
        lengths = jnp.broadcast_to(inputs["snapshot_lengths"], (sequences, inputs["snapshot_lengths"].shape[1]))
        found["snapshots"] = rows_before(lengths).reshape((-1, taps - 1, channels))
    return found


def gated_norm(call: Call, inputs: Arrays) -> Arrays:
    """Returns y."""
    dtype = jnp.float64 if inputs["x"].dtype == jnp.float64 else jnp.float32
    x = inputs["x"].astype(dtype)
    y = _normalized(x, call.option("eps", 1e-6), jnp.mean)
    if "weight" in inputs:
        weight = inputs["weight"].astype(dtype)
        bhtd = call.option("layout", "bhtd") == "bhtd"
        y = y * (weight[:, None] if weight.ndim == 2 and bhtd else weight)
    if "gate" in inputs:
        y = y * GATES[call.option("gate_fn", "silu")](inputs["gate"].astype(dtype))
    return {"y": y}
