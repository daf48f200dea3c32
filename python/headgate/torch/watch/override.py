# SPDX-License-Identifier: Apache-2.0
"""Temporarily changes the attention of single heads and layers of a live transformers model."""

import contextlib
import functools
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from numbers import Integral, Real
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..gates import GATE_FUNCTIONS
from ..pending_gate import MATRIX, PARAMETER, pending_gate_of, store_pending_gate
from .call import AttentionCall, geometry_of, scores
from .gates import READERS, gated_norm_of
from .handle import LOOKS_LIKE_ATTENTION, Watch, in_backward
from .statistics import BLOCK_ELEMENTS
from .transformers import call_of
from .wrapping import Around, Wrapped

WORDS = ("closed", "open", "mean_gate", "no_first_token", "sink_logit")
"""Names of changes to attention. headgate.torch.override() describes them."""
OF_GATES = ("open", "mean_gate")


class Change(NamedTuple):
    word: str
    head: int | None  # number of the changed head; None means all heads of the layer
    value: float = 0.0

    def contradicts(self, other: "Change") -> bool:
        """Returns whether both changes set the gate, or the sink logit, of a head to different values."""
        same_head = self.head == other.head or None in (self.head, other.head)
        if self.word == other.word:
            return same_head and self.value != other.value
        return same_head and {self.word, other.word} == set(OF_GATES)


def changes_of(model: nn.Module, given: Any) -> dict[nn.Module, list[Change]]:
    """Returns the changes for each attention module. Raises ValueError for an unknown layer or change."""
    if not isinstance(given, Mapping):
        raise ValueError(f"override: changes must be a dict {{layer: change}}, got {given!r}")
    names = {
        name: module for name, module in model.named_modules() if LOOKS_LIKE_ATTENTION.search(type(module).__name__)
    }
    found: dict[nn.Module, list[Change]] = {}
    for key, what in given.items():
        layer, head = _layer_and_head(key)
        own = found.setdefault(_module_of(names, layer), [])
        change = _change_of(key, what, head)
        if any(change.contradicts(other) for other in own):
            raise ValueError(f"override: {what!r} for {key!r} contradicts another change of the same head")
        own.append(change)
    return found


def _is_number(x: Any) -> bool:
    return isinstance(x, Integral) and not isinstance(x, bool)


def _layer_and_head(key: Any) -> tuple[Any, int | None]:
    """Splits a key of `changes` into the layer and the head. The head is None for all heads."""
    if not isinstance(key, tuple):
        return key, None
    if len(key) != 2:
        raise ValueError(f"override: the key {key!r} must be a layer or (layer, head)")
    layer, head = key
    if not _is_number(head) or head < 0:
        raise ValueError(f"override: the head in {key!r} must be a whole number from 0 on, got {head!r}")
    return layer, int(head)


def _module_of(names: dict[str, nn.Module], layer: Any) -> nn.Module:
    """Returns the attention module with a name, or the only one with a layer number. Otherwise raises ValueError."""
    fits = [layer] if isinstance(layer, str) and layer in names else []
    if _is_number(layer):
        fits = [name for name, module in names.items() if getattr(module, "layer_idx", None) == layer]
        # Prefers a module to one that contains it, such as a decoder layer.
        fits = [name for name in fits if not any(other.startswith(name + ".") for other in fits)]
    if not fits:
        raise ValueError(f"override: {layer!r} is no layer with attention: give a module's name, or its number")
    if len(fits) > 1:
        raise ValueError(f"override: {layer} is the number of several attention modules: name one of {', '.join(fits)}")
    return names[fits[0]]


def _change_of(key: Any, what: Any, head: int | None) -> Change:
    """Returns the change that `what`, a word or (word, value), describes. `key` is for errors."""
    word, *values = what if isinstance(what, tuple) and what else (what,)
    if not isinstance(word, str) or word not in WORDS:
        raise ValueError(f"override: '{word}' is none of {', '.join(WORDS)}")
    if not isinstance(what, tuple):
        return Change(word, head)
    if word != "sink_logit":
        raise ValueError(f"override: '{word}' takes no value, got {what!r} for {key!r}")
    if len(values) != 1 or not isinstance(values[0], Real) or isinstance(values[0], bool):
        raise ValueError(f"override: ('sink_logit', x) takes one number, got {what!r} for {key!r}")
    if not math.isfinite(values[0]):
        raise ValueError(f"override: the sink logit must be finite, got {what!r} for {key!r}")
    return Change(word, head, float(values[0]))


