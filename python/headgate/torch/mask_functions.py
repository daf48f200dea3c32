# SPDX-License-Identifier: Apache-2.0
"""Mask functions of transformers that say what they are made of.

Transformers joins rules in closures, whose variables compiled programs cannot read. register() replaces some of its
functions, so that what they return has attributes too; it masks as before.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor
from transformers import masking_utils

MaskFunction = Callable[..., Any]

_make_window = masking_utils.sliding_window_causal_mask_function
_make_packed = masking_utils.packed_sequence_mask_function
# Older versions of transformers combine the causal rule and the packed sequences by and_masks.
_make_remapped = getattr(masking_utils, "remap_positions_for_packed_sequence", None)
_join = masking_utils.and_masks


def _window(sliding_window: int) -> MaskFunction:
    function = _make_window(sliding_window)
    function.headgate_window = sliding_window
    return function


def _packed(packed_sequence_mask: Tensor) -> MaskFunction:
    function = _make_packed(packed_sequence_mask)
    function.headgate_numbers = packed_sequence_mask
    return function


def _remapped(mask_function: MaskFunction, position_ids: Tensor) -> MaskFunction:
    function = _make_remapped(mask_function, position_ids)
    function.headgate_rule = mask_function
    return function


def _joined(*mask_functions: MaskFunction) -> MaskFunction:
    function = _join(*mask_functions)
    function.headgate_parts = mask_functions
    return function


def register() -> None:
    masking_utils.sliding_window_causal_mask_function = _window
    masking_utils.packed_sequence_mask_function = _packed
    if _make_remapped is not None:
        masking_utils.remap_positions_for_packed_sequence = _remapped
    masking_utils.and_masks = _joined


def is_causal(mask_function: MaskFunction, window: int | None) -> bool:
    """Tells whether `mask_function` is transformers' causal one, or with a window its causal one of this window."""
    if window is None:
        return mask_function is masking_utils.causal_mask_function
    return getattr(mask_function, "headgate_window", None) == window


def numbers_of(mask_function: MaskFunction, window: int | None) -> Tensor | None:
    """Returns the number of each token's sequence in its row, (B,T), if `mask_function` is what transformers make for
    packed causal rows with this window. Returns None for other functions, which may have more rules."""
    parts: tuple[Any, ...] = getattr(mask_function, "headgate_parts", ())
    if len(parts) != 2:
        return None
    for packed, rule in (parts, parts[::-1]):
        numbers = getattr(packed, "headgate_numbers", None)
        if numbers is not None and is_causal(getattr(rule, "headgate_rule", rule), window):
            return numbers
    return None
