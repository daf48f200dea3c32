# SPDX-License-Identifier: Apache-2.0
"""Short convolution in Triton: one kernel for the forward pass, two for the backward pass.

    s_t = bias + Σ_j weight_j x_{t−K+1+j}        y = act(s)        for each channel, with K taps

x is (B,T,C), weight (C,K), bias (C), states (N,K−1,C), with any strides. Row −i of x, before the first token, is row
K−1−i of the state. Without a state, it is 0. A program computes BLOCK_T tokens of a sequence by BLOCK_C channels. Sums
are f32. There are no atomics: the program of each tile of tokens writes a partial sum of the gradients of weight and
bias, and the host adds these sums.

This file imports nothing but Triton and kernels.py.
"""

import triton
import triton.language as tl

from .kernels import _base, _base_if_there, _gate, _gate_slope, _place, _sequence

# Upper bound for the rows of a state, K − 1 ≤ 7. Triton requires a power of two.
STATE_ROWS: tl.constexpr = tl.constexpr(8)


@triton.jit
def _place_of_program(cu, T, n_sequences, tiles, C, BLOCK_T: tl.constexpr, BLOCK_C: tl.constexpr):
    """Returns the work of a program, in this order:

    - batch, sequence, index of the tile over all batches
    - first token of the tile, counted within the sequence
    - first row and length of the sequence
    - channels
    """
    blocks = (C + BLOCK_C - 1) // BLOCK_C
    tile = tl.program_id(0) // blocks % tiles
    b = tl.program_id(0) // blocks // tiles
    n, first = _place(tile, cu, n_sequences, b, BLOCK_T)
    begin, t = _sequence(n, cu, T)
    channels = tl.program_id(0) % blocks * BLOCK_C + tl.arange(0, BLOCK_C)
    return b, n, b * tiles + tile, first, begin, t, channels


@triton.jit
def _load_tile(base, rows, channels, stride_t, stride_c, n_rows, C):
    """Loads rows and channels of a tensor (n_rows, C) as f32. Elements outside the tensor are 0. All elements are 0 if
    the tensor is absent.
    """
    if base is None:
        x = tl.zeros((rows.shape[0], channels.shape[0]), tl.float32)
    else:
        at = base + rows.to(tl.int64)[:, None] * stride_t + channels.to(tl.int64)[None, :] * stride_c
        there = ((rows >= 0) & (rows < n_rows))[:, None] & (channels < C)[None, :]
        x = tl.load(at, mask=there, other=0.0).to(tl.float32)
    return x


@triton.jit
def _store_tile(base, rows, channels, stride_t, stride_c, n_rows, C, x):
    """Rounds x to the type of `base` and stores it. Skips elements outside (n_rows, C)."""
    at = base + rows.to(tl.int64)[:, None] * stride_t + channels.to(tl.int64)[None, :] * stride_c
    there = ((rows >= 0) & (rows < n_rows))[:, None] & (channels < C)[None, :]
    tl.store(at, x.to(base.dtype.element_ty), mask=there)


@triton.jit
def _load_inputs(x_base, state_base, rows, channels, x_t, x_c, state_k, state_c, t, C, K: tl.constexpr):
    """Loads rows of x. Rows before the first token are loaded from the state."""
    x = _load_tile(x_base, rows, channels, x_t, x_c, t, C)
    return x + _load_tile(state_base, rows + (K - 1), channels, state_k, state_c, K - 1, C)


@triton.jit
def _load_channels(pointer, channels, stride, C):
    """Loads one number for each channel. The numbers are 0 if the tensor is absent."""
    if pointer is None:
        x = tl.zeros((channels.shape[0],), tl.float32)
    else:
        x = tl.load(pointer + channels.to(tl.int64) * stride, mask=channels < C, other=0.0).to(tl.float32)
    return x


@triton.jit
def _sums(
    x_base, state_base, weight, bias, rows, channels, x_t, x_c, state_k, state_c, weight_c, weight_k, bias_c, t, C,
    K: tl.constexpr,
):  # fmt: skip
    """Computes s, the sums before the activation."""
    total = (
        tl.zeros((rows.shape[0], channels.shape[0]), tl.float32) + _load_channels(bias, channels, bias_c, C)[None, :]
    )
    for j in tl.static_range(K):
        x = _load_inputs(x_base, state_base, rows + (j - K + 1), channels, x_t, x_c, state_k, state_c, t, C, K)
        total += x * _load_channels(weight + j * weight_k, channels, weight_c, C)[None, :]
    return total


