# SPDX-License-Identifier: Apache-2.0
"""Checks and converts the arguments of calls, for all operators of headgate.torch."""

import operator
from collections.abc import Container, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._functorch import eager_transforms
from torch.autograd import forward_ad

import headgate

from ..operations import ATTENTION, OPTION_WORDS, Operation
from .arguments import OPTIONAL, require_known
from .checks import require_one_device, require_tensor, shown
from .transforms import FORWARD_MODE

KEYWORDS = tuple(name for name in OPTIONAL if name != "gate")
"""Optional inputs that gated_attention accepts only as keywords."""


def _has_tangent(tensor: Tensor) -> bool:
    try:
        return forward_ad.unpack_dual(tensor).tangent is not None
    except RuntimeError:  # raised for tensors that vmap has batched within forward mode
        return True


def _is_differentiated(tensor: Tensor) -> bool:
    """Returns whether torch.func differentiates with respect to this tensor in any of its nested transforms."""
    inner = torch.func.debug_unwrap(tensor, recurse=False)
    while inner is not tensor:
        if tensor.requires_grad:
            return True
        tensor, inner = inner, torch.func.debug_unwrap(inner, recurse=False)
    return False


def refuse_transforms(what: str, arguments: dict[str, Any], differentiable: Container[str] = ()) -> None:
    """Raises RuntimeError if an argument has a forward-mode derivative, which PyTorch would silently lose. Also raises
    RuntimeError if torch.func differentiates an argument that is not in `differentiable`. The message names the
    argument, unlike PyTorch's own error. In a compiled program, only tangents of torch.func.jvp are found. The error
    then causes a graph break."""
    compiles = torch.compiler.is_compiling()
    if compiles and eager_transforms.JVP_NESTING == 0:
        return
    for name, tensor in arguments.items():
        if not isinstance(tensor, Tensor):
            continue
        if _has_tangent(tensor):
            raise RuntimeError(f"{what}: {name} {FORWARD_MODE}")
        if not compiles and name not in differentiable and _is_differentiated(tensor):
            raise RuntimeError(f"{what}: {name} is differentiated by torch.func, which is not supported: use autograd")


def empty_output(first: Tensor, shape: Sequence[int]) -> Tensor:
    """Returns an uninitialized result for a fake kernel, with the dtype of the first input.

    If the result has the shape of the first input, it also has its order of dimensions in memory. Otherwise it is
    contiguous. Real kernels return the same.
    """
    return torch.empty_like(first) if list(first.shape) == list(shape) else first.new_empty(shape)


def check_tensors(
    what: str, tensors: dict[str, Tensor | None], recorded: bool, operation: Operation = ATTENTION, nested: bool = False
) -> None:
    """Checks that all arguments are tensors on the same device, which is "cpu" or "meta".

    The kernels cannot check this. If autograd records the call, rejects tensors whose gradient the operation does not
    compute. Rejects nested tensors unless `nested` is true. Errors name the function `what`.
    """
    for name, tensor in tensors.items():
        if tensor is None and name not in operation.required:
            continue
        require_tensor(what, name, tensor, nested)
        if tensor.device.type not in ("cpu", "meta"):
            raise ValueError(f"{what}: {name} lies on {tensor.device} but must be in the CPU's memory")
        if recorded and tensor.requires_grad and name not in operation.differentiable:
            raise ValueError(f"{what}: {name} requires a gradient but has none: detach it")
        if recorded and name in operation.forward_only:
            raise ValueError(f"{what}: with {name} there are no gradients: call it under torch.no_grad()")
    require_one_device(what, tensors)


