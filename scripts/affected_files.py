#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints the compiled source files through which clang-tidy reads what changed since a commit, what changed last first:
each changed source, and for each changed header the source that includes it and the fewest other headers of the project.
Includes are read from the text, so that nothing has to be built.

  scripts/affected_files.py BUILD COMMIT
  scripts/affected_files.py --self-test
"""

import functools
import json
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDERS = ("include", "src", "tests", "")  # searched for included files, after the folder of the file itself
INCLUDE = re.compile(r'^\s*#\s*include\s+["<]([\w./-]+)[">]', re.MULTILINE)


class Includes:
    """Finds the files of the project that a file includes. `reached` also follows includes of included files, and its
    result contains the file itself."""

    def __init__(self, root):
        self.root = root
        self.direct = functools.cache(self._direct)
        self.reached = functools.cache(self._reached)

    def _direct(self, name):
        found = set()
        for included in INCLUDE.findall((self.root / name).read_text(encoding="utf-8", errors="replace")):
            for folder in (pathlib.PurePosixPath(name).parent, *map(pathlib.PurePosixPath, FOLDERS)):
                if (self.root / folder / included).is_file():
                    found.add(str(folder / included))
                    break
        return found

    def _reached(self, name):
        reached, waiting = {name}, [name]
        while waiting:
            new = self.direct(waiting.pop()) - reached
            reached |= new
            waiting += new
        return reached


def affected(sources, includes, changed):
    """Returns the sources that compile or include the files of `changed`, in their order. For a header that no chosen
    source includes, chooses the source that reads the fewest files."""
    chosen = []
    for name in changed:
        if any(name in includes.reached(source) for source in chosen):
            if name not in sources or name in chosen:
                continue
        readers = [name] if name in sources else [source for source in sources if name in includes.reached(source)]
        if readers:
            chosen.append(min(readers, key=lambda source: (len(includes.reached(source)), source)))
    return chosen


def changed_since(commit):
    def git(*arguments):
        command = ("git", *arguments)
        return subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout.split("\n")

    different = {*git("diff", "--name-only", commit), *git("ls-files", "--others", "--exclude-standard")}
    latest = git("ls-files", "--modified", "--others", "--exclude-standard") + git(
        "log", "--name-only", "--format=", f"{commit}..HEAD"
    )
    return [name for name in dict.fromkeys(latest + sorted(different)) if name in different and (ROOT / name).is_file()]


def self_test():
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for name, text in {
            "src/core/x.hpp": "",
            "src/core/y.hpp": '#include "core/x.hpp"\n',
            "src/a.cc": '#include "core/y.hpp"\n',
            "src/b.cc": '  #include "core/x.hpp"\n',
            "tests/c.cc": "#include <core/x.hpp>\n#include <vector>\n",
        }.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text, encoding="utf-8")
        sources, includes = ["src/a.cc", "src/b.cc", "tests/c.cc"], Includes(root)
        assert affected(sources, includes, ["src/core/x.hpp"]) == ["src/b.cc"]
        assert affected(sources, includes, ["src/core/y.hpp", "src/core/x.hpp"]) == ["src/a.cc"]
        assert affected(sources, includes, ["tests/c.cc", "src/core/x.hpp"]) == ["tests/c.cc"]
        assert affected(sources, includes, ["tests/c.cc", "src/a.cc"]) == ["tests/c.cc", "src/a.cc"]
        assert affected(sources, includes, ["README.md"]) == []


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    entries = json.loads((pathlib.Path(sys.argv[1]) / "compile_commands.json").read_text(encoding="utf-8"))
    files = dict.fromkeys(pathlib.Path(entry["file"]) for entry in entries)
    names = [file.relative_to(ROOT).as_posix() for file in files if file.is_relative_to(ROOT)]
    sources = [name for name in names if not name.startswith("build")]  # skips nanobind's sources and generated files
    try:
        changed = changed_since(sys.argv[2])
    except subprocess.CalledProcessError:
        sys.exit(f"affected_files: git knows no commit '{sys.argv[2]}'")
    print("\n".join(affected(sources, Includes(ROOT), changed)))


if __name__ == "__main__":
    sys.exit(main())
