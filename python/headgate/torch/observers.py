# SPDX-License-Identifier: Apache-2.0
"""Functions that see the arguments of Headgate's own operations before each call. watch() adds its own while it is on;
the operations do not import it."""

from collections.abc import Callable
from typing import Any

ATTENTION: list[Callable[[dict[str, Any], dict[str, Any]], None]] = []
"""Called with the tensors q, k, v and gate by name, and the other arguments of gated_attention."""
LINEAR_ATTENTION: list[Callable[[dict[str, Any], dict[str, Any]], None]] = []
"""Called with the tensors q, k, v, decay and beta by name, and the other arguments of linear_attention."""
