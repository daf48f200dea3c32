# SPDX-License-Identifier: Apache-2.0
"""Decoders of model_type "headgate" in PyTorch, for transformers:

    AutoModelForCausalLM.from_pretrained(DIRECTORY, trust_remote_code=True)

The model is a transformer like Llama and Qwen3. Its attention may have a gate at one of five places, sinks, and RMSNorm
or SiLU on its output. A layer has full attention, sliding-window attention, or Gated DeltaNet as in Qwen3.5. The
functions of transformers compute Gated DeltaNet. `headgate` writes this file next to config.json, so that a checkpoint
includes all its code.

Letters: B batch, T queries, S keys, Hq query heads, Hkv key/value heads, D features of a head, C channels.
"""

import copy
import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import DynamicCache, GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast

# In the file beside a checkpoint, CMake puts the code of python/headgate/torch/layer.py in place of the next import.
from headgate.torch.layer import GatedLayer, RMSNorm, apply_rope, rope_attention_factor, rope_frequencies

# Defaults of keys that are missing in config.json.
DEFAULTS = {
    "norm_kind": "plain",  # whether norms multiply by their weight w (plain) or by 1 + w (zero_centred)
    "norm_placement": "pre",  # place of norms: pre, sandwich or post; with post, linear-attention layers use pre
    "qk_norm": "per_head",  # RMSNorm of q and k: per_head, all_heads or none
    "partial_rotary_factor": 1.0,
    "gate_site": "none",  # place of the gate: none, g1 (attention output), g2 (v), g3 (k), g4 (q) or g5 (W_o output)
    "gate_grain": "elementwise",  # gate per feature (elementwise) or head (headwise), or shared by heads (head_shared)
    "gate_source": "input",  # origin of the gate's logits: a projection of the layer's input, or a parameter
    "gate_fn": "sigmoid",
    "gate_op": "mul",  # whether the gate is multiplied (mul) or added (add)
    "gate_bias": "none",  # bias of the gate's projection: none or bias
    "gate_layout": "separate",  # gate in gate_proj (separate), or rows in q_proj (per_query_head, per_group, trailing)
    "attention_output_control": "none",  # norm or activation of attention's output: none, head_rmsnorm or output_silu
    "attention_sinks": "none",  # sink logit of each head: none, learned (learned_sinks) or 0 (off_by_one)
    "attention_qkv_bias": "none",  # biases of q_proj, k_proj and v_proj: none or learned
    "attention_window": 0,  # number of keys that a query sees, 0 for all; with layer_types, only in sliding layers
    "attention_out_bias": False,
    "rope_scaling_type": "none",  # scaling of RoPE's frequencies: none, linear, llama3 or yarn
    "rope_scaling_factor": 1.0,
    "rope_low_freq_factor": 1.0,
    "rope_high_freq_factor": 4.0,
    "rope_original_seq_len": 8192,
    "rope_truncate": True,  # whether yarn rounds the range of scaled frequencies to whole indices
    "rope_attention_factor": 0.0,  # yarn's factor of rotated features; 0 means 0.1 ln(rope_scaling_factor) + 1
    "layer_types": None,  # type of each layer: full_attention, sliding_attention or linear_attention
    "attention_scale": 0.0,  # factor of the scores; 0 means 1 / sqrt(head_dim)
    "embedding_scale": 1.0,
    "mlp_activation": "silu",  # activation of the MLP: silu or gelu_tanh
    "sliding_num_attention_heads": 0,  # number of query heads in sliding layers; 0 means as in other layers
    "sliding_rope_theta": 0.0,  # base of RoPE in sliding layers; 0 means the same RoPE as in other layers
    "sliding_partial_rotary_factor": 1.0,  # share of features that RoPE rotates; read if sliding_rope_theta > 0
    "sliding_rope_scaled": False,  # whether to scale RoPE as in other layers; read if sliding_rope_theta > 0
    "linear_num_key_heads": 0,
    "linear_num_value_heads": 0,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "linear_beta_scale": 1.0,
    "linear_norm_eps": 0.0,  # eps of the norm after linear attention; 0 means rms_norm_eps
}


class HeadgateConfig(PretrainedConfig):
    """Config with every key of config.json as an attribute."""

    model_type = "headgate"
    keys_to_ignore_at_inference = ["past_key_values"]

    def __init__(self, **keys):
        super().__init__(**{**DEFAULTS, **keys})

    @property
    def sliding_window(self):
        """Returns the window, or None without a window. Caches of transformers read the window by this name."""
        return self.attention_window or None


