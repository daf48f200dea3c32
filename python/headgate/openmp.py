# SPDX-License-Identifier: Apache-2.0
"""Sets how long threads of OpenMP spin while they wait."""

import importlib
import os


def load_with_short_spins(module: str) -> None:
    """Imports a module that loads GCC's OpenMP, with a short spin time. Waiting threads then soon sleep and leave the
    cores to other programs.

    Has no effect if the user has set GOMP_SPINCOUNT or OMP_WAIT_POLICY, or if OpenMP is already loaded.
    """
    decided = "GOMP_SPINCOUNT" in os.environ or "OMP_WAIT_POLICY" in os.environ
    if not decided:
        os.environ["GOMP_SPINCOUNT"] = "10000"  # OpenMP reads the variable only while it is being loaded
    try:
        importlib.import_module(module)
    finally:
        if not decided:
            del os.environ["GOMP_SPINCOUNT"]
