#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""scripts/release.py in a small repository of its own: what it checks, writes and tags."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

RELEASE = Path(__file__).resolve().parents[2] / "scripts/release.py"
FILES = {
    "include/headgate/version.h": "#define HEADGATE_VERSION_MAJOR 0\n#define HEADGATE_VERSION_MINOR 2\n"
    "#define HEADGATE_VERSION_PATCH 0\n",
    "CITATION.cff": "cff-version: 1.2.0\ntype: software\nversion: 0.2.0\nlicense: Apache-2.0\n",
    "CHANGELOG.md": "# Changelog\n\n## [Unreleased]\n\nTo become 0.2.0.\n\n### Added\n\n- Caches.\n\n"
    "## [0.1.0] - 2026-11-21\n\n- All of it.\n",
    "pyproject.toml": '[project]\nname = "headgate"\ndynamic = ["version"]\n',
    "Makefile": 'test check:\n\t@echo $@ >>$(LOG)\n\t@test -z "$(FAILS)"\n',
}


class Release(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name) / "tree"
        self.log = Path(folder.name) / "log"
        for name, text in FILES.items():
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            (self.root / name).write_text(text, encoding="utf-8")
        (self.root / "scripts").mkdir()
        shutil.copy(RELEASE, self.root / "scripts")
        self.environment = {
            "PATH": os.environ["PATH"],
            "HOME": folder.name,
            "LOG": str(self.log),
            "GIT_CONFIG_NOSYSTEM": "1",
        }
        for person in ("AUTHOR", "COMMITTER"):
            self.environment |= {f"GIT_{person}_NAME": "N", f"GIT_{person}_EMAIL": "n@example.org"}
        self.git("init", "--quiet", "--initial-branch=main")
        self.commit()

    def git(self, *arguments):
        return subprocess.run(
            ["git", *arguments], cwd=self.root, env=self.environment, check=True, capture_output=True, text=True
        ).stdout.strip()

    def commit(self):
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message=a commit")

    def call(self, *arguments, **environment):
        done = subprocess.run(
            [sys.executable, self.root / "scripts/release.py", *arguments],
            capture_output=True,
            text=True,
            env={**self.environment, **environment},
        )
        return done.returncode, done.stdout, done.stderr

    def succeed(self, *arguments):
        status, out, err = self.call(*arguments)
        self.assertEqual((status, err), (0, ""))
        return out

    def fail_with(self, words, *arguments, **environment):
        status, _, err = self.call(*arguments, **environment)
        self.assertEqual((status, err.count("\n")), (1, 1), err)
        self.assertIn(words, err)

    def write(self, name, old, new):
        path = self.root / name
        text = path.read_text(encoding="utf-8")
        self.assertIn(old, text)
        path.write_text(text.replace(old, new), encoding="utf-8")

    def test_check_places_that_agree_passes(self):
        self.assertEqual(self.succeed("check"), "release: all places name 0.2.0\n")

    def test_check_place_that_differs_is_named(self):
        header = self.root / "include/headgate/runtime.hpp"
        for name, old, new, words in (
            ("CITATION.cff", "version: 0.2.0", "version: 0.1.0", "CITATION.cff has version 0.1.0, version.h 0.2.0"),
            ("CHANGELOG.md", "To become 0.2.0.\n", "", "neither a section 0.2.0 nor"),
            ("CHANGELOG.md", " - 2026-11-21", "", "section 0.1.0 has no date"),
            ("pyproject.toml", 'dynamic = ["version"]', "dynamic = []", "a version of its own"),
        ):
            self.write(name, old, new)
            self.fail_with(words, "check")
            self.git("checkout", "--quiet", ".")
        header.write_text('/// "0.1.0".\n', encoding="utf-8")
        self.fail_with('include/headgate/runtime.hpp names the version "0.1.0"', "check")

    def test_tag_unprepared_tree_is_refused(self):
        self.fail_with("no entries below 0.2.0", "tag")
        (self.root / "stray").touch()
        self.fail_with("the tree is not clean: stray", "tag")
        self.git("checkout", "--quiet", "-b", "other")
        self.fail_with("the branch is other, not main", "tag")
        self.git("tag", "v0.2.0")
        self.fail_with("the tag v0.2.0 exists", "tag")
        self.git("tag", "-d", "v0.2.0")
        self.git("tag", "v0.10.0")
        self.fail_with("the tag v0.10.0 is of a later version than 0.2.0", "tag")
        self.assertFalse(self.log.exists())

    def test_release_each_step_in_turn_makes_a_tag_and_the_next_version(self):
        self.succeed("prepare")
        changelog = (self.root / "CHANGELOG.md").read_text(encoding="utf-8")
        self.assertRegex(changelog, r"## \[Unreleased\]\n\n## \[0\.2\.0\] - \d{4}-\d\d-\d\d\n\n### Added\n")
        self.assertTrue(re.search(r"version: 0.2.0\ndate-released: \d{4}", (self.root / "CITATION.cff").read_text()))
        self.fail_with("has a section 0.2.0 already", "prepare")
        self.commit()
        out = self.succeed("tag", "--dry-run")
        self.assertIn("would run: make test, make check; then tag v0.2.0 with:\n\n### Added\n\n- Caches.", out)
        self.assertEqual((self.git("tag"), self.log.exists()), ("", False))
        status, _, err = self.call("tag", FAILS="yes")
        self.assertEqual((status, err.splitlines()[-1]), (1, "release: make test failed; nothing is tagged"))
        self.log.unlink()
        self.succeed("tag")
        self.assertEqual(self.log.read_text(), "test\ncheck\n")
        self.assertEqual(self.git("tag", "-n9", "v0.2.0").split("\n")[-1].strip(), "- Caches.")
        self.fail_with("the tag v0.2.0 exists", "tag")

        self.fail_with("greater than 0.2.0, got 0.1.5", "next", "0.1.5")
        self.fail_with("MAJOR.MINOR.PATCH, got 1", "next", "1")
        self.succeed("next", "0.3.0")
        self.assertEqual(self.succeed("check"), "release: all places name 0.3.0\n")
        self.assertNotIn("date-released", (self.root / "CITATION.cff").read_text())
        self.fail_with("0.3.0 is not released yet", "next", "0.4.0")


if __name__ == "__main__":
    unittest.main()
