#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Changes every argument of every component of the `tokenizers` package, and every key of tokenizer.json, one at a time.

    package_walk.py HEADGATE

`headgate tokenize` must give the ids of the package or refuse the file, in one line that names the part. The package's
own classes and signatures are walked: one that is not in the tables below fails the test.
"""

import copy
import inspect
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

sys.path.insert(0, str(Path(__file__).parents[3] / "scripts"))
import sentence_pieces  # noqa: E402

TEXTS = [
    " Hello  world, aéb 123 4!\n",
    "Ünïcode e\u0301\u00a0ﬁ <s>x</s> ab<tok>ab  <tok> a b",
    "▁a",
]
WORDS = ["a", "b", "ab", "H", "e", "l", "o", " ", "▁", "1", "2", "w", "ll", "▁a", "é", "x", "12", "▁ab", "n", "i"]
MERGES = [("a", "b"), ("l", "l"), ("▁", "a"), ("1", "2"), ("▁a", "b")]
BLOCK = "▁"

# Arguments to give beyond the defaults, by module and class; a class without arguments has one case without any.
PATTERNS = [" ", "a", Regex(" "), Regex(r"\p{L}+"), Regex("[lo]")]
BEHAVIORS = ["removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"]
BOOLEANS = [False, True]
VALUES = {
    "normalizers.BertNormalizer": {
        k: BOOLEANS for k in ("clean_text", "handle_chinese_chars", "strip_accents", "lowercase")
    },
    "normalizers.Precompiled": {"precompiled_charsmap": [sentence_pieces.small_charsmap()]},
    "normalizers.Prepend": {"prepend": [BLOCK, " ", "ab", ""]},
    "normalizers.Replace": {"pattern": PATTERNS, "content": [BLOCK, "", "b", " "]},
    "normalizers.Strip": {"left": BOOLEANS, "right": BOOLEANS},
    "pre_tokenizers.ByteLevel": {k: BOOLEANS for k in ("add_prefix_space", "trim_offsets", "use_regex")},
    "pre_tokenizers.CharDelimiterSplit": {"delimiter": [" ", "a"]},
    "pre_tokenizers.Digits": {"individual_digits": BOOLEANS},
    "pre_tokenizers.FixedLength": {"length": [1, 3, 5]},
    "pre_tokenizers.Metaspace": {
        "replacement": [BLOCK, "_", " "],
        "prepend_scheme": ["always", "first", "never"],
        "split": BOOLEANS,
    },
    "pre_tokenizers.Punctuation": {"behavior": BEHAVIORS},
    "pre_tokenizers.Split": {"pattern": PATTERNS, "behavior": BEHAVIORS, "invert": BOOLEANS},
    "models.BPE": {
        "dropout": [None, 0.5, 1.0],
        "unk_token": [None, "<unk>", "missing"],
        "continuing_subword_prefix": [None, "", "##"],
        "end_of_word_suffix": [None, "", "</w>"],
        "fuse_unk": BOOLEANS,
        "byte_fallback": BOOLEANS,
        "ignore_merges": BOOLEANS,
        "cache_capacity": [0, 100],
    },
    "models.Unigram": {
        "unk_id": [None, 0, 3],
        "byte_fallback": BOOLEANS,
        "alpha": [None, 0.5],
        "nbest_size": [None, 4],
    },
    "models.WordLevel": {"unk_token": ["<unk>"]},
    "models.WordPiece": {
        "unk_token": ["<unk>"],
        "max_input_chars_per_word": [5],
        "continuing_subword_prefix": ["##", ""],
    },
    "processors.BertProcessing": {"sep": [("</s>", 2)], "cls_token": [("<s>", 1)]},
    "processors.ByteLevel": {k: BOOLEANS for k in ("add_prefix_space", "trim_offsets", "use_regex")},
    "processors.RobertaProcessing": {
        "sep": [("</s>", 2)],
        "cls_token": [("<s>", 1)],
        "trim_offsets": BOOLEANS,
        "add_prefix_space": BOOLEANS,
    },
    "processors.TemplateProcessing": {
        "single": ["$A", "<s> $A", "$A </s>", "<s> <s> $A </s> <s>", "<s>:1 $A:1 </s>:2"],
        "pair": ["$A $B", "<s> $A </s> $B:1"],
        "special_tokens": [[("<s>", 1), ("</s>", 2)]],
    },
    "decoders.BPEDecoder": {"suffix": ["</w>", "x"]},
    "decoders.CTC": {"pad_token": ["<pad>", "a"], "word_delimiter_token": ["|", "a"], "cleanup": BOOLEANS},
    "decoders.Metaspace": {
        "replacement": [BLOCK, "_"],
        "prepend_scheme": ["always", "first", "never"],
        "split": BOOLEANS,
    },
    "decoders.Replace": {"pattern": [BLOCK, "a", Regex(BLOCK)], "content": [" ", "b"]},
    "decoders.Strip": {"content": [" ", "a"], "left": [0, 1, 2], "right": [0, 1]},
    "decoders.WordPiece": {"prefix": ["##", ""], "cleanup": BOOLEANS},
}
INHERITED = {"vocab", "merges", "self"}  # filled in for every model
# Not components of a file, or made of the others.
SKIPPED = {
    "normalizers.Normalizer",
    "normalizers.Sequence",
    "pre_tokenizers.PreTokenizer",
    "pre_tokenizers.Sequence",
    "models.Model",
    "processors.PostProcessor",
    "processors.Sequence",
    "decoders.Decoder",
    "decoders.Sequence",
    "decoders.DecodeStream",
}
ADDED_TOKEN = {k: BOOLEANS for k in ("single_word", "lstrip", "rstrip", "normalized", "special")}


def classes(module):
    """(name, class) of the components in a module."""
    kind = module.__name__.rsplit(".", 1)[-1]
    for name in dir(module):
        one = getattr(module, name)
        if inspect.isclass(one) and one.__module__.startswith("tokenizers") and f"{kind}.{name}" not in SKIPPED:
            yield f"{kind}.{name}", one


def arguments(one):
    """Names of a class's arguments, without defaults or annotations."""
    inside = re.sub(r"\(.*?\)|\[.*?\]", "", one.__text_signature__.strip()[1:-1])
    names = [re.split("[=:]", part)[0].strip() for part in inside.split(",")]
    return [name for name in names if name and name != "self"]


