# SPDX-License-Identifier: Apache-2.0
"""Gated attention layer in plain PyTorch. Attention itself is left to subclasses.

headgate.torch.GatedAttention combines this layer with libheadgate's kernels. The file modeling_headgate.py of a
checkpoint combines it with PyTorch's softmax. CMake copies all code after the imports into that file, so this module
imports nothing from headgate.

`config` is any object with the keys of config.json as attributes. Letters: B batch, T queries, Hq query heads, Hkv
key/value heads, D features of a head, C channels.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

GATE_FUNCTIONS = {
    "sigmoid": torch.sigmoid,
    "sigmoid2": lambda z: 2 * torch.sigmoid(z),
    "ns_sigmoid": lambda z: 0.5 + 0.5 * torch.sigmoid(z),
    "silu": F.silu,
    "softplus": lambda z: torch.logaddexp(z, torch.zeros_like(z)),
    "identity": lambda z: z,
}


def logits_of_gate(config, hidden_size: int, heads: int, kv_heads: int, head_dim: int) -> tuple[int, int]:
    """Returns (heads, features) of the gate's logits for one token. Returns (0, 0) without a gate."""
    if config.gate_site == "none":
        return 0, 0
    count = {"g2": kv_heads, "g3": kv_heads, "g5": 1}.get(config.gate_site, heads)
    width = hidden_size if config.gate_site == "g5" else head_dim
    return count, 1 if config.gate_grain == "headwise" else width


def gate_values(config, z: Tensor) -> Tensor:
    """Computes g(z) for the logits z (B,T,heads,features). If all heads share one gate, returns the mean over the
    heads, (B,T,1,features).
    """
    g = GATE_FUNCTIONS[config.gate_fn](z)
    return g.mean(dim=-2, keepdim=True) if config.gate_grain == "head_shared" else g


def apply_gate(config, y: Tensor, z: Tensor) -> Tensor:
    """Applies the gate with logits z to y (B,T,heads,features)."""
    return y + gate_values(config, z) if config.gate_op == "add" else y * gate_values(config, z)


def blocks_of_layout(layout: str, heads: int, kv_heads: int) -> int:
    """Returns the number of blocks in a q_proj that also holds the gate. In each block, the rows of some query heads
    precede the rows of their gates.
    """
    return {"per_query_head": heads, "per_group": kv_heads, "trailing": 1}[layout]


def split_heads(x: Tensor, lead: int, features: int) -> Tensor:
    """Reshapes the dimensions of x after the first `lead` to (heads,features). Infers `heads` from x, since a process
    may hold only some heads of a projection.
    """
    return x.reshape(*x.shape[:lead], math.prod(x.shape[lead:]) // features, features)


class RMSNorm(nn.Module):
    """Computes x / rms(x) over the last dimension in f32 or better. Multiplies the result by weight, or by 1 + weight
    if zero-centred.
    """

    def __init__(self, features: int, eps: float, kind: str):
        super().__init__()
        self.center = 1.0 if kind == "zero_centred" else 0.0
        self.eps = eps
        self.weight = nn.Parameter(torch.full((features,), 1.0 - self.center))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return (wide * (self.center + self.weight.to(wide.dtype))).to(x.dtype)


def rope_frequencies(config, device: torch.device | str) -> Tensor:
    """Returns RoPE's frequencies (R/2) in radians per token, in f64. R is the number of rotated features of a head."""
    half = int(config.partial_rotary_factor * config.head_dim) // 2
    plain = config.rope_theta ** -(torch.arange(half, dtype=torch.float64, device=device) / max(half, 1))
    slow = plain / config.rope_scaling_factor
    if config.rope_scaling_type == "none":
        return plain
    if config.rope_scaling_type == "linear":
        return slow
    low, high = config.rope_low_freq_factor, config.rope_high_freq_factor
    if config.rope_scaling_type == "yarn":
        kept = yarn_weights(config, half, low, high, device)
        return kept * plain + (1 - kept) * slow
    turns = config.rope_original_seq_len * plain / (2 * math.pi)
    kept = ((turns - low) / (high - low)).clamp(0, 1) if high > low else (turns >= high).double()
    return kept * plain + (1 - kept) * slow


def yarn_weights(config, half: int, low: float, high: float, device: torch.device | str) -> Tensor:
    """Returns YaRN's interpolation weights (R/2) in f64. Weight 1 keeps a frequency. Weight 0 divides it by
    rope_scaling_factor.
    """

    def index_of(turns: float) -> float:
        return half * math.log(config.rope_original_seq_len / (turns * 2 * math.pi)) / math.log(config.rope_theta)

    first, last = index_of(high), index_of(low)
    if config.rope_truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, 2 * half - 1)
    if first == last:
        last += 0.001
    return 1 - ((torch.arange(half, dtype=torch.float64, device=device) - first) / (last - first)).clamp(0, 1)


def rope_attention_factor(config) -> float:
    """Returns the factor by which RoPE multiplies the rotated features of q and k. It is 1 except for YaRN."""
    if config.rope_scaling_type != "yarn":
        return 1.0
    return config.rope_attention_factor or 0.1 * math.log(config.rope_scaling_factor) + 1


