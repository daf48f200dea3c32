# SPDX-License-Identifier: Apache-2.0
"""Host code for norm_kernels.py: creates outputs, chooses tiles and launches kernels."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import launch, norm_kernels
from .launch import Launcher, block_of_features, launch_kernel, on_device_of, sizes, strides

# Number of elements that a program computes, and its number of warps.
_ELEMENTS, _WARPS = 4096, 4


class Inputs(NamedTuple):
    """Tensors of a call, with dimensions in the order of Options.layout. Without a batch, they are (H,T,D) or
    (T,H,D)."""

    x: Tensor
    weight: Tensor | None = None
    gate: Tensor | None = None


class Options(NamedTuple):
    """Options of a call. `tile` overrides the number of rows that a program computes."""

    layout: str = "bhtd"
    eps: float = 1e-6
    gate_fn: str = "silu"
    tile: int | None = None


def _used(inputs: Inputs, options: Options) -> Inputs:
    """Returns the inputs that the kernels read: without the gate if gate_fn is "none"."""
    return inputs._replace(gate=None) if options.gate_fn == "none" else inputs


class _Call:
    """Sizes of a call, and the arguments that both kernels share."""

    def __init__(self, inputs: Inputs, options: Options, launcher: Launcher):
        x, weight, gate = inputs
        self.launcher = launcher
        self.batch, self.heads, self.tokens, self.features = sizes(x, options.layout)
        block_d = block_of_features(self.features)
        block_t = options.tile or max(1, _ELEMENTS // block_d)
        self.tiles = -(-self.tokens // block_t)
        # Factor for rows whose squares would underflow. It is 1 if eps is so large that such squares are negligible.
        up = 2.0**90 if options.eps < 2.0**-53 else 1.0
        self.arguments = {
            **{"x": x, "weight": weight, "gate": gate},
            **strides("x", x, options.layout),
            **strides("gate", gate, options.layout),
            "weight_h": weight.stride(0) if weight is not None and weight.dim() == 2 else 0,
            "weight_d": 0 if weight is None else weight.stride(-1),
            "T": self.tokens,
            "H": self.heads,
            "tiles": self.tiles,
            "eps": options.eps,
            "up": up,
            "eps_up": options.eps * up * up,
            "FN": options.gate_fn,
            "D": self.features,
            "BLOCK_T": block_t,
            "BLOCK_D": block_d,
        }

    def launch(self, name: str, **more: Any) -> None:
        """Launches a program for each tile of rows of each head."""
        programs = self.tiles * self.heads * self.batch
        launch_kernel(self.launcher, getattr(norm_kernels, name), programs, {**self.arguments, **more}, _WARPS, 1)


def forward(inputs: Inputs, options: Options, launcher: Launcher = lambda kernel: kernel) -> Tensor:
    """Returns y, with x's shape and dtype."""
    inputs = _used(inputs, options)
    x = inputs.x
    y = launch.new(x, tuple(x.shape))
    with on_device_of(x):
        _Call(inputs, options, launcher).launch("norm_forward", y=y, **strides("y", y, options.layout))
    return y


class Gradients(NamedTuple):
    """Gradients of the inputs. Gradients that are not wanted are None."""

    x: Tensor | None
    weight: Tensor | None
    gate: Tensor | None


def backward(
    dy: Tensor,
    inputs: Inputs,
    options: Options,
    wanted: tuple[str, ...] = Gradients._fields,
    launcher: Launcher = lambda kernel: kernel,
) -> Gradients:
    """Returns the gradients `wanted`. dy is the gradient of y. Recomputes r."""
    inputs = _used(inputs, options)
    x, weight, gate = inputs
    found = {name: launch.new(x, tuple(x.shape)) for name in wanted if name == "x"}
    if "gate" in wanted and gate is not None:
        found["gate"] = launch.new(gate, tuple(gate.shape))
    with on_device_of(x):
        call = _Call(inputs, options, launcher)
        parts = None
        if "weight" in wanted and weight is not None:
            parts = launch.new(x, (call.batch, call.heads, call.tiles, call.features), torch.float32)
        given = {"dx": found.get("x"), "dgate": found.get("gate"), "dweight": parts}
        own = {**strides("dy", dy, options.layout)}
        for name in ("dx", "dgate"):
            own |= strides(name, given[name], options.layout)
        call.launch("norm_backward", dy=dy, **given, **own)
    if parts is not None:
        found["weight"] = parts.sum((0, 2) if weight.dim() == 2 else (0, 1, 2)).to(weight.dtype)
    return Gradients(*(found.get(name) for name in Gradients._fields))
