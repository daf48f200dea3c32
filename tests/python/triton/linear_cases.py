# SPDX-License-Identifier: Apache-2.0
"""Problems for the kernels of gated linear attention, and their exact results by the recurrence, in float64 autograd."""

import math
from typing import NamedTuple

import torch

import cases
from headgate.torch.gpu import linear_launch


class Case(NamedTuple):
    """A call: B sequences of T tokens, or a packed batch of the sequences `lengths`."""

    name: str
    B: int = 1
    Hq: int = 2
    Hk: int = 2
    Hv: int = 2
    T: int = 40
    D: int = 16
    DV: int = 16
    rule: str = "gated_delta"
    scale: float | None = None
    l2_norm: float | None = None
    decay: float | None = 1.0  # the largest; None: absent
    features: bool = False  # a decay for each feature
    beta: str = "heads"  # or "one", "none"
    state: bool = True
    lengths: tuple[int, ...] = ()
    layout: str = "bhtd"
    dtype: torch.dtype = torch.float32
    tile: tuple[int, int] = (16, 16)


CASES = [
    Case("gated delta"),
    Case("delta", rule="delta", decay=None, DV=24),
    Case("gated", rule="gated", beta="none", D=24),
    Case("linear", rule="linear", decay=None, beta="none"),
    Case("no state, batch", B=2, T=21, state=False),
    Case("norm", l2_norm=1e-6, scale=0.5),
    Case("shared heads", Hq=1, Hk=2, Hv=4, T=20, layout="bthd", l2_norm=0.1),
    Case("one beta", beta="one", T=20),
    Case("no beta", beta="none", T=20),
    Case("strong decays", decay=300.0, T=33),
    Case("columns in blocks", DV=40, D=20, T=20, l2_norm=1e-6),
    Case("packed", lengths=(17, 0, 1, 32), l2_norm=1e-6),
    Case("decays of features", features=True, D=20, DV=24, T=37, l2_norm=1e-6),
    Case("decays of features, gated", features=True, rule="gated", beta="none", T=20),
    Case("decays of features, strong", features=True, decay=300.0, T=33, l2_norm=1e-6),
    Case("decays of features, packed", features=True, lengths=(17, 0, 1, 18), Hk=1, layout="bthd", l2_norm=1e-6),
    Case("decays of features, bf16", features=True, dtype=torch.bfloat16, l2_norm=1e-6, D=32, DV=32),
    Case("a token", T=1),
    Case("no tokens", T=0),
    Case("bf16", dtype=torch.bfloat16, l2_norm=1e-6, D=32, DV=32),
    Case("f16, chunks of 32", dtype=torch.float16, l2_norm=1e-6, tile=(32, 16)),
]
NAMED = {case.name: case for case in CASES}


class Problem(NamedTuple):
    inputs: linear_launch.Inputs
    options: linear_launch.Options
    dy: torch.Tensor
    dstate: torch.Tensor
    bounds: list  # (batch, first token, end) of each sequence


def problem_of(case, device="cpu", tile=True):
    torch.manual_seed(5)
    T = sum(case.lengths) if case.lengths else case.T

    def made(heads, features, change=lambda x: x, dtype=case.dtype):
        x = change(torch.randn(case.B, heads, T, features)).to(dtype)
        if case.layout == "bthd":
            x = x.transpose(1, 2).contiguous()
        return cases.guarded(x, device)

    sequences = len(case.lengths) or case.B
    starts = cases.guarded(torch.tensor([0, *case.lengths]).cumsum(0), device) if case.lengths else None
    decays = case.D if case.features else 1
    decay = None
    if case.decay is not None:
        decay = made(case.Hv, decays, lambda x: -torch.rand_like(x) * case.decay, torch.float32)
    betas = {"heads": case.Hv, "one": 1, "none": 0}[case.beta]
    # The delta rule is a contraction for keys of norm 1: others are drawn small, so that states stay small.
    shrink = (lambda x: x) if case.l2_norm is not None else (lambda x: x / math.sqrt(case.D))
    inputs = linear_launch.Inputs(
        made(case.Hq, case.D), made(case.Hk, case.D, shrink), made(case.Hv, case.DV), decay,
        made(betas, 1, torch.sigmoid) if betas else None,
        cases.guarded(torch.randn(sequences, case.Hv, case.D, case.DV), device) if case.state else None, starts,
    )  # fmt: skip
    options = linear_launch.Options(case.layout, case.rule, case.scale, case.l2_norm, case.tile if tile else None)
    dy, dstate = made(case.Hv, case.DV), torch.randn(sequences, case.Hv, case.D, case.DV)
    ends = torch.tensor([0, *case.lengths]).cumsum(0).tolist()
    bounds = [(0, a, b) for a, b in zip(ends, ends[1:])] if case.lengths else [(b, 0, T) for b in range(case.B)]
    return Problem(inputs, options, dy, cases.guarded(dstate, device), bounds)


def _recurrence(q, k, v, decay, beta, state, case):
    """y (H,T,Dv) and the last state (H,D,Dv) of a sequence; q and k have a head for each of v's."""
    if case.l2_norm is not None:
        q, k = (x / torch.sqrt(x.square().sum(-1, keepdim=True) + case.l2_norm) for x in (q, k))
    y = []
    for t in range(v.shape[1]):
        if decay is not None:
            state = torch.exp(decay[:, t, :, None]) * state
        change = v[:, t]
        if "delta" in case.rule:
            change = change - torch.einsum("hd,hdv->hv", k[:, t], state)
            change = change if beta is None else change * beta[:, t]
        state = state + k[:, t, :, None] * change[:, None, :]
        scale = case.D**-0.5 if case.scale is None else case.scale
        y.append(scale * torch.einsum("hd,hdv->hv", q[:, t], state))
    return (torch.stack(y, 1) if y else v), state


def expected_of(case, problem):
    """y, the new state and the gradients, in float64, by name."""
    swap = (lambda x: x.transpose(1, 2)) if case.layout == "bthd" else (lambda x: x)
    leaves = [None if x is None else x.detach().cpu().double().requires_grad_() for x in problem.inputs[:6]]
    *tensors, state = (None if x is None else x for x in leaves)
    q, k, v, decay, beta = (None if x is None else swap(x) for x in tensors)
    q, k = (x.repeat_interleave(case.Hv // x.shape[1], dim=1) for x in (q, k))
    beta = None if beta is None else beta.expand(-1, case.Hv, -1, -1)
    ys, states = {}, []
    for n, (b, first, end) in enumerate(problem.bounds):
        own = [None if x is None else x[b, :, first:end] for x in (q, k, v, decay, beta)]
        before = torch.zeros(case.Hv, case.D, case.DV, dtype=torch.float64) if state is None else state[n]
        y, after = _recurrence(*own, before, case)
        ys.setdefault(b, []).append(y)
        states.append(after)
    y = swap(torch.stack([torch.cat(parts, dim=1) for parts in ys.values()]))
    return cases.exact_with_state(linear_launch, problem, y, torch.stack(states), leaves)


def computed(case, problem):
    return cases.computed_with_state(linear_launch, problem)


def errors_of(case, results, exact):
    # Sums over tokens cancel where strong decays leave little of a gradient.
    return cases.errors_rounded_once(results, exact, {"ddecay": 50} if (case.decay or 0.0) > 10 else {})
