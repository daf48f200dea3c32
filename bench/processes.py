#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Strong scaling of `headgate train`: the same run on 1 thread, on N threads, and on N processes of one thread each.

Needs a `headgate` built with HEADGATE_MPI and Open MPI's mpirun. Runs take turns; tokens a second are those of the median
step of each, and a ratio is the median over the rounds of the rate over that of one thread.
"""

import argparse
import json
import os
import statistics
import subprocess
import tempfile
from pathlib import Path

MODEL = "--layers 4 --dim 256 --heads 4 --kv-heads 2 --head-dim 64 --gate g1-elementwise --seq-len 256".split()
SKIPPED_STEPS = 3  # in the first steps, memory is mapped, and threads and processes start


def tokens_per_second(command, directory):
    subprocess.run([*command, "--out", directory], check=True, stdout=subprocess.DEVNULL)
    lines = (Path(directory) / "metrics.jsonl").read_text().splitlines()
    return statistics.median(json.loads(line)["tokens_per_second"] for line in lines[SKIPPED_STEPS:])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tool", default="build/headgate", help="default: %(default)s")
    parser.add_argument("--data", default="LICENSE", help="text (default: %(default)s)")
    parser.add_argument("--count", type=int, default=os.cpu_count(), help="N (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=16, help="sequences of a step (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=20, help="of a run (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="default: %(default)s")
    arguments = parser.parse_args()
    train = [
        arguments.tool,
        "train",
        "--data",
        arguments.data,
        *MODEL,
        "--batch",
        str(arguments.batch),
        "--steps",
        str(arguments.steps),
        "--eval-every",
        "0",
        "--save-every",
        "0",
    ]
    launch = ["mpirun", "--allow-run-as-root", "-n", str(arguments.count)]
    ways = {
        "1 thread": [*train, "--threads", "1"],
        f"{arguments.count} threads": [*train, "--threads", str(arguments.count)],
        f"{arguments.count} processes": [*launch, *train, "--threads", "1"],
    }
    rates = {way: [] for way in ways}
    for _ in range(arguments.rounds):
        for way, command in ways.items():
            with tempfile.TemporaryDirectory() as directory:
                rates[way].append(tokens_per_second(command, directory + "/run"))
    print("| | tokens a second | times 1 thread |\n|---|---|---|")
    for way, of_way in rates.items():
        ratio = statistics.median(rate / one for rate, one in zip(of_way, rates["1 thread"], strict=True))
        print(f"| {way} | {statistics.median(of_way):.0f} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
