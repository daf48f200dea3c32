#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints the compiled source files that a change reaches: those that changed since a commit, and those that include a
file that did, by the dependencies that the compiler told Ninja. A source that is not built yet counts as reached.

  scripts/affected_files.py BUILD COMMIT
  scripts/affected_files.py --self-test
"""

import json
import os
import pathlib
import shlex
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent


def parse_dependencies(text, build):
    """{object: set of absolute paths} of what `ninja -t deps` prints."""
    dependencies, current = {}, None
    for line in text.splitlines():
        if line.startswith(" "):
            dependencies[current].add(os.path.normpath(os.path.join(build, line.strip())))
        elif ": #deps" in line:
            current = line.split(": #deps")[0]
            dependencies[current] = set()
    return dependencies


def affected(entries, dependencies, changed):
    """Files of compile_commands.json's `entries` that are in `changed` or depend on a file of it."""
    files = set()
    for entry in entries:
        command = shlex.split(entry["command"])
        reached = dependencies.get(command[command.index("-o") + 1])
        if entry["file"] in changed or reached is None or reached & changed:
            files.add(entry["file"])
    return sorted(files)


def changed_since(commit):
    def git(*arguments):
        return subprocess.run(("git", *arguments), cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout

    names = git("diff", "--name-only", commit) + git("ls-files", "--others", "--exclude-standard")
    return {str(ROOT / name) for name in names.splitlines()}


def self_test():
    text = (
        "a.o: #deps 2, deps mtime 1 (VALID)\n    ../src/a.cc\n    /p/src/core/x.hpp\n\n"
        "b.o: #deps 1, deps mtime 1 (VALID)\n    ../src/b.cc\n\n"
    )
    dependencies = parse_dependencies(text, "/p/build")
    entries = [{"file": f"/p/src/{name}.cc", "command": f"c++ -O3 -o {name}.o -c /p/src/{name}.cc"} for name in "abc"]
    assert affected(entries, dependencies, {"/p/src/core/x.hpp"}) == ["/p/src/a.cc", "/p/src/c.cc"]
    assert affected(entries, dependencies, {"/p/src/b.cc"}) == ["/p/src/b.cc", "/p/src/c.cc"]
    del entries[2]
    assert affected(entries, dependencies, {"/p/README.md"}) == []


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    build = pathlib.Path(sys.argv[1]).resolve()
    entries = json.loads((build / "compile_commands.json").read_text(encoding="utf-8"))
    printed = subprocess.run(("ninja", "-C", build, "-t", "deps"), check=True, stdout=subprocess.PIPE, text=True).stdout
    try:
        changed = changed_since(sys.argv[2])
    except subprocess.CalledProcessError:
        sys.exit(f"affected_files: git knows no commit '{sys.argv[2]}'")
    print("\n".join(affected(entries, parse_dependencies(printed, build), changed)))


if __name__ == "__main__":
    sys.exit(main())
