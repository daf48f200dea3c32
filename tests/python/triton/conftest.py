# SPDX-License-Identifier: Apache-2.0
"""One thread: the problems are small. Without HEADGATE_TRITON=all, a part of the cases (scripts/check.sh runs all)."""

import os

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(name, "1")
