# SPDX-License-Identifier: Apache-2.0
"""Gated attention in Triton: one kernel for the forward pass, three for the backward pass.

    s    = scale · q kᵀ, or softcap · tanh(scale · q kᵀ / softcap)
    lse  = log( Σ_{j visible} exp(s_j) + exp(sink) )
    o    = Σ_{j visible} exp(s_j − lse) v_j
    y    = o ∘ g(z)   or   o + g(z)

Shapes: q (B,Hq,T,D), k (B,Hkv,S,D), v (B,Hkv,S,Dv), gate z (B,Hq,T,1) or (B,Hq,T,Dv). lse and delta are (B,Hq,T) in
f32, contiguous. Query i of a sequence sees the keys i + low to i + high among the first `seen` keys. Sums are f32. No
kernel uses atomics, and each sum has a fixed order, so results are bitwise reproducible. Kernels compute scores in base
2. A score is outer · q kᵀ, or outer · tanh(inner · q kᵀ) with a softcap, and `outer` includes the factor log2(e).

This file imports nothing but Triton, so that it can be compiled and run without the rest of the package.
"""

import triton
import triton.language as tl

LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)
LN2: tl.constexpr = tl.constexpr(0.6931471805599453)
# Limit for |low| and |high|. Larger values would have the same effect, since no sequence in memory has more keys.
FAR: tl.constexpr = tl.constexpr(1 << 30)


@triton.jit
def _sigmoid(z):
    e = tl.exp(-tl.abs(z))
    return tl.where(z >= 0, 1.0, e) / (1.0 + e)


@triton.jit
def _softplus(z):
    e = tl.exp(-tl.abs(z))
    # In f32, log(1 + e) equals e - e²/2 for e below 2^-12. The sum 1 + e would lose digits.
    return tl.maximum(z, 0.0) + tl.where(e < 0.000244140625, e - 0.5 * e * e, tl.log(1.0 + e))


@triton.jit
def _gate(z, FN: tl.constexpr):
    """Computes the gate g(z)."""
    if FN == "sigmoid":
        g = _sigmoid(z)
    elif FN == "sigmoid2":
        g = 2.0 * _sigmoid(z)
    elif FN == "ns_sigmoid":
        g = 0.5 + 0.5 * _sigmoid(z)
    elif FN == "silu":
        g = z * _sigmoid(z)
    elif FN == "softplus":
        g = _softplus(z)
    else:
        tl.static_assert(FN == "identity")
        g = z
    return g


@triton.jit
def _gate_slope(z, FN: tl.constexpr):
    """Computes the derivative g′(z) of the gate."""
    s = _sigmoid(z)
    if FN == "sigmoid":
        slope = s * _sigmoid(-z)
    elif FN == "sigmoid2":
        slope = 2.0 * s * _sigmoid(-z)
    elif FN == "ns_sigmoid":
        slope = 0.5 * s * _sigmoid(-z)
    elif FN == "silu":
        slope = s + z * s * _sigmoid(-z)
    elif FN == "softplus":
        slope = s
    else:
        tl.static_assert(FN == "identity")
        slope = tl.full(z.shape, 1.0, tl.float32)
    return slope


@triton.jit
def _gate_log_slope(z, FN: tl.constexpr):
    """Computes g′(z) / g(z) for a gate function without a zero.

    With this ratio, dz = dy ∘ y ∘ g′/g can be computed from y, without o.
    """
    if FN == "sigmoid" or FN == "sigmoid2":
        slope = _sigmoid(-z)
    elif FN == "ns_sigmoid":
        s = _sigmoid(z)
        slope = s * _sigmoid(-z) / (1.0 + s)
    else:
        tl.static_assert(FN == "softplus")
        # For z far below 0, g′ and g are both about e^z and may underflow. Their ratio is then about 1 − e^z / 2.
        slope = tl.where(z < -9.0, 1.0 - 0.5 * tl.exp(tl.minimum(z, 0.0)), _sigmoid(z) / _softplus(tl.maximum(z, -9.0)))
    return slope