@triton.jit
def convolution_forward(
    x, weight, bias, state, y, new_state, cu_seqlens, x_b, x_t, x_c, weight_c, weight_k, bias_c,
    state_n, state_k, state_c, T, C, n_sequences, tiles,
    K: tl.constexpr, SILU: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Writes y (B,T,C) and the new state (N,K−1,C), the last K−1 rows of x. Both are contiguous. The new state may be
    None.
    """
    b, n, _, first, begin, t, channels = _place_of_program(cu_seqlens, T, n_sequences, tiles, C, BLOCK_T, BLOCK_C)
    x_base = _base(x, b, b * 0, begin, x_b, 0, x_t)
    before = _base_if_there(state, n, n * 0, 0, state_n, 0, 0)
    if new_state is not None:
        if first == 0:
            rows = tl.arange(0, STATE_ROWS)
            last = _load_inputs(x_base, before, rows + (t - K + 1), channels, x_t, x_c, state_k, state_c, t, C, K)
            _store_tile(new_state + n.to(tl.int64) * (K - 1) * C, rows, channels, C, 1, K - 1, C, last)
    if first >= t:
        return
    rows = first + tl.arange(0, BLOCK_T)
    total = _sums(
        x_base, before, weight, bias, rows, channels, x_t, x_c, state_k, state_c, weight_c, weight_k, bias_c, t, C, K
    )  # fmt: skip
    if SILU:
        total = _gate(total, "silu")
    _store_tile(y + (b.to(tl.int64) * T + begin) * C, rows, channels, C, 1, t, C, total)


@triton.jit
def convolution_backward_sums(
    x, weight, bias, state, dy, dsums, dweight, dbias, cu_seqlens, x_b, x_t, x_c, weight_c, weight_k, bias_c,
    state_n, state_k, state_c, dy_b, dy_t, dy_c, T, C, n_sequences, tiles,
    K: tl.constexpr, SILU: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Writes these outputs, contiguous in f32. An output that is None is skipped.

    - dsums (B,T,C): ds, the gradient of the sums
    - dweight (B·tiles,K,C): this tile's part of Σ_t ds_t x_{t−K+1+j}
    - dbias (B·tiles,C): this tile's part of Σ_t ds_t

    Tiles without tokens write zeros to dweight and dbias.
    """
    b, n, part, first, begin, t, channels = _place_of_program(cu_seqlens, T, n_sequences, tiles, C, BLOCK_T, BLOCK_C)
    x_base = _base(x, b, b * 0, begin, x_b, 0, x_t)
    before = _base_if_there(state, n, n * 0, 0, state_n, 0, 0)
    rows = first + tl.arange(0, BLOCK_T)
    ds = _load_tile(_base(dy, b, b * 0, begin, dy_b, 0, dy_t), rows, channels, dy_t, dy_c, t, C)
    if SILU:
        total = _sums(
            x_base, before, weight, bias, rows, channels, x_t, x_c, state_k, state_c, weight_c, weight_k, bias_c, t, C,
            K,
        )  # fmt: skip
        # Sets ds to 0 in rows after the last token, where the sum s may be NaN or inf.
        ds = tl.where((rows < t)[:, None], ds * _gate_slope(total, "silu"), 0.0)
    if dsums is not None:
        _store_tile(dsums + (b.to(tl.int64) * T + begin) * C, rows, channels, C, 1, t, C, ds)
    own = part.to(tl.int64) * C + channels
    if dbias is not None:
        tl.store(dbias + own, tl.sum(ds, 0), mask=channels < C)
    if dweight is not None:
        for j in tl.static_range(K):
            # Masks rows after the last token. Their ds is 0, but x may be NaN or inf, and 0 · inf is NaN.
            x_rows = _load_inputs(x_base, before, rows + (j - K + 1), channels, x_t, x_c, state_k, state_c, t, C, K)
            at = dweight + (part.to(tl.int64) * K + j) * C + channels
            tl.store(at, tl.sum(tl.where((rows < t)[:, None], ds * x_rows, 0.0), 0), mask=channels < C)


@triton.jit
def _row_gradients(
    ds_base, weight, dnew_base, rows, channels, ds_t, ds_c, weight_c, weight_k, dnew_k, dnew_c, t, C, K: tl.constexpr
):  # fmt: skip
    """Returns the gradients of rows of x, Σ_j weight_j ds_{t+K−1−j}. Rows −K+1 … −1 belong to the old state.

    The last K−1 rows are also the new state. The gradient of the new state is therefore added to their gradients.
    """
    total = _load_tile(dnew_base, rows + (K - 1) - t, channels, dnew_k, dnew_c, K - 1, C)
    for j in tl.static_range(K):
        ds = _load_tile(ds_base, rows + (K - 1 - j), channels, ds_t, ds_c, t, C)
        total += ds * _load_channels(weight + j * weight_k, channels, weight_c, C)[None, :]
    return total


@triton.jit
def convolution_backward_rows(
    weight, ds, dnew_state, dx, dstate, cu_seqlens, ds_b, ds_t, ds_c, weight_c, weight_k, dnew_state_n, dnew_state_k,
    dnew_state_c, T, C, n_sequences, tiles, K: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Writes dx (B,T,C) and dstate (N,K−1,C), contiguous. Either may be None. Reads ds and the gradient of the new
    state.
    """
    b, n, _, first, begin, t, channels = _place_of_program(cu_seqlens, T, n_sequences, tiles, C, BLOCK_T, BLOCK_C)
    ds_base = _base(ds, b, b * 0, begin, ds_b, 0, ds_t)
    dnew_base = _base_if_there(dnew_state, n, n * 0, 0, dnew_state_n, 0, 0)
    if dstate is not None:
        if first == 0:
            rows = tl.arange(0, STATE_ROWS)
            found = _row_gradients(
                ds_base, weight, dnew_base, rows - (K - 1), channels, ds_t, ds_c, weight_c, weight_k, dnew_state_k,
                dnew_state_c, t, C, K,
            )  # fmt: skip
            _store_tile(dstate + n.to(tl.int64) * (K - 1) * C, rows, channels, C, 1, K - 1, C, found)
    if dx is not None:
        if first < t:
            rows = first + tl.arange(0, BLOCK_T)
            found = _row_gradients(
                ds_base, weight, dnew_base, rows, channels, ds_t, ds_c, weight_c, weight_k, dnew_state_k, dnew_state_c,
                t, C, K,
            )  # fmt: skip
            _store_tile(dx + (b.to(tl.int64) * T + begin) * C, rows, channels, C, 1, t, C, found)
