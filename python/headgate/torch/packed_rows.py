# SPDX-License-Identifier: Apache-2.0
"""Converts rows that hold several sequences each to one packed batch. transformers uses such rows."""

import torch
from torch import Tensor


def begins_of(numbers: Tensor) -> Tensor:
    """Returns cu_seqlens (N+1) of packed rows, from the sequence number of each token (B,T).

    In compiled programs, shapes must not depend on values. N is then B·T, and all sequences after the real ones are
    empty.
    """
    first = torch.ones_like(numbers, dtype=torch.bool)
    first[:, 1:] = numbers[:, 1:] != numbers[:, :-1]
    rows = first.numel()
    if torch.compiler.is_compiling():
        begins = torch.where(first.flatten(), torch.arange(rows, device=numbers.device), rows).sort().values
    else:
        begins = first.flatten().nonzero().flatten()
    return torch.cat((begins, begins.new_full((1,), rows))).to(torch.int32)


def numbers_of_positions(positions: Tensor) -> Tensor | None:
    """Returns the sequence number (B,T) of each token from its position in its sequence.

    A sequence begins at position 0 and where the positions decrease. Returns None if each row holds one sequence, but
    never in compiled programs, which must not depend on values.
    """
    begins = torch.zeros_like(positions, dtype=torch.bool)
    begins[:, 1:] = (positions[:, 1:] == 0) | (positions[:, 1:] < positions[:, :-1])
    if not torch.compiler.is_compiling() and not bool(begins.any()):
        return None
    return begins.cumsum(-1)


def one_row(x: Tensor) -> Tensor:
    """Reshapes (B,T,…) to (1,B·T,…)."""
    return x.flatten(0, 1).unsqueeze(0)


def numbers_in_one_row(x: Tensor, batch: int) -> Tensor:
    """Reshapes x, one number per head and query, from (B,H,T) or (1,H,T) to (1,H,B·T). `batch` is B."""
    return x.expand(batch, -1, -1).transpose(0, 1).flatten(1).unsqueeze(0)
