#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares headgate's log-probabilities with those of `transformers` for families whose layers differ.

    check_hybrids.py [BUILD [FAMILY …]]     BUILD: the build folder (default: build)

Makes small random checkpoints of Qwen3.5 (dense and with experts), Qwen3-Next, OLMo-Hybrid, AFMoE, Step, Gemma 3 and
gpt-oss, with twice as many value heads as key heads. Each is checked in the forms that its family has:

  - as transformers writes it
  - as the text part of a multimodal model
  - with fused experts, or experts in MXFP4
  - as GGUF, with the order of values of llama.cpp's converter

`headgate eval` reads whole sequences. `headgate generate` reads token after token with a cache. Fails if a
log-probability differs by more than 1e-4.

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
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

import gguf_files
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
            "high_freq_factor": 32.0,
            "original_max_position_embeddings": 131072,
        },
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    },
}
FAMILIES["gpt_oss"] = (
    transformers.GptOssForCausalLM,
    transformers.GptOssConfig,
    MODEL
    | {
        "intermediate_size": 96,
        "num_local_experts": 8,
        "num_experts_per_tok": 3,
        "sliding_window": 9,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 150000.0,
            "factor": 8.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
            "original_max_position_embeddings": 64,
        },
    },
)
IMAGES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
FAMILIES["step3p7"] = (  # multimodal: transformers has no class for its text part alone
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
    "step3p7": "step35",
    "gpt_oss": "gpt-oss",
}
OUTER = {"qwen3_5": "qwen3_5", "qwen3_5_moe": "qwen3_5_moe", "gemma3_text": "gemma3"}


def random_model(kind, config_class, sizes):
    torch.manual_seed(1)
    model = kind(config_class(**sizes)).float().eval()
    with torch.no_grad():  # changes norms of 1 and biases of 0, so that the comparison shows whether each is read
        for name, parameter in model.named_parameters():
            if "norm" in name or name.endswith("bias") or name.endswith("A_log"):
                parameter.add_(0.3 * torch.randn_like(parameter))
            if name.endswith("sinks"):
                parameter.add_(torch.randn_like(parameter))
            if name.endswith("gate_up_proj_bias"):  # large enough to reach the limits that clamp activations
                parameter.add_(5 * torch.randn_like(parameter))
        for name, buffer in model.named_buffers():
            if name.endswith("correction_bias"):
                buffer.add_(0.3 * torch.randn_like(buffer))
    return model


def theirs(model, tokens):
    """Returns transformers' log-probabilities (T,vocab) for all tokens but the last, as one sequence."""
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
    """Writes the model as the text part of a multimodal model that also has layers to predict further tokens."""
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
    """Writes the model with an additional last layer, which predicts further tokens."""
    out.mkdir()
    (out / "config.json").write_text((path / "config.json").read_text())
    tensors = safetensors.numpy.load_file(path / "model.safetensors")
    tensors[f"model.layers.{layer}.eh_proj.weight"] = numpy.ones((2, 2), dtype=numpy.float32)
    safetensors.numpy.save_file(tensors, out / "model.safetensors")


def write_experts_apart(path, out):
    """Writes the model with the matrices of all experts fused into two tensors per layer."""
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


def packed(values):
    """Quantises values (E,rows,columns) to MXFP4. Returns blocks (E,rows,G,16) and scales (E,rows,G), in the layout of
    Hugging Face."""
    raw = gguf.quants.quantize(values, gguf.GGMLQuantizationType.MXFP4).reshape(*values.shape[:-1], -1, 17)
    codes = numpy.concatenate((raw[..., 1:] & 15, raw[..., 1:] >> 4), -1)
    return codes[..., ::2] | codes[..., 1::2] << 4, numpy.ascontiguousarray(raw[..., 0])


