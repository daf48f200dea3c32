# SPDX-License-Identifier: Apache-2.0
"""Dropout of attention weights: checks probabilities, and draws seeds for calls without a seed."""

import torch

from .transforms import transforms_are_active


def computes_dropout(probability: float) -> bool:
    """Returns whether gated_attention supports this dropout probability in a call without a seed.

    A compiled program cannot draw a seed. It therefore supports only the probability 0.
    """
    return probability == 0 or (0 <= probability < 1 and not torch.compiler.is_compiling())


def draw_seed() -> int:
    """Draws a dropout_seed from PyTorch's default generator.

    torch.manual_seed makes the seed reproducible. Activation checkpointing draws the same seed again. Under
    torch.func.vmap, all examples share one seed.
    """
    try:
        return int(torch.empty((), dtype=torch.int64, device="cpu").random_(-(2**63), None))
    except RuntimeError:
        if not transforms_are_active():
            raise
        raise RuntimeError(
            "gated_attention: dropout under torch.func.vmap needs randomness='same', or a dropout_seed"
        ) from None
