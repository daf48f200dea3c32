# SPDX-License-Identifier: Apache-2.0
"""Attention as models that fold proteins call it: any leading dimensions, a list of biases, the signatures of the fused
kernels that these models call on GPUs, and a switch for packages that fold."""

from .functions import attention, evoformer_attention, triangle_attention
from .use_in import use_in

__all__ = ["attention", "evoformer_attention", "triangle_attention", "use_in"]
