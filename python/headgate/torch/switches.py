# SPDX-License-Identifier: Apache-2.0
"""Defines Switch and Handle. A Switch makes Headgate compute functions of another library. A Handle counts the calls."""

import threading
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.autograd import forward_ad

from .eager import are_plain
from .errors import is_of_caller
from .precision import Precision

# After one of these errors, the original function computes the call.
# Headgate raises these errors for unsupported calls, and Python raises them for unexpected arguments.
_REFUSALS = (ValueError, TypeError, RuntimeError, OverflowError, AttributeError)
MOST_REASONS = 100
"""Number of reasons that a handle counts separately. Reasons may contain shapes, which can differ in every call."""
OTHER_REASONS = "other reasons"


class Handle:
    """Keeps a switch on, and counts calls. Ends at the end of `with`, or when off() is called."""

    def __init__(self, switch: "Switch", precision: Precision) -> None:
        self._switch = switch
        self.precision = precision
        """Precision of the calls while this is the newest handle: "exact" or "native16"."""
        self.calls = 0
        """Number of calls that Headgate has computed. Calls in compiled programs are not counted."""
        self.declined: Counter[str] = Counter()
        """Number of calls that the library's own function computed, by reason. After the first MOST_REASONS reasons,
        new ones are counted as OTHER_REASONS."""

    def __enter__(self) -> "Handle":
        return self

    def __exit__(self, *_: object) -> None:
        self.off()

    def off(self) -> None:
        """Ends this handle. Restores the other library's functions if no handle of the switch is on any more."""
        self._switch.end(self)

    def __repr__(self) -> str:
        name, owner = self._switch.name, self._switch.owner
        return f"<{name}: {self.calls} calls computed, {self.declined.total()} left to {owner}>"


class Switch:
    """Keeps functions of a library replaced while at least one handle is on. Handles may nest and end in any order, in
    any thread."""

    def __init__(self, name: str, owner: str, install: Callable[[], None], restore: Callable[[], None]) -> None:
        self.name, self.owner = name, owner
        self.active: list[Handle] = []
        self._install, self._restore = install, restore
        self._lock = threading.RLock()

    @property
    def precision(self) -> Precision:
        """The precision of the newest handle. It is "exact" if there is no handle."""
        newest = self.active[-1:]
        return newest[0].precision if newest else "exact"

    def begin(self, precision: Precision = "exact") -> Handle:
        """Returns a new handle that is on. Installs the replacements if no other handle is on."""
        with self._lock:
            if not self.active:
                try:
                    self._install()
                except BaseException:
                    self._restore()
                    raise
            handle = Handle(self, precision)
            self.active.append(handle)
            return handle

    def end(self, handle: Handle) -> None:
        """Ends a handle. Restores the functions if no other handle is on. Does nothing if the handle has already
        ended."""
        with self._lock:
            if handle in self.active:
                self.active.remove(handle)
                if not self.active:
                    self._restore()

    def end_all(self) -> None:
        """Ends all handles."""
        with self._lock:
            for handle in tuple(self.active):
                self.end(handle)

    def call_or_fall_back(
        self, compute: Callable[..., Any], original: Callable[..., Any], given: Any, named: dict[str, Any]
    ) -> Any:
        """Calls `compute`, which returns (result, None) or (None, reason). Returns the result.

        Calls `original` instead in three cases: `compute` returns a reason, it raises an error, or the switch is off.
        Errors of the caller's code, such as a signal handler, are not caught.
        """
        y, reason = None, "off"
        if self.active:
            try:
                y, reason = compute(*given, **named)
            except _REFUSALS as error:
                if is_of_caller(error):
                    raise
                reason = str(error)
        self._count(reason)
        return original(*given, **named) if y is None else y

    def _count(self, reason: str | None) -> None:
        if torch.compiler.is_compiling():
            return
        with self._lock:  # makes += atomic: other threads also count
            for handle in self.active:
                if reason is None:
                    handle.calls += 1
                elif reason in handle.declined or len(handle.declined) < MOST_REASONS:
                    handle.declined[reason] += 1
                else:
                    handle.declined[OTHER_REASONS] += 1


def unsupported(tensors: Iterable[Any]) -> str | None:
    """Returns the reason why Headgate does not support these tensors. Returns None if it does. Does not check sizes."""
    tensors = tuple(tensors)
    if not are_plain(tensors):
        return "a subclass of Tensor, or no tensor"
    for x in tensors:
        if x.device.type != "cpu":
            return f"a tensor on {x.device.type}"
        if x.is_nested or x.layout != torch.strided:
            return "a nested or sparse tensor"
    return "forward-mode derivatives" if forward_ad._current_level >= 0 else None
