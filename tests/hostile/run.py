#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs hostile trials of the command line: damaged files, bad paths, limits, signals and locales.

    tests/hostile/run.py                             every trial
    tests/hostile/run.py --only gguf-llama           one row of the table
    tests/hostile/run.py --headgate build-asan/headgate

Each failure is printed with the command that repeats it. The last line counts; the status is 1 where a trial failed.
"""

import argparse
import collections
import concurrent.futures
import fnmatch
import itertools
import json
import os
import pathlib
import random
import shlex
import sys
import tempfile
import time

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).parent))

import good_files as good_file
import interruptions
import limits
import locales
import outputs
import readers
from trial import Machine, Settings, Skipped, Trial, remove_tree


def options() -> argparse.Namespace:
    root = pathlib.Path(__file__).resolve().parents[2]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--headgate", default=str(root / "build/headgate"), help="the program (default: build/headgate)"
    )
    parser.add_argument(
        "--seed", type=int, help="of the sample and of signals' moments (default: another one each time, printed)"
    )
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="ROW[/VARIANT[/VERB]]",
        help="only these, with * and ?; may be repeated",
    )
    parser.add_argument("--sample", type=int, metavar="N", help="only N trials, drawn by the seed")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="trials at a time (default: one a core)")
    parser.add_argument("--timeout", type=float, default=30.0, help="seconds that a command may take (default 30)")
    parser.add_argument("--keep", action="store_true", help="keep the folders of trials that fail")
    parser.add_argument("--list", action="store_true", help="print the names of the trials and end")
    parser.add_argument("--work", help="where folders of trials are made (default: the directory for temporary files)")
    return parser.parse_args()


class Suite:
    def __init__(self, chosen: argparse.Namespace, machine: Machine, seed: int):
        self.chosen, self.machine, self.seed = chosen, machine, seed
        self.run_files = outputs.trained_run(machine, "trained", "--gate headwise")
        tokenizer = {"t.json": json.dumps(good_file.tokenizer_json()).encode()}
        token_run = outputs.trained_run(machine, "trained-on-tokens", "--tokenizer t.json", tokenizer)
        self.readers = readers.all_readers(self.run_files, token_run)

    def wanted(self, name: str) -> bool:
        only = self.chosen.only
        return not only or any(fnmatch.fnmatchcase(name, p) or fnmatch.fnmatchcase(name, p + "/*") for p in only)

    def may_have_wanted(self, row: str) -> bool:
        only = self.chosen.only
        return not only or any(fnmatch.fnmatchcase(row, p.split("/")[0]) for p in only)

    def fixed(self):
        """Yields trials one by one, because the files of all would fill the memory."""
        rows = [row.fixed_trials() for row in self.readers if self.may_have_wanted(row.name)]
        others = [
            readers.argument_trials(self.run_files),
            outputs.trials(self.run_files),
            limits.trials(self.run_files, self.machine),
            interruptions.trials(self.run_files, self.seed, self.machine),
            locales.trials(self.run_files, self.machine),
        ]
        return (trial for trial in itertools.chain(*rows, *others) if self.wanted(trial.name))


class Report:
    def __init__(self, chosen: argparse.Namespace, seed: int):
        self.chosen, self.seed = chosen, seed
        self.trials = self.failures = 0
        self.skipped: collections.Counter[str] = collections.Counter()
        self.rows: collections.Counter[str] = collections.Counter()

    def add(self, trial: Trial, faults: list[str], err: bytes, line: list[str]) -> None:
        self.trials += 1
        if not faults:
            return
        self.failures += 1
        self.rows[trial.name.split("/")[0]] += 1
        here = os.path.relpath(__file__)
        again = shlex.join(
            [
                "python3",
                here,
                "--headgate",
                self.chosen.headgate,
                "--seed",
                str(self.seed),
                "--keep",
                "--only",
                trial.name,
            ]
        )
        print(f"FAILED {trial.name}")
        for fault in faults:
            print(f"    {fault}")
        print(f"    $ {printable(shlex.join(line))}")
        if err:
            print(f"    > {printable(err[:400].decode('utf-8', 'backslashreplace'))}")
        print(f"    again: {again}", flush=True)

    def end(self, seconds: float) -> int:
        for reason, count in self.skipped.items():
            print(f"skipped {count}: {reason}")
        if self.rows:
            print("failures by row: " + ", ".join(f"{row} {count}" for row, count in self.rows.most_common()))
        print(
            f"{self.trials} trials, {self.failures} failures, {self.skipped.total()} skipped; seed {self.seed}, {seconds:.0f} s"
        )
        return 1 if self.failures or self.trials == 0 else 0


def printable(text: str) -> str:
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)[:600]


def run_all(machine: Machine, report: Report, trials, jobs: int) -> None:

    def one(trial: Trial):
        try:
            faults, outcome = machine.run(trial)
        except Skipped as reason:
            return trial, None, str(reason), b""
        return trial, faults, "", outcome.err

    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        pending: set = set()
        trials = iter(trials)
        while True:
            while len(pending) < 2 * jobs:
                trial = next(trials, None)
                if trial is None:
                    break
                pending.add(pool.submit(one, trial))
            if not pending:
                return
            done, pending = concurrent.futures.wait(pending, return_when=concurrent.futures.FIRST_COMPLETED)
            for future in done:
                trial, faults, reason, err = future.result()
                if reason:
                    report.skipped[reason] += 1
                else:
                    report.add(trial, faults, err, machine.command_line(trial))


def drawn(trials, count: int, seed: int) -> list[Trial]:
    """Draws `count` of them with equal probability, in one pass."""
    draw, out = random.Random(seed), []
    for index, trial in enumerate(trials):
        if len(out) < count:
            out.append(trial)
        elif (place := draw.randrange(index + 1)) < count:
            out[place] = trial
    return out


def main() -> int:
    chosen = options()
    seed = random.SystemRandom().randrange(2**31) if chosen.seed is None else chosen.seed
    if not os.access(chosen.headgate, os.X_OK):
        print(
            f"hostile: {chosen.headgate} is not a program; `make tool` builds it, --headgate names another",
            file=sys.stderr,
        )
        return 2
    work = pathlib.Path(tempfile.mkdtemp(prefix="headgate-hostile-", dir=chosen.work))
    work.chmod(0o755)
    program = str(pathlib.Path(chosen.headgate).resolve())
    with open(program, "rb") as file:
        sanitized = b"__asan_init" in file.read()
    settings = Settings(program, work, chosen.timeout * (5 if sanitized else 1), chosen.keep, sanitized=sanitized)
    if sanitized:
        settings.slack *= 8
        settings.most_memory *= 4
    machine, report, begin = Machine(settings), Report(chosen, seed), time.monotonic()
    try:
        suite = Suite(chosen, machine, seed)
        trials = suite.fixed() if chosen.sample is None else drawn(suite.fixed(), chosen.sample, seed)
        if chosen.list:
            print("\n".join(trial.name for trial in trials))
            return 0
        print(f"== headgate: hostile trials, seed {seed}", flush=True)
        run_all(machine, report, trials, chosen.jobs)
    finally:
        if not (chosen.keep and report.failures):
            remove_tree(work)
    return report.end(time.monotonic() - begin)


if __name__ == "__main__":
    sys.exit(main())
