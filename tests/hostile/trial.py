# SPDX-License-Identifier: Apache-2.0
"""Runs a trial: a command in a folder with files, whose result must obey rules.

The command must end by itself, within the time limit, with a status that the trial expects. A refusal is status 2 and one
printable line on stderr that names the file or the argument. Memory stays below the trial's bound, files that the command
only reads stay as they are, and nothing is left behind that it was not asked to write.
"""

import dataclasses
import enum
import hashlib
import os
import pathlib
import re
import resource
import select
import shlex
import shutil
import signal
import stat
import subprocess
import threading
import time
from collections.abc import Callable

REFUSED, CHECK_FAILED, DONE = 2, 1, 0
SANITIZER = re.compile(rb"(Address|Leak|Thread|Memory|UndefinedBehavior)Sanitizer|runtime error:")
NOBODY = 65534
FOLDER = "files"  # of a trial, in a directory of its own
NO_READER = "no reader"  # a redirection: stdout is a pipe that nobody reads
MOST_OUTPUT = 1 << 24  # bytes of a command's output that are kept
HUGE_FILE = 1 << 24  # of larger files, and of unreadable ones, only sizes and times are compared


class Skipped(Exception):
    """This machine cannot run the trial; the text says what it lacks."""


class Expect(enum.Enum):
    REFUSED = "must be refused with status 2"
    ACCEPTED = "must end with status 0"
    EITHER = "must end with status 0, or be refused with status 2"

    def statuses(self) -> tuple[int, ...]:
        return {Expect.REFUSED: (REFUSED,), Expect.ACCEPTED: (DONE,), Expect.EITHER: (DONE, REFUSED)}[self]


@dataclasses.dataclass(frozen=True)
class Command:
    """Arguments as typed in the trial's folder, and the paths that a success may create or replace."""

    line: str
    writes: tuple[str, ...] = ()

    @property
    def verb(self) -> str:
        return self.line.split()[0]


@dataclasses.dataclass(frozen=True)
class Limits:
    address_space: int | None = None  # RLIMIT_AS, bytes
    file_size: int | None = None  # RLIMIT_FSIZE, bytes
    nobody: bool = False  # run as a user without permissions
    environment: tuple[tuple[str, str], ...] = ()


@dataclasses.dataclass
class Outcome:
    status: int  # of the exit; negative: the signal that ended it
    seconds: float
    peak: int  # bytes of resident memory
    out: bytes
    err: bytes
    stopped: str = ""  # why the suite killed it

    @property
    def how(self) -> str:
        if self.stopped:
            return self.stopped
        if self.status < 0:
            return f"died of {signal.Signals(-self.status).name}"
        return f"ended with status {self.status}"


@dataclasses.dataclass
class Trial:
    name: str  # ROW/VARIANT/COMMAND
    files: dict[str, bytes]
    command: Command
    expect: Expect
    names: tuple[str, ...]  # a refusal mentions one of them
    prepare: Callable[[pathlib.Path], None] = lambda folder: None
    limits: Limits = Limits()
    growth: float = 2.0  # bytes of memory for each byte of a file, beyond what good files take
    also_statuses: tuple[int, ...] = ()
    redirect: str = ""  # for a shell, as ">&-"
    meanwhile: Callable[[int, pathlib.Path], None] | None = None  # while the command, a pidfd, runs
    judge: Callable[["Trial", Outcome, pathlib.Path], list[str]] | None = None  # beyond the common rules
    one_line: bool = True  # a refusal is one line; training also reports failed saves as they happen
    unchecked: tuple[str, ...] = ()  # paths that `judge` compares
    cleanup: Callable[[pathlib.Path], None] = lambda folder: None  # undoes what `prepare` did outside of the folder
    good: "Trial | None" = None  # the same on good files: memory is measured against it


@dataclasses.dataclass
class Settings:
    headgate: str
    work: pathlib.Path
    timeout: float = 30.0
    keep: bool = False
    slack: int = 64 << 20  # bytes of memory that no file pays for
    most_memory: int = 4 << 30  # the suite ends a command that takes more
    sanitized: bool = False


class Reference:
    """Holds the result of an undisturbed run."""

    def __init__(self):
        self.files: dict[str, bytes] = {}
        self.out, self.seconds = b"", 0.0

    def take(self, trial: Trial, outcome: Outcome, folder: pathlib.Path) -> list[str]:
        self.out, self.seconds = outcome.out, outcome.seconds
        self.files = contents(folder, trial.command.writes)
        return []


def contents(folder: pathlib.Path, paths: tuple[str, ...]) -> dict[str, bytes]:
    """Returns the contents of the files at the paths and below them."""
    out = {}
    for path in paths:
        place = folder / path
        for file in [place] if place.is_file() else sorted(place.rglob("*")):
            if file.is_file():
                out[str(file.relative_to(folder))] = file.read_bytes()
    return out


