# SPDX-License-Identifier: Apache-2.0
"""gated_attention and linear_attention on GPUs, in Triton: experimental, see docs/reference/pytorch.md, "On GPUs".

kernels.py has attention's kernels, tiles.py the sizes of their tiles, launch.py what the host does for them;
linear_kernels.py and linear_launch.py are the same of linear attention. These five import nothing but PyTorch and Triton.
operation.py and linear_operation.py have the operations of PyTorch, checks.py the checks that they share, and support.py
what GPUs compute of the library's arguments.
"""

from typing import Any


def gated_attention(*arguments: Any) -> Any:
    """operation.gated_attention. Triton is imported here, at the first call: CPUs do without it."""
    try:
        from .operation import gated_attention as compute
    except ModuleNotFoundError:
        _require_triton()
        raise
    return compute(*arguments)


def linear_attention(*arguments: Any) -> Any:
    """linear_operation.linear_attention, likewise."""
    try:
        from .linear_operation import linear_attention as compute
    except ModuleNotFoundError:
        _require_triton()
        raise
    return compute(*arguments)


def _require_triton() -> None:
    from ...extras import require

    require("triton", "headgate.torch on GPUs")
