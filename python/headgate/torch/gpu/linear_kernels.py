# SPDX-License-Identifier: Apache-2.0
"""Gated linear attention in Triton, in chunks of C tokens: one kernel for the forward pass, two for the backward pass.

S is the state before a chunk. Within the chunk, G_i = Σ_{j ≤ i} g_j, γ_i = exp(G_i) and η_i = exp(G_C − G_i). The
decayed products are ⟨x, y⟩_ij = Σ_d x_id y_jd exp(G_id − G_jd) for j ≤ i. The recurrence of a chunk is

    A  = β ∘ ⟨k, k⟩ below the diagonal,     u = (1 + A)⁻¹ β (v − (γ ∘ k) S)      with the delta rule; otherwise u = v
    P  = ⟨q, k⟩,                            y = scale ((γ ∘ q) S + P u),         S ← γ_C ∘ S + (η ∘ k)ᵀ u

q, k and v are (B,H,T,·) with any strides; decay g is (B,Hv,T,1), or (B,Hv,T,D) with FEATURES; beta β is (B,Hv,T,1);
states are (N,Hv,D,Dv) in f32. All computation is in f32. linear_backward_chunks runs a program for each chunk. In the
other two kernels, a program handles BLOCK_DV columns of the state of one value head and sequence, and iterates over the
chunks of the sequence. There are no atomics.
"""

import triton
import triton.language as tl

from .kernels import _base, _base_if_there, _load_rows, _place_of_program, _sequence, _store_rows

# Lower bound for the decay g. exp(−100) is about 0. g = −∞ would give NaN in differences of sums.
LEAST_DECAY: tl.constexpr = tl.constexpr(-100.0)


@triton.jit
def _normalized(x, eps, NORM: tl.constexpr):
    """Returns x / sqrt(Σ x² + eps), and the factor 1 / sqrt(…). The factor is 0 for a row with norm 0."""
    if NORM:
        squares = tl.sum(x * x, 1) + eps
        factor = tl.where(squares > 0, 1.0 / tl.sqrt(tl.where(squares > 0, squares, 1.0)), 0.0)
    else:
        factor = tl.full((x.shape[0],), 1.0, tl.float32)
    return x * factor[:, None], factor


@triton.jit
def _through_norm(dx, x, factor, NORM: tl.constexpr):
    """Returns the gradient of _normalized's input. dx is the gradient of its result x."""
    if NORM:
        dx = (dx - x * tl.sum(dx * x, 1)[:, None]) * factor[:, None]
    return dx


@triton.jit
def _load_column(base, first, stride, n_rows, C: tl.constexpr, absent: tl.constexpr):
    """Loads one number for each token. If the tensor is None, the numbers are `absent`. The numbers after the last
    token are 0.
    """
    rows = first + tl.arange(0, C)
    if base is None:
        x = tl.where(rows < n_rows, absent, 0.0)
    else:
        x = tl.load(base + rows.to(tl.int64) * stride, mask=rows < n_rows, other=0.0).to(tl.float32)
    return x


@triton.jit
def _load_decays(
    base, first, row_stride, stride, n_rows, D: tl.constexpr, C: tl.constexpr, BLOCK_D: tl.constexpr, FEATURES: tl.constexpr
):  # fmt: skip
    """Loads the decays g of a chunk, (C,BLOCK_D) or (C,1). If the tensor is None, they are 0."""
    if FEATURES:
        g = _load_rows(base, first, row_stride, stride, n_rows, D, C, BLOCK_D, False).to(tl.float32)
    else:
        g = _load_column(base, first, row_stride, n_rows, C, 0.0)[:, None]
    return tl.maximum(g, LEAST_DECAY)


@triton.jit
def _decays(g):
    """Returns G, γ = exp(G), η = exp(G_C − G), and γ_C for decays g of a chunk. G holds the sums of g up to each token.

    γ_C is a column vector, which scales the rows of the state.
    """
    sums = tl.cumsum(g, 0)
    whole = tl.sum(g, 0)
    return sums, tl.exp(sums), tl.exp(whole[None, :] - sums), tl.exp(whole)[:, None]


@triton.jit
def _row(x, i, C: tl.constexpr):
    """Returns row i of x. x has C rows."""
    return tl.sum(tl.where(tl.arange(0, C)[:, None] == i, x, 0.0), 0)


