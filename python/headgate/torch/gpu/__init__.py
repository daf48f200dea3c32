# SPDX-License-Identifier: Apache-2.0
"""The operations of headgate.torch on GPUs, in Triton: experimental, see docs/reference/pytorch.md, "On GPUs".

Each has a file of kernels, one of what the host does for them (…launch.py), and one of PyTorch's operation (…operation.py);
docs/design/gpu.md lists them. The first two kinds and tiles.py import nothing but PyTorch and Triton.
"""

import importlib
from collections.abc import Callable
from typing import Any


def _computed_by(module: str, name: str) -> Callable[..., Any]:
    """The function `name` of a module here. Triton is imported at the first call: CPUs do without it."""

    def call(*arguments: Any) -> Any:
        try:
            compute = getattr(importlib.import_module(f"{__name__}.{module}"), name)
        except ModuleNotFoundError:
            _require_triton()
            raise
        return compute(*arguments)

    return call


gated_attention = _computed_by("operation", "gated_attention")
linear_attention = _computed_by("linear_operation", "linear_attention")
short_convolution = _computed_by("convolution_operation", "short_convolution")
gated_norm = _computed_by("norm_operation", "gated_norm")


def _require_triton() -> None:
    from ...extras import require

    require("triton", "headgate.torch on GPUs")
