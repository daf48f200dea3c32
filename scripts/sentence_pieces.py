# SPDX-License-Identifier: Apache-2.0
"""Makes tokenizers like those of SentencePiece for check_tokenizers.py, in the forms of the models named below.

BPE is trained on words. Its trainer cannot make the 256 byte tokens, so they are added afterwards. The trainer of
Unigram can. Rare characters have no token, so that texts use byte fallback or the unknown token.
"""

import collections
import heapq
import json
import tempfile
from pathlib import Path

import sentencepiece
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

BLOCK = "\u2581"
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
LLAMA = normalizers.Sequence([normalizers.Prepend(BLOCK), normalizers.Replace(" ", BLOCK)])
GEMMA = normalizers.Replace(" ", BLOCK)
TEXT = [decoders.Replace(BLOCK, " "), decoders.ByteFallback(), decoders.Fuse()]
STRIPPED = decoders.Sequence([*TEXT, decoders.Strip(" ", 1, 0)])


def metaspace(scheme, split=False):
    return pre_tokenizers.Metaspace(BLOCK, scheme, split)


def around(tokenizer, before=(), after=()):
    """Returns the post-processor that puts special tokens around a text."""
    words = [*before, *after]
    return processors.TemplateProcessing(
        single=" ".join([*before, "$A", *after]), special_tokens=[(word, tokenizer.token_to_id(word)) for word in words]
    )


