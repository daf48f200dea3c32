# SPDX-License-Identifier: Apache-2.0
"""Mutations of the binary formats .npy, safetensors and GGUF, field by field."""

import copy
import json
import re
import struct
from collections.abc import Iterator

import good_files as good_file
from mutations import ACCEPTED, EITHER, REFUSED, Variant, cuts_of, deep, json_source, json_syntax, truncations

# Names of tensors and keys that may break a message, a path or a comparison.
NAMES = {
    "nul": "a\0b",
    "newline": "a\nheadgate: b",
    "escape": "\x1b[2Ja",
    "dots": "..",
    "slash": "/etc/passwd",
    "empty": "",
    "long": "n" * 70000,
    "quote": "a'b\"c",
    "percent": "%s%n{}{0}",
    "right-to-left": "\u202ea",
}
COUNTS = {
    "zero": 0,
    "two-to-16": 2**16,
    "two-to-31": 2**31,
    "two-to-32": 2**32 - 1,
    "two-to-40": 2**40,
    "two-to-62": 2**62,
    "two-to-63": 2**63,
    "two-to-64": 2**64 - 1,
}

# --- .npy ------------------------------------------------------------------------------------------------------------


def npy_parts(good: bytes) -> tuple[str, bytes]:
    """Returns the dictionary and the data of a version 1.0 file."""
    end = 10 + struct.unpack_from("<H", good, 8)[0]
    return good[10:end].decode("latin-1").rstrip(), good[end:]


def npy_dictionaries(dictionary: str) -> Iterator[tuple[str, str]]:
    for descr in (
        ">f4",
        "|O",
        "<c8",
        "<U4",
        "|S4",
        "<f16",
        "<u4",
        "|V4",
        "<m8[s]",
        "",
        "<f4x",
        "=f4",
        "<f999999999999",
        "f" * 5000,
    ):
        yield f"descr-{descr[:14] or 'empty'}", re.sub("'descr': '[^']*'", f"'descr': '{descr}'", dictionary)
    yield "descr-list", re.sub("'descr': '[^']*'", "'descr': [('a', '<f4')]", dictionary)
    yield "descr-escape", dictionary.replace("<f4", "\\x3cf4")
    shape = dictionary[dictionary.index("(") : dictionary.index(")") + 1]
    for name, new in {
        "negative": "(-1,)",
        "two-to-63": f"({2**63},)",
        "two-to-64": f"({2**64},)",
        "digits": f"({'9' * 500},)",
        "float": "(2.0,)",
        "bool": "(True,)",
        "string": "('2',)",
        "not-a-tuple": "(2)",
        "list": "[2]",
        "none": "None",
        "open": "(2, ",
        "overflow": f"({2**32}, {2**32})",
        "product-is-zero": f"({2**62}, {2**62}, 0)",
        "large-without-elements": f"({2**40}, 0)",
        "rank-33": "(" + "1, " * 33 + ")",
        "rank-10000": "(" + "1, " * 10000 + ")",
        "nested": "((2,),)",
        "exponent": "(1e3,)",
        "hexadecimal": "(0x2,)",
        "leading-zero": "(02,)",
        "underscore": "(1_0,)",
        "call": "(__import__('os'),)",
        "long-integer": "(2L,)",
    }.items():
        yield f"shape-{name}", dictionary.replace(shape, new, 1)
    for key in ("descr", "fortran_order", "shape"):
        yield f"no-{key}", dictionary.replace(f"'{key}'", f"'{key[:-1]}'", 1)
    yield "key-twice", dictionary.replace("{", "{'descr': '<f4', ", 1)
    yield "key-more", dictionary.replace("{", "{'more': 1, ", 1)
    yield "order-is-a-number", dictionary.replace("False", "0", 1)
    yield "order-is-none", dictionary.replace("False", "None", 1)
    yield "not-closed", dictionary.rstrip(" }")
    yield "closed-twice", dictionary + "}"
    yield "code", "__import__('os').system('true')"
    yield "empty", ""
    yield "nested-30000", deep(30000, "(", ")").decode()


