# SPDX-License-Identifier: Apache-2.0
"""Temporarily changes the attention of single heads and layers of a live transformers model."""

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..gates import GATE_FUNCTIONS
from ..pending_gate import MATRIX, PARAMETER, pending_gate_of, store_pending_gate
from .call import AttentionCall, geometry_of, scores
from .gates import DELTA_NET, GATED_NORM, READERS
from .handle import LOOKS_LIKE_ATTENTION, Watch
from .statistics import BLOCK_ELEMENTS
from .transformers import call_of
from .wrapping import Wrapped

WORDS = ("closed", "open", "mean_gate", "no_first_token", "sink_logit")
"""Names of changes to attention. headgate.torch.override() describes them."""
OF_GATES = ("open", "mean_gate")


class Change(NamedTuple):
    word: str
    head: int | None  # number of the changed head; None means all heads of the layer
    value: float = 0.0


def changes_of(model: nn.Module, given: dict[Any, Any]) -> dict[nn.Module, list[Change]]:
    """Returns the changes for each attention module. Raises ValueError for an unknown layer or name of a change."""
    names = {
        name: module for name, module in model.named_modules() if LOOKS_LIKE_ATTENTION.search(type(module).__name__)
    }
    by_layer = {getattr(module, "layer_idx", None): module for module in names.values()}
    found: dict[nn.Module, list[Change]] = {}
    for key, what in given.items():
        layer, head = key if isinstance(key, tuple) else (key, None)
        word, value = what if isinstance(what, tuple) else (what, 0.0)
        module = names.get(layer) if isinstance(layer, str) else by_layer.get(layer)
        if module is None:
            raise ValueError(f"override: {layer!r} is no layer with attention: give a module's name, or its number")
        if word not in WORDS:
            raise ValueError(f"override: '{word}' is none of {', '.join(WORDS)}")
        found.setdefault(module, []).append(Change(word, head, value))
    return found


@contextlib.contextmanager
def overridden(model: nn.Module, given: dict[Any, Any]) -> Iterator[None]:
    """Applies changes during a `with` block."""
    modeling = sys.modules.get("transformers.modeling_utils")
    if modeling is None:
        raise ValueError("override: only models of transformers are supported")
    changes = changes_of(model, given)
    wrapped, watch = Wrapped(), Watch(model)
    try:
        for module, own in changes.items():
            of_gate = [change for change in own if change.word in OF_GATES]
            if DELTA_NET.search(type(module).__name__) and any(
                GATED_NORM.search(type(child).__name__) for child in module.children()
            ):
                _change_linear(module, own, wrapped)
            elif of_gate:
                _change_gate(module, of_gate, wrapped)
    except ValueError:
        wrapped.undo()
        raise

    def around(original: Callable[..., Any], table_name: tuple[Any, ...], options: dict[str, Any]) -> Any:
        function = original(*table_name, **options)
        name = table_name[1] if len(table_name) > 1 else options["attn_implementation"]

        @functools.wraps(function, updated=())
        def changed(*args: Any, **kwargs: Any) -> Any:
            module = args[0] if args else kwargs["module"]
            all_of_module = changes.get(module, ())
            own = [change for change in all_of_module if change.word not in OF_GATES]
            of_gate = [change for change in all_of_module if change.word in OF_GATES]
            pending = pending_gate_of(module)
            gate = None if pending is None else _change_pending_gate(module, pending, of_gate)
            if not own:
                return function(*args, **kwargs)
            again = next((change.word for change in own if change.word != "closed"), None)
            if again is not None and kwargs.get("dropout"):
                raise ValueError(
                    f"override: '{again}' computes attention again, without the dropout of {kwargs['dropout']} that the "
                    "call has: set the model's attention_dropout to 0, or call eval()"
                )
            call, _ = call_of(watch, module, name, function, args, kwargs, detached=False)
            y, *rest = function(*args, **kwargs)
            for change in own:
                y = _changed(y, call, change, gate)
            return y, *rest

        return changed

    wrapped.replace(modeling.AttentionInterface, "get_interface", around)
    try:
        yield
    finally:
        wrapped.undo()


def _heads(x: Tensor, change: Change, dim: int) -> Tensor:
    """Returns a mask of the heads that a change selects. It broadcasts to x, whose dimension `dim` is that of the
    heads.

    Raises ValueError for a head that the layer lacks.
    """
    if change.head is not None and not 0 <= change.head < x.shape[dim]:
        raise ValueError(f"override: there is no head {change.head} in a layer of {x.shape[dim]} heads")
    chosen = torch.arange(x.shape[dim], device=x.device)
    chosen = chosen >= 0 if change.head is None else chosen == change.head
    return chosen.view([-1 if i == dim % x.dim() else 1 for i in range(x.dim())])


def _change_pending_gate(module: nn.Module, pending: dict[str, Any], own: list[Change]) -> tuple[Tensor, str]:
    """Applies changes to the gate that a retrofitted module has stored for a call.

    Returns the gate (B,T,Hq,1|Dv) and its operation, "mul" or "add".
    """
    z, operation = pending["gate"], pending["gate_op"]
    gate = GATE_FUNCTIONS[pending["gate_fn"]].compute(z.to(torch.promote_types(z.dtype, torch.float32)))
    for change in own:
        gate = torch.where(_heads(gate, change, 2), _constant_gate(gate, change.word), gate)
    if own:
        store_pending_gate(module, {"gate": gate, "gate_fn": "identity", "gate_op": operation})
    return gate, operation


