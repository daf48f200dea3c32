# SPDX-License-Identifier: Apache-2.0
"""Holds lists of functions. Headgate's operations call these functions with the arguments of a call before they compute
it.

watch() adds its functions while it is on. The operations therefore need not import watch.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

ATTENTION: list[Callable[[dict[str, Any], dict[str, Any]], None]] = []
"""Functions that are called with two dicts: the tensors q, k, v and gate, and gated_attention's other arguments."""
LINEAR_ATTENTION: list[Callable[[dict[str, Any], dict[str, Any]], None]] = []
"""Functions that are called with two dicts: the tensors q, k, v, decay and beta, and linear_attention's other
arguments."""

# `_kept.lists` holds the lists of the running kept_lse() contexts.
# Each thread has separate lists, since other threads may compute attention at the same time.
_kept = threading.local()


@contextlib.contextmanager
def kept_lse() -> Iterator[list[Tensor]]:
    """Yields a list. Attention calls of this thread within the context append their log-sum-exp, (B,H,T) in f64.

    Calls that compute no log-sum-exp append nothing.
    """
    found: list[Tensor] = []
    lists = vars(_kept).setdefault("lists", [])
    lists.append(found)
    try:
        yield found
    finally:
        lists.pop()


def report_lse(lse: Tensor) -> None:
    """Appends the log-sum-exp of a call to the list of this thread's innermost kept_lse() context. Does nothing outside
    of such a context.
    """
    lists = getattr(_kept, "lists", None)
    if lists:
        lists[-1].append(lse)
