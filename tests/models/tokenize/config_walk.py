#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Changes the files beside tokenizer.json, one key at a time.

    config_walk.py HEADGATE

`headgate tokenize` must give the ids of transformers' AutoTokenizer, or refuse in one line that names the file and the
key. Ordinary words that no merge reaches are named as tokens; flags and settings contradict tokenizer.json.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

TEXT = " axyz <s> b\u0301 1"
WORD, TOKEN = "xyz", "<s>"  # an ordinary word of the vocabulary, and an added token
FLAGS = ("single_word", "lstrip", "rstrip", "special", "normalized")
ROLES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask", "image", "odd")
CONFIG, MAP, ADDED = "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"


def tokenizer_file(normalizer, prefix):
    words = [*sorted(pre_tokenizers.ByteLevel.alphabet()), WORD]
    tokenizer = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, []))
    if normalizer:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([TOKEN])
    return tokenizer.to_str()


def token(content, **flags):
    return {"content": content, **dict.fromkeys(FLAGS, False), "special": True, **flags}


def cases():
    """Yields (key, files beside tokenizer.json)."""
    for word in (WORD, TOKEN):
        for value in (word, token(word), {**token(word), "__type": "AddedToken"}):
            for role in ROLES:
                yield f"{role}_token", {CONFIG: {f"{role}_token": value}}
                if isinstance(value, str):
                    yield f"{role}_token", {MAP: {f"{role}_token": value}}
            yield "extra_special_tokens", {CONFIG: {"extra_special_tokens": [value]}}
        for key in ("additional_special_tokens", "extra_special_tokens"):
            yield key, {CONFIG: {key: [word]}}
            yield key, {MAP: {key: [word]}}
        yield "extra_special_tokens", {CONFIG: {"extra_special_tokens": {"image_token": word}}}
        for special in (False, True):
            yield "added_tokens_decoder", {CONFIG: {"added_tokens_decoder": {"256": token(word, special=special)}}}
        for index in (256, 257, 5):
            yield "the file", {ADDED: {word: index}}
        yield "the file", {ADDED: {word: 256}, CONFIG: {"added_tokens_decoder": {"257": token(TOKEN)}}}
    for flag in FLAGS:
        for value in (False, True):
            changed = {"added_tokens_decoder": {"257": token(TOKEN, **{flag: value})}}
            yield flag, {CONFIG: changed}
            yield flag, {CONFIG: {**changed, "eos_token": TOKEN}}
            yield flag, {CONFIG: {"eos_token": token(TOKEN, **{flag: value})}}
        short = token(TOKEN)
        short.pop(flag)
        yield flag, {CONFIG: {"added_tokens_decoder": {"257": short}}}
    every = {"unk_token": TOKEN, "bos_token": TOKEN, "eos_token": TOKEN, "pad_token": TOKEN}
    for name in ("PreTrainedTokenizerFast", "TokenizersBackend", "GPT2Tokenizer", "GPT2TokenizerFast"):
        for key in ("add_prefix_space", "split_special_tokens", "add_bos_token", "add_eos_token", "legacy"):
            for value in (False, True, None):
                yield key, {CONFIG: {**every, "tokenizer_class": name, key: value}}
        for key in ("clean_up_tokenization_spaces", "do_lower_case", "strip_accents", "trim_offsets", "remove_space"):
            yield key, {CONFIG: {**every, "tokenizer_class": name, key: True}}
        for key, value in (("model_max_length", 3), ("truncation_side", "left"), ("padding_side", "left")):
            yield key, {CONFIG: {**every, "tokenizer_class": name, key: value}}


def classes_pre_tokenizer(files):
    """Whether the class builds a normalizer and a pre-tokenizer, and ignores those of tokenizer.json."""
    return files.get(CONFIG, {}).get("tokenizer_class", "").startswith("GPT2")


def complaint_about(tool, folder, key, files):
    """(complaint, whether the files were read)"""
    for name in (CONFIG, MAP, ADDED):
        (folder / name).unlink(missing_ok=True)
    files = {**files, CONFIG: {"tokenizer_class": "PreTrainedTokenizerFast", **files.get(CONFIG, {})}}
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    try:
        expected = transformers.AutoTokenizer.from_pretrained(folder)(TEXT)["input_ids"]
    except Exception:  # some files are wrong for transformers, too
        expected = None
    result = subprocess.run([tool, "tokenize", folder, "--text", folder / "text"], capture_output=True, text=True)
    said = result.stderr.strip()
    if result.returncode == 2:
        named = said.count("\n") == 0 and key in said and str(folder) in said
        return ("" if named else f"refused with {said}"), False
    if result.returncode != 0:
        return f"status {result.returncode}: {said}", True
    ids = [int(line) for line in result.stdout.split()]
    return ("" if expected in (None, ids) else f"{ids}, not {expected}"), True


def main():
    transformers.logging.set_verbosity_error()
    counts, wrong = {True: 0, False: 0}, 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "text").write_text(TEXT)
        for normalizer, prefix in ((False, False), (True, False), (False, True)):
            (folder / "tokenizer.json").write_text(tokenizer_file(normalizer, prefix))
            for key, files in cases():
                builds = classes_pre_tokenizer(files)
                if builds and (normalizer or prefix and files[CONFIG].get("add_prefix_space") is None):
                    continue
                complaint, read = complaint_about(sys.argv[1], folder, key, files)
                counts[read] += 1
                if complaint:
                    wrong += 1
                    print(f"normalizer {normalizer}, prefix {prefix}, {files}: {complaint}", flush=True)
    print(f"{counts[True]} cases were read, {counts[False]} refused, {wrong} wrong")
    return 1 if wrong or min(counts.values()) < 50 else 0


if __name__ == "__main__":
    sys.exit(main())
