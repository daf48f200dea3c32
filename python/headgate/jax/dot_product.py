# SPDX-License-Identifier: Apache-2.0
"""Attention with the arguments of jax.nn.dot_product_attention."""

import operator
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from .arguments import flag, to_jax
from .attention import gated_attention

NAME = "dot_product_attention"


def dot_product_attention(
    query: Array,
    key: Array,
    value: Array,
    bias: Array | None = None,
    mask: Array | None = None,
    *,
    gate: Array | None = None,
    scale: float | None = None,
    is_causal: bool = False,
    query_seq_lengths: Array | None = None,
    key_value_seq_lengths: Array | None = None,
    local_window_size: int | tuple[int, int] | None = None,
    implementation: None = None,
    return_residual: bool = False,
) -> Array | tuple[Array, Array]:
    """Computes jax.nn.dot_product_attention with Headgate and multiplies the result by the sigmoid of `gate`.

    `query` is (B,T,Hq,D), `key` and `value` are (B,S,Hkv,D). `gate` holds raw logits, (B,T,Hq,1) or (B,T,Hq,D). All of
    them may lack B. bias and the boolean mask broadcast to (B,Hq,T,S). With is_causal, query i sees key j if j <= i,
    for any T and S. With local_window_size (left,right), query i sees keys i - left to i + right. One integer sets both
    sizes. Rows from query_seq_lengths[b] on are 0. With return_residual, also returns the log-sum-exp (B,T,Hq), which
    has no gradient.

    A row that sees no key is 0, and its log-sum-exp is -inf. jax.nn instead returns the mean of all values for such a
    row. Raises ValueError with a one-line message if an argument is invalid. `implementation`, which selects a backend
    in jax.nn, must be None.
    """
    if implementation is not None:
        raise ValueError(f"{NAME}: implementation is {implementation!r} but must be None: Headgate computes the call")
    has_batch = jnp.ndim(query) != 3
    query, key, value, gate = (_of_batch(name, x, has_batch) for name, x in zip(_HEADS, (query, key, value, gate)))
    B, T = query.shape[:2]
    key_lengths = _lengths("key_value_seq_lengths", key_value_seq_lengths, B)
    query_lengths = _lengths("query_seq_lengths", query_seq_lengths, B)
    options = {"causality": "causal" if flag(NAME, "is_causal", is_causal) else "none", **_window(local_window_size)}
    if len(options) > 1 or is_causal:
        options["query_offsets"] = jnp.zeros(B, jnp.int32)  # position of query i is i, even if T and S differ
    results = gated_attention(
        query,
        key,
        value,
        gate,
        bias=_scores(bias, key.shape[1]),
        mask=_scores(mask, key.shape[1]),
        key_lengths=key_lengths,
        scale=scale,
        layout="bthd",
        return_lse=flag(NAME, "return_residual", return_residual),
        **options,
    )
    y, lse = results if return_residual else (results, None)
    results = [y] if lse is None else [y, lax.stop_gradient(lse.swapaxes(1, 2)).astype(y.dtype)]
    if query_lengths is not None:
        is_query = jnp.arange(T)[None] < query_lengths[:, None]
        hidden = (0, -jnp.inf)
        results = [jnp.where(jnp.expand_dims(is_query, range(2, x.ndim)), x, h) for x, h in zip(results, hidden)]
    results = results if has_batch else [x[0] for x in results]
    return tuple(results) if return_residual else results[0]


_HEADS = ("query", "key", "value", "gate")


def _of_batch(name: str, x: Any, has_batch: bool) -> Any:
    """Returns the array as (B,T,H,D), with B = 1 if the call has no batch."""
    if x is None:
        return None
    x = jnp.asarray(x)
    if x.ndim != 3 + has_batch:
        wanted = "(B,T,H,D)" if has_batch else "(T,H,D), as query is"
        raise ValueError(f"{NAME}: {name} has shape {x.shape} but must be {wanted}")
    return x if has_batch else x[None]


def _scores(x: Any, keys: int) -> Any:
    """Reshapes an array that broadcasts to (B,Hq,T,S) to four dimensions, the last of which has `keys` elements."""
    if x is None:
        return None
    x = jnp.asarray(x)
    x = x.reshape((1,) * (4 - x.ndim) + x.shape)
    return jnp.broadcast_to(x, (*x.shape[:-1], keys)) if x.shape[-1] == 1 else x


def _window(size: Any) -> dict[str, Any]:
    """Converts local_window_size to options of gated_attention. Refuses negative sizes, since -1 would mean no limit."""
    if size is None:
        return {}
    try:
        left, right = map(operator.index, size if isinstance(size, tuple | list) else (size, size))
    except (TypeError, ValueError):
        left = right = -1
    if min(left, right) < 0:
        raise ValueError(
            f"{NAME}: local_window_size is {size!r} but must be a number of keys, or (left, right), from 0 on"
        )
    return {"window_left": left, "window_right": right}


def _lengths(name: str, lengths: Any, B: int) -> Array | None:
    if lengths is None:
        return None
    lengths = to_jax(NAME, name, lengths if hasattr(lengths, "dtype") else np.asarray(lengths))
    if lengths.shape != (B,) or not jnp.issubdtype(lengths.dtype, jnp.integer):
        raise ValueError(
            f"{NAME}: {name} has shape {lengths.shape} and dtype {lengths.dtype} but must be integers of shape ({B},), one "
            "for each sequence"
        )
    return lengths
