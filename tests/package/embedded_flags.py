#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""embedded_flags.py CMAKE GENERATOR MAKE_PROGRAM CC CXX HEADGATE WORK: how the kernels are optimised in a project that
embeds headgate, by the commands that CMake writes for it. Nothing is compiled."""

import json
import os
import pathlib
import shlex
import subprocess
import sys
import unittest

CMAKE, GENERATOR, MAKE_PROGRAM, CC, CXX, HEADGATE, WORK = sys.argv[1:]
HERE = pathlib.Path(__file__).resolve().parent
KERNELS = ("forward_kernel.cc", "backward_kernel.cc")


class EmbeddedFlags(unittest.TestCase):
    def configure(self, *settings):
        """Configures the project anew; {file name: its -O and -DNDEBUG flags, in order}."""
        build = pathlib.Path(WORK) / self.id().rpartition(".")[2]
        taken = ("CFLAGS", "CXXFLAGS", "CMAKE_BUILD_TYPE")  # CMake reads them from the environment
        neutral = {key: value for key, value in os.environ.items() if key not in taken}
        done = subprocess.run(
            [CMAKE, "--fresh", "-S", HERE / "embed", "-B", build, "-G", GENERATOR]
            + [f"-DCMAKE_MAKE_PROGRAM={MAKE_PROGRAM}", f"-DCMAKE_C_COMPILER={CC}", f"-DCMAKE_CXX_COMPILER={CXX}"]
            + [f"-DHEADGATE_SOURCE={HEADGATE}", "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON", *settings],
            env=neutral,
            capture_output=True,
            text=True,
        )
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.said = done.stdout
        commands = json.loads((build / "compile_commands.json").read_text())
        flags = {}
        for entry in commands:
            words = shlex.split(entry["command"])
            name = pathlib.Path(entry["file"]).name
            flags[name] = [word for word in words if word.startswith("-O") or word == "-DNDEBUG"]
        return flags

    def test_no_build_type_optimises_headgate_only(self):
        flags = self.configure()
        for kernel in KERNELS:
            self.assertEqual(flags[kernel], ["-O3", "-DNDEBUG"], kernel)
        for own in ("main.c", "main.cc"):
            self.assertEqual(flags[own], [], own)
        self.assertIn("headgate: no build type is set; headgate alone is compiled with -O3 -DNDEBUG", self.said)

    def test_build_type_given_decides(self):
        for build_type, expected in (("Debug", []), ("RelWithDebInfo", ["-O2", "-DNDEBUG"]), ("None", [])):
            flags = self.configure(f"-DCMAKE_BUILD_TYPE={build_type}")
            for file in (*KERNELS, "main.cc"):
                self.assertEqual(flags[file], expected, f"{build_type}: {file}")
            self.assertNotIn("headgate: no build type", self.said)

    def test_flags_of_the_project_decide(self):
        flags = self.configure("-DCMAKE_CXX_FLAGS=-g -O1")
        for kernel in KERNELS:
            self.assertEqual(flags[kernel], ["-O1"], kernel)
        flags = self.configure("-DEMBED_COMPILE_OPTIONS=-O2")
        for kernel in KERNELS:
            self.assertEqual(flags[kernel][-1], "-O2", kernel)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
