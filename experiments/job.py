# SPDX-License-Identifier: Apache-2.0
"""A run in progress: `headgate train`, then `headgate eval`, then the record; or a Python program, then the record."""

import dataclasses
import functools
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import time

import plan
import record

DIVERGED = 1  # the status of `headgate train` for a loss or gradient that is not finite


@dataclasses.dataclass
class Setup:
    """What all runs of one call share."""

    experiment: plan.Experiment
    headgate: pathlib.Path  # headgate, or the Python interpreter of the experiment's program
    program: dict  # version and commit, for records
    program_sha256: str
    data: pathlib.Path | None  # None: the Python program finds its data
    data_facts: dict  # file, bytes and sha256, for records
    work: pathlib.Path
    records: pathlib.Path
    threads: int
    lock: object = None  # held by this process and the trainers it starts

    @property
    def data_sha256(self):
        return self.data_facts["sha256"]


def relative(path):
    """Makes the path relative to the root of the repository if it lies in there, else absolute."""
    path = pathlib.Path(path).resolve()
    return str(path.relative_to(plan.ROOT)) if path.is_relative_to(plan.ROOT) else str(path)


def without_folders(command):
    """Shortens absolute paths to file names, for records."""
    return [pathlib.Path(part).name if part.startswith("/") else part for part in command]