def of_npy(good: bytes) -> Iterator[Variant]:
    dictionary, data = npy_parts(good)
    for name, new in npy_dictionaries(dictionary):
        if new != dictionary:
            yield Variant(
                f"header-{name}",
                good_file.npy_header(new) + data,
                EITHER if "without" in name or "zero" in name else REFUSED,
            )
    for version in ((0, 0), (1, 1), (4, 0), (255, 255)):
        yield Variant(f"version-{version[0]}.{version[1]}", good[:6] + bytes(version) + good[8:], REFUSED)
    yield Variant("version-2", good_file.npy_header(dictionary, 2) + data, ACCEPTED)
    yield Variant("version-3", good_file.npy_header(dictionary, 3) + data, ACCEPTED)
    yield Variant("fortran-order", good_file.npy_header(dictionary.replace("False", "True")) + data)
    for name, length in {
        "zero": 0,
        "one": 1,
        "all": 0xFFFF,
        "no-newline": struct.unpack_from("<H", good, 8)[0] - 1,
    }.items():
        yield Variant(f"header-length-{name}", good[:8] + struct.pack("<H", length) + good[10:], REFUSED)
    yield Variant("header-length-2-to-32", good[:6] + b"\x02\x00" + b"\xff" * 4 + good[10:], REFUSED)
    yield Variant("header-of-60000-bytes", good_file.npy_header(dictionary + " " * 60000) + data)
    yield Variant("magic", b"\x93NUMPX" + good[6:], REFUSED)
    yield Variant("data-missing", good[:-1], REFUSED)
    yield Variant("data-more", good + b"\0", REFUSED)
    for name, byte in {"ones": b"\xff", "high-bits": b"\x80", "largest": b"\x7f"}.items():
        yield Variant(f"data-{name}", good[: len(good) - len(data)] + byte * len(data))
    yield from truncations(good, [6, 8, 10, 10 + len(dictionary), len(good) - len(data)])


# --- safetensors -----------------------------------------------------------------------------------------------------


def safetensors_parts(good: bytes) -> tuple[dict, bytes]:
    length = struct.unpack_from("<Q", good)[0]
    return json.loads(good[8 : 8 + length]), good[8 + length :]


def safetensors_entries(header: dict, data: bytes) -> Iterator[tuple[str, dict]]:
    """Yields headers with one faulty tensor."""
    names = [name for name in header if name != "__metadata__"]
    first, second = names[0], names[1]
    end = header[first]["data_offsets"][1]

    def changed(name: str, **fields) -> dict:
        out = copy.deepcopy(header)
        out[name].update(fields)
        return out

    for dtype in ("F64", "F8_E4M3", "f32", "", "I32", "BOOL", 1, None):
        yield f"dtype-{dtype!r}", changed(first, dtype=dtype)
    for name, shape in {
        "negative": [-1, 8],
        "float": [2.0],
        "huge": [2**62],
        "two-to-64": [2**64],
        "product": [2**32, 2**32],
        "zero": [0],
        "rank-33": [1] * 33,
        "rank-100000": [1] * 100000,
        "none": None,
        "string": "2",
        "nested": [[2]],
        "without-elements": [2**62, 0],
    }.items():
        yield f"shape-{name}", changed(first, shape=shape)
    for name, offsets in {
        "reversed": [end, 0],
        "negative": [-1, end],
        "beyond": [0, len(data) + 1],
        "huge": [0, 2**63 - 1],
        "two-to-64": [0, 2**64],
        "huge-both": [2**63 - 4, 2**63 - 1],
        "one": [0],
        "three": [0, end, end],
        "float": [0.0, end],
        "none": None,
        "inside-out": [4, 0],
        "gap": [4, end + 4],
        "short": [0, end - 4],
    }.items():
        yield f"offsets-{name}", changed(first, data_offsets=offsets)
    yield "overlap", changed(second, data_offsets=header[first]["data_offsets"])
    yield "same-offsets", changed(second, **header[first])
    for key in ("dtype", "shape", "data_offsets"):
        out = copy.deepcopy(header)
        del out[first][key]
        yield f"no-{key}", out
    yield "key-more", changed(first, more=1)
    yield "not-an-object", {**header, first: []}
    yield "tensor-gone", {name: entry for name, entry in header.items() if name != second}
    for name, new in NAMES.items():
        yield f"name-{name}", {new if key == first else key: entry for key, entry in header.items()}
    yield "metadata-list", {**header, "__metadata__": []}
    yield "metadata-number", {**header, "__metadata__": {"format": 1}}
    yield "checksum", {**header, "__metadata__": {"format": "pt", "headgate.checksum": "0123456789abcdef"}}


