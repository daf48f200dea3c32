# SPDX-License-Identifier: Apache-2.0
"""The sizes of the kernels' tiles: a fixed table, so that equal calls launch equal kernels and give equal bits.

A tile is BLOCK_M queries by BLOCK_N keys, computed by a program of num_warps warps with num_stages of keys under way.
docs/design/gpu.md has the registers and the shared memory that they take.
"""

from typing import NamedTuple


class Tile(NamedTuple):
    """How a kernel is launched. BLOCK_N is not used by attention_backward_rows."""

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int


KERNELS = ("attention_forward", "attention_backward_rows", "attention_backward_keys", "attention_backward_queries")

# Rows: forward, backward of keys, backward of queries; for the largest of D and Dv up to 64, 128 and 256.
_16_BITS = {
    "sm_80": {
        64: (Tile(128, 64, 4, 3), Tile(32, 64, 4, 2), Tile(64, 64, 4, 2)),
        128: (Tile(128, 64, 8, 3), Tile(64, 64, 8, 2), Tile(64, 64, 8, 2)),
        256: (Tile(64, 64, 8, 2), Tile(32, 32, 8, 2), Tile(64, 32, 8, 2)),
    },
    "sm_90": {
        64: (Tile(128, 64, 4, 3), Tile(64, 128, 8, 2), Tile(64, 64, 4, 2)),
        128: (Tile(128, 64, 8, 3), Tile(32, 128, 8, 2), Tile(64, 64, 8, 2)),
        256: (Tile(64, 64, 8, 2), Tile(32, 64, 8, 2), Tile(64, 32, 8, 2)),
    },
    "sm_100": {
        64: (Tile(128, 64, 4, 3), Tile(32, 128, 8, 2), Tile(64, 64, 4, 2)),
        128: (Tile(128, 64, 8, 3), Tile(32, 64, 8, 2), Tile(64, 64, 8, 2)),
        256: (Tile(64, 64, 8, 2), Tile(32, 64, 8, 1), Tile(64, 32, 8, 2)),
    },
    # What fits into 64 KiB: AMD's GPUs, smaller ones of NVIDIA, and those that nobody has looked at.
    "small": {
        64: (Tile(128, 64, 4, 1), Tile(64, 64, 4, 1), Tile(64, 64, 4, 1)),
        128: (Tile(64, 64, 4, 1), Tile(32, 64, 4, 1), Tile(64, 32, 4, 1)),
        256: (Tile(64, 32, 4, 1), Tile(32, 32, 4, 1), Tile(32, 32, 4, 1)),
    },
}
# Products of f32 are IEEE's, which no matrix unit of NVIDIA computes: small tiles, in registers.
_32_BITS = {
    64: (Tile(32, 32, 4, 1), Tile(32, 32, 4, 1), Tile(32, 32, 4, 1)),
    128: (Tile(32, 32, 8, 1), Tile(16, 32, 4, 1), Tile(16, 32, 4, 1)),
    256: (Tile(16, 32, 4, 1), Tile(16, 16, 4, 1), Tile(16, 16, 4, 1)),
}
_ROWS = {64: Tile(64, 0, 4, 1), 128: Tile(32, 0, 4, 1), 256: Tile(16, 0, 4, 1)}


def architecture(backend: str, arch: int | str) -> str:
    """The part of the table for a target of Triton: `arch` is 86 for compute capability 8.6, and a name of AMD's."""
    if backend == "cuda" and isinstance(arch, int):
        if 100 <= arch < 120:
            return "sm_100"
        if 90 <= arch < 100:
            return "sm_90"
        if arch in (80, 87):
            return "sm_80"
    return "small"


def tile_for(kernel: str, column: str, bytes_per_element: int, features: int) -> Tile:
    """The tile of `kernel` on GPUs of `column`, for elements of 2 or 4 bytes and `features`, the larger of D and Dv."""
    size = 64 if features <= 64 else 128 if features <= 128 else 256
    if kernel == "attention_backward_rows":
        return _ROWS[size]
    table = _32_BITS if bytes_per_element == 4 else _16_BITS[column]
    return table[size][("attention_forward", "attention_backward_keys", "attention_backward_queries").index(kernel)]
