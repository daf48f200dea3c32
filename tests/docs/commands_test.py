#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The commands that documents show are those of the tool: every `headgate VERB --option` in a block of code of README.md,
bench/README.md and docs/ has a verb and options that `headgate VERB --help` names.

    commands_test.py HEADGATE [DOCUMENT …]
"""

import functools
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FENCE = re.compile(r"^```[a-z]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"(?:^|[\s;&|(])(?:build/)?headgate ([a-z]+)((?: [^\n#|&;)]*)?)")
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")


@functools.cache
def options_of(headgate, verb):
    """The options of a verb; None where there is no such verb."""
    found = subprocess.run([headgate, verb, "--help"], capture_output=True, text=True)
    return set(OPTION.findall(found.stdout)) if found.returncode == 0 else None


def problems_of(headgate, document):
    problems = []
    for block in FENCE.findall(document.read_text(encoding="utf-8")):
        for verb, rest in COMMAND.findall(block.replace("\\\n", " ")):
            known = options_of(headgate, verb)
            unknown = (
                {f"no verb {verb}"}
                if known is None
                else {f"{verb} has no {o}" for o in OPTION.findall(rest)} - {f"{verb} has no {o}" for o in known}
            )
            problems += [f"{document.name}: {problem}" for problem in sorted(unknown)]
    return problems


def main():
    headgate, *names = sys.argv[1:]
    documents = [Path(name) for name in names] or [
        ROOT / "README.md", ROOT / "bench/README.md", *sorted(ROOT.glob("docs/**/*.md"))]  # fmt: skip
    problems = [problem for document in documents for problem in problems_of(headgate, document)]
    print("\n".join(problems) if problems else f"{len(documents)} documents: every command's options exist")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
