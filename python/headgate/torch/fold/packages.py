# SPDX-License-Identifier: Apache-2.0
"""Lists attention functions of packages that fold proteins, and how Headgate computes each function."""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..precision import Precision
from .functions import attention


class Replaced(NamedTuple):
    """Describes an attention function of a package. `path` is "module:function" or "module:Class.method"."""

    path: str
    adapter: Callable[..., Any]
    """Computes a call with Headgate. Its parameters are the arguments of the package's function that it uses, and
    `precision`. Raises ValueError for calls that it does not support."""
    harmless: Mapping[str, str] = {}
    """Maps arguments that do not change the result to the reason why. The package computes the call if any other
    argument that the adapter does not use differs from its default."""


class Package(NamedTuple):
    """Describes a package that folds proteins."""

    distribution: str
    version: str
    """Version of the distribution for which the adapters were written."""
    replaced: tuple[Replaced, ...]


_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def _gated(self: Any, q_x: Tensor, kv_x: Tensor, biases: Any, precision: Precision) -> Tensor:
    """Computes AlphaFold's gated multi-head attention with the projections of `self`, a module of the package."""
    sigmoid = self.sigmoid
    if type(sigmoid) is not torch.nn.Sigmoid:
        raise ValueError(f"a gate with {type(sigmoid).__name__} in place of Sigmoid")
    if any(getattr(sigmoid, hooks) for hooks in _HOOKS) or torch.nn.modules.module._has_any_global_hook():
        raise ValueError("hooks of the gate's sigmoid, which Headgate does not call")
    q, k, v = self._prep_qkv(q_x, kv_x)
    gate = None
    if self.linear_g is not None:
        gate = self.linear_g(q_x).unflatten(-1, (self.no_heads, -1)).transpose(-2, -3)
    y = attention(q, k, v, biases or (), gate, scale=1.0, precision=precision)
    return self.linear_o(y.transpose(-2, -3).flatten(-2))


def _of_boltz(
    self: Any, q_x: Tensor, kv_x: Tensor, tri_bias: Tensor, mask_bias: Tensor, precision: Precision
) -> Tensor:
    return _gated(self, q_x, kv_x, [mask_bias, tri_bias], precision)


def _with_pair_bias(
    self: Any, s: Tensor, z: Tensor, mask: Tensor, k_in: Tensor, multiplicity: int, precision: Precision
) -> Tensor:
    """Computes Boltz's attention with pair bias. `multiplicity` consecutive sequences share each matrix of z."""
    B, M = s.shape[0], multiplicity

    def heads(x: Tensor) -> Tensor:
        x = x.view(B, -1, self.num_heads, self.head_dim).transpose(1, 2)
        return x if M == 1 else x.unflatten(0, (-1, M))

    q, k, v, gate = (
        heads(layer(x)) for layer, x in ((self.proj_q, s), (self.proj_k, k_in), (self.proj_v, k_in), (self.proj_g, s))
    )
    bias = z.float()
    hidden = (1 - mask[:, None, None].float()) * -self.inf
    if M != 1:
        if bias.shape[0] * M != B:
            raise ValueError(f"z of {bias.shape[0]} sequences for {B} with multiplicity {M}")
        bias, hidden = bias.unsqueeze(1), hidden.unflatten(0, (-1, M))
    scale = self.head_dim**-0.5
    y = attention(q.float(), k.float(), v.float(), [bias, hidden], gate, scale=scale, precision=precision)
    return self.proj_o(y.to(v.dtype).transpose(-2, -3).reshape(B, -1, self.c_s))


def _of_boltz1(
    self: Any,
    s: Tensor,
    z: Tensor,
    mask: Tensor,
    multiplicity: int,
    to_keys: Any,
    model_cache: Any,
    precision: Precision,
) -> Tensor:
    if self.initial_norm:
        s = self.norm_s(s)
    k_in = s
    if to_keys is not None:
        k_in, mask = to_keys(s), to_keys(mask.unsqueeze(-1)).squeeze(-1)
    if model_cache is None:
        z = self.proj_z(z)
    elif "z" in model_cache:
        z = model_cache["z"]
    else:
        z = model_cache["z"] = self.proj_z(z)
    return _with_pair_bias(self, s, z, mask, k_in, multiplicity, precision)


