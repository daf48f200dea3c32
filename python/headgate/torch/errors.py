# SPDX-License-Identifier: Apache-2.0
"""Renames errors after the public function that was called, and after its arguments.

The package's kernels name their own functions and arguments. Each public function of headgate.torch says once how the
caller names them, and every error that passes it is renamed.
"""

import functools
import re
from collections.abc import Callable, Mapping
from typing import Any

import torch

# The functions below a public one, whose names begin their messages.
_INNER = (
    "attention_forward",
    "attention_backward",
    "attention_merge",
    "attention_statistics",
    "gated_attention",
    "gated_norm_forward",
    "gated_norm_backward",
    "gated_norm",
    "linear_attention_forward",
    "linear_attention_backward",
    "linear_attention_statistics",
    "linear_attention",
    "ring_attention",
    "short_convolution_forward",
    "short_convolution_backward",
    "short_convolution",
)
GATE_LOGITS = {"gate": "gate_logits"}
"""How gated_attention and ring_attention name what the package's functions name `gate`."""


def renamed(text: str, what: str, names: Mapping[str, str]) -> str:
    """Rewrites the message "FUNCTION: …" of an inner function to name `what` and the caller's arguments. Returns other
    messages unchanged. In "a gate that multiplies" the word is not an argument."""
    function, colon, rest = text.partition(": ")
    if not colon or function not in _INNER:
        return text
    words = "|".join(map(re.escape, names))
    return f"{what}: " + (re.sub(rf"\b({words})\b(?! that)", lambda m: names[m[0]], rest) if names else rest)


def call_as(what: str, names: Mapping[str, str], function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Calls `function` and renames its errors after `what`. Under torch.compile it only calls: the operations in the
    compiled program rename their own errors."""
    if torch.compiler.is_compiling():
        return function(*args, **kwargs)
    try:
        return function(*args, **kwargs)
    except (ValueError, TypeError, RuntimeError) as error:
        text = renamed(str(error), what, names)
        if text == str(error):
            raise
        raise type(error)(text) from None


def in_words_of(what: str, names: Mapping[str, str]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """call_as as a decorator."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            return call_as(what, names, function, *args, **kwargs)

        return call

    return decorate
