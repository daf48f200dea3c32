#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Nothing tells people to install the distribution `headgate` of PyPI, which belongs to another project: every tracked
text names `headgate-attention`, the name in pyproject.toml."""

import re
import subprocess
import sys
import tomllib
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python/headgate"))
import extras

# The bare name as pip takes it: with extras or a version, as a word of a command, or in the names of its files.
WITH_EXTRAS = re.compile(r"(?<![\w./-])headgate ?\[[a-z{][^\]]*\]|(?<![\w./-])headgate *(?:[=~!]=|[<>]=?) *\d")
COMMAND = re.compile(r"pip3? (?:install|download|wheel) [^\n`#]*?(?<![\w./=-])headgate(?![\w./-])")
FILES = re.compile(r"headgate-[\d*][^ `\n]*(?:\.whl|-cp\d)|headgate-\*[^ `\n]*\.tar")


def wrong_names(text):
    return [match[0] for pattern in (WITH_EXTRAS, COMMAND, FILES) for match in pattern.finditer(text)]


class Distribution(unittest.TestCase):
    def test_messages_and_project_have_one_name(self):
        with open(ROOT / "pyproject.toml", "rb") as file:
            self.assertEqual(tomllib.load(file)["project"]["name"], extras.DISTRIBUTION)

    def test_no_text_names_the_package_of_others(self):
        listed = subprocess.check_output(["git", "ls-files", "-z"], cwd=ROOT, text=True).split("\0")
        paths = [ROOT / name for name in listed if name and not name.endswith("distribution_test.py")]
        texts = {path: path.read_text(encoding="utf-8", errors="replace") for path in paths if path.is_file()}
        self.assertGreater(len(texts), 500)
        found = {str(path.relative_to(ROOT)): wrong for path, text in texts.items() if (wrong := wrong_names(text))}
        self.assertEqual(found, {})

    def test_names_of_others_are_noticed(self):
        for text in (
            "pip install 'headgate[torch]'",
            "pip install headgate",
            "pip install --find-links build/wheels headgate",
            "pip install 'headgate[{extra}]'",
            "headgate==0.2.0",
            "headgate>=0.2",
            "pip install headgate-*.whl",
            "headgate-*-cp311-*.whl",
        ):
            self.assertTrue(wrong_names(text), text)
        for text in (
            "pip install 'headgate-attention[torch]'",
            "pip install .",
            "headgate_attention-*.whl",
            "headgate train",
        ):
            self.assertEqual(wrong_names(text), [], text)


if __name__ == "__main__":
    unittest.main()
