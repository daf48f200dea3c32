# SPDX-License-Identifier: Apache-2.0
"""Implements headgate.torch.gated_norm on GPUs. Contains the checks and the operator
torch.ops.headgate.gated_norm_triton.
"""

from typing import Any

import torch
from torch import Tensor

from . import checks, launch, norm_launch
from .support import DTYPES, GATE_FUNCTIONS, LAYOUTS, NORM, NORM_MAX_FEATURES
from .triton_operation import TritonOperation

NAME = "gated_norm"
_CHOICES = {"layout": LAYOUTS, "gate_fn": ("none", *GATE_FUNCTIONS)}


def _check(tensors: dict[str, Tensor | None], options: dict[str, Any]) -> None:
    x = tensors["x"]
    others = (x.dtype, torch.float32)
    checks.check_types(NAME, tensors, {"x": DTYPES, "weight": others, "gate": others})
    checks.check_choices(NAME, options, _CHOICES)
    checks.require_finite(NAME, options, "eps", 0.0)
    checks.check_features(NAME, {"x": x}, NORM_MAX_FEATURES)
    _, heads, _, features = launch.sizes(x, options["layout"])
    checks.require_shape(NAME, "weight", tensors["weight"], (features,), (heads, features))
    checks.require_shape(NAME, "gate", tensors["gate"], tuple(x.shape))


gated_norm = TritonOperation(
    NAME, NORM, norm_launch, _check, has_state=False, cast=("x",), cast_unless_f32=("weight", "gate")
).call
