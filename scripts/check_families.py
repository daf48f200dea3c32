#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares headgate's log-probabilities and figures with those of `transformers` for each family that both read.

    check_families.py [BUILD]     BUILD: the build folder (default: build)

Random small checkpoints of llama (with Llama 3's RoPE scaling), mistral (with a window), qwen2 and qwen3 are made here,
as one file, as shards, in bf16, and as GGUF where the package gguf knows the architecture. SmolLM2 is compared where
scripts/real_model.sh has put it into BUILD/models, on 384 tokens of English text that headgate and the package
tokenizers tokenize: a part of what scripts/english_text.sh has put into BUILD/text, or else of LICENSE. `headgate eval`
reads whole sequences, `headgate generate` token after token with a cache; of SmolLM2 its answer to a question is also the
one that transformers generates.

Fails when a log-probability differs by more than 1e-4 (of SmolLM2: on 128 random tokens and on generated ones), or loss,
bits per byte, first-token attention, sink rate or largest activation, of the model or of a layer, by more than 1e-4 or,
where it is above 1, that share of it. Attention to the first token behind a window, which mistral has, is not asked for.

Needs what scripts/python_venv.sh installs.
"""

import itertools
import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy
import tokenizers
import torch
import transformers

import gguf_files
from check_tokenizers import of_gguf

TOLERANCE = 1e-4
TOKENS = 60
ANSWER = 96
PROMPT = "It was the best of times, it was the worst of times"
QUESTION = "What is the capital of France?"
SIZES = {
    "vocab_size": 307,
    "hidden_size": 96,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.2,
    "rms_norm_eps": 1e-5,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
FAMILIES = {
    "llama": (transformers.LlamaForCausalLM, transformers.LlamaConfig, {"head_dim": 24, "rope_scaling": LLAMA3}),
    "llama tied": (
        transformers.LlamaForCausalLM,
        transformers.LlamaConfig,
        {"head_dim": 24, "tie_word_embeddings": True},
    ),
    "mistral": (transformers.MistralForCausalLM, transformers.MistralConfig, {"head_dim": 24, "sliding_window": 7}),
    "qwen2": (transformers.Qwen2ForCausalLM, transformers.Qwen2Config, {}),
    "qwen3": (transformers.Qwen3ForCausalLM, transformers.Qwen3Config, {"head_dim": 24}),
}


def random_model(kind, config_class, extra):
    torch.manual_seed(1)
    model = kind(config_class(**{**SIZES, **extra})).float().eval()
    with torch.no_grad():  # changes norms of 1 and biases of 0, so that the comparison shows whether each is read
        for name, parameter in model.named_parameters():
            if "norm" in name or name.endswith("bias"):
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def windowed(model):
    return getattr(model.config, "sliding_window", None) is not None and model.config.model_type == "mistral"


def theirs(model, tokens):
    """Returns transformers' log-probabilities (T,vocab) for all tokens but the last, as one sequence, and the figures
    with the keys of headgate's JSON."""
    model.set_attn_implementation("eager")
    largest = []
    hooks = [
        layer.register_forward_hook(
            lambda module, args, out: largest.append((out[0] if isinstance(out, tuple) else out).abs().max().item())
        )
        for layer in model.model.layers
    ]
    with torch.no_grad():
        ids = torch.from_numpy(tokens).long().unsqueeze(0)
        out = model(ids[:, :-1], output_attentions=True)
    for hook in hooks:
        hook.remove()
    log_probs = torch.log_softmax(out.logits.double(), dim=-1)[0]
    loss = -log_probs[torch.arange(len(tokens) - 1), ids[0, 1:]].mean().item()
    layers = []
    for attention, size in zip(out.attentions, largest):
        first = attention[0, :, 1:, 0].double().mean(dim=1)  # per head, without query 0, which sees only itself
        layers.append(
            {
                "first_token_attention": first.mean().item(),
                "sink_rate": (first > 0.3).double().mean().item(),
                "massive_activation": size,
            }
        )
    figures = {key: sum(layer[key] for layer in layers) / len(layers) for key in layers[0]}
    figures["massive_activation"] = max(layer["massive_activation"] for layer in layers)
    return log_probs.numpy(), {"loss_nats": loss, **figures, "layers": layers}


def ours(tool, path, data, tokens, model, folder):
    """Returns the log-probabilities and figures of `headgate eval`. `data` is --token-ids or --text with its file."""
    out = folder / "log_probs.npy"
    metrics = "loss,massive_activation" + ("" if windowed(model) else ",first_token_attention,sink_rate")
    said = subprocess.run(
        [
            tool,
            "eval",
            path,
            *data,
            "--logits",
            out,
            "--metrics",
            metrics,
            "--tokens",
            str(tokens),
            "--seq-len",
            str(tokens),
            "--json",
        ],
        check=True,
        stdout=subprocess.PIPE,
    ).stdout
    return numpy.load(out)[0], json.loads(said)


def furthest(got, expected):
    """Returns the largest difference of a figure among those that headgate has. For figures above 1, the difference is
    relative."""
    found = [0.0]
    for key, value in expected.items():
        if key == "layers":
            found += (furthest(a, b) for a, b in zip(got[key], value, strict=True))
        elif key in got:
            found.append(abs(got[key] - value) / max(1.0, abs(value)))
    return float(numpy.max(found))  # Python's max() may drop NaN


def write_tokenizer(path):
    """Trains a byte-level BPE tokenizer with SIZES["vocab_size"] tokens on this module's docstring, and writes it."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=SIZES["vocab_size"], show_progress=False, initial_alphabet=alphabet
    )
    tokenizer.train_from_iterator([__doc__], trainer)
    assert tokenizer.get_vocab_size() == SIZES["vocab_size"]
    tokenizer.save(str(path))


def generated(tool, path, folder, *options, dtype=("--dtype", "f32")):
    """Returns the JSON of `headgate generate`, and the log-probabilities (tokens,vocab) from which it chose the
    tokens."""
    out = folder / "log_probs.npy"
    command = [tool, "generate", path, *dtype, "--json", "--logits", out, *options]
    result = subprocess.run(command, check=True, capture_output=True)
    return json.loads(result.stdout), numpy.load(out)


def check_generated(what, model, answer, log_probs):
    """Returns whether transformers, which reads all tokens at once, gives the same log-probabilities."""
    tokens = numpy.array(answer["prompt_ids"] + answer["ids"])
    expected = theirs(model, tokens)[0][len(answer["prompt_ids"]) - 1 :]
    error = numpy.abs(log_probs - expected).max()
    print(
        f"{what:24s} {len(answer['ids']):3d} tokens generated, stopped by {answer['stop']}, largest difference {error:.2e}"
    )
    return error <= TOLERANCE


def compare(what, got, expected):
    """Prints and returns the largest difference of a log-probability, and of a figure."""
    error = numpy.abs(got[0] - expected[0]).max()
    of_figures = furthest(got[1], expected[1])
    print(
        f"{what:24s} log-probabilities down to {expected[0].min():7.2f}, largest difference {error:.2e}, "
        f"of a figure {of_figures:.2e}"
    )
    return error, of_figures


def check(what, tool, model, path, tokens, folder):
    numpy.save(folder / "ids.npy", tokens)
    got = ours(tool, path, ["--token-ids", folder / "ids.npy"], len(tokens) - 1, model, folder)
    return all(error <= TOLERANCE for error in compare(what, got, theirs(model, tokens)))


def check_family(name, tool, folder):
    kind, config_class, extra = FAMILIES[name]
    model = random_model(kind, config_class, extra)
    tokens = numpy.random.default_rng(3).integers(0, SIZES["vocab_size"], TOKENS).astype(numpy.int32)
    model.save_pretrained(folder / "whole")
    model.save_pretrained(folder / "shards", max_shard_size="100KB")
    assert len(list((folder / "shards").glob("*.safetensors"))) > 1
    good = check(name, tool, model, folder / "whole", tokens, folder)
    write_tokenizer(folder / "whole" / "tokenizer.json")
    drawn = generated(tool, folder / "whole", folder, "--prompt", PROMPT, "--max-tokens", "64", "--temperature", "1")
    good &= check_generated(name + ", cached", model, *drawn)
    good &= check(name + ", shards", tool, model, folder / "shards", tokens, folder)
    subprocess.run([tool, "convert", folder / "shards", folder / "converted"], check=True)
    again = transformers.AutoModelForCausalLM.from_pretrained(folder / "converted", dtype=torch.float32)
    assert type(again) is kind, type(again)
    good &= check(name + ", converted", tool, again, folder / "whole", tokens, folder)
    if name != "mistral" and "rope_scaling" not in extra:
        gguf_files.write(name.split()[0], model, folder / "model.gguf")
        good &= check(name + ", GGUF", tool, model, folder / "model.gguf", tokens, folder)
    half = kind.from_pretrained(folder / "whole", dtype=torch.bfloat16)
    half.save_pretrained(folder / "half")
    return good & check(name + ", bf16", tool, half.float(), folder / "half", tokens, folder)


def check_answer(what, tool, model, path, folder, options):
    """Returns whether headgate and transformers' generate choose the same most likely tokens."""
    answer, log_probs = generated(tool, path, folder, *options, "--max-tokens", str(ANSWER))
    good = check_generated(what, model, answer, log_probs)
    prompt = torch.tensor([answer["prompt_ids"]])
    with torch.no_grad():
        out = model.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=ANSWER)
    same = out[0, prompt.shape[1] :].tolist() == answer["ids"]
    print(f"{what:24s} {'the same tokens as' if same else 'OTHER TOKENS than'} transformers: {answer['text'][:60]!r}")
    return good & same


