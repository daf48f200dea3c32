# SPDX-License-Identifier: Apache-2.0
"""Attention for models that fold proteins.

The functions accept any leading dimensions and a list of biases. Their signatures are those of the fused GPU kernels
that these models call.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..attention import gated_attention
from ..checks import require_bool, require_tensor, shape_of, shown
from ..eager import can_read_values
from ..errors import call_as
from ..precision import Precision, precision_of, require_precision


class _Caller(NamedTuple):
    """Describes a public function for errors."""

    what: str
    """Name of the function."""
    names: dict[str, str]
    """Maps argument names of gated_attention to those of the function, where they differ."""
    letters: str = "(*, H, rows, features)"
    """Order of the dimensions of q, k and v."""
    is_transposed: bool = False
    """Whether heads come after rows in the function's q, k and v."""

    def of(self, name: str) -> str:
        """Returns the function's name of an argument."""
        return self.names.get(name, name)

    def with_shape(self, name: str, x: Tensor) -> str:
        """Formats the name and the shape of q, k, v or the gate in the function's order of dimensions."""
        return f"{self.of(name)} has shape {shape_of(x.transpose(-2, -3) if self.is_transposed else x)}"


_ATTENTION = _Caller("fold.attention", {"key_bias": "biases", "bias": "biases"})
_TRIANGLE = _Caller("fold.triangle_attention", {"key_bias": "mask", "bias": "bias"})
_EVOFORMER = _Caller(
    "fold.evoformer_attention",
    {"q": "Q", "k": "K", "v": "V", "key_bias": "biases", "bias": "biases"},
    "(*, rows, H, features)",
    True,
)


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
    named = {f"biases[{n}]": bias for n, bias in enumerate(_sequence(_ATTENTION, biases))}
    return _attention(_ATTENTION, q, k, v, named, gate, scale, precision)


def _attention(
    caller: _Caller,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    biases: dict[str, Tensor],
    gate: Tensor | None = None,
    scale: float | None = None,
    precision: Precision = "exact",
) -> Tensor:
    """Computes attention() for the function `caller`. `biases` maps the caller's names of the biases to tensors."""
    what = caller.what
    require_precision(what, precision)
    for name, x in (("q", q), ("k", k), ("v", v)):
        _require_rows(caller, name, x)
    if gate is not None:
        _require_rows(caller, "gate", gate)
    _check_sizes(caller, q, k, v, gate)
    full = (*q.shape[:-1], k.shape[-2])
    keys: list[Tensor] = []
    pairs: list[Tensor] = []
    for name, bias in biases.items():
        _check_bias(what, name, bias, full)
        bias = bias.reshape((1,) * (len(full) - bias.dim()) + bias.shape)
        bias = bias.expand(*bias.shape[:-1], full[-1])
        of_keys = bias.shape[-3:-1] == (1, 1) and not bias.requires_grad
        (keys if of_keys else pairs).append(_as_kernel_dtype(bias, q.dtype))
    key_bias, pair_bias = _total(keys), _total(pairs)
    gate = gate if gate is None else _as_kernel_dtype(gate, q.dtype)
    options = {"scale": scale, **precision_of(q, precision)}
    return _in_batches(caller, options, q, k, v, pair_bias, key_bias, gate)


def _require_rows(caller: _Caller, name: str, x: Any) -> None:
    """Raises TypeError or ValueError unless `x` is a dense tensor with dimensions for heads, rows and features."""
    require_tensor(caller.what, caller.of(name), x)
    if x.dim() < 3:
        found = f"{caller.of(name)} has shape {shape_of(x)}"
        raise ValueError(f"{caller.what}: {found} but must be {caller.letters}")


def _check_sizes(caller: _Caller, q: Tensor, k: Tensor, v: Tensor, gate: Tensor | None) -> None:
    """Raises ValueError unless the sizes of the tensors fit together."""
    of_k = k.shape[-3] > 0 and q.shape[-3] % k.shape[-3] == 0
    rules = [
        ("k", k, "q", q, {"features": k.shape[-1] == q.shape[-1], "heads": of_k or k.shape[-3] == q.shape[-3]}),
        ("v", v, "k", k, {"rows": v.shape[-2] == k.shape[-2], "heads": v.shape[-3] == k.shape[-3]}),
    ]
    if gate is not None:
        rules.append(("gate", gate, "q", q, {"heads or rows": gate.shape[-3:-1] == q.shape[-3:-1]}))
        rules.append(("gate", gate, "v", v, {"features": gate.shape[-1] in (1, v.shape[-1])}))
    for name, x, other, y, fits in rules:
        for part, fit in {"leading sizes": x.shape[:-3] == y.shape[:-3], **fits}.items():
            if not fit:
                shapes = f"{caller.with_shape(name, x)} but {caller.with_shape(other, y)}"
                raise ValueError(f"{caller.what}: {shapes}: other {part}")


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


