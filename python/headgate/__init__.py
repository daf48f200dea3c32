# SPDX-License-Identifier: Apache-2.0
"""Exact fused gated attention for CPUs: y = gate(z) * softmax(scale q k^T + bias, mask) v, forward and backward."""

from . import _headgate
from ._headgate import *
from ._headgate import __version__

__all__ = [name for name in dir(_headgate) if not name.startswith("_")]
