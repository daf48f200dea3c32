#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the structure of the source tree. Fails on:

  - an include of a file in a room that CMake does not link
  - rooms that link upwards or in a circle
  - sibling folders of src/ whose files include each other in a circle
  - modules of python/headgate that import each other in a circle
  - a file with more than MAX_LINES lines

    check_includes.py [ROOT]     check the tree (default: the one that holds this script)
    check_includes.py --self-test

A room is a folder of src/ or python/ with a CMakeLists.txt that defines a target. Its files may include files of the
rooms that its targets link. ARROWS lists the layers of rooms. Every file may include the public API, "headgate/...",
which includes nothing else. Tests, bench and scripts may include everything; examples only the public API.
"""

import ast
import os
import re
import sys
import tempfile
from pathlib import Path

# Maps each layer to the layers below it. A room may link rooms of its own layer and of these.
ARROWS = {
    "src/library": set(),
    "src/verify": {"src/library"},
    "src/models": {"src/library"},
    "src/tool": {"src/library", "src/verify", "src/models"},
    "python/headgate": {"src/library", "src/models", "src/tool"},
}
EXTERNAL = {"hwy"}  # customarily included in quotes
MAX_LINES = 800

C_SUFFIXES = {".c", ".cc", ".h", ".hpp"}
TEXT_SUFFIXES = C_SUFFIXES | {".py", ".sh", ".cmake", ".txt"}
TREES = ("include", "src", "python", "tests", "bench", "examples", "scripts", "cmake")
INCLUDE = re.compile(r'^\s*#\s*(?:include|define\s+HWY_TARGET_INCLUDE)\s+([<"])([^<">]+)[>"]')
CALL = re.compile(
    r"\b(headgate_library|add_library|add_executable|nanobind_add_module|target_link_libraries)\s*\(([^()]*)\)"
)
TARGET = re.compile(r"headgate_\w+")


class Rooms:
    """Reads the rooms below src/ and python/. `links` maps the path of each room to the rooms that it links."""

    def __init__(self, root):
        provided, used = {}, {}
        for file in [*root.glob("src/**/CMakeLists.txt"), *root.glob("python/**/CMakeLists.txt")]:
            folder = file.parent.relative_to(root).as_posix()
            text = re.sub(r"#.*", "", file.read_text(encoding="utf-8"))
            for command, arguments in CALL.findall(text):
                name, *others = arguments.split()
                if command != "target_link_libraries":
                    provided[name] = folder
                used.setdefault(folder, set()).update(filter(TARGET.fullmatch, others))
        self.links = {
            folder: {provided[name] for name in names if name in provided} - {folder} for folder, names in used.items()
        }

    def of(self, path):
        """Returns the room of a path relative to the root: the nearest parent folder that is a room, or None."""
        return next((folder.as_posix() for folder in Path(path).parents if folder.as_posix() in self.links), None)

    def upward(self):
        """Returns a complaint for each room outside the layers, and for each link that ARROWS does not allow."""
        layers = {room: "/".join(room.split("/")[:2]) for room in self.links}
        complaints = [
            f"{room} is in none of the layers {', '.join(ARROWS)}"
            for room in sorted(layers)
            if layers[room] not in ARROWS
        ]
        for room in sorted(self.links):
            for other in sorted(self.links[room]):
                if layers[other] != layers[room] and layers[other] not in ARROWS.get(layers[room], ARROWS):
                    complaints.append(f"{room}/CMakeLists.txt links upwards: {other}")
        return complaints


def circle_of(links):
    """Returns the nodes of a cycle, or None if there is none. `links` maps each node to the nodes that it links."""
    done = set()

    def visit(node, path):
        if node in path:
            return path[path.index(node) :] + [node]
        if node in done:
            return None
        found = next(filter(None, (visit(other, path + [node]) for other in sorted(links[node]))), None)
        done.add(node)
        return found

    return next(filter(None, (visit(node, []) for node in sorted(links))), None)


def folder_links(root):
    """Maps each folder of src/, as a tuple of names, to the sibling folders that its files include."""
    links = {}
    for file in root.glob("src/**/*"):
        lines = file.read_text(encoding="utf-8").splitlines() if file.suffix in C_SUFFIXES else []
        for match in filter(None, map(INCLUDE.match, lines)):
            here, there = file.relative_to(root).parent.parts, Path("src", match[2]).parent.parts
            beside = len(os.path.commonprefix([here, there])) + 1
            if beside <= min(len(here), len(there)):
                links.setdefault(here[:beside], set()).add(there[:beside])
                links.setdefault(there[:beside], set())
    return links


def imported_at_run_time(tree):
    """Yields the import statements of a module, also those in functions, but not those under `if TYPE_CHECKING`."""
    if isinstance(tree, (ast.Import, ast.ImportFrom)):
        yield tree
    guarded = isinstance(tree, ast.If) and getattr(tree.test, "id", None) == "TYPE_CHECKING"
    for child in tree.orelse if guarded else ast.iter_child_nodes(tree):
        yield from imported_at_run_time(child)


def python_links(root):
    """Maps each module of python/headgate, as a tuple of names, to the modules that it imports."""
    files = {}
    for file in (root / "python").glob("headgate/**/*.py"):
        parts = file.relative_to(root / "python").with_suffix("").parts
        files[parts[:-1] if parts[-1] == "__init__" else parts] = file
    links = {}
    for module, file in files.items():
        package = module if file.name == "__init__.py" else module[:-1]
        links[module] = set()
        for node in imported_at_run_time(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found = [tuple(name.name.split(".")) for name in node.names]
            else:
                base = package[: len(package) - node.level + 1] if node.level else ()
                base += tuple((node.module or "").split(".")) if node.module else ()
                found = [base + (name.name,) for name in node.names] + ([base] if node.module else [])
            links[module].update(set(found) & set(files) - {module})
    return links


def check_include(rooms, path, quote, target):
    """Returns a complaint about an include of `target` in the file `path`, or None."""
    folder, slash, _ = target.partition("/")
    if folder == "headgate" or folder in EXTERNAL:
        return None
    included = rooms.of(f"src/{target}") or rooms.of(target)
    if quote == "<" and not included:
        return None
    if not slash or folder in {".", ".."}:
        return "write the path from src/, include/ or the root"
    if path.parts[0] in {"include", "examples"}:
        return "only the public API may be included here"
    room = rooms.of(path)
    if not included:
        return "not in a room"
    if included == room or included in rooms.links[room]:
        return None
    return f"{room}/CMakeLists.txt does not link {included}, only {', '.join(sorted(rooms.links[room])) or 'the public API'}"


def check_file(root, rooms, path):
    lines = (root / path).read_text(encoding="utf-8").splitlines()
    problems = []
    if len(lines) > MAX_LINES:
        problems.append(f"{path}: {len(lines)} lines, more than {MAX_LINES}")
    if path.parts[0] not in {"include", "src", "python", "examples"} or path.suffix not in C_SUFFIXES:
        return problems
    if path.parts[0] in {"src", "python"} and rooms.of(path) is None:
        return problems + [f"{path}: not in a room: no CMakeLists.txt above it defines a target"]
    for number, line in enumerate(lines, 1):
        match = INCLUDE.match(line)
        complaint = match and check_include(rooms, path, *match.groups())
        if complaint:
            problems.append(f"{path}:{number}: {match[2]}: {complaint}")
    return problems


def check_tree(root):
    rooms = Rooms(root)
    files = [
        file.relative_to(root)
        for tree in TREES
        for file in sorted((root / tree).rglob("*"))
        if file.is_file() and file.suffix in TEXT_SUFFIXES
    ]
    problems = [problem for path in files for problem in check_file(root, rooms, path)]
    problems += rooms.upward()
    circle = circle_of(rooms.links)
    if circle:
        problems.append(f"rooms link each other in a circle: {' -> '.join(circle)}")
    circle = circle_of(folder_links(root))
    if circle:
        problems.append(f"folders include each other in a circle: {' -> '.join(map('/'.join, circle))}")
    circle = circle_of(python_links(root))
    if circle:
        problems.append(f"modules import each other in a circle: {' -> '.join(map('.'.join, circle))}")
    return len(files), problems


MADE_UP_ROOMS = {
    "src/library/low": "headgate_library(headgate_low)",
    "src/models/middle": "headgate_library(headgate_middle SOURCES a.cc DEPENDS headgate_low fmt::fmt)",
    "src/models/other": "headgate_library(headgate_other DEPENDS headgate_middle)",
    "src/tool/high": "add_executable(headgate_high a.cc)\ntarget_link_libraries(headgate_high PRIVATE\n  headgate_middle  # a comment\n)",
    "python/headgate": "nanobind_add_module(headgate_python a.cc)\ntarget_link_libraries(headgate_python PRIVATE headgate_high)",
}


def self_test():
    """Adds each file of `cases` to a tree of made-up rooms. The file must cause exactly the expected complaint, or
    none."""
    cases = [
        ("src/library/low/a.hpp", '#include "library/low/b.hpp"', None),
        ("src/library/low/a.hpp", '#include "headgate/tensor.hpp"', None),
        ("src/library/low/a.hpp", "#include <sys/stat.h>", None),
        (
            "src/library/low/a.hpp",
            "#include <models/middle/b.hpp>",
            "does not link src/models/middle, only the public API",
        ),
        (
            "src/library/low/a.hpp",
            '#include "models/middle/b.hpp"',
            "src/library/low/CMakeLists.txt does not link src/models/middle",
        ),
        (
            "src/library/low/x/a.hpp",
            '#include "library/low/y/b.hpp"',
            "circle: src/library/low/x -> src/library/low/y -> src/library/low/x",
        ),
        ("src/library/low/x/a.hpp", '#include "library/low/b.hpp"', None),
        ("src/library/low/b.hpp", '#include "library/low/x/a.hpp"', None),
        ("src/models/middle/a.cc", '#include "library/low/b.hpp"', None),
        ("src/models/middle/cpu/a.cc", '#include "library/low/b.hpp"', None),
        ("src/models/middle/cpu/a.cc", '#include "models/middle/b.hpp"', None),
        ("src/models/middle/a.cc", '#include "hwy/highway.h"', None),
        ("src/models/middle/a.cc", '#define HWY_TARGET_INCLUDE "models/middle/a.cc"', None),
        ("src/models/middle/a.cc", '#define HWY_TARGET_INCLUDE "a.cc"', "write the path"),
        (
            "src/models/middle/a.cc",
            '  #  include "tool/high/b.hpp"',
            "does not link src/tool/high, only src/library/low",
        ),
        ("src/tool/high/a.cc", '#include "models/middle/cpu/b.hpp"', None),
        ("src/tool/high/a.cc", '#include "library/low/b.hpp"', "does not link src/library/low"),
        ("src/tool/high/a.cc", '#include "b.hpp"', "write the path"),
        ("src/tool/high/a.cc", '#include "../low/b.hpp"', "write the path"),
        ("src/tool/high/a.cc", '#include "tool/elsewhere/b.hpp"', "not in a room"),
        ("src/elsewhere/a.cc", "int a;", "not in a room"),
        ("include/headgate/a.hpp", '#include "library/low/b.hpp"', "only the public API"),
        ("examples/a.cc", '#include "library/low/b.hpp"', "only the public API"),
        ("python/headgate/a.cc", '#include "python/headgate/b.hpp"', None),
        ("python/headgate/a.cc", '#include "tool/high/b.hpp"', None),
        ("python/headgate/a.cc", '#include "models/middle/b.hpp"', "does not link src/models/middle"),
        ("tests/low/a.cc", '#include "tool/high/b.hpp"', None),
        ("tests/low/a.cc", "\n" * MAX_LINES, None),
        ("tests/low/a.cc", "\n" * (MAX_LINES + 1), f"{MAX_LINES + 1} lines"),
        (
            "src/models/middle/CMakeLists.txt",
            "headgate_library(headgate_middle DEPENDS headgate_low headgate_other)",
            "in a circle: src/models/middle -> src/models/other -> src/models/middle",
        ),
        (
            "src/library/lowest/CMakeLists.txt",
            "headgate_library(headgate_lowest DEPENDS headgate_middle)",
            "src/library/lowest/CMakeLists.txt links upwards: src/models/middle",
        ),
        ("python/headgate/a.py", "from . import b", None),
        ("python/headgate/b.py", "def f():\n    from .c import g", "circle: headgate.b -> headgate.c -> headgate.b"),
        ("python/headgate/b.py", "from . import c", "circle: headgate.b -> headgate.c -> headgate.b"),
        ("python/headgate/b.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .c import g", None),
        ("src/other/a/CMakeLists.txt", "headgate_library(headgate_a)", "src/other/a is in none of the layers"),
    ]
    failures = []
    for path, text, expected in cases:
        with tempfile.TemporaryDirectory() as folder:
            contents = {f"{room}/CMakeLists.txt": cmake for room, cmake in MADE_UP_ROOMS.items()}
            contents |= {"src/library/low/y/b.hpp": '#include "library/low/x/a.hpp"'}
            contents |= {"python/headgate/c.py": "import headgate.b", path: text}
            for name, content in contents.items():
                Path(folder, name).parent.mkdir(parents=True, exist_ok=True)
                Path(folder, name).write_text(content, encoding="utf-8")
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
