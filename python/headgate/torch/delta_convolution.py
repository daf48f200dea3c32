# SPDX-License-Identifier: Apache-2.0
"""The short convolution of a GatedDeltaNet layer: fused, or by a call of the layer's module conv1d."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .short_convolution import short_convolution

_HOOKS = ("forward_hooks", "forward_pre_hooks", "backward_hooks", "backward_pre_hooks")


def require_causal(conv: nn.Module, channels: int, taps: int) -> None:
    """Raises TypeError if `conv` is a Conv1d whose settings are not those of a causal depthwise convolution."""
    if not isinstance(conv, nn.Conv1d):
        return
    sizes = {"in_channels": channels, "out_channels": channels, "groups": channels}
    own = {**sizes, "kernel_size": (taps,), "padding": (taps - 1,), "stride": (1,), "dilation": (1,)}
    for name, value in {**own, "padding_mode": "zeros"}.items():
        if getattr(conv, name) != value:
            raise TypeError(f"GatedDeltaNet: {name} of conv1d is {getattr(conv, name)!r} but must be {value!r}")


def _must_be_called(conv: nn.Module) -> bool:
    """Returns whether the result of conv depends on more than its weight and bias: on hooks or on other code."""
    if not isinstance(conv, nn.Conv1d) or any(getattr(conv, f"_{name}") for name in _HOOKS):
        return True
    functions = ("forward", "_conv_forward")
    return any(name in conv.__dict__ or getattr(type(conv), name) is not getattr(nn.Conv1d, name) for name in functions)


def _called(conv: nn.Module, x: Tensor, state: Tensor | None, taps: int) -> tuple[Tensor, Tensor]:
    """Calls `conv` on the columns of the state and of x, in this order: (B,C,K−1+T).

    Returns silu of the results for x, (B,T,C), and the new state: the last K−1 columns, (B,K−1,C).
    """
    B, T, C = x.shape
    rows = taps - 1
    before = x.new_zeros(B, rows, C) if state is None else state.to(x.dtype)
    columns = torch.cat((before, x), dim=1)
    y = conv(columns.transpose(1, 2))  # K−1 more columns on each side of those of x, since conv pads with zeros
    found, own = tuple(getattr(y, "shape", ())), (B, C, T + 2 * rows)
    if found != own:
        raise TypeError(f"GatedDeltaNet: conv1d returns shape {found} but must return {own}")
    return F.silu(y[..., rows : rows + T].transpose(1, 2)), columns[:, T:].contiguous()


def convolve(
    conv: nn.Module, taps: int, parts: list[Tensor], before: Any, cu_seqlens: Tensor | None
) -> tuple[list[Tensor], list[Tensor]]:
    """Applies the convolution and SiLU to `parts`, tensors (B,T,·) that hold the channels of conv in order. `before`
    holds the state of each part, or is empty. Returns a list of results and a list of new states.

    The fused operation reads weight and bias. If conv has hooks, an adapter or a forward() of its own, the layer
    calls it instead.
    """
    widths, states = [part.shape[-1] for part in parts], before or [None] * len(parts)
    if _must_be_called(conv):
        if cu_seqlens is not None:
            raise TypeError(
                "GatedDeltaNet: conv1d has hooks or other code than Conv1d: with cu_seqlens, the layer cannot call it"
            )
        state = torch.cat(before, dim=-1) if before else None
        y, after = _called(conv, torch.cat(parts, dim=-1), state, taps)
        return list(y.split(widths, dim=-1)), list(after.split(widths, dim=-1))
    weights = conv.weight.squeeze(1).split(widths)
    biases = [None] * len(parts) if conv.bias is None else conv.bias.split(widths)
    found = [
        short_convolution(x, w, bias, cu_seqlens=cu_seqlens, state=state, return_state=True)
        for x, w, bias, state in zip(parts, weights, biases, states)
    ]
    return [y for y, _ in found], [after for _, after in found]
