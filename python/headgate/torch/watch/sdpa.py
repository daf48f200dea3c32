# SPDX-License-Identifier: Apache-2.0
"""Observes torch.nn.functional.scaled_dot_product_attention. Code that has imported the function by name is also
observed.
"""

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import (
    TorchFunctionMode,
    _get_current_function_mode,
    _get_current_function_mode_stack,
    _pop_mode,
    _pop_mode_temporarily,
    _push_mode,
)

from ..checks import causal_bias_of
from .call import AttentionCall
from .masks import find_rules, split_bias

if TYPE_CHECKING:
    from .handle import Watch

_FUNCTION = torch._C._nn.scaled_dot_product_attention


def install(watch: "Watch") -> Callable[[], None]:
    """Enters a TorchFunctionMode that reports calls. Returns a function that leaves the mode."""
    mode = _Mode(watch)
    mode.__enter__()
    return lambda: _leave(mode)


def _leave(mode: TorchFunctionMode) -> None:
    """Removes a mode, which may not be the innermost one, for example if two watches overlap."""
    above = []
    while mode in _get_current_function_mode_stack():
        above.append(_pop_mode())
    for other in reversed(above[:-1]):
        _push_mode(other)


class _Mode(TorchFunctionMode):
    def __init__(self, watch: "Watch") -> None:
        super().__init__()
        self.watch = watch

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is not _FUNCTION:
            return function(*args, **(kwargs or {}))
        bias = causal_bias_of(args, kwargs or {})
        if bias is not None:
            with self:  # PyTorch converts the CausalBias, then calls this function again
                return bias.__torch_function__(functional.scaled_dot_product_attention, (type(bias),), args, kwargs)
        with self.watch.observed() as layer:
            if layer is not None:
                cross = self.watch.is_cross(layer.module)
                self.watch.observe_attention(layer, lambda: (call_of(cross, *args, **(kwargs or {})), None))
            return function(*args, **(kwargs or {}))


def paused(watch: "Watch") -> contextlib.AbstractContextManager[Any]:
    """Returns a context in which this watch does not see calls of scaled_dot_product_attention.

    Headgate's operations are faster in this context. It has no effect unless the watch's mode is the innermost of
    PyTorch's function modes.
    """
    mode = _get_current_function_mode()
    innermost = isinstance(mode, _Mode) and mode.watch is watch
    return _pop_mode_temporarily() if innermost else contextlib.nullcontext()


def call_of(
    cross: bool,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> AttentionCall:
    """Converts a call of scaled_dot_product_attention to an AttentionCall. Causality has top-left alignment."""
    q, k, v = (_of_4_dimensions(x.detach()) for x in (query, key, value))
    T, S = q.shape[2], k.shape[2]
    rules: dict[str, Any] = {"cross": cross or (T != S and not is_causal and T != 1)}
    if attn_mask is not None:
        mask = attn_mask.detach()
        mask = mask.reshape((1,) * (query.dim() - mask.dim()) + mask.shape)  # masks broadcast to query's dimensions
        if query.dim() > 4:
            mask = mask.expand(*query.shape[:-3], *mask.shape[-3:])
        mask = _of_4_dimensions(mask)
        if mask.shape[0] not in (1, q.shape[0]):
            raise ValueError(f"attn_mask has {mask.shape[0]} sequences beside {q.shape[0]}")
        visible, bias = (mask, None) if mask.dtype == torch.bool else split_bias(mask)
        found = find_rules(visible, bias, T, S, None)
        rules |= {**found._asdict(), "cross": cross or (rules["cross"] and not found.causal)}
    elif is_causal and S >= T:
        k, v = k[:, :, :T], v[:, :, :T]
        rules["causal"] = True
    elif is_causal:
        rules["mask"] = torch.ones(1, 1, T, S, dtype=torch.bool, device=q.device).tril()
    kind = "causal" if rules.get("causal") or is_causal or T == 1 else "bidirectional"
    return AttentionCall(q, k, v, scale=scale, kind=kind, **rules)


def _of_4_dimensions(x: Tensor) -> Tensor:
    """Reshapes x (…,T,D) to (B,H,T,D). A tensor with 3 dimensions is (B,T,D) with one head."""
    if x.dim() < 3:
        return x.reshape((1,) * (4 - x.dim()) + x.shape)
    return x.unsqueeze(1) if x.dim() == 3 else x.flatten(0, -4)
