# SPDX-License-Identifier: Apache-2.0
"""Observes linear attention with the delta rule: Headgate's operation, and the functions in transformers' models."""

import inspect
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

import headgate

from .. import observers
from ..hub_functions import MODELS, sequences_of_rows
from ..linear_attention import L2_NORM_EPS
from .sample import LinearSample
from .wrapping import Wrapped

if TYPE_CHECKING:
    from .handle import Watch

RULES = (
    "torch_chunk_gated_delta_rule",
    "torch_recurrent_gated_delta_rule",
    "chunk_kimi_delta_attention",
    "recurrent_kimi_delta_attention",
)


def install(watch: "Watch") -> Callable[[], None]:
    """Wraps the delta-rule functions that transformers' modules call, and adds an observer of linear_attention.

    Returns a function that removes the wrappers and the observer.
    """
    wrapped = Wrapped()

    def around(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with watch.observed() as layer:
            if layer is not None:
                watch.observe_linear(layer, lambda: of_rule(function, args, kwargs))
            return function(*args, **kwargs)

    for model in MODELS:
        module = sys.modules.get(f"transformers.models.{model}.modeling_{model}")
        for name in RULES:
            if hasattr(module, name):
                wrapped.replace(module, name, around)

    def observer(given: dict[str, Any], arguments: dict[str, Any]) -> None:
        with watch.observed() as layer:
            if layer is not None:
                watch.observe_linear(layer, lambda: of_operation(given, arguments))

    observers.LINEAR_ATTENTION.append(observer)

    def undo() -> None:
        observers.LINEAR_ATTENTION.remove(observer)
        wrapped.undo()

    return undo


def of_rule(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Converts a call of a delta-rule function of transformers to arguments of linear_attention in layout "bthd"."""
    bound = inspect.signature(function).bind(*args, **kwargs)
    named = dict(bound.arguments)
    for parameter in bound.signature.parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            named |= named.pop(parameter.name, {})
    g = named["g"]
    B, T = named["query"].shape[:2]
    found = {
        "q": named["query"],
        "k": named["key"],
        "v": named["value"],
        "decay": g if g.dim() == 4 else g.unsqueeze(-1),
        "beta": named["beta"].unsqueeze(-1),
        "scale": named.get("scale"),
        "l2_norm": L2_NORM_EPS if named.get("use_qk_l2norm_in_kernel") else None,
        "state": named.get("initial_state"),
        "cu_seqlens": sequences_of_rows("gated delta rule", B, T, named),
    }
    return {key: x.detach() if isinstance(x, Tensor) else x for key, x in found.items()}


def of_operation(given: dict[str, Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """Converts an observed call of Headgate's linear_attention to arguments with tensors in layout "bthd"."""
    if arguments.get("rule", "gated_delta") != "gated_delta":
        raise ValueError(f"linear attention with rule '{arguments['rule']}' is not read")
    found = {name: None if x is None else x.detach() for name, x in given.items()}
    if arguments.get("layout", "bhtd") == "bhtd":
        found = {name: None if x is None else x.transpose(-3, -2) for name, x in found.items()}
    if found["q"].dim() == 3:
        found = {name: None if x is None else x[None] for name, x in found.items()}
    q, v = found["q"], found["v"]
    if found["decay"] is None:
        found["decay"] = torch.zeros(*v.shape[:3], 1, dtype=q.dtype, device=q.device)
    if found["beta"] is None:
        found["beta"] = torch.ones(*v.shape[:3], 1, dtype=q.dtype, device=q.device)
    found["beta"] = found["beta"].expand(*v.shape[:3], 1)
    return {**found, **{name: arguments.get(name) for name in ("scale", "l2_norm", "state", "cu_seqlens")}}


def continues(call: dict[str, Any]) -> bool:
    """Returns whether a call continues a sequence from a state. Its weights on earlier tokens are then unknown."""
    state = call["state"]
    return state is not None and (state.device.type != "cpu" or bool(state.any()))


def sample_of(call: dict[str, Any], padding: Tensor | None, outputs: list[str]) -> LinearSample:
    """Returns the sample of a linear attention call from which metrics are computed.

    `padding` (B,T) is true for real tokens. None means that there is no padding. `outputs` names the statistics to
    compute.
    """
    B, T = call["q"].shape[:2]
    device = call["q"].device
    not_padding = torch.ones(B, T, dtype=torch.bool, device=device) if padding is None else padding
    first = not_padding & (not_padding.cumsum(-1) == 1)
    if call["cu_seqlens"] is not None:
        first = _first_tokens(call["cu_seqlens"], B, T).to(device)
    after_first = not_padding & ~first
    if continues(call):
        outputs, after_first = [], torch.zeros_like(not_padding)
    statistics = _statistics(call, not_padding if padding is not None else None, outputs) if outputs else {}
    decay, beta = (call[name].double().transpose(1, 2) for name in ("decay", "beta"))
    return LinearSample(decay, beta[..., 0], statistics, not_padding, after_first)


def _first_tokens(cu_seqlens: Tensor, B: int, T: int) -> Tensor:
    """Returns a mask (B,T) of the first tokens of sequences. cu_seqlens counts all B·T tokens. Empty sequences have no
    first token.
    """
    begins = cu_seqlens.long()
    first = torch.zeros(B * T, dtype=torch.bool, device=begins.device)
    first[begins[:-1][begins.diff() > 0]] = True
    return first.view(B, T)


def arguments_of(call: dict[str, Any]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Returns the tensors and options of a call for headgate.linear_attention_weights and linear_attention_statistics.

    cu_seqlens is not included.
    """
    tensors = {name: call[name] for name in ("q", "k", "v", "decay", "beta")}
    for name in ("decay", "beta"):
        if tensors[name].dtype not in (tensors["q"].dtype, torch.float32):
            tensors[name] = tensors[name].float()
    return tensors, {name: call[name] for name in ("scale", "l2_norm") if call[name] is not None}


def _statistics(call: dict[str, Any], not_padding: Tensor | None, outputs: list[str]) -> dict[str, Tensor]:
    """Returns statistics of the implicit attention weights, (B,Hv,T).

    If `not_padding` (B,T) is false at some tokens, packs only the real tokens. The statistics of padding are 0.
    """
    if call["q"].device.type != "cpu":
        raise ValueError("the weights hidden in linear attention are computed for CPU tensors only")
    tensors, options = arguments_of(call)
    B, T = tensors["q"].shape[:2]
    begins = call["cu_seqlens"]
    if begins is None and not_padding is not None and not not_padding.all():
        begins = torch.nn.functional.pad(not_padding.sum(-1).cumsum(0), (1, 0)).int()
        tensors = {name: x[not_padding][None] for name, x in tensors.items()}
    elif begins is not None and B > 1:
        tensors = {name: x.flatten(0, 1)[None] for name, x in tensors.items()}
    if begins is not None:
        options["cu_seqlens"] = begins.int()
    found = headgate.linear_attention_statistics(**tensors, layout="bthd", outputs=outputs, **options)
    result = {}
    for name in outputs:
        x = getattr(found, name)
        if begins is not None:  # (1,Hv,N)
            whole = x.new_zeros(x.shape[1], B * T)
            kept = slice(None) if not_padding is None or x.shape[2] == B * T else not_padding.flatten()
            whole[:, kept] = x[0]
            x = whole.view(-1, B, T).transpose(0, 1)
        result[name] = x
    return result


def hidden_weights(call: dict[str, Any], queries: Tensor) -> Tensor:
    """Returns the implicit weights a_tj (B,Hv,R,T) of the chosen queries on the values of tokens: y_t = Σ_j a_tj v_j.

    The weights are f64 for f64 inputs, otherwise f32. Computes them on the CPU, in O(R·T·D) time.
    """
    tensors, options = arguments_of(call)
    tensors, at = {name: x.cpu() for name, x in tensors.items()}, queries.cpu()
    B, T = tensors["q"].shape[:2]
    options |= {"layout": "bthd", "outputs": ["weights"]}
    if call["cu_seqlens"] is None:
        found = torch.as_tensor(headgate.linear_attention_weights(at, **tensors, **options).weights)
    else:
        tensors = {name: x.flatten(0, 1)[None] for name, x in tensors.items()}
        options["cu_seqlens"] = call["cu_seqlens"].cpu().int()
        # Queries of row b become queries at tokens b·T … (b + 1)·T - 1 of the packed batch. They read only this row.
        rows = [headgate.linear_attention_weights(at + b * T, **tensors, **options).weights for b in range(B)]
        found = torch.cat([x[..., b * T : (b + 1) * T] for b, x in enumerate(rows)])
    return found.to(queries.device)
