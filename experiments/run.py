#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains and evaluates what an experiment's config asks for, and records each run.

    experiments/run.py NAME                 every run of experiments/NAME/config.json that has no record yet
    experiments/run.py NAME --dry-run       print the commands
    experiments/run.py NAME --trial         four steps of each variant, outside the records: does every command work?

A run is trained in build/experiments/NAME/RUN and recorded as a line of experiments/NAME/records.jsonl. It may be
interrupted: the same command continues. Afterwards the tables of the experiment's page are made of the records again.
A run that diverges is a result; any other failure ends the call. Status: 0, 1 after a failure, 130 when interrupted.
"""

import argparse
import concurrent.futures
import dataclasses
import fcntl
import hashlib
import json
import math
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time

import table
from table import ROOT, ExperimentError, require

DATA_OF_PROGRAMS = "examples/python/debian_packages.py"  # prints the file, bytes and sha256 that the programs read
TRIAL = {"steps": 4, "warmup": 1, "batch": 2, "eval-every": 2, "eval-tokens": 1024}
TRIAL_OF_PROGRAM = {"steps": 4, "packages": 2000}
DIVERGED = 1  # the status of `headgate train` for a loss or gradient that is not finite
NOT_SETTINGS = "data data_fingerprint format inside_spike recent_losses save_every seed spikes step threads".split()


def read_json(path):
    return json.loads(path.read_text(encoding="utf-8"))


def sha256_of(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def relative(path):
    """Makes a path relative to the root of the repository, or absolute if it lies outside."""
    path = pathlib.Path(path).resolve()
    return str(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path)


def output_of(*command):
    """Returns the output of a command, or raises its last line of errors."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    require(done.returncode == 0, command[0], (done.stderr.strip().splitlines() or ["failed"])[-1])
    return done.stdout.strip()


def commit_of_source():
    try:
        changed = output_of("git", "status", "--porcelain", "--", "include", "src", "python", "examples/python")
        return output_of("git", "rev-parse", "--short=12", "HEAD") + (" with changes" if changed else "")
    except (ExperimentError, OSError):
        return "unknown"


def as_arguments(options):
    """Turns {"lr": 0.1, "match-params": True} into --lr 0.1 --match-params."""
    pairs = [[f"--{option}"] if value is True else [f"--{option}", str(value)] for option, value in options.items()]
    return [text for pair in pairs for text in pair]


def rounded(value):
    """Rounds all numbers to six significant digits. Numbers that are not finite become null."""
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    return [rounded(item) for item in value] if isinstance(value, list) else value


