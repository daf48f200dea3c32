# SPDX-License-Identifier: Apache-2.0
"""Attention for models that fold proteins.

The functions accept any leading dimensions and a list of biases. Their signatures are those of the fused GPU kernels
that these models call.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..attention import gated_attention
from ..checks import require_tensor, shape_of
from ..errors import call_as
from ..precision import Precision, precision_of, require_precision

_NAMES = {"key_bias": "biases", "bias": "biases"}


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    biases: Sequence[Tensor] = (),
    gate: Tensor | None = None,
    *,
    scale: float | None = None,
    precision: Precision = "exact",
) -> Tensor:
    """Computes sigmoid(gate) * softmax(scale * q k^T + sum of biases) v, with gradients of all tensors.

    Args:
        q: (*, H, T, D), with any leading dimensions.
        k: (*, H, S, D).
        v: (*, H, S, Dv).
        biases: tensors that broadcast to (*, H, T, S). -inf hides a key. Leading dimensions may share a bias, which is
            then neither expanded nor copied. Its gradient is summed over these dimensions. A float32 bias stays
            float32 if the other tensors have 16 bits.
            The biases are summed before the call, in float32 or better. Biases of keys, (*, 1, 1, S), are summed
            separately if they need no gradient.
        gate: raw logits (*, H, T, Dv) or (*, H, T, 1). None means no gate.
        scale: by default 1 / sqrt(D). Models that divide q themselves pass 1.0.
        precision: "native16" permits calls in bfloat16 to use the CPU's bfloat16 multiplications if these are faster.
            Attention weights are then rounded to bfloat16. Calls in other dtypes are not affected.

    Returns (*, H, T, Dv) in q's dtype. Memory is O(T + S) per head, in addition to the biases. Raises ValueError with a
    one-line message for tensors that do not fit together, and for a bias of keys that holds only 0 and 1. Raises
    TypeError if an argument is not a tensor, or if biases is a tensor instead of a sequence of tensors.
    """
    what = "fold.attention"
    require_precision(what, precision)
    for name, x in (("q", q), ("k", k), ("v", v)):
        require_tensor(what, name, x)
        if x.dim() < 3:
            raise ValueError(f"{what}: {name} has shape {shape_of(x)} but must be (*, H, rows, features)")
    lead, (H, T), S = q.shape[:-3], q.shape[-3:-1], k.shape[-2]
    for name, x in (("k", k), ("v", v), ("gate", gate)):
        if x is not None and x.shape[:-3] != lead:
            raise ValueError(
                f"{what}: {name} has shape {shape_of(x)} but q has shape {shape_of(q)}: other leading sizes"
            )
    full = (*lead, H, T, S)
    keys: list[Tensor] = []
    pairs: list[Tensor] = []
    for n, bias in enumerate(_sequence(what, biases)):
        _check_bias(what, f"biases[{n}]", bias, full)
        bias = bias.reshape((1,) * (len(full) - bias.dim()) + bias.shape)
        bias = bias.expand(*bias.shape[:-1], S)
        of_keys = bias.shape[-3:-1] == (1, 1) and not bias.requires_grad
        (keys if of_keys else pairs).append(_as_kernel_dtype(bias, q.dtype))
    key_bias, pair_bias = _total(keys), _total(pairs)
    gate = gate if gate is None else _as_kernel_dtype(gate, q.dtype)
    options = {"scale": scale, **precision_of(q, precision)}
    return _in_batches(what, options, q, k, v, pair_bias, key_bias, gate)


def _as_kernel_dtype(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Converts `x` to a dtype that the kernels accept with a q of `dtype`.

    - `x` has `dtype`: unchanged
    - q is float64: float64
    - otherwise: float32
    """
    if x.dtype == dtype:
        return x
    return x.to(torch.float64 if dtype == torch.float64 else torch.float32)


def _total(biases: list[Tensor]) -> Tensor | None:
    """Returns the sum of the biases, in float32 or better if there are several. Returns None if there are none."""
    if len(biases) > 1:
        biases = [x if x.dtype == torch.float64 else x.float() for x in biases]
    return sum(biases[1:], biases[0]) if biases else None


