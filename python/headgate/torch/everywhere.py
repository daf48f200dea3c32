# SPDX-License-Identifier: Apache-2.0
"""Defines use_everywhere(), which makes Headgate compute PyTorch's scaled_dot_product_attention wherever it is
called."""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from .checks import causal_bias_of
from .precision import Precision, precision_of, require_precision
from .scaled_dot_product import Refusal, attend, refusal_of
from .switches import Handle, Switch, unsupported

# State to restore: PyTorch's function, and whether PyTorch's fast path was enabled. None without a replacement.
_replaced: tuple[Callable[..., Tensor], bool] | None = None
# Computes the calls that Headgate does not support.
_original: Callable[..., Tensor] = functional.scaled_dot_product_attention


def _reason_to_decline(
    query: Any, key: Any, value: Any, attn_mask: Any, dropout_p: Any, is_causal: Any, scale: Any, enable_gqa: Any
) -> str | None:
    """Returns the reason why PyTorch must compute a call. Returns None if Headgate can compute it. Does not check
    sizes.
    """
    tensors = (query, key, value) if attn_mask is None else (query, key, value, attn_mask)
    reason = unsupported(tensors)
    if reason is not None:
        return reason
    if attn_mask is not None and attn_mask.dim() < 2:
        return "an attn_mask of less than 2 dimensions"
    if not (isinstance(is_causal, bool) and isinstance(enable_gqa, bool) and isinstance(dropout_p, (int, float))):
        return "an option of another type"
    if scale is not None and not isinstance(scale, (int, float)):
        return "a scale that is no number"
    return None


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> tuple[Tensor | None, str | None]:
    """Computes a call with the arguments of PyTorch's function. Returns (result, None). If Headgate does not support
    the call, returns (None, reason).
    """
    reason = _reason_to_decline(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    if reason is not None:
        return None, reason
    sizes = refusal_of(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    if isinstance(sizes, Refusal):
        return None, sizes.text
    precision = precision_of(query, _switch.precision)
    return attend(query, key, value, attn_mask, dropout_p, is_causal, scale, sizes, options=precision), None


def _replacement(*arguments: Any, **named: Any) -> Tensor:
    """Replaces torch.nn.functional.scaled_dot_product_attention while use_everywhere is on."""
    bias = causal_bias_of(arguments, named)
    if bias is not None:
        # CausalBias converts itself to is_causal or a mask only for torch.nn.functional.scaled_dot_product_attention.
        return bias.__torch_function__(functional.scaled_dot_product_attention, (type(bias),), arguments, named)
    return _switch.call_or_fall_back(scaled_dot_product_attention, _original, arguments, named)


_replacement.__signature__ = inspect.signature(  # type: ignore[attr-defined]
    scaled_dot_product_attention
).replace(return_annotation=Tensor)


def _install() -> None:
    global _replaced, _original
    if functional.scaled_dot_product_attention is not _replacement:
        _original = functional.scaled_dot_product_attention
    _replaced = _original, torch.backends.mha.get_fastpath_enabled()
    functional.scaled_dot_product_attention = _replacement
    torch.backends.mha.set_fastpath_enabled(False)


def _restore() -> None:
    """Restores PyTorch's function and its fast path.

    Leaves torch.nn.functional unchanged if other code has replaced the function after _install(). The other code's
    function may still call _replacement, which then forwards the call to PyTorch.
    """
    global _replaced
    if _replaced is None:
        return
    original, fast_path = _replaced
    _replaced = None
    if functional.scaled_dot_product_attention is _replacement:
        functional.scaled_dot_product_attention = original
    torch.backends.mha.set_fastpath_enabled(fast_path)


_switch = Switch("use_everywhere", "PyTorch", _install, _restore)


def use_everywhere(on: bool = True, *, precision: Precision = "exact") -> Handle | None:
    """Makes Headgate compute torch.nn.functional.scaled_dot_product_attention for all models and threads of the
    process.

    The replacement lasts until the end of `with use_everywhere():`, or until off() of the returned object. Uses may
    nest. PyTorch's function is restored when the last use ends. use_everywhere(False) ends all uses and returns None.
    In the returned object, `calls` is the number of attention calls that Headgate computed. `declined` maps each reason
    to the number of calls that PyTorch computed for that reason.

    precision="native16" permits calls in bfloat16 to use the CPU's bfloat16 multiplications if these are faster.
    Attention weights are then rounded to bfloat16, as in PyTorch's function. Calls in other dtypes are not affected. If
    uses nest, the precision of the newest use applies.

    PyTorch's function still computes unsupported calls: dropout in compiled programs, devices other than CPUs, nested
    tensors and other subclasses, forward-mode derivatives, heads of more than 576 features, and calls that PyTorch
    itself rejects.

    Code that imported the function by name before the use keeps PyTorch's function. PyTorch's function does not
    recognise a CausalBias during a use. nn.TransformerEncoderLayer and nn.MultiheadAttention have a fast path that
    calls no Python function. This fast path is disabled during a use.
    """
    require_precision("use_everywhere", precision)
    if on:
        return _switch.begin(precision)
    _switch.end_all()
    return None
