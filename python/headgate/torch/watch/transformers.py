# SPDX-License-Identifier: Apache-2.0
"""Observes the attention of transformers models through AttentionInterface, for any attn_implementation."""

import functools
import inspect
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from .. import observers
from ..foreign_arguments import ATTENTION, CACHES
from ..gates import GATE_FUNCTIONS
from ..key_lists import lists_of_index
from ..pending_gate import pending_gate_of
from ..precision import IMPLEMENTATIONS
from .call import AttentionCall, both
from .wrapping import Wrapped

if TYPE_CHECKING:
    from .handle import Watch

USED = (
    "module query key value attention_mask dropout scaling softcap s_aux sinks position_bias is_causal sliding_window "
    "cu_seq_lens_q cu_seq_lens_k output_attentions indices block_indices head_mask"
).split()
"""Arguments of the attention interface that call_of reads, or that do not change the softmax weights. For example,
head_mask multiplies the finished weights."""


def install(watch: "Watch") -> Callable[[], None]:
    """Makes functions of AttentionInterface report their calls. Returns a function that undoes the change."""
    modeling = sys.modules.get("transformers.modeling_utils")
    if modeling is None:
        return lambda: None
    wrapped = Wrapped()

    def around(original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        function = original(*args, **kwargs)
        name = args[1] if len(args) > 1 else kwargs["attn_implementation"]

        @functools.wraps(function, updated=())
        def seen(*args: Any, **kwargs: Any) -> Any:
            with watch.observed(args[0] if args else kwargs["module"]) as layer:
                if layer is None:
                    return function(*args, **kwargs)
                described = watch.try_describe(
                    layer, lambda: call_of(watch, layer.module, name, function, args, kwargs)
                )
                with observers.kept_lse() as kept:
                    out = function(*args, **kwargs)
                own = kept[0] if name in IMPLEMENTATIONS and len(kept) == 1 else None
                watch.record_attention(layer, described, own)
                return out

        return seen

    wrapped.replace(modeling.AttentionInterface, "get_interface", around)
    return wrapped.undo


def _arguments(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Returns the arguments of a call by name."""
    bound = inspect.signature(function).bind(*args, **kwargs)
    named = dict(bound.arguments)
    for parameter in bound.signature.parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            named |= named.pop(parameter.name, {})
    return named


def _refuse(named: dict[str, Any]) -> None:
    for name, value in named.items():
        if value is None or name in USED or name in ATTENTION or (name in CACHES and hasattr(value, "get_seq_length")):
            continue
        raise ValueError(f"argument '{name}' of the attention function is unknown and may change the scores")


def _has_index(module: nn.Module) -> bool:
    """Returns whether an indexer may select the keys that a module's queries see. The mask may contain its choice."""
    return any(key.startswith("index") for key in getattr(getattr(module, "config", None), "__dict__", ()))


def _of_index(mask: Tensor, padding: Tensor | None, T: int, S: int) -> dict[str, Tensor]:
    """Returns further fields of an AttentionCall for a mask that contains an indexer's choice.

    `padding` (B,·) is the model's padding mask. Returns no fields if this padding mask does not cover the keys in a
    cache.
    """
    if T == S:
        known = padding is not None and padding.shape[1] >= S
        real = padding[:, -S:] if known else torch.ones(1, S, dtype=torch.bool, device=mask.device)
    elif padding is not None and padding.shape[1] == S:
        real = padding
    else:
        return {}
    return {"listed": mask, "real": real}


def call_of(
    watch: "Watch",
    module: nn.Module,
    name: str | None,
    function: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    detached: bool = True,
) -> tuple[AttentionCall, Tensor | None]:
    """Converts a call of the interface's function `name` to an AttentionCall. Also returns the gate of a retrofitted
    module.
    """

    def taken(x: Tensor) -> Tensor:
        return x.detach() if detached else x

    named = _arguments(function, args, kwargs)
    _refuse(named)
    q, k, v, mask = (named.get(key) for key in ("query", "key", "value", "attention_mask"))
    if q.shape[0] != k.shape[0]:  # learned queries that all sequences share
        q = q.expand(k.shape[0], -1, -1, -1)
    T, S = q.shape[2], k.shape[2]
    padding = watch.padding_for(k.shape[0])
    padding = None if padding is None else padding.to(q.device)
    window = named.get("sliding_window") or getattr(module, "sliding_window", None)
    is_causal = named.get("is_causal")
    if is_causal is None:  # sdpa treats modules without this attribute as causal
        is_causal = getattr(module, "is_causal", name == "sdpa")
    call: dict[str, Any] = {
        "scale": named.get("scaling"),
        "softcap": named.get("softcap") or 0.0,
        "slides": window is not None,
        "cross": watch.is_cross(module),
    }
    packs = name not in (None, "eager", "sdpa")
    if packs and named.get("cu_seq_lens_q") is not None:
        call["cu_seqlens"] = named["cu_seq_lens_q"]
    if hasattr(mask, "rules"):  # Headgate's KeyMask
        rules = mask.rules()
        call |= {"causal": True, "window": mask.window, "mask": rules.get("mask")}
        from ..transformers import sequences_of  # loaded, since the mask is its KeyMask

        sequences = sequences_of(mask, q.shape, S, named)
        if sequences is not None:
            call.setdefault("cu_seqlens", sequences)
    elif isinstance(mask, Tensor) and mask.dim() == 2:  # a padding mask, as for flash attention
        call |= {"mask": mask[:, None, None, :S].bool(), "causal": is_causal, "window": window}
    elif isinstance(mask, Tensor) or hasattr(mask, "mask_mod"):
        call |= watch.masks.rules(mask, T, S, window)._asdict()
        if _has_index(module) and call["mask"] is not None and call["mask"].shape[-2] == T:
            call |= _of_index(call["mask"], padding, T, S)
    elif mask is not None:
        raise ValueError(f"attention_mask is a {type(mask).__name__}, which is not read")
    elif name is not None and name != "eager" and is_causal and (T > 1 or packs):
        call |= {"causal": True, "window": window if packs else None}
        if T > 1 and "cu_seqlens" not in call and S > T:  # later keys are unused slots of a static cache
            k, v = k[:, :, :T], v[:, :, :T]
            S = T
    if named.get("position_bias") is not None:
        bias = taken(named["position_bias"])[..., :S]
        call["bias"] = bias if call.get("bias") is None else bias + call["bias"]
    keys = named["key"].shape[2]
    for lists in lists_of_index("watch", module, q, keys, named.get("indices"), named.get("block_indices")):
        call["listed"] = both(call.get("listed"), lists.mask(q.shape[1], S))
    for key in ("s_aux", "sinks"):
        if named.get(key) is not None:
            x = taken(named[key])
            call["sinks"] = x.squeeze(-1) if x.dim() == 4 else x
    positions = named.get("position_ids") if padding is None else padding.cumsum(-1) - 1
    if window is not None and T < S and isinstance(positions, Tensor) and positions.dim() == 2:
        call["positions"] = positions[:, -T:]
    kind = "causal" if call.get("causal") or is_causal else "bidirectional"
    pending = pending_gate_of(module)
    gate = None if pending is None else gate_of(pending)
    return AttentionCall(taken(q), taken(k), taken(v), kind=kind, **call), gate


def gate_of(arguments: dict[str, Any]) -> Tensor | None:
    """Returns the gate (B,H,T,1|Dv) in the arguments of gated_attention. Returns None if there is no multiplied gate."""
    z = arguments.get("gate")
    if z is None or arguments.get("gate_op", "mul") != "mul":
        return None
    z = z.detach().transpose(1, 2) if arguments.get("layout", "bthd") == "bthd" else z.detach()
    return GATE_FUNCTIONS[arguments.get("gate_fn", "sigmoid")].compute(z)
