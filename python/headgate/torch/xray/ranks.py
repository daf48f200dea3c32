# SPDX-License-Identifier: Apache-2.0
"""Finds the value matrix W_v and the output matrix W_o of each head, and computes effective ranks.

Letters: C channels, D features of a head's values, H heads, Hkv key/value heads.
"""

import torch
from torch import Tensor, nn


def matrix_of(module: nn.Module) -> Tensor | None:
    """Returns the matrix (out,in) of an nn.Linear or of GPT-2's Conv1D. Returns None for other modules and packed
    weights.
    """
    weight = getattr(module, "weight", None)
    if not isinstance(weight, Tensor) or weight.dim() != 2 or not weight.is_floating_point():
        return None
    if weight.element_size() < 2:  # 8-bit weights need scales that are stored elsewhere
        return None
    if isinstance(module, nn.Linear):
        return weight.detach()
    return weight.detach().T if type(module).__name__ == "Conv1D" else None


def is_linear(module: nn.Module, x: Tensor, out: Tensor) -> bool:
    """Returns whether the output `out` of a linear layer is x Wᵀ + b.

    Checks only subclasses of nn.Linear with their own forward method, which may scale weights or add terms.
    """
    if not isinstance(module, nn.Linear) or type(module).forward is nn.Linear.forward:
        return True
    weight = module.weight
    if out.shape != (*x.shape[:-1], len(weight)) or x.shape[-1] != weight.shape[1] or x.dtype != weight.dtype:
        return False
    expected = nn.functional.linear(x, weight, module.bias)
    tolerance = 8 * torch.finfo(out.dtype).eps * expected.abs().max()
    return bool((out - expected).abs().max() <= tolerance)


def value_rows(module: nn.Module, out: Tensor, v: Tensor) -> Tensor | None:
    """Returns the rows of W_v (Hkv,D,C) in the matrix of a linear layer. Returns None if the layer does not compute v.

    The layer computes v if its output `out` (1,T,·) contains the values v (1,Hkv,T,D) unchanged.

    The values must be the last Hkv·D features of the output, or the last of equal parts of each head.
    """
    matrix, (_, Hkv, T, D) = matrix_of(module), v.shape
    if matrix is None or out.shape[:-1] != (1, T) or out.shape[-1] % D or out.shape[-1] < Hkv * D:
        return None
    for parts in {1, out.shape[-1] // (Hkv * D)}:  # v is the last part of a head's features
        if out.shape[-1] % (parts * D):
            continue
        heads = out.unflatten(-1, (-1, parts, D))[..., -Hkv:, -1, :]
        if heads.shape[2] == Hkv and torch.equal(heads.transpose(1, 2), v):
            return matrix.unflatten(0, (-1, parts, D))[-Hkv:, -1]
    return None


def _spectrum_product(a: Tensor, b: Tensor) -> Tensor:
    """Returns the singular values of X Y, largest first, from a = XᵀX and b = Y Yᵀ (…,D,D).

    They are the square roots of the eigenvalues of h b hᵀ, where h is a matrix with hᵀh = a.
    """
    values, vectors = torch.linalg.eigh(a)
    half = values.clamp_min(0).sqrt()[..., None] * vectors.transpose(-1, -2)
    found = torch.linalg.eigvalsh(half @ b @ half.transpose(-1, -2))
    return found.clamp_min(0).sqrt().flip(-1)


def singular_values(a: Tensor, b: Tensor) -> Tensor:
    """Returns the singular values (H,D) of X Y, largest first, from the Gram matrices a = XᵀX and b = Y Yᵀ (H,D,D).

    If a Gram matrix is not finite, the singular values are NaN.
    """
    a, b = a.double().cpu(), b.double().cpu()
    fine = a.isfinite().all(-1).all(-1) & b.isfinite().all(-1).all(-1)
    found = torch.full(a.shape[:2], torch.nan, dtype=torch.float64, device="cpu")
    if fine.any():
        found[fine] = _spectrum_product(a[fine], b[fine])
    return found


def effective_rank(values: Tensor) -> Tensor:
    """Returns the effective rank e^H of singular values (H,D). H is the entropy of the values divided by their sum.

    If all values are 0, the rank is 0.
    """
    total = values.sum(-1, keepdim=True)
    share = values / total
    rank = torch.special.entr(share).sum(-1).exp()
    return torch.where(total[..., 0] == 0, 0.0, rank)
