# SPDX-License-Identifier: Apache-2.0
"""Gate functions by name: their PyTorch code, and properties that libheadgate's tables define."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from headgate import _headgate

from . import layer


class GateFunction(NamedTuple):
    compute: Callable[[torch.Tensor], torch.Tensor]
    has_zero: bool  # whether g(z) = 0 for some finite z, where y does not determine the ungated output


GATE_FUNCTIONS = {
    word: GateFunction(layer.GATE_FUNCTIONS[word], has_zero) for word, has_zero in _headgate._rows["gate_functions"]
}


def detach_unused(gate: Any, options: Mapping[str, Any]) -> Any:
    """Returns the gate, detached if gate_fn is "none". The operation then checks the gate but does not use it, and
    refuses to compute its gradient."""
    gate_fn = options.get("gate_fn")
    is_unused = isinstance(gate_fn, str) and gate_fn == "none"
    return gate.detach() if is_unused and isinstance(gate, torch.Tensor) else gate
