#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes 260 MB of English text to train on, from Debian's documentation packages, and prints its path.

The packages are the group `documentation` of scripts/packages.txt. They are downloaded and unpacked, never installed.
Markup is removed from pages, and so are lines that a package repeats, such as menus. The order of pages is pseudorandom
but fixed, so that the end of the file, which `headgate train` holds out, is also a mixture.
"""

import argparse
import collections
import concurrent.futures
import gzip
import hashlib
import html.parser
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
PLAIN = {".txt", ".rst", ".md", ".pod", ".dict"}
PAGES = {".html", ".xhtml", ".htm"}
# Number of times that a line is kept in a package. Menus and footers occur on every page.
REPEATS = 2
# Shorter pages are redirections and lists of links.
SHORTEST_PAGE = 400


class TextOfPage(html.parser.HTMLParser):
    """Collects the text of an HTML page; each block element begins a line."""

    SKIPPED = {"script", "style", "head", "nav", "footer", "button", "svg"}
    BLOCKS = set("p div br li tr dt dd pre h1 h2 h3 h4 h5 h6 table blockquote".split())

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.parts = []
        self.skipped_depth = 0

    def handle_starttag(self, tag, attrs):
        self.skipped_depth += tag in self.SKIPPED
        if tag in self.BLOCKS:
            self.parts.append("\n")

    def handle_endtag(self, tag):
        self.skipped_depth -= tag in self.SKIPPED and self.skipped_depth > 0
        if tag in self.BLOCKS:
            self.parts.append("\n")

    def handle_data(self, data):
        if self.skipped_depth == 0:
            self.parts.append(data)


def kind_of(path):
    """Returns the suffix of a file before that of its compression, for example .html for a.html.gz."""
    suffixes = path.suffixes
    if suffixes and suffixes[-1] in {".gz", ".dz"}:
        suffixes = suffixes[:-1]
    return suffixes[-1].lower() if suffixes else ""


def read_text(path):
    """Returns the text of a file, or "" if it is not UTF-8."""
    opener = gzip.open if path.suffix in {".gz", ".dz"} else open
    try:
        with opener(path, "rb") as file:
            text = file.read().decode("utf-8")
    except (UnicodeDecodeError, OSError, EOFError):
        return ""
    if kind_of(path) in PAGES:
        parser = TextOfPage()
        parser.feed(text)
        text = "".join(parser.parts)
    return text


def pages_of(folder):
    """Returns (relative path, text) for each document below a package's folder."""
    seen = collections.Counter()
    pages = []
    paths = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    for path in sorted(path for path in paths if kind_of(path) in PLAIN | PAGES):
        lines = []
        for line in read_text(path).splitlines():
            line = line.rstrip() if kind_of(path) in PLAIN else " ".join(line.split())
            seen[line] += 1
            if (line and seen[line] <= REPEATS) or (not line and lines and lines[-1]):
                lines.append(line)
        text = "\n".join(lines).strip()
        if len(text) >= SHORTEST_PAGE:
            pages.append((str(path.relative_to(folder)), text))
    return pages


def read_package(package, work):
    """Downloads and unpacks a package, and returns its pages."""
    folder = work / package
    folder.mkdir()
    command = ["apt-get", "download", "-qq", package]
    download = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    archives = list(folder.glob("*.deb"))
    if download.returncode != 0 or len(archives) != 1:
        reason = next((line for line in download.stderr.splitlines() if line.startswith("E:")), "apt-get failed")
        raise SystemExit(f"documentation_text: cannot download {package} ({reason}); apt-get update may help")
    subprocess.run(["dpkg-deb", "-x", archives[0], folder / "root"], check=True)
    archives[0].unlink()
    return pages_of(folder / "root")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", nargs="?", type=pathlib.Path, default=ROOT / "build/text/documentation.txt")
    target = parser.parse_args().file
    if not target.exists():
        listing = subprocess.run(
            [ROOT / "scripts/setup.sh", "--list", "documentation"], capture_output=True, text=True, check=True
        )
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as work:
            work = pathlib.Path(work)
            with concurrent.futures.ProcessPoolExecutor() as pool:
                packages = pool.map(read_package, listing.stdout.split(), [work] * len(listing.stdout.split()))
                pages = [page for pages in packages for page in pages]
            pages.sort(key=lambda page: hashlib.sha256(page[0].encode()).digest())
            part = work / "text"
            part.write_text("\n\n".join(text for _, text in pages) + "\n", encoding="utf-8")
            part.replace(target)
    print(target)


if __name__ == "__main__":
    sys.exit(main())
