# SPDX-License-Identifier: Apache-2.0
"""Reads the gates of attention outputs from the submodules that compute them. The values are those after the gate
function.
"""

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .wrapping import Wrapped

if TYPE_CHECKING:
    from .handle import Watch


BINS = 20
"""Number of bins in a histogram of gates."""


def bins_of(gate: Tensor) -> Tensor:
    """Returns the bin of each gate in BINS equal bins of [0,1].

    Gates outside of [0,1] count in the nearest bin. NaN counts in the first bin.
    """
    return (gate.double() * BINS).floor().nan_to_num(0.0).clamp(0, BINS - 1).long()


class Reader(NamedTuple):
    """Describes where attention modules of some classes compute their sigmoid gate.

    `read` takes the output of `submodule` and returns the gate's logits (B,T,H,1|D). `write` returns a copy of that
    output with other logits.
    """

    classes: re.Pattern[str]
    submodule: str
    read: Callable[[nn.Module, Tensor], Tensor]
    write: Callable[[nn.Module, Tensor, Tensor], Tensor]


def _split(attention: nn.Module, out: Tensor) -> Tensor:
    """Returns the output of q_proj as (B,T,H,2,D), where the fourth dimension holds q and the gate."""
    return out.unflatten(-1, (-1, 2, attention.head_dim))


READERS = (
    Reader(  # q_proj has rows [q D | gate D] for each head
        re.compile(r"Qwen3(Next|_5|_5Moe)Attention$"),
        "q_proj",
        lambda attention, out: _split(attention, out)[..., 1, :],
        lambda attention, out, z: torch.stack((_split(attention, out)[..., 0, :], z), -2).flatten(-3),
    ),
    Reader(
        re.compile(r"(Afmoe|MuseSpark\w*|MuseGlimmer\w*)Attention$"),
        "gate_proj",
        lambda attention, out: out.unflatten(-1, (-1, attention.head_dim)),
        lambda _, out, z: z.flatten(-2),
    ),
    Reader(
        re.compile(r"Lfm3\w*Attention$"),
        "g_proj",
        lambda _, out: out.unsqueeze(-1),
        lambda _, out, z: z.squeeze(-1),
    ),
)
"""Model families in which a submodule of the attention module outputs the gate's logits. Headgate's layers and
retrofitted models need no Reader: their attention calls have the gate as an argument."""
GATED_NORM = re.compile(r"norm\w*gated|gated\w*norm", re.IGNORECASE)
DELTA_NET = re.compile(r"deltanet|deltaattention", re.IGNORECASE)


def gated_norm_of(attention: nn.Module) -> nn.Module | None:
    """Returns the gated norm after a module's linear attention. Returns None for other modules."""
    if not DELTA_NET.search(type(attention).__name__):
        return None
    return next((child for child in attention.children() if GATED_NORM.search(type(child).__name__)), None)


def install(watch: "Watch", wrapped: Wrapped, given: dict[str, Callable[[Tensor], Tensor]]) -> None:
    """Wraps the modules from whose outputs gates are read. `given` maps names of modules to functions that read a gate
    (B,T,H,1|D) from the module's output.
    """
    names = list(watch.modules())
    for attention, name in names:
        for reader in READERS:
            if reader.classes.search(type(attention).__name__) and hasattr(attention, reader.submodule):
                _wrap_output(watch, wrapped, attention, getattr(attention, reader.submodule), reader)
        norm = gated_norm_of(attention)
        if norm is not None:
            _wrap_norm(watch, wrapped, name, norm)
    for name, function in given.items():
        _wrap_given(watch, wrapped, name, function)


def _wrap_output(watch: "Watch", wrapped: Wrapped, attention: nn.Module, part: nn.Module, reader: Reader) -> None:
    def around(forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        out = forward(*args, **kwargs)
        if watch.is_measuring():
            with torch.no_grad(), torch._C.DisableTorchFunction():
                watch.store_gate(attention, reader.read(attention, out.detach()).sigmoid().transpose(1, 2))
        return out

    wrapped.wrap(part, around)


def _wrap_given(watch: "Watch", wrapped: Wrapped, name: str, function: Callable[[Tensor], Tensor]) -> None:
    def around(forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        out = forward(*args, **kwargs)
        if watch.is_measuring():
            with torch.no_grad():
                gate = function(out.detach() if isinstance(out, Tensor) else out)
            if gate.dim() != 4:
                raise ValueError(f"watch: gates['{name}'] returned {tuple(gate.shape)} but must be (B,T,H,D or 1)")
            watch.add_gate(name, "gate", gate.transpose(1, 2))
        return out

    wrapped.wrap(watch.model.get_submodule(name), around)


def _wrap_norm(watch: "Watch", wrapped: Wrapped, name: str, norm: nn.Module) -> None:
    """Reads the output gate of linear attention from the arguments of the following gated norm."""

    def around(forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        z = args[1] if len(args) > 1 else kwargs.get("gate")
        heads = watch.linear_heads.get(name)
        if z is not None and heads is not None and watch.is_measuring():
            with torch.no_grad(), torch._C.DisableTorchFunction():
                word = getattr(norm, "activation", None) or getattr(norm, "gate_fn", "silu")
                x = z.detach().reshape(heads[0], heads[1], heads[2], -1)
                gate = (x.sigmoid() if word == "sigmoid" else F.silu(x)).abs()
                watch.add_gate(name, "output_gate", gate.transpose(1, 2))
        return forward(*args, **kwargs)

    wrapped.wrap(norm, around)
