# SPDX-License-Identifier: Apache-2.0
"""Dropout of attention weights: the one place that says what the kernels compute of it."""

from typing import Any


def dropout_options(what: str, probability: float) -> dict[str, Any]:
    """Returns the options of gated_attention that drop each weight with this probability. Raises ValueError where the
    kernels cannot; `what` begins the message."""
    if probability == 0:
        return {}
    raise ValueError(f"{what}: dropout of {probability} is not supported: set it to 0")


def computes_dropout(probability: float) -> bool:
    """Whether dropout_options takes this probability."""
    return probability == 0
