# SPDX-License-Identifier: Apache-2.0
"""Headgate for JAX: attention, linear attention, the short convolution and the gated norm as functions of JAX arrays,
with gradients, under jit, vmap, scan, remat and shard_map.

docs/reference/jax.md describes all of them.
"""

from ..extras import require

require("jax", "headgate.jax")  # must precede imports of modules that need jax

from .attention import gated_attention
from .dot_product import dot_product_attention
from .gated_norm import gated_norm
from .linear_attention import linear_attention
from .short_convolution import short_convolution

__all__ = ["dot_product_attention", "gated_attention", "gated_norm", "linear_attention", "short_convolution"]