def _changed(y: Tensor, call: AttentionCall, change: Change, gate: tuple[Tensor, str] | None) -> Tensor:
    """Returns y (B,T,Hq,Dv) with new outputs for the heads that `change` selects.

    `gate` is the gate of a retrofitted module with its operation, "mul" or "add". It is None for other modules.
    """
    if change.word == "closed":
        new = torch.zeros_like(y)
    else:
        new = _attend(call, change)
        if gate is not None:
            new = new + gate[0] if gate[1] == "add" else new * gate[0]
        new = new.to(y.dtype)
    return torch.where(_heads(y, change, 2), new, y)


def _attend(call: AttentionCall, change: Change) -> Tensor:
    """Computes attention (B,T,Hq,Dv) again, without the first token or with a sink logit, one block of queries at a
    time.

    The result has gradients. For the backward pass, autograd stores the weights of all blocks, T × S per head.
    """
    geometry = geometry_of(call)
    (B, Hq, T, _), S = call.q.shape, call.k.shape[2]
    v = call.v.repeat_interleave(Hq // call.v.shape[1], 1)
    first = geometry.first.expand(B, T)
    key = torch.arange(S, device=call.q.device)
    block, parts = max(1, BLOCK_ELEMENTS // (B * Hq * S)), []
    for begin in range(0, T, block):
        rows = slice(begin, min(T, begin + block))
        s = scores(call, geometry, rows)
        sinks = []
        if call.sinks is not None:
            own = call.sink_rows(s.dtype)
            sinks.append((own if own.shape[-1] == 1 else own[..., rows])[..., None])
        if change.word == "no_first_token":
            hidden = (key == first[:, rows, None]) & (geometry.own_key != first)[:, rows, None]
            s = s.masked_fill(hidden[:, None], -torch.inf)
        else:
            sinks.append(s.new_full((1, 1, 1, 1), change.value))
        s = torch.cat((s, *(x.expand(B, Hq, s.shape[2], 1) for x in sinks)), -1)
        p = torch.softmax(s.masked_fill((s == -torch.inf).all(-1, keepdim=True), 0.0), -1)[..., :S]
        parts.append(p.to(v.dtype) @ v)
    return torch.cat(parts, 2).transpose(1, 2)


def _constant_gate(gate: Tensor, word: str) -> Tensor:
    """Returns the gate (B,T,H,·) after a change. It is 1 for "open", otherwise the mean over sequences and tokens."""
    return torch.ones_like(gate) if word == "open" else gate.mean((0, 1), keepdim=True).expand_as(gate)


def _change_gate(module: nn.Module, own: list[Change], wrapped: Wrapped) -> None:
    """Wraps the module that computes the gate. The module then outputs the changed gate.

    Retrofitted modules need no wrapper, since _change_pending_gate() changes their gate. Raises ValueError if the layer
    has no gate that can be changed.
    """
    if hasattr(module, MATRIX) or hasattr(module, PARAMETER):
        site, operation = module.config.gate_site, module.config.gate_op
        if site != "g1":
            raise ValueError(
                f"override: '{own[0].word}' is for gates at g1, but {type(module).__name__} has one at {site}"
            )
        if operation == "add" and any(change.word == "open" for change in own):
            raise ValueError("override: 'open' is not for a gate that is added: 'mean_gate' is")
        return
    reader = next((reader for reader in READERS if reader.classes.search(type(module).__name__)), None)
    if reader is None:
        raise ValueError(f"override: the gate of {type(module).__name__} is not known: '{own[0].word}' needs one")

    def around(forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        out = forward(*args, **kwargs)
        z = reader.read(module, out)
        for change in own:
            constant = torch.logit(_constant_gate(z.double().sigmoid(), change.word), 1e-12).to(z.dtype)
            z = torch.where(_heads(z, change, 2), constant, z)
        return reader.write(module, out, z)

    wrapped.wrap(getattr(module, reader.submodule), around)


def _change_linear(module: nn.Module, own: list[Change], wrapped: Wrapped) -> None:
    """Wraps the gated norm after linear attention. The norm's output is norm(o) · g(z)."""
    norm = next(child for child in module.children() if GATED_NORM.search(type(child).__name__))
    heads = getattr(module, "num_v_heads", None) or module.num_heads
    for change in own:
        if change.word not in ("closed", "mean_gate"):
            raise ValueError(f"override: '{change.word}' is not for linear attention: closed and mean_gate are")

    def around(forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        o, z = args[0], args[1] if len(args) > 1 else kwargs["gate"]
        out = forward(o, z)
        function = torch.sigmoid if getattr(norm, "activation", "silu") == "sigmoid" else F.silu
        for change in own:
            y = out.reshape(-1, heads, out.shape[-1])
            new = torch.zeros_like(y)
            if change.word == "mean_gate":
                one = torch.ones_like(z)
                mean = function(z.float()).reshape(y.shape).mean(0, keepdim=True)
                new = forward(o, one).reshape(y.shape) * (mean / function(one[..., :1].float().flatten()[0])).to(
                    y.dtype
                )
            out = torch.where(_heads(y, change, 1), new, y).view(out.shape)
        return out

    wrapped.wrap(norm, around)
