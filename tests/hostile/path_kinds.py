# SPDX-License-Identifier: Apache-2.0
"""Paths that lead to something other than a regular file, for inputs and for outputs."""

import os
import pathlib
import select
import socket
import time
from collections.abc import Iterator

from mutations import ACCEPTED, EITHER, REFUSED, Variant
from trial import FOLDER


def link(target: str):
    return lambda path: os.symlink(target, path)


def link_loop(path: pathlib.Path) -> None:
    os.symlink(path.name + ".other", path)
    os.symlink(path.name, str(path) + ".other")


def socket_at(path: pathlib.Path) -> None:
    """Binds a socket by its name only, because paths of sockets are at most 107 bytes."""
    here = os.open(path.parent, os.O_PATH)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"/proc/self/fd/{here}/{path.name}")
    os.close(here)


def file_of_mode(content: bytes, mode: int):
    def place(path: pathlib.Path) -> None:
        path.write_bytes(content)
        path.chmod(mode)

    return place


def in_forbidden_directory(content: bytes):
    """Makes a link into a directory that may not be entered."""

    def place(path: pathlib.Path) -> None:
        closed = path.parent / "closed"
        closed.mkdir()
        (closed / path.name).write_bytes(content)
        closed.chmod(0)
        os.symlink(f"closed/{path.name}", path)

    return place


def beside(content: bytes, connect):
    """Puts the good file under another name, and a link to it."""

    def place(path: pathlib.Path) -> None:
        root = next(parent for parent in path.parents if parent.name == FOLDER)  # no directory of a run holds it
        other = root / (path.name + ".other")
        other.write_bytes(content)
        connect(other, path)

    return place


def of_input_path(good: bytes, stream: bool = False, optional: bool = False) -> Iterator[Variant]:
    """Yields replacements of an input. `stream`: the reader accepts pipes; `optional`: it works without the file."""
    absent = EITHER if optional else REFUSED
    # A stream that ends at once is an empty text, which a reader may take or refuse.
    empty_stream = EITHER if stream else REFUSED
    yield Variant("missing", lambda path: None, absent)
    yield Variant("directory", lambda path: path.mkdir(), EITHER if stream or optional else REFUSED)
    yield Variant("empty-file", b"")
    yield Variant("dev-null", link("/dev/null"), empty_stream)
    yield Variant("dev-zero", link("/dev/zero"), REFUSED)
    yield Variant("dev-full", link("/dev/full"), REFUSED)
    yield Variant("dev-tty", link("/dev/tty"), REFUSED)
    yield Variant("proc-mem", link("/proc/self/mem"))  # to stat an empty file
    yield Variant("socket", socket_at, REFUSED)
    yield Variant("link-loop", link_loop, absent)
    yield Variant("link-to-itself", lambda path: os.symlink(path.name, path), absent)
    yield Variant("dangling-link", link("nowhere"), absent)
    yield Variant("link-to-a-name-too-long", link("n" * 300), absent)
    yield Variant("unreadable", file_of_mode(good, 0), absent, nobody=True)
    yield Variant("in-forbidden-directory", in_forbidden_directory(good), absent, nobody=True)
    yield Variant("read-only", file_of_mode(good, 0o444), ACCEPTED)
    yield Variant("link", beside(good, lambda other, path: os.symlink(other, path)), ACCEPTED)
    yield Variant("hard-link", beside(good, os.link), ACCEPTED)
    if not stream:  # one that reads streams waits for the writer of a pipe
        yield Variant("fifo", os.mkfifo, REFUSED)


def write_late(content: bytes):
    """Writes into a pipe for which the command has been waiting."""

    def meanwhile(process: int, folder: pathlib.Path, name: str) -> None:
        time.sleep(0.3)
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline and not select.select([process], [], [], 0)[0]:
            try:
                descriptor = os.open(folder / name, os.O_WRONLY | os.O_NONBLOCK)
            except OSError:  # no reader yet, or not any more
                time.sleep(0.05)
                continue
            os.set_blocking(descriptor, True)
            try:
                with os.fdopen(descriptor, "wb") as pipe:
                    pipe.write(content)
            except BrokenPipeError:
                pass
            return

    return meanwhile


def hostile_names(good: str) -> Iterator[tuple[str, str]]:
    """Yields arguments in place of a path, as (name, text). `good` is an existing file."""
    yield "empty", ""
    yield "name-too-long", "n" * 256
    yield "path-too-long", "/".join(["n" * 200] * 30)
    yield "below-a-file", f"{good}/below"
    yield "newline", "no\nfile"
    yield "escape", "\x1b[31mno-file"
    yield "not-utf-8", "no-\udcff-file"
    yield "dot-dot", "../../../../../../../../no-file"
    yield "proc", "/proc/self/fd/999"
    yield "format", "%s%n{}{0}"
    yield "url", "https://example.org/model"
    yield "dash", "-"


# --- outputs ---------------------------------------------------------------------------------------------------------


def directory_with_file(path: pathlib.Path) -> None:
    path.mkdir()
    (path / "unrelated").write_bytes(b"unrelated")


def read_only_directory(path: pathlib.Path) -> None:
    path.mkdir()
    path.chmod(0o555)


def of_output_file() -> Iterator[tuple[str, str, object, bool]]:
    """Yields (name, argument, what is at the path before, whether it is for a user without permissions): all are
    refused.
    """

    def nothing(path):
        pass

    yield "directory", "out", directory_with_file, False
    yield "missing-directory", "no/where/out", nothing, False
    yield "dev-full", "/dev/full", nothing, False
    yield "dev-null", "/dev/null", nothing, False
    yield "fifo", "out", os.mkfifo, False
    yield "socket", "out", socket_at, False
    yield "link-loop", "out", link_loop, False
    yield "link-to-fifo", "out", beside_fifo, False
    yield "link-to-dev-full", "out", link("/dev/full"), False
    yield "below-a-file", "book.txt/out", nothing, False
    yield "name-too-long", "n" * 256, nothing, False
    yield "path-too-long", "/".join(["n" * 200] * 30), nothing, False
    yield "link-to-a-name-too-long", "out", link("n" * 300), False
    yield "trailing-slash", "out/", nothing, False
    yield "dot", ".", nothing, False
    yield "dot-dot", "..", nothing, False
    yield "empty", "''", nothing, False
    yield "proc", "/proc/out", nothing, False
    yield "read-only-directory", "out/file", read_only_directory, True
    yield "unwritable-folder", "out", lambda path: path.parent.chmod(0o555), True


def beside_fifo(path: pathlib.Path) -> None:
    os.mkfifo(str(path) + ".other")
    os.symlink(path.name + ".other", path)


def of_output_directory() -> Iterator[tuple[str, str, object, bool]]:
    """Does the same for outputs that are directories."""

    def nothing(path):
        pass

    yield "file", "out", lambda path: path.write_bytes(b"unrelated"), False
    yield "fifo", "out", os.mkfifo, False
    yield "socket", "out", socket_at, False
    yield "link-loop", "out", link_loop, False
    yield "link-to-dev-full", "out", link("/dev/full"), False
    yield "dev-null", "/dev/null", nothing, False
    yield "below-a-file", "book.txt/out", nothing, False
    yield "name-too-long", "n" * 256, nothing, False
    yield "path-too-long", "/".join(["n" * 200] * 30), nothing, False
    yield "empty", "''", nothing, False
    yield "proc", "/proc/out", nothing, False
    yield "read-only-parent", "out/directory", read_only_directory, True
    yield "unwritable-folder", "out", lambda path: path.parent.chmod(0o555), True
