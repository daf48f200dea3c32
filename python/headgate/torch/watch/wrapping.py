# SPDX-License-Identifier: Apache-2.0
"""Temporarily replaces functions of classes and forward methods of single modules. Unlike hooks, this keeps PyTorch's
fast path of encoders.
"""

import copy
from collections.abc import Callable
from typing import Any

from torch import nn

Around = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]


class _Function:
    """A function that replaces `original`, and passes each call of it to `around`.

    `below` is the attribute of the owner that this function replaces. None means that the owner itself had none.
    """

    def __init__(self, around: Around, original: Callable[..., Any], below: Any) -> None:
        self.around, self.below, self.done = around, below, False
        self.__wrapped__ = original  # read by inspect.signature()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.done:
            return self.__wrapped__(*args, **kwargs)
        return self.around(self.__wrapped__, args, kwargs)

    def __get__(self, instance: Any, owner: Any = None) -> Callable[..., Any]:
        return self if instance is None else lambda *args, **kwargs: self(instance, *args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return copy.deepcopy(self.__wrapped__, memo)  # a copied module runs the original method, unobserved


def _refuse_replicas() -> Any:
    raise RuntimeError(
        "watch: nn.DataParallel copies a watched model to other threads, where it is not seen: use "
        "DistributedDataParallel, or stop() the watch"
    )


def _put(owner: Any, name: str, value: Any) -> None:
    if isinstance(owner, type):
        setattr(owner, name, value)
    elif value is None:
        del vars(owner)[name]
    else:
        vars(owner)[name] = value


class Wrapped:
    """Holds replaced functions. undo() restores the originals, except those that other code has replaced since.

    Several objects may replace the same function. Their undo() may be called in any order.
    """

    def __init__(self) -> None:
        self._undo: list[tuple[Any, str, _Function]] = []

    def __bool__(self) -> bool:
        return bool(self._undo)

    def replace(self, owner: Any, name: str, around: Around) -> None:
        """Makes owner.name call around(original, args, kwargs). The owner is a class, a Python module or an object."""
        below = vars(owner).get(name)
        function = _Function(around, below if isinstance(owner, type) else getattr(owner, name), below)
        _put(owner, name, function)
        self._undo.append((owner, name, function))

    def wrap(self, module: nn.Module, around: Around) -> None:
        """Makes module.forward call around(forward, args, kwargs)."""
        self.replace(module, "forward", around)
        self.replace(module, "_replicate_for_data_parallel", lambda *_: _refuse_replicas())

    def undo(self) -> None:
        while self._undo:
            owner, name, function = self._undo.pop()
            function.done = True
            while isinstance(top := vars(owner).get(name), _Function) and top.done:
                _put(owner, name, top.below)
