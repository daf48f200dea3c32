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
    """Returns whether the backward pass needs the saved output before the gate. It does if the gate is added, or if
    gate_fn can be 0: that output cannot be computed from y then."""
    return gate_fn in GATE_FUNCTIONS and (gate_op == "add" or GATE_FUNCTIONS[gate_fn].has_zero)