def config_of_layer(config, layer):
    """Returns a copy of the config for one layer. The copy has the layer's layer_type, heads, window and RoPE."""
    types, config = config.layer_types, copy.copy(config)
    config.layer_type = types[layer] if types else "full_attention"
    sliding = config.layer_type == "sliding_attention"
    if types and not sliding:
        config.attention_window = 0
    if sliding and config.sliding_num_attention_heads > 0:
        config.num_attention_heads = config.sliding_num_attention_heads
    if sliding and config.sliding_rope_theta > 0:
        config.rope_theta = config.sliding_rope_theta
        config.partial_rotary_factor = config.sliding_partial_rotary_factor
        if not config.sliding_rope_scaled:
            config.rope_scaling_type = "none"
    return config


def norm_of(config):
    return RMSNorm(config.hidden_size, config.rms_norm_eps, config.norm_kind)


class Tokens:
    """Positions and masks of a forward pass. All layers share them."""

    def __init__(self, config, x, attention_mask, position_ids, cache):
        """Takes x (B,T,C), attention_mask (B,S), which is 0 at padding, position_ids (B|1,T), and a cache.

        All of them except x may be None.
        """
        self.x, self.attention_mask, self.cache = x, attention_mask, cache
        self.T = x.shape[1]
        self.past = 0 if cache is None or not has_attention(config) else cache.get_seq_length()
        if position_ids is None:
            position_ids = torch.arange(self.past, self.past + self.T, device=x.device).unsqueeze(0)
        self.position_ids = position_ids
        self.known = {}

    def angles(self, config):
        """Returns cos and sin of a layer's RoPE, (B|1,1,T,R/2)."""
        key = ("angles", config.rope_theta, config.partial_rotary_factor, config.rope_scaling_type)
        if key not in self.known:
            angles = self.position_ids[:, None, :, None].double() * rope_frequencies(config, self.x.device)
            factor = rope_attention_factor(config)
            self.known[key] = tuple((factor * part).to(self.x.dtype) for part in (angles.cos(), angles.sin()))
        return self.known[key]

    def visible(self, config, layer):
        """Returns a layer's mask (B|1,1,T,S). It is true for keys that are not later than the query, within the window,
        and not padding.
        """
        S, first = self.T, 0
        if self.cache is not None:
            S, first = self.cache.get_mask_sizes(self.T, layer)
        key = ("visible", config.attention_window, S, first)
        if key not in self.known:
            query = torch.arange(self.past, self.past + self.T, device=self.x.device).view(-1, 1)
            key_at = torch.arange(first, first + S, device=self.x.device).view(1, -1)
            visible = key_at <= query
            if config.attention_window > 0:
                visible = visible & (key_at > query - config.attention_window)
            visible = visible.view(1, 1, self.T, S)
            if self.attention_mask is not None:
                visible = visible & self.attention_mask[:, None, None, first : first + S].bool()
            self.known[key] = visible
        return self.known[key]

    def kept(self):
        """Returns the padding mask (B,T) of these tokens, which is 0 at padding. Returns None if there is no padding."""
        return None if self.attention_mask is None else self.attention_mask[:, -self.T :]


class StateCache(DynamicCache):
    """Cache for a model with linear attention in all layers. It has no keys to count, so it counts tokens for
    generate().
    """

    is_compileable = False

    def __init__(self, config):
        super().__init__(config=config)
        self.tokens = 0

    def get_seq_length(self, layer_idx=0):
        return self.tokens

    def update_conv_state(self, conv_states, layer_idx, **keys):
        self.tokens += conv_states.shape[-1] if layer_idx == 0 else 0
        return super().update_conv_state(conv_states, layer_idx, **keys)

    def reset(self):
        super().reset()
        self.tokens = 0


def has_attention(config) -> bool:
    return not config.layer_types or set(config.layer_types) != {"linear_attention"}


def new_cache(config):
    return DynamicCache(config=config) if has_attention(config) else StateCache(config)


