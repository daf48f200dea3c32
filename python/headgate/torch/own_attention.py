# SPDX-License-Identifier: Apache-2.0
"""Finds models of transformers that add the attention mask to scores in their own code.

They need the floating-point mask of eager attention. Adding a boolean mask would leave hidden keys visible.
"""

import re
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from transformers import AttentionInterface, PreTrainedModel, masking_utils

CONFIGS = frozenset(
    "BeitConfig BigBirdPegasusConfig DeepseekV4Config Gemma4AudioConfig InformerConfig "
    "PPDocLayoutV2ReadingOrderConfig".split()
)
"""Configs of models that call the AttentionInterface, and whose own code also computes with the mask."""

_known: dict[type, bool] = {}


@torch.compiler.assume_constant_result
def has_own_attention(config_class: type) -> bool:
    """Returns whether models with this class of config compute with their masks.

    Such models are those in CONFIGS, and those whose file defines attention without the AttentionInterface.
    """
    if config_class not in _known:
        modules = {model.__module__ for model in models() if model.config_class is config_class}
        names = {base.__name__ for base in config_class.__mro__}
        _known[config_class] = not CONFIGS.isdisjoint(names) or any(map(_defines_attention, modules))
    return _known[config_class]


def models(base: Any = PreTrainedModel) -> Iterator[Any]:
    """Yields the loaded classes of models."""
    for model in base.__subclasses__():
        yield model
        yield from models(model)


def _defines_attention(module: str) -> bool:
    """Returns whether a module makes masks, and defines attention none of whose base classes can call the interface."""
    names = _names_in(module)
    makes_masks = any(getattr(each, "__module__", None) == masking_utils.__name__ for each in names)
    return makes_masks and any(
        isinstance(each, type)
        and issubclass(each, nn.Module)
        and each.__module__ == module
        and re.search("attention|attn", each.__name__, re.IGNORECASE)
        and not any(_has_interface(base.__module__) for base in each.__mro__)
        for each in names
    )


def _has_interface(module: str) -> bool:
    return any(isinstance(each, AttentionInterface) for each in _names_in(module))


def _names_in(module: str) -> list[Any]:
    """Returns the values of the names that a module defines or imports."""
    return list(vars(sys.modules[module]).values()) if module in sys.modules else []