def _number(kind: str, value: Any) -> int | float:
    """Converts `value` to an int or float for the schema type `kind`. Raises TypeError, ValueError or OverflowError if
    this is impossible, and for True and False.
    """
    if isinstance(value, (bool, np.bool_, torch.SymBool)) or (isinstance(value, Tensor) and value.dtype == torch.bool):
        raise TypeError
    if kind == "int":
        number = value if isinstance(value, (int, torch.SymInt)) else operator.index(value)
        if not torch.compiler.is_compiling() and not -(2**63) <= number < 2**63:
            raise OverflowError
        return number
    if isinstance(value, (str, bytes)):
        raise TypeError
    if isinstance(value, int) and not torch.compiler.is_compiling():
        float(value)  # raises OverflowError for an int that no float can hold
    return value if isinstance(value, (int, float, torch.SymInt, torch.SymFloat)) else float(value)


def checked_options(what: str, options: dict[str, Any], operation: Operation = ATTENTION) -> dict[str, Any]:
    """Converts options to the schema's types, and rejects options that require a gradient.

    If an option should be a str but is not, it is replaced by text that shows it. The kernels then raise an error that lists the
    valid words.
    """
    refuse_learned(what, options)
    checked: dict[str, Any] = {}
    for name, value in options.items():
        kind = operation.options[name].type
        if kind == "str":
            checked[name] = value if isinstance(value, str) else shown(value)
        elif value is None and kind == "float?":
            checked[name] = None
        elif value is None and name == "threads":
            checked[name] = 0  # in the operator's schema, 0 means headgate.default_threads()
        elif isinstance(value, Tensor) and torch.compiler.is_compiling():
            # The TypeError causes a graph break, so the call runs eagerly. With fullgraph=True, compilation fails.
            raise TypeError(
                f"{what}: {name} is a tensor but must be a number in a program that is compiled in one graph"
            )
        else:
            try:
                checked[name] = _number(kind, value)
            except (TypeError, ValueError, OverflowError, RuntimeError):
                raise ValueError(f"{what}: {name} is {shown(value)} but must be {OPTION_WORDS[kind]}") from None
            if name == "threads" and isinstance(checked[name], int) and checked[name] == 0:
                raise ValueError(
                    f"{what}: threads is 0 but must be 1 to {headgate.max_threads()}, or None for "
                    "headgate.default_threads()"
                )
    return checked


def refuse_learned(what: str, options: dict[str, Any]) -> None:
    """Raises ValueError if an option requires a gradient. The gradient would be lost silently."""
    for name, value in options.items():
        if isinstance(value, Tensor) and value.requires_grad and torch.is_grad_enabled():
            raise ValueError(f"{what}: {name} requires a gradient but has none: detach it")


def autocast(
    tensors: dict[str, Tensor | None],
    others: tuple[str, ...] = ("gate", "bias"),
    cast: tuple[str, ...] = ("q", "k", "v"),
    device: str = "cpu",
) -> None:
    """Casts tensors to the autocast dtype if autocast is on. Does nothing if the first tensor is f64.

    Casts all tensors in `cast`. Casts those in `others` only if they are not f32.
    """
    if not torch.is_autocast_enabled(device) or tensors[cast[0]].dtype == torch.float64:
        return
    dtype = torch.get_autocast_dtype(device)
    for name in (*cast, *others):
        tensor = tensors.get(name)
        kept = tensor is None or not tensor.is_floating_point() or (name in others and tensor.dtype == torch.float32)
        if not kept:
            tensors[name] = tensor.to(dtype)


def sort_arguments(
    what: str,
    tensors: dict[str, Tensor | None],
    arguments: dict[str, Any],
    keywords: tuple[str, ...] = KEYWORDS,
    operation: Operation = ATTENTION,
) -> dict[str, Any]:
    """Moves the arguments named in `keywords` from `arguments` to `tensors`. Returns the remaining arguments, which are
    options. Raises TypeError for unknown arguments.
    """
    require_known(what, arguments, {*operation.options, *keywords}, operation.tensors)
    options: dict[str, Any] = {}
    for name, value in arguments.items():
        (options if name in operation.options else tensors)[name] = value
    return options
