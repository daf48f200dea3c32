# SPDX-License-Identifier: Apache-2.0
"""Host code for convolution_kernels.py: creates outputs, chooses tiles and launches kernels."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import convolution_kernels, launch
from .launch import Launcher, launch_kernel, on_device_of

# Tile (tokens, channels) of a program: _FEW for at most 16 tokens, otherwise _TILE. _WARPS: warps of a program.
_TILE, _FEW, _WARPS = (64, 64), (16, 64), 4


class Inputs(NamedTuple):
    """Tensors of a call. x is (B,T,C), or (T,C) without a batch."""

    x: Tensor
    weight: Tensor
    bias: Tensor | None = None
    state: Tensor | None = None
    cu_seqlens: Tensor | None = None


class Options(NamedTuple):
    """Options of a call. `tile` overrides the number of tokens and channels that a program computes."""

    activation: str = "silu"
    tile: tuple[int, int] | None = None


def _strides(name: str, x: Tensor | None, letters: str) -> dict[str, int]:
    """Returns the strides of a tensor in elements, as kernel arguments NAME_x for each letter x.

    A stride is 0 if the tensor is absent or lacks this dimension.
    """
    found = [0] * len(letters) if x is None else [0] * (len(letters) - x.dim()) + list(x.stride())
    return {f"{name}_{letter}": stride for letter, stride in zip(letters, found)}


class _Call:
    """Sizes of a call, and the arguments that its kernels share."""

    def __init__(self, inputs: Inputs, options: Options, launcher: Launcher):
        x, weight, bias, state, cu_seqlens = inputs
        self.launcher = launcher
        self.batch = x.shape[0] if x.dim() == 3 else 1
        self.tokens, self.channels = x.shape[-2:]
        self.taps = weight.shape[1]
        self.sequences = self.batch if cu_seqlens is None else cu_seqlens.shape[0] - 1
        block_t, self.block_c = options.tile or (_FEW if self.tokens <= _FEW[0] else _TILE)
        # A sequence without tokens also needs a tile, whose program writes the sequence's state.
        tiles = max(1, -(-self.tokens // block_t)) if cu_seqlens is None else self.tokens // block_t + self.sequences
        self.tiles = tiles
        self.arguments = {
            **{"x": x, "weight": weight, "bias": bias, "state": state, "cu_seqlens": cu_seqlens},
            **_strides("x", x, "btc"),
            **_strides("weight", weight, "ck"),
            **_strides("bias", bias, "c"),
            **_strides("state", state, "nkc"),
            "T": self.tokens,
            "C": self.channels,
            "n_sequences": self.sequences,
            "tiles": tiles,
            "K": self.taps,
            "SILU": options.activation == "silu",
            "BLOCK_T": block_t,
            "BLOCK_C": self.block_c,
        }

    def launch(self, name: str, **more: Any) -> None:
        """Launches a program for each tile of tokens and block of channels."""
        programs = self.tiles * self.batch * -(-self.channels // self.block_c)
        launch_kernel(
            self.launcher, getattr(convolution_kernels, name), programs, {**self.arguments, **more}, _WARPS, 1
        )

    def state_shape(self) -> tuple[int, int, int]:
        return self.sequences, self.taps - 1, self.channels


def forward(
    inputs: Inputs, options: Options, keep_state: bool = False, launcher: Launcher = lambda kernel: kernel
) -> tuple[Tensor, Tensor | None]:
    """Returns y, with x's shape and dtype, and the new state (N,K−1,C), which holds the last K−1 rows.

    The new state has the dtype of the old state. Without an old state, it has the dtype of x. If keep_state is false,
    it is None.
    """
    x = inputs.x
    y = launch.new(x, tuple(x.shape))
    with on_device_of(x):
        call = _Call(inputs, options, launcher)
        new_state = launch.new(x if inputs.state is None else inputs.state, call.state_shape()) if keep_state else None
        call.launch("convolution_forward", y=y, new_state=new_state)
    return y, new_state


class Gradients(NamedTuple):
    """Gradients of the inputs. Gradients that are not wanted are None."""

    x: Tensor | None
    weight: Tensor | None
    bias: Tensor | None
    state: Tensor | None


def backward(
    dy: Tensor,
    dstate: Tensor | None,
    inputs: Inputs,
    options: Options,
    wanted: tuple[str, ...] = Gradients._fields,
    launcher: Launcher = lambda kernel: kernel,
) -> Gradients:
    """Returns the gradients `wanted`. dy and dstate are the gradients of y and of the new state.

    Recomputes the sums before the activation.
    """
    x = inputs.x
    f32 = torch.float32
    wanted = tuple(name for name in wanted if getattr(inputs, name) is not None)
    found = dict.fromkeys(Gradients._fields)
    with on_device_of(x):
        call = _Call(inputs, options, launcher)
        parts = (call.batch * call.tiles, call.taps, call.channels)
        dweight = launch.new(x, parts, f32) if "weight" in wanted else None
        dbias = launch.new(x, (parts[0], parts[2]), f32) if "bias" in wanted else None
        rows = {"x", "state"} & set(wanted)
        ds = launch.new(x, tuple(x.shape), f32) if rows and options.activation == "silu" else None
        if not (dweight is dbias is ds is None):
            call.launch(
                "convolution_backward_sums", dy=dy, dsums=ds, dweight=dweight, dbias=dbias, **_strides("dy", dy, "btc")
            )
        if rows:
            ds = dy if ds is None else ds
            found["x"] = launch.new(x, tuple(x.shape)) if "x" in wanted else None
            found["state"] = launch.new(inputs.state, call.state_shape()) if "state" in wanted else None
            call.launch(
                "convolution_backward_rows",
                ds=ds,
                dnew_state=dstate,
                dx=found["x"],
                dstate=found["state"],
                **_strides("ds", ds, "btc"),
                **_strides("dnew_state", dstate, "nkc"),
            )
    if dweight is not None:
        found["weight"] = dweight.sum(0).mT.to(inputs.weight.dtype)
    if dbias is not None:
        found["bias"] = dbias.sum(0).to(inputs.bias.dtype)
    return Gradients(**found)
