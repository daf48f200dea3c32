# SPDX-License-Identifier: Apache-2.0
"""Gate functions by name: PyTorch implementations, and properties from libheadgate's tables."""

from collections.abc import Callable
from typing import NamedTuple

import torch

from headgate import _headgate

from . import layer


class GateFunction(NamedTuple):
    compute: Callable[[torch.Tensor], torch.Tensor]
    has_zero: bool  # g(z) = 0 for some finite z, where the gated output does not determine the ungated one


GATE_FUNCTIONS = {
    word: GateFunction(layer.GATE_FUNCTIONS[word], has_zero) for word, has_zero in _headgate._rows["gate_functions"]
}


def keeps_output(gate_fn: str, gate_op: str) -> bool:
    """Returns whether to save the output before the gate for the backward pass. Without it, gradients of these gates
    cannot be computed, or are inaccurate."""
    return gate_fn in GATE_FUNCTIONS and (gate_op == "add" or GATE_FUNCTIONS[gate_fn].has_zero)
