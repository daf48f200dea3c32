# SPDX-License-Identifier: Apache-2.0
"""Operations of headgate.torch on GPUs, in Triton. Experimental, see docs/reference/pytorch.md, "On GPUs".

Each operation has three files: …kernels.py, the host code …launch.py, and the PyTorch operator …operation.py.
docs/design/gpu.md lists them. Kernels, host code and tiles.py import nothing but PyTorch and Triton.
"""

from typing import Any

# Each of these functions imports Triton when it is first called, since CPUs do not need Triton.
# Each of these functions has a separate import statement, since torch.compile can trace no other form of import.


def gated_attention(*arguments: Any) -> Any:
    """Calls operation.gated_attention."""
    try:
        from .operation import gated_attention as compute
    except ModuleNotFoundError:
        _require_triton()
        raise
    return compute(*arguments)


def linear_attention(*arguments: Any) -> Any:
    """Calls linear_operation.linear_attention."""
    try:
        from .linear_operation import linear_attention as compute
    except ModuleNotFoundError:
        _require_triton()
        raise
    return compute(*arguments)


def short_convolution(*arguments: Any) -> Any:
    """Calls convolution_operation.short_convolution."""
    try:
        from .convolution_operation import short_convolution as compute
    except ModuleNotFoundError:
        _require_triton()
        raise
    return compute(*arguments)


def gated_norm(*arguments: Any) -> Any:
    """Calls norm_operation.gated_norm."""
    try:
        from .norm_operation import gated_norm as compute
    except ModuleNotFoundError:
        _require_triton()
        raise
    return compute(*arguments)


def _require_triton() -> None:
    from ...extras import require

    require("triton", "headgate.torch on GPUs")
