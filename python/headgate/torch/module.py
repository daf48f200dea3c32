# SPDX-License-Identifier: Apache-2.0
"""Gated attention layer of docs/reference/training.md as a module. Supports every gate site, grain, function and
control, and a cache.

The arguments are named like the keys of config.json, and the parameters like the tensors of a checkpoint. Letters: B
batch, T queries, S keys, Hq query heads, Hkv key/value heads, D features of a head, C channels.
"""

import inspect
import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
import torch.distributed as dist
from torch import Tensor, nn

import headgate

from .attention import gated_attention
from .calls import refuse_learned, refuse_transforms
from .checks import (
    is_whole,
    require_bool,
    require_input,
    require_number,
    require_sequences,
    require_tensor,
    require_tensors,
    require_whole,
    require_word,
    shape_of,
)
from .errors import in_words_of
from .layer import GatedLayer, RMSNorm, apply_rope, rope_attention_factor, rope_frequencies
from .layouts import FUSED, Fused, Heads
from .precision import Precision
from .ring import ring_attention
from .sharding import shard_positions
from .tensor_parallel import summed_over_heads
from .variant import KEYS, Bias, Control, GateVariant, Grain, Operation, Sinks, Site, Source

if TYPE_CHECKING:
    from headgate._arguments import GateFunction


class AttentionCache:
    """Caches the keys and values of one layer, for inference without gradients.

    Holds `length` tokens of each sequence in the batch. Doubles its capacity when it is full. Attention reads the keys
    and values in place, without a copy.
    """

    def __init__(self) -> None:
        self.length = 0
        self._held: list[Tensor] = []  # k and v, (B,capacity,Hkv,D)

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Appends k and v (B,T,Hkv,D), and returns views of all keys and values, (B,length,Hkv,D)."""
        whole = self.extended(k, v)
        self.length += k.shape[1]
        return whole

    def extended(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Like append, but does not increase `length`. The layer increases `length` after a successful call. After a
        failed call, the next call overwrites k and v.
        """
        if torch.is_grad_enabled() and (k.requires_grad or v.requires_grad):
            raise ValueError("cache: there are no gradients with a cache: call the layer under torch.no_grad()")
        if self.length == 0 and not all(_takes_rows(held, new) for held, new in zip(self._held, (k, v))):
            self._held = []
        for held, new in zip(self._held, (k, v)):
            if held.shape[0] != new.shape[0]:
                raise ValueError(f"cache: holds {held.shape[0]} sequences but the layer was given {new.shape[0]}")
            if held.dtype != new.dtype:
                raise ValueError(f"cache: holds {held.dtype} but the layer was given {new.dtype}")
            if held.shape[2:] != new.shape[2:]:
                (Hkv, D), (heads, features) = held.shape[2:], new.shape[2:]
                raise ValueError(f"cache: holds {Hkv} heads of {D} but the layer was given {heads} of {features}")
        total = self.length + k.shape[1]
        capacity = self._held[0].shape[1] if self._held else 0
        if capacity < total:
            self._move(k, v, max(total, 2 * capacity))
        elif any(held.is_inference() for held in self._held) and not torch.is_inference_mode_enabled():
            # PyTorch refuses writes to tensors that were made in inference mode, except in that mode.
            self._move(k, v, capacity)
        for held, new in zip(self._held, (k, v)):
            held[:, self.length : total] = new
        return self._held[0][:, :total], self._held[1][:, :total]

    def truncate(self, length: int) -> None:
        """Drops all tokens except the first `length`."""
        if not is_whole(length) or not 0 <= length <= self.length:
            raise ValueError(f"cache: cannot be cut to {length!r} tokens, it holds {self.length}")
        self.length = length

    def _move(self, k: Tensor, v: Tensor, capacity: int) -> None:
        """Copies the cache to new tensors (B,capacity,Hkv,D) like k and v."""
        moved = [x.new_empty(x.shape[0], capacity, *x.shape[2:]) for x in (k, v)]
        for new, old in zip(moved, self._held):
            new[:, : self.length] = old[:, : self.length]
        self._held = moved


