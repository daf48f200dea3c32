# SPDX-License-Identifier: Apache-2.0
"""Observes gated_attention, both in Headgate's layers and in any other module."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .. import observers
from ..key_lists import KeyLists
from .call import AttentionCall
from .masks import find_rules, split_bias
from .transformers import gate_of

if TYPE_CHECKING:
    from .handle import Watch

USED = (
    "scale softcap layout mask bias sinks causality window_left cu_seqlens_q cu_seqlens_k key_lengths key_indices "
    "key_block_size dropout dropout_seed gate_fn gate_op gate_threshold precision threads target backend return_lse "
    "return_max_logit v_scale v_first"
).split()
"""Arguments that call_of reads, or that do not change the softmax weights."""


def install(watch: "Watch") -> Callable[[], None]:
    """Adds an observer of gated_attention. Returns a function that removes the observer."""

    def observer(given: dict[str, Any], arguments: dict[str, Any]) -> None:
        with watch.observed() as layer:
            if layer is not None:
                cross = watch.is_cross(layer.module)
                watch.observe_attention(layer, lambda: call_of(cross, given, arguments))

    observers.ATTENTION.append(observer)
    return lambda: observers.ATTENTION.remove(observer)


def call_of(cross: bool, given: dict[str, Any], arguments: dict[str, Any]) -> tuple[AttentionCall, Tensor | None]:
    """Converts a call of gated_attention to an AttentionCall. Also returns the gate of its outputs."""
    for name, value in arguments.items():
        if value is not None and name not in USED and not (name == "window_right" and value == -1):
            raise ValueError(f"argument '{name}' of gated_attention is not read")
    q, k, v = (given[name].detach() for name in ("q", "k", "v"))
    if q.is_nested:
        raise ValueError("nested tensors are not read")
    if q.dim() == 3:
        q, k, v = q[None], k[None], v[None]
    layout = arguments.get("layout", "bhtd")
    if layout == "bthd":
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    T, S = q.shape[2], k.shape[2]
    rules: dict[str, Any] = {"causal": arguments.get("causality", "none") == "causal"}
    window = arguments.get("window_left", -1)
    if window != -1:
        if not rules["causal"]:
            raise ValueError("window_left without causality is not read")
        rules["window"] = window + 1
    begins = arguments.get("cu_seqlens_q")
    if begins is not None:
        if not torch.equal(begins, arguments["cu_seqlens_k"]):
            raise ValueError("packed sequences with more keys than queries are not read")
        rules["cu_seqlens"] = begins
    visible, bias = (None if arguments.get(name) is None else arguments[name].detach() for name in ("mask", "bias"))
    if bias is not None:
        hides, bias = split_bias(bias.reshape((1,) * (4 - bias.dim()) + bias.shape))
        if hides is not None:
            visible = hides if visible is None else visible & hides
    if arguments.get("key_lengths") is not None:
        lengths = arguments["key_lengths"]
        short = (torch.arange(S, device=q.device) < lengths[:, None])[:, None, None]
        visible = short if visible is None else visible & short
    if arguments.get("key_indices") is not None:
        if begins is not None:
            raise ValueError("key_indices of packed sequences are not read")
        entries = arguments["key_indices"]
        entries = entries.reshape((1,) * (4 - entries.dim()) + entries.shape)
        rules["listed"] = KeyLists(entries, arguments.get("key_block_size", 1), S).mask(q.shape[1], S)
    if visible is not None:
        visible = visible.reshape((1,) * (4 - visible.dim()) + visible.shape)
    if rules["causal"] or begins is not None:
        rules |= {"mask": visible, "bias": bias}
    else:
        rules |= find_rules(visible, bias, T, S, None)._asdict()
    if arguments.get("sinks") is not None:
        sinks = arguments["sinks"].detach()
        rules["sinks"] = sinks[None] if sinks.dim() == 2 else sinks
    kind = "causal" if rules["causal"] else "bidirectional"
    z = given.get("gate")
    gate = gate_of({**arguments, "gate": z if z is None or z.dim() == 4 else z[None], "layout": layout})
    cross = cross or (T != S and kind != "causal")
    scale, softcap = arguments.get("scale"), arguments.get("softcap", 0.0)
    return AttentionCall(q, k, v, scale=scale, softcap=softcap, cross=cross, kind=kind, **rules), gate
