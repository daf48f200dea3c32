# SPDX-License-Identifier: Apache-2.0
"""Rows that hold several sequences, as transformers' models describe them, as one packed batch."""

import torch
from torch import Tensor


def begins_of(numbers: Tensor, fixed: bool = False) -> Tensor:
    """Returns cu_seqlens (N+1) of packed rows, from the number of each token's sequence (B,T). `fixed` gives it the length
    B·T + 1 whatever the numbers are, as compiled programs need it: empty sequences stand at the end."""
    first = torch.ones_like(numbers, dtype=torch.bool)
    first[:, 1:] = numbers[:, 1:] != numbers[:, :-1]
    first, total = first.flatten(), numbers.numel()
    if fixed:
        rows = torch.arange(total, device=numbers.device)
        begins = torch.where(first, rows, total).sort().values
    else:
        begins = first.nonzero().flatten()
    return torch.cat((begins, begins.new_full((1,), total))).to(torch.int32)


def one_row(x: Tensor) -> Tensor:
    """(B,T,…) as (1,B·T,…)."""
    return x.flatten(0, 1).unsqueeze(0)
