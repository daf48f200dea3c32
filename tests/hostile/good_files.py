# SPDX-License-Identifier: Apache-2.0
"""Good files for hostile trials, as {path: bytes}: the smallest of each kind that headgate reads."""

import base64
import dataclasses
import json
import math
import random
import struct
from collections.abc import Iterable

TEXT = (
    "The quick brown fox jumps over the lazy dog. Zwölf Boxkämpfer jagen Viktor quer über den Sylter Deich. " * 6
).encode()


def floats(count: int, seed: int = 1, scale: float = 0.3) -> list[float]:
    draw = random.Random(seed)
    return [draw.uniform(-scale, scale) for _ in range(count)]


# --- .npy ------------------------------------------------------------------------------------------------------------

NPY_CODES = {"<f4": "f", "<f8": "d", "<f2": "e", "<i4": "i", "<i8": "q", "|i1": "b", "|b1": "?"}


def npy_header(dictionary: str, version: int = 1) -> bytes:
    text = dictionary.encode("latin-1")
    length = struct.calcsize("<H" if version == 1 else "<I")
    text += b" " * (-(8 + length + len(text) + 1) % 64) + b"\n"
    return b"\x93NUMPY" + bytes([version, 0]) + struct.pack("<H" if version == 1 else "<I", len(text)) + text


def npy(shape: tuple[int, ...], values: Iterable = (), descr: str = "<f4", version: int = 1) -> bytes:
    values = list(values) or floats(math.prod(shape))
    header = npy_header(f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape!r}, }}", version)
    return header + struct.pack(f"<{len(values)}{NPY_CODES[descr]}", *values)


def attend_files() -> dict[str, bytes]:
    """Makes one call with every input of a plain batch: B 2, Hq 2, Hkv 1, T 3, S 4, D 4."""
    return {
        "q.npy": npy((2, 2, 3, 4)),
        "k.npy": npy((2, 1, 4, 4), floats(32, 2)),
        "v.npy": npy((2, 1, 4, 4), floats(32, 3)),
        "z.npy": npy((2, 2, 3, 4), floats(48, 4)),
        "bias.npy": npy((3, 4)),
        "mask.npy": npy((3, 4), [1, 1, 1, 0] * 3, "|b1"),
        "lengths.npy": npy((2,), [4, 3], "<i4"),
        "offsets.npy": npy((2,), [1, 0], "<i8"),
        "alibi.npy": npy((2,), [0.5, 0.25]),
        "sinks.npy": npy((2,), [0.1, -0.1]),
        "dy.npy": npy((2, 2, 3, 4), floats(48, 5)),
    }


def packed_files() -> dict[str, bytes]:
    """Makes two sequences of 3 and 2 queries over 3 and 4 keys."""
    return {
        "q.npy": npy((1, 2, 5, 4)),
        "k.npy": npy((1, 1, 7, 4), floats(28, 2)),
        "v.npy": npy((1, 1, 7, 4), floats(28, 3)),
        "cq.npy": npy((3,), [0, 3, 5], "<i4"),
        "ck.npy": npy((3,), [0, 3, 7], "<i8"),
    }


def paged_files() -> dict[str, bytes]:
    """Makes keys and values in int8, in three pages of 4 rows, and two first rows of each sequence in f32."""
    numbers = [i % 100 - 50 for i in range(48)]
    return {
        "q.npy": npy((2, 2, 1, 4)),
        "k.npy": npy((3, 1, 4, 4), numbers, "|i1"),
        "v.npy": npy((3, 1, 4, 4), numbers, "|i1"),
        "ks.npy": npy((3, 1, 4, 1), [0.01] * 12),
        "vs.npy": npy((3, 1, 4, 1), [0.02] * 12),
        "kf.npy": npy((2, 1, 2, 4)),
        "vf.npy": npy((2, 1, 2, 4)),
        "table.npy": npy((2, 2), [0, 1, 2, 0], "<i4"),
        "lengths.npy": npy((2,), [6, 3], "<i4"),
    }


