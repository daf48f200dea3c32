# SPDX-License-Identifier: Apache-2.0
"""Host code for kernels.py: creates outputs, chooses tiles and launches kernels.

This file never reads elements of a GPU tensor, so no call waits for the GPU. The arguments are those of
gated_attention. The caller has checked them.
"""

import contextlib
import functools
import inspect
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from . import kernels
from .tiles import KERNELS, Tile, architecture, tile_for

LOG2E = 1.4426950408889634
# Upper bound for windows. A window of this size hides no key. Its sum with a query offset fits in 64 bits.
_WIDEST = 1 << 61


class Inputs(NamedTuple):
    """Tensors of a call, with dimensions in the order of Options.layout. Without a batch, they are (H,T,D) or
    (T,H,D)."""

    q: Tensor
    k: Tensor
    v: Tensor
    gate: Tensor | None = None
    key_lengths: Tensor | None = None
    sinks: Tensor | None = None
    query_offsets: Tensor | None = None
    cu_seqlens_q: Tensor | None = None
    cu_seqlens_k: Tensor | None = None


class Options(NamedTuple):
    """Options of a call. `tiles` maps names of kernels to tiles, which override those in tiles.py."""

    layout: str = "bhtd"
    scale: float | None = None
    softcap: float = 0.0
    causality: str = "none"
    window_left: int = -1
    window_right: int = -1
    gate_fn: str = "sigmoid"
    gate_op: str = "mul"
    tiles: dict[str, Tile] | None = None


Launcher = Callable[[Any], Any]
"""Function that wraps a kernel before its launch. PyTorch operators use torch.library.wrap_triton, so that
torch.compile can trace the kernels."""


def new(like: Tensor, shape: tuple[int, ...], dtype: torch.dtype | None = None) -> Tensor:
    """Creates an uninitialized tensor for a kernel to write. All outputs of kernels are created here."""
    return like.new_empty(shape, dtype=dtype)


def strides(name: str, x: Tensor | None, layout: str) -> dict[str, Any]:
    """Returns the strides of a tensor in elements, as kernel arguments NAME_b, NAME_h, NAME_t and NAME_d. All are 0 if
    the tensor is absent.
    """
    if x is None:
        return {f"{name}_{letter}": 0 for letter in "bhtd"}
    batch, one, other, feature = (0, *x.stride()) if x.dim() == 3 else x.stride()
    head, row = (one, other) if layout == "bhtd" else (other, one)
    return {f"{name}_b": batch, f"{name}_h": head, f"{name}_t": row, f"{name}_d": feature}


def sink_strides(sinks: Tensor | None) -> dict[str, Any]:
    """Returns the strides of sinks (H), (H,T) or (B|1,H,T) in elements. A stride is 0 if batches or queries share their
    sinks.
    """
    batch, head, row = 0, 0, 0
    if sinks is not None and sinks.dim() == 1:
        head = sinks.stride(0)
    elif sinks is not None:
        head, row = sinks.stride()[-2:]
        batch = sinks.stride(0) if sinks.dim() == 3 and sinks.shape[0] != 1 else 0
    return {"sinks_b": batch, "sinks_h": head, "sinks_t": row}


def sizes(x: Tensor, layout: str) -> tuple[int, int, int, int]:
    """Returns the sizes (batch, heads, rows, features) of x."""
    batch, one, other, features = (1, *x.shape) if x.dim() == 3 else x.shape
    return (batch, one, other, features) if layout == "bhtd" else (batch, other, one, features)


def lse_shape(q: Tensor, layout: str) -> tuple[int, ...]:
    """Returns the shape of lse: (B,H,T), or (H,T) without a batch."""
    batch, heads, rows, _ = sizes(q, layout)
    return (batch, heads, rows) if q.dim() == 4 else (heads, rows)


def gate_shape(gate: Tensor | None, features: int) -> str:
    """Returns the kind of gate as the kernels name it:

    - "headwise": one logit for each head
    - "elementwise": one logit for each feature of v
    - "none": no gate
    """
    if gate is None:
        return "none"
    return "headwise" if gate.shape[-1] == 1 and features != 1 else "elementwise"


def block_of_features(features: int) -> int:
    return max(16, triton.next_power_of_2(features))


@functools.cache
def _parameters(kernel: Any) -> tuple[str, ...]:
    return tuple(inspect.signature(kernel.fn).parameters)


