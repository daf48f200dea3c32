# SPDX-License-Identifier: Apache-2.0
"""Mutations of a good file's bytes: for files of any kind, for JSON and for texts."""

import copy
import dataclasses
import json
import pathlib
import random
from collections.abc import Callable, Iterator

from trial import Expect

EITHER, REFUSED, ACCEPTED = Expect.EITHER, Expect.REFUSED, Expect.ACCEPTED


@dataclasses.dataclass(frozen=True)
class Variant:
    """Replaces a good file by bytes, or by what a function writes there."""

    name: str
    put: bytes | Callable[[pathlib.Path], None]
    expect: Expect = EITHER
    nobody: bool = False
    in_turn: bool = False  # one of many of its kind: the reader's commands take them in turn

    def place(self, path: pathlib.Path) -> None:
        if callable(self.put):
            self.put(path)
        else:
            path.write_bytes(self.put)


# --- bytes of any format ---------------------------------------------------------------------------------------------


def truncations(good: bytes, cuts: list[int], expect: Expect = REFUSED) -> Iterator[Variant]:
    """Ends a file early: at each cut, and a byte before and after it."""
    places = sorted({at + delta for at in cuts for delta in (-1, 0, 1)} & set(range(len(good))))
    for at in places:
        yield Variant(f"truncated-{at}", good[:at], expect, in_turn=True)


def cuts_of(parts: list[bytes]) -> list[int]:
    """Returns where the parts of a file meet."""
    out, at = [], 0
    for part in parts:
        out.append(at)
        at += len(part)
    return out


# --- JSON ------------------------------------------------------------------------------------------------------------

RAW = "raw:"  # a string with this in front of it is written as JSON source
HOSTILE_VALUES = {
    "null": None,
    "true": True,
    "minus-one": -1,
    "zero": 0,
    "half": 0.5,
    "one": 1,
    "infinite": RAW + "1e999",
    "minus-infinite": RAW + "-1e999",
    "nan": RAW + "NaN",
    "tiny": RAW + "1e-320",
    "two-to-31": 2**31,
    "two-to-63": 2**63,
    "two-to-64": 2**64,
    "many-digits": RAW + "9" * 400,
    "empty-string": "",
    "control-characters": "\0\n\x1b[2J\x7f",
    "long-string": "x" * 70000,
    "path": "../../etc/passwd",
    "lone-surrogate": RAW + '"\\ud800"',
    "empty-list": [],
    "empty-object": {},
    "list-of-null": [None],
    "nested": RAW + "[" * 50 + "]" * 50,
    "many": [0] * 3000,
}


def json_source(value) -> bytes:
    """Returns JSON text. Strings that begin with RAW are inserted verbatim."""
    text = json.dumps(value)
    if RAW not in text:
        return text.encode()
    if isinstance(value, dict):
        return b"{" + b",".join(json_source(str(key)) + b":" + json_source(x) for key, x in value.items()) + b"}"
    if isinstance(value, list):
        return b"[" + b",".join(map(json_source, value)) + b"]"
    if isinstance(value, str) and value.startswith(RAW):
        return value[len(RAW) :].encode("utf-8", "surrogateescape")
    return text.encode()


def deep(depth: int, opening: str = "[", closing: str = "]") -> bytes:
    return (opening * depth + closing * depth).encode()


def json_syntax(good: bytes, empty: Expect = REFUSED) -> Iterator[Variant]:
    """Yields files that are not a single JSON object."""
    stripped = good.strip()
    brace = stripped.index(b"{") + 1
    first = json_source(next(iter(json.loads(good))))
    yield Variant("empty", b"", empty)
    for name, source in {
        "white-space": b" \n",
        "null": b"null",
        "number": b"1",
        "string": b'"text"',
        "list": b"[]",
        "nan": b"NaN",
        "deep-lists": deep(100000),
        "deep-open": b"[" * 100000,
        "deep-objects": deep(100000, '{"a":', "}").replace(b":}", b":1}"),
        "single-quotes": stripped.replace(b'"', b"'"),
        "trailing-comma": stripped[:-1] + b",}",
        "trailing-text": stripped + b"x",
        "two-documents": stripped + stripped,
        "comment": b"/* c */" + stripped,
        "utf-16": stripped.decode().encode("utf-16"),
        "not-utf-8": stripped[:brace] + b'"\xff\xfe":1,' + stripped[brace:],
        "nul-byte": stripped[:brace] + b'"\0":1,' + stripped[brace:],
        "raw-newline-in-key": stripped[:brace] + b'"a\nb":1,' + stripped[brace:],
        "zeros": bytes(4096),
        "duplicate-key": stripped[:brace] + first + b":0," + stripped[brace:],
        "duplicate-key-at-end": stripped[:-1] + b"," + first + b":0}",
        "key-twice-by-escapes": stripped[:brace]
        + b'"\\u%04x' % ord(first.decode()[1])
        + first[2:]
        + b":0,"
        + stripped[brace:],
    }.items():
        yield Variant(name, source, REFUSED)
    yield Variant("byte-order-mark", b"\xef\xbb\xbf" + stripped)
    yield Variant("unknown-key", stripped[:brace] + b'"\\u0000\\n\\u001b[31m key":1,' + stripped[brace:])
    yield Variant("large-value", stripped[:brace] + b'"x":"' + b"y" * (1 << 20) + b'",' + stripped[brace:])
    yield Variant("many-keys", stripped[:brace] + b"".join(b'"k%d":0,' % n for n in range(100000)) + stripped[brace:])
    yield Variant("white-space-around", b"\n" * 1000 + stripped + b" \t\r\n" * 1000, ACCEPTED)


