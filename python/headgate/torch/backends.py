# SPDX-License-Identifier: Apache-2.0
"""Holds a table of backends, which compute operations on devices other than the CPU.

A backend has a function for each operation, with the operation's name. Operators look up a backend in the table and
import none. A backend adds itself with register().
"""

from typing import Any

from torch import Tensor

_BACKENDS: dict[str, Any] = {}  # by device type


def register(device_type: str, backend: Any) -> None:
    """Lets `backend` compute all operations on tensors of a device type."""
    _BACKENDS[device_type] = backend


def backend_of(x: Any) -> Any:
    """Returns the backend for the device of x. Returns None if the device has no backend, like the CPU, or if x is not
    a tensor."""
    return _BACKENDS.get(x.device.type) if isinstance(x, Tensor) else None