@functools.cache
def _interpreted() -> bool:
    return not isinstance(kernels.attention_forward, triton.runtime.JITFunction)


def _target() -> tuple[str, int | str]:
    """Returns Triton's backend, such as "cuda" or "hip", and the architecture of the current device."""
    if _interpreted():
        return "interpreter", ""
    target = triton.runtime.driver.active.get_current_target()
    return target.backend, target.arch


def backend() -> str:
    return _target()[0]


def _column() -> str:
    return architecture(*_target())


def on_device_of(x: Tensor) -> contextlib.AbstractContextManager[Any]:
    """Returns a context in which the device of x is the current device, on which Triton launches kernels."""
    return torch.cuda.device(x.device) if x.is_cuda and torch.cuda.is_available() else contextlib.nullcontext()


_INDICES = ("key_lengths", "query_offsets", "cu_seqlens", "cu_seqlens_q", "cu_seqlens_k")
"""Inputs whose strides kernels do not take."""


def launch_kernel(
    launcher: Launcher, kernel: Any, programs: int, given: dict[str, Any], num_warps: int, num_stages: int
) -> None:
    """Launches `kernel` with those arguments in `given` that the kernel has as parameters.

    Makes index arrays contiguous. Does nothing if `programs` is 0.
    """
    if programs == 0:
        return
    arguments = {parameter: given[parameter] for parameter in _parameters(kernel)}
    for name in _INDICES:
        if arguments.get(name) is not None:
            arguments[name] = arguments[name].contiguous()
    launcher(kernel)[(programs,)](**arguments, num_warps=num_warps, num_stages=num_stages)


