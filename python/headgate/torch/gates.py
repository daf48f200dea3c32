# SPDX-License-Identifier: Apache-2.0
"""Gate functions by name: PyTorch implementations, and properties from libheadgate's tables."""

from collections.abc import Callable
from typing import NamedTuple

import torch

from headgate import _headgate

from . import layer


class GateFunction(NamedTuple):
    compute: Callable[[torch.Tensor], torch.Tensor]
    has_zero: bool  # g(z) = 0 for some finite z; the ungated output cannot be recovered from the gated one


GATE_FUNCTIONS = {
    word: GateFunction(layer.GATE_FUNCTIONS[word], has_zero) for word, has_zero in _headgate._rows["gate_functions"]
}


def keeps_output(gate_fn: str, gate_op: str) -> bool:
    """Returns whether the backward pass should get the output before the gate: it needs that output, or is inaccurate
    without it."""
    return gate_fn in GATE_FUNCTIONS and (gate_op == "add" or GATE_FUNCTIONS[gate_fn].has_zero)