def last_line(path):
    lines = [line.strip() for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else "no output"


def work_of(setup, run):
    return setup.work / run.name


def train_command(setup, run):
    return [
        "headgate",
        "train",
        "--data",
        relative(setup.data),
        "--out",
        relative(work_of(setup, run)),
        "--threads",
        str(setup.threads),
        "--seed",
        str(run.seed),
        *plan.as_arguments(run.train),
    ]


def eval_command(setup, run):
    return [
        "headgate",
        "eval",
        relative(work_of(setup, run)),
        "--text",
        relative(setup.data),
        "--held-out",
        "--json",
        "--threads",
        str(setup.threads),
        *plan.as_arguments(run.eval),
    ]


def program_command(setup, run):
    return [
        "python",
        setup.experiment.program,
        *(["--data", relative(setup.data)] if setup.data else []),
        "--threads",
        str(setup.threads),
        "--seed",
        str(run.seed),
        "--json",
        relative(work_of(setup, run) / ProgramJob.RESULT),
        *plan.as_arguments(run.train),
    ]


def command_of(setup, run):
    return program_command(setup, run) if setup.experiment.program else train_command(setup, run)


def start_job(setup, run):
    return (ProgramJob if setup.experiment.program else Job)(setup, run)


class Job:
    """A run in progress: a process that trains, then one that evaluates."""

    MARK = "run.json"  # in the work directory: identifies the run until it is recorded

    def __init__(self, setup, run):
        self.setup, self.run = setup, run
        self.work = work_of(setup, run)
        self.mark = {**run.identity(setup.data_sha256), "threads": setup.threads, "program": setup.program_sha256}
        self.began = time.monotonic()
        self.stage = "train"
        self.start(self.prepare())

    def prepare(self):
        """Resumes a directory of the same run, data and program; otherwise starts from the beginning."""
        mark = self.work / self.MARK
        known = mark.exists() and json.loads(mark.read_text(encoding="utf-8")) == self.mark
        if known and (self.work / "checkpoint" / "trainer_state.json").exists():
            return [*train_command(self.setup, self.run), "--resume"]
        if self.work.exists():
            shutil.rmtree(self.work)
        plan.write_whole(mark, json.dumps(self.mark))
        return train_command(self.setup, self.run)

    def start(self, command):
        # In its own process group, so that an interrupt at the terminal reaches it once, through forward().
        with open(self.work / f"{self.stage}.out", "wb") as out, open(self.work / f"{self.stage}.err", "wb") as err:
            self.process = subprocess.Popen(
                [str(self.setup.headgate), *command[1:]],
                cwd=plan.ROOT,
                stdout=out,
                stderr=err,
                stdin=subprocess.DEVNULL,
                process_group=0,
                env=self.environment(),
                pass_fds=[self.setup.lock.fileno()],
            )

    def environment(self):
        return None  # that of this process

    def forward(self, number):
        if self.process.poll() is None:
            self.process.send_signal(number)

    def advance(self):
        """Starts the next process when one has ended. Returns True once the run is recorded. Raises ExperimentError if the run
        failed."""
        status = self.process.poll()
        if status is None:
            return False
        error = last_line(self.work / f"{self.stage}.err")
        step = re.search(r"\bstep (\d+):", error)
        if self.stage == "train" and status == DIVERGED and step:
            self.finish(None, {"step": int(step[1]), "message": error.split(";")[0]})
            return True
        if status != 0:
            raise plan.ExperimentError(f"{self.run.name}: headgate {self.stage} ended with status {status}: {error}")
        if self.stage == "train":
            self.stage = "eval"
            self.start(eval_command(self.setup, self.run))
            return False
        self.finish(json.loads((self.work / "eval.out").read_text(encoding="utf-8")), None)
        return True

    def finish(self, evaluation, diverged):
        self.record = self.make_record(evaluation, diverged)
        plan.put_record(self.setup.records, self.record)
        (self.work / self.MARK).unlink()  # without a record the run is trained again

    def make_record(self, evaluation, diverged):
        run, setup = self.run, self.setup
        return {
            "run": run.name,
            "block": run.block.name,
            "variant": run.variant.name,
            "seed": run.seed,
            "point": run.point,
            "command": shlex.join(without_folders(command_of(setup, run))),
            "train": run.train,
            "eval_options": run.eval,
            "data": setup.data_facts,
            "program": setup.program,
            "threads": setup.threads,
            **self.summary(),
            "status": "diverged" if diverged else "finished",
            "diverged": diverged,
            "eval": record.rounded(evaluation),
        }

    def summary(self):
        return record.summarise(self.work, self.run.block.curve)

    def share_done(self):
        """The fraction of the training that is done, by the last complete line of metrics.jsonl."""
        try:
            with open(self.work / "metrics.jsonl", "rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - 65536))
                step = int(re.findall(rb'^\{"step":(\d+),', file.read(), re.MULTILINE)[-1])
            return min(1.0, step / self.steps)
        except (OSError, IndexError):
            return 0.0

    @functools.cached_property
    def steps(self):
        """The steps of the whole run, from the checkpoint of its start."""
        return json.loads((self.work / "checkpoint" / "trainer_state.json").read_text(encoding="utf-8"))["steps"]


class ProgramJob(Job):
    """A Python program that trains, evaluates, and writes its result as JSON. It cannot resume: a run that was
    interrupted starts again."""

    RESULT = "result.json"

    def prepare(self):
        if self.work.exists():
            shutil.rmtree(self.work)
        plan.write_whole(self.work / self.MARK, json.dumps(self.mark))
        return program_command(self.setup, self.run)

    def environment(self):
        """Adds the package of the build folder unless PYTHONPATH is set, and limits OpenMP to the threads of the run."""
        package = os.environ.get("PYTHONPATH", str(plan.ROOT / "build" / "python"))
        return {**os.environ, "PYTHONPATH": package, "OMP_NUM_THREADS": str(self.setup.threads)}

    def advance(self):
        status = self.process.poll()
        if status is None:
            return False
        error = last_line(self.work / "train.err")
        step = re.search(r"\bstep (\d+):", error)
        if status == DIVERGED and step:
            self.finish(None, {"step": int(step[1]), "message": error})
        elif status != 0:
            raise plan.ExperimentError(
                f"{self.run.name}: {self.setup.experiment.program} ended with status {status}: {error}"
            )
        else:
            self.finish(self.result()["metrics"], None)
        return True

    def result(self):
        return json.loads((self.work / self.RESULT).read_text(encoding="utf-8"))

    def summary(self):
        """Returns what the result has beside its metrics. A run that diverged writes no result."""
        if not (self.work / self.RESULT).exists():
            return {"model": {}, "settings": {}}
        return record.of_program(self.result(), self.setup.program)

    def share_done(self):
        """Reads the last line "step N/M" that the program printed."""
        try:
            step, steps = re.findall(r"^step (\d+)/(\d+)", (self.work / "train.out").read_text(), re.MULTILINE)[-1]
            return min(1.0, int(step) / int(steps))
        except (OSError, IndexError):
            return 0.0
