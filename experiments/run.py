#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains and evaluates what an experiment's config asks for, and records each run.

    experiments/run.py NAME                 every run of experiments/NAME/config.json that has no record yet
    experiments/run.py NAME --dry-run       print the commands
    experiments/run.py NAME --trial         four steps of each variant, outside the records: does every command work?

A run is trained in build/experiments/NAME/RUN and recorded as a line of experiments/NAME/records.jsonl. It may be
interrupted: the same command continues. Afterwards the tables of the experiment's page are made of the records again.
A run that diverges is a result; any other failure stops all runs. Status: 0, 1 after a failure, 130 when interrupted.
"""

import argparse
import dataclasses
import fcntl
import hashlib
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time

import plan
import table
from job import DIVERGED, Setup, command_of, relative, start_job

DATA_OF_PROGRAMS = "examples/python/debian_packages.py"  # prints file, bytes and sha256 of what they read
TRIAL_OF_PROGRAM = {"train": {"steps": 4, "packages": 2000}, "eval": {}}
TRIAL = {"train": {"steps": 4, "warmup": 1, "batch": 2, "eval-every": 2, "eval-tokens": 1024}, "eval": {"tokens": 1024}}


SOURCES = ("CMakeLists.txt", "cmake", "include", "src")  # of the program


class Stopped(Exception):
    """Raised when a signal was received and the trainers have ended."""


def duration(seconds):
    minutes, hours = round(seconds / 60), int(seconds // 3600)
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if hours == 0 else f"{hours} h {minutes - 60 * hours} min"


class Display:
    """Prints a line for each finished run and, on a terminal, a last line with the runs in progress."""

    def __init__(self, runs, done_before):
        self.total, self.done = len(runs) + done_before, done_before
        self.size_left = sum(run.size for run in runs)
        self.size_done = 0.0
        self.began = time.monotonic()
        self.terminal = sys.stdout.isatty()
        self.shown = 0.0

    def time_left(self, jobs):
        """Estimated from the mean speed so far."""
        under_way = sum(job.run.size * job.share_done() for job in jobs)
        worked = self.size_done + under_way
        if worked <= 0:
            return ""
        left = (self.size_left - worked) * (time.monotonic() - self.began) / worked
        return f"; about {duration(left)} left"

    def finished(self, job, jobs):
        self.done += 1
        self.size_done += job.run.size
        evaluation = job.record["eval"]
        if evaluation is None:
            result = f"diverged at step {job.record['diverged']['step']}"
        else:
            loss = evaluation.get("loss_nats")
            result = "evaluated" if loss is None else f"held-out loss {loss}"
        self.clear()
        print(
            f"{self.done}/{self.total}  {job.run.name}: {result}, {duration(time.monotonic() - job.began)}"
            f"{self.time_left(jobs) if self.done < self.total else ''}",
            flush=True,
        )

    def under_way(self, jobs):
        if not self.terminal or time.monotonic() - self.shown < 0.5:
            return
        self.shown = time.monotonic()
        parts = ", ".join(f"{job.run.name} {100 * job.share_done():.0f}%" for job in jobs)
        line = f"{self.done}/{self.total}  {parts}{self.time_left(jobs)}"
        print(f"\r\033[K{line[: shutil.get_terminal_size().columns - 1]}", end="", flush=True)

    def clear(self):
        if self.terminal:
            print("\r\033[K", end="", flush=True)


class Scheduler:
    """Keeps `count` jobs going, in order, until all runs are recorded."""

    def __init__(self, setup, runs, count, display):
        self.setup, self.queue, self.count, self.display = setup, list(runs), count, display
        self.jobs = []
        self.signal = None
        self.signalled = 0.0

    def run(self):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self.interrupt)
        try:
            while self.jobs or (self.queue and not self.signal):
                self.fill()
                time.sleep(0.05)
                self.poll()
                self.display.under_way(self.jobs)
        except BaseException:
            self.interrupt(signal.SIGINT)
            for job in self.jobs:
                job.process.wait()
            raise
        finally:
            self.display.clear()
        if self.signal:
            raise Stopped

    def fill(self):
        while self.queue and not self.signal and len(self.jobs) < self.count:
            self.jobs.append(start_job(self.setup, self.queue.pop(0)))

    def poll(self):
        for job in list(self.jobs):
            if self.signal and job.process.poll() not in (None, DIVERGED):
                self.jobs.remove(job)
            elif job.advance():
                self.jobs.remove(job)
                self.display.finished(job, self.jobs)

    def interrupt(self, number, _frame=None):
        """Lets the trainers save. A second signal ends them at once, unless it comes within a second: then it is a copy
        of the first, which was sent to the process and to its group."""
        now = time.monotonic()
        if self.signal is None or now - self.signalled > 1.0:
            for job in self.jobs:
                job.forward(signal.SIGINT)
        self.signal, self.signalled = number, now


def sha256_of(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def english_text():
    script = subprocess.run(["scripts/english_text.sh"], cwd=plan.ROOT, capture_output=True, text=True)
    if script.returncode != 0:
        raise plan.ExperimentError(f"no text to train on: {script.stderr.strip() or 'scripts/english_text.sh failed'}")
    return plan.ROOT / script.stdout.strip()


def program_of(headgate, sources=SOURCES):
    """Version of the program, if it tells one, and the commit of the sources around it."""

    def output(*command):
        result = subprocess.run(command, cwd=plan.ROOT, capture_output=True, text=True)
        return result.stdout.strip() if result.returncode == 0 else ""

    version = {"version": output(str(headgate), "--version").removeprefix("headgate ")} if headgate else {}
    commit = output("git", "rev-parse", "--short=12", "HEAD")
    changed = commit and output("git", "status", "--porcelain", "--", *sources)
    return {**version, "commit": f"{commit} with changes" if changed else commit or "unknown"}


def package_lists(python, data):
    """Which list of packages the Python programs read: file, bytes, sha256 and date."""
    command = [python, plan.ROOT / DATA_OF_PROGRAMS, *([data] if data else [])]
    facts = subprocess.run(command, capture_output=True, text=True)
    if facts.returncode != 0:
        raise plan.ExperimentError((facts.stderr.strip().splitlines() or [f"{DATA_OF_PROGRAMS} failed"])[-1])
    return json.loads(facts.stdout)


def program_setup(args, experiment, work, records):
    """Of an experiment whose program is a Python program."""
    python = pathlib.Path(args.python).absolute()  # not resolved: a link tells Python its environment
    if not os.access(python, os.X_OK):
        raise plan.ExperimentError(f"no Python {relative(python)}: make build makes it, --python names another")
    data = pathlib.Path(args.data).resolve() if args.data else None
    program = program_of(None, (*SOURCES, "python", str(pathlib.Path(experiment.program).parent)))
    sha256 = sha256_of(plan.ROOT / experiment.program)
    return Setup(experiment, python, program, sha256, data, package_lists(python, data), work, records, args.threads)


def make_setup(args, experiment):
    work = pathlib.Path(args.work).resolve() / (experiment.name + ("-trial" if args.trial else ""))
    records = work / "records.jsonl" if args.trial else experiment.records
    if experiment.program:
        return program_setup(args, experiment, work, records)
    headgate = pathlib.Path(args.headgate).resolve()
    if not os.access(headgate, os.X_OK):
        raise plan.ExperimentError(f"no program {relative(headgate)}: make build makes it, --headgate names another")
    data = pathlib.Path(args.data).resolve() if args.data else english_text()
    if not data.is_file():
        raise plan.ExperimentError(f"--data {data}: not a file")
    return Setup(
        experiment,
        headgate,
        program_of(headgate),
        sha256_of(headgate),
        data,
        {"file": data.name, "bytes": data.stat().st_size, "sha256": sha256_of(data)},
        work,
        records,
        args.threads,
    )


def trials(experiment):
    """A few steps of each variant, with one seed, at both ends of a sweep."""
    return [
        trial_of(run, TRIAL_OF_PROGRAM if experiment.program else TRIAL)
        for run in experiment.runs()
        if run.seed == run.block.seeds[0] and run.point in (plan.points(run.block)[0], plan.points(run.block)[-1])
    ]


def trial_of(run, trial=TRIAL):
    return dataclasses.replace(run, train={**run.train, **trial["train"]}, eval={**run.eval, **trial["eval"]})


def is_recorded(setup, records, run):
    known = records.get(run.name)
    return known is not None and plan.identity_of(known) == run.identity(setup.data_sha256)


def take_lock(setup):
    """Keeps two calls from training in one directory, also while trainers of a killed call are still running."""
    setup.work.mkdir(parents=True, exist_ok=True)
    setup.lock = open(setup.work / "lock", "w", encoding="utf-8")
    try:
        fcntl.flock(setup.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise plan.ExperimentError(
            f"{relative(setup.work)} is in use by another call or by a trainer that it started"
        ) from error


def run_all(args):
    experiment = plan.find_experiment(args.name)
    setup = make_setup(args, experiment)
    wanted = trials(experiment) if args.trial else experiment.runs()
    runs = [run for run in wanted if re.search(args.only, run.name)]
    if not runs:
        raise plan.ExperimentError(f"--only {args.only}: no run of {experiment.name} has such a name")
    records = {} if args.force or args.trial else plan.read_records(setup.records)
    left = [run for run in runs if not is_recorded(setup, records, run)]
    print(
        f"{experiment.name}: {len(runs)} runs, {len(runs) - len(left)} recorded already; {args.jobs} at a time, "
        f"{args.threads} thread{'s' if args.threads > 1 else ''} each"
    )
    if args.dry_run:
        for run in left:
            print(shlex.join(command_of(setup, run)))
        return
    take_lock(setup)
    Scheduler(setup, left, args.jobs, Display(left, len(runs) - len(left))).run()
    if args.trial:
        print(table.all_tables(experiment, setup.records))
    else:
        table.rewrite(experiment)
        print(f"tables of {relative(experiment.directory / 'README.md')} written")


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("name", metavar="NAME", help="a folder of experiments/")
    parser.add_argument("--jobs", type=int, metavar="N", help="runs at a time (default: a core for each thread)")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="threads of a run (default 1)")
    parser.add_argument("--only", default="", metavar="REGEX", help="only runs whose name matches")
    parser.add_argument("--dry-run", action="store_true", help="print the commands of what is left to do")
    parser.add_argument("--trial", action="store_true", help="four steps of each variant, outside the records")
    parser.add_argument("--force", action="store_true", help="also runs that are recorded already")
    parser.add_argument(
        "--data",
        metavar="FILE",
        help="default: the text that scripts/english_text.sh prints; of "
        "Python programs apt's list of Debian 12's packages",
    )
    parser.add_argument(
        "--headgate", default=plan.ROOT / "build/headgate", metavar="PROGRAM", help="default build/headgate"
    )
    parser.add_argument(
        "--python",
        default=plan.ROOT / "build/python-venv/bin/python",
        metavar="PYTHON",
        help="of Python programs (default build/python-venv/bin/python)",
    )
    parser.add_argument(
        "--work", default=plan.ROOT / "build/experiments", metavar="DIR", help="default build/experiments"
    )
    args = parser.parse_args(arguments)
    args.jobs = args.jobs or max(1, cores // max(1, args.threads))
    if args.jobs < 1 or args.threads < 1:
        parser.error("--jobs and --threads are at least 1")
    return args


def main(arguments):
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` ends a --dry-run in silence
    try:
        run_all(parse(arguments))
    except plan.ExperimentError as error:
        print(f"run.py: {error}", file=sys.stderr)
        return 1
    except (Stopped, KeyboardInterrupt):
        print("run.py: interrupted; the same command continues", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
