#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the Makefile says before it compiles: in a tree where its scripts do nothing, and what it would run."""

import json
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

MAKEFILE = pathlib.Path(__file__).resolve().parents[2] / "Makefile"


class Install(unittest.TestCase):
    def said(self, built, *arguments):
        """Returns what `make install` prints in a tree whose build has the vector targets `built`."""
        with tempfile.TemporaryDirectory() as folder:
            tree = pathlib.Path(folder)
            shutil.copy(MAKEFILE, tree)
            for name in ("setup.sh", "configure.sh"):
                script = tree / "scripts" / name
                script.parent.mkdir(exist_ok=True)
                script.write_text("#!/bin/sh\n")
                script.chmod(0o755)
            if built:
                (tree / "build").mkdir()
                (tree / "build/CMakeCache.txt").write_text(f"HEADGATE_VECTOR_TARGETS:STRING={built}\n")
            # cmake fails, as there is nothing to build.
            result = subprocess.run(
                ["make", "-C", tree, "install", *arguments], capture_output=True, text=True, check=False
            )
            return result.stdout

    def test_build_for_this_cpu_alone_is_named_before_the_others_are_compiled(self):
        for built in ("native", "avx2", "avx3"):
            said = self.said(built)
            warning = said.find("now those of every other one are compiled as well")
            self.assertTrue(0 <= warning < said.find("building the command line"), said)
            self.assertIn("VECTOR_TARGETS=native", said)

    def test_nothing_is_said_where_nothing_more_is_compiled(self):
        for built, arguments in (("all", ()), (None, ()), ("native", ("VECTOR_TARGETS=native",))):
            said = self.said(built, *arguments)
            self.assertIn("building the command line", said)
            self.assertNotIn("every other one", said)


class Test(unittest.TestCase):
    def test_quick_is_1_alone(self):
        for quick, preset in (("QUICK=1", "quick"), ("QUICK=0", "release"), ("QUICK=", "release")):
            command = ["make", "-n", "-f", MAKEFILE, "test", quick]
            said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            self.assertIn(f"ctest --preset {preset}", said)
            self.assertEqual("cmake --build --preset quick" in said, preset == "quick", said)


class Lists(unittest.TestCase):
    def said(self, *arguments):
        command = ["make", "-n", "-f", MAKEFILE, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, cwd=MAKEFILE.parent).stdout

    def test_experiments_are_those_that_need_the_tool_alone(self):
        configs = (MAKEFILE.parent / "experiments").glob("*/config.json")
        of_tool = {path.parent.name for path in configs if "program" not in json.loads(path.read_text())}
        names = re.search(r"for name in ([^;]+);", self.said("experiments"))[1].split()
        self.assertEqual(sorted(names), sorted(of_tool))

    def test_help_names_every_check(self):
        script = (MAKEFILE.parent / "scripts/check.sh").read_text()
        checks = set(re.findall(r"^check (\w+) ", script, re.MULTILINE))
        self.assertIn("mutants", checks)
        said = self.said("help")
        said = said[said.index("make check ") : said.index("make setup ")].lower()
        for name in checks - {"addresses", "threads"} | {"sanitizers"}:
            self.assertIn(name, said)


if __name__ == "__main__":
    unittest.main()
