# SPDX-License-Identifier: Apache-2.0
"""Defines Array, the type of arrays in signatures."""

from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class Array(Protocol):
    """An array in CPU memory: a NumPy array, a PyTorch tensor or another DLPack array. Functions return NumPy arrays or
    PyTorch tensors.
    """

    @property
    def shape(self) -> Any: ...
    @property
    def dtype(self) -> Any: ...
    def __getitem__(self, index: Any, /) -> Any: ...
    def __dlpack__(self, *arguments: Any, **keywords: Any) -> Any: ...
    def __dlpack_device__(self) -> tuple[Any, Any]: ...