def _of_boltz2(
    self: Any, s: Tensor, z: Tensor, mask: Tensor, k_in: Tensor, multiplicity: int, precision: Precision
) -> Tensor:
    return _with_pair_bias(self, s, self.proj_z(z), mask, k_in, multiplicity, precision)


def _of_protenix(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_bias: Tensor | None,
    use_efficient_implementation: bool,
    precision: Precision,
) -> Tensor:
    mixed = use_efficient_implementation and not (q.dtype == v.dtype == torch.float32)
    if mixed and not torch.is_autocast_enabled("cpu"):
        raise ValueError(f"use_efficient_implementation with v of {v.dtype}")
    biases = [] if attn_bias is None else [attn_bias.float()]
    y = attention(q.float(), k.float(), v.float(), biases, scale=1.0, precision=precision)
    return y.to(q.dtype) if y.dtype == torch.float32 else y


def _of_openfold3(query: Tensor, key: Tensor, value: Tensor, biases: Any, precision: Precision) -> Tensor:
    return attention(query, key, value, biases, scale=1.0, precision=precision).to(query.dtype)


class _Weights:
    """Stands for attention weights, which Headgate does not store. Reading an attribute raises AttributeError."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"fold.use_in('esmfold') computes no attention weights ('{name}'): read them without it")


_WEIGHTS = _Weights()


def _of_esmfold(
    self: Any, x: Tensor, mask: Tensor | None, bias: Tensor | None, precision: Precision
) -> tuple[Tensor, Any]:
    B, L = x.shape[:2]
    q, k, v = self.proj(x).view(B, L, self.num_heads, -1).transpose(1, 2).chunk(3, dim=-1)
    biases = [] if bias is None else [bias.permute(0, 3, 1, 2)]
    if mask is not None:
        shown = mask[:, None, None]
        biases.append(torch.zeros_like(shown, dtype=torch.float32).masked_fill(shown == 0, -math.inf))
    gate = self.g_proj(x).view(B, L, self.num_heads, -1).transpose(1, 2) if self.gated else None
    y = attention(q, k, v, biases, gate, scale=self.rescale_factor, precision=precision)
    return self.o_proj(y.transpose(1, 2).flatten(2)), _WEIGHTS


_LOW_MEMORY = {
    "use_lma": "memory is O(T) in any case",
    "lma_q_chunk_size": "results do not depend on it",
    "lma_kv_chunk_size": "results do not depend on it",
}
_PRECISION = {"use_high_precision": "sums are f32 in any case"}

PACKAGES = {
    "boltz": Package(
        "boltz",
        "2.2.1",
        (
            Replaced(
                "boltz.model.layers.triangular_attention.primitives:Attention.forward",
                _of_boltz,
                {"mask": "mask_bias says it"},
            ),
            Replaced("boltz.model.layers.attention:AttentionPairBias.forward", _of_boltz1),
            Replaced("boltz.model.layers.attentionv2:AttentionPairBias.forward", _of_boltz2),
        ),
    ),
    "openfold3": Package(
        "openfold3",
        "0.5.0",
        (
            Replaced(
                "openfold3.core.model.primitives.attention:Attention.forward",
                _gated,
                {**_LOW_MEMORY, **_PRECISION},
            ),
            # openfold3 calls the function _attention for global attention and for chunks of an MSA.
            # Attention.forward also calls _attention, in calls that Headgate does not support.
            Replaced("openfold3.core.model.primitives.attention:_attention", _of_openfold3, _PRECISION),
        ),
    ),
    "protenix": Package(
        "protenix",
        "2.0.0",
        (
            Replaced("protenix.model.triangular.layers:Attention.forward", _gated),
            Replaced(
                "protenix.model.modules.primitives:_attention",
                _of_protenix,
                {"inplace_safe": "no argument is overwritten"},
            ),
        ),
    ),
    "esmfold": Package(
        "transformers",
        "5.23.0",
        (
            Replaced(
                "transformers.models.esm.modeling_esmfold:EsmFoldAttention.forward",
                _gated,
                {**_LOW_MEMORY, "use_memory_efficient_kernel": "memory is O(T) in any case"},
            ),
            Replaced(
                "transformers.models.esm.modeling_esmfold:EsmFoldSelfAttention.forward",
                _of_esmfold,
                {"indices": "the module does not read it"},
            ),
        ),
    ),
}
"""Maps each argument that use_in accepts to its package."""
