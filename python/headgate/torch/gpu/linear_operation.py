# SPDX-License-Identifier: Apache-2.0
"""Implements headgate.torch.linear_attention on GPUs. Contains the checks and the operator
torch.ops.headgate.linear_attention_triton.
"""

from typing import Any

import torch
from torch import Tensor

from . import checks, launch, linear_launch
from .support import DTYPES, LAYOUTS, LINEAR, LINEAR_MAX_STATE_ROWS, MAX_HEAD_DIM
from .triton_operation import TritonOperation

NAME = "linear_attention"
_CHOICES = {
    "layout": LAYOUTS,
    "rule": ("gated_delta", "delta", "gated", "linear"),
    "precision": ("exact", "native16"),
}


def _check_rule(tensors: dict[str, Tensor | None], rule: str) -> None:
    for name, rules in (("decay", ("gated_delta", "gated")), ("beta", ("gated_delta", "delta"))):
        if tensors[name] is not None and rule not in rules:
            raise ValueError(f"{NAME}: {name} is not for the rule {rule}: leave it out")


def _check_shapes(tensors: dict[str, Tensor | None], layout: str) -> None:
    q, k, v = tensors["q"], tensors["k"], tensors["v"]
    checks.check_features(NAME, {"q": q, "k": k}, LINEAR_MAX_STATE_ROWS)
    checks.check_features(NAME, {"q": q, "v": v}, MAX_HEAD_DIM)
    batch, query_heads, tokens, D = launch.sizes(q, layout)
    _, key_heads, _, _ = launch.sizes(k, layout)
    _, heads, _, DV = launch.sizes(v, layout)

    def shape(heads: int, features: int) -> tuple[int, ...]:
        return checks.shape_like(q, layout, batch, heads, tokens, features)

    checks.require_shape(NAME, "k", k, shape(key_heads, D))
    checks.require_shape(NAME, "v", v, shape(heads, DV))
    for name, count in (("q", query_heads), ("k", key_heads)):
        if count == 0 or heads % count != 0:
            raise ValueError(f"{NAME}: v has {heads} heads but must have a multiple of {name}'s {count} on GPUs")
    checks.require_shape(NAME, "decay", tensors["decay"], shape(heads, 1), shape(heads, D))
    checks.require_shape(NAME, "beta", tensors["beta"], shape(heads, 1), shape(1, 1))
    sequences = checks.count_sequences(NAME, "cu_seqlens", tensors["cu_seqlens"], batch, "q")
    checks.require_shape(NAME, "state", tensors["state"], (sequences, heads, D, DV))


def _check(tensors: dict[str, Tensor | None], options: dict[str, Any]) -> None:
    dtype = tensors["q"].dtype
    types = {"q": DTYPES, "k": (dtype,), "v": (dtype,), "decay": (dtype, torch.float32)}
    types |= {"beta": types["decay"], "state": (torch.float32, torch.float64), "cu_seqlens": checks.INDICES}
    checks.check_types(NAME, tensors, types)
    checks.check_choices(NAME, options, _CHOICES)
    checks.check_precision(NAME, options, dtype)
    checks.require_finite(NAME, options, "scale")
    checks.require_finite(NAME, options, "l2_norm", 0.0)
    _check_rule(tensors, options["rule"])
    _check_shapes(tensors, options["layout"])


linear_attention = TritonOperation(
    NAME,
    LINEAR,
    linear_launch,
    _check,
    has_state=True,
    cast=("q", "k", "v"),
    cast_unless_f32=("decay", "beta"),
).call
