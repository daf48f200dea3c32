# SPDX-License-Identifier: Apache-2.0
"""Computes statistics of softmax weights in O(T) memory.

Uses Headgate's kernels for CPU tensors. Otherwise computes blocks of queries in plain PyTorch on the tensors' device.
"""

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

import headgate

from ..packed_rows import numbers_in_one_row, one_row
from .call import AttentionCall, Geometry, scores

BLOCK_ELEMENTS = 1 << 24
"""Limit on the number of scores in a block of queries: 64 MiB in float32."""
STATISTICS = {"row_max", "entropy", "distance", "entropy_of_keys"}
OF_KEYS = {"distance", "entropy_of_keys"}
"""Statistics of the weights on keys divided by their sum. They do not depend on sinks."""
KERNEL_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def lse_by_kernel(call: AttentionCall, v: Tensor | None) -> Any:
    """Computes an attention call. Returns lse in f64, (B,Hq,T) or packed (1,Hq,B·T). Also returns y if `v` is given."""
    tensors, rules = [x for x in (call.q, call.k, v) if x is not None], call.kernel_arguments()
    outputs = ["lse"] if v is None else ["y", "lse"]
    if call.cu_seqlens is None:
        return headgate.attention_forward(*tensors, outputs=outputs, **rules)
    rows = (one_row(x.transpose(1, 2)) for x in tensors)
    return headgate.attention_forward(*rows, outputs=outputs, layout="bthd", **_packed(call, rules))


def _packed(call: AttentionCall, rules: dict[str, Any]) -> dict[str, Any]:
    begins = call.cu_seqlens.to(torch.int32)
    if "sinks" in rules and rules["sinks"].dim() > 1:
        rules = {**rules, "sinks": numbers_in_one_row(rules["sinks"], call.q.shape[0])}
    return {**rules, "cu_seqlens_q": begins, "cu_seqlens_k": begins}


def _as_rows(x: Tensor, call: AttentionCall) -> Tensor:
    """Reshapes a result (1,Hq,B·T) of a packed call to (B,Hq,T). Returns other results unchanged."""
    B, _, T, _ = call.q.shape
    return x if call.cu_seqlens is None else x.view(x.shape[1], B, T).transpose(0, 1)


def by_kernels(
    call: AttentionCall, geometry: Geometry, wanted: set[str], own_lse: Tensor | None = None
) -> dict[str, Tensor]:
    """Computes "lse", and the statistics in `wanted`, each (B,Hq,T) in f64, with Headgate's kernels.

    `wanted` may contain "row_max", "entropy" and "distance". own_lse is the log-sum-exp of the call if it is known:
    (B,Hq,T), or (1,Hq,B·T) for packed sequences.

    "distance" is the mean of p_i - j over the keys j of query i at position p_i. It is the mean distance only if no
    query sees later keys. It requires a call without sinks.
    """
    if "distance" in wanted and call.q.element_size() < 4:  # 16-bit types would round large positions
        call = AttentionCall(**{**call.__dict__, "q": call.q.float(), "k": call.k.float()})
    q, k = call.q, call.k
    S = k.shape[2]
    position = torch.arange(S, dtype=q.dtype)[None, None, :, None].expand(k.shape[0], k.shape[1], S, 1)
    if own_lse is None or "distance" in wanted:
        out = lse_by_kernel(call, position if "distance" in wanted else None)
        own_lse = out.lse
    found = {"lse": _as_rows(own_lse, call)}
    if "distance" in wanted:
        y = out.y[..., 0] if call.cu_seqlens is None else _as_rows(out.y[..., 0].transpose(1, 2), call)
        found["distance"] = geometry.own_key[:, None] - y.double()
    names = [name for name in ("row_max", "entropy") if name in wanted]
    if names:
        rules: dict[str, Any] = call.kernel_arguments()
        if call.cu_seqlens is not None:
            rules = {**_packed(call, rules), "layout": "bthd"}
            q, k = (one_row(x.transpose(1, 2)) for x in (q, k))
        statistics = headgate.attention_statistics(own_lse, q, k, outputs=names, **rules)
        found |= {name: _as_rows(getattr(statistics, name), call).double() for name in names}
    return found


