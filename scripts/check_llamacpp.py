#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares headgate's log-probabilities of GGUF files with those of llama.cpp.

    check_llamacpp.py [BUILD [NAME …]]     BUILD: the build folder (default: build)

NAME is an architecture or a GGUF file. The default is every architecture that headgate reads. For an architecture, the
script writes a small random model, in f32 and in Q8_0.

`headgate eval` reads the whole sequence, and `headgate generate` reads token after token with a cache. llama.cpp reads
the sequence at once, in pieces of 16 tokens, and token after token. The script prints the largest and the mean
difference of a log-probability for each comparison.

Fails if log-probabilities differ by more than 1e-4, with two exceptions:

  - gemma3: 5e-3 for a small model, 0.2 for a given file, since llama.cpp rounds GELU and its argument to f16.
  - quantised matrices: llama.cpp rounds the activations to 8 bits, in blocks of 32 with a scale, and headgate does not.
    So headgate's log-probabilities are compared twice. llama.cpp first reads the same values in f32. Then it reads the
    file itself, and the mean difference may be up to 0.2, or 0.5 for a given file.

Needs what scripts/python_venv.sh installs, and `scripts/python_venv.sh build peers` for llama.cpp.
"""

import math
import subprocess
import sys
import tempfile
from pathlib import Path

import gguf
import numpy
import transformers

import check_families
import check_hybrids
import gguf_files
from check_families import generated, write_tokenizer

TOLERANCE = 1e-4
F16_GELU_TOLERANCE = {"small": 5e-3, "given": 0.2}
ROUNDED_ACTIVATIONS_MEAN = {"small": 0.2, "given": 0.5}  # the mean is above 1 for models with different weights
TOKENS = 70
PIECES = (TOKENS, 16, 1)
PROMPT = "It was the best of times"
NOT_READ = 3
# Replaces sizes of check_families.py and check_hybrids.py, so that rows consist of whole quantisation blocks.
WIDTHS = {
    "intermediate_size": 96,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "share_expert_dim": 32,
}
PLAIN = ("llama", "qwen2", "qwen3")
PLAIN_SIZES = {"max_position_embeddings": 256, "initializer_range": 0.1}


def families():
    """Maps each architecture to (class, class of config, sizes) of transformers."""
    plain = {name: check_families.FAMILIES[name] for name in PLAIN}
    plain["llama"] = check_families.FAMILIES["llama tied"]
    found = {}
    for name, (kind, config, extra) in plain.items():
        found[name] = (kind, config, check_families.SIZES | extra | PLAIN_SIZES)
    for name, architecture in check_hybrids.ARCHITECTURES.items():
        found[architecture] = check_hybrids.FAMILIES[name]
    for name, (kind, config, sizes) in found.items():
        if name in gguf_files.QWEN_HYBRIDS:  # llama.cpp also uses it to normalize q and k; headgate uses 1e-6 there
            sizes = sizes | {"rms_norm_eps": 1e-6}
        if name == "gpt-oss":  # llama.cpp rounds YaRN's bounds to integers; this base clamps both, so that is harmless
            sizes = sizes | {"rope_parameters": sizes["rope_parameters"] | {"rope_theta": 3.0}}
        found[name] = (kind, config, sizes | {key: WIDTHS[key] for key in WIDTHS if key in sizes})
    return found


class Unread(Exception):
    """Raised if this llama.cpp does not support the model."""


def theirs(peers, path, ids, folder, pieces=PIECES):
    """Returns llama.cpp's log-probabilities, as a dict from the length of pieces to (tokens,vocab)."""
    numpy.save(folder / "ids.npy", ids)
    script = Path(__file__).with_name("llamacpp_log_probs.py")
    command = [peers, script, path, folder / "ids.npy", folder / "theirs.npz", *map(str, pieces)]
    result = subprocess.run(command, stderr=subprocess.PIPE, text=True)
    if result.returncode == NOT_READ:
        raise Unread(result.stderr.strip().splitlines()[-1])
    if result.returncode != 0:
        sys.exit(f"llamacpp_log_probs.py: exit status {result.returncode}\n{result.stderr}")
    with numpy.load(folder / "theirs.npz") as found:
        return {int(length): found[length] for length in found.files}


