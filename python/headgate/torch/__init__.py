# SPDX-License-Identifier: Apache-2.0
"""headgate for PyTorch: the operation with autograd and torch.compile, and layers (docs/PYTORCH.md)."""

from .attention import gated_attention
from .gates import GATE_FUNCTIONS
from .module import AttentionCache, GatedAttention
from .retrofit import gate_parameters, retrofit
from .variant import GateVariant, parse_gate

__all__ = [
    "GATE_FUNCTIONS",
    "AttentionCache",
    "GateVariant",
    "GatedAttention",
    "gate_parameters",
    "gated_attention",
    "parse_gate",
    "retrofit",
]