def parameter_count(path):
    """Counts the parameters in a safetensors file by reading its header."""
    with open(path, "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    return sum(math.prod(tensor["shape"]) for name, tensor in header.items() if name != "__metadata__")


def training_summary(work, with_curve):
    """Returns the part of a record that comes from the directory of `headgate train`."""
    checkpoint = work / "checkpoint"
    steps = [json.loads(line) for line in (work / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    points = [{**step["eval"], "step": step["step"]} for step in steps if "eval" in step]
    state = read_json(checkpoint / "trainer_state.json")
    return {
        "parameters": parameter_count(checkpoint / "model.safetensors"),
        "model": read_json(checkpoint / "config.json"),
        "settings": {key: value for key, value in state.items() if key not in NOT_SETTINGS},
        "steps": len(steps),
        "seconds": sum(step["seconds"] for step in steps),
        "spikes": sum(1 for step in steps if step.get("spike")),
        "curve": [{key: value for key, value in point.items() if key != "layers"} for point in points if with_curve],
    }


class Runner:
    """Trains, evaluates and records the runs of an experiment, each in its own thread."""

    def __init__(self, args, experiment):
        self.program = experiment.program
        self.work = pathlib.Path(args.work).resolve() / (experiment.name + ("-trial" if args.trial else ""))
        self.records = self.work / "records.jsonl" if args.trial else experiment.records
        # absolute() keeps links, since Python finds its virtual environment by the path of its link.
        self.executable = pathlib.Path(args.python if self.program else args.headgate).absolute()
        option = "--python" if self.program else "--headgate"
        found = os.access(self.executable, os.X_OK)
        require(found, f"no program {self.executable}", f"make build makes it, {option} names another")
        self.environment = dict(os.environ)
        self.facts = {"commit": commit_of_source()}
        self.data = pathlib.Path(args.data).resolve() if args.data else None
        if self.program:
            self.environment.setdefault("PYTHONPATH", str(ROOT / "build" / "python"))
            self.environment["OMP_NUM_THREADS"] = "1"
            self.sha256 = sha256_of(ROOT / self.program)
            data = [str(self.data)] if self.data else []
            self.data_facts = json.loads(output_of(str(self.executable), str(ROOT / DATA_OF_PROGRAMS), *data))
        else:
            self.facts["version"] = output_of(str(self.executable), "--version").removeprefix("headgate ")
            self.sha256 = sha256_of(self.executable)
            self.data = self.data or ROOT / output_of(str(ROOT / "scripts/english_text.sh"))
            require(self.data.is_file(), f"--data {self.data}", "not a file")
            size = self.data.stat().st_size
            self.data_facts = {"file": self.data.name, "bytes": size, "sha256": sha256_of(self.data)}
        self.mutex, self.done, self.total = threading.Lock(), 0, 0

    def take_lock(self):
        """Locks the records. Raises an error if another call has the lock, or trainers that a killed call started."""
        self.records.parent.mkdir(parents=True, exist_ok=True)
        self.lock = os.open(self.records.parent, os.O_RDONLY)
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            folder = relative(self.records.parent)
            raise ExperimentError(f"{folder} is in use by another call or by a trainer that it started") from error

    def command(self, run):
        """Returns the command that trains. A Python program also evaluates."""
        work, options = relative(self.work / run.name), as_arguments(run.train)
        data = ["--data", relative(self.data)] if self.data else []
        shared = ["--threads", "1", "--seed", str(run.seed)]
        if self.program:
            return ["python", self.program, *data, *shared, "--json", f"{work}/result.json", *options]
        return ["headgate", "train", *data, "--out", work, *shared, *options]

    def eval_command(self, run):
        work, data, options = relative(self.work / run.name), relative(self.data), as_arguments(run.eval)
        return ["headgate", "eval", work, "--text", data, "--held-out", "--json", "--threads", "1", *options]

    def call(self, run, stage, command):
        """Runs the program. Returns None, or the step and message if training diverged. Ctrl-C at the terminal also
        interrupts the program."""
        work = self.work / run.name
        with open(work / f"{stage}.out", "wb") as out, open(work / f"{stage}.err", "wb") as err:
            streams = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": err}
            full = [str(self.executable), *command[1:]]
            status = subprocess.run(full, cwd=ROOT, env=self.environment, pass_fds=[self.lock], **streams).returncode
        if status in (-signal.SIGINT, 128 + signal.SIGINT):
            raise KeyboardInterrupt
        printed = (work / f"{stage}.err").read_text(encoding="utf-8", errors="replace")
        error = ([line.strip() for line in printed.splitlines() if line.strip()] or ["no output"])[-1]
        step = re.search(r"\bstep (\d+):", error)
        if stage == "train" and status == DIVERGED and step:
            return {"step": int(step[1]), "message": error.split(";")[0]}
        require(status == 0, run.name, f"{self.program or f'headgate {stage}'} ended with status {status}: {error}")
        return None

    def train_and_record(self, run):
        """Trains a run and records it. Resumes if the directory is of the same run, data and program."""
        began, work, command = time.monotonic(), self.work / run.name, self.command(run)
        mark = work / "run.json"  # identifies the run until it is recorded
        identity = {**run.identity(self.data_facts["sha256"]), "program": self.sha256}
        if not (mark.exists() and read_json(mark) == identity):
            shutil.rmtree(work, ignore_errors=True)
            table.write_whole(mark, json.dumps(identity))
        resume = ["--resume"] if (work / "checkpoint" / "trainer_state.json").exists() else []
        diverged = self.call(run, "train", [*command, *resume])
        if not self.program and not diverged:
            self.call(run, "eval", self.eval_command(run))
        record = self.make_record(run, command, diverged)
        with self.mutex:
            records = {**table.read_records(self.records), run.name: record}
            text = "".join(json.dumps(records[name], sort_keys=True) + "\n" for name in sorted(records))
            table.write_whole(self.records, text)
            mark.unlink()  # a repetition then starts from the beginning
            self.done += 1
            result = f"diverged at step {diverged['step']}" if diverged else f"loss {record['eval']['loss_nats']}"
            print(f"{self.done}/{self.total}  {run.name}: {result}, {time.monotonic() - began:.0f} s", flush=True)

    def make_record(self, run, command, diverged):
        work = self.work / run.name
        if not self.program:
            evaluation = None if diverged else read_json(work / "eval.out")
            summary = training_summary(work, run.block.get("curve"))
        elif diverged:
            evaluation, summary = None, {}
        else:
            result = read_json(work / "result.json")
            summary = {key: result[key] for key in ("parameters", "steps", "seconds")}
            evaluation, summary["settings"] = result["metrics"], result["options"]
            summary["program"] = {**self.facts, **result["versions"]}
        return {
            "run": run.name,
            "block": run.block["name"],
            "variant": run.variant["name"],
            "seed": run.seed,
            "point": run.point,
            "command": shlex.join(pathlib.Path(part).name if part.startswith("/") else part for part in command),
            "train": run.train,
            "eval_options": run.eval,
            "data": self.data_facts,
            "program": self.facts,
            **rounded(summary),
            "status": "diverged" if diverged else "finished",
            "diverged": diverged,
            "eval": rounded(evaluation),
        }


def trials(experiment):
    """Yields runs of a few steps for each variant, with one seed, at both ends of a sweep."""
    for run in experiment.runs:
        ends = table.points(run.block)[0], table.points(run.block)[-1]
        if run.seed == run.block["seeds"][0] and run.point in ends:
            train = {**run.train, **(TRIAL_OF_PROGRAM if experiment.program else TRIAL)}
            yield dataclasses.replace(run, train=train, eval={**run.eval, "tokens": 1024})


def main_call(args):
    experiment = table.Experiment(args.name)
    runner = Runner(args, experiment)
    wanted = trials(experiment) if args.trial else experiment.runs
    runs = [run for run in wanted if re.search(args.only, run.name)]
    require(runs, f"--only {args.only}", f"no run of {experiment.name} has such a name")
    if not args.dry_run:
        runner.take_lock()
    records = {} if args.force or args.trial else table.read_records(runner.records)
    recorded = {name: table.identity_of(record) for name, record in records.items()}
    left = [run for run in runs if recorded.get(run.name) != run.identity(runner.data_facts["sha256"])]
    runner.total, runner.done = len(runs), len(runs) - len(left)
    print(f"{experiment.name}: {len(runs)} runs, {runner.done} recorded already; {args.jobs} at a time", flush=True)
    if args.dry_run:
        print("".join(f"{shlex.join(runner.command(run))}\n" for run in left), end="")
        return
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        try:
            for future in concurrent.futures.as_completed([pool.submit(runner.train_and_record, run) for run in left]):
                future.result()
        finally:
            pool.shutdown(cancel_futures=True)  # waits until the trainers have ended
    if args.trial:
        texts, _ = table.render(experiment, table.read_records(runner.records))
        print("\n".join(f"{name}\n{text}" for name, text in texts.items()))
    else:
        table.update(experiment)
        print(f"tables of {relative(experiment.directory / 'README.md')} written")


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cores, build = len(os.sched_getaffinity(0)), ROOT / "build"
    parser.add_argument("name", metavar="NAME", help="a folder of experiments/")
    parser.add_argument("--only", default="", metavar="REGEX", help="only runs whose name matches")
    parser.add_argument("--dry-run", action="store_true", help="print the commands of what is left to do")
    parser.add_argument("--trial", action="store_true", help="four steps of each variant, outside the records")
    parser.add_argument("--force", action="store_true", help="also runs that are recorded already")
    parser.add_argument("--jobs", type=int, default=cores, metavar="N", help="runs at a time (default: all cores)")
    parser.add_argument("--data", metavar="FILE", help="in place of the English text or of the list of packages")
    parser.add_argument("--headgate", default=build / "headgate", metavar="FILE", help="default build/headgate")
    parser.add_argument("--python", default=build / "python-venv/bin/python", metavar="FILE", help="of Python programs")
    parser.add_argument("--work", default=build / "experiments", metavar="DIR", help="default build/experiments")
    try:
        main_call(parser.parse_args(arguments))
    except ExperimentError as error:
        print(f"run.py: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("run.py: interrupted; the same command continues", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
