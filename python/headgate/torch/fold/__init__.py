# SPDX-License-Identifier: Apache-2.0
"""Computes attention for models that fold proteins.

The functions accept any leading dimensions and a list of biases. Their signatures are those of the fused GPU kernels
that these models call. use_in() switches a protein-folding package to Headgate.
"""

from .functions import attention, evoformer_attention, triangle_attention
from .use_in import use_in

__all__ = ["attention", "evoformer_attention", "triangle_attention", "use_in"]
