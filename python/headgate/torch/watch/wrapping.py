# SPDX-License-Identifier: Apache-2.0
"""Replaces the forward methods of single modules for a while. Unlike hooks, this keeps PyTorch's fast path of
encoders."""

from collections.abc import Callable
from typing import Any

from torch import nn

Around = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]


class Wrapped:
    """Replaced forward methods. undo() restores those that nothing else has replaced since."""

    def __init__(self) -> None:
        self._undo: list[tuple[nn.Module, Any, Any]] = []

    def wrap(self, module: nn.Module, around: Around) -> None:
        """Makes module.forward call around(forward, args, kwargs)."""
        own = module.__dict__.get("forward")
        original = module.forward

        def forward(*args: Any, **kwargs: Any) -> Any:
            return around(original, args, kwargs)

        forward.__wrapped__ = original  # type: ignore[attr-defined]  # inspect.signature() reads it
        module.__dict__["forward"] = forward
        self._undo.append((module, forward, own))

    def undo(self) -> None:
        while self._undo:
            module, ours, own = self._undo.pop()
            if module.__dict__.get("forward") is not ours:
                continue
            if own is None:
                del module.__dict__["forward"]
            else:
                module.__dict__["forward"] = own
