# SPDX-License-Identifier: Apache-2.0
"""Sends signals at random moments: outputs must be complete or unchanged, and no temporary files may remain."""

import dataclasses
import pathlib
import random
import signal
import time
from collections.abc import Iterator

import good_files as good_file
from limits import CHANGING, VERBS, WRITING, files_of
from trial import DONE, REFUSED, Command, Expect, Machine, Outcome, Trial, contents

SIGNALS = ("INT", "TERM", "HUP", "PIPE", "QUIT", "XFSZ", "XCPU")
MOMENTS = 5  # of each signal in each command
LONGER = {
    "train": Command(good_file.TRAIN.replace("--out run", "--out out").replace("--steps 4", "--steps 200"), ("out",)),
    "resume": Command("train --resume --out run --steps 300", ("run",)),
    "convert-large": Command("convert m out --dtype bf16", ("out",)),
}
BEFORE = {"out": b"what was there before", "out.json": b"and this"}


@dataclasses.dataclass
class Sender:
    """Sends a signal after a fraction of the command's time."""

    machine: Machine
    files: dict[str, bytes]
    command: Command
    number: signal.Signals
    share: float
    seconds: float = 0.0

    def measure(self, folder: pathlib.Path) -> None:
        """Measures that time. Call it before the command runs."""
        self.seconds = self.share * self.machine.reference(self.files, self.command).seconds

    def __call__(self, process: int, folder: pathlib.Path) -> None:
        time.sleep(self.seconds)
        try:
            signal.pidfd_send_signal(process, self.number)
        except ProcessLookupError:
            pass  # it has ended


class Judge:
    """Checks that each output is complete: the old one or the new one."""

    def __init__(self, machine: Machine, sender: Sender, name: str):
        self.machine, self.sender, self.name = machine, sender, name

    def __call__(self, trial: Trial, outcome: Outcome, folder: pathlib.Path) -> list[str]:
        faults = []
        number = self.sender.number
        noted = 128 + number  # generation and training save what they have and end with this status
        if outcome.status not in (DONE, REFUSED, -number, noted):
            faults.append(f"{outcome.how} after {number.name}")
        hidden = [str(path.relative_to(folder)) for path in folder.rglob("*") if path.name.startswith(".")]
        faults += [f"{path!r} is left behind" for path in hidden[:4]]
        if self.name in CHANGING:
            return faults + self.broken_run(folder / trial.command.writes[0])
        reference = self.machine.reference(trial.files, trial.command)
        before = {path: content for path, content in trial.files.items() if path.split("/")[0] in trial.command.writes}
        found = contents(folder, trial.command.writes)
        # Interrupted generation writes what it has, which is less.
        shorter = self.name == "generate" and outcome.status == noted
        for path in sorted(found.keys() | before.keys()):
            if found.get(path) not in (before.get(path), reference.files.get(path)) and not shorter:
                faults.append(f"{path!r} is neither what it was nor what it becomes")
        directories = {path.split("/")[0] for path in reference.files if "/" in path}
        for directory in directories:
            part = {path: content for path, content in found.items() if path.startswith(directory + "/")}
            whole = {path: content for path, content in reference.files.items() if path.startswith(directory + "/")}
            if self.name.startswith("convert") and part not in ({}, whole):
                faults.append(f"{directory!r} is half written")
        return faults

    @staticmethod
    def broken_run(run: pathlib.Path) -> list[str]:
        """Checks that the checkpoint, if there is one, is whole."""
        checkpoint = run / "checkpoint"
        files = {"config.json", "model.safetensors", "optimizer.safetensors", "trainer_state.json"}
        if not checkpoint.exists():
            return []
        missing = files - {path.name for path in checkpoint.iterdir()}
        return [f"the checkpoint lacks {', '.join(sorted(missing))}"] if missing else []


def large_model() -> dict[str, bytes]:
    """Makes a model that takes a while to write."""
    return good_file.model(
        "qwen3", good_file.Sizes(vocab=256, dim=256, layers=6, heads=4, kv_heads=2, head_dim=64, ffn=512)
    )


def trials(run: dict[str, bytes], seed: int, machine: Machine) -> Iterator[Trial]:
    files = files_of(run)
    names = [*(name for name in WRITING if name not in CHANGING and name != "demo"), "train", "resume", "convert-large"]
    for name in names:
        which, command = VERBS.get(name, ("model", None))
        command = LONGER.get(name, command)
        good = large_model() if name == "convert-large" else dict(files[which])
        for path in command.writes:
            if path in BEFORE and name not in CHANGING and not name.startswith("convert"):
                good[path] = BEFORE[path]
        draw = random.Random(f"{seed}/{name}")
        for signal_name in SIGNALS:
            for moment in range(MOMENTS):
                sender = Sender(machine, good, command, getattr(signal, "SIG" + signal_name), draw.uniform(0.0, 1.1))
                yield Trial(
                    f"signal-{signal_name}/{moment}/{name}",
                    good,
                    command,
                    Expect.EITHER,
                    (),
                    prepare=sender.measure,
                    meanwhile=sender,
                    judge=Judge(machine, sender, name),
                    unchecked=command.writes,
                    one_line=False,
                    also_statuses=(-sender.number, 128 + sender.number),
                )