@triton.jit
def _products(x, y, sums, C: tl.constexpr, FEATURES: tl.constexpr, PRECISION: tl.constexpr):
    """Returns the decayed products ⟨x, y⟩_ij of the tokens of a chunk, with 0 for j > i. `sums` is G.

    Computes exp(G_i − G_j), not exp(G_i) · exp(−G_j), since exp(−G_j) may overflow.
    """
    rows = tl.arange(0, C)
    if FEATURES:
        products = tl.zeros((C, C), tl.float32)
        for j in tl.range(0, C):
            factors = tl.exp(tl.minimum(sums - _row(sums, j, C)[None, :], 0.0))
            column = tl.sum(x * factors * _row(y, j, C)[None, :], 1)
            products = tl.where(rows[None, :] == j, column[:, None], products)
    else:
        factors = tl.exp(tl.minimum(sums - tl.trans(sums), 0.0))
        products = factors * tl.dot(x, tl.trans(y), input_precision=PRECISION)
    return tl.where(rows[:, None] >= rows[None, :], products, 0.0)


@triton.jit
def _through_products(
    dproducts, x, y, sums, C: tl.constexpr, BLOCK_D: tl.constexpr, FEATURES: tl.constexpr, PRECISION: tl.constexpr
):
    """Returns the gradients dx of x and dy of y, from the gradient `dproducts` of the decayed products ⟨x, y⟩.

    dproducts must be 0 above the diagonal. The gradient of G, the sums of decays, is x ∘ dx − y ∘ dy.
    """
    rows = tl.arange(0, C)
    if FEATURES:
        dx = tl.zeros((C, BLOCK_D), tl.float32)
        dy = tl.zeros((C, BLOCK_D), tl.float32)
        for j in tl.range(0, C):
            column = tl.sum(tl.where(rows[None, :] == j, dproducts, 0.0), 1)
            factors = column[:, None] * tl.exp(tl.minimum(sums - _row(sums, j, C)[None, :], 0.0))
            dx += factors * _row(y, j, C)[None, :]
            dy = tl.where(rows[:, None] == j, tl.sum(factors * x, 0)[None, :], dy)
    else:
        factors = dproducts * tl.exp(tl.minimum(sums - tl.trans(sums), 0.0))
        dx = tl.dot(factors, y, input_precision=PRECISION)
        dy = tl.dot(tl.trans(factors), x, input_precision=PRECISION)
    return dx, dy


@triton.jit
def _inverse(a, C: tl.constexpr):
    """Returns (1 + a)⁻¹ for a strictly lower triangular a, by forward substitution."""
    rows = tl.arange(0, C)
    inverse = tl.where(rows[:, None] == rows[None, :], 1.0, 0.0)
    for i in tl.range(1, C):
        row = tl.sum(tl.where(rows[:, None] == i, a, 0.0), 0)
        change = tl.sum(row[:, None] * inverse, 0)
        inverse = tl.where(rows[:, None] == i, inverse - change[None, :], inverse)
    return inverse


@triton.jit
def _load_state(
    pointer, index, h, H, first, D: tl.constexpr, DV: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr
):  # fmt: skip
    """Loads columns first … first + BLOCK_DV − 1 of the state [index, h] from a tensor of states (·,H,D,DV)."""
    d = tl.arange(0, BLOCK_D)[:, None]
    columns = first + tl.arange(0, BLOCK_DV)[None, :]
    at = (index.to(tl.int64) * H + h) * D * DV + d * DV + columns
    return tl.load(pointer + at, mask=(d < D) & (columns < DV), other=0.0)


@triton.jit
def _store_state(
    pointer, index, h, H, first, x, D: tl.constexpr, DV: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr
):  # fmt: skip
    d = tl.arange(0, BLOCK_D)[:, None]
    columns = first + tl.arange(0, BLOCK_DV)[None, :]
    at = (index.to(tl.int64) * H + h) * D * DV + d * DV + columns
    tl.store(pointer + at, x, mask=(d < D) & (columns < DV))


