# SPDX-License-Identifier: Apache-2.0
"""Holds a table of backends, which compute operations on devices other than the CPU.

A backend has one function per operation, with the operation's name. Operators look up backends in the table and never
import them. A backend adds itself with register().
"""

from typing import Any

from torch import Tensor

_BACKENDS: dict[str, Any] = {}  # maps a device type, such as "cuda", to its backend


def register(device_type: str, backend: Any) -> None:
    """Makes `backend` compute all operations on tensors of a device type."""
    _BACKENDS[device_type] = backend


def backend_of(x: Any) -> Any:
    """Returns the backend for the device of x.

    Returns None if x is not a tensor, or if its device, such as the CPU, has no backend.
    """
    return _BACKENDS.get(x.device.type) if isinstance(x, Tensor) else None
