# SPDX-License-Identifier: Apache-2.0
"""Host code for linear_kernels.py: creates outputs, chooses tiles and launches kernels."""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import launch, linear_kernels
from .launch import Launcher, launch_kernel, on_device_of, sizes, strides

# Tokens in a chunk, and columns of the state per program. With these sizes, most of the state stays in registers.
_CHUNK, _COLUMNS = 16, 32


class Inputs(NamedTuple):
    """Tensors of a call, with dimensions in the order of Options.layout. Without a batch, they are (H,T,·) or
    (T,H,·)."""

    q: Tensor
    k: Tensor
    v: Tensor
    decay: Tensor | None = None
    beta: Tensor | None = None
    state: Tensor | None = None
    cu_seqlens: Tensor | None = None


class Options(NamedTuple):
    """Options of a call. `tile` overrides the number of tokens in a chunk and of columns that a program computes."""

    layout: str = "bhtd"
    rule: str = "gated_delta"
    scale: float | None = None
    l2_norm: float | None = None
    tile: tuple[int, int] | None = None


class _Call:
    """Sizes of a call, and the arguments that its kernels share."""

    def __init__(self, inputs: Inputs, options: Options):
        q, k, v, decay, beta, state, cu_seqlens = inputs
        layout = options.layout
        self.batch, query_heads, self.tokens, D = sizes(q, layout)
        _, key_heads, _, _ = sizes(k, layout)
        _, self.heads, _, DV = sizes(v, layout)
        self.D, self.DV = D, DV
        self.sequences = self.batch if cu_seqlens is None else cu_seqlens.shape[0] - 1
        block_d = launch.block_of_features(D)
        chunk, columns = options.tile or (_CHUNK, min(_COLUMNS, launch.block_of_features(DV)))
        self.blocks = -(-DV // columns)
        self.chunks = -(-self.tokens // chunk) if cu_seqlens is None else self.tokens // chunk + self.sequences
        self.states = self.chunks * (self.sequences if cu_seqlens is None else 1)
        one_beta = beta is not None and sizes(beta, layout)[1] == 1
        self.arguments = {
            "q": q,
            "k": k,
            "v": v,
            "decay": decay,
            "beta": beta,
            "state": None if state is None else state.float().contiguous(),
            "cu_seqlens": cu_seqlens,
            **strides("q", q, layout),
            **strides("k", k, layout),
            **strides("v", v, layout),
            **strides("decay", decay, layout),
            **strides("beta", beta, layout),
            "T": self.tokens,
            "H": self.heads,
            "n_sequences": self.sequences,
            "chunks": self.chunks,
            "scale": 1 / math.sqrt(D) if options.scale is None else options.scale,
            "eps": options.l2_norm or 0.0,
            "GROUP_Q": self.heads // query_heads,
            "GROUP_K": self.heads // key_heads,
            "D": D,
            "DV": DV,
            "DELTA": options.rule in ("delta", "gated_delta"),
            "NORM": options.l2_norm is not None,
            "FEATURES": decay is not None and decay.shape[-1] > 1,
            # NVIDIA's tensor cores do not support f32 products. The sum of three TF32 products is about as accurate.
            "PRECISION": "tf32x3" if launch.backend() == "cuda" else "ieee",
            "C": chunk,
            "BLOCK_D": block_d,
            "BLOCK_DV": columns,
        }
        if one_beta:
            self.arguments["beta_h"] = 0

    def launch(self, name: str, launcher: Launcher, of_chunks: bool = False, **more: Any) -> None:
        """Launches a program for each block of columns, head and sequence. If `of_chunks` is true, launches a program
        for each chunk and head instead.
        """
        programs = self.states * self.heads if of_chunks else self.blocks * self.heads * self.sequences
        warps = 8 if launch.backend() == "cuda" else 4
        launch_kernel(launcher, getattr(linear_kernels, name), programs, {**self.arguments, **more}, warps, 1)

    def new_states(self, like: Tensor, count: int) -> Tensor:
        return launch.new(like, (count, self.heads, self.D, self.DV), torch.float32)


def forward(
    inputs: Inputs, options: Options, keep_state: bool = False, launcher: Launcher = lambda kernel: kernel
) -> tuple[Tensor, Tensor | None]:
    """Returns y and the state after the last token.

    - y: q's dtype, with the heads and features of v
    - state: (N,Hv,D,Dv) in f32; None if keep_state is false
    """
    q, v = inputs.q, inputs.v
    y = launch.new(q, tuple(v.shape))
    with on_device_of(q):
        call = _Call(inputs, options)
        state = call.new_states(q, call.sequences) if keep_state else None
        call.launch("linear_forward", launcher, y=y, new_state=state, states=None, **strides("y", y, options.layout))
    return y, state


class Gradients(NamedTuple):
    """Gradients of the inputs. Gradients that are not wanted are None."""

    q: Tensor | None
    k: Tensor | None
    v: Tensor | None
    decay: Tensor | None
    beta: Tensor | None
    state: Tensor | None


def backward(
    dy: Tensor,
    dstate: Tensor | None,
    inputs: Inputs,
    options: Options,
    wanted: tuple[str, ...] = Gradients._fields,
    launcher: Launcher = lambda kernel: kernel,
) -> Gradients:
    """Returns the gradients `wanted`. dy and dstate are the gradients of y and of the last state.

    Recomputes the state before each chunk.
    """
    q, layout = inputs.q, options.layout
    wanted = tuple(name for name in wanted if getattr(inputs, name) is not None)
    with on_device_of(q):
        call = _Call(inputs, options)
        states = call.new_states(q, call.states)
        absent: dict[str, Any] = {"y_b": 0, "y_h": 0, "y_t": 0}
        call.launch("linear_forward", launcher, y=None, new_state=None, states=states, **absent)
        found = dict.fromkeys(Gradients._fields)
        rows = (call.batch, call.heads, call.tokens)
        for name in wanted:
            if name in ("q", "k"):
                found[name] = launch.new(q, (*rows, call.D), torch.float32)
            elif name in ("decay", "beta"):
                found[name] = launch.new(q, (*rows, getattr(inputs, name).shape[-1]), torch.float32)
        of_chunks = {name: found[name] for name in ("q", "k", "decay", "beta")}
        found["v"] = launch.new(inputs.v, tuple(inputs.v.shape)) if "v" in wanted else None
        found["state"] = call.new_states(q, call.sequences) if "state" in wanted else None
        left = dict.fromkeys(("u", "db", "dstates"))
        if any(x is not None for x in of_chunks.values()):
            left["u"] = launch.new(q, (*rows, call.DV), torch.float32)
            left["db"] = launch.new(q, (*rows, call.DV), torch.float32) if call.arguments["DELTA"] else None
            left["dstates"] = call.new_states(q, call.states)
        shared = {"states": states, "dy": dy, **left, **strides("dy", dy, layout)}
        call.launch(
            "linear_backward_states",
            launcher,
            dnew_state=None if dstate is None else dstate.float().contiguous(),
            dv=found["v"],
            dstate=found["state"],
            **shared,
            **strides("dv", found["v"], layout),
        )
        if left["u"] is not None:
            own = {"d" + name: x for name, x in of_chunks.items()}
            call.launch("linear_backward_chunks", launcher, of_chunks=True, **shared, **own)
    for name in ("q", "k", "decay", "beta"):
        if found[name] is not None:
            found[name] = _summed(found[name], getattr(inputs, name), layout)
    if found["state"] is not None:
        found["state"] = found["state"].to(inputs.state.dtype)
    return Gradients(**found)


def _summed(parts: Tensor, like: Tensor, layout: str) -> Tensor:
    """Sums the gradients `parts` (B,Hv,T,·) over the value heads that share a head of `like`. The result has the shape
    and dtype of `like`.
    """
    heads = sizes(like, layout)[1]
    batch, value_heads, tokens, features = parts.shape
    if heads != value_heads:
        parts = parts.view(batch, heads, value_heads // heads, tokens, features).sum(2)
    if layout == "bthd":
        parts = parts.transpose(1, 2)
    return parts.to(like.dtype).reshape(like.shape)
