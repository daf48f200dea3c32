# SPDX-License-Identifier: Apache-2.0
"""Adds attributes to the mask functions of transformers. The attributes tell Headgate which rule a function applies.

transformers builds mask functions as closures, and compiled programs cannot read the variables of a closure. register()
replaces some functions of transformers that build mask functions. A replacement builds the same mask function and sets
attributes on it, such as headgate_window.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor
from transformers import masking_utils

MaskFunction = Callable[..., Any]

_make_window = masking_utils.sliding_window_causal_mask_function
_make_packed = masking_utils.packed_sequence_mask_function
# transformers' function that remaps positions of packed sequences. None in older versions, which use and_masks instead.
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
    """Returns whether `mask_function` is the causal mask of transformers with this window. Without a window, returns
    whether it is the plain causal mask.
    """
    if window is None:
        return mask_function is masking_utils.causal_mask_function
    return getattr(mask_function, "headgate_window", None) == window


def numbers_of(mask_function: MaskFunction, window: int | None) -> Tensor | None:
    """Returns the sequence number (B,T) of each token that a mask function of transformers reads.

    `mask_function` must be transformers' mask for packed causal rows with this window. Returns None for any other
    function, which may hide more keys.
    """
    parts: tuple[Any, ...] = getattr(mask_function, "headgate_parts", ())
    if len(parts) != 2:
        return None
    for packed, rule in (parts, parts[::-1]):
        numbers = getattr(packed, "headgate_numbers", None)
        if numbers is not None and is_causal(getattr(rule, "headgate_rule", rule), window):
            return numbers
    return None
