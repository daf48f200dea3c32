# SPDX-License-Identifier: Apache-2.0
"""The operations of headgate.torch on GPUs, in Triton: experimental, see docs/reference/pytorch.md, "On GPUs".

Each has a file of kernels, one of what the host does for them (…launch.py), and one of PyTorch's operation (…operation.py);
docs/design/gpu.md lists them. The first two kinds and tiles.py import nothing but PyTorch and Triton.
"""

from typing import Any

# Triton is imported at the first call of a function: CPUs do without it. torch.compile traces imports that are written out.


def gated_attention(*arguments: Any) -> Any:
    """operation.gated_attention."""
    try:
        from .operation import gated_attention as compute
    except ModuleNotFoundError:
        _require_triton()
        raise
    return compute(*arguments)


def linear_attention(*arguments: Any) -> Any:
    """linear_operation.linear_attention."""
    try:
        from .linear_operation import linear_attention as compute
    except ModuleNotFoundError:
        _require_triton()
        raise
    return compute(*arguments)


def short_convolution(*arguments: Any) -> Any:
    """convolution_operation.short_convolution."""
    try:
        from .convolution_operation import short_convolution as compute
    except ModuleNotFoundError:
        _require_triton()
        raise
    return compute(*arguments)


def gated_norm(*arguments: Any) -> Any:
    """norm_operation.gated_norm."""
    try:
        from .norm_operation import gated_norm as compute
    except ModuleNotFoundError:
        _require_triton()
        raise
    return compute(*arguments)


def _require_triton() -> None:
    from ...extras import require

    require("triton", "headgate.torch on GPUs")
