# SPDX-License-Identifier: Apache-2.0
"""Lists of functions to call with the arguments of Headgate's operations before each call. watch() adds a function
while it is on. The operations therefore need not import watch."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

ATTENTION: list[Callable[[dict[str, Any], dict[str, Any]], None]] = []
"""Functions to call with two dicts: the tensors q, k, v and gate, and the other arguments of gated_attention."""
LINEAR_ATTENTION: list[Callable[[dict[str, Any], dict[str, Any]], None]] = []
"""Functions to call with two dicts: the tensors q, k, v, decay and beta, and linear_attention's other arguments."""

# Holds the lists of the running kept_lse() contexts in `lists`. Other threads may compute attention at the same time,
# so each thread has its own lists.
_kept = threading.local()


@contextlib.contextmanager
def kept_lse() -> Iterator[list[Tensor]]:
    """Yields a list. Each attention call of this thread within the context that computes a log-sum-exp, (B,H,T) in f64,
    adds it."""
    found: list[Tensor] = []
    lists = vars(_kept).setdefault("lists", [])
    lists.append(found)
    try:
        yield found
    finally:
        lists.pop()


def report_lse(lse: Tensor) -> None:
    """Appends the log-sum-exp of a call to the list of this thread's innermost kept_lse(), if any."""
    lists = getattr(_kept, "lists", None)
    if lists:
        lists[-1].append(lse)
