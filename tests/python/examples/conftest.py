# SPDX-License-Identifier: Apache-2.0
"""The examples as modules, on a small list of packages that is made here."""

import os
import random
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "examples" / "python"))

import pytest

SECTIONS = {
    "libs": ("lib{}1", "shared library for {} data", "libc6 (>= 2.34)"),
    "libdevel": ("lib{}-dev", "development files of the {} library", "lib{}1 (= 1.0-1), libc6-dev | libc-dev"),
    "doc": ("{}-doc", "documentation of {}", ""),
    "games": ("{}-game", "game about {} and its friends", "lib{}1 (>= 0.9), {}-doc:any"),
}


def stanzas(count, seed=0):
    """Returns the text of a list in which the description's words and the name determine the section."""
    chance = random.Random(seed)
    parts = []
    for number in range(count):
        section = list(SECTIONS)[number % len(SECTIONS)]
        if number % len(SECTIONS) == 0:  # a package of each section about the same thing
            word = "".join(chance.choice("bdfgklmnprst") + chance.choice("aeiou") for _ in range(3)) + str(number)
        name, description, depends = (pattern.replace("{}", word) for pattern in SECTIONS[section])
        parts.append(
            f"Package: {name}\nVersion: 1.0-1\n"
            + (f"Depends: {depends}\n" if depends else "")
            + f"Description: {description}\nTag: role::shared-lib,\n Depends: not a field\nSection: {section}\n"
        )
    return "\n".join(parts) + "\n"


@pytest.fixture(scope="session")
def packages_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("lists") / "excerpt_Packages"
    path.write_text(stanzas(400))
    return path
