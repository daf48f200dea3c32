#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""scripts/setup.sh on a machine of make-believe: dpkg and apt-get are stand-ins that remember in files."""

import os
import pathlib
import subprocess
import tempfile
import unittest

SETUP = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "setup.sh"

# What is installed stands in $STATE/installed as "package architecture"; calls that change something in $STATE/calls.
STAND_INS = {
    "dpkg": """case "$1" in
  --print-architecture) echo "${NATIVE:-amd64}" ;;
  --print-foreign-architectures) cat "$STATE/foreign" ;;
  --add-architecture) echo "$2" >>"$STATE/foreign"; echo "dpkg $*" >>"$STATE/calls" ;;
  --configure) rm -f "$STATE/interrupted" ;;
esac""",
    "dpkg-query": """sed -n "s/^${!#} \\(.*\\)/\\1 installed/p" "$STATE/installed" | grep .""",
    "apt-cache": """echo "  Candidate: 1.0\"""",
    "apt-get": """[[ "$1" == install ]] || exit 0
[[ ! -e "$STATE/interrupted" ]] || { echo "E: dpkg was interrupted"; exit 100; }
[[ -z "$APT_FAILS" ]] || { echo "E: no network"; exit 100; }
for word in "$@"; do
  case "$word" in
    install | -* | *=*) ;;
    *:*) echo "${word%:*} ${word#*:}" >>"$STATE/installed" ;;
    *) echo "$word amd64" >>"$STATE/installed" ;;
  esac
done
echo "apt-get $*" >>"$STATE/calls\"""",
    "sudo": """[[ "$1" != -n ]] || shift
"$@\"""",
}


class Setup(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.state = pathlib.Path(folder.name)
        for name in ("installed", "foreign", "calls"):
            (self.state / name).touch()
        for name, text in STAND_INS.items():
            path = self.state / name
            path.write_text("#!/bin/bash\n" + text + "\n", encoding="utf-8")
            path.chmod(0o755)

    def run_setup(self, *arguments, apt_fails="", native="amd64", release="bookworm"):
        (self.state / "os-release").write_text(f"VERSION_CODENAME={release}\n", encoding="utf-8")
        environment = dict(
            os.environ,
            STATE=str(self.state),
            PATH=f"{self.state}:{os.environ['PATH']}",
            APT_FAILS=apt_fails,
            NATIVE=native,
            OS_RELEASE=str(self.state / "os-release"),
        )
        return subprocess.run(
            [SETUP, *arguments],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )

    def calls(self):
        return (self.state / "calls").read_text(encoding="utf-8")

    def packages(self, group):
        return self.run_setup("--list", group).stdout.split()

    def test_setup_named_groups_installs_them_alone(self):
        result = self.run_setup("build", "tool")
        self.assertEqual(result.returncode, 0, result.stdout)
        for package in self.packages("build") + self.packages("tool"):
            self.assertIn(f" {package}", self.calls())
        for package in ("libgtest-dev", "clang", "qemu-user", ":arm64", "dict-gcide"):
            self.assertNotIn(package, self.calls())

    def test_setup_second_run_changes_nothing(self):
        self.run_setup("tests", "aarch64")
        before = self.calls()
        result = self.run_setup("tests", "aarch64")
        self.assertEqual(result.returncode, 0)
        self.assertIn("are installed", result.stdout)
        self.assertEqual(self.calls(), before)

    def test_setup_package_of_another_architecture_adds_it(self):
        result = self.run_setup("build", "tool", "tests", "lint", "clang", "experiments")
        self.assertNotIn("architecture", result.stdout + self.calls())
        result = self.run_setup("aarch64")
        self.assertIn("adding the architecture arm64", result.stdout)
        self.assertEqual(self.calls().count("dpkg --add-architecture arm64"), 1)

    def test_setup_packages_of_one_architecture_are_only_for_it(self):
        for native, wanted, unwanted in (
            ("amd64", "libdnnl-dev", "libopenblas-dev"),
            ("arm64", "libopenblas-dev", "libdnnl-dev"),
        ):
            packages = self.run_setup("--list", "tool", native=native).stdout.splitlines()
            self.assertIn(wanted, packages)
            self.assertNotIn(unwanted, " ".join(packages))

    def test_setup_packages_of_one_release_are_only_for_it(self):
        for release, wanted, unwanted in (
            ("bookworm", "libclang-rt-14-dev", "libclang-rt-19-dev"),
            ("trixie", "libclang-rt-19-dev", "libclang-rt-14-dev"),
        ):
            packages = self.run_setup("--list", "clang", release=release).stdout.splitlines()
            self.assertIn(wanted, packages)
            self.assertNotIn(unwanted, " ".join(packages))

    def test_setup_package_installed_for_another_architecture_is_missing(self):
        (self.state / "installed").write_text("libfmt-dev arm64\n", encoding="utf-8")
        self.run_setup("build")
        self.assertIn(" libfmt-dev", self.calls())

    def test_setup_interrupted_installation_is_finished_first(self):
        (self.state / "interrupted").touch()
        result = self.run_setup("build")
        self.assertEqual(result.returncode, 0, result.stdout)
        self.assertIn(" ccache", self.calls())

    def test_setup_unavailable_package_is_named(self):
        result = self.run_setup("lint", apt_fails="yes")
        self.assertEqual(result.returncode, 1)
        self.assertIn("setup: cannot be had: clang-format clang-tidy python3 (E: no network", result.stdout)

    def test_setup_unknown_group_is_refused(self):
        result = self.run_setup("build", "coffee")
        self.assertEqual(result.returncode, 1)
        self.assertIn("no group 'coffee'", result.stdout)
        self.assertIn("aarch64", result.stdout)
        self.assertEqual(self.calls(), "")


if __name__ == "__main__":
    unittest.main()
