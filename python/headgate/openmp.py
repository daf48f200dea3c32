# SPDX-License-Identifier: Apache-2.0
"""How OpenMP's threads wait for each other."""

import importlib
import os


def load_with_short_spins(module: str) -> None:
    """Imports a module that loads GCC's OpenMP, whose threads then sleep soon when they wait, so that other programs have
    the cores. Leaves it as it is where the user has decided, or another module has loaded it before."""
    decided = "GOMP_SPINCOUNT" in os.environ or "OMP_WAIT_POLICY" in os.environ
    if not decided:
        os.environ["GOMP_SPINCOUNT"] = "10000"  # read once, when the library is loaded
    try:
        importlib.import_module(module)
    finally:
        if not decided:
            del os.environ["GOMP_SPINCOUNT"]
