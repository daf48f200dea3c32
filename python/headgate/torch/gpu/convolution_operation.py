# SPDX-License-Identifier: Apache-2.0
"""Implements headgate.torch.short_convolution on GPUs. Contains the checks and the operator
torch.ops.headgate.short_convolution_triton.
"""

from typing import Any

import torch
from torch import Tensor

from . import checks, convolution_launch
from .support import CONVOLUTION, CONVOLUTION_TAPS, DTYPES
from .triton_operation import TritonOperation

NAME = "short_convolution"


def _check(tensors: dict[str, Tensor | None], options: dict[str, Any]) -> None:
    x, weight = tensors["x"], tensors["weight"]
    others = (x.dtype, torch.float32)
    types = {"x": DTYPES, "weight": others, "bias": others, "state": others, "cu_seqlens": checks.INDICES}
    checks.check_types(NAME, tensors, types)
    checks.check_choices(NAME, options, {"activation": ("silu", "none")})
    if x.dim() not in (2, 3):
        raise ValueError(f"{NAME}: x has {x.dim()} dimensions but must be (B,T,C) or (T,C)")
    batch, channels = x.shape[0] if x.dim() == 3 else 1, x.shape[-1]
    taps, (fewest, most) = weight.shape[-1] if weight.dim() else 0, CONVOLUTION_TAPS
    checks.require_shape(NAME, "weight", weight, (channels, taps))
    if not fewest <= taps <= most:
        raise ValueError(f"{NAME}: weight has {taps} taps but must have {fewest} to {most}")
    checks.require_shape(NAME, "bias", tensors["bias"], (channels,))
    sequences = checks.count_sequences(NAME, "cu_seqlens", tensors["cu_seqlens"], batch, "x")
    checks.require_shape(NAME, "state", tensors["state"], (sequences, taps - 1, channels))


short_convolution = TritonOperation(
    NAME,
    CONVOLUTION,
    convolution_launch,
    _check,
    has_state=True,
    cast=("x",),
    cast_unless_f32=("weight", "bias", "state"),
).call
