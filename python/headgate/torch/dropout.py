# SPDX-License-Identifier: Apache-2.0
"""Dropout of attention weights: which probabilities the kernels compute, and the seeds of calls that name none."""

import torch

from .transforms import transforms_are_active


def computes_dropout(probability: float) -> bool:
    """Whether gated_attention drops weights with this probability without a seed of the caller's. A compiled program
    cannot draw one."""
    return probability == 0 or (0 <= probability < 1 and not torch.compiler.is_compiling())


def draw_seed() -> int:
    """The dropout_seed of a call that names none, of PyTorch's default generator: torch.manual_seed repeats it, and
    activation checkpointing draws it again. Under torch.func.vmap it is one for all examples."""
    try:
        return int(torch.empty((), dtype=torch.int64, device="cpu").random_(-(2**63), None))
    except RuntimeError:
        if not transforms_are_active():
            raise
        raise RuntimeError(
            "gated_attention: dropout under torch.func.vmap needs randomness='same', or a dropout_seed"
        ) from None
