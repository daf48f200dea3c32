# SPDX-License-Identifier: Apache-2.0
"""Small random models of transformers, one of each family."""

import torch
import transformers

VOCAB = 97
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
}
LINEAR = {
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "layer_types": ["linear_attention", "full_attention"],
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
WINDOW = {"sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"]}

FAMILIES = {
    "llama": (transformers.LlamaForCausalLM, transformers.LlamaConfig, {}),
    "mistral": (transformers.MistralForCausalLM, transformers.MistralConfig, {}),
    "qwen3": (transformers.Qwen3ForCausalLM, transformers.Qwen3Config, {}),
    "qwen3 with windows": (
        transformers.Qwen3ForCausalLM,
        transformers.Qwen3Config,
        {**WINDOW, "use_sliding_window": True},
    ),
    "qwen3-next": (
        transformers.Qwen3NextForCausalLM,
        transformers.Qwen3NextConfig,
        {**LINEAR, **EXPERTS, "shared_expert_intermediate_size": 24, "partial_rotary_factor": 0.25},
    ),
    "qwen3.5": (transformers.Qwen3_5ForCausalLM, transformers.Qwen3_5TextConfig, LINEAR),
    "olmo-hybrid": (
        transformers.OlmoHybridForCausalLM,
        transformers.OlmoHybridConfig,
        {**LINEAR, "linear_value_head_dim": 12},
    ),
    "kimi-linear": (
        transformers.KimiLinearForCausalLM,
        transformers.KimiLinearConfig,
        {
            **EXPERTS,
            "layer_types": LINEAR["layer_types"],
            "num_local_experts": 4,
            "linear_num_heads": 4,
            "linear_head_dim": 8,
            "kv_lora_rank": 16,
            "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 8,
            "v_head_dim": 8,
            "num_key_value_heads": 4,
        },
    ),
    "afmoe": (
        transformers.AfmoeForCausalLM,
        transformers.AfmoeConfig,
        {**WINDOW, **EXPERTS, "num_dense_layers": 1, "num_shared_experts": 1, "global_attn_every_n_layers": 2},
    ),
    "gpt-oss": (
        transformers.GptOssForCausalLM,
        transformers.GptOssConfig,
        {**WINDOW, "num_local_experts": 4, "num_experts_per_tok": 2},
    ),
    "gemma2": (transformers.Gemma2ForCausalLM, transformers.Gemma2Config, {**WINDOW, "attn_logit_softcapping": 2.0}),
}


def model(family, attention="eager", seed=0, **keys):
    """Makes a model in training mode whose weights depend only on the family and the seed."""
    kind, config, own = FAMILIES[family]
    torch.manual_seed(seed)
    made = kind._from_config(config(**{**SIZES, **own, **keys}), attn_implementation=attention)
    with torch.no_grad():  # norms and sinks that differ from their initial values, which would hide their misuse
        for parameter in made.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
            else:
                parameter.mul_(3)
    return made


def tokens(batch, length):
    return torch.randint(2, VOCAB, (batch, length))
