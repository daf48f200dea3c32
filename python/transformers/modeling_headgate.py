# SPDX-License-Identifier: Apache-2.0
"""Decoders of model_type "headgate" in PyTorch, for transformers:

    AutoModelForCausalLM.from_pretrained(DIRECTORY, trust_remote_code=True)

A pre-norm transformer as Llama and Qwen3 are, with a gate at one of five places of its attention, or a sink or another
control in place of one. `headgate` writes this file beside config.json; the checkpoint has all of its own code.
Letters: B batch, T queries, S keys, Hq and Hkv heads of queries and of keys, D features of a head, C channels.
"""

import math

import torch
from torch import nn
from torch.nn import functional as F
from transformers import DynamicCache, GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast

# What a key of config.json means where it is missing.
DEFAULTS = {
    "norm_kind": "plain",  # or zero_centred
    "norm_placement": "pre",  # or sandwich
    "qk_norm": "per_head",  # or none
    "partial_rotary_factor": 1.0,
    "gate_site": "none",  # or g1 (attention output), g2 (v), g3 (k), g4 (q), g5 (output of W_o)
    "gate_grain": "elementwise",  # or headwise, head_shared
    "gate_source": "input",  # or parameter
    "gate_fn": "sigmoid",
    "gate_op": "mul",  # or add
    "gate_bias": "none",  # or bias
    "gate_layout": "separate",  # or per_query_head, per_group, trailing: the gate's rows stand in q_proj
    "attention_output_control": "none",  # or head_rmsnorm, output_silu
    "attention_sinks": "none",  # or learned_sinks, off_by_one
    "attention_qkv_bias": "none",  # or learned
    "attention_window": 0,  # keys that a query sees, itself the last; 0: all before it
    "rope_scaling_type": "none",  # or linear, llama3
    "rope_scaling_factor": 1.0,
    "rope_low_freq_factor": 1.0,
    "rope_high_freq_factor": 4.0,
    "rope_original_seq_len": 8192,
}

GATE_FUNCTIONS = {
    "sigmoid": torch.sigmoid,
    "sigmoid2": lambda z: 2 * torch.sigmoid(z),
    "ns_sigmoid": lambda z: 0.5 + 0.5 * torch.sigmoid(z),
    "silu": F.silu,
    "softplus": lambda z: torch.logaddexp(z, torch.zeros_like(z)),
    "identity": lambda z: z,
}


class HeadgateConfig(PretrainedConfig):
    """Every key of config.json is an attribute."""

    model_type = "headgate"
    keys_to_ignore_at_inference = ["past_key_values"]

    def __init__(self, **keys):
        super().__init__(**{**DEFAULTS, **keys})


class RMSNorm(nn.Module):
    def __init__(self, config, features):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(features))
        self.eps = config.rms_norm_eps
        self.center = 1.0 if config.norm_kind == "zero_centred" else 0.0

    def forward(self, x):
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return (wide * (self.center + self.weight.float())).to(x.dtype)


def rope_frequencies(config, device):
    """Radians a token, (R/2) in f64, of the R features of a head that turn."""
    half = int(config.partial_rotary_factor * config.head_dim) // 2
    frequencies = config.rope_theta ** -(torch.arange(half, dtype=torch.float64, device=device) / max(half, 1))
    slow = frequencies / config.rope_scaling_factor
    if config.rope_scaling_type == "linear":
        return slow
    if config.rope_scaling_type == "llama3":
        turns = config.rope_original_seq_len * frequencies / (2 * math.pi)
        low, high = config.rope_low_freq_factor, config.rope_high_freq_factor
        kept = ((turns - low) / (high - low)).clamp(0, 1) if high > low else (turns >= high).double()
        return kept * frequencies + (1 - kept) * slow
    return frequencies


def turn(x, cos, sin):
    """RoPE: x (B,H,T,D); cos, sin (B,1,T,R/2). Feature i turns with feature i + R/2."""
    half = cos.shape[-1]
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat((first * cos - second * sin, second * cos + first * sin, rest), dim=-1)


class Gate(nn.Module):
    """Makes the logits z of a layer's gate and applies g(z); its parameters are those of the attention around it."""

    def __init__(self, config):
        super().__init__()
        heads = {"g2": config.num_key_value_heads, "g3": config.num_key_value_heads}
        self.heads = 1 if config.gate_site == "g5" else heads.get(config.gate_site, config.num_attention_heads)
        width = config.hidden_size if config.gate_site == "g5" else config.head_dim
        self.features = 1 if config.gate_grain == "headwise" else width
        self.shared = config.gate_grain == "head_shared"
        self.function = GATE_FUNCTIONS[config.gate_fn]
        self.adds = config.gate_op == "add"

    def forward(self, y, z):
        """y (B,T,H,D) or (B,T,1,C), z (B,T,H,D or 1)."""
        g = self.function(z)
        g = g.mean(dim=-2, keepdim=True) if self.shared else g
        return y + g if self.adds else y * g