@triton.jit
def _tanh(x):
    e = tl.exp(-2.0 * tl.abs(x))
    t = (1.0 - e) / (1.0 + e)
    # For x near 0, 1 − e loses digits. The Taylor series of tanh keeps f32 precision there.
    x2 = x * x
    series = x * (1.0 + x2 * (-0.3333333333333333 + x2 * (0.13333333333333333 - x2 * 0.05396825396825397)))
    return tl.where(x2 < 0.0078125, series, tl.where(x >= 0, t, -t))


@triton.jit
def _place(tile, cu, n_sequences, b, BLOCK: tl.constexpr):
    """Returns the sequence of a tile of BLOCK rows, and the tile's first row within the sequence.

    In a packed batch, the tiles of sequence n start at index cu[n] // BLOCK + n. Each sequence thus gets at least as
    many tiles as it needs. Surplus tiles start after the sequence's last row and do nothing. The host can therefore
    launch the kernel without reading the lengths.
    """
    if cu is None:
        n = b
        first = tile * BLOCK
    else:
        n = tile * 0
        end = n + n_sequences
        while end - n > 1:
            middle = (n + end) // 2
            reached = (tl.load(cu + middle) // BLOCK).to(tl.int32) + middle <= tile
            n = tl.where(reached, middle, n)
            end = tl.where(reached, end, middle)
        first = (tile - (tl.load(cu + n) // BLOCK).to(tl.int32) - n) * BLOCK
    return n, first


@triton.jit
def _sequence(n, cu, length):
    """Returns the first row of sequence n in the tensor, as a 64-bit integer, and the length of the sequence."""
    if cu is None:
        begin = n.to(tl.int64) * 0
        rows = length
    else:
        begin = tl.load(cu + n).to(tl.int64)
        rows = (tl.load(cu + n + 1).to(tl.int64) - begin).to(tl.int32)
    return begin, rows


@triton.jit
def _place_of_program(cu, length, H, n_sequences, tiles, BLOCK: tl.constexpr):
    """Returns the work of a program, in this order:

    - batch, head, sequence
    - first row of the tile, counted within the sequence
    - first row and length of the sequence
    """
    tile = tl.program_id(0) % tiles
    h = tl.program_id(0) // tiles % H
    b = tl.program_id(0) // tiles // H
    n, first = _place(tile, cu, n_sequences, b, BLOCK)
    begin, rows = _sequence(n, cu, length)
    return b, h, n, first, begin, rows


@triton.jit
def _visibility(n, t, s, key_lengths, query_offsets, left, right):
    """Returns seen, low and high. Query i of sequence n sees the keys i + low to i + high among the first `seen` keys."""
    if query_offsets is None:
        shift = (n * 0 + s - t).to(tl.int64)
    else:
        shift = tl.load(query_offsets + n).to(tl.int64)
    low = tl.minimum(tl.maximum(shift - left, -FAR), FAR).to(tl.int32)
    high = tl.minimum(tl.maximum(shift + right, -FAR), FAR).to(tl.int32)
    if key_lengths is None:
        seen = n * 0 + s
    else:
        seen = tl.minimum(tl.maximum(tl.load(key_lengths + n), 0), s).to(tl.int32)
    return seen, low, high


@triton.jit
def _load_rows(
    base, first, stride_t, stride_d, n_rows, N_COLUMNS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    WHOLE: tl.constexpr,
):  # fmt: skip
    """Loads rows first … first + ROWS − 1 of a tensor (n_rows, N_COLUMNS). Elements outside the tensor are 0.

    WHOLE asserts that all these rows exist.
    """
    rows = tl.arange(0, ROWS)
    columns = tl.arange(0, COLUMNS)
    at = base + (first + rows).to(tl.int64)[:, None] * stride_t + columns.to(tl.int64)[None, :] * stride_d
    if WHOLE and N_COLUMNS == COLUMNS:
        x = tl.load(at)
    elif WHOLE:
        x = tl.load(at, mask=columns[None, :] < N_COLUMNS, other=0.0)
    elif N_COLUMNS == COLUMNS:
        x = tl.load(at, mask=(first + rows)[:, None] < n_rows, other=0.0)
    else:
        x = tl.load(at, mask=((first + rows)[:, None] < n_rows) & (columns[None, :] < N_COLUMNS), other=0.0)
    return x


@triton.jit
def _store_rows(
    base, first, stride_t, stride_d, n_rows, x, N_COLUMNS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):  # fmt: skip
    """Rounds x to the type of `base` and stores it. Skips elements outside (n_rows, N_COLUMNS)."""
    rows = first + tl.arange(0, ROWS)
    columns = tl.arange(0, COLUMNS)
    at = base + rows.to(tl.int64)[:, None] * stride_t + columns.to(tl.int64)[None, :] * stride_d
    tl.store(at, x.to(base.dtype.element_ty), mask=(rows[:, None] < n_rows) & (columns[None, :] < N_COLUMNS))


@triton.jit
def _base(pointer, b, h, begin, stride_b, stride_h, stride_t):
    """Returns the address of row `begin` of head h of batch b, computed in 64 bits."""
    return pointer + b.to(tl.int64) * stride_b + h.to(tl.int64) * stride_h + begin * stride_t


@triton.jit
def _base_if_there(pointer, b, h, begin, stride_b, stride_h, stride_t):
    """Returns the address of row `begin` of head h of batch b. Returns None if the tensor is absent."""
    if pointer is None:
        base = None
    else:
        base = _base(pointer, b, h, begin, stride_b, stride_h, stride_t)
    return base


@triton.jit
def _visible(rows, columns, seen, low, high, LEFT: tl.constexpr, RIGHT: tl.constexpr):
    """Returns a mask that is true if the query in `rows` sees the key in `columns`. `rows` and `columns` are broadcast."""
    visible = (columns < seen) & (rows >= 0)
    if RIGHT:
        visible = visible & (columns <= rows + high)
    if LEFT:
        visible = visible & (columns >= rows + low)
    return visible


@triton.jit
def _score(product, inner, outer, CAP: tl.constexpr):
    """Converts products q kᵀ to scores in base 2."""
    if CAP:
        x = outer * _tanh(product * inner)
    else:
        x = product * outer
    return x


@triton.jit
def _score_slope(product, inner, CAP: tl.constexpr):
    """Returns the derivative of a score with respect to scale · q kᵀ: 1 − tanh² with a softcap, otherwise 1."""
    if CAP:
        c = _tanh(product * inner)
        slope = 1.0 - c * c
    else:
        slope = tl.full(product.shape, 1.0, tl.float32)
    return slope


@triton.jit
def _attend(
    total, top, acc, q, k_base, v_base, k_t, k_d, v_t, v_d, first, begin, end, s, seen, low, high, inner, outer,
    D: tl.constexpr, DV: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr, CAP: tl.constexpr,
    MASKED: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
):  # fmt: skip
    """Runs the online softmax over keys begin … end − 1 in blocks.

    Updates the running maxima `top` of the scores. Updates the sums `total` of weights and `acc` of weighted values,
    which are scaled by 2^−top.
    """
    rows = first + tl.arange(0, BLOCK_M)
    for n in tl.range(begin, end, BLOCK_N):
        k = _load_rows(k_base, n, k_t, k_d, seen, D, BLOCK_N, BLOCK_D, not MASKED)
        x = _score(tl.dot(q, tl.trans(k), input_precision=PRECISION), inner, outer, CAP)
        if MASKED:
            columns = n + tl.arange(0, BLOCK_N)
            x = tl.where(_visible(rows[:, None], columns[None, :], seen, low, high, LEFT, RIGHT), x, float("-inf"))
        new_top = tl.maximum(top, tl.max(x, 1))
        # Subtracts 0 in rows that have seen no key yet. Their maximum is −∞, and −∞ − (−∞) is NaN.
        anchor = tl.where(new_top == float("-inf"), 0.0, new_top)
        p = tl.exp2(x - anchor[:, None])
        shrink = tl.exp2(top - anchor)
        total = total * shrink + tl.sum(p, 1)
        v = _load_rows(v_base, n, v_t, v_d, seen, DV, BLOCK_N, BLOCK_DV, not MASKED)
        acc = tl.dot(p.to(v.dtype), v, acc * shrink[:, None], input_precision=PRECISION)
        top = new_top
    return total, top, acc


@triton.jit
def attention_forward(
    q, k, v, gate, sinks, y, lse, attn, cu_seqlens_q, cu_seqlens_k, key_lengths, query_offsets,
    q_b, q_h, q_t, q_d, k_b, k_h, k_t, k_d, v_b, v_h, v_t, v_d, gate_b, gate_h, gate_t, gate_d, y_b, y_h, y_t,
    sinks_b, sinks_h, sinks_t, T, S, H, n_sequences, tiles, left, right, inner, outer,
    GROUP: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, GATE: tl.constexpr, FN: tl.constexpr, ADD: tl.constexpr,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, CAP: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
):  # fmt: skip
    """Writes y, lse and attn = o for BLOCK_M queries of a head. attn may be None. y and attn have the same strides."""
    b, h, n, first, q0, t = _place_of_program(cu_seqlens_q, T, H, n_sequences, tiles, BLOCK_M)
    k0, s = _sequence(n, cu_seqlens_k, S)
    if first >= t:
        return
    seen, low, high = _visibility(n, t, s, key_lengths, query_offsets, left, right)
    q_rows = _load_rows(_base(q, b, h, q0, q_b, q_h, q_t), first, q_t, q_d, t, D, BLOCK_M, BLOCK_D, False)
    k_base = _base(k, b, h // GROUP, k0, k_b, k_h, k_t)
    v_base = _base(v, b, h // GROUP, k0, v_b, v_h, v_t)

    # Every row sees all keys in [all_from, all_to), so these keys need no mask. No row sees a key outside [begin, end).
    begin = first * 0
    end = seen
    all_from = begin
    all_to = seen // BLOCK_N * BLOCK_N
    if RIGHT:
        end = tl.maximum(0, tl.minimum(end, first + BLOCK_M + high))
        all_to = tl.maximum(0, tl.minimum(all_to, first + high + 1)) // BLOCK_N * BLOCK_N
    if LEFT:
        begin = tl.minimum(end, tl.maximum(0, first + low) // BLOCK_N * BLOCK_N)
        all_from = (tl.maximum(0, tl.minimum(end, first + BLOCK_M - 1 + low)) + BLOCK_N - 1) // BLOCK_N * BLOCK_N
        all_from = tl.minimum(tl.maximum(all_from, begin), end)
    all_to = tl.maximum(all_from, tl.minimum(all_to, end))

    acc = tl.zeros((BLOCK_M, BLOCK_DV), tl.float32)
    if sinks is None:
        total = tl.zeros((BLOCK_M,), tl.float32)
        top = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    else:
        total = tl.full((BLOCK_M,), 1.0, tl.float32)
        queries = first + tl.arange(0, BLOCK_M)
        own = _base(sinks, b, h, q0, sinks_b, sinks_h, sinks_t) + queries * sinks_t
        top = tl.load(own, mask=queries < t, other=0.0).to(tl.float32) * LOG2E
    if LEFT:
        total, top, acc = _attend(
            total, top, acc, q_rows, k_base, v_base, k_t, k_d, v_t, v_d, first, begin, all_from, s, seen, low, high,
            inner, outer, D, DV, LEFT, RIGHT, CAP, True, PRECISION, BLOCK_M, BLOCK_N, BLOCK_D, BLOCK_DV)  # fmt: skip
    total, top, acc = _attend(
        total, top, acc, q_rows, k_base, v_base, k_t, k_d, v_t, v_d, first, all_from, all_to, s, seen, low, high,
        inner, outer, D, DV, LEFT, RIGHT, CAP, False, PRECISION, BLOCK_M, BLOCK_N, BLOCK_D, BLOCK_DV)  # fmt: skip
    total, top, acc = _attend(
        total, top, acc, q_rows, k_base, v_base, k_t, k_d, v_t, v_d, first, all_to, end, s, seen, low, high,
        inner, outer, D, DV, LEFT, RIGHT, CAP, True, PRECISION, BLOCK_M, BLOCK_N, BLOCK_D, BLOCK_DV)  # fmt: skip

    # A row that sees no key has o = 0 and lse = −∞. NaN scores give NaN results.
    o = acc / tl.where(total == 0, 1.0, total)[:, None]
    rows = first + tl.arange(0, BLOCK_M)
    natural = tl.where(total == 0, float("-inf"), (top + tl.log2(tl.where(total == 0, 1.0, total))) * LN2)
    tl.store(lse + (b * H + h).to(tl.int64) * T + q0 + rows, natural, mask=rows < t)
    if attn is not None:
        _store_rows(_base(attn, b, h, q0, y_b, y_h, y_t), first, y_t, 1, t, o, DV, BLOCK_M, BLOCK_DV)
    if GATE != "none":
        gate_base = _base(gate, b, h, q0, gate_b, gate_h, gate_t)
        if GATE == "headwise":
            z = _load_rows(gate_base, first, gate_t, gate_d, t, 1, BLOCK_M, 1, False)
        else:
            z = _load_rows(gate_base, first, gate_t, gate_d, t, DV, BLOCK_M, BLOCK_DV, False)
        g = _gate(z.to(tl.float32), FN)
        if ADD:
            o = o + g
        else:
            o = o * g
    _store_rows(_base(y, b, h, q0, y_b, y_h, y_t), first, y_t, 1, t, o, DV, BLOCK_M, BLOCK_DV)


@triton.jit
def attention_backward_rows(
    dy, y, attn, gate, lse, dlse, delta, dgate, do, cu_seqlens_q,
    dy_b, dy_h, dy_t, dy_d, y_b, y_h, y_t, gate_b, gate_h, gate_t, gate_d, dgate_b, dgate_h, dgate_t,
    T, H, n_sequences, tiles,
    DV: tl.constexpr, GATE: tl.constexpr, FN: tl.constexpr, ADD: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_DV: tl.constexpr,
):  # fmt: skip
    """Computes delta, do and dgate. The other two backward kernels read delta and do.

    - delta = rowsum(∂o ∘ o) − dlse, with the gradient ∂o of o. If the gate is multiplied, rowsum(∂o ∘ o) is
      rowsum(dy ∘ y).
    - do = dy ∘ g for an elementwise gate. It has the strides of y, and may be None.
    - dgate may be None. For a multiplied gate, it is dy ∘ o ∘ g′ if attn, which holds o, is present. Otherwise it is
      dy ∘ y ∘ g′/g. For an added gate, it is dy ∘ g′.
    """
    b, h, n, first, q0, t = _place_of_program(cu_seqlens_q, T, H, n_sequences, tiles, BLOCK_M)
    if first >= t:
        return
    dy_rows = _load_rows(
        _base(dy, b, h, q0, dy_b, dy_h, dy_t), first, dy_t, dy_d, t, DV, BLOCK_M, BLOCK_DV, False
    ).to(tl.float32)  # fmt: skip
    if ADD:
        o_base = _base(attn, b, h, q0, y_b, y_h, y_t)
    else:
        o_base = _base(y, b, h, q0, y_b, y_h, y_t)
    product = dy_rows * _load_rows(o_base, first, y_t, 1, t, DV, BLOCK_M, BLOCK_DV, False).to(tl.float32)
    row_sum = tl.sum(product, 1)

    rows = first + tl.arange(0, BLOCK_M)
    at = (b * H + h).to(tl.int64) * T + q0 + rows
    d = row_sum
    if dlse is not None:
        d -= tl.load(dlse + at, mask=rows < t, other=0.0)
    # A row that sees no key has no gradient, so its delta is 0. Its dlse may be nonzero and must be ignored.
    natural = tl.load(lse + at, mask=rows < t, other=0.0)
    tl.store(delta + at, tl.where(natural == float("-inf"), 0.0, d), mask=rows < t)

    if GATE != "none":
        gate_base = _base(gate, b, h, q0, gate_b, gate_h, gate_t)
        if GATE == "headwise":
            z = _load_rows(gate_base, first, gate_t, gate_d, t, 1, BLOCK_M, 1, False).to(tl.float32)
        else:
            z = _load_rows(gate_base, first, gate_t, gate_d, t, DV, BLOCK_M, BLOCK_DV, False).to(tl.float32)
        if dgate is not None:
            dgate_base = _base(dgate, b, h, q0, dgate_b, dgate_h, dgate_t)
            if ADD:
                flow = dy_rows
            elif attn is not None:
                flow = dy_rows * _load_rows(
                    _base(attn, b, h, q0, y_b, y_h, y_t), first, y_t, 1, t, DV, BLOCK_M, BLOCK_DV, False
                ).to(tl.float32)  # fmt: skip
            else:
                flow = product
            if ADD or attn is not None:
                slope = _gate_slope(z, FN)
            else:
                slope = _gate_log_slope(z, FN)
            if GATE == "headwise":
                dz = tl.sum(flow, 1)[:, None] * slope
                _store_rows(dgate_base, first, dgate_t, 1, t, dz, 1, BLOCK_M, 1)
            else:
                _store_rows(dgate_base, first, dgate_t, 1, t, flow * slope, DV, BLOCK_M, BLOCK_DV)
        if do is not None:
            do_base = _base(do, b, h, q0, y_b, y_h, y_t)
            _store_rows(do_base, first, y_t, 1, t, dy_rows * _gate(z, FN), DV, BLOCK_M, BLOCK_DV)


@triton.jit
def _row_factors(gate_base, first, stride_t, t, GATE: tl.constexpr, FN: tl.constexpr, BLOCK_M: tl.constexpr):
    """Returns the factor of each row of do: g for a headwise gate, otherwise 1."""
    rows = first + tl.arange(0, BLOCK_M)
    if GATE == "headwise":
        z = tl.load(gate_base + rows.to(tl.int64) * stride_t, mask=rows < t, other=0.0)
        g = _gate(z.to(tl.float32), FN)
    else:
        g = tl.full((BLOCK_M,), 1.0, tl.float32)
    return g


@triton.jit
def _saved_rows(lse_base, delta_base, first, t, BLOCK_M: tl.constexpr):
    """Returns lse in base 2 and delta of rows `first` to `first` + BLOCK_M − 1. delta is rowsum(∂o ∘ o) − dlse.

    In rows that see no key, lse is 0 instead of −∞. The weights of these rows are masked.
    """
    rows = first + tl.arange(0, BLOCK_M)
    natural = tl.load(lse_base + rows, mask=rows < t, other=0.0)
    lse2 = tl.where(natural == float("-inf"), 0.0, natural * LOG2E)
    return lse2, tl.load(delta_base + rows, mask=rows < t, other=0.0)


@triton.jit
def attention_backward_keys(
    q, k, v, gate, do, lse, delta, dk, dv, cu_seqlens_q, cu_seqlens_k, key_lengths, query_offsets,
    q_b, q_h, q_t, q_d, k_b, k_h, k_t, k_d, v_b, v_h, v_t, v_d, gate_b, gate_h, gate_t, do_b, do_h, do_t, do_d,
    dk_b, dk_h, dk_t, dv_b, dv_h, dv_t, T, S, H, n_sequences, tiles, left, right, inner, outer, scale,
    GROUP: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, GATE: tl.constexpr, FN: tl.constexpr,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, CAP: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
):  # fmt: skip
    """Writes dk = scale · Σ dsᵀ q and dv = Σ Pᵀ do for BLOCK_N keys of a key/value head.

    Sums over the GROUP query heads of the key/value head in order. H is the number of key/value heads. The argument do
    is the gradient of o. With GATE "headwise", do lacks the factor g, and the kernel multiplies Pᵀ and v doᵀ by g.
    """
    b, h, n, first, k0, s = _place_of_program(cu_seqlens_k, S, H, n_sequences, tiles, BLOCK_N)
    q0, t = _sequence(n, cu_seqlens_q, T)
    if first >= s:
        return
    seen, low, high = _visibility(n, t, s, key_lengths, query_offsets, left, right)
    k_rows = _load_rows(_base(k, b, h, k0, k_b, k_h, k_t), first, k_t, k_d, seen, D, BLOCK_N, BLOCK_D, False)
    v_rows = _load_rows(_base(v, b, h, k0, v_b, v_h, v_t), first, v_t, v_d, seen, DV, BLOCK_N, BLOCK_DV, False)
    columns = first + tl.arange(0, BLOCK_N)

    # No query outside [begin, end) sees any of these keys.
    begin = first * 0
    end = begin + t
    if RIGHT:
        begin = tl.minimum(end, tl.maximum(0, first - high) // BLOCK_M * BLOCK_M)
    if LEFT:
        end = tl.maximum(begin, tl.minimum(end, first + BLOCK_N - low))
    if first >= seen:
        end = begin

    dk_rows = tl.zeros((BLOCK_N, BLOCK_D), tl.float32)
    dv_rows = tl.zeros((BLOCK_N, BLOCK_DV), tl.float32)
    for member in tl.range(0, GROUP):
        head = h * GROUP + member
        q_base = _base(q, b, head, q0, q_b, q_h, q_t)
        do_base = _base(do, b, head, q0, do_b, do_h, do_t)
        gate_base = do_base
        if GATE == "headwise":
            gate_base = _base(gate, b, head, q0, gate_b, gate_h, gate_t)
        saved = (b * H * GROUP + head).to(tl.int64) * T + q0
        for m in tl.range(begin, end, BLOCK_M):
            rows = m + tl.arange(0, BLOCK_M)
            q_rows = _load_rows(q_base, m, q_t, q_d, t, D, BLOCK_M, BLOCK_D, False)
            do_rows = _load_rows(do_base, m, do_t, do_d, t, DV, BLOCK_M, BLOCK_DV, False)
            lse2, delta_rows = _saved_rows(lse + saved, delta + saved, m, t, BLOCK_M)
            g = _row_factors(gate_base, m, gate_t, t, GATE, FN, BLOCK_M)
            product = tl.dot(k_rows, tl.trans(q_rows), input_precision=PRECISION)
            p = tl.exp2(_score(product, inner, outer, CAP) - lse2[None, :])
            p = tl.where(_visible(rows[None, :], columns[:, None], seen, low, high, LEFT, RIGHT), p, 0.0)
            dp = tl.dot(v_rows, tl.trans(do_rows), input_precision=PRECISION)
            if GATE == "headwise":
                dv_rows = tl.dot((p * g[None, :]).to(do_rows.dtype), do_rows, dv_rows, input_precision=PRECISION)
                dp = dp * g[None, :]
            else:
                dv_rows = tl.dot(p.to(do_rows.dtype), do_rows, dv_rows, input_precision=PRECISION)
            ds = p * (dp - delta_rows[None, :])
            if CAP:
                ds = ds * _score_slope(product, inner, CAP)
            ds = tl.where(p == 0.0, 0.0, ds)  # of a hidden key, dp may be inf, and 0 · inf is NaN
            dk_rows = tl.dot(ds.to(q_rows.dtype), q_rows, dk_rows, input_precision=PRECISION)
    _store_rows(
        _base(dk, b, h, k0, dk_b, dk_h, dk_t), first, dk_t, 1, s, dk_rows * scale, D, BLOCK_N, BLOCK_D
    )  # fmt: skip
    _store_rows(_base(dv, b, h, k0, dv_b, dv_h, dv_t), first, dv_t, 1, s, dv_rows, DV, BLOCK_N, BLOCK_DV)


@triton.jit
def attention_backward_queries(
    q, k, v, gate, do, lse, delta, dq, cu_seqlens_q, cu_seqlens_k, key_lengths, query_offsets,
    q_b, q_h, q_t, q_d, k_b, k_h, k_t, k_d, v_b, v_h, v_t, v_d, gate_b, gate_h, gate_t, do_b, do_h, do_t, do_d,
    dq_b, dq_h, dq_t, T, S, H, n_sequences, tiles, left, right, inner, outer, scale,
    GROUP: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, GATE: tl.constexpr, FN: tl.constexpr,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, CAP: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
):  # fmt: skip
    """Writes dq = scale · Σ ds k for BLOCK_M queries of a head.

    With GATE "headwise", the argument do is dy without the factor g, as in attention_backward_keys.
    """
    b, h, n, first, q0, t = _place_of_program(cu_seqlens_q, T, H, n_sequences, tiles, BLOCK_M)
    k0, s = _sequence(n, cu_seqlens_k, S)
    if first >= t:
        return
    seen, low, high = _visibility(n, t, s, key_lengths, query_offsets, left, right)
    q_rows = _load_rows(_base(q, b, h, q0, q_b, q_h, q_t), first, q_t, q_d, t, D, BLOCK_M, BLOCK_D, False)
    do_base = _base(do, b, h, q0, do_b, do_h, do_t)
    do_rows = _load_rows(do_base, first, do_t, do_d, t, DV, BLOCK_M, BLOCK_DV, False)
    saved = (b * H + h).to(tl.int64) * T + q0
    lse2, delta_rows = _saved_rows(lse + saved, delta + saved, first, t, BLOCK_M)
    gate_base = do_base
    if GATE == "headwise":
        gate_base = _base(gate, b, h, q0, gate_b, gate_h, gate_t)
    g = _row_factors(gate_base, first, gate_t, t, GATE, FN, BLOCK_M)
    k_base = _base(k, b, h // GROUP, k0, k_b, k_h, k_t)
    v_base = _base(v, b, h // GROUP, k0, v_b, v_h, v_t)
    rows = first + tl.arange(0, BLOCK_M)

    begin = first * 0
    end = seen
    if RIGHT:
        end = tl.maximum(0, tl.minimum(end, first + BLOCK_M + high))
    if LEFT:
        begin = tl.minimum(end, tl.maximum(0, first + low) // BLOCK_N * BLOCK_N)

    dq_rows = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    for c in tl.range(begin, end, BLOCK_N):
        columns = c + tl.arange(0, BLOCK_N)
        k_rows = _load_rows(k_base, c, k_t, k_d, seen, D, BLOCK_N, BLOCK_D, False)
        v_rows = _load_rows(v_base, c, v_t, v_d, seen, DV, BLOCK_N, BLOCK_DV, False)
        product = tl.dot(q_rows, tl.trans(k_rows), input_precision=PRECISION)
        p = tl.exp2(_score(product, inner, outer, CAP) - lse2[:, None])
        p = tl.where(_visible(rows[:, None], columns[None, :], seen, low, high, LEFT, RIGHT), p, 0.0)
        dp = tl.dot(do_rows, tl.trans(v_rows), input_precision=PRECISION)
        if GATE == "headwise":
            dp = dp * g[:, None]
        ds = p * (dp - delta_rows[:, None])
        if CAP:
            ds = ds * _score_slope(product, inner, CAP)
        ds = tl.where(p == 0.0, 0.0, ds)  # of a hidden key, dp may be inf, and 0 · inf is NaN
        dq_rows = tl.dot(ds.to(k_rows.dtype), k_rows, dq_rows, input_precision=PRECISION)
    _store_rows(
        _base(dq, b, h, q0, dq_b, dq_h, dq_t), first, dq_t, 1, t, dq_rows * scale, D, BLOCK_M, BLOCK_D
    )  # fmt: skip
