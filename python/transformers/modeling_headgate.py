# SPDX-License-Identifier: Apache-2.0
"""Decoders of model_type "headgate" in PyTorch, for transformers:

    AutoModelForCausalLM.from_pretrained(DIRECTORY, trust_remote_code=True)

A pre-norm transformer as Llama and Qwen3 are, with a gate at one of five places of its attention, or a sink or another
control in place of one. `headgate` writes this file beside config.json; the checkpoint has all of its own code.
Letters: B batch, T queries, S keys, Hq and Hkv heads of queries and of keys, D features of a head, C channels.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import DynamicCache, GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast

# In the file beside a checkpoint, the code of python/headgate/torch/layer.py stands here.
from headgate.torch.layer import GatedLayer, RMSNorm, rope_frequencies, turn

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


class HeadgateConfig(PretrainedConfig):
    """Every key of config.json is an attribute."""

    model_type = "headgate"
    keys_to_ignore_at_inference = ["past_key_values"]

    def __init__(self, **keys):
        super().__init__(**{**DEFAULTS, **keys})


def norm_of(config):
    return RMSNorm(config.hidden_size, config.rms_norm_eps, config.norm_kind)


class Attention(GatedLayer):
    def __init__(self, config, layer):
        super().__init__(config)
        self.layer = layer

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

    def forward(self, h: Tensor, cos: Tensor, sin: Tensor, visible: Tensor, cache) -> tuple[Tensor, Tensor]:
        """h (B,T,C) the layer's input after its norm; cos, sin (B|1,1,T,R/2); visible (B|1,1,T,S)."""
        q, k, v, z = self.projected(h)
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        q, k = turn(q, cos, sin), turn(k, cos, sin)
        if cache is not None:
            k, v = cache.update(k, v, self.layer)  # all tokens so far, (B,Hkv,S,D)
        k, v = (x.repeat_interleave(self.Hq // self.Hkv, dim=1) for x in (k, v))
        weights = self.weights(q, k, visible)
        y = self.controlled((weights.to(v.dtype) @ v).transpose(1, 2))  # (B,T,Hq,D)
        return self.output(self.gated("g1", y, z), z), weights


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
        self.input_layernorm = norm_of(config)
        self.self_attn = Attention(config, layer)
        self.post_attention_layernorm = norm_of(config)
        self.mlp = MLP(config)
        self.sandwich = config.norm_placement == "sandwich"
        if self.sandwich:
            self.attention_output_layernorm = norm_of(config)
            self.mlp_output_layernorm = norm_of(config)

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
        self.norm = norm_of(config)
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