class Attention(GatedLayer):
    def __init__(self, config, layer):
        super().__init__(config)
        self.layer = layer
        self.scale = config.attention_scale or 1 / math.sqrt(config.head_dim)
        if config.qk_norm == "all_heads":
            self.q_norm = RMSNorm(self.Hq * self.D, config.rms_norm_eps, config.norm_kind)
            self.k_norm = RMSNorm(self.Hkv * self.D, config.rms_norm_eps, config.norm_kind)

    def project(self, h: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        q, k, v, z = super().project(h)
        if self.config.qk_norm == "all_heads":
            q, k = self.q_norm(q.flatten(-2)).view_as(q), self.k_norm(k.flatten(-2)).view_as(k)
        return q, k, v, z

    def weights(self, q, k, visible):
        """Returns the softmax weights (B,Hq,T,S) in f32. With a sink, they sum to less than 1."""
        scores = (q @ k.transpose(-1, -2)).float() * self.scale
        # Masks with the smallest finite number. A padding query sees no key. With -inf, its softmax would be NaN.
        scores = scores.masked_fill(~visible, torch.finfo(scores.dtype).min)
        if self.config.attention_sinks == "none":
            return scores.softmax(dim=-1)
        sinks = self.sinks if self.config.attention_sinks == "learned_sinks" else scores.new_zeros(scores.shape[1])
        sinks = sinks.float().view(1, -1, 1, 1).expand(scores.shape[0], -1, scores.shape[2], 1)
        return torch.cat((scores, sinks), dim=-1).softmax(dim=-1)[..., :-1]

    def forward(self, h: Tensor, cos: Tensor, sin: Tensor, visible: Tensor, cache) -> tuple[Tensor, Tensor]:
        """Returns the output (B,T,C) and the softmax weights.

        h (B,T,C) is the normalized layer input. cos and sin are (B|1,1,T,R/2), visible is (B|1,1,T,S).
        """
        q, k, v, z = self.project(h)
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        q, k = apply_rope(q, cos, sin), apply_rope(k, cos, sin)
        if cache is not None:
            k, v = cache.update(k, v, self.layer)  # (B,Hkv,S,D): all tokens so far, or those in the window
            k, v = (x[:, :, -visible.shape[-1] :] for x in (k, v))  # a cache may keep older tokens if the window is 1
        k, v = (x.repeat_interleave(self.Hq // self.Hkv, dim=1) for x in (k, v))
        weights = self.weights(q, k, visible)
        y = self.apply_output_control((weights.to(v.dtype) @ v).transpose(1, 2))  # (B,T,Hq,D)
        return self.output(self.apply_gate_at("g1", y, z), z), weights


def qwen3_5():
    """Imports transformers' code of Qwen3.5, which only some models need.

    headgate.torch.transformers.register() replaces functions in the imported module. Callers must therefore look them
    up at each call.
    """
    from transformers.models.qwen3_5 import modeling_qwen3_5

    return modeling_qwen3_5


class Taps(nn.Module):
    """Holds the weight of a convolution, (channels,K). Tap K - 1 multiplies the current token."""

    def __init__(self, channels, K):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(channels, K) / math.sqrt(3 * K))


class DeltaNet(nn.Module):
    """Gated DeltaNet with Hk heads of queries and keys, and Hv heads of values. Inputs at padding are replaced by 0."""

    def __init__(self, config, layer):
        super().__init__()
        self.layer, self.beta_scale = layer, config.linear_beta_scale
        self.Dk, self.Dv, Hv = config.linear_key_head_dim, config.linear_value_head_dim, config.linear_num_value_heads
        C, keys, values = config.hidden_size, config.linear_num_key_heads * self.Dk, Hv * self.Dv
        self.widths = keys, keys, values
        self.in_proj_qkv = nn.Linear(C, sum(self.widths), bias=False)
        self.in_proj_z = nn.Linear(C, values, bias=False)
        self.in_proj_b = nn.Linear(C, Hv, bias=False)
        self.in_proj_a = nn.Linear(C, Hv, bias=False)
        self.conv1d = Taps(sum(self.widths), config.linear_conv_kernel_dim)
        self.A_log = nn.Parameter(torch.empty(Hv).uniform_(0.01, 16).log())
        self.dt_bias = nn.Parameter(torch.ones(Hv))
        self.norm = qwen3_5().Qwen3_5RMSNormGated(self.Dv, eps=config.linear_norm_eps or config.rms_norm_eps)
        self.out_proj = nn.Linear(values, C, bias=False)

    def convolved(self, h: Tensor, cache) -> tuple[Tensor, Tensor, Tensor]:
        """Returns q and k (B,T,Hk,Dk), and v (B,T,Hv,Dv), after the convolution."""
        x, taps = self.in_proj_qkv(h).transpose(1, 2), self.conv1d.weight
        if cache is not None:
            # The cache prepends the inputs of earlier tokens.
            x = cache.update_conv_state(x, self.layer, conv_kernel_size=taps.shape[1])
        x = qwen3_5().causal_conv1d_fn(x, taps, None, activation="silu")[:, :, -h.shape[1] :].transpose(1, 2)
        q, k, v = x.split(self.widths, dim=-1)
        return q.unflatten(-1, (-1, self.Dk)), k.unflatten(-1, (-1, self.Dk)), v.unflatten(-1, (-1, self.Dv))

    def forward(self, h: Tensor, kept: Tensor | None, cache) -> Tensor:
        """Returns the output (B,T,C). h (B,T,C) is the normalized layer input. kept (B,T) is 0 at padding."""
        code = qwen3_5()
        h = code.apply_mask_to_padding_states(h, kept)
        state = None if cache is None else cache.get_recurrent_state(self.layer)
        one = state is not None and h.shape[1] == 1
        rule = code.torch_recurrent_gated_delta_rule if one else code.torch_chunk_gated_delta_rule
        y, state = rule(
            *self.convolved(h, cache),
            g=-self.A_log.float().exp() * F.softplus(self.in_proj_a(h).float() + self.dt_bias),
            beta=self.beta_scale * self.in_proj_b(h).sigmoid(),
            initial_state=state,
            output_final_state=cache is not None,
            use_qk_l2norm_in_kernel=True,
        )
        if cache is not None:
            cache.update_recurrent_state(state, self.layer)
        y = self.norm(y.reshape(-1, self.Dv), self.in_proj_z(h).reshape(-1, self.Dv))
        return self.out_proj(y.view(*h.shape[:2], -1))


class MLP(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.activation = config.mlp_activation
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, h):
        z = self.gate_proj(h)
        z = F.gelu(z, approximate="tanh") if self.activation == "gelu_tanh" else F.silu(z)
        return self.down_proj(z * self.up_proj(h))


class Layer(nn.Module):
    def __init__(self, config, layer):
        super().__init__()
        self.config, self.layer = config_of_layer(config, layer), layer
        self.linear = self.config.layer_type == "linear_attention"
        if self.linear:
            self.linear_attn = DeltaNet(self.config, layer)
        else:
            self.self_attn = Attention(self.config, layer)
        self.mlp = MLP(config)
        post = config.norm_placement == "post" and not self.linear
        inputs, outputs = not post, post or config.norm_placement == "sandwich"
        self.input_layernorm = norm_of(config) if inputs else nn.Identity()
        self.attention_output_layernorm = norm_of(config) if outputs else nn.Identity()
        self.post_attention_layernorm = norm_of(config) if inputs else nn.Identity()
        self.mlp_output_layernorm = norm_of(config) if outputs else nn.Identity()

    def mixed(self, h, tokens):
        """Returns the output of attention and its weights. For linear attention, the weights are None."""
        if self.linear:
            return self.linear_attn(h, tokens.kept(), tokens.cache), None
        visible = tokens.visible(self.config, self.layer)
        return self.self_attn(h, *tokens.angles(self.config), visible, tokens.cache)

    def forward(self, x, tokens):
        y, weights = self.mixed(self.input_layernorm(x), tokens)
        x = x + self.attention_output_layernorm(y)
        return x + self.mlp_output_layernorm(self.mlp(self.post_attention_layernorm(x))), weights


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
        elif isinstance(module, Taps):
            nn.init.normal_(module.weight, std=1 / math.sqrt(3 * module.weight.shape[1]))
        elif isinstance(module, DeltaNet):
            nn.init.ones_(module.norm.weight)
            nn.init.ones_(module.dt_bias)
            qwen3_5().init.copy_(module.A_log, torch.empty_like(module.A_log).uniform_(0.01, 16).log())


class HeadgateModel(HeadgatePreTrainedModel):
    def __init__(self, config):
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config, layer) for layer in range(config.num_hidden_layers))
        self.norm = norm_of(config)
        self.post_init()

    def get_input_embeddings(self):
        return self.embed_tokens

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
        x = x * self.config.embedding_scale
        if use_cache and past_key_values is None:
            past_key_values = new_cache(self.config)
        tokens = Tokens(self.config, x, attention_mask, position_ids, past_key_values)
        hidden, attentions = [x], []
        for layer in self.layers:
            x, weights = layer(x, tokens)
            if output_hidden_states:
                hidden.append(x)
            if output_attentions and weights is not None:
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
        self._is_stateful = "linear_attention" in (config.layer_types or ())  # the model's states cannot be cropped
        self.model = HeadgateModel(config)
        if not config.tie_word_embeddings:
            self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def _supports_default_dynamic_cache(self):
        return has_attention(self.config)  # if false, the model creates its own cache

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
