# SPDX-License-Identifier: Apache-2.0
"""Trials in other locales: results and messages must be those of the C locale."""

import pathlib
import shutil
import subprocess
import threading
from collections.abc import Iterator

from limits import CHANGING, VERBS, SameFiles, files_of
from trial import Command, Expect, Limits, Machine, Skipped, Trial

PLAIN = ("C", "POSIX", "C.UTF-8", "none_NONE.UTF-8", "x" * 5000)
# Locales with decimal commas, with another order of letters, with another case of i and I, and with another character
# set.
BUILT = (("de_DE", "UTF-8"), ("tr_TR", "UTF-8"), ("ar_EG", "UTF-8"), ("ja_JP", "EUC-JP"))
UNSTABLE = ("info", "bench")  # what they print changes from run to run
WITHOUT_PRINT = ("train", "resume", "xray", "demo")
BUILDING = threading.Lock()  # trials run side by side and share the locales


def built_locales(folder: pathlib.Path) -> None:
    """Builds the locales, which few machines have, in a folder that LOCPATH names."""
    with BUILDING:
        build_locales(folder)


def build_locales(folder: pathlib.Path) -> None:
    program = shutil.which("localedef")
    if program is None:
        raise Skipped("no localedef makes locales")
    folder.mkdir(exist_ok=True)
    for name, charset in BUILT:
        place = folder / f"{name}.{charset}"
        if place.exists():
            continue
        done = subprocess.run([program, "-i", name, "-f", charset, str(place)], capture_output=True, check=False)
        if not place.exists():
            raise Skipped(f"localedef cannot make {name}: {done.stderr.decode(errors='replace').strip()[-80:]}")


def trials(run: dict[str, bytes], machine: Machine) -> Iterator[Trial]:
    files = files_of(run)
    place = machine.settings.work / "locales"
    for name in (*PLAIN, *(f"{name}.{charset}" for name, charset in BUILT)):
        built = "." in name and not name.startswith(("C.", "none"))
        environment = [("LC_ALL", name), ("LANG", name), ("LANGUAGE", name[:2])]
        if built:
            environment.append(("LOCPATH", str(place)))
        prepare = (lambda folder: built_locales(place)) if built else (lambda folder: None)
        for verb, (which, command) in VERBS.items():
            if verb in UNSTABLE:
                continue
            judge = None if verb in CHANGING else SameFiles(machine, printed=verb not in WITHOUT_PRINT)
            yield Trial(
                f"locale-{name[:20]}/{verb}/{command.verb}",
                files[which],
                command,
                Expect.ACCEPTED,
                (),
                prepare=prepare,
                limits=Limits(environment=tuple(environment)),
                judge=judge,
            )
        for verb, line in {
            "eval": "eval m --text book.txt --tokens 32 --gate-threshold 0,5",
            "attend": "attend --q q.npy --k k.npy --v v.npy --scale 0,5 --out y.npy",
            "train": "train --data book.txt --out out --lr 1,5",
        }.items():
            option = line.split(" 0,5")[0].split(" 1,5")[0].split()[-1]
            yield Trial(
                f"locale-{name[:20]}/comma/{verb}",
                files["attend" if verb == "attend" else "model"],
                Command(line),
                Expect.REFUSED,
                (option,),
                prepare=prepare,
                limits=Limits(environment=tuple(environment)),
            )
