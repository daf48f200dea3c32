# SPDX-License-Identifier: Apache-2.0
"""Exact fused gated attention for CPUs: y = gate(z) * softmax(scale q k^T + bias, mask) v, forward and backward, and
gated linear attention.

The functions take NumPy arrays, PyTorch tensors and other DLPack arrays without copying them. `load`, `explain`, `page`
and `runs` read the same files as the command line. `headgate.plot` draws the results.
"""

import importlib

from .openmp import load_with_short_spins

load_with_short_spins(__name__ + "._headgate")

from . import _headgate
from ._headgate import *
from ._headgate import __version__
from .models import Curve, Evaluation, Head, Model, Page, Run, Xray, explain, load, page, runs

__all__ = [name for name in dir(_headgate) if not name.startswith("_")]
__all__ += ["Curve", "Evaluation", "Head", "Model", "Page", "Run", "Xray", "explain", "load", "page", "plot", "runs"]


def __getattr__(name: str):
    """Imports headgate.plot on first use."""
    if name == "plot":
        return importlib.import_module(".plot", __name__)
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), "plot"})
