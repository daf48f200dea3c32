# SPDX-License-Identifier: Apache-2.0
"""Runs the command-line program `headgate` that the package contains."""

import os
import sys
from pathlib import Path


def main() -> None:
    program = Path(__file__).resolve().parent / "bin" / "headgate"
    try:
        os.execv(program, [str(program), *sys.argv[1:]])
    except OSError as error:
        sys.exit(f"headgate: {program}: {error.strerror}")
