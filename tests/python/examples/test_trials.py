# SPDX-License-Identifier: Apache-2.0
"""A few steps of every variant of the experiments that run an example: the examples take all options that configs have.

The runs are forked from this process, which has imported what they import: each import would take longer than the run.
"""

import multiprocessing
import os
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch._dynamo  # noqa: F401, which optimizers import

import training  # noqa: F401, which imports PyTorch and Headgate
from conftest import stanzas

EXPERIMENTS = Path(__file__).resolve().parents[3] / "experiments"
sys.path.insert(0, str(EXPERIMENTS))

import run as experiments

PROCESSES = subprocess.run


def run_program(command, *, cwd=None, env=None, stdout=None, stderr=None, **others):
    """Replaces subprocess.run: runs a Python program that reads no standard input in a forked process."""
    if command[0] != sys.executable or "--json" not in command:
        return PROCESSES(command, cwd=cwd, env=env, stdout=stdout, stderr=stderr, **others)

    def child():
        os.chdir(cwd)
        os.environ.update(env)
        for file, number in ((stdout, 1), (stderr, 2)):
            os.dup2(file.fileno(), number)
        sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1, closefd=False) for number in (1, 2))
        sys.argv = command[1:]
        sys.path[0] = str(Path(command[1]).resolve().parent)
        runpy.run_path(command[1], run_name="__main__")
        sys.stdout.flush()
        os._exit(0)  # an ordinary exit would wait for the threads of the process that forked it

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join()
    return SimpleNamespace(returncode=process.exitcode)


@pytest.mark.parametrize("name", ["classify", "graph", "recurrent", "length"])
def test_trial(name, tmp_path, monkeypatch, capsys):
    data = tmp_path / "excerpt_Packages"
    data.write_text(stanzas(2000))
    monkeypatch.setattr(experiments.subprocess, "run", run_program)
    command = [name, "--trial", "--jobs", "1", "--python", sys.executable, "--data", data, "--work", tmp_path]
    status = experiments.main([*map(str, command)])
    out, errors = capsys.readouterr()
    assert status == 0, errors
    runs = int(out.split(" runs, ")[0].split()[-1])
    records = (tmp_path / f"{name}-trial" / "records.jsonl").read_text().splitlines()
    assert len(records) == runs >= 3
