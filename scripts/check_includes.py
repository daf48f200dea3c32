#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fails on an include that points up the layers, and on a source file that has grown too long.

    check_includes.py [ROOT]     check the tree (default: the one that holds this script)
    check_includes.py --self-test
"""

import re
import sys
import tempfile
from pathlib import Path

# Folder -> the folders that it may include beside its own, by their last names. Every folder may include "headgate/...",
# the public API; the public API includes nothing else.
LAYERS = {
    "include/headgate": set(),
    "src/core": set(),
    "src/gates": {"core"},
    "src/attention": {"core", "gates"},
    "src/capi": {"attention", "core", "gates"},
    "src/headgate": {"capi", "attention", "core"},
    "src/reference": {"core"},
    "src/console": {"core"},
    "src/io": {"core"},
    "src/attend": {"core", "gates", "io"},
    "src/tokenize": {"core", "io"},
    "src/explain": {"core", "gates", "io", "reference"},
    "src/layers": {"core", "gates"},
    "src/models": {"core", "gates", "io", "layers"},
    "src/generate": {"core", "io", "models", "tokenize"},
    "src/metrics": {"core", "layers", "models"},
    "src/train": {"console", "core", "gates", "io", "layers", "metrics", "models", "tokenize"},
    "src/page": {"core", "metrics"},
    "src/xray": {"console", "core", "io", "layers", "metrics", "models", "page", "tokenize", "train"},
    "src/compare": {"console", "core", "metrics", "page", "train"},
    "src/verify": {"core", "gates", "reference"},
    "src/bench": {"core", "gates", "layers", "models", "train", "verify"},
    "src/demo": {
        "bench",
        "console",
        "core",
        "explain",
        "gates",
        "io",
        "layers",
        "metrics",
        "models",
        "reference",
        "train",
        "verify",
        "xray",
    },
    "src/cli": {
        "attend",
        "bench",
        "compare",
        "console",
        "core",
        "demo",
        "explain",
        "gates",
        "generate",
        "io",
        "layers",
        "metrics",
        "models",
        "page",
        "tokenize",
        "train",
        "verify",
        "xray",
    },
    "python": {"compare", "core", "explain", "gates", "io", "layers", "metrics", "train", "xray"},
    "examples": set(),
}
NAMES = {layer.rpartition("/")[2] for layer in LAYERS if layer != "examples"}
EXTERNAL = {"hwy"}  # customarily included in quotes
MAX_LINES = 800

C_SUFFIXES = {".c", ".cc", ".h", ".hpp"}
TEXT_SUFFIXES = C_SUFFIXES | {".py", ".sh", ".cmake", ".txt"}
TREES = ("include", "src", "python", "tests", "bench", "examples", "scripts", "cmake")
INCLUDE = re.compile(r'^\s*#\s*(?:include|define\s+HWY_TARGET_INCLUDE)\s+([<"])([^<">]+)[>"]')


def check_include(layer, quote, target):
    """The complaint about an include of `target` in a file of `layer`, or None."""
    folder, slash, _ = target.partition("/")
    if quote == "<" and folder not in NAMES:
        return None
    if not slash or folder in {".", ".."}:
        return "write the path from src/, include/ or the root"
    if folder == "headgate" or folder in EXTERNAL:
        return None
    if folder not in NAMES:
        return f"no layer {folder} in the table of scripts/check_includes.py"
    if folder == layer.rpartition("/")[2] or folder in LAYERS[layer]:
        return None
    return f"an upward include: {layer} may include {', '.join(sorted(LAYERS[layer])) or 'the public API'} only"


def layer_of(path):
    """The row of LAYERS for a path relative to the root, or None for tests, bench and scripts, which see everything."""
    parts = path.parts
    if parts[0] in {"examples", "python"}:
        return parts[0]
    folder = "/".join(parts[:2])
    return folder if parts[0] in {"include", "src"} else None


def check_file(root, path):
    lines = (root / path).read_text(encoding="utf-8").splitlines()
    problems = []
    if len(lines) > MAX_LINES:
        problems.append(f"{path}: {len(lines)} lines, more than {MAX_LINES}")
    layer = layer_of(path)
    if layer is None or path.suffix not in C_SUFFIXES:
        return problems
    if layer not in LAYERS:
        return problems + [f"{path}: no layer {layer} in the table of scripts/check_includes.py"]
    for number, line in enumerate(lines, 1):
        match = INCLUDE.match(line)
        complaint = match and check_include(layer, *match.groups())
        if complaint:
            problems.append(f"{path}:{number}: {match[2]}: {complaint}")
    return problems


def check_tree(root):
    files = [
        file.relative_to(root)
        for tree in TREES
        for file in sorted((root / tree).rglob("*"))
        if file.is_file() and file.suffix in TEXT_SUFFIXES
    ]
    return len(files), [problem for path in files for problem in check_file(root, path)]


def self_test():
    """Each line, in a tree of its own, must yield exactly the complaint named."""
    cases = [
        ("src/core/a.hpp", '#include "core/b.hpp"', None),
        ("src/core/a.hpp", '#include "headgate/tensor.hpp"', None),
        ("src/core/a.hpp", "#include <sys/stat.h>", None),
        ("src/core/a.hpp", "#include <attention/b.hpp>", "an upward include"),
        ("src/core/a.hpp", '#include "attention/b.hpp"', "an upward include"),
        ("src/attention/a.cc", '#include "core/b.hpp"', None),
        ("src/attention/a.cc", '#include "hwy/highway.h"', None),
        ("src/attention/a.cc", '#define HWY_TARGET_INCLUDE "attention/a.cc"', None),
        ("src/attention/a.cc", '#define HWY_TARGET_INCLUDE "a.cc"', "write the path"),
        ("src/attention/a.cc", '#include "capi/b.hpp"', "an upward include"),
        ("src/attention/a.cc", '  #  include "reference/b.hpp"', "an upward include"),
        ("src/capi/a.cc", '#include "attention/b.hpp"', None),
        ("src/capi/a.cc", '#include "io/b.hpp"', "an upward include"),
        ("src/reference/a.cc", '#include "attention/b.hpp"', "an upward include"),
        ("src/io/a.cc", '#include "cli/b.hpp"', "an upward include"),
        ("src/cli/a.cc", '#include "reference/b.hpp"', "an upward include"),
        ("src/cli/a.cc", '#include "attention/b.hpp"', "an upward include"),
        ("src/cli/a.cc", '#include "verify/b.hpp"', None),
        ("src/io/a.cc", '#include "verify/b.hpp"', "an upward include"),
        ("src/verify/a.cc", '#include "reference/b.hpp"', None),
        ("src/verify/a.cc", '#include "cli/b.hpp"', "an upward include"),
        ("src/bench/a.cc", '#include "verify/b.hpp"', None),
        ("src/train/a.cc", '#include "bench/b.hpp"', "an upward include"),
        ("src/explain/a.cc", '#include "reference/b.hpp"', None),
        ("src/explain/a.cc", '#include "cli/b.hpp"', "an upward include"),
        ("src/attend/a.cc", '#include "cli/b.hpp"', "an upward include"),
        ("src/demo/a.cc", '#include "train/b.hpp"', None),
        ("src/train/a.cc", '#include "demo/b.hpp"', "an upward include"),
        ("src/io/a.cc", '#include "console/b.hpp"', "an upward include"),
        ("src/metrics/a.hpp", '#include "models/b.hpp"', None),
        ("src/metrics/a.hpp", '#include "train/b.hpp"', "an upward include"),
        ("src/models/a.cc", '#include "metrics/b.hpp"', "an upward include"),
        ("src/generate/a.cc", '#include "tokenize/b.hpp"', None),
        ("src/generate/a.cc", '#include "train/b.hpp"', "an upward include"),
        ("src/cli/a.cc", '#include "b.hpp"', "write the path"),
        ("src/cli/a.cc", '#include "../io/b.hpp"', "write the path"),
        ("src/cli/a.cc", '#include "elsewhere/b.hpp"', "no layer elsewhere"),
        ("src/elsewhere/a.cc", "int a;", "no layer src/elsewhere"),
        ("include/headgate/a.hpp", '#include "core/b.hpp"', "an upward include"),
        ("examples/a.cc", '#include "core/b.hpp"', "an upward include"),
        ("python/headgate/a.cc", '#include "python/headgate/b.hpp"', None),
        ("python/headgate/a.cc", '#include "xray/b.hpp"', None),
        ("python/headgate/a.cc", '#include "cli/b.hpp"', "an upward include"),
        ("tests/core/a.cc", '#include "core/b.hpp"', None),
        ("tests/core/a.cc", "\n" * MAX_LINES, None),
        ("tests/core/a.cc", "\n" * (MAX_LINES + 1), f"{MAX_LINES + 1} lines"),
    ]
    failures = []
    for path, text, expected in cases:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, path)
            file.parent.mkdir(parents=True)
            file.write_text(text, encoding="utf-8")
            _, problems = check_tree(Path(folder))
        fits = not problems if expected is None else len(problems) == 1 and expected in problems[0]
        if not fits:
            failures.append(f"self-test: {path}: {text.strip()!r} gave {problems}, not {expected!r}")
    return len(cases), failures


def main():
    arguments = sys.argv[1:]
    if arguments == ["--self-test"]:
        count, problems = self_test()
    else:
        count, problems = check_tree(Path(arguments[0]) if arguments else Path(__file__).resolve().parent.parent)
    for problem in problems:
        print(problem, file=sys.stderr)
    if not count:
        print("check_includes: nothing to check", file=sys.stderr)
    return 1 if problems or not count else 0


if __name__ == "__main__":
    sys.exit(main())