def _takes_rows(held: Tensor, new: Tensor) -> bool:
    """Returns whether `new` (B,T,Hkv,D) and `held` (B,capacity,Hkv,D) have the same B, Hkv, D and dtype. Ignores the
    capacity.
    """
    return (held.shape[0], held.shape[2:], held.dtype) == (new.shape[0], new.shape[2:], new.dtype)


def _refuse_beside(what: str, others: dict[str, Any]) -> None:
    for name, value in others.items():
        if value is not None:
            raise ValueError(f"GatedAttention: {name} cannot be given with {what}")


# Maps argument names of gated_attention to the layer's names.
_ARGUMENTS = {"cu_seqlens_q": "cu_seqlens", "cu_seqlens_k": "cu_seqlens"}

GateLayout = Literal["separate"] | Fused
QkvBias = Literal["none", "learned"]
QkNorm = Literal["per_head", "none"]
NormKind = Literal["plain", "zero_centred"]
RopeScaling = Literal["none", "linear", "llama3", "yarn"]
_CHOICES = {
    "gate_layout": ("separate", *FUSED),
    "attention_qkv_bias": get_args(QkvBias),
    "qk_norm": get_args(QkNorm),
    "norm_kind": get_args(NormKind),
    "rope_scaling_type": get_args(RopeScaling),
    "precision": get_args(Precision),
}


# Minimum of each numeric argument, and whether the minimum itself is excluded.
_NUMBERS = {
    "gate_bias_init": (-math.inf, False),
    "partial_rotary_factor": (-math.inf, False),
    "gate_init_std": (0, False),
    "initializer_range": (0, False),
    "attention_window": (0, False),
    "rms_norm_eps": (0, False),
    "rope_theta": (0, True),
    "rope_scaling_factor": (0, True),
    "rope_low_freq_factor": (0, True),
    "rope_high_freq_factor": (0, True),
    "rope_original_seq_len": (0, True),
    "rope_attention_factor": (0, False),
}


def _require_numbers(keys: dict[str, Any]) -> None:
    for name in ("attention_window", "rope_original_seq_len"):
        require_whole(name, keys[name])
    for name, (least, excluded) in _NUMBERS.items():
        require_number(name, keys[name], least, excluded)
    if keys["rope_scaling_type"] == "yarn" and keys["rope_theta"] <= 1:
        raise ValueError(f"rope_theta: is {keys['rope_theta']!r} but must be above 1 with yarn")


def _require_fusable(variant: GateVariant, keys: dict[str, Any]) -> None:
    """Raises ValueError unless q_proj can hold the gate's rows.

    q_proj can hold them if the layer has no biases, and the gate is at g1 or g4 and depends on the input.
    """
    fits = variant.gate_site in ("g1", "g4") and variant.gate_source == "input"
    if not fits or keys["attention_qkv_bias"] == "learned" or variant.gate_bias != "none":
        raise ValueError(
            f"gate_layout: {keys['gate_layout']} is for gates of g1 and g4 from the layer's input, without biases, not "
            f"for {variant.name}"
        )


