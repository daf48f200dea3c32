# SPDX-License-Identifier: Apache-2.0
"""Lists the arguments that each operation supports on GPUs. Checks, errors, documents and tests all use this list."""

from typing import NamedTuple

import torch

from ...operations import ATTENTION, GATED_NORM, LINEAR_ATTENTION, SHORT_CONVOLUTION, Operation


class Supported(NamedTuple):
    """Inputs and options that the GPU kernels of one operation support.

    The inputs have the order of the fields of Inputs in the operation's launch module.
    """

    operation: Operation
    tensors: tuple[str, ...]
    options: tuple[str, ...]

    @property
    def unsupported(self) -> tuple[str, ...]:
        """Returns the unsupported arguments. Calls may pass them only with their defaults."""
        names = (*self.operation.tensors, *self.operation.options)
        return tuple(name for name in names if name not in self.tensors + self.options)


GATED_ATTENTION = Supported(
    ATTENTION,
    ("q", "k", "v", "gate", "key_lengths", "sinks", "query_offsets", "cu_seqlens_q", "cu_seqlens_k"),
    (
        "layout",
        "scale",
        "softcap",
        "causality",
        "window_left",
        "window_right",
        "gate_fn",
        "gate_op",
        "precision",
    ),
)
LINEAR = Supported(
    LINEAR_ATTENTION,
    ("q", "k", "v", "decay", "beta", "state", "cu_seqlens"),
    ("layout", "rule", "scale", "l2_norm", "precision"),
)
CONVOLUTION = Supported(SHORT_CONVOLUTION, ("x", "weight", "bias", "state", "cu_seqlens"), ("activation",))
NORM = Supported(GATED_NORM, ("x", "weight", "gate"), ("layout", "eps", "gate_fn"))
FUNCTIONS = {
    "gated_attention": GATED_ATTENTION,
    "linear_attention": LINEAR,
    "short_convolution": CONVOLUTION,
    "gated_norm": NORM,
}

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
"""Supported types of q, k and v, which must have the same type, and of x. Gates, decays and parameters have that type
or float32."""

MAX_HEAD_DIM = 256
"""Largest D and Dv of attention, and largest Dv of linear attention."""

LINEAR_MAX_STATE_ROWS = 128
"""Largest D of linear attention."""

NORM_MAX_FEATURES = 4096
"""Largest D of the gated norm."""

CONVOLUTION_TAPS = (2, 8)
"""Smallest and largest number of taps of the short convolution, the same as on CPUs."""

GATE_FUNCTIONS = ("sigmoid", "sigmoid2", "ns_sigmoid", "silu", "softplus", "identity")
LAYOUTS = ("bhtd", "bthd")
