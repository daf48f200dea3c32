# SPDX-License-Identifier: Apache-2.0
"""Trials under limits of memory and file size, on full disks, and with closed or full streams."""

import json
import pathlib
import signal
import subprocess
from collections.abc import Iterator

import good_files as good_file
from outputs import all_files
from readers import ATTEND, ATTEND_OUTPUTS, LINEAR, LINEAR_OUTPUTS
from trial import DONE, NO_READER, Command, Expect, Limits, Machine, Outcome, Skipped, Trial, contents

MIB = 1 << 20
# Lists, for every verb, what it reads and what it may write.
VERBS = {
    "version": ("attend", Command("--version")),
    "help": ("attend", Command("--help")),
    "info": ("attend", Command("info")),
    "explain": ("attend", Command("explain problem.json")),
    "attend": ("attend", Command(ATTEND, ATTEND_OUTPUTS)),
    "linear": ("linear", Command(LINEAR, LINEAR_OUTPUTS)),
    "tokenize": ("model", Command("tokenize m --text book.txt")),
    "convert": ("model", Command("convert m out", ("out",))),
    "convert-gguf": ("model", Command("convert m.gguf out", ("out",))),
    "eval": ("model", Command("eval m --text book.txt --tokens 32 --logits out", ("out",))),
    "xray": ("model", Command("xray m --text book.txt --tokens 16 --out out --json-out out.json", ("out", "out.json"))),
    "generate": ("model", Command("generate m --prompt Hi --max-tokens 3 --logits out", ("out",))),
    "compare": ("model", Command("compare run --out out --json-out out.json", ("out", "out.json"))),
    "train": ("model", Command(good_file.TRAIN.replace("--out run", "--out out"), ("out",))),
    "resume": ("model", Command("train --resume --out run --steps 6", ("run",))),
    "demo": ("model", Command("demo --only model --model m --data book.txt --out out", ("out",))),
}
WRITING = ("attend", "linear", "convert", "convert-gguf", "eval", "xray", "generate", "compare", "train", "demo")


def files_of(run: dict[str, bytes]) -> dict[str, dict[str, bytes]]:
    out = all_files(run)
    out["attend"] |= {"problem.json": json.dumps(good_file.PROBLEM).encode()}
    return out


# --- memory ----------------------------------------------------------------------------------------------------------

# Without products of matrices nothing needs more than the program and its libraries.
SMALL_VERBS = ("version", "help")
SMALL_LIMIT = 200000 * 1024
MEMORY = (
    64 * MIB,
    100 * MIB,
    150 * MIB,
    SMALL_LIMIT,
    256 * MIB,
    320 * MIB,
    400 * MIB,
    500 * MIB,
    700 * MIB,
    1024 * MIB,
    2048 * MIB,
)
LOADER_STATUS = 127  # the dynamic loader has no room for the libraries; it says so


def memory_trials(run: dict[str, bytes]) -> Iterator[Trial]:
    files = files_of(run)
    for name, (which, command) in VERBS.items():
        for limit in MEMORY:
            must = name in SMALL_VERBS and limit >= SMALL_LIMIT
            yield Trial(
                f"memory/{limit // 1024}-KiB/{name}",
                files[which],
                command,
                Expect.ACCEPTED if must else Expect.EITHER,
                (),
                limits=Limits(address_space=limit),
                also_statuses=() if limit >= SMALL_LIMIT else (LOADER_STATUS,),
                judge=one_line_of_loader,
            )


def one_line_of_loader(_: Trial, outcome: Outcome, __: pathlib.Path) -> list[str]:
    if outcome.status != LOADER_STATUS or b"error while loading shared libraries" in outcome.err:
        return []
    return ["status 127 without the loader's message"]


# --- files -----------------------------------------------------------------------------------------------------------


def file_size_trials(run: dict[str, bytes]) -> Iterator[Trial]:
    files = files_of(run)
    for name in WRITING:
        which, command = VERBS[name]
        for limit in (0, 1, 100, 1000, 4096, 20000, 60000, 1 << 20):
            yield Trial(
                f"file-size/{limit}/{name}",
                files[which],
                command,
                Expect.EITHER,
                ("out", *command.writes),
                limits=Limits(file_size=limit),
                one_line=name != "train",
                judge=nothing_left if name != "train" else None,
                unchecked=("out",) if name == "train" else (),
            )


def nothing_left(trial: Trial, outcome: Outcome, folder: pathlib.Path) -> list[str]:
    """Checks that no temporary files or directories remain; their names begin with a dot."""
    hidden = [str(path.relative_to(folder)) for path in folder.rglob("*") if path.name.startswith(".")]
    return [f"{path!r} is left behind" for path in hidden[:4]]


