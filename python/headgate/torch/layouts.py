# SPDX-License-Identifier: Apache-2.0
"""Splits and joins projections that hold the rows of a gate and of q, k or v.

There are Hq query heads in Hkv groups. A head has D rows of q and F rows of its gate. F is 1 for a headwise gate, and D
for an elementwise gate. A layout gives the order of the rows:

    separate        q alone; the gate has its own matrix
    per_query_head  for each head: q, gate                                           (Qwen3-Next, Qwen3.5)
    per_group       for each group: q of its heads, then their gates
    trailing        q of all heads, then all gates
    blocks          q of all heads, all gates, all k, all v in one matrix

The shape of a matrix does not reveal the order of its rows. A wrong layout therefore raises no error, but gives a
different model.
"""

from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from .checks import require_tensor, shape_of
from .layer import blocks_of_layout

Fused = Literal["per_query_head", "per_group", "trailing"]
FUSED = get_args(Fused)
"""Layouts in which one matrix holds q and the gate, but not k and v."""


class Heads(NamedTuple):
    """Holds the sizes that determine how many rows q, k, v and the gate have."""

    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    gate_features: int  # 1 for a headwise gate, head_dim for an elementwise one

    @property
    def q_rows(self) -> int:
        return self.num_attention_heads * self.head_dim

    @property
    def gate_rows(self) -> int:
        return self.num_attention_heads * self.gate_features

    @property
    def kv_rows(self) -> int:
        return self.num_key_value_heads * self.head_dim


def blocks_of(layout: str, heads: Heads, what: str = "blocks_of") -> int:
    """Returns the number of blocks in a q_proj that also holds the gate. In each block, the rows of some query heads
    precede the rows of their gates. Errors name the function `what`.
    """
    if layout not in FUSED:
        raise ValueError(f"{what}: layout: '{layout}' is none of {', '.join(FUSED)}")
    return blocks_of_layout(layout, heads.num_attention_heads, heads.num_key_value_heads)


def _require_rows(what: str, name: str, tensor: Tensor, rows: int) -> None:
    require_tensor(what, name, tensor)
    if tensor.dim() == 0 or tensor.shape[0] != rows:
        raise ValueError(f"{what}: {name} has shape {shape_of(tensor)} but must have {rows} rows")


def split_gate(fused: Tensor, layout: str, heads: Heads) -> tuple[Tensor, Tensor]:
    """Splits a q_proj weight (rows,C) or bias (rows) into the rows of q and the rows of the gate, both head by head."""
    blocks = blocks_of(layout, heads, "split_gate")
    _require_rows(f"split_gate: layout {layout}", "fused", fused, heads.q_rows + heads.gate_rows)
    parts = fused.unflatten(0, (blocks, -1)).split((heads.q_rows // blocks, heads.gate_rows // blocks), dim=1)
    return parts[0].flatten(0, 1), parts[1].flatten(0, 1)


def join_gate(q: Tensor, gate: Tensor, layout: str, heads: Heads) -> Tensor:
    """Joins the rows of q and of the gate. Inverse of split_gate."""
    blocks = blocks_of(layout, heads, "join_gate")
    _require_rows("join_gate", "q", q, heads.q_rows)
    _require_rows("join_gate", "gate", gate, heads.gate_rows)
    return torch.cat((q.unflatten(0, (blocks, -1)), gate.unflatten(0, (blocks, -1))), dim=1).flatten(0, 1)


def split_blocks(fused: Tensor, heads: Heads) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Splits a matrix with layout "blocks" into q, gate, k and v."""
    sizes = (heads.q_rows, heads.gate_rows, heads.kv_rows, heads.kv_rows)
    _require_rows("split_blocks", "fused", fused, sum(sizes))
    return fused.split(sizes, dim=0)


def join_blocks(q: Tensor, gate: Tensor, k: Tensor, v: Tensor, heads: Heads) -> Tensor:
    """Joins q, gate, k and v to a matrix with layout "blocks". Inverse of split_blocks."""
    for name, tensor, rows in (
        ("q", q, heads.q_rows),
        ("gate", gate, heads.gate_rows),
        ("k", k, heads.kv_rows),
        ("v", v, heads.kv_rows),
    ):
        _require_rows("join_blocks", name, tensor, rows)
    return torch.cat((q, gate, k, v), dim=0)
