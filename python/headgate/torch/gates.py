# SPDX-License-Identifier: Apache-2.0
"""The gate's functions by their words: as PyTorch computes them, and what libheadgate's rows say of them."""

from collections.abc import Callable
from typing import NamedTuple

import torch

from headgate import _headgate

from . import layer


class GateFunction(NamedTuple):
    compute: Callable[[torch.Tensor], torch.Tensor]
    has_zero: bool  # g(z) = 0 for some finite z: the ungated output cannot be found from the gated one


GATE_FUNCTIONS = {
    word: GateFunction(layer.GATE_FUNCTIONS[word], has_zero) for word, has_zero in _headgate._rows["gate_functions"]
}


def keeps_output(gate_fn: str, gate_op: str) -> bool:
    """Whether the backward pass of a gate needs the output before the gate, or loses digits without it."""
    return gate_fn in GATE_FUNCTIONS and (gate_op == "add" or GATE_FUNCTIONS[gate_fn].has_zero)
