# SPDX-License-Identifier: Apache-2.0
"""Problems for the kernels of the short convolution, and their exact results by float64 autograd."""

from typing import NamedTuple

import torch
import torch.nn.functional as F

import cases
from headgate.torch.gpu import convolution_launch


class Case(NamedTuple):
    """A call: B sequences of T tokens, or a packed batch of the sequences `lengths`."""

    name: str
    B: int = 1
    T: int = 37
    C: int = 21
    K: int = 4
    activation: str = "silu"
    bias: bool = True
    state: bool = True
    lengths: tuple[int, ...] = ()
    strides: str = "own"  # or "channels first"; "part": some of the channels of a projection
    dtype: torch.dtype = torch.float32
    other_dtype: torch.dtype | None = None  # of weight, bias and state
    dstate: bool = True
    index_dtype: torch.dtype = torch.int32
    tile: tuple[int, int] = (16, 32)


CASES = [
    Case("convolution"),
    Case("no activation", activation="none", B=2),
    Case("no bias, no state", bias=False, state=False),
    Case("channels first", B=2, strides="channels first"),
    Case("part of a projection", strides="part"),
    Case("2 taps", K=2, activation="none", C=1),
    Case("8 taps", K=8, T=18),
    Case("fewer tokens than rows of the state", K=8, T=3, B=2),
    Case("convolution of no tokens", T=0, K=3),
    Case("convolution, packed", lengths=(17, 0, 1, 32, 2), index_dtype=torch.int64),
    Case("packed without states", lengths=(5, 30), state=False, dstate=False),
    Case("convolution in bf16", dtype=torch.bfloat16, C=40),
    Case("convolution in f16, parameters in f32", dtype=torch.float16, other_dtype=torch.float32),
]
NAMED = {case.name: case for case in CASES}


class Problem(NamedTuple):
    inputs: convolution_launch.Inputs
    options: convolution_launch.Options
    dy: torch.Tensor
    dstate: torch.Tensor | None
    bounds: list  # (batch, first token, end) of each sequence


def problem_of(case, device="cpu", tile=True):
    torch.manual_seed(6)
    T = sum(case.lengths) if case.lengths else case.T
    sequences = len(case.lengths) or case.B

    def made(*shape, dtype=case.other_dtype or case.dtype):
        return cases.guarded(torch.randn(shape).to(dtype), device)

    if case.strides == "channels first":
        x = made(case.B, case.C, T, dtype=case.dtype).transpose(1, 2)
    elif case.strides == "part":
        x = made(case.B, T, 2 * case.C, dtype=case.dtype)[..., case.C // 2 : case.C // 2 + case.C]
    else:
        x = made(case.B, T, case.C, dtype=case.dtype)
    ends = torch.tensor([0, *case.lengths]).cumsum(0)
    inputs = convolution_launch.Inputs(
        x, made(case.C, case.K), made(case.C) if case.bias else None,
        made(sequences, case.K - 1, case.C) if case.state else None,
        cases.guarded(ends.to(case.index_dtype), device) if case.lengths else None,
    )  # fmt: skip
    options = convolution_launch.Options(case.activation, case.tile if tile else None)
    dy = made(case.B, T, case.C, dtype=case.dtype)
    dstate = made(sequences, case.K - 1, case.C) if case.dstate else None
    ends = ends.tolist()
    bounds = [(0, a, b) for a, b in zip(ends, ends[1:])] if case.lengths else [(b, 0, T) for b in range(case.B)]
    return Problem(inputs, options, dy, dstate, bounds)


def expected_of(case, problem):
    """y, the new state and the gradients, in float64, by name."""
    leaves = [None if x is None else x.detach().cpu().double().requires_grad_() for x in problem.inputs[:4]]
    x, weight, bias, state = leaves
    ys, states = {}, []
    for n, (b, first, end) in enumerate(problem.bounds):
        before = x.new_zeros(case.K - 1, case.C) if state is None else state[n]
        rows = torch.cat([before, x[b, first:end]])
        y = F.conv1d(rows.T, weight[:, None], bias, groups=case.C).T if end > first else rows[:0]
        ys.setdefault(b, []).append(F.silu(y) if case.activation == "silu" else y)
        states.append(rows[rows.shape[0] - case.K + 1 :])
    y, states = torch.stack([torch.cat(parts) for parts in ys.values()]), torch.stack(states)
    return cases.exact_with_state(convolution_launch, problem, y, states, leaves)


def computed(case, problem):
    return cases.computed_with_state(convolution_launch, problem)


def errors_of(case, results, exact):
    return cases.errors_rounded_once(results, exact)
