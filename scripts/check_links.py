#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fails on a link in a Markdown file that leads to no file or no heading of this repository.

    check_links.py [ROOT]        check README.md, docs/, bench/ and experiments/ (default: of the tree that holds this script)
    check_links.py --self-test

Links to other sites are left alone.
"""

import re
import sys
import tempfile
from pathlib import Path

FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`[^`\n]*`")
LINK = re.compile(r"\[[^\]]*\]\(([^()\s]+)\)")
HEADING = re.compile(r"^#{1,6} +(.*?)\s*$", re.MULTILINE)


def anchor(heading):
    """The name that GitHub gives a heading."""
    text = re.sub(r"[`*]", "", heading).lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def anchors(path):
    text = FENCE.sub("", path.read_text(encoding="utf-8"))
    seen, names = {}, set()
    for heading in HEADING.findall(text):
        name = anchor(heading)
        names.add(f"{name}-{seen[name]}" if name in seen else name)
        seen[name] = seen.get(name, 0) + 1
    return names


def check_file(root, path):
    problems = []
    text = CODE.sub("", FENCE.sub("", path.read_text(encoding="utf-8")))
    for link in LINK.findall(text):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, fragment = link.partition("#")
        target = (path.parent / name).resolve() if name else path.resolve()
        where = path.relative_to(root)
        if not target.is_relative_to(root.resolve()) or not target.exists():
            problems.append(f"{where}: {link}: no such file")
        elif fragment and (target.suffix != ".md" or fragment not in anchors(target)):
            problems.append(f"{where}: {link}: no such heading")
    return problems


def check_tree(root):
    folders = ("docs", "bench", "experiments")
    files = [root / "README.md", *(path for folder in folders for path in sorted(root.glob(f"{folder}/**/*.md")))]
    return len(files), [problem for path in files for problem in check_file(root, path)]


def self_test():
    """Each document must yield exactly the complaint named."""
    cases = [
        ("[a](docs/b.md)", None),
        ("[a](docs/b.md#two-words)", None),
        ("[a](docs/b.md#why-d-and-z)", None),
        ("# Here\n[a](#here)", None),
        ("[a](https://example.org/nowhere)", None),
        ("`[a](nowhere.md)`", None),
        ("```\n[a](nowhere.md)\n```", None),
        ("[a](nowhere.md)", "no such file"),
        ("[a](../outside.md)", "no such file"),
        ("[a](docs/b.md#three-words)", "no such heading"),
        ("[a](docs/b.md#in-code)", "no such heading"),
        ("[a](#there)", "no such heading"),
    ]
    for text, expected in cases:
        with tempfile.TemporaryDirectory() as directory:
            root = Path(directory)
            (root / "docs").mkdir()
            (root / "docs/b.md").write_text("# Two words\n## Why √d, and `z`?\n```\n# In code\n```\n", encoding="utf-8")
            (root / "README.md").write_text(text, encoding="utf-8")
            problems = check_tree(root)[1]
        if len(problems) != (expected is not None) or (expected and expected not in problems[0]):
            sys.exit(f"check_links.py: self-test: {text!r} yields {problems}, expected {expected}")


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent.parent
    count, problems = check_tree(root.resolve())
    print("\n".join(problems) if problems else f"{count} documents, every link leads somewhere")
    return sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