def full_disk_trials(run: dict[str, bytes]) -> Iterator[Trial]:
    """Puts the outputs on a file system of a few pages."""
    files = files_of(run)
    for name in WRITING:
        which, command = VERBS[name]
        if name == "attend":
            command = Command(
                "attend --q q.npy --k k.npy --v v.npy --gate z.npy --out disk/y.npy --stats disk/statistics"
            )
        elif name == "linear":
            command = Command(
                "linear --q q.npy --k k.npy --v v.npy --out disk/y.npy --cu-seqlens c.npy --out-state disk/s.npy"
            )
        elif name == "train":
            command = Command(good_file.TRAIN.replace("--out run", "--out disk/out"))
        else:
            command = Command(command.line.replace(" out", " disk/out"))
        for kib in (4, 16, 64, 4096):
            command = Command(command.line, ("disk", "disk/out"))
            yield Trial(
                f"full-disk/{kib}-KiB/{name}",
                files[which],
                command,
                Expect.EITHER,
                ("disk",),
                one_line=name != "train",
                prepare=lambda folder, kib=kib: mount(folder / "disk", kib),
                cleanup=lambda folder: unmount(folder / "disk"),
                judge=nothing_left,
                unchecked=("disk",) if name == "train" else (),
            )


def mount(path: pathlib.Path, kib: int) -> None:
    path.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={kib}k", "hostile", str(path)], capture_output=True, check=False
    )
    if done.returncode != 0:
        raise Skipped(
            "a small file system cannot be mounted: "
            + done.stderr.decode(errors="replace").strip().split("\n")[0][-80:]
        )


def unmount(path: pathlib.Path) -> None:
    if path.is_mount():
        subprocess.run(["umount", str(path)], check=False)


# --- streams ---------------------------------------------------------------------------------------------------------

STREAMS = {
    "stdin-closed": "<&-",
    "stdout-closed": ">&-",
    "stderr-closed": "2>&-",
    "all-closed": "<&- >&- 2>&-",
    "stdout-full": ">/dev/full",
    "stderr-full": "2>/dev/full",
    "both-full": ">/dev/full 2>/dev/full",
    "no-reader": NO_READER,
}
PRINTING = ("version", "help", "info", "explain", "tokenize")  # whose result is what they print
CHANGING = ("train", "resume")  # whose files have times in them


def stream_trials(run: dict[str, bytes], machine: Machine) -> Iterator[Trial]:
    """Closes or fills streams: files must still be written, and a result that cannot be printed is an error."""
    files = files_of(run)
    for stream, redirect in STREAMS.items():
        lost = redirect == NO_READER or ">" in redirect.replace("2>", "")
        also = (-signal.SIGPIPE,) if redirect == NO_READER else ()
        for name, (which, command) in VERBS.items():
            expect = Expect.REFUSED if lost and name in PRINTING else Expect.EITHER if lost else Expect.ACCEPTED
            # Files are written before a lost output is noticed; generation ends when nobody reads its text.
            judge = None if name in CHANGING or (lost and name == "generate") else SameFiles(machine)
            yield Trial(
                f"stream-{stream}/good/{name}",
                files[which],
                command,
                expect,
                (),
                redirect=redirect,
                judge=judge,
                also_statuses=also,
                unchecked=command.writes,
            )
        for name, line in {
            "convert": "convert nowhere out",
            "explain": "explain nowhere",
            "train": "train --data nowhere --out new",
        }.items():
            yield Trial(
                f"stream-{stream}/refused/{name}", files["model"], Command(line), Expect.REFUSED, (), redirect=redirect
            )


class SameFiles:
    """Checks that the same files are written as without trouble, and that a success, if `printed`, prints all."""

    def __init__(self, machine: Machine, printed: bool = False):
        self.machine, self.printed = machine, printed

    def __call__(self, trial: Trial, outcome: Outcome, folder: pathlib.Path) -> list[str]:
        reference = self.machine.reference(trial.files, trial.command)
        found = contents(folder, trial.command.writes)
        paths = found if outcome.status != DONE else reference.files.keys() | found.keys()
        faults = [
            f"{path!r} is not what it is otherwise"
            for path in sorted(paths)
            if reference.files.get(path) != found.get(path)
        ]
        if outcome.status == DONE and self.printed and outcome.out != reference.out:
            faults.append("it prints something else than otherwise")
        return faults[:4]


def trials(run: dict[str, bytes], machine: Machine) -> Iterator[Trial]:
    yield from memory_trials(run)
    yield from file_size_trials(run)
    yield from full_disk_trials(run)
    yield from stream_trials(run, machine)
