# SPDX-License-Identifier: Apache-2.0
"""Lists of functions to call with the arguments of Headgate's operations before each call. watch() adds a function
while it is on. The operations therefore need not import watch."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

ATTENTION: list[Callable[[dict[str, Any], dict[str, Any]], None]] = []
"""Functions to call with two dicts: the tensors q, k, v and gate, and the other arguments of gated_attention."""
LINEAR_ATTENTION: list[Callable[[dict[str, Any], dict[str, Any]], None]] = []
"""Functions to call with two dicts: the tensors q, k, v, decay and beta, and linear_attention's other arguments."""

_kept: list[list[Tensor]] = []


@contextlib.contextmanager
def kept_lse() -> Iterator[list[Tensor]]:
    """Yields a list. Each attention call within the context that computes a log-sum-exp, (B,H,T) in f64, adds it."""
    found: list[Tensor] = []
    _kept.append(found)
    try:
        yield found
    finally:
        _kept.pop()


def report_lse(lse: Tensor) -> None:
    """Appends the log-sum-exp of a call to the list of the innermost kept_lse(), if any."""
    if _kept:
        _kept[-1].append(lse)
