# SPDX-License-Identifier: Apache-2.0
"""Defines the precisions of attention in bfloat16, and selects the calls that they apply to."""

from typing import Any, Literal, get_args

import torch
from torch import Tensor

from .checks import shown

Precision = Literal["exact", "native16"]
IMPLEMENTATIONS: dict[str, Precision] = {"headgate": "exact", "headgate-native16": "native16"}
"""Maps values of transformers' attn_implementation to precisions."""


def require_precision(what: str, precision: Any) -> None:
    """Raises ValueError unless `precision` is one of Precision. The error names the function `what`."""
    if not isinstance(precision, str) or precision not in get_args(Precision):
        words = " or ".join(map(repr, get_args(Precision)))
        raise ValueError(f"{what}: precision is {shown(precision)} but must be {words}")


def precision_of(query: Tensor, precision: Precision) -> dict[str, Any]:
    """Returns {"precision": precision} for gated_attention if the call computes in bfloat16. Otherwise returns {}, so
    that the call is exact.

    A call computes in bfloat16 if `query` has that dtype or autocast casts to it.
    """
    dtype = query.dtype
    device = query.device.type
    available = torch.amp.autocast_mode.is_autocast_available(device)
    if available and torch.is_autocast_enabled(device) and dtype != torch.float64:
        dtype = torch.get_autocast_dtype(device)
    return {"precision": precision} if precision != "exact" and dtype == torch.bfloat16 else {}
