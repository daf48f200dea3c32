# SPDX-License-Identifier: Apache-2.0
"""Checks arguments of functions and layers: tensor types, devices, shapes and numbers."""

import math
import sys
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor


def is_causal_bias(x: Any) -> bool:
    """Returns whether `x` is PyTorch's CausalBias, a tensor whose memory is never written.

    Does not import the module of CausalBias, since that takes long. No tensor is a CausalBias until a program imports
    it.
    """
    loaded = sys.modules.get("torch.nn.attention.bias")
    return loaded is not None and isinstance(x, loaded.CausalBias)


def causal_bias_of(arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Returns the attn_mask of a call of scaled_dot_product_attention if it is a CausalBias. Otherwise returns None."""
    bias: Any = arguments[3] if len(arguments) > 3 else named.get("attn_mask")
    return bias if is_causal_bias(bias) else None


def require_tensor(what: str, name: str, x: Any, nested: bool = False) -> None:
    """Raises TypeError if `x` is no tensor. Raises ValueError for sparse tensors and CausalBias, and for nested tensors
    unless `nested` is true. Errors name the function `what` and its argument `name`.
    """
    if not isinstance(x, Tensor):
        found = "None" if x is None else f"a {type(x).__name__}"
        raise TypeError(f"{what}: {name} is {found} but must be a tensor")
    if is_causal_bias(x):
        raise ValueError(f"{what}: {name} is a CausalBias of PyTorch, which has no values: use a causal rule or a mask")
    if x.is_nested:
        if not nested:
            raise ValueError(f"{what}: {name} is a nested tensor, which only gated_attention and GatedAttention take")
    elif x.layout != torch.strided:
        layout = str(x.layout).removeprefix("torch.").removeprefix("_")
        raise ValueError(f"{what}: {name} has the layout {layout} but must be a dense tensor, of layout strided")


def require_tensors(what: str, needed: dict[str, Any], others: dict[str, Any]) -> None:
    """Calls require_tensor for all tensors in `needed`, and for those in `others` that are not None. Requires that all
    tensors are on the same device.
    """
    there = needed | {name: x for name, x in others.items() if x is not None}
    for name, x in there.items():
        require_tensor(what, name, x)
    require_one_device(what, there)


def require_one_device(what: str, tensors: dict[str, Tensor | None]) -> None:
    """Raises ValueError if the tensors are on devices of different types.

    If one of them were on "meta", PyTorch would compute nothing and return uninitialized memory.
    """
    there = [(name, x.device) for name, x in tensors.items() if x is not None]
    for name, device in there[1:]:
        if device.type != there[0][1].type:
            raise ValueError(f"{what}: {name} lies on {device} but {there[0][0]} on {there[0][1]}: move one of them")


def require_input(what: str, h: Tensor, features: int) -> None:
    """Raises ValueError unless h, a layer's input, is (B,T,features)."""
    if h.dim() != 3 or h.shape[-1] != features:
        raise ValueError(f"{what}: h is {list(h.shape)} but must be (B,T,{features})")


def require_sequences(what: str, h: Tensor, cu_seqlens: Tensor) -> None:
    """Raises ValueError unless cu_seqlens has shape (N+1) and h, a layer's input, has shape (1,T,C)."""
    if cu_seqlens.dim() != 1 or cu_seqlens.shape[0] == 0:
        raise ValueError(f"{what}: cu_seqlens has shape {shape_of(cu_seqlens)} but must be (N+1)")
    if h.shape[0] != 1:
        raise ValueError(f"{what}: cu_seqlens needs h of shape (1,T,C) but h is {list(h.shape)}")


def require_number(name: str, value: Any, least: float, excluded: bool = False) -> None:
    """Raises ValueError unless `value` is finite and at least `least`. If `excluded` is true, `value` must be greater
    than `least`."""
    try:
        fits = (
            not isinstance(value, bool)
            and math.isfinite(value)
            and (value > least or (value == least and not excluded))
        )
    except (TypeError, ValueError, RuntimeError, OverflowError):
        fits = False
    if not fits:
        limit = "" if math.isinf(least) else f" and {'above' if excluded else 'at least'} {least}"
        raise ValueError(f"{name}: is {shown(value)} but must be finite{limit}")


def require_whole(name: str, value: Any) -> None:
    """Raises ValueError unless `value` is a whole number of 64 bits. Accepts NumPy's numbers."""
    is_array = isinstance(value, Tensor) or hasattr(value, "__len__")
    fits = hasattr(value, "__index__") and not is_array and not isinstance(value, bool)
    if not fits or not -(2**63) <= value < 2**63:
        raise ValueError(f"{name}: is {shown(value)} but must be a whole number of 64 bits")


def require_word(name: str, value: Any, words: Iterable[str]) -> None:
    """Raises ValueError unless `value` is one of `words`."""
    if not isinstance(value, str) or value not in words:
        text = value if isinstance(value, str) else shown(value)
        raise ValueError(f"{name}: '{text}' is none of {', '.join(words)}")


def is_whole(x: Any) -> bool:
    """Returns whether `x` is a whole number: an int, but no bool."""
    return isinstance(x, int) and not isinstance(x, bool)


def require_bool(what: str, name: str, x: Any) -> None:
    """Raises TypeError unless `x` is True or False. The error names the function `what` and its argument `name`."""
    if not isinstance(x, (bool, torch.SymBool)):
        raise TypeError(f"{what}: {name} is {shown(x)} but must be True or False")


def require_real(what: str, name: str, x: Any) -> None:
    """Raises TypeError unless PyTorch's functions accept `x` as a float. The error names the function `what` and its
    argument `name`.

    They accept numbers, NumPy's numbers, and tensors that hold one number and require no gradient.
    """
    if isinstance(x, (int, float, torch.SymInt, torch.SymFloat)):
        return
    if isinstance(x, Tensor):
        fits = x.dim() == 0 and not x.requires_grad and not x.is_complex()
    else:
        fits = hasattr(x, "dtype") and not hasattr(x, "__len__") and x.dtype.kind in "bfiu"
    if not fits:
        raise TypeError(f"{what}: {name} is {shown(x)} but must be a number")


def shown(x: Any) -> str:
    """Formats `x` for errors in one short line. Shows the shape of a tensor, and the repr of other objects."""
    if isinstance(x, Tensor):
        return "a nested tensor" if x.is_nested else f"a tensor of shape {shape_of(x)}"
    text = repr(x)
    if not text.isprintable():
        return f"a {type(x).__name__}"
    return text if len(text) <= 100 else text[:60] + "…"


def shape_of(x: Tensor) -> str:
    """Formats the shape of `x` for errors, for example as "(2,3)"."""
    return "(" + ",".join(map(str, x.shape)) + ")"