def english_text(build):
    """Returns about 3000 bytes of English: of the dictionary in BUILD/text, or else of LICENSE."""
    text = build / "text" / "gcide.txt"
    if not text.exists():
        return Path("LICENSE").read_text(encoding="utf-8")[:3000]
    with open(text, "rb") as lines:  # as bytes, since other lines of the file are not UTF-8
        return b"".join(itertools.islice(lines, 2000, 2600))[:3000].decode()


def check_smollm2(tool, path, folder, build):
    model = transformers.AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    tokenizer = of_gguf(path)  # the one that transformers makes of a GGUF file does not split numbers into digits
    count = 384
    (folder / "text").write_text(english_text(build), encoding="utf-8")
    tokens = numpy.array(tokenizer.encode(english_text(build)).ids[: count + 1], dtype=numpy.int32)
    assert len(tokens) == count + 1, len(tokens)
    expected = theirs(model.eval(), tokens)
    text_bytes = len(tokenizer.decode(tokens[1:].tolist(), skip_special_tokens=False).encode())
    expected[1]["text_bytes"] = text_bytes
    expected[1]["bits_per_byte"] = expected[1]["loss_nats"] * count / math.log(2) / text_bytes
    got = ours(tool, path, ["--text", folder / "text"], count, model, folder)
    for key, value in expected[1].items():
        if key != "layers":
            print(f"  {key:24s} headgate {got[1][key]:.6g}, transformers {value:.6g}")
    print(f"  largest activation after layer 12: {got[1]['layers'][12]['massive_activation']:.6g}")
    # Only the figures must agree here: rounding activations of 20,000 changes log-probabilities near -57 too much.
    _, of_figures = compare("SmolLM2, GGUF, text", got, expected)
    random = numpy.random.default_rng(5).integers(0, model.config.vocab_size, 129).astype(numpy.int32)
    good = check("SmolLM2, GGUF", tool, model, path, random, folder) and of_figures <= TOLERANCE
    good &= check_answer("SmolLM2, question", tool, model, path, folder, ["--chat", "--prompt", QUESTION])
    return good & check_answer("SmolLM2, text", tool, model, path, folder, ["--prompt", PROMPT])


def main():
    build = Path(sys.argv[1] if len(sys.argv) > 1 else "build")
    tool = build / "headgate"
    transformers.logging.disable_progress_bar()
    transformers.logging.set_verbosity_error()
    print(f"transformers {transformers.__version__}, PyTorch {torch.__version__}")
    good = True
    for name in FAMILIES:
        with tempfile.TemporaryDirectory() as folder:
            good &= check_family(name, tool, Path(folder))
    smollm2 = build / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
    if smollm2.exists():
        with tempfile.TemporaryDirectory() as folder:
            good &= check_smollm2(tool, smollm2, Path(folder), build)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
