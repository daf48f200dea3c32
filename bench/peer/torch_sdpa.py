# SPDX-License-Identifier: Apache-2.0
"""Runs PyTorch's scaled_dot_product_attention times a sigmoid: its flash kernel for CPUs, and its math backend."""

import math

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from .cases import LAYER_WEIGHTS, NORM_EPS, Case, Refused, Way, rope_angles
from .torch_common import arrays, attention_way, layer_ways, mask_of_lists, tensors_of


class GatedLayer(nn.Module):
    """The layer of headgate.torch.GatedAttention in plain PyTorch: causal, from h (B,T,C) to (B,T,C)."""

    def __init__(self, case: Case):
        super().__init__()
        rows, kv_rows = case.Hq * case.D, case.Hkv * case.D
        self.D, self.grouped = case.D, case.Hq != case.Hkv
        self.q_proj, self.gate_proj = (nn.Linear(case.C, rows, bias=False) for _ in range(2))
        self.k_proj, self.v_proj = (nn.Linear(case.C, kv_rows, bias=False) for _ in range(2))
        self.o_proj = nn.Linear(rows, case.C, bias=False)
        self.q_norm, self.k_norm = (nn.RMSNorm(case.D, eps=NORM_EPS) for _ in range(2))
        angles = torch.from_numpy(rope_angles(case))
        self.register_buffer("cos", angles.cos().float(), persistent=False)  # (T,D/2)
        self.register_buffer("sin", angles.sin().float(), persistent=False)

    def _turned(self, x: Tensor) -> Tensor:
        a, b = x.chunk(2, dim=-1)
        return torch.cat((a * self.cos - b * self.sin, b * self.cos + a * self.sin), dim=-1)

    def forward(self, h: Tensor) -> Tensor:
        q, k, v, z = (
            project(h).unflatten(-1, (-1, self.D)).transpose(1, 2)
            for project in (self.q_proj, self.k_proj, self.v_proj, self.gate_proj)
        )
        q, k = self._turned(self.q_norm(q)), self._turned(self.k_norm(k))
        y = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.grouped) * torch.sigmoid(z)
        return self.o_proj(y.transpose(1, 2).flatten(-2))


class Sdpa:
    backend: SDPBackend

    def __init__(self, threads: int):
        torch.set_num_threads(threads)
        self.version = f"{torch.__version__} ({torch.backends.cpu.get_cpu_capability()})"
        self._chosen = sdpa_kernel(self.backend)
        self._chosen.__enter__()  # never exited, since this process has no other use

    def ways(self, case: Case, inputs: dict) -> dict[str, Way]:
        if case.C:
            return layer_ways(case, inputs, GatedLayer(case), LAYER_WEIGHTS)
        tensors = tensors_of(case, inputs)
        if case.op == "statistics":
            return self._statistics(case, tensors)

        mask = mask_of_lists(tensors["lists"], case.S) if case.is_listed else None

        def gated(q, k, v, z, bias=mask):
            return self._attention(case, q, k, v, bias) * torch.sigmoid(z)

        return {"": attention_way(case, tensors, gated)}

    def _attention(self, case: Case, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
        if bias is not None:
            bias = bias.expand(case.B, -1, -1, -1)
        return scaled_dot_product_attention(q, k, v, bias, is_causal=case.causal, enable_gqa=case.Hq != case.Hkv)

    def _statistics(self, case: Case, tensors: dict[str, Tensor]) -> dict[str, Way]:
        raise Refused("the flash kernel has no weights")


class Flash(Sdpa):
    backend = SDPBackend.FLASH_ATTENTION
    pair = True
    listed = True


class FlashFolded(Flash):
    """Runs the flash kernel with the queries of a key/value head as rows of one head, for a single new token, which
    sees every key. Then each key is read once, not once for every query head."""

    def ways(self, case: Case, inputs: dict) -> dict[str, Way]:
        if case.Hq == case.Hkv or case.T != 1:
            raise Refused("for groups of query heads and one new token")
        return super().ways(case, inputs)

    def _attention(self, case: Case, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
        return scaled_dot_product_attention(q.view(case.B, case.Hkv, -1, case.D), k, v).view(q.shape)


class Math(Sdpa):
    backend = SDPBackend.MATH
    pair = True
    listed = True

    def ways(self, case: Case, inputs: dict) -> dict[str, Way]:
        case.require_memory(9 if case.op.endswith("+backward") else 3)
        if case.is_pair:
            return {**super().ways(case, inputs), "products": attention_way(case, tensors_of(case, inputs), _products)}
        return super().ways(case, inputs)

    def _statistics(self, case: Case, tensors: dict[str, Tensor]) -> dict[str, Way]:
        """Returns Ways that compute statistics from all weights (B,Hq,T,S)."""
        q, k, v, z = (tensors[name] for name in "qkvz")
        hidden = torch.ones(case.T, case.S, dtype=torch.bool).triu(1 + case.S - case.T)

        def statistics(q, k, v, z):
            scores = q @ k.mT / math.sqrt(case.D)
            weights = (scores.masked_fill(hidden, -math.inf) if case.causal else scores).softmax(-1)
            return [
                weights @ v * torch.sigmoid(z),
                weights.amax(-1),
                torch.special.entr(weights).sum(-1),
                weights[..., 0],
                weights.sum(-2),
            ]

        torch._dynamo.reset()
        compiled = torch.compile(statistics, dynamic=False)
        return {
            "eager": Way(lambda: _no_grad(statistics, q, k, v, z), arrays),
            "compiled": Way(lambda: _no_grad(compiled, q, k, v, z), arrays),
        }


def _products(q: Tensor, k: Tensor, v: Tensor, z: Tensor, bias: Tensor) -> Tensor:
    """Computes the formula in the way that models that fold proteins write it."""
    return (q @ k.mT / math.sqrt(q.shape[-1]) + bias).softmax(-1) @ v * torch.sigmoid(z)


def _no_grad(function, *tensors):
    with torch.no_grad():
        return function(*tensors)
