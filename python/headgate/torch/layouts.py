# SPDX-License-Identifier: Apache-2.0
"""Where the rows of a gate stand in projections that hold more than the gate.

With Hq query heads in Hkv groups, D rows of a head's q and F of its gate (1 headwise, D elementwise), the rows are

    separate        q alone; the gate has a matrix of its own
    per_query_head  for each head: q, gate                                           (Qwen3-Next, Qwen3.5)
    per_group       for each group: the q of its heads, then their gates
    trailing        the q of all heads, then all gates
    blocks          the q of all heads, all gates, all k, all v: one matrix for all four

A wrong order has the same shape and gives no error, only another model: name the order that a file has.
"""

from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from .checks import require_tensor, shape_of
from .layer import blocks_of_layout

Fused = Literal["per_query_head", "per_group", "trailing"]
FUSED = get_args(Fused)
"""Layouts in which q and the gate share a matrix."""


class Heads(NamedTuple):
    """The sizes that rows are counted by."""

    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    gate_features: int  # 1 headwise, head_dim elementwise

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
    """How many times [some q, their gates] stand one after the other. Errors name the function `what`."""
    if layout not in FUSED:
        raise ValueError(f"{what}: layout: '{layout}' is none of {', '.join(FUSED)}")
    return blocks_of_layout(layout, heads.num_attention_heads, heads.num_key_value_heads)


def _require_rows(what: str, name: str, tensor: Tensor, rows: int) -> None:
    require_tensor(what, name, tensor)
    if tensor.dim() == 0 or tensor.shape[0] != rows:
        raise ValueError(f"{what}: {name} has shape {shape_of(tensor)} but must have {rows} rows")


def split_gate(fused: Tensor, layout: str, heads: Heads) -> tuple[Tensor, Tensor]:
    """The rows of q, head by head, and those of the gate, of a q_proj weight (rows,C) or bias (rows)."""
    blocks = blocks_of(layout, heads, "split_gate")
    _require_rows(f"split_gate: layout {layout}", "fused", fused, heads.q_rows + heads.gate_rows)
    parts = fused.unflatten(0, (blocks, -1)).split((heads.q_rows // blocks, heads.gate_rows // blocks), dim=1)
    return parts[0].flatten(0, 1), parts[1].flatten(0, 1)


def join_gate(q: Tensor, gate: Tensor, layout: str, heads: Heads) -> Tensor:
    """What split_gate splits."""
    blocks = blocks_of(layout, heads, "join_gate")
    _require_rows("join_gate", "q", q, heads.q_rows)
    _require_rows("join_gate", "gate", gate, heads.gate_rows)
    return torch.cat((q.unflatten(0, (blocks, -1)), gate.unflatten(0, (blocks, -1))), dim=1).flatten(0, 1)


def split_blocks(fused: Tensor, heads: Heads) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """q, gate, k and v of one matrix of all four, layout blocks."""
    sizes = (heads.q_rows, heads.gate_rows, heads.kv_rows, heads.kv_rows)
    _require_rows("split_blocks", "fused", fused, sum(sizes))
    return fused.split(sizes, dim=0)


def join_blocks(q: Tensor, gate: Tensor, k: Tensor, v: Tensor, heads: Heads) -> Tensor:
    """What split_blocks splits."""
    for name, tensor, rows in (
        ("q", q, heads.q_rows),
        ("gate", gate, heads.gate_rows),
        ("k", k, heads.kv_rows),
        ("v", v, heads.kv_rows),
    ):
        _require_rows("join_blocks", name, tensor, rows)
    return torch.cat((q, gate, k, v), dim=0)