def trained_bpe(text, size, *, whole=False, alphabet=400):
    """Returns the pieces and merges of a trained BPE model. With `whole`, merges may cross words, to form phrases."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = LLAMA if whole else None
    tokenizer.pre_tokenizer = None if whole else metaspace("always", split=True)
    trainer = trainers.BpeTrainer(vocab_size=size, show_progress=False, limit_alphabet=alphabet)
    lines = text.splitlines(keepends=True)
    tokenizer.train_from_iterator([line[at : at + 60] for line in lines for at in range(0, len(line), 60)], trainer)
    model = json.loads(tokenizer.to_str())["model"]
    return list(model["vocab"]), [tuple(merge) for merge in model["merges"]]


def bpe(
    text,
    size,
    *,
    special=("<unk>", "<s>", "</s>"),
    others=(),
    has_bytes=True,
    whole=False,
    alphabet=400,
    first=(),
    **options,
):
    """Returns a BPE tokenizer. Its ids are those of `special` tokens, `others`, byte tokens and pieces, in this order.
    The merges `first` precede those of the pieces."""
    pieces, merges = trained_bpe(text, size, whole=whole, alphabet=alphabet)
    words = list(dict.fromkeys([*special, *others, *(BYTES if has_bytes else []), *pieces]))
    known = {"unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True, **options}
    tokenizer = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, [*first, *merges], **known))
    tokenizer.add_special_tokens([AddedToken(word, special=True, normalized=False) for word in special])
    tokenizer.add_tokens([AddedToken(word, normalized=False) for word in others])
    return tokenizer


def llama2(text, size):
    tokenizer = bpe(text, size)
    tokenizer.normalizer = LLAMA
    tokenizer.decoder = STRIPPED
    tokenizer.post_processor = around(tokenizer, ["<s>"])
    return tokenizer


def llama2_first_files(text, size):
    """Returns Llama 2's tokenizer as in its first files: special tokens are normalized, so that they only match at the
    start of a word."""
    tokenizer = bpe(text, size, special=())
    words = ["<unk>", "<s>", "</s>"]
    file = json.loads(tokenizer.to_str())
    vocab = {word: i for i, word in enumerate([*words, *file["model"]["vocab"]])}
    file["model"]["vocab"] = vocab
    file["added_tokens"] = [
        {"id": i, "content": word, "single_word": False, "lstrip": False, "rstrip": False, "normalized": True, "special": True}
        for i, word in enumerate(words)
    ]  # fmt: skip
    tokenizer = Tokenizer.from_str(json.dumps(file))
    tokenizer.normalizer = LLAMA
    tokenizer.decoder = STRIPPED
    tokenizer.post_processor = around(tokenizer, ["<s>"])
    return tokenizer


def llama_not_legacy(text, size):
    """Returns Llama 2's tokenizer as transformers writes it today: with Metaspace instead of a normalizer, and without
    an unknown token."""
    tokenizer = bpe(text, size, unk_token=None)
    tokenizer.pre_tokenizer = metaspace("first")
    tokenizer.decoder = STRIPPED
    tokenizer.post_processor = around(tokenizer, ["<s>"])
    return tokenizer


def mistral3(text, size):
    """Returns a tokenizer like that of Mistral 7B v0.3, with control tokens for instructions."""
    tokenizer = bpe(text, size, special=("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "<|im_start|>"))
    tokenizer.pre_tokenizer = metaspace("first")
    tokenizer.decoder = STRIPPED
    tokenizer.post_processor = around(tokenizer, ["<s>"])
    return tokenizer


def gemma(text, size):
    """Returns a tokenizer like that of Gemma 1 to 3. It adds no space before a text, and has tokens for runs of
    newlines and of spaces."""
    others = ["\n", "\n\n", "\n\n\n", "<table>", BLOCK * 2, BLOCK * 3]
    merges = [(c * n, c) for n in (1, 2) for c in (BLOCK, "\n")]
    special = ("<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>")
    tokenizer = bpe(text, size, special=special, others=others, first=merges)
    tokenizer.normalizer = GEMMA
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence(TEXT)
    tokenizer.post_processor = around(tokenizer, ["<bos>"])
    return tokenizer


def phrases(text, size):
    """Returns a tokenizer whose merges cross words, so that Headgate must not split a text between words."""
    tokenizer = bpe(text, size, whole=True)
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), GEMMA])
    tokenizer.decoder = decoders.Sequence(TEXT)
    return tokenizer


def unknown(text, size):
    tokenizer = bpe(text, size, has_bytes=False, fuse_unk=False, alphabet=60)
    tokenizer.normalizer = GEMMA
    return tokenizer


def fused(text, size):
    tokenizer = bpe(text, size, has_bytes=False, alphabet=60)
    tokenizer.normalizer = GEMMA
    return tokenizer


def ignoring(text, size):
    """Returns a tokenizer that applies no merges to words that are tokens."""
    tokenizer = bpe(text, size, ignore_merges=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [metaspace("always", split=True), pre_tokenizers.Digits(individual_digits=True)]
    )
    tokenizer.decoder = STRIPPED
    return tokenizer


def unigram(text, size, *, special, alphabet=(), has_bytes=False):
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = metaspace("always", split=True)
    trainer = trainers.UnigramTrainer(
        vocab_size=size, show_progress=False, special_tokens=[*special, *(BYTES if has_bytes else [])],
        unk_token="<unk>", max_piece_length=16, initial_alphabet=list(alphabet),
    )  # fmt: skip
    # Removes rare characters, so that they get no token.
    common = {c for c, count in collections.Counter(text).items() if count > len(text) // 2500}
    lines = "".join(c if c in common else " " for c in text).splitlines(keepends=True)
    tokenizer.train_from_iterator(lines, trainer)
    file = json.loads(tokenizer.to_str())
    file["model"]["byte_fallback"] = has_bytes
    scores = {}
    for piece, score in file["model"]["vocab"]:  # drops special tokens that the trainer also found in the text
        scores.setdefault(piece, score)
    file["model"]["vocab"] = [list(entry) for entry in scores.items()]
    file["added_tokens"] = [token for token in file["added_tokens"] if token["content"] in special]
    return Tokenizer.from_str(json.dumps(file))


def fields(message):
    """Yields (number, value) for each field of a protocol buffer message. Strings and messages are bytes."""
    at = 0

    def integer():
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(message):
        number, kind = divmod(integer(), 8)
        if kind == 0:
            yield number, integer()
            continue
        size = {1: 8, 5: 4}[kind] if kind != 2 else integer()
        yield number, message[at : at + size]
        at += size


def charsmap(**rules):
    """Returns a table of replacements of SentencePiece: the one named rule_name, or that of the file rule_tsv."""
    model = dict(fields(sentencepiece.SentencePieceNormalizer(**rules).serialized_model_proto()))
    normalizer_spec, precompiled_charsmap = 3, 2
    return dict(fields(model[normalizer_spec]))[precompiled_charsmap]


def small_charsmap():
    """Returns a small table, which joins, folds, removes and splits characters, and replaces white space."""
    rules = {
        "\ufb01": "fi",
        "e\u0301": "é",
        "\u212b": "Å",
        "\u3000": " ",
        "\u200b": "",
        "\n": " ",
        "\t": " ",
        "\r": " ",
    }
    rules |= {chr(0xFEE0 + c): chr(c) for c in range(0x21, 0x7F)}  # full-width forms
    rules |= {chr(c): chr(c + 32) for c in range(0x41, 0x5B)}
    rules |= {"½": "1⁄2", "…": "...", "\u0958": "\u0915\u093c", "\U0001f600": ":)"}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rules.tsv"
        lines = ["\t".join(" ".join(f"{ord(c):X}" for c in text) for text in rule) for rule in rules.items()]
        path.write_text("\n".join(lines) + "\n")
        return charsmap(rule_tsv=str(path))


def t5(text, size):
    """Returns a tokenizer like that of T5, without its table of replacements."""
    tokenizer = unigram(text, size, special=("<pad>", "</s>", "<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), metaspace("always", split=True)]
    )
    tokenizer.decoder = decoders.Metaspace(BLOCK, "always", True)
    tokenizer.post_processor = around(tokenizer, after=["</s>"])
    return tokenizer


def t5_nmt(text, size):
    """Returns a tokenizer like those of T5, XLM-R and others, with SentencePiece's table of compatible characters."""
    tokenizer = t5(text, size)
    tokenizer.normalizer = normalizers.Precompiled(charsmap(rule_name="nmt_nfkc"))
    return tokenizer


