# SPDX-License-Identifier: Apache-2.0
"""Headgate for PyTorch: attention and linear attention with autograd and torch.compile, and layers.

docs/reference/pytorch.md describes all of them.
"""

from ..extras import require

require("torch", "headgate.torch")  # must precede imports of modules that need torch

from . import backends, gpu
from .attention import gated_attention
from .delta_net import DeltaNetCache, GatedDeltaNet
from .everywhere import use_everywhere
from .gated_norm import gated_norm
from .gates import GATE_FUNCTIONS
from .linear_attention import linear_attention
from .module import AttentionCache, GatedAttention
from .retrofit import gate_parameters, load_retrofit, retrofit
from .ring import ring_attention
from .scaled_dot_product import scaled_dot_product_attention
from .sharding import gather_sequence, shard_sequence
from .short_convolution import short_convolution
from .statistics import attention_statistics, linear_attention_statistics, linear_attention_weights
from .variant import GateVariant, parse_gate
from .varlen import AuxRequest, varlen_attn
from .watch import override, watch
from .xray import xray

backends.register("cuda", gpu)

__all__ = [
    "GATE_FUNCTIONS",
    "AttentionCache",
    "AuxRequest",
    "DeltaNetCache",
    "GateVariant",
    "GatedAttention",
    "GatedDeltaNet",
    "attention_statistics",
    "gate_parameters",
    "gated_attention",
    "gated_norm",
    "gather_sequence",
    "linear_attention",
    "linear_attention_statistics",
    "linear_attention_weights",
    "load_retrofit",
    "override",
    "parse_gate",
    "retrofit",
    "ring_attention",
    "scaled_dot_product_attention",
    "shard_sequence",
    "short_convolution",
    "use_everywhere",
    "varlen_attn",
    "watch",
    "xray",
]