class _Run:
    """Records which changes of a model took effect. At its end, the block refuses changes that had no effect, and
    backward passes that would run without the changes.
    """

    def __init__(self, model: nn.Module, changes: dict[nn.Module, list[Change]]) -> None:
        self.model, self.changes = model, changes
        self.names = {module: name for name, module in model.named_modules()}
        self.ran: set[nn.Module] = set()  # modules that ran, among the model and the changed modules
        self.calls: dict[nn.Module, None] = {}  # modules that called the attention interface, in order
        self.applied: set[tuple[nn.Module, Change]] = set()
        self.failed = False  # whether an error ended a pass, so that later layers did not run
        self.has_gradients = False  # whether the model ran with gradients
        self.to_repeat: dict[nn.Module, int] = {}  # number of passes that a backward pass is to compute again

    def apply(self, module: nn.Module, changes: list[Change]) -> list[Change]:
        """Records that changes of a module took effect. Returns them in the order to apply: "closed" comes last."""
        self.applied.update((module, change) for change in changes)
        return sorted(changes, key=lambda change: change.word == "closed")

    def around(self, module: nn.Module) -> Around:
        """Returns a function that records runs of a module, for Wrapped.wrap()."""

        def around(forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            self.ran.add(module)
            if module is self.model:
                self.has_gradients = torch.is_grad_enabled()
            elif in_backward():
                self.to_repeat[module] = self.to_repeat.get(module, 0) - 1
            elif self.has_gradients and not torch.is_grad_enabled():  # as in a reentrant checkpoint
                self.to_repeat[module] = self.to_repeat.get(module, 0) + 1
            try:
                return forward(*args, **kwargs)
            except BaseException:
                self.failed = True
                raise

        return around

    def check(self) -> None:
        """Raises ValueError for a change without effect, and for a layer that a later backward pass would compute
        again.
        """
        if self.failed or not (self.ran or any(module in self.names for module in self.calls)):
            return
        for module, own in self.changes.items():
            for change in own:
                if (module, change) not in self.applied:
                    raise ValueError(self._why_not_applied(module, change))
        repeats = any(count > 0 for count in self.to_repeat.values())
        if repeats and any(getattr(part, "gradient_checkpointing", False) for part in self.model.modules()):
            raise ValueError(
                "override: gradient checkpointing with use_reentrant=True computes changed layers again: call "
                "backward() within the `with` block"
            )

    def _why_not_applied(self, module: nn.Module, change: Change) -> str:
        name = self.names[module]
        inner = [self.names[other] for other in self.calls if self.names.get(other, "").startswith(name + ".")]
        if module not in self.ran:
            why = "the module did not run"
        elif module in self.calls:
            why = "its attention calls have no gate"
        else:
            why = "it did not call transformers' attention interface" + (f", but '{inner[0]}' did" if inner else "")
        return f"override: '{change.word}' for '{name}' ({type(module).__name__}) had no effect: {why}"


@contextlib.contextmanager
def overridden(model: nn.Module, given: dict[Any, Any]) -> Iterator[None]:
    """Applies changes during a `with` block. Compiled modules run uncompiled in the block."""
    modeling = sys.modules.get("transformers.modeling_utils")
    if modeling is None:
        raise ValueError("override: only models of transformers are supported")
    model = getattr(model, "_orig_mod", model)  # of torch.compile
    changes = changes_of(model, given)
    run, watch, wrapped = _Run(model, changes), Watch(model), Wrapped()

    def around(original: Callable[..., Any], table_name: tuple[Any, ...], options: dict[str, Any]) -> Any:
        function = original(*table_name, **options)
        name = table_name[1] if len(table_name) > 1 else options["attn_implementation"]

        @functools.wraps(function, updated=())
        def changed(*args: Any, **kwargs: Any) -> Any:
            module = args[0] if args else kwargs["module"]
            run.calls[module] = None
            own = [change for change in changes.get(module, ()) if change.word not in OF_GATES]
            of_gate = [change for change in changes.get(module, ()) if change.word in OF_GATES]
            pending = pending_gate_of(module)
            gate = None if pending is None else _change_pending_gate(module, pending, of_gate, run)
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
            return _changed(y, call, run.apply(module, own), gate), *rest

        return changed

    with contextlib.ExitStack() as stack:
        stack.callback(wrapped.undo)
        for module in dict.fromkeys((*changes, model)):
            wrapped.wrap(module, run.around(module))
        for module, own in changes.items():
            of_gate = [change for change in own if change.word in OF_GATES]
            norm = gated_norm_of(module)
            if norm is not None:
                _change_linear(module, norm, own, wrapped, run)
            elif of_gate:
                _change_gate(module, of_gate, wrapped, run)
        wrapped.replace(modeling.AttentionInterface, "get_interface", around)
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        yield
    run.check()


def _heads(x: Tensor, *changes: Change) -> Tensor:
    """Returns a mask (H,1) of the heads that any of the changes selects. x is (…,H,·).

    Raises ValueError for a head that the layer lacks.
    """
    chosen = torch.zeros(x.shape[-2], 1, dtype=torch.bool, device=x.device)
    for change in changes:
        if change.head is not None and change.head >= len(chosen):
            raise ValueError(f"override: there is no head {change.head} in a layer of {len(chosen)} heads")
        chosen[slice(None) if change.head is None else change.head] = True
    return chosen


def _change_pending_gate(
    module: nn.Module, pending: dict[str, Any], own: list[Change], run: _Run
) -> tuple[Tensor, str]:
    """Applies changes to the gate that a retrofitted module has stored for a call.

    Returns the gate (B,T,Hq,1|Dv) and its operation, "mul" or "add".
    """
    z, operation = pending["gate"], pending["gate_op"]
    gate = GATE_FUNCTIONS[pending["gate_fn"]].compute(z.to(torch.promote_types(z.dtype, torch.float32)))
    for change in run.apply(module, own):
        gate = torch.where(_heads(gate, change), _constant_gate(gate, change.word), gate)
    if own:
        store_pending_gate(module, {"gate": gate, "gate_fn": "identity", "gate_op": operation})
    return gate, operation


def _changed(y: Tensor, call: AttentionCall, own: list[Change], gate: tuple[Tensor, str] | None) -> Tensor:
    """Returns y (B,T,Hq,Dv) with new outputs for the heads that changes select. Closed heads are 0.

    `gate` is the gate of a retrofitted module with its operation, "mul" or "add". It is None for other modules.
    """
    closed, again = ([change for change in own if (change.word == "closed") == word] for word in (True, False))
    if again:
        new = _attend(y, call, again)
        if gate is not None:
            new = new + gate[0] if gate[1] == "add" else new * gate[0]
        y = torch.where(_heads(y, *again), new.to(y.dtype), y)
    return y.masked_fill(_heads(y, *closed), 0.0).contiguous()


def _attend(y: Tensor, call: AttentionCall, own: list[Change]) -> Tensor:
    """Computes attention (B,T,Hq,Dv) again, without the first token or with sink logits, one block of queries at a
    time. The changes select heads of y (B,T,Hq,Dv).

    The result has gradients. For the backward pass, autograd stores the weights of all blocks, T × S per head.
    """
    without_first = _heads(y, *(change for change in own if change.word == "no_first_token"))[..., None]
    added = None  # (Hq,1,1): sink logits that the changes add, -inf for other heads
    for change in own:
        if change.word == "sink_logit":
            if added is None:
                wide = torch.promote_types(call.q.dtype, torch.float32)
                added = call.q.new_full((y.shape[2], 1, 1), -torch.inf, dtype=wide)
            added = added.masked_fill(_heads(y, change)[..., None], change.value)
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
            of_call = call.sink_rows(s.dtype)
            sinks.append((of_call if of_call.shape[-1] == 1 else of_call[..., rows])[..., None])
        hidden = (key == first[:, rows, None]) & (geometry.own_key != first)[:, rows, None]
        s = s.masked_fill(hidden[:, None] & without_first, -torch.inf)
        if added is not None:
            sinks.append(added)
        s = torch.cat((s, *(x.expand(B, Hq, s.shape[2], 1) for x in sinks)), -1)
        p = torch.softmax(s.masked_fill((s == -torch.inf).all(-1, keepdim=True), 0.0), -1)[..., :S]
        parts.append(p.to(v.dtype) @ v)
    return torch.cat(parts, 2).transpose(1, 2)


def _constant_gate(gate: Tensor, word: str) -> Tensor:
    """Returns the gate (B,T,H,·) after a change. It is 1 for "open", otherwise the mean over sequences and tokens."""
    return torch.ones_like(gate) if word == "open" else gate.mean((0, 1), keepdim=True).expand_as(gate)


def _change_gate(module: nn.Module, own: list[Change], wrapped: Wrapped, run: _Run) -> None:
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
        for change in run.apply(module, own):
            constant = torch.logit(_constant_gate(z.double().sigmoid(), change.word), 1e-12).to(z.dtype)
            z = torch.where(_heads(z, change), constant, z)
        return reader.write(module, out, z)

    wrapped.wrap(getattr(module, reader.submodule), around)


def _change_linear(module: nn.Module, norm: nn.Module, own: list[Change], wrapped: Wrapped, run: _Run) -> None:
    """Wraps the gated norm after linear attention. The norm's output is norm(o) · g(z)."""
    heads = getattr(module, "num_v_heads", None) or module.num_heads
    for change in own:
        if change.word not in ("closed", "mean_gate"):
            raise ValueError(f"override: '{change.word}' is not for linear attention: closed and mean_gate are")
        if change.head is not None and change.head >= heads:
            raise ValueError(f"override: there is no head {change.head} in a layer of {heads} heads")

    def around(forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        o, z = args[0], args[1] if len(args) > 1 else kwargs["gate"]
        out = forward(o, z)
        function = torch.sigmoid if getattr(norm, "activation", "silu") == "sigmoid" else F.silu
        for change in run.apply(module, own):
            y = out.reshape(-1, heads, out.shape[-1])
            new = torch.zeros_like(y)
            if change.word == "mean_gate":
                one = torch.ones_like(z)
                mean = function(z.float()).reshape(y.shape).mean(0, keepdim=True)
                new = forward(o, one).reshape(y.shape) * (mean / function(one[..., :1].float().flatten()[0])).to(
                    y.dtype
                )
            out = torch.where(_heads(y, change), new, y).view(out.shape)
        return out

    wrapped.wrap(norm, around)
