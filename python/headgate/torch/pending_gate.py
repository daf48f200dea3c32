# SPDX-License-Identifier: Apache-2.0
"""Passes a gate from an attention module of transformers, which computes the gate's logits, to the module's kernel."""

import threading
from typing import Any

from torch import nn

# Attribute names of the gate's matrix, and of a gate that does not depend on the input.
# LoRA selects matrices by name. No other matrix of a model has the name attention_gate.
MATRIX, PARAMETER = "attention_gate", "gate"
# Name of the gate's matrix in files of older releases. MLPs also have a matrix of this name.
OLD_MATRIX = "gate_proj"
# Holds the values that hooks of an attention module pass to each other within one call of the module:
#
# - `gate_logits` holds the logits of the module's gate.
# - `pending_gate` is the pair (module, gate arguments for the kernel).
# - `gated_module` is the running module, if its kernel applies the gate.
#
# Each thread has separate values, since several threads may call one model at once.
current_call = threading.local()


def pending_gate_of(module: nn.Module) -> dict[str, Any] | None:
    """Returns the gate arguments stored for this thread's call of an attention module. Returns None if none are stored."""
    owner, arguments = getattr(current_call, "pending_gate", (None, None))
    return arguments if owner is module else None


def store_pending_gate(module: nn.Module, arguments: dict[str, Any]) -> None:
    """Stores the gate arguments of this thread's call of an attention module. The module's kernel reads them."""
    current_call.pending_gate = (module, arguments)


def take_pending_gate(module: nn.Module) -> dict[str, Any]:
    """Returns the gate arguments stored for this thread's call of an attention module, and clears them.

    Returns {} if nothing is stored. Raises ValueError if a retrofitted module requests the arguments a second time.
    """
    found = pending_gate_of(module)
    if found is None:
        if getattr(current_call, "gated_module", None) is module:
            raise ValueError(
                f"retrofit: {type(module).__name__} computes attention more than once in a call, but its gate is "
                "for one"
            )
        return {}
    current_call.pending_gate = (None, None)
    return found


def require_gate(attention: nn.Module) -> None:
    """Raises ValueError if the config names a gate but the attention module has none.

    This happens when from_pretrained loads a retrofitted model, since from_pretrained drops the gates.
    """
    site = getattr(getattr(attention, "config", None), "gate_site", "none")
    if site != "none" and not any(hasattr(attention, name) for name in (MATRIX, PARAMETER)):
        raise ValueError(
            f"headgate: {type(attention).__name__}: the config has a gate at {site} but the model has none: load it "
            "with headgate.torch.load_retrofit, or set the config's gate_site to 'none'"
        )
