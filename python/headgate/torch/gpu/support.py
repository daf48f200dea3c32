# SPDX-License-Identifier: Apache-2.0
"""What the operations compute on GPUs: the one list that its checks, its errors, its documents and its tests walk."""

import torch

from ..arguments import LINEAR_ATTENTION, OPTIONS, TENSORS

SUPPORTED_TENSORS = (
    "q",
    "k",
    "v",
    "gate",
    "key_lengths",
    "sinks",
    "query_offsets",
    "cu_seqlens_q",
    "cu_seqlens_k",
)
SUPPORTED_OPTIONS = (
    "layout",
    "scale",
    "softcap",
    "causality",
    "window_left",
    "window_right",
    "gate_fn",
    "gate_op",
    "precision",
)
DECLINED = tuple(name for name in (*TENSORS, *OPTIONS) if name not in SUPPORTED_TENSORS + SUPPORTED_OPTIONS)
"""Arguments that are refused unless they have their default."""

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
"""Those of q, k and v, which share one, and of the gate, which has q's or float32."""

MAX_HEAD_DIM = 256
"""The largest D and Dv."""

GATE_FUNCTIONS = ("sigmoid", "sigmoid2", "ns_sigmoid", "silu", "softplus", "identity")

LINEAR_TENSORS = ("q", "k", "v", "decay", "beta", "state", "cu_seqlens")
LINEAR_OPTIONS = ("layout", "rule", "scale", "l2_norm")
LINEAR_DECLINED = tuple(
    name
    for name in (*LINEAR_ATTENTION.tensors, *LINEAR_ATTENTION.options)
    if name not in LINEAR_TENSORS + LINEAR_OPTIONS
)

LINEAR_MAX_STATE_ROWS = 128
"""The largest D of linear attention; Dv is bounded by MAX_HEAD_DIM."""
