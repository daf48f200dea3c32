# SPDX-License-Identifier: Apache-2.0
"""Writes models of transformers as GGUF files, with the names, orders and values of llama.cpp's converter.

Other scripts import this module. A file is in f32 or in a quantised format. Only matrices whose rows consist of whole
blocks are quantised. Norms, biases, routers and convolutions stay in f32.
"""

import json

import gguf
import numpy

QWEN_HYBRIDS = ("qwen35", "qwen35moe", "qwen3next")
KEPT_IN_F32 = ("ssm_conv1d.weight", "ffn_gate_inp.weight", "ffn_gate_inp_shexp.weight")
OTHER_PARTS = ("model.vision_model", "model.multi_modal_projector")
OUTER_NAMES = {
    "embed_tokens.weight": "token_embd.weight",
    "norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.gate_proj": "attn_gate",
    "self_attn.g_proj": "attn_gate",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
    "pre_mlp_layernorm": "ffn_norm",
    "post_mlp_layernorm": "post_ffw_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
    "mlp.router.gate": "ffn_gate_inp",
    "mlp.router": "ffn_gate_inp",
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    "linear_attn.in_proj_qkv": "attn_qkv",
    "linear_attn.in_proj_z": "attn_gate",
    "linear_attn.in_proj_b": "ssm_beta",
    "linear_attn.in_proj_a": "ssm_alpha",
    "linear_attn.in_proj_ba": "ssm_ba",
    "linear_attn.conv1d": "ssm_conv1d",
    "linear_attn.norm": "ssm_norm",
    "linear_attn.out_proj": "ssm_out",
}
"""Maps names of modules within a layer to those in GGUF. Each has a weight, and may have a bias."""
for part in ("gate", "up", "down"):
    for shared in ("shared_expert", "shared_experts"):
        NAMES[f"mlp.{shared}.{part}_proj"] = f"ffn_{part}_shexp"
PARAMETER_NAMES = {
    "mlp.expert_bias": "exp_probs_b.bias",
    "mlp.gate.e_score_correction_bias": "exp_probs_b.bias",
    "mlp.experts.down_proj": "ffn_down_exps.weight",
    "mlp.experts.down_proj_bias": "ffn_down_exps.bias",
    "self_attn.sinks": "attn_sinks.weight",
    "linear_attn.A_log": "ssm_a",
    "linear_attn.dt_bias": "ssm_dt.bias",
}


def name_of(architecture, rest):
    """Returns the name of a layer's tensor in GGUF, without the prefix "blk.N."."""
    if rest in PARAMETER_NAMES:
        return PARAMETER_NAMES[rest]
    module, kind = rest.rsplit(".", 1)
    if module == "post_attention_layernorm" and architecture in ("llama", "qwen2", "qwen3", "step35"):
        return f"ffn_norm.{kind}"
    return f"{NAMES[module]}.{kind}"