class Bias(nn.Module):
    """What is left of the gate's projection where its matrix is a part of q_proj."""

    def __init__(self, rows):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(rows))

    def forward(self, z):
        return z + self.bias


class Attention(nn.Module):
    def __init__(self, config, layer):
        super().__init__()
        self.config, self.layer = config, layer
        C, D = config.hidden_size, config.head_dim
        Hq, Hkv = config.num_attention_heads, config.num_key_value_heads
        bias = config.attention_qkv_bias == "learned"
        self.gating = Gate(config) if config.gate_site != "none" else None
        rows = self.gating.heads * self.gating.features if self.gating else 0
        self.fused = self.gating is not None and config.gate_layout != "separate"
        self.q_proj = nn.Linear(C, Hq * D + (rows if self.fused else 0), bias=bias)
        self.k_proj = nn.Linear(C, Hkv * D, bias=bias)
        self.v_proj = nn.Linear(C, Hkv * D, bias=bias)
        self.o_proj = nn.Linear(Hq * D, C, bias=False)
        if self.gating and config.gate_source == "parameter":
            self.gate = nn.Parameter(torch.zeros(self.gating.heads, self.gating.features))
        elif self.fused and config.gate_bias == "bias":
            self.gate_proj = Bias(rows)
        elif self.gating and not self.fused:
            self.gate_proj = nn.Linear(C, rows, bias=config.gate_bias == "bias")
        if config.qk_norm == "per_head":
            self.q_norm, self.k_norm = RMSNorm(config, D), RMSNorm(config, D)
        if config.attention_output_control == "head_rmsnorm":
            self.head_norm = RMSNorm(config, D)
        if config.attention_sinks == "learned_sinks":
            self.sinks = nn.Parameter(torch.zeros(Hq))

    def queries_and_logits(self, h):
        """q (B,T,Hq,D) and the gate's logits (B,T,heads,features), or None without a gate."""
        config, gating = self.config, self.gating
        B, T, _ = h.shape
        Hq, Hkv, D = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        q, z = self.q_proj(h), None
        if self.fused:
            blocks = {"per_query_head": Hq, "per_group": Hkv, "trailing": 1}[config.gate_layout]
            q = q.view(B, T, blocks, -1)  # each block: the q of its heads, then their gates
            q, z = q.split((Hq * D // blocks, q.shape[-1] - Hq * D // blocks), dim=-1)
            z = self.gate_proj(z.reshape(B, T, -1)) if config.gate_bias == "bias" else z
        elif gating and config.gate_source == "parameter":
            z = self.gate.expand(B, T, -1, -1)
        elif gating:
            z = self.gate_proj(h)
        z = None if z is None else z.reshape(B, T, gating.heads, gating.features)
        return q.reshape(B, T, Hq, D), z

    def gated(self, site, y, z):
        return self.gating(y, z) if self.config.gate_site == site else y

    def weights(self, q, k, visible):
        """Softmax weights (B,Hq,T,S) in f32; with a sink they sum to less than 1."""
        scores = (q @ k.transpose(-1, -2)).float() / math.sqrt(self.config.head_dim)
        # Not -inf, of which the queries of padding, which see nothing, would make NaN.
        scores = scores.masked_fill(~visible, torch.finfo(scores.dtype).min)
        if self.config.attention_sinks == "none":
            return scores.softmax(dim=-1)
        sinks = self.sinks if self.config.attention_sinks == "learned_sinks" else scores.new_zeros(scores.shape[1])
        sinks = sinks.float().view(1, -1, 1, 1).expand(scores.shape[0], -1, scores.shape[2], 1)
        return torch.cat((scores, sinks), dim=-1).softmax(dim=-1)[..., :-1]

    def forward(self, h, cos, sin, visible, cache):
        """h (B,T,C) the layer's input after its norm; visible (B,1,T,S)."""
        config = self.config
        B, T, _ = h.shape
        Hq, Hkv, D = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        q, z = self.queries_and_logits(h)
        q = self.gated("g4", q, z)
        k = self.gated("g3", self.k_proj(h).view(B, T, Hkv, D), z)
        v = self.gated("g2", self.v_proj(h).view(B, T, Hkv, D), z)
        if config.qk_norm == "per_head":
            q, k = self.q_norm(q), self.k_norm(k)
        q, k, v = turn(q.transpose(1, 2), cos, sin), turn(k.transpose(1, 2), cos, sin), v.transpose(1, 2)
        if cache is not None:
            k, v = cache.update(k, v, self.layer)  # all tokens so far, (B,Hkv,S,D)
        k, v = k.repeat_interleave(Hq // Hkv, dim=1), v.repeat_interleave(Hq // Hkv, dim=1)
        weights = self.weights(q, k, visible)
        y = (weights.to(v.dtype) @ v).transpose(1, 2)  # (B,T,Hq,D)
        if config.attention_output_control == "head_rmsnorm":
            y = self.head_norm(y)
        elif config.attention_output_control == "output_silu":
            y = F.silu(y)
        out = self.o_proj(self.gated("g1", y, z).reshape(B, T, Hq * D))
        return self.gated("g5", out.unsqueeze(-2), z).squeeze(-2), weights


class MLP(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, h):
        return self.down_proj(F.silu(self.gate_proj(h)) * self.up_proj(h))


class Layer(nn.Module):
    def __init__(self, config, layer):
        super().__init__()
        C = config.hidden_size
        self.input_layernorm = RMSNorm(config, C)
        self.self_attn = Attention(config, layer)
        self.post_attention_layernorm = RMSNorm(config, C)
        self.mlp = MLP(config)
        self.sandwich = config.norm_placement == "sandwich"
        if self.sandwich:
            self.attention_output_layernorm = RMSNorm(config, C)
            self.mlp_output_layernorm = RMSNorm(config, C)

    def forward(self, x, cos, sin, visible, cache):
        y, weights = self.self_attn(self.input_layernorm(x), cos, sin, visible, cache)
        x = x + (self.attention_output_layernorm(y) if self.sandwich else y)
        y = self.mlp(self.post_attention_layernorm(x))
        return x + (self.mlp_output_layernorm(y) if self.sandwich else y), weights


class HeadgatePreTrainedModel(PreTrainedModel):
    config_class = HeadgateConfig
    base_model_prefix = "model"
    _no_split_modules = ["Layer"]

    def _init_weights(self, module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=self.config.initializer_range)
            if getattr(module, "bias", None) is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, RMSNorm):
            nn.init.constant_(module.weight, 1.0 - module.center)
        elif isinstance(module, Attention):
            for name in ("gate", "sinks"):
                if getattr(module, name, None) is not None:
                    nn.init.zeros_(getattr(module, name))


class HeadgateModel(HeadgatePreTrainedModel):
    def __init__(self, config):
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config, layer) for layer in range(config.num_hidden_layers))
        self.norm = RMSNorm(config, config.hidden_size)
        self.post_init()

    def get_input_embeddings(self):
        return self.embed_tokens

    def visible(self, attention_mask, past, T, device):
        """(B or 1,1,T,S): the keys up to the query's own, those of the window, none of padding."""
        query = torch.arange(past, past + T, device=device).view(T, 1)
        key = torch.arange(past + T, device=device).view(1, -1)
        visible = key <= query
        if self.config.attention_window > 0:
            visible = visible & (key > query - self.config.attention_window)
        visible = visible.view(1, 1, T, -1)
        return visible if attention_mask is None else visible & attention_mask[:, None, None, :].bool()

    def forward(
        self,
        input_ids=None,
        attention_mask=None,
        position_ids=None,
        past_key_values=None,
        inputs_embeds=None,
        use_cache=None,
        output_attentions=False,
        output_hidden_states=False,
        **_,
    ):
        x = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        T, past = x.shape[1], 0
        if use_cache and past_key_values is None:
            past_key_values = DynamicCache()
        if past_key_values is not None:
            past = past_key_values.get_seq_length()
        if position_ids is None:
            position_ids = torch.arange(past, past + T, device=x.device).unsqueeze(0)
        angles = position_ids[:, None, :, None].double() * rope_frequencies(self.config, x.device)
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        visible = self.visible(attention_mask, past, T, x.device)
        hidden, attentions = [x], []
        for layer in self.layers:
            x, weights = layer(x, cos, sin, visible, past_key_values)
            if output_hidden_states:
                hidden.append(x)
            if output_attentions:
                attentions.append(weights)
        x = self.norm(x)
        return BaseModelOutputWithPast(
            last_hidden_state=x,
            past_key_values=past_key_values,
            hidden_states=tuple(hidden[:-1]) + (x,) if output_hidden_states else None,
            attentions=tuple(attentions) if output_attentions else None,
        )


