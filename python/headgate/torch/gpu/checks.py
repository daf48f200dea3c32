# SPDX-License-Identifier: Apache-2.0
"""Checks the arguments of GPU operations. Errors have one line and begin with the function's name."""

import math
from typing import Any

import torch
from torch import Tensor

from ...operations import Operation

INDICES = (torch.int32, torch.int64)


def refuse_unsupported(
    what: str, unsupported: tuple[str, ...], tensors: dict[str, Any], options: dict[str, Any], operation: Operation
) -> None:
    """Raises ValueError if an argument in `unsupported` differs from its default.

    support.py lists the unsupported arguments of each operation.
    """
    for name in unsupported:
        value = tensors.get(name) if name in operation.tensors else options.get(name)
        if value is not None and not (name in options and value == operation.options[name].default):
            raise ValueError(f"{what}: {name} is not supported on GPUs: leave it out, or move the tensors to the CPU")


def check_tensors(
    what: str, tensors: dict[str, Any], first: Tensor, differentiable: tuple[str, ...], recorded: bool
) -> None:
    """Raises ValueError unless all tensors are on the device of `first`, the first tensor.

    Also rejects a tensor that requires a gradient if the operation computes no gradient for it.
    """
    leading = next(iter(tensors))
    for name, tensor in tensors.items():
        if tensor is None:
            continue
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{what}: {name} is a {type(tensor).__name__} but must be a tensor")
        if tensor.device != first.device:
            raise ValueError(
                f"{what}: {name} lies on {tensor.device} but must lie on {first.device}, as {leading} does"
            )
        if recorded and tensor.requires_grad and name not in differentiable:
            raise ValueError(f"{what}: {name} requires a gradient but has none: detach it")


def word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def check_types(what: str, tensors: dict[str, Tensor | None], allowed: dict[str, tuple[torch.dtype, ...]]) -> None:
    for name, dtypes in allowed.items():
        tensor = tensors[name]
        if tensor is not None and tensor.dtype not in dtypes:
            words = " or ".join(dict.fromkeys(map(word, dtypes)))
            raise ValueError(f"{what}: {name} is {word(tensor.dtype)} but must be {words} on GPUs")


def check_precision(what: str, options: dict[str, Any], dtype: torch.dtype) -> None:
    """Raises ValueError if options["precision"] is native16 and `dtype`, the dtype of q, is not bfloat16."""
    if options["precision"] == "native16" and dtype != torch.bfloat16:
        raise ValueError(f"{what}: precision native16 is for bfloat16, and q is {word(dtype)}")


def require_shape(what: str, name: str, tensor: Tensor | None, *shapes: tuple[Any, ...]) -> None:
    if tensor is None or any(tuple(tensor.shape) == shape for shape in shapes):
        return
    wanted = " or ".join(f"({','.join(map(str, shape))})" for shape in dict.fromkeys(shapes))
    raise ValueError(f"{what}: {name} has shape ({','.join(map(str, tensor.shape))}) but must have {wanted}")


def check_features(what: str, tensors: dict[str, Tensor], most: int) -> None:
    """Raises ValueError unless all tensors have the same number of dimensions, 3 or 4, and each has 1 to `most`
    features.
    """
    first = next(iter(tensors.values()))
    for name, tensor in tensors.items():
        if tensor.dim() != first.dim() or first.dim() not in (3, 4):
            raise ValueError(
                f"{what}: {name} has {tensor.dim()} dimensions but must have 4, or 3 like {', '.join(tensors)}"
            )
        if not 1 <= tensor.shape[-1] <= most:
            raise ValueError(f"{what}: {name} has {tensor.shape[-1]} features but must have 1 to {most} on GPUs")


def count_sequences(what: str, name: str, starts: Tensor | None, batch: int, leading: str) -> int:
    """Returns the number of sequences of a call. `starts` holds the bounds of a packed batch.

    Returns `batch` if `starts` is None. Errors refer to `starts` as `name`.
    """
    if starts is None:
        return batch
    if batch != 1 or starts.dim() != 1 or starts.shape[0] < 2:
        raise ValueError(f"{what}: {name} must be (N+1), N >= 1, and {leading} have a batch of 1")
    return starts.shape[0] - 1


def shape_like(x: Tensor, layout: str, batch: int, heads: int, rows: int, features: int) -> tuple[int, ...]:
    """Returns the shape of a tensor with these sizes in `layout`. Omits the batch dimension if x lacks it."""
    whole = (batch, heads, rows, features) if layout == "bhtd" else (batch, rows, heads, features)
    return whole if x.dim() == 4 else whole[1:]


def check_choices(what: str, options: dict[str, Any], choices: dict[str, tuple[str, ...]]) -> None:
    for name, words in choices.items():
        if options[name] not in words:
            raise ValueError(f"{what}: {name}: '{options[name]}' is none of {', '.join(words)}")


def require_finite(what: str, options: dict[str, Any], name: str, least: float = -math.inf) -> None:
    value = options[name]
    if value is not None and not (math.isfinite(value) and value >= least):
        at_least = "" if least == -math.inf else f" and at least {least:g}"
        raise ValueError(f"{what}: {name} is {value} but must be finite{at_least}")
