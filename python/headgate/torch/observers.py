# SPDX-License-Identifier: Apache-2.0
"""Functions that see the arguments of Headgate's own operations before each call. watch() adds its own while it is on;
the operations do not import it."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

ATTENTION: list[Callable[[dict[str, Any], dict[str, Any]], None]] = []
"""Called with the tensors q, k, v and gate by name, and the other arguments of gated_attention."""
LINEAR_ATTENTION: list[Callable[[dict[str, Any], dict[str, Any]], None]] = []
"""Called with the tensors q, k, v, decay and beta by name, and the other arguments of linear_attention."""

_kept: list[list[Tensor]] = []


@contextlib.contextmanager
def kept_lse() -> Iterator[list[Tensor]]:
    """Yields a list that receives the log-sum-exp (B,H,T) of each attention call that computes one, in f64."""
    found: list[Tensor] = []
    _kept.append(found)
    try:
        yield found
    finally:
        _kept.pop()


def report_lse(lse: Tensor) -> None:
    """Gives the log-sum-exp of a call to the innermost kept_lse()."""
    if _kept:
        _kept[-1].append(lse)
