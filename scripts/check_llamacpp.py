#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares headgate's log-probabilities of GGUF files with those of llama.cpp.

    check_llamacpp.py [BUILD [NAME …]]     BUILD: the build folder (default: build)

NAME is an architecture, or a GGUF file; the default is every architecture that headgate reads. For an architecture a small
random model is written, in f32 and in Q8_0. `headgate eval` reads the whole sequence, `headgate generate` token after token
with a cache; llama.cpp reads it whole, in pieces of 16 tokens, and token after token. Of each two the largest and the mean
difference of a log-probability are printed.

Fails where log-probabilities differ by more than 1e-4. llama.cpp rounds GELU and its argument to f16, so those of
gemma3 may differ by 5e-3 in a small model, and by 0.2 in a given file. It multiplies quantised matrices with
activations that it rounds to 8 bits, in blocks of 32 with a scale; headgate's are f32. So a quantised file is compared
twice: headgate's log-probabilities with those of llama.cpp on the same numbers in f32, and, with a bound of 0.2 (a
given file: 0.5) for the mean, with those of llama.cpp on the file itself.

Needs what scripts/python_venv.sh installs, and, for llama.cpp, `scripts/python_venv.sh build peers`.
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
ROUNDED_ACTIVATIONS_MEAN = {"small": 0.2, "given": 0.5}  # of other weights it is above 1
TOKENS = 70
PIECES = (TOKENS, 16, 1)
PROMPT = "It was the best of times"
NOT_READ = 3
# In place of those of other scripts, so that rows divide into blocks of a quantised format.
WIDTHS = {
    "intermediate_size": 96,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "share_expert_dim": 32,
}
PLAIN = ("llama", "qwen2", "qwen3")
PLAIN_SIZES = {"max_position_embeddings": 256, "initializer_range": 0.1}


def families():
    """(class, class of config, sizes) of transformers by architecture."""
    plain = {name: check_families.FAMILIES[name] for name in PLAIN}
    plain["llama"] = check_families.FAMILIES["llama tied"]
    found = {}
    for name, (kind, config, extra) in plain.items():
        found[name] = (kind, config, check_families.SIZES | extra | PLAIN_SIZES)
    for name, architecture in check_hybrids.ARCHITECTURES.items():
        found[architecture] = check_hybrids.FAMILIES[name]
    for name, (kind, config, sizes) in found.items():
        if name in gguf_files.QWEN_HYBRIDS:  # llama.cpp adds it to the squares of q and k, too, headgate 1e-6
            sizes = sizes | {"rms_norm_eps": 1e-6}
        if name == "gpt-oss":  # llama.cpp rounds YaRN's bounds to whole indices; with this base both are at the ends
            sizes = sizes | {"rope_parameters": sizes["rope_parameters"] | {"rope_theta": 3.0}}
        found[name] = (kind, config, sizes | {key: WIDTHS[key] for key in WIDTHS if key in sizes})
    return found


class Unread(Exception):
    """This llama.cpp does not read the model."""


def theirs(peers, path, ids, folder, pieces=PIECES):
    """(tokens,vocab) by the number of tokens of a piece."""
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
    """(tokens,vocab) of all tokens but the last, read at once."""
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
    """The file's numbers, in f32 in both programs, and the file itself where it has quantised matrices."""
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
