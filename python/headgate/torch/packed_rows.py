# SPDX-License-Identifier: Apache-2.0
"""Rows that hold several sequences, as transformers' models describe them, as one packed batch."""

import torch
from torch import Tensor


def begins_of(numbers: Tensor) -> Tensor:
    """Returns cu_seqlens (N+1) of packed rows, from the number of each token's sequence (B,T). In compiled programs, whose
    shapes must not depend on values, N is B·T: sequences behind the last are empty."""
    first = torch.ones_like(numbers, dtype=torch.bool)
    first[:, 1:] = numbers[:, 1:] != numbers[:, :-1]
    rows = first.numel()
    if torch.compiler.is_compiling():
        begins = torch.where(first.flatten(), torch.arange(rows), rows).sort().values
    else:
        begins = first.flatten().nonzero().flatten()
    return torch.cat((begins, begins.new_full((1,), rows))).to(torch.int32)


def one_row(x: Tensor) -> Tensor:
    """(B,T,…) as (1,B·T,…)."""
    return x.flatten(0, 1).unsqueeze(0)