class Machine:
    """Runs trials, each in a folder of its own below settings.work."""

    def __init__(self, settings: Settings):
        self.settings = settings
        self._count = 0
        self._lock = threading.Lock()
        self._peaks: dict[str, int] = {}
        self._references: dict[str, Reference] = {}

    def run(self, trial: Trial) -> tuple[list[str], Outcome]:
        """Returns the rules that the trial broke, in words."""
        baseline = None if trial.good is None else self._peak_of(trial.good)
        with self._lock:
            self._count += 1
            place = self.settings.work / f"{self._count:06}"
        folder = place / FOLDER
        try:
            write_files(folder, trial.files)
            trial.prepare(folder)
            before = snapshot(folder)
            outcome = self._execute(trial, folder)
            faults = self._broken_rules(trial, outcome, before, snapshot(folder), baseline, folder)
            if trial.judge is not None:
                faults += trial.judge(trial, outcome, folder)
        except BaseException:
            trial.cleanup(folder)
            remove_tree(place)
            raise
        trial.cleanup(folder)
        if not (faults and self.settings.keep):
            remove_tree(place)
        else:
            faults.append(f"kept: {folder}")
        return faults, outcome

    def _peak_of(self, good: Trial) -> int:
        """Returns the peak memory of a command on good files, measured once."""
        with self._lock:
            known = self._peaks.get(good.name)
        if known is None:
            known = self.run(good)[1].peak
            with self._lock:
                self._peaks[good.name] = known
        return known

    def reference(self, files: dict[str, bytes], command: Command) -> "Reference":
        """Returns what the command prints and writes undisturbed, and how long that takes; runs it once."""
        key = f"{command.line} on {sorted(files)}"
        with self._lock:
            known = self._references.get(key)
        if known is None:
            known = Reference()
            trial = Trial(key, files, command, Expect.ACCEPTED, (), judge=known.take)
            faults, outcome = self.run(trial)
            if faults:
                raise RuntimeError(f"{command.line}: {', '.join(faults)}: {outcome.err.decode(errors='replace')}")
            with self._lock:
                self._references[key] = known
        return known

    def _execute(self, trial: Trial, folder: pathlib.Path) -> Outcome:
        # Pipes, since files would be subject to a limit of their sizes.
        stdout = pipe_without_reader() if trial.redirect == NO_READER else subprocess.PIPE
        child = subprocess.Popen(
            self.command_line(trial),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.PIPE,
            env=self._environment(trial.limits),
            start_new_session=True,
        )
        begin = time.monotonic()
        descriptor = os.pidfd_open(child.pid)
        if trial.redirect == NO_READER:
            os.close(stdout)
        texts = [bytearray(), bytearray()]
        helpers = [
            threading.Thread(target=drain, args=(pipe, text))
            for pipe, text in zip((child.stdout, child.stderr), texts)
            if pipe is not None
        ]
        if trial.meanwhile is not None:
            helpers.append(threading.Thread(target=trial.meanwhile, args=(descriptor, folder)))
        for helper in helpers:
            helper.start()
        stopped, status, usage = self._wait(child, descriptor, begin)
        seconds = time.monotonic() - begin
        for helper in helpers:
            helper.join()
        os.close(descriptor)
        code = os.waitstatus_to_exitcode(status)
        return Outcome(code, seconds, usage.ru_maxrss * 1024, bytes(texts[0]), bytes(texts[1]), stopped)

    def _wait(self, child: subprocess.Popen, descriptor: int, begin: float):
        """Ends the command if it takes too long or too much memory."""
        stopped = ""
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        while not poll.poll(50):
            if time.monotonic() - begin > self.settings.timeout:
                stopped = f"did not end within {self.settings.timeout:g} s"
            elif resident_bytes(child.pid) > self.settings.most_memory:
                stopped = f"took more than {self.settings.most_memory >> 20} MiB of memory"
            if stopped:
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                poll.poll()
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)  # Popen must not wait for it again
        return stopped, status, usage

    def command_line(self, trial: Trial) -> list[str]:
        limits = trial.limits
        line = [self.settings.headgate, *shlex.split(trial.command.line)]
        if trial.redirect and trial.redirect != NO_READER:
            line = ["sh", "-c", f'exec "$0" "$@" {trial.redirect}', *line]
        prlimit = []
        if limits.address_space is not None:
            if self.settings.sanitized:
                raise Skipped("the address sanitizer reserves more addresses than any limit leaves")
            prlimit.append(f"--as={limits.address_space}")
        if limits.file_size is not None:
            prlimit.append(f"--fsize={limits.file_size}")
        if prlimit:
            line = [needed_program("prlimit"), *prlimit, "--", *line]
        if limits.nobody:
            if os.geteuid() == 0:
                line = [needed_program("setpriv"), f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", *line]
        return line

    def _environment(self, limits: Limits) -> dict[str, str]:
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("LC_", "LANG"))}
        kept.update({"OMP_NUM_THREADS": "2", "LC_ALL": "C.UTF-8"})
        if self.settings.sanitized:
            kept["ASAN_OPTIONS"] = "allocator_may_return_null=1:quarantine_size_mb=16:detect_leaks=1"
        kept.update(limits.environment)
        return kept

    def _broken_rules(self, trial, outcome, before, after, baseline, folder) -> list[str]:
        faults = []
        allowed = trial.expect.statuses() + trial.also_statuses
        if SANITIZER.search(outcome.err):
            faults.append("a sanitizer reports an error")
        if outcome.stopped or outcome.status not in allowed:
            faults.append(f"{outcome.how}, but {trial.expect.value}")
        heard = "2>" not in trial.redirect
        if outcome.status == REFUSED and heard:
            faults += broken_message_rules(trial, outcome.err)
        if baseline is not None:
            # Linux counts the peak of the process that starts a program as the program's own.
            own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
            bound = max(baseline, own) + int(trial.growth * allocated_bytes(folder)) + self.settings.slack
            if outcome.peak > bound:
                faults.append(f"took {outcome.peak >> 20} MiB of memory, more than {bound >> 20} MiB")
        writes = trial.command.writes if outcome.status in (DONE, CHECK_FAILED) else ()
        # Of a directory that was asked for, an empty one may stay.
        empty = tuple(
            path for path in trial.command.writes if (folder / path).is_dir() and not any((folder / path).iterdir())
        )
        return faults + changes(before, after, writes + empty + trial.unchecked)


