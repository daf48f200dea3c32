# SPDX-License-Identifier: Apache-2.0
"""Makes error messages name the public function that was called and the arguments of its caller.

Errors of inner functions name the inner functions and their arguments. Each public function of headgate.torch therefore
rewrites the errors that pass through it. It declares the names that its callers use.
"""

import functools
import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

import torch

from .arguments import unexpected

# Names of inner functions that public functions of headgate.torch call. Their error messages begin with these names.
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
    "linear_attention_weights",
    "linear_attention",
    "ring_attention",
    "short_convolution_forward",
    "short_convolution_backward",
    "short_convolution",
)


def renamed(text: str, what: str, names: Mapping[str, str]) -> str:
    """Rewrites the message "FUNCTION: …" of an inner function. The result names `what` and the caller's arguments.
    Other messages are returned unchanged.
    """
    function, colon, rest = text.partition(": ")
    if not colon or function not in _INNER:
        return text
    words = "|".join(map(re.escape, names))
    return f"{what}: " + (re.sub(rf"\b({words})\b", lambda m: names[m[0]], rest) if names else rest)


def call_as(what: str, names: Mapping[str, str], function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Calls `function` and rewrites its errors to name `what`.

    Under torch.compile, nothing is rewritten here. The operators in the compiled program rewrite their errors.
    """
    if torch.compiler.is_compiling():
        return function(*args, **kwargs)
    try:
        return function(*args, **kwargs)
    except (ValueError, TypeError, RuntimeError) as error:
        text = renamed(str(error), what, names)
        if isinstance(error, TypeError) and kwargs:
            text = _with_suggestion(text, function, kwargs)
        if text == str(error):
            raise
        raise type(error)(text) from None


def _with_suggestion(text: str, function: Callable[..., Any], given: Mapping[str, Any]) -> str:
    """Adds a suggestion to Python's message about an unexpected keyword of `function`. Returns other messages
    unchanged.
    """
    known = inspect.signature(function).parameters
    for name in given:
        if name not in known and text.endswith(f"() got an unexpected keyword argument '{name}'"):
            return unexpected(text.partition("()")[0], name, known)
    return text


def is_of_caller(error: BaseException) -> bool:
    """Returns whether code of the caller raised the error during a call of Headgate.

    Such code is a signal handler, or a hook of saved tensors. Its error says nothing about the call and must not be
    caught. Returns False under torch.compile.
    """
    if torch.compiler.is_compiling():
        return False
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    module = "" if at is None else at.tb_frame.f_globals.get("__name__", "")
    return module.partition(".")[0] not in ("", "headgate", "torch")


Function = TypeVar("Function", bound=Callable[..., Any])


def in_words_of(what: str, names: Mapping[str, str]) -> Callable[[Function], Function]:
    """Returns a decorator that calls the function by call_as(). Errors then name `what` and the caller's arguments."""

    def decorate(function: Function) -> Function:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            return call_as(what, names, function, *args, **kwargs)

        return cast(Function, call)

    return decorate
