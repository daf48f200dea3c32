# SPDX-License-Identifier: Apache-2.0
"""Small modules with the signatures of boltz 2.2.1, openfold3 0.5.0 and protenix 2.0.0, for tests without them."""

import math
import types

import torch
from torch import nn


def attend(q, k, v, biases):
    scores = q @ k.mT
    for bias in biases:
        scores = scores + bias
    return scores.softmax(-1) @ v


class Parts(nn.Module):
    """The parts that the attention of AlphaFold has in every package."""

    def __init__(self, features=12, heads=3, gating=True):
        super().__init__()
        self.no_heads = heads
        self.linear_q, self.linear_k, self.linear_v, self.linear_o = (nn.Linear(features, features) for _ in range(4))
        self.linear_g = nn.Linear(features, features) if gating else None
        self.sigmoid = nn.Sigmoid()

    def heads(self, x):
        return x.unflatten(-1, (self.no_heads, -1)).transpose(-2, -3)

    def _prep_qkv(self, q_x, kv_x):
        q, k, v = (self.heads(x) for x in (self.linear_q(q_x), self.linear_k(kv_x), self.linear_v(kv_x)))
        return q / math.sqrt(q.shape[-1]), k, v

    def plain(self, q_x, kv_x, biases):
        y = attend(*self._prep_qkv(q_x, kv_x), biases)
        if self.linear_g is not None:
            y = y * self.sigmoid(self.heads(self.linear_g(q_x)))
        return self.linear_o(y.transpose(-2, -3).flatten(-2))


class BoltzAttention(Parts):
    def forward(self, q_x, kv_x, tri_bias, mask_bias, mask, use_kernels=False):
        return self.plain(q_x, kv_x, [mask_bias, tri_bias])


class OpenFold3Attention(Parts):
    def forward(
        self,
        q_x,
        kv_x,
        biases=None,
        use_deepspeed_evo_attention=False,
        use_cueq_triangle_kernels=False,
        use_triton_triangle_kernels=False,
        use_lma=False,
        lma_q_chunk_size=1024,
        lma_kv_chunk_size=4096,
        use_high_precision=False,
    ):
        return self.plain(q_x, kv_x, biases or [])


class ProtenixAttention(Parts):
    def forward(self, q_x, kv_x, biases=None, triangle_attention="torch"):
        return self.plain(q_x, kv_x, biases or [])


class PairBias(nn.Module):
    """The parts that both versions of Boltz's attention with a pair bias have."""

    def __init__(self, c_s=12, c_z=5, num_heads=3):
        super().__init__()
        self.c_s, self.num_heads, self.head_dim, self.inf = c_s, num_heads, c_s // num_heads, 1e6
        self.initial_norm, self.norm_s = True, nn.LayerNorm(c_s)
        self.proj_q, self.proj_k, self.proj_v, self.proj_g, self.proj_o = (nn.Linear(c_s, c_s) for _ in range(5))
        self.linear_z = nn.Linear(c_z, num_heads)

    def proj_z(self, z):
        return self.linear_z(z).movedim(-1, 1)

    def plain(self, s, bias, mask, k_in, multiplicity):
        q, k, v = (
            x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2).float()
            for x in (self.proj_q(s), self.proj_k(k_in), self.proj_v(k_in))
        )
        bias = bias.repeat_interleave(multiplicity, 0).float()
        y = attend(q / self.head_dim**0.5, k, v, [bias, (1 - mask[:, None, None].float()) * -self.inf])
        return self.proj_o(self.proj_g(s).sigmoid() * y.transpose(1, 2).flatten(2).to(s.dtype))


class Boltz1PairBias(PairBias):
    def forward(self, s, z, mask, multiplicity=1, to_keys=None, model_cache=None):
        s = self.norm_s(s)
        k_in = s
        if to_keys is not None:
            k_in, mask = to_keys(s), to_keys(mask.unsqueeze(-1)).squeeze(-1)
        cache = {} if model_cache is None else model_cache
        if "z" not in cache:
            cache["z"] = self.proj_z(z)
        return self.plain(s, cache["z"], mask, k_in, multiplicity)


class Boltz2PairBias(PairBias):
    def forward(self, s, z, mask, k_in, multiplicity=1):
        return self.plain(s, self.proj_z(z), mask, k_in, multiplicity)


def openfold3_attention(query, key, value, biases, use_high_precision=False):
    return attend(query, key, value, biases)


def _attention(q, k, v, attn_bias=None, use_efficient_implementation=True, inplace_safe=False):
    return attend(q.float(), k.float(), v.float(), [] if attn_bias is None else [attn_bias.float()]).to(q.dtype)


MODULES = {
    "boltz.model.layers.triangular_attention.primitives": {"Attention": BoltzAttention},
    "boltz.model.layers.attention": {"AttentionPairBias": Boltz1PairBias},
    "boltz.model.layers.attentionv2": {"AttentionPairBias": Boltz2PairBias},
    "openfold3.core.model.primitives.attention": {
        "Attention": OpenFold3Attention,
        "_attention": openfold3_attention,
    },
    "protenix.model.triangular.layers": {"Attention": ProtenixAttention},
    "protenix.model.modules.primitives": {"_attention": _attention},
    "protenix.model.modules.local": {"held": _attention},  # as a module that has imported it
}


def install(monkeypatch):
    """Makes the modules importable until the end of a test. Returns them by name."""
    import sys

    made = {}
    for path, contents in MODULES.items():
        parts = path.split(".")
        for end in range(1, len(parts) + 1):
            name = ".".join(parts[:end])
            made.setdefault(name, types.ModuleType(name))
        vars(made[path]).update(contents)
    for name, module in made.items():
        monkeypatch.setitem(sys.modules, name, module)
    return made


def random(*shape):
    return torch.randn(shape).requires_grad_()