@triton.jit
def _first_chunk(n, cu, chunks, C: tl.constexpr):
    """Returns the index of the first chunk of sequence n.

    Chunks of packed sequences are numbered like tiles in kernels._place.
    """
    if cu is None:
        first = n * chunks
    else:
        first = (tl.load(cu + n) // C).to(tl.int32) + n
    return first


@triton.jit
def _columns_of_program(cu, T, H, DV: tl.constexpr, BLOCK_DV: tl.constexpr):
    """Returns the work of a program, in this order:

    - first column of the state, index of the block of columns
    - value head, sequence, batch
    - first row and length of the sequence
    """
    BLOCKS: tl.constexpr = (DV + BLOCK_DV - 1) // BLOCK_DV
    block = tl.program_id(0) % BLOCKS
    h = tl.program_id(0) // BLOCKS % H
    n = tl.program_id(0) // BLOCKS // H
    begin, t = _sequence(n, cu, T)
    if cu is None:
        b = n
    else:
        b = n * 0
    return block * BLOCK_DV, block, h, n, b, begin, t


@triton.jit
def linear_forward(
    q, k, v, decay, beta, state, y, new_state, states, cu_seqlens,
    q_b, q_h, q_t, q_d, k_b, k_h, k_t, k_d, v_b, v_h, v_t, v_d, decay_b, decay_h, decay_t, decay_d, beta_b, beta_h, beta_t,
    y_b, y_h, y_t, T, H, chunks, scale, eps,
    GROUP_Q: tl.constexpr, GROUP_K: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, DELTA: tl.constexpr,
    NORM: tl.constexpr, FEATURES: tl.constexpr, PRECISION: tl.constexpr, C: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr,
):  # fmt: skip
    """Writes y, new_state and `states`, the state before each chunk. Each of them may be None."""
    first, block, h, n, b, begin, t = _columns_of_program(cu_seqlens, T, H, DV, BLOCK_DV)
    q_base = _base(q, b, h // GROUP_Q, begin, q_b, q_h, q_t)
    k_base = _base(k, b, h // GROUP_K, begin, k_b, k_h, k_t)
    v_base = _base(v, b, h, begin, v_b, v_h, v_t) + first * v_d
    decay_base = _base_if_there(decay, b, h, begin, decay_b, decay_h, decay_t)
    beta_base = _base_if_there(beta, b, h, begin, beta_b, beta_h, beta_t)
    left = DV - first
    columns = tl.arange(0, BLOCK_DV)
    rows = tl.arange(0, C)
    chunk = _first_chunk(n, cu_seqlens, chunks, C)
    if state is None:
        s = tl.zeros((BLOCK_D, BLOCK_DV), tl.float32)
    else:
        s = _load_state(state, n, h, H, first, D, DV, BLOCK_D, BLOCK_DV)
    for c in tl.range(0, t, C):
        if states is not None:
            _store_state(states, chunk, h, H, first, s, D, DV, BLOCK_D, BLOCK_DV)
        k_rows, _ = _normalized(_load_rows(k_base, c, k_t, k_d, t, D, C, BLOCK_D, False).to(tl.float32), eps, NORM)
        token = (c + rows).to(tl.int64)
        there = ((c + rows) < t)[:, None] & (columns < left)[None, :]
        u = tl.load(v_base + token[:, None] * v_t + columns[None, :] * v_d, mask=there, other=0.0).to(tl.float32)
        g = _load_decays(decay_base, c, decay_t, decay_d, t, D, C, BLOCK_D, FEATURES)
        sums, gamma, eta, gamma_c = _decays(g)
        if DELTA:
            b_rows = _load_column(beta_base, c, beta_t, t, C, 1.0)
            kk = _products(k_rows, k_rows, sums, C, FEATURES, PRECISION)
            a = tl.where(rows[:, None] > rows[None, :], b_rows[:, None] * kk, 0.0)
            u = b_rows[:, None] * (u - tl.dot(gamma * k_rows, s, input_precision=PRECISION))
            u = tl.dot(_inverse(a, C), u, input_precision=PRECISION)
        if y is not None:
            q_rows, _ = _normalized(_load_rows(q_base, c, q_t, q_d, t, D, C, BLOCK_D, False).to(tl.float32), eps, NORM)
            p = _products(q_rows, k_rows, sums, C, FEATURES, PRECISION)
            out = tl.dot(gamma * q_rows, s, input_precision=PRECISION)
            out = scale * tl.dot(p, u, out, input_precision=PRECISION)
            y_at = _base(y, b, h, begin, y_b, y_h, y_t) + token[:, None] * y_t + first + columns[None, :]
            tl.store(y_at, out.to(y.dtype.element_ty), mask=there)
        s = tl.dot(tl.trans(eta * k_rows), u, gamma_c * s, input_precision=PRECISION)
        chunk += 1
    if new_state is not None:
        _store_state(new_state, n, h, H, first, s, D, DV, BLOCK_D, BLOCK_DV)


@triton.jit
def linear_backward_states(
    q, k, v, decay, beta, states, dy, dnew_state, u, db, dstates, dv, dstate, cu_seqlens,
    q_b, q_h, q_t, q_d, k_b, k_h, k_t, k_d, v_b, v_h, v_t, v_d, decay_b, decay_h, decay_t, decay_d, beta_b, beta_h, beta_t,
    dy_b, dy_h, dy_t, dy_d, dv_b, dv_h, dv_t, T, H, chunks, scale, eps,
    GROUP_Q: tl.constexpr, GROUP_K: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, DELTA: tl.constexpr,
    NORM: tl.constexpr, FEATURES: tl.constexpr, PRECISION: tl.constexpr, C: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr,
):  # fmt: skip
    """Computes the gradients of v and of the states. Iterates from the last chunk to the first. Reads `states`, which
    linear_forward wrote.

    Writes dv and dstate, which may be None. Also writes the inputs of linear_backward_chunks:

    - u and db = (1 + A)⁻ᵀ du, (B,H,T,DV) each
    - dstates: the gradient of the state after each chunk
    """
    first, block, h, n, b, begin, t = _columns_of_program(cu_seqlens, T, H, DV, BLOCK_DV)
    q_base = _base(q, b, h // GROUP_Q, begin, q_b, q_h, q_t)
    k_base = _base(k, b, h // GROUP_K, begin, k_b, k_h, k_t)
    v_base = _base(v, b, h, begin, v_b, v_h, v_t) + first * v_d
    dy_base = _base(dy, b, h, begin, dy_b, dy_h, dy_t) + first * dy_d
    decay_base = _base_if_there(decay, b, h, begin, decay_b, decay_h, decay_t)
    beta_base = _base_if_there(beta, b, h, begin, beta_b, beta_h, beta_t)
    part = (b * H + h).to(tl.int64) * T + begin
    columns = tl.arange(0, BLOCK_DV)
    rows = tl.arange(0, C)
    of_chunk = tl.zeros((BLOCK_D, BLOCK_DV), tl.float32)
    if dnew_state is not None:
        of_chunk = _load_state(dnew_state, n, h, H, first, D, DV, BLOCK_D, BLOCK_DV)
    count = (t + C - 1) // C
    chunk = _first_chunk(n, cu_seqlens, chunks, C) + count - 1
    for step in tl.range(0, count):
        c = (count - 1 - step) * C
        token = (c + rows).to(tl.int64)
        there = ((c + rows) < t)[:, None] & (columns < DV - first)[None, :]
        at = (part + token)[:, None] * DV + first + columns[None, :]
        q_rows, _ = _normalized(_load_rows(q_base, c, q_t, q_d, t, D, C, BLOCK_D, False).to(tl.float32), eps, NORM)
        k_rows, _ = _normalized(_load_rows(k_base, c, k_t, k_d, t, D, C, BLOCK_D, False).to(tl.float32), eps, NORM)
        u_rows = tl.load(v_base + token[:, None] * v_t + columns[None, :] * v_d, mask=there, other=0.0).to(tl.float32)
        dy_rows = tl.load(
            dy_base + token[:, None] * dy_t + columns[None, :] * dy_d, mask=there, other=0.0
        ).to(tl.float32)  # fmt: skip
        dy_rows = scale * dy_rows
        g = _load_decays(decay_base, c, decay_t, decay_d, t, D, C, BLOCK_D, FEATURES)
        sums, gamma, eta, gamma_c = _decays(g)
        # Backward pass of the output y = scale ((γ ∘ q) S + P u) and of the next state S' = γ_C ∘ S + (η ∘ k)ᵀ u.
        p = _products(q_rows, k_rows, sums, C, FEATURES, PRECISION)
        du = tl.dot(tl.trans(p), dy_rows, input_precision=PRECISION)
        du = tl.dot(eta * k_rows, of_chunk, du, input_precision=PRECISION)
        before = tl.dot(tl.trans(gamma * q_rows), dy_rows, gamma_c * of_chunk, input_precision=PRECISION)
        dv_rows = du
        if DELTA:
            # Backward pass of the delta rule u = (1 + A)⁻¹ β (v − (γ ∘ k) S).
            b_rows = _load_column(beta_base, c, beta_t, t, C, 1.0)
            kk = _products(k_rows, k_rows, sums, C, FEATURES, PRECISION)
            inverse = _inverse(tl.where(rows[:, None] > rows[None, :], b_rows[:, None] * kk, 0.0), C)
            db_rows = tl.dot(tl.trans(inverse), du, input_precision=PRECISION)
            dv_rows = b_rows[:, None] * db_rows
            before = tl.dot(tl.trans(-gamma * k_rows), dv_rows, before, input_precision=PRECISION)
            if u is not None:
                s = _load_state(states, chunk, h, H, first, D, DV, BLOCK_D, BLOCK_DV)
                u_rows = b_rows[:, None] * (u_rows - tl.dot(gamma * k_rows, s, input_precision=PRECISION))
                u_rows = tl.dot(inverse, u_rows, input_precision=PRECISION)
                tl.store(db + at, db_rows, mask=there)
        if u is not None:
            tl.store(u + at, u_rows, mask=there)
            _store_state(dstates, chunk, h, H, first, of_chunk, D, DV, BLOCK_D, BLOCK_DV)
        if dv is not None:
            dv_at = _base(dv, b, h, begin, dv_b, dv_h, dv_t) + token[:, None] * dv_t + first + columns[None, :]
            tl.store(dv_at, dv_rows.to(dv.dtype.element_ty), mask=there)
        of_chunk = before
        chunk -= 1
    if dstate is not None:
        _store_state(dstate, n, h, H, first, of_chunk, D, DV, BLOCK_D, BLOCK_DV)


@triton.jit
def linear_backward_chunks(
    q, k, v, decay, beta, states, dstates, u, db, dy, dq, dk, ddecay, dbeta, cu_seqlens,
    q_b, q_h, q_t, q_d, k_b, k_h, k_t, k_d, v_b, v_h, v_t, v_d, decay_b, decay_h, decay_t, decay_d, beta_b, beta_h, beta_t,
    dy_b, dy_h, dy_t, dy_d, T, H, n_sequences, chunks, scale, eps,
    GROUP_Q: tl.constexpr, GROUP_K: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, DELTA: tl.constexpr,
    NORM: tl.constexpr, FEATURES: tl.constexpr, PRECISION: tl.constexpr, C: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr,
):  # fmt: skip
    """Writes dq and dk (B,H,T,D), ddecay and dbeta (B,H,T) of a chunk and value head, in f32. Each of them may be None.

    Each gradient is a sum over the columns of the states, computed block by block from the results of
    linear_backward_states.
    """
    b, h, n, c, begin, t = _place_of_program(cu_seqlens, T, H, n_sequences, chunks, C)
    if c >= t:
        return
    chunk = b * chunks + tl.program_id(0) % chunks
    rows = tl.arange(0, C)
    token = (c + rows).to(tl.int64)
    part = (b * H + h).to(tl.int64) * T + begin
    v_base = _base(v, b, h, begin, v_b, v_h, v_t)
    dy_base = _base(dy, b, h, begin, dy_b, dy_h, dy_t)
    dq_rows = tl.zeros((C, BLOCK_D), tl.float32)
    dk_rows = tl.zeros((C, BLOCK_D), tl.float32)
    through_state = tl.zeros((C, BLOCK_D), tl.float32)
    dp = tl.zeros((C, C), tl.float32)
    da = tl.zeros((C, C), tl.float32)
    db_v = tl.zeros((C,), tl.float32)
    passed_on = tl.zeros((BLOCK_D,), tl.float32)
    for first in tl.range(0, DV, BLOCK_DV):
        columns = first + tl.arange(0, BLOCK_DV)
        there = ((c + rows) < t)[:, None] & (columns < DV)[None, :]
        at = (part + token)[:, None] * DV + columns[None, :]
        dy_rows = tl.load(
            dy_base + token[:, None] * dy_t + columns[None, :] * dy_d, mask=there, other=0.0
        ).to(tl.float32)  # fmt: skip
        dy_rows = scale * dy_rows
        u_rows = tl.load(u + at, mask=there, other=0.0)
        s = _load_state(states, chunk, h, H, first, D, DV, BLOCK_D, BLOCK_DV)
        of_chunk = _load_state(dstates, chunk, h, H, first, D, DV, BLOCK_D, BLOCK_DV)
        dp = tl.dot(dy_rows, tl.trans(u_rows), dp, input_precision=PRECISION)
        dq_rows = tl.dot(dy_rows, tl.trans(s), dq_rows, input_precision=PRECISION)
        dk_rows = tl.dot(u_rows, tl.trans(of_chunk), dk_rows, input_precision=PRECISION)
        passed_on += tl.sum(of_chunk * s, 1)
        if DELTA:
            db_rows = tl.load(db + at, mask=there, other=0.0)
            da = tl.dot(-db_rows, tl.trans(u_rows), da, input_precision=PRECISION)
            through_state = tl.dot(db_rows, tl.trans(s), through_state, input_precision=PRECISION)
            if dbeta is not None:
                v_at = v_base + token[:, None] * v_t + columns[None, :] * v_d
                db_v += tl.sum(db_rows * tl.load(v_at, mask=there, other=0.0).to(tl.float32), 1)

    q_rows, q_factor = _normalized(
        _load_rows(_base(q, b, h // GROUP_Q, begin, q_b, q_h, q_t), c, q_t, q_d, t, D, C, BLOCK_D, False).to(tl.float32),
        eps, NORM,
    )  # fmt: skip
    k_rows, k_factor = _normalized(
        _load_rows(_base(k, b, h // GROUP_K, begin, k_b, k_h, k_t), c, k_t, k_d, t, D, C, BLOCK_D, False).to(tl.float32),
        eps, NORM,
    )  # fmt: skip
    decay_base = _base_if_there(decay, b, h, begin, decay_b, decay_h, decay_t)
    g = _load_decays(decay_base, c, decay_t, decay_d, t, D, C, BLOCK_D, FEATURES)
    sums, gamma, eta, gamma_c = _decays(g)
    # Backward pass of the output y = scale ((γ ∘ q) S + P u) and of the next state S' = γ_C ∘ S + (η ∘ k)ᵀ u.
    dq_rows = gamma * dq_rows
    dk_rows = eta * dk_rows
    dwhole = tl.sum(dk_rows * k_rows, 0)[:, None] + gamma_c * passed_on[:, None]
    dp = tl.where(rows[:, None] >= rows[None, :], dp, 0.0)
    dq_pairs, dk_pairs = _through_products(dp, q_rows, k_rows, sums, C, BLOCK_D, FEATURES, PRECISION)
    dq_rows += dq_pairs
    dk_rows += dk_pairs
    dsums = dq_rows * q_rows
    if DELTA:
        # Backward pass of the delta rule u = (1 + A)⁻¹ β (v − (γ ∘ k) S).
        # The rows of A come from β ∘ k, its columns from k.
        b_rows = _load_column(_base_if_there(beta, b, h, begin, beta_b, beta_h, beta_t), c, beta_t, t, C, 1.0)
        reading = b_rows[:, None] * k_rows
        da = tl.where(rows[:, None] > rows[None, :], da, 0.0)
        dreading, dk_pairs = _through_products(da, reading, k_rows, sums, C, BLOCK_D, FEATURES, PRECISION)
        dreading -= gamma * through_state
        dk_rows += dk_pairs
        if dbeta is not None:
            tl.store(dbeta + part + token, db_v + tl.sum(dreading * k_rows, 1), mask=(c + rows) < t)
        dsums += dreading * reading
    dsums -= dk_rows * k_rows
    if DELTA:
        dk_rows += b_rows[:, None] * dreading
    if ddecay is not None:
        if FEATURES:
            found = tl.cumsum(dsums, 0, reverse=True) + tl.trans(dwhole)
            _store_rows(ddecay + part * D, c, D, 1, t, found, D, C, BLOCK_D)
        else:
            found = tl.cumsum(tl.sum(dsums, 1), 0, reverse=True) + tl.sum(dwhole)
            tl.store(ddecay + part + token, found, mask=(c + rows) < t)
    if dq is not None:
        _store_rows(dq + part * D, c, D, 1, t, _through_norm(dq_rows, q_rows, q_factor, NORM), D, C, BLOCK_D)
    if dk is not None:
        _store_rows(dk + part * D, c, D, 1, t, _through_norm(dk_rows, k_rows, k_factor, NORM), D, C, BLOCK_D)
