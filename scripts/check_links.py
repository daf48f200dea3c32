#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the Markdown files of this repository. Fails on:

  - a link to a file or heading that does not exist
  - a document that no chain of links from README.md or docs/README.md reaches
  - a document in docs/ without exactly one heading of level 1

    check_links.py [ROOT]        check the Markdown files of the root, and all below docs/, bench/ and experiments/
                                 (default: of the tree that holds this script)
    check_links.py --self-test

Links to other sites are not checked.
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
    """Returns the anchor that GitHub gives a heading."""
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


def links(path):
    """Yields (link as written, file, anchor of a heading) for each of a document's links to this repository."""
    text = CODE.sub("", FENCE.sub("", path.read_text(encoding="utf-8")))
    for link in LINK.findall(text):
        if not re.match(r"[a-z]+:", link):
            name, _, fragment = link.partition("#")
            yield link, (path.parent / name).resolve() if name else path, fragment


def check_file(root, path):
    problems = []
    where = path.relative_to(root)
    for link, target, fragment in links(path):
        if not target.is_relative_to(root) or not target.exists():
            problems.append(f"{where}: {link}: no such file")
        elif fragment and (target.suffix != ".md" or fragment not in anchors(target)):
            problems.append(f"{where}: {link}: no such heading")
    return problems


def check_title(root, path):
    """Returns a complaint unless the document has exactly one heading of level 1, the title of its page."""
    titles = re.findall(r"^# ", FENCE.sub("", path.read_text(encoding="utf-8")), re.MULTILINE)
    return [] if len(titles) == 1 else [f"{path.relative_to(root)}: {len(titles)} headings of level 1, not one"]


def unreachable(files, starts):
    """Returns the documents of `files` that no chain of links from `starts` reaches."""
    reached, ahead = set(), [path for path in starts if path in files]
    while ahead:
        path = ahead.pop()
        reached.add(path)
        ahead += {target for _, target, _ in links(path)} & (set(files) - reached)
    return [path for path in files if path not in reached]


def documents(root):
    patterns = ("*.md", "docs/**/*.md", "bench/**/*.md", "experiments/**/*.md")
    return [path for pattern in patterns for path in sorted(root.glob(pattern))]


def check_tree(root):
    root = root.resolve()
    files = documents(root)
    problems = [problem for path in files for problem in check_file(root, path)]
    problems += [problem for path in files if path.is_relative_to(root / "docs") for problem in check_title(root, path)]
    starts = (root / "README.md", root / "docs/README.md")
    problems += [f"{path.relative_to(root)}: no link leads here from README.md" for path in unreachable(files, starts)]
    return len(files), problems


def self_test():
    """Each README.md of `cases` must cause exactly the expected complaint, or none."""
    cases = [
        ("[a](docs/b.md)", None),
        ("[a](docs/b.md#two-words)", None),
        ("[a](docs/b.md#why-d-and-z)", None),
        ("# Here\n[a](#here) [b](docs/b.md)", None),
        ("[a](https://example.org/nowhere) [b](docs/b.md)", None),
        ("`[a](nowhere.md)` [b](docs/b.md)", None),
        ("```\n[a](nowhere.md)\n```\n[b](docs/b.md)", None),
        ("[a](nowhere.md) [b](docs/b.md)", "README.md: nowhere.md: no such file"),
        ("[a](../outside.md) [b](docs/b.md)", "README.md: ../outside.md: no such file"),
        ("[a](docs/b.md#three-words)", "no such heading"),
        ("[a](docs/b.md#in-code)", "no such heading"),
        ("[a](#there) [b](docs/b.md)", "no such heading"),
        ("no link", "docs/b.md: no link leads here from README.md"),
        ("`[a](docs/b.md)`", "docs/b.md: no link leads here from README.md"),
    ]
    title_test()
    for text, expected in cases:
        with tempfile.TemporaryDirectory() as directory:
            root = Path(directory)
            (root / "docs").mkdir()
            (root / "docs/b.md").write_text("# Two words\n## Why √d, and `z`?\n```\n# In code\n```\n", encoding="utf-8")
            (root / "README.md").write_text(text, encoding="utf-8")
            problems = check_tree(root)[1]
        if len(problems) != (expected is not None) or (expected and expected not in problems[0]):
            sys.exit(f"check_links.py: self-test: {text!r} yields {problems}, expected {expected}")
    island_test()


def problems_of(documents):
    """Returns the complaints of check_tree about a tree. `documents` maps paths to contents."""
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        for name, content in documents.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(content)
        return check_tree(root)[1]


def title_test():
    """Pages of docs/ have one heading of level 1; other documents may have several."""
    links = "[a](docs/a.md) [b](docs/b.md)"
    problems = problems_of({"README.md": "# A\n# B\n" + links, "docs/a.md": "", "docs/b.md": "# A\n# B\n"})
    if problems != ["docs/a.md: 0 headings of level 1, not one", "docs/b.md: 2 headings of level 1, not one"]:
        sys.exit(f"check_links.py: self-test: titles yield {problems}")


def island_test():
    """Documents that only link each other are unreachable. Links from docs/README.md count, and documents beside
    README.md must be reachable, too."""
    documents = {"README.md": "[a](docs/a.md)", "CHANGES.md": "", "docs/README.md": "# I\n[e](deep/e.md)"}
    links_of = (("a", "[b](b.md)"), ("b", ""), ("c", "[d](d.md)"), ("d", "[c](c.md) [b](b.md)"), ("deep/e", ""))
    documents |= {f"docs/{name}.md": "# T\n" + content for name, content in links_of}
    problems = problems_of(documents)
    if problems != [f"{name}.md: no link leads here from README.md" for name in ("CHANGES", "docs/c", "docs/d")]:
        sys.exit(f"check_links.py: self-test: an island yields {problems}")


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent.parent
    count, problems = check_tree(root)
    good = f"{count} documents: every link leads somewhere, and README.md to every document"
    print("\n".join(problems) if problems else good)
    return sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
