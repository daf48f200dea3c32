#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Gated attention by headgate and by other libraries, on the same shapes, values and threads, in turns.

Every peer has a process of its own (peer/worker.py); its results are compared with f64 before it is timed, and it is
not timed where they are wrong. Says which peers are missing, or do not compute a case, and why. Needs PyTorch, for the
f64 results, and the Python package of headgate (build/python).
"""

import argparse
import dataclasses
import functools
import json
import math
import os
import re
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

CPUS = os.sched_getaffinity(0)  # read before a runtime that is imported below binds this thread

from peer.cases import Case, Refused, all_cases
from peer.table import markdown, merged
from peer.worker import PEERS, WorkerProcess
from turns import seconds_in_turns

ROOT = Path(__file__).resolve().parent.parent

PRECISIONS = ("headgate", "headgate-native16")
"""Peers of which the faster one is the base of all ratios."""


@dataclasses.dataclass(frozen=True)
class Pace:
    """Seconds of a turn, and of the pause before it."""

    turn: float = 0.03  # several calls, whose median counts, so that the call that wakes the threads does not
    pause: float = 0.06  # ONNX Runtime's threads spin for 35 ms after their work, and those of OpenMP for less


def quartiles(values: list[float]) -> list[float]:
    """Returns the first quartile, the median and the third quartile."""
    return statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else 3 * values


def checked(case: Case, workers: list[WorkerProcess]) -> tuple[list[WorkerProcess], list[dict[str, Any]]]:
    """Returns the workers that compute the case correctly, and a result for every worker: its error, or the reason why
    it is not timed."""
    import numpy as np

    from peer.reference import error_of, reference  # imports PyTorch

    for worker in workers:
        worker.release()
    exact, able, results = reference(case), [], []
    with tempfile.TemporaryDirectory() as folder:
        for worker in workers:
            file = Path(folder) / f"{worker.name}.npz"
            result = {"peer": worker.name}
            try:
                result["way"] = worker.prepare(case, file)
                with np.load(file) as found:
                    result["error"] = error_of(case, list(found.values()), exact)
                able.append(worker)
            except Refused as refusal:
                result["refused"] = str(refusal)
            results.append(result)
    return able, results


def measure(case: Case, workers: list[WorkerProcess], rounds: int, pace: Pace) -> dict[str, Any]:
    """Returns the facts of a case, and for every peer its times in seconds, or the reason why there are none.

    `ratio` has the quartiles over the rounds of the peer's time divided by headgate's. headgate's time is that of its
    faster precision in the same round.
    """
    able, results = checked(case, workers)
    failures: dict[str, str] = {}

    def turn(worker: WorkerProcess) -> float:
        if worker.name not in failures:
            try:
                return worker.turn(pace.turn)
            except Refused as refusal:
                failures[worker.name] = str(refusal)
        return math.nan

    turns = seconds_in_turns([functools.partial(turn, worker) for worker in able], rounds, pace.pause)
    times = {worker.name: seconds for worker, seconds in zip(able, turns, strict=True) if worker.name not in failures}
    ours = [name for name in PRECISIONS if name in times]
    base = min(ours, key=lambda name: statistics.median(times[name]), default=None)
    for result in results:
        seconds = times.get(result["peer"])
        if result["peer"] in failures:
            result |= {"refused": failures[result["peer"]]}
        if seconds is None:
            continue
        result |= {"seconds": quartiles(seconds), "gflops": case.flops / statistics.median(seconds) * 1e-9}
        if base is not None:
            result["ratio"] = quartiles([a / b for a, b in zip(seconds, times[base], strict=True)])
    return {"name": case.name, **dataclasses.asdict(case), "rounds": rounds, "base": base, "results": results}


def cpu_name() -> str:
    text = Path("/proc/cpuinfo").read_text()
    fields = {key: re.search(rf"^{key}\s*: (.*)$", text, re.MULTILINE) for key in ("model name", "cpu family", "model")}
    found = {key: match.group(1) for key, match in fields.items() if match}
    return f"{found.get('model name', 'unknown')} (family {found.get('cpu family')}, model {found.get('model')})"


def write_atomically(path: Path, text: str) -> None:
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
        file.write(text)
    os.chmod(file.name, 0o644)
    os.replace(file.name, path)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--peers",
        default=",".join(PEERS),
        help="comma-separated; also a Python file with a class Peer of your own (default: %(default)s)",
    )
    parser.add_argument("--filter", default="", help="the cases whose names match this")
    parser.add_argument("--list", action="store_true", help="print the cases' names and end")
    parser.add_argument("--rounds", type=int, default=9, help="turns of each (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=len(CPUS), help="of each (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    parser.add_argument("--markdown", type=Path, help="write the tables to this file too")
    parser.add_argument("--table", type=Path, nargs="+", metavar="JSON", help="measure nothing: tables of these files")
    parser.add_argument(
        "--package",
        type=Path,
        default=ROOT / "build" / "python",
        help="the folder that headgate is imported from (default: %(default)s)",
    )
    parser.add_argument("--tiny", action="store_true", help="sequences of 24 tokens, to try it; times say nothing")
    arguments = parser.parse_args()
    for name in ("rounds", "threads"):
        if getattr(arguments, name) < 1:
            parser.error(f"--{name}: {getattr(arguments, name)} is less than 1")
    if arguments.threads > len(CPUS):
        parser.error(f"--threads: {arguments.threads}, but this process may use {len(CPUS)} cores")
    for name in arguments.peers.split(","):
        if name not in PEERS and not (name.endswith(".py") and Path(name).is_file()):
            parser.error(f"--peers: '{name}' is none of {', '.join(PEERS)}, nor a Python file")
    try:
        arguments.cases = [case for case in all_cases(arguments.tiny) if re.search(arguments.filter, case.name)]
    except re.error as error:
        parser.error(f"--filter: {error}")
    if not arguments.cases and not arguments.table:
        parser.error(f"--filter: no case matches '{arguments.filter}' (--list names all)")
    return arguments


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Measures the chosen cases. Reports each one on stderr."""
    workers = [WorkerProcess(name, arguments.threads, CPUS, [arguments.package]) for name in arguments.peers.split(",")]
    missing = {worker.name: worker.missing for worker in workers if worker.missing}
    for name, why in missing.items():
        print(f"peers.py: {name} is missing: {why}", file=sys.stderr)
    there = [worker for worker in workers if not worker.missing]
    report = {
        "cpu": cpu_name(),
        "threads": arguments.threads,
        "missing": missing,
        "versions": {worker.name: worker.version for worker in there},
        "cases": [],
    }
    pace = Pace(turn=0.0, pause=0.0) if arguments.tiny else Pace()
    for case in arguments.cases:
        row = measure(case, there, arguments.rounds, pace)
        report["cases"].append(row)
        print(case.name, *(line_of(result) for result in row["results"]), sep="\n    ", file=sys.stderr)
        if arguments.json:
            write_atomically(arguments.json, json.dumps(report, indent=1) + "\n")
    for worker in there:
        worker.close()
    return report


def line_of(result: dict[str, Any]) -> str:
    if "refused" in result:
        return f"{result['peer']:<18} not timed: {result['refused']}"
    low, middle, high = (1e3 * seconds for seconds in result["seconds"])
    ratio = f"{result['ratio'][1]:.2f}" if "ratio" in result else ""
    return (
        f"{result['peer']:<18} {middle:9.3f} ms ({low:.3f} to {high:.3f})  {ratio:>6}  "
        f"{result['gflops']:7.1f} GFLOP/s  error {result['error']:.1e}  {result['way']}"
    )


def main() -> None:
    arguments = parse_arguments()
    if arguments.list:
        print(*(case.name for case in arguments.cases), sep="\n")
        return
    if arguments.table:
        report = merged([json.loads(path.read_text()) for path in arguments.table])
    else:
        report = run(arguments)
    text = markdown(report)
    print(text, end="")
    if arguments.markdown:
        write_atomically(arguments.markdown, text)


if __name__ == "__main__":
    main()
