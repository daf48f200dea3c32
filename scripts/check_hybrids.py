#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares headgate's log-probabilities with those of `transformers` for families whose layers differ.

    check_hybrids.py [BUILD [FAMILY …]]     BUILD: the build folder (default: build)

Random small checkpoints of Qwen3.5, dense and with experts, Qwen3-Next, OLMo-Hybrid, AFMoE, Step and Gemma 3 are made: as
transformers writes them, as the text part of a model that reads images, with experts in tensors of their own, and as GGUF
in the order in which llama.cpp's converter writes them. Value heads are twice as many as key heads. `headgate eval` reads
whole sequences, `headgate generate` token after token with a cache. Fails when a log-probability differs by more than
1e-4.

Needs what scripts/python_venv.sh installs.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import gguf
import numpy
import safetensors.numpy
import torch
import transformers

from check_families import SIZES, TOLERANCE, generated, write_tokenizer

TOKENS = 70
MODEL = {
    "vocab_size": SIZES["vocab_size"],
    "hidden_size": 64,
    "intermediate_size": 80,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 256,
    "initializer_range": 0.1,
    "rms_norm_eps": 1e-5,
}
LINEAR = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
}
EXPERTS = {
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 20,
    "shared_expert_intermediate_size": 28,
}
OLMO = {key: value for key, value in {**MODEL, **LINEAR}.items() if key != "head_dim"}
FAMILIES = {
    "qwen3_5": (transformers.Qwen3_5ForCausalLM, transformers.Qwen3_5TextConfig, {**MODEL, **LINEAR}),
    "qwen3_5_moe": (transformers.Qwen3_5MoeForCausalLM, transformers.Qwen3_5MoeTextConfig, MODEL | LINEAR | EXPERTS),
    "qwen3_next": (transformers.Qwen3NextForCausalLM, transformers.Qwen3NextConfig, MODEL | LINEAR | EXPERTS),
    "qwen3_next, raw weights": (
        transformers.Qwen3NextForCausalLM,
        transformers.Qwen3NextConfig,
        MODEL | LINEAR | EXPERTS | {"norm_topk_prob": False},
    ),
    "olmo_hybrid": (
        transformers.OlmoHybridForCausalLM,
        transformers.OlmoHybridConfig,
        OLMO | {"linear_num_value_heads": 2, "linear_value_head_dim": 24, "pad_token_id": 0, "eos_token_id": 1},
    ),
    "gemma3_text": (
        transformers.Gemma3ForCausalLM,
        transformers.Gemma3TextConfig,
        MODEL | {"num_hidden_layers": 7, "sliding_window": 9, "query_pre_attn_scalar": 32},
    ),
    "afmoe": (
        transformers.AfmoeForCausalLM,
        transformers.AfmoeConfig,
        MODEL
        | {key: value for key, value in EXPERTS.items() if key != "shared_expert_intermediate_size"}
        | {"num_shared_experts": 2, "sliding_window": 9, "mup_enabled": True, "route_scale": 1.7},
    ),
}
STEP = {
    **MODEL,
    "num_nextn_predict_layers": 1,
    "layer_types": ["full_attention"] + 3 * ["sliding_attention"],
    "mlp_layer_types": ["dense"] + 3 * ["sparse"],
    "sliding_window": 9,
    "num_sliding_attention_heads": 6,
    "moe_intermediate_size": 20,
    "n_routed_experts": 8,
    "num_local_experts": 8,
    "num_experts_per_tok": 3,
    "share_expert_dim": 28,
    "moe_router_scaling_factor": 1.7,
    "swiglu_limits": [0, 0, None, 0.05],
    "swiglu_limits_shared": [0, 0, 0, 0.04],
    "pad_token_id": 0,
    "rope_parameters": {
        "full_attention": {
            "rope_type": "llama3",
            "rope_theta": 5e6,
            "partial_rotary_factor": 0.5,
            "factor": 2.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    },
}
IMAGES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
FAMILIES["step3p7"] = (  # there is no class for its text part alone
    transformers.Step3p7ForConditionalGeneration,
    lambda **sizes: transformers.Step3p7Config(text_config=sizes, vision_config=IMAGES),
    STEP,
)
ARCHITECTURES = {
    "qwen3_5": "qwen35",
    "qwen3_5_moe": "qwen35moe",
    "qwen3_next": "qwen3next",
    "gemma3_text": "gemma3",
    "afmoe": "afmoe",
}
OUTER = {"qwen3_5": "qwen3_5", "qwen3_5_moe": "qwen3_5_moe", "gemma3_text": "gemma3"}
GGUF_OUTER = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
GGUF_NAMES = {
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "self_attn.gate_proj.weight": "attn_gate.weight",
    "self_attn.q_norm.weight": "attn_q_norm.weight",
    "self_attn.k_norm.weight": "attn_k_norm.weight",
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "post_attention_norm.weight",
    "pre_feedforward_layernorm.weight": "ffn_norm.weight",
    "post_feedforward_layernorm.weight": "post_ffw_norm.weight",
    "pre_mlp_layernorm.weight": "ffn_norm.weight",
    "post_mlp_layernorm.weight": "post_ffw_norm.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
    "mlp.gate.weight": "ffn_gate_inp.weight",
    "mlp.router.gate.weight": "ffn_gate_inp.weight",
    "mlp.expert_bias": "exp_probs_b.bias",
    "mlp.experts.down_proj": "ffn_down_exps.weight",
    "mlp.shared_expert_gate.weight": "ffn_gate_inp_shexp.weight",
    "linear_attn.in_proj_qkv.weight": "attn_qkv.weight",
    "linear_attn.in_proj_z.weight": "attn_gate.weight",
    "linear_attn.in_proj_b.weight": "ssm_beta.weight",
    "linear_attn.in_proj_a.weight": "ssm_alpha.weight",
    "linear_attn.in_proj_ba.weight": "ssm_ba.weight",
    "linear_attn.conv1d.weight": "ssm_conv1d.weight",
    "linear_attn.A_log": "ssm_a",
    "linear_attn.dt_bias": "ssm_dt.bias",
    "linear_attn.norm.weight": "ssm_norm.weight",
    "linear_attn.out_proj.weight": "ssm_out.weight",
}
for part in ("gate", "up", "down"):
    for shared in ("shared_expert", "shared_experts"):
        GGUF_NAMES[f"mlp.{shared}.{part}_proj.weight"] = f"ffn_{part}_shexp.weight"


def random_model(kind, config_class, sizes):
    torch.manual_seed(1)
    model = kind(config_class(**sizes)).float().eval()
    with torch.no_grad():  # norms are ones and biases zeros at the start: other numbers show that each is read
        for name, parameter in model.named_parameters():
            if "norm" in name or name.endswith("bias") or name.endswith("A_log"):
                parameter.add_(0.3 * torch.randn_like(parameter))
        for name, buffer in model.named_buffers():
            if name.endswith("correction_bias"):
                buffer.add_(0.3 * torch.randn_like(buffer))
    return model


def theirs(model, tokens):
    """(T,vocab) log-probabilities of one sequence of all tokens but the last."""
    with torch.no_grad():
        logits = model(input_ids=torch.from_numpy(tokens[None, :-1]).long()).logits
    return torch.log_softmax(logits.double(), -1)[0].numpy()


def check(what, tool, path, tokens, expected, folder):
    numpy.save(folder / "ids.npy", tokens)
    count = str(len(tokens) - 1)
    command = [tool, "eval", path, "--token-ids", folder / "ids.npy", "--logits", folder / "log_probs.npy"]
    subprocess.run(
        [*command, "--metrics", "loss", "--tokens", count, "--seq-len", count, "--json"],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    error = numpy.abs(numpy.load(folder / "log_probs.npy")[0] - expected).max()
    print(f"{what:34s} log-probabilities down to {expected.min():7.2f}, largest difference {error:.2e}")
    return error <= TOLERANCE


def write_inside_another(name, path, out):
    """As the text part of a model that reads images and predicts further tokens."""
    config = json.loads((path / "config.json").read_text())
    out.mkdir()
    (out / "config.json").write_text(
        json.dumps({"model_type": OUTER[name], "text_config": config, "vision_config": {}})
    )
    tensors = safetensors.numpy.load_file(path / "model.safetensors")
    moved = {key.replace("model.", "model.language_model.", 1): tensor for key, tensor in tensors.items()}
    others = ("mtp.layers.0.x.weight", "model.visual.patch.weight", "vision_tower.x.weight")
    moved |= {key: numpy.ones((2, 2), dtype=numpy.float32) for key in others}
    safetensors.numpy.save_file(moved, out / "model.safetensors")


def add_next_layer(path, layer, out):
    """With a layer behind the model's own, which predicts further tokens."""
    out.mkdir()
    (out / "config.json").write_text((path / "config.json").read_text())
    tensors = safetensors.numpy.load_file(path / "model.safetensors")
    tensors[f"model.layers.{layer}.eh_proj.weight"] = numpy.ones((2, 2), dtype=numpy.float32)
    safetensors.numpy.save_file(tensors, out / "model.safetensors")


def write_experts_apart(path, out):
    """With each expert's matrices in tensors of their own, or fused if they were apart."""
    out.mkdir()
    (out / "config.json").write_text((path / "config.json").read_text())
    tensors, written = safetensors.numpy.load_file(path / "model.safetensors"), {}
    apart = {}
    for key, tensor in tensors.items():
        before, found, rest = key.partition(".mlp.experts.")
        if found:
            apart.setdefault(before, {})[rest] = tensor
        else:
            written[key] = tensor
    for before, experts in apart.items():
        count = 1 + max(int(rest.split(".")[0]) for rest in experts)

        def of(part, experts=experts, count=count):
            return numpy.stack([experts[f"{i}.{part}_proj.weight"] for i in range(count)])

        written[f"{before}.mlp.experts.gate_up_proj"] = numpy.concatenate((of("gate"), of("up")), 1)
        written[f"{before}.mlp.experts.down_proj"] = of("down")
    safetensors.numpy.save_file(written, out / "model.safetensors")


def tiled(values, config, axis, first, size):
    """Reorders value heads of `size` from `first` on: one of each key head in turn."""
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
    """in_proj_qkv and in_proj_z of Qwen3-Next's in_proj_qkvz, as llama.cpp's converter takes them apart."""
    size, keys = config.linear_key_head_dim, config.linear_num_key_heads
    width = config.linear_num_value_heads // keys * config.linear_value_head_dim
    groups = values.reshape(keys, -1, values.shape[1])
    q, k, v, z = numpy.split(groups, [size, 2 * size, 2 * size + width], 1)
    flat = [part.reshape(-1, values.shape[1]) for part in (q, k, v, z)]
    return {"attn_qkv.weight": numpy.concatenate(flat[:3]), "attn_gate.weight": flat[3]}


def gguf_tensors(architecture, model):
    """(name, values) of each tensor, as llama.cpp's converter writes them."""
    config = model.config
    one_more = architecture != "afmoe"  # norms carry the 1 of zero-centred ones, but for linear attention's
    for name, tensor in model.state_dict().items():
        values = tensor.numpy()
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        if one_more and name.endswith("norm.weight") and "linear_attn" not in name:
            values = values + 1
        if name in GGUF_OUTER:
            yield GGUF_OUTER[name], values
            continue
        _, _, layer, rest = name.split(".", 3)
        block = f"blk.{layer}."
        if rest == "linear_attn.A_log":
            values = -numpy.exp(values)
        if rest == "linear_attn.conv1d.weight":
            values = values[:, 0]
        if architecture in ("qwen35", "qwen35moe") and rest.startswith("linear_attn"):
            values = reordered(rest, values, config)
        if rest == "linear_attn.in_proj_qkvz.weight":
            for part, rows in of_qkvz(values, config).items():
                yield block + part, rows
        elif rest == "mlp.experts.gate_up_proj":
            half = values.shape[1] // 2
            yield block + "ffn_gate_exps.weight", values[:, :half]
            yield block + "ffn_up_exps.weight", values[:, half:]
        elif rest == "mlp.shared_expert_gate.weight":
            yield block + GGUF_NAMES[rest], values[0]
        else:
            yield block + GGUF_NAMES[rest], values


def write_gguf(architecture, model, path):
    config = model.config
    writer = gguf.GGUFWriter(path, architecture)
    rope = config.rope_parameters
    rope = rope.get("full_attention", rope)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    next_layers = 1 if architecture == "qwen35" else 0
    writer.add_block_count(config.num_hidden_layers + next_layers)
    if getattr(config, "intermediate_size", None):
        writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(rope["rope_theta"])
    own = {}
    if architecture.startswith("qwen"):
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
    if getattr(config, "num_experts", None):
        own |= {
            "expert_count": config.num_experts,
            "expert_used_count": config.num_experts_per_tok,
            "expert_feed_forward_length": config.moe_intermediate_size,
        }
    if hasattr(config, "shared_expert_intermediate_size"):
        own["expert_shared_feed_forward_length"] = config.shared_expert_intermediate_size
    if architecture in ("gemma3", "afmoe"):
        own["attention.sliding_window"] = config.sliding_window
    if architecture == "afmoe":
        own |= {"leading_dense_block_count": config.num_dense_layers, "expert_shared_count": config.num_shared_experts}
        own["expert_gating_func"] = 2
        writer.add_float32("afmoe.expert_weights_scale", config.route_scale)
        writer.add_bool("afmoe.expert_weights_norm", True)
    for key, value in own.items():
        writer.add_uint32(f"{architecture}.{key}", value)
    if next_layers:
        writer.add_uint32(f"{architecture}.nextn_predict_layers", next_layers)
        writer.add_array(f"{architecture}.rope.dimension_sections", [2, 1, 1, 0])
        recurrent = [kind == "linear_attention" for kind in config.layer_types]
        writer.add_array(f"{architecture}.attention.recurrent_layers", [*recurrent, False])
        writer.add_tensor(f"blk.{config.num_hidden_layers}.nextn.eh_proj.weight", numpy.ones((4, 4), numpy.float32))
    for name, values in gguf_tensors(architecture, model):
        writer.add_tensor(name, numpy.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def check_family(name, tool, folder):
    kind, config_class, sizes = FAMILIES[name]
    model = random_model(kind, config_class, sizes)
    tokens = numpy.random.default_rng(3).integers(0, MODEL["vocab_size"], TOKENS + 1).astype(numpy.int32)
    expected = theirs(model, tokens)
    whole = folder / "whole"
    model.save_pretrained(whole)
    good = check(name, tool, whole, tokens, expected, folder)
    write_tokenizer(whole / "tokenizer.json")
    drawn = generated(
        tool, whole, folder, "--prompt", "It was the best of times", "--max-tokens", "64", "--temperature", "1"
    )
    answer, log_probs = drawn
    ids = numpy.array(answer["prompt_ids"] + answer["ids"])
    error = numpy.abs(log_probs - theirs(model, ids)[len(answer["prompt_ids"]) - 1 :]).max()
    print(f"{name + ', cached':34s} {len(answer['ids'])} tokens generated, largest difference {error:.2e}")
    good &= error <= TOLERANCE
    if name == "step3p7":
        add_next_layer(whole, MODEL["num_hidden_layers"], folder / "next")
        good &= check(name + ", with a further layer", tool, folder / "next", tokens, expected, folder)
    if name in OUTER:
        write_inside_another(name, whole, folder / "outer")
        good &= check(name + ", inside another", tool, folder / "outer", tokens, expected, folder)
    if "num_experts" in sizes:
        write_experts_apart(whole, folder / "fused")
        good &= check(name + ", fused experts", tool, folder / "fused", tokens, expected, folder)
    subprocess.run([tool, "convert", whole, folder / "converted"], check=True, stdout=subprocess.DEVNULL)
    good &= check(name + ", converted", tool, folder / "converted", tokens, expected, folder)
    if name in ARCHITECTURES:
        write_gguf(ARCHITECTURES[name], model, folder / "model.gguf")
        good &= check(name + ", GGUF", tool, folder / "model.gguf", tokens, expected, folder)
    return good


def main():
    build = Path(sys.argv[1] if len(sys.argv) > 1 else "build")
    good = True
    for name in sys.argv[2:] or FAMILIES:
        with tempfile.TemporaryDirectory() as folder:
            good &= check_family(name, (build / "headgate").resolve(), Path(folder))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