def broken_message_rules(trial: Trial, err: bytes) -> list[str]:
    try:
        text = err.decode()
    except UnicodeDecodeError:
        return ["its message is not UTF-8"]
    if not text.endswith("\n") or not text.strip():
        return ["it is refused without a whole line on stderr"]
    lines = text[:-1].split("\n")
    faults = []
    if trial.one_line and len(lines) != 1:
        faults.append(f"its message has {len(lines)} lines, not one")
    if any(not c.isprintable() for line in lines for c in line):
        faults.append("its message has characters that are not printable")
    if not lines[0].startswith("headgate"):
        faults.append("its message does not begin with headgate")
    if trial.names and not any(name in text for name in trial.names):
        faults.append(f"its message names none of {', '.join(trial.names)}")
    return faults


def pipe_without_reader() -> int:
    """Returns the writing end of a pipe whose reading end is closed before anything can be written."""
    reader, writer = os.pipe()
    os.close(reader)
    return writer


def drain(pipe, text: bytearray) -> None:
    """Reads a pipe to its end and returns the beginning."""
    with pipe:
        while part := pipe.read(1 << 16):
            text += part[: max(0, MOST_OUTPUT - len(text))]


# --- files -----------------------------------------------------------------------------------------------------------


def write_files(folder: pathlib.Path, files: dict[str, bytes]) -> None:
    folder.mkdir(parents=True)
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def snapshot(folder: pathlib.Path) -> dict[str, tuple]:
    """Returns the kind of each path below a folder, and its contents or target. Does not follow links."""
    out = {}
    for directory, names, files in os.walk(folder):
        for name in names + files:
            path = os.path.join(directory, name)
            facts = os.lstat(path)
            kind = stat.S_IFMT(facts.st_mode)
            content: object = facts.st_rdev
            if stat.S_ISLNK(kind):
                content = os.readlink(path)
            elif stat.S_ISREG(kind):
                compared = facts.st_size <= HUGE_FILE and os.access(path, os.R_OK)
                content = digest(path) if compared else (facts.st_size, facts.st_mtime_ns)
            out[os.path.relpath(path, folder)] = (kind, content)
    return out


def digest(path: str) -> bytes:
    with open(path, "rb") as file:
        return hashlib.blake2b(file.read()).digest()


def changes(before: dict[str, tuple], after: dict[str, tuple], permitted: tuple[str, ...]) -> list[str]:
    def may_change(path: str) -> bool:
        return any(path == own or path.startswith(own + "/") for own in permitted)

    faults = []
    for path in sorted(before.keys() | after.keys()):
        if before.get(path) == after.get(path) or may_change(path):
            continue
        what = "is left behind" if path not in before else "is gone" if path not in after else "is changed"
        faults.append(f"{path!r} {what}")
    return faults[:8]


def allocated_bytes(folder: pathlib.Path) -> int:
    """Returns the largest file's bytes on the disk, without holes of sparse files."""
    largest = 0
    for directory, _, files in os.walk(folder):
        for name in files:
            facts = os.lstat(os.path.join(directory, name))
            largest = max(largest, min(facts.st_size, facts.st_blocks * 512))
    return largest


def resident_bytes(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0


def remove_tree(place: pathlib.Path) -> None:
    if not place.exists():
        return
    # Trials take permissions away from directories. os.walk enters a directory after this loop has restored them.
    for directory, names, _ in os.walk(place):
        for path in (os.path.join(directory, name) for name in names):
            if not os.path.islink(path):
                os.chmod(path, 0o700)
    shutil.rmtree(place)


def needed_program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise Skipped(f"no {name}")
    return found