def _sequence(what: str, biases: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    """Returns `biases`. Raises TypeError if the argument is None, or one tensor instead of a sequence of tensors."""
    if biases is None:
        raise TypeError(f"{what}: biases is None but must be a sequence: write [] for no bias")
    if isinstance(biases, Tensor):
        raise TypeError(f"{what}: biases is a tensor of shape {shape_of(biases)} but must be a sequence: write [bias]")
    return biases


def triangle_attention(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor, mask: Tensor | None = None, scale: float | None = None
) -> Tensor:
    """Computes triangle attention with the arguments of cuequivariance_torch.triangle_attention. All tensors except
    mask have gradients.

    Args:
        q: (B, N, H, T, D), or without B.
        k: (B, N, H, S, D), or without B.
        v: (B, N, H, S, D), or without B.
        bias: (B, 1, H, T, S), the bias of pairs. All N rows share it.
        mask: (B, N, 1, 1, S), true for visible keys. A row without a visible key returns 0.
        scale: by default 1 / sqrt(D).

    Returns (B, N, H, T, D). Raises ValueError with a one-line message for tensors that do not fit together.
    """
    if mask is None:
        return attention(q, k, v, [bias], scale=scale)
    if mask.dtype != torch.bool:
        raise ValueError(f"fold.triangle_attention: mask has dtype {mask.dtype} but must be torch.bool: write mask > 0")
    hidden = torch.zeros_like(mask, dtype=torch.float32).masked_fill(~mask, -math.inf)
    return attention(q, k, v, [hidden, bias], scale=scale)


def evoformer_attention(Q: Tensor, K: Tensor, V: Tensor, biases: Sequence[Tensor | None] = ()) -> Tensor:
    """Computes attention with the arguments of DeepSpeed's DS4Sci_EvoformerAttention. All tensors have gradients.

    Args:
        Q: (B, N, L, H, D).
        K: (B, N, L, H, D).
        V: (B, N, L, H, D).
        biases: (B, N, 1, 1, L), or (B, 1, H, L, L), or both. None means that a bias is absent.

    Returns (B, N, L, H, D). Raises ValueError with a one-line message for tensors that do not fit together.
    """
    q, k, v = (x.transpose(-2, -3) for x in (Q, K, V))
    given = [bias for bias in _sequence("fold.evoformer_attention", biases) if bias is not None]
    return attention(q, k, v, given).transpose(-2, -3)


def _check_bias(what: str, name: str, bias: Tensor | None, full: tuple[int, ...]) -> None:
    """Raises an error if the bias is no floating-point tensor or does not broadcast to `full`.

    A bias of keys that has no gradient and holds only 0 and 1 is probably a mask, and also raises an error.
    """
    require_tensor(what, name, bias)
    if not bias.is_floating_point():
        raise ValueError(f"{what}: {name} has dtype {bias.dtype}: write torch.where(mask, 0.0, -math.inf)")
    fits = bias.dim() <= len(full) and all(b in (1, n) for b, n in zip(bias.shape[::-1], full[::-1]))
    if not fits:
        raise ValueError(f"{what}: {name} has shape {shape_of(bias)} but must broadcast to {full}")
    of_keys = all(n == 1 for n in bias.shape[-3:-1])
    if not of_keys or bias.requires_grad or torch.compiler.is_compiling():
        return
    there = bias.numel() > 1 and bias.device.type != "meta"
    if there and bool(((bias == 0) | (bias == 1)).all()) and bool((bias == 1).any()):
        raise ValueError(f"{what}: {name} holds only 0 and 1, as a mask does: write (mask - 1) * 1e9")


def _in_batches(
    what: str,
    options: dict[str, Any],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pair_bias: Tensor | None,
    key_bias: Tensor | None,
    gate: Tensor | None,
) -> Tensor:
    """Computes attention in one call if the leading sizes of pair_bias are those of q or all 1.

    Otherwise, finds the first leading dimension along which pair_bias varies. Calls itself for each index of that
    dimension. The biases have as many dimensions as q. `options` are arguments of gated_attention.
    """
    lead = q.shape[:-3]
    if pair_bias is None or pair_bias.shape[:-3] in ((1,) * len(lead), lead) or 0 in lead:
        return _one_batch(what, options, q, k, v, pair_bias, key_bias, gate)
    at = next(i for i, size in enumerate(pair_bias.shape[:-3]) if size != 1)

    def slices(x: Tensor | None) -> list[Tensor | None]:
        if x is None:
            return [None] * lead[at]
        return [x.select(at, 0 if x.shape[at] == 1 else n) for n in range(lead[at])]

    parts = zip(*map(slices, (q, k, v, pair_bias, key_bias, gate)))
    return torch.stack([_in_batches(what, options, *part) for part in parts], at)


def _one_batch(
    what: str,
    options: dict[str, Any],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pair_bias: Tensor | None,
    key_bias: Tensor | None,
    gate: Tensor | None,
) -> Tensor:
    """Computes attention with the leading dimensions merged into one batch.

    If all leading sizes of a bias are 1, the batch shares the bias. Any other bias is expanded to the leading sizes of
    q.
    """
    lead = q.shape[:-3]

    def batch(x: Tensor | None) -> Tensor | None:
        if x is None:
            return None
        if math.prod(x.shape[:-3]) == 1:
            return x.reshape(1, *x.shape[-3:])
        return x.expand(*lead, *x.shape[-3:]).reshape(math.prod(lead), *x.shape[-3:])

    given = {"bias": batch(pair_bias), "key_bias": batch(key_bias), **options}
    given = {name: value for name, value in given.items() if value is not None}
    whole = [x.reshape(math.prod(lead), *x.shape[-3:]) for x in (q, k, v)]
    whole_gate = None if gate is None else gate.reshape(math.prod(lead), *gate.shape[-3:])
    y = call_as(what, _NAMES, gated_attention, *whole, gate=whole_gate, **given)
    return y.reshape(*lead, *y.shape[-3:])