def ours(tool, path, ids, folder):
    """Returns headgate's log-probabilities (tokens,vocab) for all tokens but the last, read at once."""
    numpy.save(folder / "ids.npy", ids)
    count, out = str(len(ids) - 1), folder / "ours.npy"
    command = [tool, "eval", path, "--token-ids", folder / "ids.npy", "--logits", out, "--metrics", "loss"]
    command += ["--tokens", count, "--seq-len", count, "--json"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return numpy.load(out)[0]


def compare(what, got, expected, largest, mean=math.inf):
    difference = numpy.abs(got - expected)
    print(
        f"{what:46s} down to {expected.min():6.2f}, largest difference {difference.max():.2e}, mean {difference.mean():.2e}"
    )
    return bool(difference.max() <= largest and difference.mean() <= mean)


def check_file(name, tool, peers, path, folder, size="small"):
    """Compares both programs on the file's values in f32, and on the file itself if it has quantised matrices."""
    reader = gguf.GGUFReader(path)
    architecture = reader.get_field("general.architecture").contents()
    tolerance = F16_GELU_TOLERANCE[size] if architecture == "gemma3" else TOLERANCE
    widened = folder / "widened.gguf"
    quantised = gguf_files.widen(reader, widened)
    ids = numpy.random.default_rng(3).integers(0, len(reader.get_field("tokenizer.ggml.tokens").data), TOKENS + 1)
    ids = ids.astype(numpy.int32)
    found = theirs(peers, widened, ids[:-1], folder)
    whole = ours(tool, path, ids, folder)
    good = True
    for length, log_probs in found.items():
        good &= compare(f"{name}, pieces of {length}", whole, log_probs, tolerance)
    options = ("--prompt", PROMPT, "--max-tokens", str(TOKENS), "--temperature", "1")
    answer, log_probs = generated(tool, path, folder, *options)
    ids_of_answer = numpy.array(answer["prompt_ids"] + answer["ids"], dtype=numpy.int32)
    expected = theirs(peers, widened, ids_of_answer[:-1], folder, (1,))[1][len(answer["prompt_ids"]) - 1 :]
    good &= compare(f"{name}, {len(expected)} tokens generated", log_probs, expected, tolerance)
    if quantised:
        rounded = theirs(peers, path, ids[:-1], folder, (TOKENS,))[TOKENS]
        good &= compare(f"{name}, activations rounded", whole, rounded, math.inf, ROUNDED_ACTIVATIONS_MEAN[size])
    return good


def check_architecture(architecture, tool, peers, folder):
    module = check_families if architecture in PLAIN else check_hybrids
    model = module.random_model(*families()[architecture])
    write_tokenizer(folder / "tokenizer.json")
    good = True
    for kind in ("F32", "Q8_0"):
        path = folder / f"{kind}.gguf"
        gguf_files.write(architecture, model, path, gguf.GGMLQuantizationType[kind], folder / "tokenizer.json")
        good &= check_file(f"{architecture}, {kind}", tool, peers, path, folder)
    return good


def main():
    build = Path(sys.argv[1] if len(sys.argv) > 1 else "build")
    tool, peers = (build / "headgate").resolve(), (build / "peers-venv/bin/python").absolute()
    if not peers.exists():
        sys.exit(f"{peers} is missing: run scripts/python_venv.sh {build} peers")
    transformers.logging.disable_progress_bar()
    transformers.logging.set_verbosity_error()
    good = True
    for name in sys.argv[2:] or families():
        with tempfile.TemporaryDirectory() as folder:
            try:
                if name in families():
                    good &= check_architecture(name, tool, peers, Path(folder))
                else:
                    good &= check_file(Path(name).name, tool, peers, Path(name).resolve(), Path(folder), "given")
            except Unread as error:
                print(f"{name}: not supported by this llama.cpp: {error}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