def json_cuts(good: bytes, most: int = 60) -> list[int]:
    """Returns boundaries of tokens, spread over the text if there are many."""
    places = [at for at, byte in enumerate(good.rstrip()) if byte in b'{}[],:"']
    step = max(1, len(places) // most)
    return places[::step]


def paths_of(value, depth: int, most_children: int = 12) -> Iterator[tuple]:
    """Returns the paths to values within a document, `depth` steps at most."""
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for n, (key, child) in enumerate(children):
        if n >= most_children and not (isinstance(value, dict) and depth == 3):
            return
        yield (key,)
        if depth > 1:
            for path in paths_of(child, depth - 1, 3):
                yield (key, *path)


def replaced(document, path: tuple, new):
    """Returns a copy in which only the path is new: the rest is shared."""
    out = at = copy.copy(document)
    for key in path[:-1]:
        at[key] = copy.copy(at[key])
        at = at[key]
    if new is KeyError:
        del at[path[-1]]
    else:
        at[path[-1]] = new
    return out


def json_values(good: bytes, depth: int = 2) -> Iterator[Variant]:
    """Replaces each value of the document by unexpected ones, or removes it."""
    document = json.loads(good)
    for path in paths_of(document, depth):
        where = ".".join(map(str, path))
        yield Variant(f"{where}-gone", json_source(replaced(document, path, KeyError)), in_turn=True)
        for name, value in HOSTILE_VALUES.items():
            yield Variant(f"{where}-{name}", json_source(replaced(document, path, value)), in_turn=True)


def of_json(good: bytes, depth: int = 2, empty: Expect = REFUSED) -> Iterator[Variant]:
    yield from json_syntax(good, empty)
    yield from truncations(good.rstrip(), [at for at in json_cuts(good) if at > 1])
    yield from json_values(good, depth)


# --- text ------------------------------------------------------------------------------------------------------------


def of_text(good: bytes, invalid: Expect) -> Iterator[Variant]:
    """Yields damaged texts. `invalid`: the result expected for bytes that are not UTF-8."""
    yield Variant("empty", b"")
    yield Variant("one-character", b"a")
    yield Variant("byte-order-mark", b"\xef\xbb\xbf" + good)
    yield Variant("one-long-line", b"a" * (1 << 20), ACCEPTED)
    yield Variant("only-newlines", b"\n" * 4096, ACCEPTED)
    yield Variant("carriage-returns", good.replace(b" ", b"\r\n"), ACCEPTED)
    yield Variant("combining-marks", b"a" + "\u0301".encode() * 20000, ACCEPTED)
    yield Variant("longest-characters", "\U0010ffff".encode() * 500, ACCEPTED)
    yield Variant("special-tokens", b"<|im_start|><|im_end|>" * 200, ACCEPTED)
    for name, part in {
        "nul": b"\0",
        "lone-continuation": b"\x80",
        "never-a-byte": b"\xff",
        "overlong": b"\xc0\xaf",
        "surrogate": b"\xed\xa0\x80",
        "beyond-unicode": b"\xf4\x90\x80\x80",
        "cut-character": b"\xe2\x82",
    }.items():
        yield Variant(f"{name}-at-start", part + good, invalid)
        yield Variant(f"{name}-within", good[:50] + part + b" " + good[50:], invalid)
        yield Variant(f"{name}-at-end", good + part)
    yield Variant("not-text", random.Random(1).randbytes(5000), invalid)