class GatedAttention(GatedLayer):
    """Gated attention layer: maps h (B,T,C), the normalized layer input, to (B,T,C). Causal by default.

    The steps, in order:

    1. projections of q, gate, k and v
    2. a gate at g2 (v), g3 (k) or g4 (q)
    3. QK-norm and RoPE
    4. attention, with a gate at g1 in the kernel
    5. a control of attention's output
    6. W_o
    7. a gate at g5

    A layer has at most one gate, and none if it has a control. The arguments are the keys of config.json.

    Args:
        hidden_size: C, the features of a token.
        num_attention_heads: Hq, the heads of queries.
        num_key_value_heads: Hkv, the heads of keys and values. It must divide Hq. None means Hq.
        head_dim: D, the features of a head. None means hidden_size / num_attention_heads.
        gate_site: where the gate acts: on attention's output (g1), v (g2), k (g3), q (g4) or the layer's output (g5).
        gate_grain: one gate per feature ("elementwise"), per head ("headwise"), or per feature and shared by all heads
            ("head_shared").
        gate_source: "input" projects h to the gate's logits. "parameter" makes the logits parameters.
        gate_fn: the gate's function g.
        gate_op: whether g is multiplied or added.
        gate_bias: "bias" gives the gate's projection a bias.
        gate_bias_init: the initial value of that bias.
        gate_init_std: the standard deviation of the gate's initial matrix.
        gate_layout: "separate" puts the gate's rows into gate_proj. Other layouts put them into q_proj (layouts.py).
        attention_output_control: applies an RMSNorm of each head, or SiLU, to attention's output in a layer without a
            gate.
        attention_sinks: adds a learned logit for each head, or a logit of 0, to the softmax.
        attention_qkv_bias: "learned" gives q_proj, k_proj and v_proj biases.
        attention_out_bias: whether o_proj has a bias.
        attention_window: number of keys that a query sees, including its own key. 0 means all keys.
        qk_norm: "per_head" applies an RMSNorm to q and k of each head.
        norm_kind: whether norms multiply by their weight or by 1 + weight.
        rms_norm_eps: added to the mean square in norms.
        rope_theta: the base of RoPE's frequencies.
        partial_rotary_factor: the share of a head's features that RoPE rotates. 0 means no RoPE.
        rope_scaling_type: how RoPE's frequencies are scaled.
        rope_scaling_factor: the divisor of scaled frequencies.
        rope_low_freq_factor: llama3 and yarn scale frequencies in full that have fewer turns than this over the
            original length.
        rope_high_freq_factor: llama3 and yarn do not scale frequencies that have more turns than this.
        rope_original_seq_len: the length that the model was trained with. Used by llama3 and yarn.
        rope_truncate: whether yarn rounds the range of scaled frequencies to whole indices.
        rope_attention_factor: yarn's factor of rotated features. 0 means 0.1 ln(rope_scaling_factor) + 1.
        initializer_range: the standard deviation of the other initial matrices.
        precision: gated_attention's precision. "native16" is for layers in bfloat16, or under autocast to bfloat16.
    """

    @in_words_of("GatedAttention", {})
    def __init__(
        self,
        hidden_size: int,
        num_attention_heads: int,
        num_key_value_heads: int | None = None,
        head_dim: int | None = None,
        *,
        gate_site: Site = "g1",
        gate_grain: Grain = "elementwise",
        gate_source: Source = "input",
        gate_fn: "GateFunction" = "sigmoid",
        gate_op: Operation = "mul",
        gate_bias: Bias = "none",
        gate_bias_init: float = 0.0,
        gate_init_std: float = 0.02,
        gate_layout: GateLayout = "separate",
        attention_output_control: Control = "none",
        attention_sinks: Sinks = "none",
        attention_qkv_bias: QkvBias = "none",
        attention_out_bias: bool = False,
        attention_window: int = 0,
        qk_norm: QkNorm = "per_head",
        norm_kind: NormKind = "plain",
        rms_norm_eps: float = 1e-6,
        rope_theta: float = 10000.0,
        partial_rotary_factor: float = 1.0,
        rope_scaling_type: RopeScaling = "none",
        rope_scaling_factor: float = 1.0,
        rope_low_freq_factor: float = 1.0,
        rope_high_freq_factor: float = 4.0,
        rope_original_seq_len: int = 8192,
        rope_truncate: bool = True,
        rope_attention_factor: float = 0.0,
        initializer_range: float = 0.02,
        precision: Precision = "exact",
    ):
        keys = {name: value for name, value in locals().items() if name in _PARAMETERS}
        refuse_learned("GatedAttention", keys)
        for name, words in _CHOICES.items():
            require_word(name, keys[name], words)
        for name in ("attention_out_bias", "rope_truncate"):
            require_bool("GatedAttention", name, keys[name])
        _require_numbers(keys)
        variant = GateVariant(**{key: keys[key] for key in KEYS})
        C, Hq = hidden_size, num_attention_heads
        Hkv = Hq if num_key_value_heads is None else num_key_value_heads
        for name, count in (("hidden_size", C), ("num_attention_heads", Hq), ("num_key_value_heads", Hkv)):
            require_whole(name, count)
            require_number(name, count, 1)
        if Hq % Hkv != 0:
            raise ValueError(f"num_attention_heads: {Hq} is not a multiple of num_key_value_heads, {Hkv}")
        if head_dim is None and C % Hq != 0:
            raise ValueError(f"hidden_size: {C} is not a multiple of num_attention_heads, {Hq}: give head_dim")
        D = C // Hq if head_dim is None else head_dim
        require_whole("head_dim", D)
        require_number("head_dim", D, 1)
        if not 0 <= partial_rotary_factor <= 1:
            raise ValueError(f"partial_rotary_factor: is {partial_rotary_factor!r} but must be in [0, 1]")
        if variant.has_gate and gate_layout != "separate":
            _require_fusable(variant, keys)
        super().__init__(SimpleNamespace(**{**keys, "num_key_value_heads": Hkv, "head_dim": D}))
        self.variant, self.keys = variant, keys
        self._frequencies = rope_frequencies(self.config, "cpu")  # not a buffer, which .bfloat16() would round
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initializes the parameters.

        - Matrices are normal.
        - Norms have unit scale.
        - The bias of the gate is gate_bias_init.
        - Other biases, sinks, and gates that do not depend on the input are 0.
        """
        for name, module in self.named_children():
            if isinstance(module, RMSNorm):
                nn.init.constant_(module.weight, 1.0 - module.center)
                continue
            is_gate = name == "gate_proj"
            nn.init.normal_(module.weight, std=self.keys["gate_init_std" if is_gate else "initializer_range"])
            if module.bias is not None:
                nn.init.constant_(module.bias, self.keys["gate_bias_init"] if is_gate else 0.0)
        if self.fused:
            with torch.no_grad():
                blocks, *rows = self.block_rows()
                _, gate = self.q_proj.weight.unflatten(0, (blocks, -1)).split(rows, dim=1)
                gate.normal_(std=self.keys["gate_init_std"])
        for name in ("gate", "sinks"):
            if getattr(self, name, None) is not None:
                nn.init.zeros_(getattr(self, name))

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "GatedAttention":
        """Creates a layer from a config.json that Headgate's programs wrote.

        Uses the keys that are arguments of this class. Without gate_site, the layer has no gate. rope_theta may be in
        rope_parameters.
        """
        rope = config.get("rope_parameters") or {}
        if rope.get("rope_type", "default") != "default":
            raise ValueError(f"rope_parameters: rope_type '{rope['rope_type']}' is not known, only 'default'")
        keys = {name: rope[name] for name in ("rope_theta", "partial_rotary_factor") if name in rope}
        keys |= {name: config[name] for name in _PARAMETERS if name in config}
        return cls(**{"gate_site": "none", **keys})

    @property
    def heads(self) -> Heads:
        """Sizes that determine how many rows q, k, v and the gate have."""
        return Heads(self.Hq, self.Hkv, self.D, self.gate_features)

    def extra_repr(self) -> str:
        return f"{self.variant.name}, hidden_size={self.keys['hidden_size']}, heads={self.Hq}/{self.Hkv}x{self.D}"

    def _sinks(self, heads: int, device: torch.device) -> Tensor | None:
        if self.variant.attention_sinks == "learned_sinks":
            return self.sinks.to(torch.promote_types(self.sinks.dtype, torch.float32))
        if self.variant.attention_sinks == "off_by_one":
            return torch.zeros(heads, dtype=torch.float32, device=device)
        return None

    @in_words_of("GatedAttention", _ARGUMENTS)
    def forward(
        self,
        h: Tensor,
        *,
        cache: AttentionCache | None = None,
        positions: Tensor | None = None,
        key_lengths: Tensor | None = None,
        mask: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        causality: Literal["none", "causal"] = "causal",
        ring: "dist.ProcessGroup | None" = None,
    ) -> Tensor:
        """Returns the layer's output (B,T,C).

        `cache` holds the keys and values of earlier tokens. `positions` (B|1,T) are the positions for RoPE; the default
        is each token's index in its sequence. `key_lengths` (B) gives the number of keys of each sequence before its
        padding, which is hidden. `mask` (B|1,Hq|1,T|1,S) hides keys where it is false. `cu_seqlens` (N+1) makes h
        (1,T,C) a packed batch. h may also be a jagged nested tensor (N,T*,C). `causality` "none" lets every token see
        later tokens, as in an encoder.

        `ring` is a process group for sharded sequences. h is then this rank's shard, shard_sequence(…, 1, group=ring).
        The layer uses ring_attention, and key_lengths counts keys of the whole sequences. The gradients of parameters
        include only this rank's tokens. The caller must sum them over the ranks.
        """
        others = {"cache": cache, "mask": mask, "cu_seqlens": cu_seqlens}
        require_tensor("GatedAttention", "h", h, nested=True)
        if h.is_nested:
            others |= {"positions": positions, "key_lengths": key_lengths, "ring": ring}
            return self._forward_nested(h, others, causality)
        self._check(h, cache, positions, cu_seqlens)
        if ring is not None:
            _refuse_beside("a ring", others)
            positions = shard_positions(h.shape[1], group=ring).unsqueeze(0) if positions is None else positions
        q, k, v, z = self._inputs(h, cache, positions, cu_seqlens)
        alone = {"mask": mask, "cu_seqlens_q": cu_seqlens, "cu_seqlens_k": cu_seqlens}
        rules = {"key_lengths": key_lengths, **(alone if ring is None else {"group": ring})}
        out = self.output(self._attend(q, k, v, z, causality, rules), z)
        if cache is not None:
            cache.length = k.shape[1]
        return out

    @torch.no_grad()
    @in_words_of("GatedAttention", _ARGUMENTS)
    def statistics(
        self,
        h: Tensor,
        outputs: Sequence[str] = ("mean_first", "mean_entropy"),
        *,
        positions: Tensor | None = None,
        key_lengths: Tensor | None = None,
        mask: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        causality: Literal["none", "causal"] = "causal",
        **selection: Any,
    ) -> headgate.AttentionStatistics:
        """Returns attention statistics of the layer, without storing the T×S weights. Has no gradients.

        The arguments are those of forward(). `outputs` names fields of headgate.AttentionStatistics. Each is a tensor
        with one number per query (B,Hq,T), or a mean over the queries (B,Hq). `selection` passes the arguments keys,
        queries, window and top_keys to headgate.attention_statistics.
        """
        require_tensor("GatedAttention", "h", h, nested=True)
        if h.is_nested:
            raise ValueError("GatedAttention: statistics of a nested h are those of its values (1,T,C) with cu_seqlens")
        self._check(h, None, positions, cu_seqlens)
        q, k, v, z = self._inputs(h, None, positions, cu_seqlens)
        rules = {
            "key_lengths": key_lengths,
            "mask": mask,
            "cu_seqlens_q": cu_seqlens,
            "cu_seqlens_k": cu_seqlens,
            **self._rules(causality, q),
        }
        _, lse = gated_attention(q, k, v, layout="bthd", return_lse=True, **rules)
        if self.variant.gate_site == "g1":
            rules |= self.variant.kernel_arguments(z)
        given = {name: value for name, value in rules.items() if value is not None}
        return headgate.attention_statistics(lse, q, k, layout="bthd", outputs=list(outputs), **given, **selection)

    def _check(
        self, h: Tensor, cache: AttentionCache | None, positions: Tensor | None, cu_seqlens: Tensor | None
    ) -> None:
        """Checks the arguments that the layer itself reads. The attention function checks the other arguments."""
        require_tensors("GatedAttention", {"h": h}, {"positions": positions, "cu_seqlens": cu_seqlens})
        require_input("GatedAttention", h, self.keys["hidden_size"])
        refuse_transforms("GatedAttention", {"h": h}, differentiable=("h",))
        if cache is not None and not isinstance(cache, AttentionCache):
            raise TypeError(f"GatedAttention: cache is a {type(cache).__name__} but must be an AttentionCache")
        B, T = h.shape[:2]
        if positions is not None and tuple(positions.shape) not in ((T,), (1, T), (B, T)):
            raise ValueError(
                f"GatedAttention: positions has shape {shape_of(positions)} but must be (1,{T}) or ({B},{T})"
            )
        if cu_seqlens is not None:
            require_sequences("GatedAttention", h, cu_seqlens)
            if cache is not None:
                raise ValueError("GatedAttention: cu_seqlens cannot be given with a cache")

    def norm_heads(self, norm: str, projection: str, x: Tensor) -> Tensor:
        module = getattr(self, norm)
        matrix = getattr(getattr(self, projection), "weight", None)
        weight = module.weight if matrix is None else summed_over_heads(module.weight, matrix)
        return module(x) if weight is module.weight else torch.func.functional_call(module, {"weight": weight}, (x,))

    def _inputs(
        self, h: Tensor, cache: AttentionCache | None, positions: Tensor | None, cu_seqlens: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Returns the inputs of attention: q (B,T,Hq,D), k and v (B,S,Hkv,D), and the gate's logits.

        With a cache, k and v include the cached keys and values, which come first.
        """
        q, k, v, z = self.project(h)
        if q.shape[2] != self.Hq and self.variant.gate_grain == "head_shared":
            raise ValueError(f"GatedAttention: this process has {q.shape[2]} of {self.Hq} heads, which share a gate")
        if q.shape[2] * self.Hkv != k.shape[2] * self.Hq:
            raise ValueError(
                f"GatedAttention: this process has {q.shape[2]} of {self.Hq} query heads but {k.shape[2]} of {self.Hkv} "
                "key/value heads: divide q_proj, k_proj and v_proj alike, by a number that divides both"
            )
        cos, sin = self._angles(h, cache, positions, cu_seqlens)
        q, k = apply_rope(q, cos, sin), apply_rope(k, cos, sin)
        if cache is not None:
            k, v = cache.extended(k, v)
        return q, k, v, z

    def _forward_nested(self, h: Tensor, others: dict[str, Any], causality: str) -> Tensor:
        _refuse_beside("a nested h", others)
        if h.layout != torch.jagged or h.dim() != 3 or h.lengths() is not None:
            raise ValueError("GatedAttention: a nested h must be jagged, (N,T*,C), without holes")
        out = self(h.values().unsqueeze(0), cu_seqlens=h.offsets(), causality=causality)
        return torch.nested.nested_tensor_from_jagged(out.squeeze(0), h.offsets())

    def _rules(self, causality: str, q: Tensor) -> dict[str, Any]:
        """Returns this layer's arguments of gated_attention: causality, the window, and a sink for each head of q
        (B,T,Hq,D).
        """
        window = self.keys["attention_window"]
        return {
            "sinks": self._sinks(q.shape[2], q.device),
            "causality": causality,
            "window_left": window - 1 if window > 0 else -1,
        }

    def _attend(
        self, q: Tensor, k: Tensor, v: Tensor, z: Tensor | None, causality: str, rules: dict[str, Any]
    ) -> Tensor:
        """Computes attention, a gate at g1, and the control. Returns (B,T,Hq,D)."""
        gate = self.variant.kernel_arguments(z) if self.variant.gate_site == "g1" else {}
        attention = ring_attention if "group" in rules else gated_attention
        if self.keys["precision"] != "exact":
            rules = {**rules, "precision": self.keys["precision"]}
        return self.apply_output_control(
            attention(q, k, v, **gate, layout="bthd", **self._rules(causality, q), **rules)
        )

    def _angles(
        self, h: Tensor, cache: AttentionCache | None, positions: Tensor | None, cu_seqlens: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Returns cos and sin (B|1,T,1,R/2) of RoPE's angles."""
        if positions is None:
            first = 0 if cache is None else cache.length
            positions = torch.arange(first, first + h.shape[1], device=h.device).unsqueeze(0)
            if cu_seqlens is not None:
                # A token after the last sequence gets the sequence index N. The attention function rejects it later.
                sequence = torch.searchsorted(cu_seqlens[1:].contiguous(), positions[0], right=True)
                positions = positions - cu_seqlens[sequence]
        angles = positions[..., None, None].double() * self._frequencies.to(h.device)
        dtype = torch.promote_types(h.dtype, torch.float32)
        factor = rope_attention_factor(self.config)
        return (factor * angles.cos()).to(dtype), (factor * angles.sin()).to(dtype)


_PARAMETERS = tuple(name for name in inspect.signature(GatedAttention.__init__).parameters if name != "self")
