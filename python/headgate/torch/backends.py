# SPDX-License-Identifier: Apache-2.0
"""The table of backends that compute operations on other devices than the CPU.

A backend has a function for each operation, with the operation's name. Operators know the table alone, and a backend
registers itself by register().
"""

from typing import Any

from torch import Tensor

_BACKENDS: dict[str, Any] = {}  # by device type


def register(device_type: str, backend: Any) -> None:
    """Lets `backend` compute all operations on tensors of a device type."""
    _BACKENDS[device_type] = backend


def backend_of(x: Any) -> Any:
    """Returns the backend of the tensor's device. None if the device has none, as the CPU, or if x is no tensor."""
    return _BACKENDS.get(x.device.type) if isinstance(x, Tensor) else None
