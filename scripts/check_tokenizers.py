#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares `headgate tokenize` with the `tokenizers` package: ids, tokens, offsets, on a megabyte of mixed text.

    check_tokenizers.py [BUILD] [--gguf FILE] [--write-golden DIR]

BUILD is the build folder (default: build). The script trains a tokenizer on a part of the text for each supported
pre-tokenizer. If GGUF has this kind, it also writes a GGUF file, and the package reads the tokenizer.json that
`headgate convert` makes of it. `headgate tokenize --train` is compared with the package's trainer.

--gguf also checks the tokenizer of a GGUF file, which the `gguf` package reads. --write-golden writes the small files
of tests/models/tokenize/golden, and compares nothing. Needs what scripts/python_venv.sh installs.
"""

import argparse
import json
import random
import struct
import subprocess
import sys
import tempfile
import unicodedata
from pathlib import Path

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

import sentence_pieces

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace("{1,3}", "")
QWEN35 = QWEN2.replace(r"?\p{L}+", r"?[\p{L}\p{M}]+").replace(r"[^\s\p{L}\p{N}]+", r"[^\s\p{L}\p{M}\p{N}]+")
GPT4O = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

# Article 1 of the Universal Declaration of Human Rights in many scripts, and samples of other kinds of text.
PROSE = """
All human beings are born free and equal in dignity and rights. They're endowed with reason; we'll act, I'd say, as he's
Todos los seres humanos nacen libres e iguales en dignidad y derechos, y dotados como están de razón y conciencia
Tous les êtres humains naissent libres et égaux en dignité et en droits. Ils sont doués de raison — où qu’ils soient
Alle Menschen sind frei und gleich an Würde und Rechten geboren. STRASSE, Straße, Überprüfung ẞ
Tất cả mọi người sinh ra đều được tự do và bình đẳng về nhân phẩm và quyền lợi
Все люди рождаются свободными и равными в своём достоинстве и правах. Ёлки
Όλοι οι άνθρωποι γεννιούνται ελεύθεροι και ίσοι στην αξιοπρέπεια και τα δικαιώματα
يولد جميع الناس أحراراً متساوين في الكرامة والحقوق ١٢٣٤٥
כל בני האדם נולדו בני חורין ושווים בערכם ובזכויותיהם שָׁלוֹם
सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता प्राप्त है ४५६
மனிதப் பிறிவியினர் சகலரும் சுதந்திரமாகவே பிறக்கின்றனர்
มนุษย์ทั้งหลายเกิดมามีอิสระและเสมอภาคกันในเกียรติศักดิ์และสิทธิ ๑๒๓
人人生而自由，在尊严和权利上一律平等。他们赋有理性和良心１２３
すべての人間は、生れながらにして自由であり、かつ、尊厳と権利とについて平等である。ガギグ ｶﾞ
모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다
ყველა ადამიანი იბადება თავისუფალი ՀԱՅԵՐԵՆ መላው ຄົນ མི
😀 🎉🎉 👩‍👩‍👧‍👦 👍🏽 🇩🇪 ❤️ ☃ ∀x∈ℝ: ⌈x⌉ = −⌊−x⌋, αβγ ≠ ½ ² ³ ① Ⅳ ㎏ ﬁ Å Ω
for (int i = 0; i < n; ++i) { x[i] += 3.14159e-10 * y[i]; }  // a comment_with_underscores
def f(self, *args, **kwargs):\n    return {"key": [1, 22, 333, 4444, 55555]}\n\n\n\tif x != 0:\r\n\t\tpass\r\n
<a href="https://example.org/?q=1&amp;r=2">l'été d'ici</a> $1,234,567.89 100% #hashtag @user IT'S DON'T WE'VE it'ſ
""".strip().split("\n")

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|end", "<s>"]


def mixed_text(size, seed):
    """Returns at least `size` characters of all kinds, in lines, runs and random pieces. `seed` determines the text."""
    draw = random.Random(seed)
    words = [
        word
        for line in PROSE
        for word in line.replace("\\n", "\n").replace("\\r", "\r").replace("\\t", "\t").split(" ")
    ]
    # Characters that are assigned in Python's version of Unicode. PCRE2 10.42 has Unicode 14 and lacks newer ones.
    known = [c for c in map(chr, range(1, 0x30000)) if unicodedata.category(c) not in ("Cn", "Cs", "Co")]
    spaces = [" ", "  ", "\n", "\t", "\r\n", "\u00a0", "\u2003", "\u3000", "\u2028", "\u0085", "   \n  "]
    out, length = [], 0
    while length < size:
        kind = draw.random()
        if kind < 0.55:
            part = " ".join(draw.choices(words, k=draw.randint(1, 12)))
        elif kind < 0.62:
            part = "".join(draw.choices(spaces, k=draw.randint(1, 6)))
        elif kind < 0.68:
            part = str(draw.randint(0, 10 ** draw.randint(1, 20)))
        elif kind < 0.74:
            part = draw.choice(SPECIAL) + draw.choice(["", " ", "\n", "x"])
        elif kind < 0.80:
            part = unicodedata.normalize(draw.choice(["NFD", "NFC", "NFKD"]), draw.choice(PROSE))
        elif kind < 0.86:
            part = "".join(draw.choices(known, k=draw.randint(1, 20)))
        elif kind < 0.90:
            part = draw.choice("aé中 😀\n-") * draw.randint(1, 200)
        elif kind < 0.95:
            part = draw.choice(words) + draw.choice(["'s", "'T", "'lL", "'Ve", "'", "’s", "'re", "'ſ"])
        else:
            part = draw.choice("e\u0301 a\u0323\u0302 \u1100\u1161\u11a8 \u212b \u0344 \u0958 \ufb1d \u2126".split(" "))
        part += draw.choice(["", " ", " ", "\n"])
        out.append(part)
        length += len(part)
    return "".join(out)


def unicode_text(size, seed):
    """Returns a random text of any characters that Python knows. Marks, joiners and line ends are frequent, since they
    change grapheme clusters."""
    draw = random.Random(seed)
    known = [c for c in map(chr, range(1, 0x110000)) if unicodedata.category(c) not in ("Cn", "Cs", "Co")]
    marks = [c for c in known if unicodedata.category(c).startswith("M")]
    joining = ["\r\n", "\u200d", "\ufe0f", "\U0001f1e6", "\U0001f468", "\u0600", "\u1100\u1161", "\u0915\u094d"]
    sources = (known, marks, joining, "aeAE \n", known[:0x3000])
    return "".join(draw.choice(draw.choices(sources, (4, 3, 2, 2, 3))[0]) for _ in range(size))


def byte_level(**options):
    return pre_tokenizers.ByteLevel(**{"add_prefix_space": False, **options})


def split(pattern, behavior="isolated", invert=False):
    return pre_tokenizers.Split(Regex(pattern), behavior, invert=invert)


def kinds():
    """Maps each name to (normalizer, pre-tokenizer, options of the model, special tokens to put around a text)."""
    bare = byte_level(use_regex=False)
    sequence = pre_tokenizers.Sequence
    digits = pre_tokenizers.Digits
    return {
        "gpt2": (None, byte_level(), {}, None),
        "smollm": (None, sequence([digits(individual_digits=True), byte_level()]), {}, None),
        "llama-bpe": (None, sequence([split(LLAMA3), bare]), {"ignore_merges": True}, "bos"),
        "qwen2": (normalizers.NFC(), sequence([split(QWEN2), bare]), {}, None),
        "qwen35": (normalizers.NFC(), sequence([split(QWEN35), bare]), {}, None),
        "gpt-4o": (None, sequence([split(GPT4O), bare]), {}, None),
        "gpt4o": (None, sequence([split(GPT4O, "removed", invert=True), bare]), {}, "both"),
        "prefix": (normalizers.NFC(), byte_level(add_prefix_space=True), {}, "bos"),
        "digits": (None, sequence([digits(individual_digits=False), byte_level(add_prefix_space=True)]), {}, None),
        "unknown": (None, byte_level(), {"unk_token": "<unk>"}, None),
        "fused": (None, byte_level(), {"unk_token": "<unk>", "fuse_unk": True}, None),
        "previous": (None, sequence([split(r"\s+", "merged_with_previous"), bare]), {}, None),
        "next": (None, sequence([split(r"[\s-]", "merged_with_next"), bare]), {}, None),
        "contiguous": (None, sequence([split(r"\p{Lu}|\p{Han}", "contiguous"), bare]), {}, None),
        "text": (
            None,
            sequence([pre_tokenizers.Split("e.", "isolated"), split(r"\d\D{0,2}$|[一-龥]+", "removed"), byte_level()]),
            {},
            None,
        ),
        "flags": (normalizers.NFC(), byte_level(), {}, None),
    }


def trained(name, text, size):
    normalizer, pre_tokenizer, options, post = kinds()[name]
    unknown = "unk_token" in options
    tokenizer = Tokenizer(models.BPE(**options))
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    first = ["<unk>"] if unknown else SPECIAL[:3]
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=first,
        show_progress=False,
        # Tokenizers with an unknown token lack tokens for some bytes, so that the unknown token is used.
        initial_alphabet=[] if unknown else pre_tokenizers.ByteLevel.alphabet(),
        **({"limit_alphabet": 60} if unknown else {}),
    )
    tokenizer.train_from_iterator(text.splitlines(keepends=True), trainer)
    add_tokens(tokenizer, name)
    if post:
        around = {"bos": "<|im_start|> $A", "both": "<|im_start|> $A <|im_end|>"}[post]
        ids = [(word, tokenizer.token_to_id(word)) for word in around.split() if word != "$A"]
        template = processors.TemplateProcessing(single=around, special_tokens=ids)
        tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template])
    return tokenizer


def add_tokens(tokenizer, name):
    """Adds tokens beyond the vocabulary, with flags of every kind."""
    if name == "flags":
        tokenizer.add_tokens(
            [
                AddedToken("être", single_word=True, normalized=True),
                AddedToken("e\u0301", normalized=True),
                AddedToken("free", lstrip=True, normalized=False),
                AddedToken("and", rstrip=True, normalized=False),
                AddedToken("dign", single_word=True, lstrip=True, rstrip=True),
                AddedToken("人", lstrip=True),
                AddedToken("12"),
                AddedToken("123"),
            ]
        )
        tokenizer.add_special_tokens([AddedToken("<|end", special=True, lstrip=True, rstrip=True)])
    elif name != "gpt2":
        tokenizer.add_tokens([AddedToken("  ", normalized=False), AddedToken("\n\n\n")])
        tokenizer.add_special_tokens(["<s>"])


def of_gguf(path):
    """Returns the tokenizer that a GGUF file describes. Its pre-tokenizer must be one of kinds()."""
    import gguf

    fields = gguf.GGUFReader(path).fields
    value = {key: fields["tokenizer.ggml." + key].contents() for key in ("tokens", "token_type", "merges", "pre")}
    normalizer, pre_tokenizer, options, _ = kinds()[value["pre"]]
    merges = [tuple(merge.split(" ")) for merge in value["merges"]]
    tokenizer = Tokenizer(models.BPE({word: i for i, word in enumerate(value["tokens"])}, merges, **options))
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    control = [word for word, kind in zip(value["tokens"], value["token_type"]) if kind == 3]
    tokenizer.add_special_tokens([AddedToken(word, special=True, normalized=False) for word in control])
    return tokenizer


def byte_level_values(tokenizer):
    """Returns tokens, token types and merges in the form of a GGUF file."""
    file = json.loads(tokenizer.to_str())
    added = {token["id"]: token for token in file["added_tokens"]}
    ids = range(tokenizer.get_vocab_size())
    types = [(3 if added[i]["special"] else 4) if i in added else 1 for i in ids]
    # A GGUF file has the original text of an added token, not the normalized one.
    words = [added[i]["content"] if i in added else tokenizer.id_to_token(i) for i in ids]
    return words, types, [" ".join(merge) for merge in file["model"]["merges"]]


def gguf_bytes(model, words, kinds_of_tokens, *, pre="default", merges=(), scores=(), flags=()):
    """Returns a GGUF file with a tokenizer, and a llama of one layer whose weights are 0. `flags` are pairs of a key
    and a boolean."""
    size, dim = len(words), 8
    u32, f32, string, array, i32, boolean = 4, 6, 8, 9, 5, 7

    def text(value):
        return struct.pack("<Q", len(value.encode())) + value.encode()

    def pair(key, kind, value):
        return text(key) + struct.pack("<I", kind) + value

    def number(key, value):
        return pair(key, u32, struct.pack("<I", value))

    def strings(key, values):
        return pair(key, array, struct.pack("<IQ", string, len(values)) + b"".join(map(text, values)))

    types = struct.pack(f"<IQ{size}i", i32, size, *kinds_of_tokens)
    layer = {"attn_q": (dim, dim), "attn_k": (dim, dim), "attn_v": (dim, dim), "attn_output": (dim, dim)}
    layer |= {"ffn_gate": (dim, dim), "ffn_up": (dim, dim), "ffn_down": (dim, dim)}
    layer |= {"attn_norm": (dim,), "ffn_norm": (dim,)}
    tensors = {"token_embd.weight": (dim, size), "output_norm.weight": (dim,)}
    tensors |= {f"blk.0.{name}.weight": shape for name, shape in layer.items()}
    values = [
        pair("general.architecture", string, text("llama")),
        number("llama.embedding_length", dim),
        number("llama.block_count", 1),
        number("llama.attention.head_count", 1),
        number("llama.feed_forward_length", dim),
        number("llama.context_length", 64),
        pair("llama.attention.layer_norm_rms_epsilon", f32, struct.pack("<f", 1e-5)),
        pair("tokenizer.ggml.model", string, text(model)),
        pair("tokenizer.ggml.pre", string, text(pre)),
        strings("tokenizer.ggml.tokens", words),
        pair("tokenizer.ggml.token_type", array, types),
        number("tokenizer.ggml.bos_token_id", 1),
        number("tokenizer.ggml.eos_token_id", 2),
        *(pair("tokenizer.ggml." + key, boolean, struct.pack("?", value)) for key, value in flags),
    ]
    if merges:
        values.append(strings("tokenizer.ggml.merges", merges))
    if scores:
        values.append(pair("tokenizer.ggml.scores", array, struct.pack(f"<IQ{size}f", f32, size, *scores)))
    infos, data = b"", b""
    for name, shape in tensors.items():
        infos += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, 0, len(data))
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        data += bytes(-(-4 * count // 32) * 32)
    out = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(values)) + b"".join(values) + infos
    return out + bytes(-len(out) % 32) + data


def converted_ids(tool, gguf, text, folder):
    """Returns the ids of a text by the tokenizer.json that `headgate convert` makes of a GGUF file."""
    made = folder / "converted"
    subprocess.run([tool, "convert", gguf, made], check=True, capture_output=True)
    return Tokenizer.from_file(str(made / "tokenizer.json")).encode(text).ids


def compare_byte_level_gguf(tool, kind, sample, text, folder):
    """Compares the conversion of a GGUF file with byte-level BPE. Returns a complaint, or an empty string."""
    tokenizer = trained(kind, sample, 4000)
    words, types, merges = byte_level_values(tokenizer)
    (folder / "m.gguf").write_bytes(gguf_bytes("gpt2", words, types, pre=kind, merges=merges))
    ids, expected = converted_ids(tool, folder / "m.gguf", text, folder), tokenizer.encode(text).ids
    return "" if ids == expected else f"token {first_difference(ids, expected)}"


def compare_scored_gguf(tool, kind, sample, text, folder):
    """Compares a GGUF file with scores, and its conversion, with Scored. Returns a complaint, or an empty string."""
    tokens, types, scores = sentence_pieces.gguf_values(sentence_pieces.KINDS[kind](sample, 4000))
    prefix = kind != "gemma"
    flags = [("add_bos_token", False), ("add_space_prefix", prefix)]
    file = folder / "m.gguf"
    file.write_bytes(gguf_bytes("llama", tokens, types, scores=scores, flags=flags))
    expected = sentence_pieces.Scored(tokens, types, scores, prefix).encode(text)
    (folder / "text").write_bytes(text.encode())
    command = [tool, "tokenize", file, "--text", folder / "text", "--json"]
    ids = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)["ids"]
    if ids != expected:
        return f"token {first_difference(ids, expected)}"
    ids = converted_ids(tool, file, text, folder)
    return "" if ids == expected else f"converted: token {first_difference(ids, expected)}"


def byte_offsets(text, offsets):
    """Converts offsets in characters to offsets in bytes of UTF-8."""
    at, total = [], 0
    for c in text:
        at.append(total)
        total += len(c.encode())
    at.append(total)
    return [(at[begin], at[end]) for begin, end in offsets]


def first_difference(ours, theirs):
    pairs = enumerate(zip(ours, theirs))
    return next((i for i, (a, b) in pairs if a != b), min(len(ours), len(theirs)))


def compare(tool, file, tokenizer, text, folder):
    """Compares headgate's tokens of a text with the package's. Returns a complaint, or an empty string."""
    path = folder / "text"
    path.write_bytes(text.encode())
    command = [tool, "tokenize", file, "--text", path, "--json"]
    result = subprocess.run(command, check=True, capture_output=True)
    ours = json.loads(result.stdout)
    theirs = tokenizer.encode(text)
    if ours["ids"] != theirs.ids:
        at = first_difference(ours["ids"], theirs.ids)
        near = slice(max(0, at - 3), at + 5)
        return f"token {at}: {ours['tokens'][near]}, not {theirs.tokens[near]}, at {theirs.offsets[near]}"
    added = tokenizer.get_added_tokens_decoder()  # for these, id_to_token() gives the normalized form
    if ours["tokens"] != [added[i].content if i in added else tokenizer.id_to_token(i) for i in theirs.ids]:
        return "spellings of tokens"
    # The package's offsets are wrong after dropped bytes, and omit marks that a normalizer composes.
    if result.stderr or tokenizer.normalizer:
        return ""
    return compare_offsets(text, ours, theirs)


def compare_offsets(text, ours, theirs):
    """Returns a complaint about offsets, or an empty string. The package's offsets are those of whole characters, and
    headgate's may lie within one. headgate's range is empty for added special tokens and an added first space."""
    encoded = text.encode()
    for i, ((begin, end), (low, high)) in enumerate(zip(ours["offsets"], byte_offsets(text, theirs.offsets))):
        if begin == end and (low == high or begin == low):
            continue
        while 0 < begin < len(encoded) and encoded[begin] & 0xC0 == 0x80:
            begin -= 1
        while end < len(encoded) and encoded[end] & 0xC0 == 0x80:
            end += 1
        if (begin, end) != (low, high):
            return f"token {i}, {theirs.tokens[i]}: offsets {ours['offsets'][i]}, not {(low, high)}"
    return ""


def compare_trained(tool, text, folder):
    """Compares the merges that `headgate tokenize --train` and the package learn. Both give bytes the same ids, so that
    they break ties alike. Returns a complaint, or an empty string."""
    sample, made = folder / "sample", folder / "tokenizer.json"
    sample.write_bytes(text.encode())
    command = [tool, "tokenize", "--train", "4000", "--special", "<s>", "--bos", "--text", sample, "--out", made]
    subprocess.run(command, check=True, capture_output=True)
    theirs = Tokenizer(models.BPE())
    theirs.pre_tokenizer = kinds()["qwen2"][1]
    trainer = trainers.BpeTrainer(
        vocab_size=3998,
        min_frequency=2,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    theirs.train_from_iterator([text], trainer)
    ours = json.loads(made.read_text(encoding="utf-8"))["model"]["merges"]
    expected = json.loads(theirs.to_str())["model"]["merges"]
    if ours != expected:
        return f"merge {first_difference(ours, expected)}"
    return compare(tool, made, Tokenizer.from_file(str(made)), text, folder)


def write_golden(folder):
    """Writes small tokenizers, and the ids that each gives for some texts."""
    random.seed(0)
    sample = "\n".join(PROSE) * 3
    texts = PROSE + [unicodedata.normalize("NFD", "".join(PROSE[2:5])), mixed_text(400, 3), "", " ", "\n\n", "a" * 200]
    ids = {}
    byte_level = ("gpt2", "smollm", "llama-bpe", "qwen2", "qwen35", "gpt-4o", "flags")
    made = {name: trained(name, sample, 420) for name in byte_level}
    made |= {
        name: sentence_pieces.KINDS[name](sample, 700)
        for name in ("llama2", "mistral3", "gemma", "t5", "t5-small", "uni-bytes")
    }
    for name, tokenizer in made.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        compact = json.dumps(json.loads(tokenizer.to_str()), ensure_ascii=False, separators=(",", ":"))
        (folder / name / "tokenizer.json").write_text(compact + "\n", encoding="utf-8")
        ids[name] = [tokenizer.encode(text).ids for text in texts]
    rows = [f' "{name}": ' + json.dumps(lists, separators=(",", ":")) for name, lists in ids.items()]
    cases = '{"texts": ' + json.dumps(texts, ensure_ascii=False) + ",\n" + ",\n".join(rows) + "}\n"
    (folder / "cases.json").write_text(cases, encoding="utf-8")


def check(arguments):
    tool = Path(arguments.build) / "headgate"
    text = mixed_text(arguments.size, 1)
    sample, any_characters = mixed_text(100_000, 2), unicode_text(arguments.size // 2, 4)
    print(f"tokenizers {tokenizers.__version__}, {len(text)} characters, {len(text.encode())} bytes")
    complaints = []

    def report(name, complaint):
        complaints.append(complaint)
        print(f"{name}: {complaint or 'the same'}")

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        made = [(kind, trained(kind, sample, 4000), folder / "tokenizer.json") for kind in kinds()]
        made += [(k, make(sample, 4000), folder / "tokenizer.json") for k, make in sentence_pieces.KINDS.items()]
        if arguments.gguf:
            tokenizer = of_gguf(arguments.gguf)
            name = Path(arguments.gguf).name
            made += [(name, tokenizer, folder / "tokenizer.json"), (name, tokenizer, Path(arguments.gguf))]
        for kind, tokenizer, file in made:
            if file.parent == folder:
                tokenizer.save(str(file))
            complaint = compare(tool, file, tokenizer, text, folder)
            if not complaint and "Precompiled" in str(tokenizer.normalizer):
                complaint = compare(tool, file, tokenizer, any_characters, folder)
            report(f"{kind:12s} {tokenizer.get_vocab_size()} tokens", complaint)
        report("trained      by headgate", compare_trained(tool, sample, folder))
        for kind in ("gpt2", "smollm", "llama-bpe", "qwen2", "qwen35", "gpt-4o"):
            report(f"{kind:12s} from GGUF, converted", compare_byte_level_gguf(tool, kind, sample, text, folder))
        for kind in ("llama2", "gemma", "phrases"):
            report(f"{kind:12s} from GGUF, converted", compare_scored_gguf(tool, kind, sample, text, folder))
    return 1 if any(complaints) else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("build", nargs="?", default="build")
    parser.add_argument("--gguf", help="a GGUF file with byte-level BPE")
    parser.add_argument("--size", type=int, default=600_000, help="characters of text")
    parser.add_argument("--write-golden", metavar="DIR", help="write the files of tests/models/tokenize/golden")
    arguments = parser.parse_args()
    if arguments.write_golden:
        return write_golden(Path(arguments.write_golden)) or 0
    return check(arguments)


if __name__ == "__main__":
    sys.exit(main())
