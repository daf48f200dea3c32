# SPDX-License-Identifier: Apache-2.0
"""Mask functions of transformers that say what they are made of.

Transformers joins rules in closures, whose variables compiled programs cannot read. register() replaces two of its
functions, so that what they return has attributes too; it masks as before.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor
from transformers import masking_utils

_make_packed = masking_utils.packed_sequence_compatibility_function
_make_window = masking_utils.sliding_window_causal_mask_function


def _packed(
    mask_function: Callable[..., Any], position_ids: Tensor, packed_sequence_mask: Tensor
) -> Callable[..., Any]:
    function = _make_packed(mask_function, position_ids, packed_sequence_mask)
    function.headgate_rule, function.headgate_numbers = mask_function, packed_sequence_mask
    return function


def _window(sliding_window: int) -> Callable[..., Any]:
    function = _make_window(sliding_window)
    function.headgate_window = sliding_window
    return function


def register() -> None:
    masking_utils.packed_sequence_compatibility_function = _packed
    masking_utils.sliding_window_causal_mask_function = _window


def numbers_of(mask_function: Any, window: int | None) -> Tensor | None:
    """Returns the number of each token's sequence in its row, (B,T), if `mask_function` is what transformers make for
    packed causal rows with this window. Returns None for other functions, which may have more rules."""
    rule = getattr(mask_function, "headgate_rule", None)
    if window is None:
        known = rule is masking_utils.causal_mask_function
    else:
        known = rule is not None and getattr(rule, "headgate_window", None) == window
    return mask_function.headgate_numbers if known else None