def by_blocks(call: AttentionCall, geometry: Geometry, wanted: set[str]) -> dict[str, Tensor]:
    """Computes what by_kernels() computes, in blocks of queries. "distance" is the mean of |p_i - j| for any mask."""
    B, Hq, T, _ = call.q.shape
    S, device = call.k.shape[2], call.q.device
    block = max(1, BLOCK_ELEMENTS // (B * Hq * S))
    key = torch.arange(S, device=device)
    parts: dict[str, list[Tensor]] = {name: [] for name in {"lse"} | wanted}
    for begin in range(0, T, block):
        rows = slice(begin, min(T, begin + block))
        s = scores(call, geometry, rows)
        of_keys = s.logsumexp(-1, keepdim=True)
        lse = of_keys
        if call.sinks is not None:
            sinks = call.sink_rows(s.dtype)
            sinks = sinks if sinks.shape[-1] == 1 else sinks[..., rows]
            lse = torch.logaddexp(of_keys, sinks[..., None])
        lse = lse.masked_fill(lse == math.inf, math.nan)  # kernels return NaN for such a row, too
        lse_or_0 = lse.masked_fill(lse == -math.inf, 0.0)
        difference = s - lse_or_0
        p = difference.exp()
        parts["lse"].append(lse[..., 0])
        if "row_max" in wanted:
            parts["row_max"].append(p.amax(-1))
        if "entropy" in wanted:
            entropy = -torch.where(p == 0, 0.0, p * difference).sum(-1)  # NaN passes
            if call.sinks is not None:
                of_sink = sinks - lse_or_0[..., 0]
                entropy = entropy - torch.where(of_sink == -math.inf, 0.0, of_sink.exp() * of_sink)
            parts["entropy"].append(entropy)
        if "distance" in wanted:
            far = (geometry.own_key[:, None, rows, None] - key).abs().to(p.dtype)
            parts["distance"].append((p * far).sum(-1) / p.sum(-1))
    return {name: torch.cat(part, -1).double() for name, part in parts.items()}


def statistics_of(
    call: AttentionCall, geometry: Geometry, wanted: set[str], own_lse: Tensor | None = None
) -> dict[str, Tensor]:
    """Computes "lse" and the statistics in `wanted`, each (B,Hq,T) in f64.

    `wanted` may contain "row_max", "entropy", "distance" and "entropy_of_keys". own_lse is the log-sum-exp of the call
    if it is known.
    """
    if call.sinks is not None and wanted & OF_KEYS:
        # Computes statistics of the weights on keys in a call without the sink.
        # If the sink takes nearly all weight, rounding errors would otherwise exceed the keys' weights.
        of_keys = statistics_of(replace(call, sinks=None), geometry, wanted & OF_KEYS)
        return of_keys | statistics_of(call, geometry, wanted - OF_KEYS, own_lse)
    if "entropy_of_keys" in wanted:
        found = statistics_of(call, geometry, wanted - {"entropy_of_keys"} | {"entropy"}, own_lse)
        return found | {"entropy_of_keys": found["entropy"] if "entropy" in wanted else found.pop("entropy")}
    q = call.q
    packed_rules = call.cu_seqlens is not None and any(x is not None for x in (call.mask, call.listed, call.bias))
    kernels = q.device.type == "cpu" and q.dtype in KERNEL_DTYPES and q.dtype == call.k.dtype and q.shape[-1] <= 576
    if not kernels or packed_rules or ("distance" in wanted and not call.causal):
        return by_blocks(call, geometry, wanted)
    return by_kernels(call, geometry, wanted, own_lse)
