# SPDX-License-Identifier: Apache-2.0
"""Table of the kernels' tile sizes. The table is fixed: equal calls launch equal kernels, so results are bitwise
identical.

A tile is BLOCK_M queries by BLOCK_N keys. A program with num_warps warps computes a tile, and pipelines the loads of
keys in num_stages stages. docs/design/gpu.md gives the registers and shared memory that the tiles need.
"""

from typing import NamedTuple


class Tile(NamedTuple):
    """Launch parameters of a kernel. attention_backward_rows does not use block_n."""

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int


KERNELS = ("attention_forward", "attention_backward_rows", "attention_backward_keys", "attention_backward_queries")

# Tile sizes by the larger of D and Dv: up to 64, up to 128 and up to 256.
# Each entry lists the tiles of attention_forward, attention_backward_keys and attention_backward_queries.
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
    # Tiles for 64 KiB of shared memory: AMD's GPUs, NVIDIA's smaller GPUs, and all untested GPUs.
    "small": {
        64: (Tile(128, 64, 4, 1), Tile(64, 64, 4, 1), Tile(64, 64, 4, 1)),
        128: (Tile(64, 64, 4, 1), Tile(32, 64, 4, 1), Tile(64, 32, 4, 1)),
        256: (Tile(64, 32, 4, 1), Tile(32, 32, 4, 1), Tile(32, 32, 4, 1)),
    },
}
# Tiles for f32, small enough for registers. NVIDIA's tensor cores do not support f32 products with IEEE arithmetic.
_32_BITS = {
    64: (Tile(32, 32, 4, 1), Tile(32, 32, 4, 1), Tile(32, 32, 4, 1)),
    128: (Tile(32, 32, 8, 1), Tile(16, 32, 4, 1), Tile(16, 32, 4, 1)),
    256: (Tile(16, 32, 4, 1), Tile(16, 16, 4, 1), Tile(16, 16, 4, 1)),
}
_ROWS = {64: Tile(64, 0, 4, 1), 128: Tile(32, 0, 4, 1), 256: Tile(16, 0, 4, 1)}


def architecture(backend: str, arch: int | str) -> str:
    """Returns the key of _16_BITS for a Triton target. `arch` is 86 for compute capability 8.6, for example, or the
    name of an AMD architecture.
    """
    if backend == "cuda" and isinstance(arch, int):
        if 100 <= arch < 120:
            return "sm_100"
        if 90 <= arch < 100:
            return "sm_90"
        if arch in (80, 87):
            return "sm_80"
    return "small"


def tile_for(kernel: str, column: str, bytes_per_element: int, features: int) -> Tile:
    """Returns the tile of `kernel` for elements of 2 or 4 bytes.

    `column` is a result of architecture(). `features` is the larger of D and Dv.
    """
    size = 64 if features <= 64 else 128 if features <= 128 else 256
    if kernel == "attention_backward_rows":
        return _ROWS[size]
    table = _32_BITS if bytes_per_element == 4 else _16_BITS[column]
    return table[size][("attention_forward", "attention_backward_keys", "attention_backward_queries").index(kernel)]