class HeadgateForCausalLM(HeadgatePreTrainedModel, GenerationMixin):
    def __init__(self, config):
        super().__init__(config)
        self.model = HeadgateModel(config)
        if not config.tie_word_embeddings:
            self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def get_input_embeddings(self):
        return self.model.embed_tokens

    def get_output_embeddings(self):
        return None if self.config.tie_word_embeddings else self.lm_head

    def forward(
        self,
        input_ids=None,
        attention_mask=None,
        position_ids=None,
        past_key_values=None,
        inputs_embeds=None,
        labels=None,
        use_cache=None,
        logits_to_keep=0,
        **more,
    ):
        out = self.model(input_ids, attention_mask, position_ids, past_key_values, inputs_embeds, use_cache, **more)
        x = out.last_hidden_state[:, -logits_to_keep:] if logits_to_keep else out.last_hidden_state
        tied = self.config.tie_word_embeddings
        logits = F.linear(x, self.model.embed_tokens.weight) if tied else self.lm_head(x)
        loss = None
        if labels is not None:
            loss = F.cross_entropy(logits[:, :-1].float().flatten(0, 1), labels[:, 1:].flatten())
        return CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            past_key_values=out.past_key_values,
            hidden_states=out.hidden_states,
            attentions=out.attentions,
        )