def t5_small(text, size):
    tokenizer = t5(text, size)
    tokenizer.normalizer = normalizers.Precompiled(small_charsmap())
    return tokenizer


def folded(text, size):
    """Returns a tokenizer that folds case with a table, then replaces spaces, and has normalized added tokens."""
    tokenizer = unigram(text, size, special=("<unk>", "<s>"), has_bytes=True)
    table = normalizers.Precompiled(charsmap(rule_name="nmt_nfkc_cf"))
    tokenizer.normalizer = normalizers.Sequence([table, normalizers.Replace(" ", BLOCK)])
    tokenizer.pre_tokenizer = pre_tokenizers.Split(BLOCK, "merged_with_next")
    tokenizer.add_tokens([AddedToken("\ufb01ne", normalized=True), AddedToken("ＡＢ", normalized=True)])
    return tokenizer


def unigram_bytes(text, size):
    tokenizer = unigram(text, size, special=("<unk>", "<s>", "</s>"), has_bytes=True)
    tokenizer.normalizer = LLAMA
    tokenizer.pre_tokenizer = None
    tokenizer.decoder = STRIPPED
    tokenizer.post_processor = around(tokenizer, ["<s>"])
    return tokenizer


def unigram_pieces(text, size):
    tokenizer = unigram(text, size, special=("<unk>",))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [metaspace("first", split=True), pre_tokenizers.Split(Regex(r"\p{N}"), "isolated")]
    )
    tokenizer.decoder = decoders.Metaspace(BLOCK, "first", True)
    return tokenizer


KINDS = {
    "llama2": llama2,
    "llama2-old": llama2_first_files,
    "llama": llama_not_legacy,
    "mistral3": mistral3,
    "gemma": gemma,
    "phrases": phrases,
    "sp-unknown": unknown,
    "sp-fused": fused,
    "ignoring": ignoring,
    "t5": t5,
    "t5-nmt": t5_nmt,
    "t5-small": t5_small,
    "folded": folded,
    "unigram": unigram_pieces,
    "uni-bytes": unigram_bytes,
}


# --- GGUF ------------------------------------------------------------------------------------------------------------


def gguf_values(tokenizer):
    """Returns tokens, token types and scores of a BPE tokenizer in the form of a GGUF file."""
    added = {token["id"]: token for token in json.loads(tokenizer.to_str())["added_tokens"]}
    tokens, types, scores = [], [], []
    for i in range(tokenizer.get_vocab_size()):
        word = tokenizer.id_to_token(i)
        if i in added:
            types.append(3 if added[i]["special"] else 4)
            word = word.replace(BLOCK, " ")
        else:
            types.append(6 if word in BYTES else 1)
        tokens.append(word)
        scores.append(0.0 if types[-1] == 6 else -1000.0 if types[-1] != 1 else -float(i))
    return tokens, types, scores


class Scored:
    """Reference for SentencePiece's BPE, written from its definition. Shares no code with Headgate."""

    def __init__(self, tokens, types, scores, prefix):
        self.tokens = tokens
        self.scores = {word: score for word, kind, score in zip(tokens, types, scores) if kind in (1, 4)}
        self.ids = {word: i for i, word in enumerate(tokens)}
        self.prefix = prefix
        self.added = sorted((word for word, kind in zip(tokens, types) if kind in (2, 3, 4)), key=len, reverse=True)
        self.firsts = {word[0] for word in self.added}

    def encode(self, text):
        out, at, begin = [], 0, 0
        while at < len(text):
            token = None
            if text[at] in self.firsts:
                token = next((word for word in self.added if text.startswith(word, at)), None)
            if token is None:
                at += 1
                continue
            out += self.merged(text[begin:at])
            out.append(self.ids[token])
            at += len(token)
            begin = at
        return out + self.merged(text[begin:])

    def merged(self, text):
        if not text:
            return []
        text = (" " if self.prefix else "") + text
        parts = list(text.replace(" ", BLOCK))
        after, before = list(range(1, len(parts) + 1)), list(range(-1, len(parts) - 1))
        queue = []

        def note(left):
            right = after[left] if left >= 0 else len(parts)
            if right < len(parts) and parts[left] + parts[right] in self.scores:
                whole = parts[left] + parts[right]
                heapq.heappush(queue, (-self.scores[whole], left, whole))

        for i in range(len(parts)):
            note(i)
        while queue:
            _, left, whole = heapq.heappop(queue)
            right = after[left]
            if parts[left] is None or right >= len(parts) or parts[left] + parts[right] != whole:
                continue
            parts[left], parts[right], after[left] = whole, None, after[right]
            if after[left] < len(parts):
                before[after[left]] = left
            note(before[left])
            note(left)
        out = []
        for part in parts:
            if part is not None:
                known = part in self.ids
                out += [self.ids[part]] if known else [self.ids[BYTES[byte]] for byte in part.encode()]
        return out