def cases(name, one):
    """Arguments of each case: the first value of each, then each other value alone."""
    values = VALUES.get(name, {})
    missing = set(arguments(one)) - set(values) - INHERITED
    if missing or set(values) - set(arguments(one)):
        raise SystemExit(f"{name} has the arguments {arguments(one)}, which the table of this test does not have")
    first = {key: options[0] for key, options in values.items()}
    yield given(first)
    for key, options in values.items():
        for value in options[1:]:
            yield given({**first, key: value})


def given(chosen):
    """The arguments but for those that are None, which the package does not take."""
    return {key: value for key, value in chosen.items() if value is not None}


def vocabulary():
    words = ["<unk>", "<s>", "</s>", *WORDS]
    return {word: i for i, word in enumerate(words)}


def byte_words():
    return [f"<0x{byte:02X}>" for byte in range(256)]


def bpe(**options):
    words = vocabulary()
    if options.get("byte_fallback"):
        words |= {word: len(words) + i for i, word in enumerate(byte_words())}
    suffix = options.get("end_of_word_suffix") or ""
    if suffix:
        words |= {word + suffix: len(words) + i for i, word in enumerate(WORDS)}
    prefix = options.get("continuing_subword_prefix") or ""
    if prefix:  # merges are of tokens with it
        words |= {prefix + word: len(words) + i for i, word in enumerate(WORDS)}
        return models.BPE(words, [], **options)
    return models.BPE(words, MERGES, **options)


def byte_bpe():
    words = {word: i for i, word in enumerate(["<unk>", "<s>", "</s>", *sorted(pre_tokenizers.ByteLevel.alphabet())])}
    merges = [("a", "b"), ("l", "l"), ("Ġ", "a")]
    for left, right in merges:
        words[left + right] = len(words)
    return models.BPE(words, merges)


def unigram(**options):
    words = [(word, 0.0 if i < 3 else -1.0 - i / 10) for i, word in enumerate(vocabulary())]
    if options.get("byte_fallback"):
        words += [(word, 0.0) for word in byte_words()]
    return models.Unigram(words, **options)


def finished(model, **parts):
    """A tokenizer with three special tokens and one of the user's."""
    tokenizer = Tokenizer(model)
    for part, value in parts.items():
        setattr(tokenizer, part, value)
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.add_tokens(["<tok>"])
    return tokenizer


def of_models():
    for name, one in classes(models):
        for chosen in cases(name, one):
            if name == "models.BPE":
                model = bpe(**chosen)
            elif name == "models.Unigram":
                model = unigram(**chosen)
            else:
                model = one(vocabulary(), **chosen)
            yield f"{name}{chosen}", finished(model)


def of_parts():
    for module, part in (
        (normalizers, "normalizer"),
        (pre_tokenizers, "pre_tokenizer"),
        (processors, "post_processor"),
        (decoders, "decoder"),
    ):
        for name, one in classes(module):
            for chosen in cases(name, one):
                component = one(**chosen)
                for kind, make in (("bpe", bpe), ("byte bpe", byte_bpe), ("unigram", lambda: unigram(unk_id=0))):
                    others = {}
                    if kind == "byte bpe" and part != "pre_tokenizer":
                        others["pre_tokenizer"] = pre_tokenizers.ByteLevel(add_prefix_space=False)
                    yield f"{name}{chosen} with {kind}", finished(make(), **others, **{part: component})


