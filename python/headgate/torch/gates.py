# SPDX-License-Identifier: Apache-2.0
"""The gate's functions by their words, as PyTorch computes them."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch.nn import functional as F


class GateFunction(NamedTuple):
    compute: Callable[[torch.Tensor], torch.Tensor]
    has_zero: bool  # g(z) = 0 for some finite z: the ungated output cannot be found from the gated one


GATE_FUNCTIONS = {
    "sigmoid": GateFunction(torch.sigmoid, False),
    "sigmoid2": GateFunction(lambda z: 2 * torch.sigmoid(z), False),
    "ns_sigmoid": GateFunction(lambda z: 0.5 + 0.5 * torch.sigmoid(z), False),
    "silu": GateFunction(F.silu, True),
    "softplus": GateFunction(lambda z: torch.logaddexp(z, torch.zeros_like(z)), False),
    "identity": GateFunction(lambda z: z, True),
}


def keeps_output(gate_fn: str, gate_op: str) -> bool:
    """Whether the backward pass of a gate needs the output before the gate, or loses digits without it."""
    return gate_fn in GATE_FUNCTIONS and (gate_op == "add" or GATE_FUNCTIONS[gate_fn].has_zero)
