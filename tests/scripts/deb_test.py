#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""deb_test.py SONAME: what scripts/deb.sh builds Debian packages from agrees with packages.txt, version.h and SONAME."""

import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SONAME = sys.argv.pop() if len(sys.argv) > 1 else ""


class Deb(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.source = Path(folder.name) / "source"
        subprocess.run([ROOT / "scripts/deb.sh", "--source", cls.source], check=True)
        cls.control = (cls.source / "debian/control").read_text(encoding="utf-8")

    def test_build_depends_are_the_groups_of_packages_txt(self):
        listed = subprocess.check_output([ROOT / "scripts/setup.sh", "--list", "build", "tool", "deb"], text=True)
        found = re.search(r"^Build-Depends:\n((?: .*\n)+)", self.control, re.MULTILINE)[1]
        self.assertEqual(
            {row.strip(" ,") for row in found.splitlines()},
            set(listed.split()) - {"g++", "ccache", "debhelper"} | {"debhelper-compat (= 13)"},
        )

    def test_library_package_is_named_by_the_soname(self):
        name = SONAME.replace(".so.", "")
        packages = re.findall(r"^Package: (.*)$", self.control, re.MULTILINE)
        self.assertEqual(packages, [name, "libheadgate-dev", "headgate", "python3-headgate"])
        self.assertTrue((self.source / f"debian/{name}.install").is_file())
        self.assertNotIn("@", re.sub("<.*>", "", self.control))

    def test_changelog_names_the_version(self):
        version = subprocess.check_output([ROOT / "scripts/release.py", "check"], text=True).split()[-1]
        changelog = (self.source / "debian/changelog").read_text(encoding="utf-8")
        self.assertRegex(changelog, rf"^headgate \({re.escape(version)}(~\d{{8}}\.[0-9a-f]+)?-1~deb\d+\) unstable; ")


if __name__ == "__main__":
    unittest.main()