def write_mxfp4(model, path, out):
    """Writes the model with experts in MXFP4. Sets the experts of `model` to the rounded values, which transformers
    unpacks."""
    out.mkdir()
    config = json.loads((path / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
    (out / "config.json").write_text(json.dumps(config))
    (out / "tokenizer.json").write_text((path / "tokenizer.json").read_text())
    tensors = safetensors.numpy.load_file(path / "model.safetensors")
    parameters = dict(model.named_parameters())
    for name in [key for key in tensors if key.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        blocks, scales = packed(tensors.pop(name).swapaxes(1, 2))
        tensors |= {name + "_blocks": blocks, name + "_scales": scales}
        numbers = convert_moe_packed_tensors(torch.from_numpy(blocks), torch.from_numpy(scales), dtype=torch.float32)
        with torch.no_grad():
            parameters[name].copy_(numbers)
    safetensors.numpy.save_file(tensors, out / "model.safetensors")


def check_generated(what, model, tool, path, folder, dtype=("--dtype", "f32")):
    """Returns whether transformers gives the same log-probabilities for tokens that headgate drew with a cache."""
    drawn = ("--prompt", "It was the best of times", "--max-tokens", "64", "--temperature", "1")
    answer, log_probs = generated(tool, path, folder, *drawn, dtype=dtype)
    ids = numpy.array(answer["prompt_ids"] + answer["ids"])
    error = numpy.abs(log_probs - theirs(model, ids)[len(answer["prompt_ids"]) - 1 :]).max()
    print(f"{what:34s} {len(answer['ids'])} tokens generated, largest difference {error:.2e}")
    return error <= TOLERANCE


def check_sinks(name, model, tool, tokens, path, folder):
    """Compares the attention to sinks in the X-ray with 1 minus the sum of transformers' weights."""
    model.set_attn_implementation("eager")
    with torch.no_grad():
        weights = model(input_ids=torch.from_numpy(tokens[None, :-1]).long(), output_attentions=True).attentions
    expected = numpy.array([1 - of_layer[0, :, 1:].double().sum(-1).mean().item() for of_layer in weights])
    numpy.save(folder / "ids.npy", tokens)
    command = [tool, "xray", path, "--token-ids", folder / "ids.npy", "--tokens", str(len(tokens) - 1), "--json"]
    report = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)["models"][0]
    shares = numpy.array([figures["sink_attention"] for figures in report["layer_figures"]])
    error = numpy.abs(shares - expected).max()
    what = name + ", attention to sinks"
    print(f"{what:34s} from {expected.min():.3f} to {expected.max():.3f}, largest difference {error:.2e}")
    return error <= TOLERANCE


def check_mxfp4(name, model, tool, tokens, whole, folder):
    """Checks experts in MXFP4, in a directory and in a GGUF file. `headgate eval` widens them to f32. `headgate
    generate` reads them in place."""
    write_mxfp4(model, whole, folder / "mxfp4")
    expected = theirs(model, tokens)
    good = check(name + ", MXFP4", tool, folder / "mxfp4", tokens, expected, folder)
    good &= check_generated(name + ", MXFP4, cached", model, tool, folder / "mxfp4", folder, dtype=())
    path, kind = folder / "mxfp4.gguf", gguf.GGMLQuantizationType.MXFP4
    gguf_files.write(ARCHITECTURES[name], model, path, kind, whole / "tokenizer.json", quantised="_exps.weight")
    good &= check(name + ", MXFP4, GGUF", tool, path, tokens, expected, folder)
    good &= check_generated(name + ", MXFP4, GGUF, cached", model, tool, path, folder, dtype=())
    return good


def check_family(name, tool, folder):
    kind, config_class, sizes = FAMILIES[name]
    model = random_model(kind, config_class, sizes)
    tokens = numpy.random.default_rng(3).integers(0, MODEL["vocab_size"], TOKENS + 1).astype(numpy.int32)
    expected = theirs(model, tokens)
    whole = folder / "whole"
    model.save_pretrained(whole)
    good = check(name, tool, whole, tokens, expected, folder)
    write_tokenizer(whole / "tokenizer.json")
    good &= check_generated(name + ", cached", model, tool, whole, folder)
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
        further = 1 if name in ("qwen3_5", "step3p7") else 0
        gguf_files.write(ARCHITECTURES[name], model, folder / "model.gguf", further_layers=further)
        good &= check(name + ", GGUF", tool, folder / "model.gguf", tokens, expected, folder)
    if name == "gpt_oss":
        good &= check_sinks(name, model, tool, tokens, whole, folder)
        good &= check_mxfp4(name, model, tool, tokens, whole, folder)
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
