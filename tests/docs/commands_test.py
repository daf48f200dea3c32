#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The commands that documents show exist: every `headgate VERB --option` in a block of code has a verb and options that
`headgate VERB --help` names, and every script of bench/, experiments/ and scripts/ is there and names its options.

    commands_test.py HEADGATE [DOCUMENT …]
"""

import functools
import re
import subprocess
import sys
from pathlib import Path

from blocks import ROOT, blocks_of, pages

COMMAND = re.compile(r"(?:^|[\s;&|(])(?:build/)?headgate ([a-z]+)((?: [^\n#|&;)]*)?)")
SCRIPT = re.compile(r"(?<![\w/.-])((?:bench|experiments|scripts)/[\w/-]+\.(?:py|sh))((?: [^\n#|&;)]*)?)")
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")


@functools.cache
def options_of(headgate, verb):
    """The options of a verb; None where there is no such verb."""
    found = subprocess.run([headgate, verb, "--help"], capture_output=True, text=True)
    return set(OPTION.findall(found.stdout)) if found.returncode == 0 else None


def wrong_options(name, rest, known):
    return sorted({f"{name} has no {option}" for option in OPTION.findall(rest) if option not in known})


def problems_of(headgate, page):
    problems = []
    for block in blocks_of(page):
        text = block.text.replace("\\\n", " ")
        for verb, rest in COMMAND.findall(text):
            known = options_of(headgate, verb)
            problems += [f"no verb {verb}"] if known is None else wrong_options(verb, rest, known)
        for script, rest in SCRIPT.findall(text):
            path = ROOT / script
            there = path.exists()
            problems += wrong_options(script, rest, path.read_text("utf-8")) if there else [f"no script {script}"]
    return [f"{page}: {problem}" for problem in problems]


def main():
    headgate, *names = sys.argv[1:]
    documents = [Path(name).resolve().relative_to(ROOT).as_posix() for name in names] or pages()
    problems = [problem for document in documents for problem in problems_of(headgate, document)]
    print("\n".join(problems) if problems else f"{len(documents)} documents: every command's options exist")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