class _Call:
    """Sizes of a call, and arguments that its kernels share. The arguments are keyed by their names in kernels.py."""

    def __init__(self, inputs: Inputs, options: Options, launcher: Launcher):
        q, k, v, gate = inputs[:4]
        layout = options.layout
        self.inputs, self.options, self.launcher = inputs, options, launcher
        self.batch, self.heads, self.queries, D = sizes(q, layout)
        _, self.kv_heads, self.keys, DV = sizes(v, layout)
        self.features = max(D, DV)
        scale = 1 / math.sqrt(D) if options.scale is None else options.scale
        causal = options.causality == "causal"
        right = 0 if causal else options.window_right  # a causal call has right window 0: no query sees a later key
        capped = options.softcap > 0
        self.sequences = None if inputs.cu_seqlens_q is None else inputs.cu_seqlens_q.shape[0] - 1
        self.gate = gate_shape(gate, DV)
        self.arguments = {
            **inputs._asdict(),
            **strides("q", q, layout),
            **strides("k", k, layout),
            **strides("v", v, layout),
            **strides("gate", gate, layout),
            **sink_strides(inputs.sinks),
            "T": self.queries,
            "S": self.keys,
            "n_sequences": self.sequences or 0,
            "left": min(options.window_left, _WIDEST),
            "right": min(right, _WIDEST),
            "inner": scale / options.softcap if capped else 0.0,
            "outer": LOG2E * (options.softcap if capped else scale),
            "scale": scale,
            "GROUP": self.heads // self.kv_heads,
            "D": D,
            "DV": DV,
            "BLOCK_D": block_of_features(D),
            "BLOCK_DV": block_of_features(DV),
            "GATE": self.gate,
            "FN": options.gate_fn,
            "ADD": options.gate_op == "add",
            "LEFT": options.window_left >= 0,
            "RIGHT": right >= 0,
            "CAP": capped,
            # Computes f32 products in f32, not TF32. Does not affect 16-bit types.
            "PRECISION": "ieee",
        }

    def launch(self, name: str, over_keys: bool = False, **more: Any) -> None:
        """Launches a program for each head and tile of queries. If `over_keys` is true, launches a program for each
        key/value head and tile of keys instead.
        """
        tile = (self.options.tiles or {}).get(name)
        if tile is None:
            tile = tile_for(name, _column(), self.inputs.q.element_size(), self.features)
        rows, block, heads = (
            (self.keys, tile.block_n, self.kv_heads) if over_keys else (self.queries, tile.block_m, self.heads)
        )
        tiles = -(-rows // block) if self.sequences is None else rows // block + self.sequences
        given = {**self.arguments, **more, "H": heads, "tiles": tiles}
        given |= {"BLOCK_M": tile.block_m, "BLOCK_N": tile.block_n}
        programs = 0 if rows == 0 else tiles * heads * self.batch
        launch_kernel(self.launcher, getattr(kernels, name), programs, given, tile.num_warps, tile.num_stages)


def forward(
    inputs: Inputs, options: Options, keep_attn: bool = False, launcher: Launcher = lambda kernel: kernel
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Returns y, lse and attn.

    - y: (B,H,T,Dv) in q's dtype
    - lse: (B,H,T) in f32
    - attn: the output before the gate, with y's shape; None if keep_attn is false
    """
    q, v, layout = inputs.q, inputs.v, options.layout
    y = new(q, (*q.shape[:-1], v.shape[-1]))
    lse = new(q, lse_shape(q, layout), torch.float32)
    attn = new(y, tuple(y.shape)) if keep_attn else None
    with on_device_of(q):
        call = _Call(inputs, options, launcher)
        call.launch(KERNELS[0], y=y, lse=lse, attn=attn, **strides("y", y, layout))
    return y, lse, attn


class Gradients(NamedTuple):
    """Gradients of the inputs. Gradients that are not wanted are None."""

    q: Tensor | None
    k: Tensor | None
    v: Tensor | None
    gate: Tensor | None
    sinks: Tensor | None


def backward(
    dy: Tensor,
    dlse: Tensor | None,
    y: Tensor,
    lse: Tensor,
    attn: Tensor | None,
    inputs: Inputs,
    options: Options,
    wanted: tuple[str, ...] = Gradients._fields,
    launcher: Launcher = lambda kernel: kernel,
) -> Gradients:
    """Returns the gradients `wanted`. dy and dlse are the gradients of y and lse.

    attn is the output before the gate. It is required if gate_op is "add", or if the gate function g is 0 for some z.
    In the latter case, y / g(z) is undefined.
    """
    q, layout, gate = inputs.q, options.layout, inputs.gate
    # Hooks of saved tensors may change the strides of y, lse and attn.
    y, lse, attn, dlse = (None if x is None else x.contiguous() for x in (y, lse, attn, dlse))
    found = {name: new(x, tuple(x.shape)) for name in wanted if (x := getattr(inputs, name)) is not None}
    delta = new(lse, tuple(lse.shape))
    with on_device_of(q):
        call = _Call(inputs, options, launcher)
        elementwise = call.gate == "elementwise" and options.gate_op == "mul"
        do = new(y, tuple(y.shape)) if elementwise and {"q", "k", "v"} & found.keys() else None
        dgate = found.get("gate")
        call.launch(
            KERNELS[1],
            dy=dy,
            y=y,
            attn=attn,
            lse=lse,
            dlse=dlse,
            delta=delta,
            dgate=dgate,
            do=do,
            **strides("dy", dy, layout),
            **strides("y", y, layout),
            **strides("dgate", dgate, layout),
        )
        upstream = dy if do is None else do
        # The next two kernels need the gradient of the ungated output. It is `do` = dy ∘ g for an elementwise gate g.
        # For a headwise gate g, the kernels get dy and multiply it by g. For an added gate, the gradient is dy.
        scaled = call.gate == "headwise" and options.gate_op == "mul"
        shared = {"do": upstream, "lse": lse, "delta": delta, **strides("do", upstream, layout)}
        shared |= {"GATE": "headwise" if scaled else "none", "gate": gate if scaled else None}
        if found.keys() & {"k", "v"}:
            dk, dv = (
                found[x] if x in found else new(getattr(inputs, x), tuple(getattr(inputs, x).shape)) for x in "kv"
            )
            both = {**strides("dk", dk, layout), **strides("dv", dv, layout)}
            call.launch(KERNELS[2], over_keys=True, dk=dk, dv=dv, **shared, **both)
        if "q" in found:
            call.launch(KERNELS[3], dq=found["q"], **shared, **strides("dq", found["q"], layout))
    if "sinks" in found:
        sinks = inputs.sinks.float().squeeze(0) if inputs.sinks.dim() > q.dim() - 1 else inputs.sinks.float()
        sinks = sinks[:, None] if sinks.dim() == 1 else sinks
        # A row that sees neither a key nor a sink has lse = −∞, and −∞ − (−∞) is NaN.
        weights = torch.exp(sinks - lse).masked_fill(lse == -math.inf, 0.0)
        summed = (-weights * delta).sum_to_size(sinks.shape)
        found["sinks"] = summed.view(inputs.sinks.shape).to(inputs.sinks.dtype)
    return Gradients(*(found.get(name) for name in Gradients._fields))