def apply_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Applies RoPE to x (B,T,H,D) with cos and sin (B|1,T,1,R/2), or to x (B,H,T,D) with cos and sin (B|1,1,T,R/2).
    Rotates feature i with feature i + R/2.
    """
    half = cos.shape[-1]
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    rotated = (first * cos - second * sin, second * cos + first * sin)
    return torch.cat((*(part.to(x.dtype) for part in rotated), rest), dim=-1)


class GateBias(nn.Module):
    """Holds the bias of a gate projection whose matrix is part of q_proj."""

    def __init__(self, rows: int):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(rows))

    def forward(self, z: Tensor) -> Tensor:
        return z + self.bias


class GatedLayer(nn.Module):
    """Parameters of a layer, and its computations before and after attention.

    The steps, in order:

    1. projections of q, gate, k and v
    2. a gate at g4 (q), g3 (k) or g2 (v)
    3. QK-norm
    4. RoPE and attention, which subclasses implement
    5. a gate at g1, or a control
    6. W_o
    7. a gate at g5
    """

    def __init__(self, config):
        super().__init__()
        self.config = config
        C, self.D = config.hidden_size, config.head_dim
        self.Hq, self.Hkv = config.num_attention_heads, config.num_key_value_heads
        self.gate_heads, self.gate_features = logits_of_gate(config, C, self.Hq, self.Hkv, self.D)
        self.fused = config.gate_site != "none" and config.gate_layout != "separate"
        self._make_projections(C)

        def norm() -> RMSNorm:
            return RMSNorm(self.D, config.rms_norm_eps, config.norm_kind)

        if config.qk_norm == "per_head":
            self.q_norm, self.k_norm = norm(), norm()
        if config.attention_output_control == "head_rmsnorm":
            self.head_norm = norm()
        if config.attention_sinks == "learned_sinks":
            self.sinks = nn.Parameter(torch.zeros(self.Hq))

    def _make_projections(self, C: int) -> None:
        config, D, rows = self.config, self.D, self.gate_heads * self.gate_features
        bias = config.attention_qkv_bias == "learned"
        self.q_proj = nn.Linear(C, self.Hq * D + (rows if self.fused else 0), bias=bias)
        if rows > 0 and config.gate_source == "parameter":
            self.gate = nn.Parameter(torch.zeros(self.gate_heads, self.gate_features))
        elif rows > 0 and not self.fused:
            self.gate_proj = nn.Linear(C, rows, bias=config.gate_bias == "bias")
        elif rows > 0 and config.gate_bias == "bias":
            self.gate_proj = GateBias(rows)
        self.k_proj = nn.Linear(C, self.Hkv * D, bias=bias)
        self.v_proj = nn.Linear(C, self.Hkv * D, bias=bias)
        self.o_proj = nn.Linear(self.Hq * D, C, bias=config.attention_out_bias)

    def block_rows(self) -> tuple[int, int, int]:
        """Returns the number of blocks of a q_proj that also holds the gate. Also returns the number of rows of q and
        of the gate in each block.
        """
        blocks = blocks_of_layout(self.config.gate_layout, self.Hq, self.Hkv)
        return blocks, self.Hq * self.D // blocks, self.gate_heads * self.gate_features // blocks

    def queries_and_logits(self, h: Tensor) -> tuple[Tensor, Tensor | None]:
        """Returns q (B,T,Hq,D) and the gate's logits (B,T,heads,features). Without a gate, the logits are None."""
        q, z = self.q_proj(h), None
        if self.fused:
            _, *rows = self.block_rows()
            q, z = q.unflatten(-1, (-1, sum(rows))).split(rows, dim=-1)
            if self.config.gate_bias == "bias":
                z = self.gate_proj(z.flatten(-2))
        elif self.config.gate_site != "none" and self.config.gate_source == "parameter":
            z = self.gate.to(q.dtype).expand(*h.shape[:-1], -1, -1)
        elif self.config.gate_site != "none":
            z = self.gate_proj(h)
        if z is not None:
            z = split_heads(z, h.dim() - 1, self.gate_features)
        return split_heads(q, h.dim() - 1, self.D), z

    def apply_gate_at(self, site: str, y: Tensor, z: Tensor | None) -> Tensor:
        """Applies the gate to y (B,T,heads,features) if `site` is the site of the layer's gate. Otherwise returns y
        unchanged.
        """
        return apply_gate(self.config, y, z) if self.config.gate_site == site else y

    def project(self, h: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Returns q (B,T,Hq,D), k and v (B,T,Hkv,D), and the gate's logits. RoPE is not yet applied."""
        q, z = self.queries_and_logits(h)
        k, v = (split_heads(x, h.dim() - 1, self.D) for x in (self.k_proj(h), self.v_proj(h)))
        q, k, v = self.apply_gate_at("g4", q, z), self.apply_gate_at("g3", k, z), self.apply_gate_at("g2", v, z)
        if self.config.qk_norm == "per_head":
            q, k = self.norm_heads("q_norm", "q_proj", q), self.norm_heads("k_norm", "k_proj", k)
        return q, k, v, z

    def norm_heads(self, norm: str, projection: str, x: Tensor) -> Tensor:
        """Applies the RMSNorm named `norm` to heads x (B,T,heads,D). `projection` names the module that makes them."""
        return getattr(self, norm)(x)

    def apply_output_control(self, y: Tensor) -> Tensor:
        """Applies attention_output_control to the output of attention (B,T,Hq,D): an RMSNorm, SiLU or nothing."""
        if self.config.attention_output_control == "head_rmsnorm":
            return self.norm_heads("head_norm", "q_proj", y)
        return F.silu(y) if self.config.attention_output_control == "output_silu" else y

    def output(self, y: Tensor, z: Tensor | None) -> Tensor:
        """Returns the layer's output (B,T,C). y (B,T,Hq,D) is the output of attention."""
        out = self.o_proj(y.flatten(-2))
        return self.apply_gate_at("g5", out.unsqueeze(-2), z).squeeze(-2)