def of_added_tokens():
    for key, options in ADDED_TOKEN.items():
        for value in options:
            for parts in (
                {},
                {"normalizer": normalizers.Prepend(BLOCK)},
                {"pre_tokenizer": pre_tokenizers.Metaspace()},
            ):
                tokenizer = finished(bpe(unk_token="<unk>"), **parts)
                token = AddedToken("ab", **{key: value})
                (tokenizer.add_special_tokens if token.special else tokenizer.add_tokens)([token])
                yield f"added token {key}={value} with {list(parts)}", tokenizer


ODD = [7, 0.5, "odd", True, False, None, [], {}]


def of_keys():
    """Every key of files with all parts that are supported, at values of every type; and keys that no part has."""
    template = processors.TemplateProcessing(single="<s> $A", pair="$A $B", special_tokens=[("<s>", 1)])
    byte_level = finished(
        byte_bpe(),
        normalizer=normalizers.NFC(),
        pre_tokenizer=pre_tokenizers.Sequence(
            [pre_tokenizers.Split(" ", "isolated"), pre_tokenizers.Digits(), pre_tokenizers.ByteLevel()]
        ),
        post_processor=processors.Sequence([processors.ByteLevel(), template]),
        decoder=decoders.ByteLevel(),
    )
    llama = finished(
        bpe(unk_token="<unk>", fuse_unk=True),
        normalizer=normalizers.Sequence([normalizers.Prepend(BLOCK), normalizers.Replace(" ", BLOCK)]),
        post_processor=template,
        decoder=decoders.Sequence(
            [decoders.Replace(BLOCK, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        ),
    )
    pieces = finished(unigram(unk_id=0), pre_tokenizer=pre_tokenizers.Metaspace(), decoder=decoders.Metaspace())
    for name, tokenizer in (("byte level", byte_level), ("llama", llama), ("pieces", pieces)):
        tokenizer.enable_truncation(4)
        tokenizer.enable_padding(length=64)
        file = json.loads(tokenizer.to_str())
        yield f"{name}, truncation and padding", json.dumps(file)
        for place in places(file):
            old = value_at(file, place)
            for odd in ODD:
                if odd == old and type(odd) is type(old):
                    continue
                changed = copy.deepcopy(file)
                value_at(changed, place[:-1])[place[-1]] = odd
                yield f"{name}, {'.'.join(map(str, place))} = {odd!r}", json.dumps(changed)
            if isinstance(old, dict):
                changed = copy.deepcopy(file)
                value_at(changed, place)["surprise"] = 1
                yield f"{name}, {'.'.join(map(str, place))}.surprise", json.dumps(changed)


def value_at(file, place):
    for key in place:
        file = file[key]
    return file


def places(value, before=()):
    """Paths to the keys of a file, except the tokens of its vocabulary and all but one of a list's elements."""
    if before[-1:] in (("vocab",), ("merges",)):
        return
    items = value.items() if isinstance(value, dict) else enumerate(value[:1]) if isinstance(value, list) else ()
    for key, inside in items:
        yield (*before, key)
        yield from places(inside, (*before, key))


def expected_ids(made, texts):
    """The package's ids of each text without truncation and padding, as transformers encodes one; None if it refuses."""
    try:
        tokenizer = Tokenizer.from_str(made) if isinstance(made, str) else made
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return [tokenizer.encode(text).ids for text in texts]
    except BaseException as error:  # the package panics on some files
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            raise
        return None


def complaint_about(tool, made, folder):
    """(complaint, whether the file was read)"""
    texts = TEXTS[1:2] if isinstance(made, str) else TEXTS
    file = folder / "tokenizer.json"
    file.write_text(made if isinstance(made, str) else made.to_str(), encoding="utf-8")
    expected = expected_ids(made, texts)
    for i, text in enumerate(texts):
        path = folder / "text"
        path.write_bytes(text.encode())
        result = subprocess.run([tool, "tokenize", file, "--text", path], capture_output=True, text=True)
        said = result.stderr.strip()
        if result.returncode == 2 and said.count("\n") == 0 and str(file) in said:
            return "", False
        if result.returncode != 0:
            return f"status {result.returncode}: {said}", True
        ids = [int(line) for line in result.stdout.split()]
        if expected is not None and ids != expected[i]:
            return f"text {i}: {ids}, not {expected[i]}", True
    return "", True


def main():
    tool = Path(sys.argv[1])
    counts, complaints = {True: 0, False: 0}, []
    with tempfile.TemporaryDirectory() as name:
        for source in (of_models, of_parts, of_added_tokens, of_keys):
            for case, made in source():
                complaint, read = complaint_about(tool, made, Path(name))
                counts[read] += 1
                if complaint:
                    complaints.append(f"{case}: {complaint}")
                    print(complaints[-1], flush=True)
    print(f"{counts[True]} files were read, {counts[False]} refused, {len(complaints)} wrong")
    return 1 if complaints or counts[True] < 100 else 0


if __name__ == "__main__":
    sys.exit(main())