def tiled(values, config, axis, first, size):
    """Reorders value heads along `axis`, which start at index `first` and have `size` entries each. The result has the
    first value head of every key head, then the second of every key head, and so on."""
    keys, value_heads = config.linear_num_key_heads, config.linear_num_value_heads
    order = numpy.arange(values.shape[axis])
    heads = order[first : first + value_heads * size].reshape(keys, value_heads // keys, size)
    order[first : first + value_heads * size] = heads.swapaxes(0, 1).reshape(-1)
    return numpy.take(values, order, axis)


def reordered(rest, values, config):
    keys = 2 * config.linear_num_key_heads * config.linear_key_head_dim
    size = config.linear_value_head_dim
    if rest in ("linear_attn.in_proj_qkv.weight", "linear_attn.conv1d.weight"):
        return tiled(values, config, 0, keys, size)
    if rest == "linear_attn.in_proj_z.weight":
        return tiled(values, config, 0, 0, size)
    if rest == "linear_attn.out_proj.weight":
        return tiled(values, config, 1, 0, size)
    if rest.split(".")[1] in ("in_proj_a", "in_proj_b", "A_log", "dt_bias"):
        return tiled(values, config, 0, 0, 1)
    return values


def of_qkvz(values, config):
    """Splits in_proj_qkvz of Qwen3-Next into the tensors attn_qkv and attn_gate of GGUF."""
    size, keys = config.linear_key_head_dim, config.linear_num_key_heads
    width = config.linear_num_value_heads // keys * config.linear_value_head_dim
    groups = values.reshape(keys, -1, values.shape[1])
    q, k, v, z = numpy.split(groups, [size, 2 * size, 2 * size + width], 1)
    flat = [part.reshape(-1, values.shape[1]) for part in (q, k, v, z)]
    return {"attn_qkv.weight": numpy.concatenate(flat[:3]), "attn_gate.weight": flat[3]}


def neighbouring_pairs(values, head_dim):
    """Reorders rows of Llama's q or k, so that two rows that RoPE rotates together are adjacent."""
    rows = values.reshape(-1, 2, head_dim // 2, values.shape[1])
    return rows.swapaxes(1, 2).reshape(values.shape)


def head_dim_of(config):
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def rope_divisors(config):
    """Returns divisors of RoPE's angles in full attention: those of Llama 3's scaling, then 1 for features that are
    not rotated."""
    rope = config.rope_parameters["full_attention"]
    rotated = int(config.head_dim * rope["partial_rotary_factor"])
    frequencies = rope["rope_theta"] ** (-numpy.arange(0, rotated, 2) / rotated)
    turns = rope["original_max_position_embeddings"] * frequencies / (2 * numpy.pi)
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    kept = numpy.clip((turns - low) / (high - low), 0, 1)
    divisors = numpy.ones(config.head_dim // 2, numpy.float32)
    divisors[: len(kept)] = 1 / ((1 - kept) / rope["factor"] + kept)
    return divisors


def tensors_of_layer(architecture, config, rest, values):
    """Yields (name without "blk.N.", values) for each tensor in GGUF that holds a layer's parameter."""
    if rest == "linear_attn.A_log":
        values = -numpy.exp(values)
    if rest == "linear_attn.conv1d.weight":
        values = values[:, 0]
    if architecture in ("qwen35", "qwen35moe") and rest.startswith("linear_attn"):
        values = reordered(rest, values, config)
    if architecture == "llama" and rest in ("self_attn.q_proj.weight", "self_attn.k_proj.weight"):
        values = neighbouring_pairs(values, head_dim_of(config))
    if architecture == "gpt-oss" and rest in ("mlp.experts.gate_up_proj", "mlp.experts.down_proj"):
        values = values.swapaxes(1, 2)
    if architecture == "gpt-oss" and rest.startswith("mlp.experts.gate_up_proj"):
        kind = "bias" if rest.endswith("_bias") else "weight"
        yield f"ffn_gate_exps.{kind}", values[:, ::2]
        yield f"ffn_up_exps.{kind}", values[:, 1::2]
    elif rest == "linear_attn.in_proj_qkvz.weight":
        yield from of_qkvz(values, config).items()
    elif rest == "mlp.experts.gate_up_proj":
        half = values.shape[1] // 2
        yield "ffn_gate_exps.weight", values[:, :half]
        yield "ffn_up_exps.weight", values[:, half:]
    elif rest == "mlp.shared_expert_gate.weight":
        yield name_of(architecture, rest), values[0]
    else:
        yield name_of(architecture, rest), values


def config_of(model):
    """Returns the model's config, or that of the text part if the model is multimodal."""
    return getattr(model.config, "text_config", model.config)


def tensors(architecture, model):
    """Yields (name, values) for each tensor."""
    config = config_of(model)
    norms_add_one = architecture in ("gemma3", "step35", *QWEN_HYBRIDS)  # but not the norms of linear attention
    if architecture == "step35":
        yield "rope_freqs.weight", rope_divisors(config)
    for name, tensor in model.state_dict().items():
        if name.startswith(OTHER_PARTS):
            continue
        values = tensor.numpy()
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        if norms_add_one and name.endswith("norm.weight") and "linear_attn" not in name:
            values = values + 1
        name = name.removeprefix("model.").removeprefix("language_model.")
        if name in OUTER_NAMES:
            yield OUTER_NAMES[name], values
            continue
        _, layer, rest = name.split(".", 2)
        for stored, numbers in tensors_of_layer(architecture, config, rest, values):
            yield f"blk.{layer}.{stored}", numbers


def sizes(architecture, config):
    """Returns the integers in the metadata that only some architectures have, by key."""
    own = {}
    if architecture in QWEN_HYBRIDS:
        values = config.linear_num_value_heads
        own |= {
            "ssm.conv_kernel": config.linear_conv_kernel_dim,
            "ssm.state_size": config.linear_key_head_dim,
            "ssm.group_count": config.linear_num_key_heads,
            "ssm.time_step_rank": values,
            "ssm.inner_size": values * config.linear_value_head_dim,
            "rope.dimension_count": config.head_dim // 4,
            "full_attention_interval": 4,
        }
    experts = getattr(config, "num_experts", None) or getattr(config, "n_routed_experts", None)
    if experts:
        own |= {
            "expert_count": experts,
            "expert_used_count": config.num_experts_per_tok,
            "expert_feed_forward_length": getattr(config, "moe_intermediate_size", config.intermediate_size),
        }
    if hasattr(config, "shared_expert_intermediate_size"):
        own["expert_shared_feed_forward_length"] = config.shared_expert_intermediate_size
    if architecture == "step35":
        own["expert_shared_feed_forward_length"] = config.share_expert_dim
    if architecture in ("gemma3", "afmoe", "gpt-oss"):
        own["attention.sliding_window"] = config.sliding_window
    if architecture == "afmoe":
        own |= {"leading_dense_block_count": config.num_dense_layers, "expert_shared_count": config.num_shared_experts}
        own["expert_gating_func"] = 2
    return own


def add_step_values(writer, config, layers):
    """Adds the metadata of Step. Extends lists to layers that predict further tokens."""

    def list_of(values, otherwise):
        return [*values, *(layers - len(values)) * [otherwise]]

    windows = [kind == "sliding_attention" for kind in config.layer_types]
    heads = config.to_dict()["num_attention_heads"]  # transformers refuses the attribute, since layers differ
    writer.add_head_count(
        list_of([config.num_sliding_attention_heads if window else heads for window in windows], heads)
    )
    writer.add_head_count_kv(layers * [config.num_key_value_heads])
    writer.add_sliding_window(config.sliding_window)
    writer.add_sliding_window_pattern(list_of(windows, False))
    writer.add_rope_freq_base_swa(config.rope_parameters["sliding_attention"]["rope_theta"])
    writer.add_expert_weights_scale(config.moe_router_scaling_factor)
    writer.add_expert_weights_norm(True)
    writer.add_leading_dense_block_count(config.mlp_layer_types.index("sparse"))
    writer.add_moe_every_n_layers(1)
    writer.add_swiglu_clamp_exp(list_of([limit or 0.0 for limit in config.swiglu_limits], 0.0))
    writer.add_swiglu_clamp_shexp(list_of([limit or 0.0 for limit in config.swiglu_limits_shared], 0.0))


def add_values(writer, architecture, config, layers):
    rope = config.rope_parameters
    rope = rope.get("full_attention", rope)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(layers)
    if getattr(config, "intermediate_size", None):
        writer.add_feed_forward_length(config.intermediate_size)
    if architecture == "step35":
        add_step_values(writer, config, layers)
    else:
        writer.add_head_count(config.num_attention_heads)
        writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(head_dim_of(config))
    writer.add_value_length(head_dim_of(config))
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(rope["rope_theta"])
    for key, value in sizes(architecture, config).items():
        writer.add_uint32(f"{architecture}.{key}", value)
    if architecture in ("qwen35", "qwen35moe"):
        writer.add_array(f"{architecture}.rope.dimension_sections", [2, 1, 1, 0])
        recurrent = [kind == "linear_attention" for kind in config.layer_types]
        writer.add_array(f"{architecture}.attention.recurrent_layers", recurrent + (layers - len(recurrent)) * [False])
    if rope.get("rope_type") == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if architecture == "afmoe":
        writer.add_float32("afmoe.expert_weights_scale", config.route_scale)
        writer.add_bool("afmoe.expert_weights_norm", True)


def add_tokenizer(writer, path):
    """Adds the tokenizer of a tokenizer.json with byte-level BPE."""
    model = json.loads(path.read_text(encoding="utf-8"))["model"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(sorted(model["vocab"], key=model["vocab"].get))
    writer.add_token_types([int(gguf.TokenType.NORMAL)] * len(model["vocab"]))
    writer.add_token_merges([pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]])


def add_tensor(writer, name, values, kind):
    values = numpy.ascontiguousarray(values)
    block, _ = gguf.GGML_QUANT_SIZES[kind]
    apart = values.ndim < 2 or values.shape[-1] % block != 0 or name.endswith(KEPT_IN_F32)
    if kind == gguf.GGMLQuantizationType.F32 or apart:
        writer.add_tensor(name, values)
    else:
        writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)


def finish(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write(
    architecture, model, path, kind=gguf.GGMLQuantizationType.F32, tokenizer=None, further_layers=0, quantised=".weight"
):
    """Writes a model as a GGUF file. `tokenizer` is the path of a tokenizer.json. `further_layers` is the number of
    additional last layers, which predict further tokens. Matrices whose names end with `quantised` get the format
    `kind`."""
    config = config_of(model)
    writer = gguf.GGUFWriter(path, architecture)
    add_values(writer, architecture, config, config.num_hidden_layers + further_layers)
    if tokenizer is not None:
        add_tokenizer(writer, tokenizer)
    if further_layers:
        writer.add_uint32(f"{architecture}.nextn_predict_layers", further_layers)
        for layer in range(further_layers):
            name = f"blk.{config.num_hidden_layers + layer}.nextn.eh_proj.weight"
            writer.add_tensor(name, numpy.ones((4, 4), numpy.float32))
    for name, values in tensors(architecture, model):
        add_tensor(writer, name, values, kind if name.endswith(quantised) else gguf.GGMLQuantizationType.F32)
    finish(writer)


def widen(reader, path):
    """Copies a GGUF file with all tensors in f32. Returns whether one of them was quantised."""
    writer = gguf.GGUFWriter(path, reader.get_field("general.architecture").contents())
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        kind, *of = field.types
        writer.add_key_value(name, field.contents(), kind, of[-1] if of else None)
    plain = (gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.F16, gguf.GGMLQuantizationType.BF16)
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        writer.add_tensor(tensor.name, values.astype(numpy.float32))
    finish(writer)
    return any(tensor.tensor_type not in plain for tensor in reader.tensors)
