# SPDX-License-Identifier: Apache-2.0
"""A few steps of every variant of the experiments that run an example: the examples take all options that configs have."""

import subprocess
import sys
from pathlib import Path

import pytest

from conftest import stanzas

RUN = Path(__file__).resolve().parents[3] / "experiments" / "run.py"


@pytest.mark.parametrize("name", ["classify", "graph", "recurrent", "length"])
def test_trial(name, tmp_path):
    data = tmp_path / "excerpt_Packages"
    data.write_text(stanzas(2000))
    command = [sys.executable, RUN, name, "--trial", "--python", sys.executable, "--data", data, "--work", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    runs = int(done.stdout.split(" runs, ")[0].split()[-1])
    records = (tmp_path / f"{name}-trial" / "records.jsonl").read_text().splitlines()
    assert len(records) == runs >= 3