def linear_files() -> dict[str, bytes]:
    """Makes two sequences of 3 and 2 tokens: Hq 2, Hk 1, Hv 2, D 4."""
    return {
        "q.npy": npy((1, 2, 5, 4)),
        "k.npy": npy((1, 1, 5, 4), floats(20, 2)),
        "v.npy": npy((1, 2, 5, 4), floats(40, 3)),
        "g.npy": npy((1, 2, 5, 1), [-0.25] * 10),
        "beta.npy": npy((1, 2, 5, 1), [0.5] * 10),
        "s0.npy": npy((2, 2, 4, 4), floats(64, 4)),
        "c.npy": npy((3,), [0, 3, 5], "<i8"),
        "ends.npy": npy((2, 2), [1, 3, 0, 2], "<i4"),
        "dy.npy": npy((1, 2, 5, 4), floats(40, 5)),
        "ds.npy": npy((2, 2, 4, 4), floats(64, 6)),
    }


# --- safetensors -----------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Tensor:
    name: str
    shape: tuple[int, ...]
    data: bytes
    dtype: str = "F32"


def safetensors_header(tensors: list[Tensor]) -> dict:
    out, at = {}, 0
    for tensor in tensors:
        out[tensor.name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [at, at + len(tensor.data)],
        }
        at += len(tensor.data)
    return out


def safetensors_bytes(header: dict | str | bytes, data: bytes) -> bytes:
    if isinstance(header, dict):
        header = json.dumps(header)
    if isinstance(header, str):
        header = header.encode()
    return struct.pack("<Q", len(header)) + header + data


def safetensors(tensors: list[Tensor]) -> bytes:
    return safetensors_bytes(safetensors_header(tensors), b"".join(tensor.data for tensor in tensors))


# --- models ----------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Sizes:
    vocab: int = 256
    dim: int = 8
    layers: int = 2
    heads: int = 2
    kv_heads: int = 1
    head_dim: int = 4
    ffn: int = 12
    seq_len: int = 32


FAMILIES = {
    "llama": ("LlamaForCausalLM", {}),
    "mistral": ("MistralForCausalLM", {"sliding_window": 48}),
    "qwen2": ("Qwen2ForCausalLM", {"use_sliding_window": False}),
    "qwen3": ("Qwen3ForCausalLM", {}),
    "qwen3-gated": ("Qwen3ForCausalLM", {"headwise_attn_output_gate": True}),
    "headgate": (
        "HeadgateForCausalLM",
        {
            "norm_kind": "plain",
            "norm_placement": "pre",
            "qk_norm": "per_head",
            "gate_site": "g1",
            "gate_grain": "headwise",
            "gate_source": "input",
            "gate_fn": "sigmoid",
            "gate_op": "mul",
            "gate_bias": "none",
        },
    ),
}


def config_of(family: str, sizes: Sizes) -> dict:
    model_class, more = FAMILIES[family]
    return {
        "architectures": [model_class],
        "model_type": family.split("-")[0],
        "vocab_size": sizes.vocab,
        "hidden_size": sizes.dim,
        "num_hidden_layers": sizes.layers,
        "num_attention_heads": sizes.heads,
        "num_key_value_heads": sizes.kv_heads,
        "head_dim": sizes.head_dim,
        "intermediate_size": sizes.ffn,
        "max_position_embeddings": sizes.seq_len,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "initializer_range": 0.02,
        "torch_dtype": "float32",
        **more,
    }


def shapes_of(family: str, sizes: Sizes) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of the model's tensors by their Hugging Face names."""
    q, kv, dim = sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim, sizes.dim
    out: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (sizes.vocab, dim)}
    for n in range(sizes.layers):
        layer = {
            "input_layernorm.weight": (dim,),
            "self_attn.q_proj.weight": (q, dim),
            "self_attn.k_proj.weight": (kv, dim),
            "self_attn.v_proj.weight": (kv, dim),
            "self_attn.o_proj.weight": (dim, q),
            "post_attention_layernorm.weight": (dim,),
            "mlp.gate_proj.weight": (sizes.ffn, dim),
            "mlp.up_proj.weight": (sizes.ffn, dim),
            "mlp.down_proj.weight": (dim, sizes.ffn),
        }
        if family in ("qwen3", "qwen3-gated", "headgate"):
            layer |= {"self_attn.q_norm.weight": (sizes.head_dim,), "self_attn.k_norm.weight": (sizes.head_dim,)}
        if family == "qwen2":
            layer |= {"self_attn.q_proj.bias": (q,), "self_attn.k_proj.bias": (kv,), "self_attn.v_proj.bias": (kv,)}
        if family == "qwen3-gated":
            layer["self_attn.q_proj.weight"] = (q + sizes.heads, dim)
        if family == "headgate":
            layer["self_attn.gate_proj.weight"] = (sizes.heads, dim)
        out |= {f"model.layers.{n}.{name}": shape for name, shape in layer.items()}
    out["model.norm.weight"] = (dim,)
    return out