def _sequence(caller: _Caller, biases: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    """Returns `biases` as a tuple. Raises TypeError if it is no sequence, for example a tensor or None."""
    if isinstance(biases, Sequence) and not isinstance(biases, (str, bytes)):
        return tuple(biases)
    hint = "[] for no bias" if biases is None else "[bias]"
    raise TypeError(f"{caller.what}: biases is {shown(biases)} but must be a sequence: write {hint}")


def triangle_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor,
    mask: Tensor | None = None,
    scale: float | None = None,
    return_aux: bool = False,
    *,
    kv_lengths: Tensor | None = None,
) -> Tensor:
    """Computes triangle attention with the arguments of cuequivariance_torch.triangle_attention. q, k, v and bias have
    gradients.

    Args:
        q: (B, N, H, T, D), or without B.
        k: (B, N, H, S, D), or without B.
        v: (B, N, H, S, D), or without B.
        bias: (B, 1, H, T, S), the bias of pairs. All N rows share it.
        mask: (B, N, 1, 1, S), true for visible keys. A row without a visible key returns 0.
        scale: by default 1 / sqrt(D).
        return_aux: must be False. There are no auxiliary results.
        kv_lengths: (B, N, 1, 1, 1), the number of visible keys of each row. Cannot be given with mask.

    Returns (B, N, H, T, D). Raises ValueError with a one-line message for tensors that do not fit together.
    """
    what = _TRIANGLE.what
    require_bool(what, "return_aux", return_aux)
    if return_aux:
        raise ValueError(f"{what}: return_aux is True but must be False: there are no auxiliary results")
    require_tensor(what, "bias", bias)
    if kv_lengths is not None:
        if mask is not None:
            raise ValueError(f"{what}: mask and kv_lengths cannot be given together")
        require_tensor(what, "kv_lengths", kv_lengths)
        _require_rows(_TRIANGLE, "k", k)
        if kv_lengths.dim() == 0 or kv_lengths.shape[-1] != 1 or kv_lengths.dtype not in (torch.int32, torch.int64):
            found = f"kv_lengths has shape {shape_of(kv_lengths)} and dtype {kv_lengths.dtype}"
            raise ValueError(f"{what}: {found} but must be int32 of shape (B, N, 1, 1, 1)")
        mask = torch.arange(k.shape[-2], device=kv_lengths.device) < kv_lengths
        return _attention(_TRIANGLE, q, k, v, {"kv_lengths": _hidden(mask), "bias": bias}, scale=scale)
    if mask is None:
        return _attention(_TRIANGLE, q, k, v, {"bias": bias}, scale=scale)
    require_tensor(what, "mask", mask)
    if mask.dtype != torch.bool:
        raise ValueError(f"{what}: mask has dtype {mask.dtype} but must be torch.bool: write mask > 0")
    return _attention(_TRIANGLE, q, k, v, {"mask": _hidden(mask), "bias": bias}, scale=scale)


def _hidden(mask: Tensor) -> Tensor:
    """Returns a bias of -inf where the mask is false."""
    return torch.zeros_like(mask, dtype=torch.float32).masked_fill(~mask, -math.inf)


def evoformer_attention(Q: Tensor, K: Tensor, V: Tensor, biases: Sequence[Tensor | None] = ()) -> Tensor:
    """Computes attention with the arguments of DeepSpeed's DS4Sci_EvoformerAttention. All tensors have gradients.

    Args:
        Q: (B, N, L, H, D).
        K: (B, N, L, H, D).
        V: (B, N, L, H, D).
        biases: (B, N, 1, 1, L), or (B, 1, H, L, L), or both. None means that a bias is absent.

    Returns (B, N, L, H, D). Raises ValueError with a one-line message for tensors that do not fit together.
    """
    for name, x in (("q", Q), ("k", K), ("v", V)):
        _require_rows(_EVOFORMER, name, x)
    given = enumerate(_sequence(_EVOFORMER, biases))
    named = {f"biases[{n}]": bias for n, bias in given if bias is not None}
    q, k, v = (x.transpose(-2, -3) for x in (Q, K, V))
    return _attention(_EVOFORMER, q, k, v, named).transpose(-2, -3)


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
    if not of_keys or bias.requires_grad or not can_read_values(bias):
        return
    there = bias.numel() > 1 and bias.device.type != "meta"
    if there and bool(((bias == 0) | (bias == 1)).all()) and bool((bias == 1).any()):
        raise ValueError(f"{what}: {name} holds only 0 and 1, as a mask does: write (mask - 1) * 1e9")


def _in_batches(
    caller: _Caller,
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
        return _one_batch(caller, options, q, k, v, pair_bias, key_bias, gate)
    at = next(i for i, size in enumerate(pair_bias.shape[:-3]) if size != 1)

    def slices(x: Tensor | None) -> list[Tensor | None]:
        if x is None:
            return [None] * lead[at]
        return [x.select(at, 0 if x.shape[at] == 1 else n) for n in range(lead[at])]

    parts = zip(*map(slices, (q, k, v, pair_bias, key_bias, gate)))
    return torch.stack([_in_batches(caller, options, *part) for part in parts], at)


def _one_batch(
    caller: _Caller,
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
    y = call_as(caller.what, caller.names, gated_attention, *whole, gate=whole_gate, **given)
    return y.reshape(*lead, *y.shape[-3:])
