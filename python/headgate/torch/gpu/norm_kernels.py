# SPDX-License-Identifier: Apache-2.0
"""Gated norm in Triton: one kernel for the forward pass, one for the backward pass.

    r = 1 / √( (1/D) Σ x² + eps )        y = x · r · weight · g(z)        for each row of D features

x and z are (B,H,T,D) with any strides, weight is (1|H,D). A program computes BLOCK_T rows of a head, all in f32. There
are no atomics: each program writes its part of dweight, and the host sums the parts.

This file imports nothing but Triton and kernels.py.
"""

import triton
import triton.language as tl

from .kernels import _base, _gate, _gate_slope, _load_rows, _place_of_program, _store_rows

# Rows with elements above LARGE are multiplied by DOWN, so that their squares do not overflow in f32.
# Rows with only elements below SMALL are multiplied by a large power of two, so that their squares do not underflow.
LARGE: tl.constexpr = tl.constexpr(2.0**50)
SMALL: tl.constexpr = tl.constexpr(2.0**-40)
DOWN: tl.constexpr = tl.constexpr(2.0**-80)


@triton.jit
def _normalized(x, eps, up, eps_up, D: tl.constexpr):
    """Returns n = x · r, and r. Rows with only elements below SMALL are scaled by `up`. Their eps is eps_up = eps ·
    up².

    r is 0 for a row that contains an infinity. r is also 0 for a row of zeros if eps is 0.
    """
    top = tl.max(tl.abs(x), 1)
    scale = tl.where(top > LARGE, DOWN, tl.where(top < SMALL, up, 1.0))
    own_eps = tl.where(top > LARGE, eps * DOWN * DOWN, tl.where(top < SMALL, eps_up, eps))
    scaled = x * scale[:, None]
    mean = tl.sum(scaled * scaled, 1) / D + own_eps
    r = tl.where(mean == 0, 0.0, 1.0 / tl.sqrt(tl.where(mean == 0, 1.0, mean)))
    return scaled * r[:, None], r * scale


@triton.jit
def _load_weight(weight, h, weight_h, weight_d, D: tl.constexpr, BLOCK_D: tl.constexpr):
    """Loads the weights of head h. If the weights are absent, returns ones."""
    features = tl.arange(0, BLOCK_D)
    if weight is None:
        w = tl.full((BLOCK_D,), 1.0, tl.float32)
    else:
        w = tl.load(weight + h * weight_h + features * weight_d, mask=features < D, other=0.0).to(tl.float32)
    return w


@triton.jit
def norm_forward(
    x, weight, gate, y, x_b, x_h, x_t, x_d, weight_h, weight_d, gate_b, gate_h, gate_t, gate_d, y_b, y_h, y_t,
    T, H, tiles, eps, up, eps_up,
    FN: tl.constexpr, D: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    b, h, _, first, _, _ = _place_of_program(None, T, H, 1, tiles, BLOCK_T)
    x_rows = _load_rows(_base(x, b, h, 0, x_b, x_h, x_t), first, x_t, x_d, T, D, BLOCK_T, BLOCK_D, False)
    n, _ = _normalized(x_rows.to(tl.float32), eps, up, eps_up, D)
    n = n * _load_weight(weight, h, weight_h, weight_d, D, BLOCK_D)[None, :]
    if gate is not None:
        gate_base = _base(gate, b, h, 0, gate_b, gate_h, gate_t)
        z = _load_rows(gate_base, first, gate_t, gate_d, T, D, BLOCK_T, BLOCK_D, False)
        n = n * _gate(z.to(tl.float32), FN)
    _store_rows(_base(y, b, h, 0, y_b, y_h, y_t), first, y_t, 1, T, n, D, BLOCK_T, BLOCK_D)


@triton.jit
def norm_backward(
    x, weight, gate, dy, dx, dgate, dweight, x_b, x_h, x_t, x_d, weight_h, weight_d, gate_b, gate_h, gate_t, gate_d,
    dy_b, dy_h, dy_t, dy_d, dx_b, dx_h, dx_t, dgate_b, dgate_h, dgate_t, T, H, tiles, eps, up, eps_up,
    FN: tl.constexpr, D: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Writes dx, dgate, and this program's part of dweight (B,H,tiles,D) in f32. Each of them may be None.

    With e = dy · weight · g(z): dx = r (e − n Σ e n / D), dweight = Σ dy · n · g(z), dgate = dy · n · weight · g′(z).
    """
    b, h, _, first, _, _ = _place_of_program(None, T, H, 1, tiles, BLOCK_T)
    x_rows = _load_rows(_base(x, b, h, 0, x_b, x_h, x_t), first, x_t, x_d, T, D, BLOCK_T, BLOCK_D, False)
    n, r = _normalized(x_rows.to(tl.float32), eps, up, eps_up, D)
    w = _load_weight(weight, h, weight_h, weight_d, D, BLOCK_D)[None, :]
    dy_base = _base(dy, b, h, 0, dy_b, dy_h, dy_t)
    flow = _load_rows(dy_base, first, dy_t, dy_d, T, D, BLOCK_T, BLOCK_D, False).to(tl.float32)
    if gate is not None:
        gate_base = _base(gate, b, h, 0, gate_b, gate_h, gate_t)
        z = _load_rows(gate_base, first, gate_t, gate_d, T, D, BLOCK_T, BLOCK_D, False).to(tl.float32)
        if dgate is not None:
            dz = flow * n * w * _gate_slope(z, FN)
            dgate_base = _base(dgate, b, h, 0, dgate_b, dgate_h, dgate_t)
            _store_rows(dgate_base, first, dgate_t, 1, T, dz, D, BLOCK_T, BLOCK_D)
        flow = flow * _gate(z, FN)
    if dweight is not None:
        features = tl.arange(0, BLOCK_D)
        at = dweight + tl.program_id(0).to(tl.int64) * D + features
        tl.store(at, tl.sum(flow * n, 0), mask=features < D)
    if dx is not None:
        e = flow * w
        along = tl.sum(e * n, 1) / D
        dx_rows = r[:, None] * (e - n * along[:, None])
        _store_rows(_base(dx, b, h, 0, dx_b, dx_h, dx_t), first, dx_t, 1, T, dx_rows, D, BLOCK_T, BLOCK_D)