def tensors_of(family: str, sizes: Sizes) -> list[Tensor]:
    out = []
    for n, (name, shape) in enumerate(shapes_of(family, sizes).items()):
        count = math.prod(shape)
        out.append(Tensor(name, shape, struct.pack(f"<{count}f", *floats(count, n))))
    return out


def model(family: str = "qwen3", sizes: Sizes = Sizes()) -> dict[str, bytes]:
    return {
        "m/config.json": json.dumps(config_of(family, sizes), indent=2).encode(),
        "m/model.safetensors": safetensors(tensors_of(family, sizes)),
        "book.txt": TEXT,
    }


def gpt_oss_model() -> dict[str, bytes]:
    """Has experts in MXFP4: tensors of bytes with codes, and with scales of 2^-15."""
    dim, ffn, experts, heads = 32, 64, 2, 2
    config = {
        "model_type": "gpt_oss", "vocab_size": 256, "hidden_size": dim, "intermediate_size": ffn,
        "num_hidden_layers": 2, "num_attention_heads": heads, "num_key_value_heads": 1, "head_dim": 16, "max_position_embeddings": 64,
        "num_local_experts": experts, "num_experts_per_tok": 1, "sliding_window": 4, "rope_theta": 150000,
        "quantization_config": {"quant_method": "mxfp4"},
        "rope_scaling": {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 32, "truncate": False},
    }  # fmt: skip
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (256, dim), "lm_head.weight": (256, dim)}
    for n in range(2):
        layer: dict[str, tuple[int, ...]] = {
            "input_layernorm.weight": (dim,),
            "post_attention_layernorm.weight": (dim,),
        }
        for part, rows in {"q": 32, "k": 16, "v": 16, "o": dim}.items():
            layer |= {f"self_attn.{part}_proj.weight": (rows, dim), f"self_attn.{part}_proj.bias": (rows,)}
        layer |= {"self_attn.sinks": (heads,), "mlp.router.weight": (experts, dim), "mlp.router.bias": (experts,)}
        for part, rows, columns in (("gate_up_proj", 2 * ffn, dim), ("down_proj", dim, ffn)):
            layer |= {
                f"mlp.experts.{part}_bias": (experts, rows),
                f"mlp.experts.{part}_blocks": (experts, rows, columns // 32, 16),
                f"mlp.experts.{part}_scales": (experts, rows, columns // 32),
            }
        shapes |= {f"model.layers.{n}.{name}": shape for name, shape in layer.items()}
    shapes["model.norm.weight"] = (dim,)
    tensors = []
    for n, (name, shape) in enumerate(shapes.items()):
        count = math.prod(shape)
        if name.endswith("_blocks"):
            tensors.append(Tensor(name, shape, random.Random(n).randbytes(count), "U8"))
        elif name.endswith("_scales"):
            tensors.append(Tensor(name, shape, bytes([112]) * count, "U8"))
        else:
            tensors.append(Tensor(name, shape, struct.pack(f"<{count}f", *floats(count, n))))
    return {
        "m/config.json": json.dumps(config, indent=2).encode(),
        "m/model.safetensors": safetensors(tensors),
        "book.txt": TEXT,
    }


SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


def sharded_model() -> dict[str, bytes]:
    files, tensors = model("llama"), tensors_of("llama", Sizes())
    del files["m/model.safetensors"]
    index = {}
    for n, shard in enumerate(SHARDS):
        files[f"m/{shard}"] = safetensors(tensors[n::2])
        index |= {tensor.name: shard for tensor in tensors[n::2]}
    files["m/model.safetensors.index.json"] = json.dumps({"metadata": {"total_size": 1}, "weight_map": index}).encode()
    return files


# --- tokenizers ------------------------------------------------------------------------------------------------------


def byte_spellings() -> list[str]:
    """Returns the spelling of each byte in byte-level BPE."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    out, next_free = [], 256
    for byte in range(256):
        if byte in plain:
            out.append(chr(byte))
        else:
            out.append(chr(next_free))
            next_free += 1
    return out


MERGES = ["t h", "th e", "Ġ the"]
SPECIAL = ["<|im_start|>", "<|im_end|>"]
TOKENS = byte_spellings() + [merge.replace(" ", "") for merge in MERGES] + SPECIAL
CHATML = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def tokenizer_json() -> dict:
    added = [
        {
            "id": TOKENS.index(token),
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for token in SPECIAL
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "post_processor": None,
        "decoder": {"type": "ByteLevel"},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "fuse_unk": False,
            "ignore_merges": False,
            "vocab": {token: n for n, token in enumerate(TOKENS[: -len(SPECIAL)])},
            "merges": MERGES,
        },
    }


def tokenized_model() -> dict[str, bytes]:
    """Makes a model with all the files of a tokenizer and of generation."""
    files = model("qwen3", Sizes(vocab=len(TOKENS), seq_len=64))
    return files | {
        "m/tokenizer.json": json.dumps(tokenizer_json()).encode(),
        "m/tokenizer_config.json": json.dumps({"chat_template": CHATML, "eos_token": "<|im_end|>"}).encode(),
        "m/generation_config.json": json.dumps(
            {"eos_token_id": [TOKENS.index("<|im_end|>")], "do_sample": False}
        ).encode(),
    }


# --- GGUF ------------------------------------------------------------------------------------------------------------

GGUF_TYPES = {
    "u8": (0, "B"),
    "i8": (1, "b"),
    "u16": (2, "H"),
    "i16": (3, "h"),
    "u32": (4, "I"),
    "i32": (5, "i"),
    "f32": (6, "f"),
    "bool": (7, "?"),
    "string": (8, ""),
    "list": (9, ""),
    "u64": (10, "Q"),
    "i64": (11, "q"),
    "f64": (12, "d"),
}
# Word: id, numbers of a block, its bytes, offsets of its scales in f16; that of MXFP4 is the first byte.
GGUF_FORMATS = {
    "F32": (0, 1, 4, ()),
    "F16": (1, 1, 2, (0,)),
    "BF16": (30, 1, 2, ()),
    "Q8_0": (8, 32, 34, (0,)),
    "Q4_0": (2, 32, 18, (0,)),
    "Q4_1": (3, 32, 20, (0, 2)),
    "Q5_0": (6, 32, 22, (0,)),
    "Q5_1": (7, 32, 24, (0, 2)),
    "Q4_K": (12, 256, 144, (0, 2)),
    "Q5_K": (13, 256, 176, (0, 2)),
    "Q6_K": (14, 256, 210, (208,)),
    "MXFP4": (39, 32, 17, ()),
}


def gguf_string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def gguf_payload(type_name: str, value) -> bytes:
    """Returns the bytes of a value after its type; for a list, `value` is (type of elements, elements)."""
    if type_name == "string":
        return gguf_string(value)
    if type_name == "list":
        of, elements = value
        return struct.pack("<IQ", GGUF_TYPES[of][0], len(elements)) + b"".join(gguf_payload(of, x) for x in elements)
    return struct.pack("<" + GGUF_TYPES[type_name][1], value)


@dataclasses.dataclass
class GgufValue:
    key: str
    type: str
    value: object
    raw: bytes | None = None  # the type and the payload, right or wrong; None: those of `value`

    def body(self) -> bytes:
        return self.raw or struct.pack("<I", GGUF_TYPES[self.type][0]) + gguf_payload(self.type, self.value)

    def bytes(self) -> bytes:
        return gguf_string(self.key) + self.body()


@dataclasses.dataclass
class GgufTensor:
    name: str | bytes
    shape: tuple[int, ...]  # the outermost first
    format: int
    data: bytes
    offset: int | None = None  # None: behind the tensor before it
    dimensions: int | None = None  # None: as many as `shape` has

    def bytes(self, offset: int) -> bytes:
        count = len(self.shape) if self.dimensions is None else self.dimensions
        at = offset if self.offset is None else self.offset
        sizes = b"".join(struct.pack("<Q", size % 2**64) for size in reversed(self.shape))
        return gguf_string(self.name) + struct.pack("<I", count) + sizes + struct.pack("<IQ", self.format, at)


@dataclasses.dataclass
class Gguf:
    """Builds a GGUF file, part by part, valid or not."""

    values: list[GgufValue]
    tensors: list[GgufTensor]
    magic: bytes = b"GGUF"
    version: int = 3
    value_count: int | None = None
    tensor_count: int | None = None

    def parts(self) -> list[bytes]:
        """Returns the file in pieces: the cuts between them are the boundaries of its structure."""
        values = len(self.values) if self.value_count is None else self.value_count
        tensors = len(self.tensors) if self.tensor_count is None else self.tensor_count
        out = [self.magic, struct.pack("<I", self.version), struct.pack("<Q", tensors), struct.pack("<Q", values)]
        out += [value.bytes() for value in self.values]
        at, data = 0, []
        for tensor in self.tensors:
            out.append(tensor.bytes(at))
            data.append(tensor.data + b"\0" * (-len(tensor.data) % 32))
            at += len(data[-1])
        out.append(b"\0" * (-sum(map(len, out)) % 32))
        return out + data

    def bytes(self) -> bytes:
        return b"".join(self.parts())


GGUF_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(name: str) -> str:
    if name in GGUF_NAMES:
        return GGUF_NAMES[name]
    layer, part, kind = name.removeprefix("model.layers.").split(".", 1)[0], *name.split(".", 3)[3].rsplit(".", 1)
    return f"blk.{layer}.{GGUF_NAMES[part]}.{kind}"


def blocks(word: str, count: int, seed: int) -> bytes:
    """Returns random blocks of a format, with scales that keep every number small."""
    _, numbers, size, scales = GGUF_FORMATS[word]
    draw = random.Random(seed)
    if word in ("F32", "BF16"):
        whole = struct.pack(f"<{count}f", *floats(count, seed))
        return whole if word == "F32" else b"".join(whole[i + 2 : i + 4] for i in range(0, len(whole), 4))
    out = bytearray(draw.randbytes(count // numbers * size))
    for block in range(0, len(out), size):
        if word == "MXFP4":
            out[block] = 112  # 2^-15
        for at in scales:
            out[block + at : block + at + 2] = struct.pack("<e", draw.uniform(1e-4, 1e-3))
    return bytes(out)


SIZES_OF_TOKENS = Sizes(vocab=len(TOKENS), seq_len=64)


def gguf_file(architecture: str = "llama", sizes: Sizes = SIZES_OF_TOKENS, formats: tuple[str, ...] = ("F32",)) -> Gguf:
    """Makes a GGUF file: matrices use the formats in turn; vectors are F32."""
    a = architecture
    values = [
        GgufValue("general.architecture", "string", a),
        GgufValue(f"{a}.block_count", "u32", sizes.layers),
        GgufValue(f"{a}.context_length", "u32", sizes.seq_len),
        GgufValue(f"{a}.embedding_length", "u32", sizes.dim),
        GgufValue(f"{a}.feed_forward_length", "u32", sizes.ffn),
        GgufValue(f"{a}.attention.head_count", "u32", sizes.heads),
        GgufValue(f"{a}.attention.head_count_kv", "u32", sizes.kv_heads),
        GgufValue(f"{a}.attention.key_length", "u32", sizes.head_dim),
        GgufValue(f"{a}.attention.value_length", "u32", sizes.head_dim),
        GgufValue(f"{a}.attention.layer_norm_rms_epsilon", "f32", 1e-6),
        GgufValue(f"{a}.rope.freq_base", "f32", 10000.0),
        GgufValue("general.alignment", "u32", 32),
        GgufValue("tokenizer.ggml.model", "string", "gpt2"),
        GgufValue("tokenizer.ggml.pre", "string", "gpt2"),
        GgufValue("tokenizer.ggml.tokens", "list", ("string", TOKENS)),
        GgufValue("tokenizer.ggml.token_type", "list", ("i32", [1] * (len(TOKENS) - 2) + [3, 3])),
        GgufValue("tokenizer.ggml.merges", "list", ("string", MERGES)),
        GgufValue("tokenizer.ggml.eos_token_id", "u32", len(TOKENS) - 1),
        GgufValue("tokenizer.ggml.add_bos_token", "bool", False),
        GgufValue("tokenizer.chat_template", "string", CHATML),
    ]
    for value in values:
        value.raw = value.body()
    tensors, matrices = [], 0
    for n, (name, shape) in enumerate(shapes_of(architecture, sizes).items()):
        word = "F32"
        if len(shape) == 2:
            word = formats[matrices % len(formats)]
            matrices += 1
        tensors.append(GgufTensor(gguf_name(name), shape, GGUF_FORMATS[word][0], blocks(word, math.prod(shape), n)))
    return Gguf(values, tensors)


def quantised_gguf() -> Gguf:
    """Makes a file with every format that is read, in rows of whole blocks of 256."""
    sizes = Sizes(vocab=len(TOKENS), dim=256, layers=2, heads=1, kv_heads=1, head_dim=256, ffn=256, seq_len=64)
    return gguf_file("llama", sizes, tuple(GGUF_FORMATS))


# --- others ----------------------------------------------------------------------------------------------------------

PROBLEM = {
    "X": [[1.0, 0.5], [0.25, -1.0]],
    "W_q": [[1.0, 0.0], [0.0, 1.0]],
    "W_k": [[0.5, 0.0], [0.0, 0.5]],
    "W_v": [[1.0, 0.0], [0.0, 1.0]],
    "W_g": [[0.1, 0.2], [0.3, 0.4]],
    "causal": True,
    "heads": 1,
    "gate_fn": "sigmoid",
}


def xray_report() -> dict:
    """Returns a report of `headgate xray`: two layers of two heads over three tokens, with maps of two cells."""

    def encoded(count: int) -> str:
        return base64.b64encode(bytes(range(count))).decode()

    figures = {"first_token_attention": 0.5, "gate_mean": None}
    layers, heads, tokens, cells = 2, 2, 3, 2
    head = {
        "map": encoded(cells * (cells + 1) // 2),
        "received": encoded(tokens),
        "gate": encoded(tokens),
        "gate_histogram": list(range(20)),
        "top_keys": [[0, 0.5], [2, 0.25]],
        "singular_values": [1.5, 0.5],
    }
    kind = {"word": "closed", "figure": "loss_change_when_closed", "writes": "0", "left_out": None}
    model = {
        "name": "run",
        "gate": "headwise",
        "parameters": 1000,
        "layers": layers,
        "layer_types": ["full_attention", "sliding_attention"],
        "kv_heads": 1,
        "dim": 8,
        "tokens": tokens,
        "verdict": "No sinks.",
        "largest_activation": {"value": 1.5, "layer": 1, "token": 0, "channel": 7},
        "figures": figures,
        "layer_figures": [figures] * layers,
        "head_figures": [[figures] * heads] * layers,
        "overrides": {"of": "heads", "tokens": tokens, "passes": 5, "loss": 5.5, "kinds": [kind]},
        "text": ["a", "\n", "b"],
        "token_losses": [5.5, 5.25, None],
        "map_size": cells,
        "heads": [[head] * heads] * layers,
        "layer_text": {"gate": [encoded(tokens), None], "received": [encoded(tokens)] * layers},
    }
    figure = {"key": "gate_mean", "name": "gate mean", "sentence": "The mean of the gate.", "share": True}
    return {"headgate": "0.2.0", "version": 1, "text": "book.txt", "figures": [figure], "models": [model]}


TRAIN = (
    "train --data book.txt --out run --layers 1 --dim 8 --heads 2 --seq-len 16 --batch 2 --steps 4 --eval-every 2 "
    "--eval-tokens 32 --save-every 2 --threads 1"
)