def of_safetensors(good: bytes) -> Iterator[Variant]:
    header, data = safetensors_parts(good)
    for name, new in safetensors_entries(header, data):
        yield Variant(name, good_file.safetensors_bytes(json_source(new), data), REFUSED)
    for variant in json_syntax(json.dumps(header).encode()):
        if variant.name in ("white-space-around", "byte-order-mark"):
            continue
        yield Variant(f"header-{variant.name}", good_file.safetensors_bytes(variant.put, data), REFUSED)
    for name, length in {**COUNTS, "one": 1, "whole-file": len(good) - 8, "beyond": len(good) - 7}.items():
        yield Variant(f"header-length-{name}", struct.pack("<Q", length) + good[8:], REFUSED)
    yield Variant(
        "header-of-9-MiB", good_file.safetensors_bytes(json.dumps(header).encode() + b" " * (9 << 20), data), REFUSED
    )
    extra = {"e": {"dtype": "F32", "shape": [1], "data_offsets": [len(data), len(data) + 4]}}
    yield Variant("tensor-more", good_file.safetensors_bytes({**header, **extra}, data + bytes(4)), REFUSED)
    many = {f"t{n}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for n in range(50000)}
    yield Variant("50000-tensors", good_file.safetensors_bytes({**header, **many}, data), REFUSED)
    yield Variant("nothing", good_file.safetensors_bytes("{}", b""), REFUSED)
    yield Variant("data-more", good + b"\0", REFUSED)
    for name, number in {"nan": b"\0\0\xc0\x7f", "infinite": b"\0\0\x80\xff"}.items():
        yield Variant(f"data-{name}", good[:-4] + number, REFUSED)
    yield Variant("data-largest", good[:-64] + b"\xff\xff\x7f\x7f" * 16)
    yield Variant("hole-of-a-terabyte", lambda path: sparse(path, good, 1 << 40), REFUSED)
    yield from truncations(
        good,
        [
            8,
            9,
            len(good) - len(data),
            *(
                entry["data_offsets"][1] + len(good) - len(data)
                for key, entry in header.items()
                if key != "__metadata__"
            ),
        ],
    )


def sparse(path, good: bytes, size: int) -> None:
    """Makes the good file longer by a hole."""
    with open(path, "wb") as file:
        file.write(good)
        file.truncate(size)


# --- GGUF ------------------------------------------------------------------------------------------------------------


def changed(gguf, change) -> bytes:
    out = copy.copy(gguf)
    out.values, out.tensors = (
        [copy.copy(value) for value in gguf.values],
        [copy.copy(tensor) for tensor in gguf.tensors],
    )
    change(out)
    return out.bytes()


def gguf_headers(gguf) -> Iterator[Variant]:
    for name, count in COUNTS.items():
        yield Variant(f"tensor-count-{name}", changed(gguf, lambda f: setattr(f, "tensor_count", count)), REFUSED)
        yield Variant(f"value-count-{name}", changed(gguf, lambda f: setattr(f, "value_count", count)), REFUSED)
    for off in (-1, 1):
        yield Variant(
            f"tensor-count{off:+}", changed(gguf, lambda f: setattr(f, "tensor_count", len(f.tensors) + off)), REFUSED
        )
        yield Variant(
            f"value-count{off:+}", changed(gguf, lambda f: setattr(f, "value_count", len(f.values) + off)), REFUSED
        )
    for version in (0, 1, 4, 0x03000000, 2**32 - 1):
        yield Variant(f"version-{version}", changed(gguf, lambda f: setattr(f, "version", version)), REFUSED)
    yield Variant("version-2", changed(gguf, lambda f: setattr(f, "version", 2)), ACCEPTED)
    yield Variant("magic", b"GGUG" + gguf.bytes()[4:], REFUSED)


def raw_value(type_id: int, payload: bytes = b"") -> bytes:
    return struct.pack("<I", type_id) + payload


def gguf_values(gguf) -> Iterator[Variant]:
    def with_value(value) -> bytes:
        return changed(gguf, lambda f: f.values.append(value))

    Value = good_file.GgufValue
    raw = {
        "type-13": raw_value(13),
        "type-huge": raw_value(2**32 - 1),
        "list-of-lists": raw_value(9, struct.pack("<IQ", 9, 1)),
        "nested-lists": raw_value(9) + struct.pack("<IQ", 9, 1) * 100000,
        "list-of-type-13": raw_value(9, struct.pack("<IQ", 13, 1)),
        "list-of-2-to-64": raw_value(9, struct.pack("<IQ", 0, 2**64 - 1)),
        "list-of-2-to-61-u64": raw_value(9, struct.pack("<IQ", 10, 2**61)),
        "list-of-2-to-63-strings": raw_value(9, struct.pack("<IQ", 8, 2**63)),
        "string-of-2-to-64": raw_value(8, struct.pack("<Q", 2**64 - 1)),
        "string-of-2-to-63": raw_value(8, struct.pack("<Q", 2**63)),
        "bool-2": raw_value(7, b"\x02"),
        "list-of-bool-2": raw_value(9, struct.pack("<IQ", 7, 2) + b"\1\2"),
    }
    for name, body in raw.items():
        yield Variant(f"value-{name}", with_value(Value("more", "u8", 0, body)), REFUSED)
    for name, key in NAMES.items():
        expect = REFUSED if name in ("empty", "long") else EITHER
        yield Variant(f"key-{name}", with_value(Value(key, "u8", 0)), expect)
    yield Variant("key-twice", with_value(gguf.values[0]), REFUSED)
    yield Variant("unknown-key", with_value(Value(f"{gguf.values[0].value}.more\n\0", "u32", 1)), REFUSED)
    yield Variant("empty-list", with_value(Value("more", "list", ("u64", []))), ACCEPTED)
    for n, value in enumerate(gguf.values):
        yield Variant(f"{value.key}-gone", changed(gguf, lambda f: f.values.pop(n)))
        for name, (type_name, new) in {
            "zero": ("u32", 0),
            "one": ("u8", 1),
            "two-to-32": ("u32", 2**32 - 1),
            "minus-one": ("i64", -1),
            "two-to-63": ("u64", 2**63),
            "two-to-64": ("u64", 2**64 - 1),
            "nan": ("f64", float("nan")),
            "infinite": ("f32", float("inf")),
            "tiny": ("f64", 1e-320),
            "largest": ("f64", 1.7e308),
            "string": ("string", "\0\n\x1b[2J"),
            "not-utf-8": ("string", b"\xff\xfe"),
            "long": ("string", "x" * 70000),
            "bool": ("bool", True),
            "list": ("list", ("i32", [-1, 2**31 - 1])),
            "strings": ("list", ("string", ["", "\0", "a b c"])),
            "empty": ("list", ("string", [])),
            "65536-elements": ("list", ("i32", [7] * 65536)),
        }.items():
            new_value = Value(value.key, type_name, new)
            content = changed(gguf, lambda f: f.values.__setitem__(n, new_value))
            yield Variant(f"{value.key}-{name}", content, in_turn=True)


def gguf_tensors(gguf) -> Iterator[Variant]:
    def with_tensor(n: int = 0, **fields) -> bytes:
        return changed(gguf, lambda f: [setattr(f.tensors[n], key, value) for key, value in fields.items()])

    tensor = gguf.tensors[0]
    rows, columns = tensor.shape
    for name, shape in {
        "zero": (0, columns),
        "row-more": (rows + 1, columns),
        "huge": (2**62, columns),
        "overflow": (2**33, 2**33),
        "minus-one": (-1, columns),
        "swapped": (columns, rows),
        "rank-3": (1, rows, columns),
        "two-to-64": (2**64 - 1, 1),
        "product-2-to-64": (2**32, 2**32),
    }.items():
        yield Variant(f"shape-{name}", with_tensor(shape=shape), REFUSED)
    for dimensions in (0, 5, 2**16, 2**32 - 1):
        yield Variant(f"dimensions-{dimensions}", with_tensor(dimensions=dimensions), REFUSED)
    for format_id in (*range(4, 6), *range(9, 12), 15, 16, 31, 33, 39, 40, 255, 2**31, 2**32 - 1):
        yield Variant(f"format-{format_id}", with_tensor(format=format_id), REFUSED)
    for format_id in (1, 2, 8, 12, 14, 24, 28):
        yield Variant(f"format-{format_id}-of-other-bytes", with_tensor(format=format_id))
    end = sum(len(part) for part in gguf.parts()[-len(gguf.tensors) :])
    for name, offset in {
        "unaligned": 1,
        "at-end": end,
        "beyond": end + 32,
        "two-to-40": 2**40,
        "two-to-63": 2**63,
        "two-to-64": 2**64 - 32,
        "overlap": 32,
        "of-another": len(tensor.data),
    }.items():
        yield Variant(f"offset-{name}", with_tensor(offset=offset), REFUSED)
    for name, new in NAMES.items():
        yield Variant(f"name-{name}", with_tensor(name=new), REFUSED)
    yield Variant("name-not-utf-8", with_tensor(name=b"\xff\xfe\x80"), REFUSED)
    yield Variant("name-twice", with_tensor(name=gguf.tensors[1].name), REFUSED)
    yield Variant("tensor-gone", changed(gguf, lambda f: f.tensors.pop(1)), REFUSED)
    yield Variant(
        "tensor-more",
        changed(gguf, lambda f: f.tensors.append(good_file.GgufTensor("more\n", (1,), 0, bytes(4)))),
        REFUSED,
    )
    many = [good_file.GgufTensor(f"t{n}", (1,), 0, bytes(4)) for n in range(20000)]
    yield Variant("20000-tensors", changed(gguf, lambda f: f.tensors.extend(many)), REFUSED)


def of_gguf(gguf) -> Iterator[Variant]:
    good = gguf.bytes()
    yield from gguf_headers(gguf)
    yield from gguf_values(gguf)
    yield from gguf_tensors(gguf)
    for name, number in {"nan": b"\0\0\xc0\x7f", "infinite": b"\0\0\x80\xff"}.items():
        yield Variant(
            f"data-{name}",
            changed(gguf, lambda f: setattr(f.tensors[0], "data", number + f.tensors[0].data[4:])),
            REFUSED,
        )
    yield Variant("data-more", good + bytes(4096))
    yield Variant("hole-of-a-terabyte", lambda path: sparse(path, good, 1 << 40))
    cuts = cuts_of(gguf.parts())
    padding = len(gguf.tensors[-1].data) % 32
    yield from (v for v in truncations(good, cuts) if not padding or len(v.put) < len(good) - 32 + padding)


def of_blocks(gguf) -> Iterator[Variant]:
    """Yields quantised tensors with scales that are not finite, rows that are not whole blocks, and data that ends
    early.
    """
    words = {
        format_id: (word, numbers, scales) for word, (format_id, numbers, _, scales) in good_file.GGUF_FORMATS.items()
    }
    seen = set()
    for n, tensor in enumerate(gguf.tensors):
        word, numbers, scales = words[tensor.format]
        if word in seen:
            continue
        seen.add(word)
        for scale in scales:
            for name, bits in {
                "infinite": b"\0\x7c",
                "nan": b"\0\x7e",
                "largest": b"\xff\x7b",
                "tiny": b"\1\0",
            }.items():
                data = tensor.data[:scale] + bits + tensor.data[scale + 2 :]
                # Expects EITHER: whether widening to f32 gives finite numbers depends on the format and the block.
                yield Variant(
                    f"{word}-scale-{scale}-{name}", changed(gguf, lambda f: setattr(f.tensors[n], "data", data))
                )
        yield Variant(
            f"{word}-ones", changed(gguf, lambda f: setattr(f.tensors[n], "data", b"\xff" * len(tensor.data)))
        )
        yield Variant(f"{word}-cut", changed(gguf, lambda f: setattr(f.tensors[n], "data", tensor.data[:-32])), REFUSED)
        if numbers > 1:
            shape = (tensor.shape[0], tensor.shape[1] - 1)
            yield Variant(
                f"{word}-no-whole-blocks", changed(gguf, lambda f: setattr(f.tensors[n], "shape", shape)), REFUSED
            )
