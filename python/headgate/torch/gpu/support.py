# SPDX-License-Identifier: Apache-2.0
"""What gated_attention computes on GPUs: the one list that its checks, its errors, its documents and its tests walk."""

import torch

from ..arguments import OPTIONS, TENSORS

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
