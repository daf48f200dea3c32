#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares several builds of libheadgate on cases of `headgate bench`, to measure the effect of a kernel constant.

    libraries.py CASE[,CASE...] LIBRARY_DIRECTORY LIBRARY_DIRECTORY...

Each directory holds one libheadgate.so, for the one tool, or is a whole build folder with a tool of its own. With one
thread, times are the processor's, as the kernel counts them for that thread, so that other programs on the machine
disturb them little; with more they are elapsed. Prints the median and the shortest time of each build, over those of
the first.
"""

import argparse
import os
import statistics
import subprocess
import sys
from pathlib import Path

from turns import seconds_in_turns


class Library:
    """A process of `headgate bench --on-demand CASE` with one build of the library."""

    def __init__(self, tool, directory, case, threads):
        self.by_processor = threads == 1
        own_tool = directory / "headgate"
        self.process = subprocess.Popen(
            [str(own_tool) if own_tool.is_file() else tool, "bench", "--on-demand", case, "--threads", str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "LD_LIBRARY_PATH": str(directory)},
        )
        self._line()

    def _line(self):
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"libraries.py: headgate ended with status {self.process.wait()}")
        return line

    def _processor_seconds(self):
        return int(Path(f"/proc/{self.process.pid}/schedstat").read_text().split()[0]) * 1e-9

    def run(self):
        before = self._processor_seconds()
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        elapsed = float(self._line())
        return self._processor_seconds() - before if self.by_processor else elapsed

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", metavar="CASE[,CASE...]", help="names of `headgate bench --list`")
    parser.add_argument("libraries", nargs="+", type=Path, metavar="LIBRARY_DIRECTORY")
    parser.add_argument("--tool", default="build/headgate", help="default: %(default)s")
    parser.add_argument("--threads", type=int, default=1, help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=15, help="default: %(default)s")
    arguments = parser.parse_args()
    for library in arguments.libraries:
        if not list(library.glob("libheadgate.so*")) and not (library / "headgate").is_file():
            sys.exit(f"libraries.py: {library}: no libheadgate.so")
    print("| case | " + " | ".join(library.name for library in arguments.libraries) + " |")
    print("|---|" + "---|" * len(arguments.libraries))
    for case in arguments.cases.split(","):
        libraries = [Library(arguments.tool, library, case, arguments.threads) for library in arguments.libraries]
        seconds = seconds_in_turns([library.run for library in libraries], arguments.rounds)
        for library in libraries:
            library.close()
        middle, best = statistics.median(seconds[0]), min(seconds[0])
        cells = [f"{statistics.median(s) / middle:.3f}, {min(s) / best:.3f}" for s in seconds]
        cells[0] = f"{middle * 1e3:.1f} ms, {best * 1e3:.1f} ms"
        print(f"| {case} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
