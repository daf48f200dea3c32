# SPDX-License-Identifier: Apache-2.0
"""Problems for the kernels of the gated norm, and their exact results by float64 autograd."""

from typing import NamedTuple

import torch

import cases
import formulas
from headgate.torch.gpu import launch, norm_launch

GRADIENTS = norm_launch.Gradients._fields


class Case(NamedTuple):
    """A call. `magnitude` scales x."""

    name: str
    B: int = 1
    H: int = 3
    T: int = 21
    D: int = 24
    weight: str = "shared"  # or "heads", "none"
    gate: bool = True
    gate_fn: str = "silu"
    eps: float = 1e-6
    magnitude: float = 1.0
    layout: str = "bhtd"
    strides: str = "own"  # or "features first"
    dtype: torch.dtype = torch.float32
    other_dtype: torch.dtype | None = None  # of weight and gate
    tile: int = 8


CASES = [
    Case("norm of rows"),
    Case("weights of heads", weight="heads", layout="bthd", B=2),
    Case("no weight", weight="none", gate_fn="sigmoid"),
    Case("no gate", gate=False, eps=0.5),
    Case("features first in memory", strides="features first", gate_fn="softplus"),
    Case("a feature", D=1, gate_fn="identity", eps=0.1),
    Case("norm of no rows", T=0),
    Case("large rows", magnitude=1e30, gate_fn="sigmoid2"),
    Case("small rows", magnitude=1e-25, eps=0.0, gate_fn="ns_sigmoid"),
    Case("small rows beside eps", magnitude=1e-25, eps=1e-50),
    Case("norm in bf16", dtype=torch.bfloat16, D=64),
    Case("norm in f16, others in f32", dtype=torch.float16, other_dtype=torch.float32, weight="heads"),
]
NAMED = {case.name: case for case in CASES}


class Problem(NamedTuple):
    inputs: norm_launch.Inputs
    options: norm_launch.Options
    dy: torch.Tensor


def problem_of(case, device="cpu", tile=True):
    torch.manual_seed(8)
    other = case.other_dtype or case.dtype
    rows = (case.B, case.H, case.T) if case.layout == "bhtd" else (case.B, case.T, case.H)

    def made(dtype, scale=1.0):
        if case.strides == "features first":
            return cases.guarded((scale * torch.randn(*rows[:2], case.D, rows[2])).to(dtype), device).mT
        return cases.guarded((scale * torch.randn(*rows, case.D)).to(dtype), device)

    shape = {"shared": (case.D,), "heads": (case.H, case.D)}.get(case.weight)
    weight = cases.guarded(torch.randn(shape).to(other), device) if shape else None
    inputs = norm_launch.Inputs(made(case.dtype, case.magnitude), weight, made(other) if case.gate else None)
    return Problem(
        inputs, norm_launch.Options(case.layout, case.eps, case.gate_fn, case.tile if tile else None), made(case.dtype)
    )


def expected_of(case, problem):
    """y and the gradients, in float64, by name."""
    leaves = [None if x is None else x.detach().cpu().double().requires_grad_() for x in problem.inputs]
    x, weight, gate = leaves
    y = x * (x.square().mean(-1, keepdim=True) + case.eps).rsqrt()
    if weight is not None:
        y = y * (weight[:, None] if weight.dim() == 2 and case.layout == "bhtd" else weight)
    if gate is not None:
        y = y * formulas.FUNCTIONS[case.gate_fn](gate)
    given = [x for x in leaves if x is not None]
    gradients = iter(torch.autograd.grad((y * problem.dy.cpu().double()).sum(), given))
    return {"y": y.detach()} | {"d" + name: next(gradients) for name, x in zip(GRADIENTS, leaves) if x is not None}


def computed(case, problem):
    with cases.marked_outputs(launch) as outputs:
        y = norm_launch.forward(problem.inputs, problem.options)
        found = norm_launch.backward(problem.dy, problem.inputs, problem.options)
        assert outputs.are_whole(), "a kernel writes beside a tensor"
    results = {"y": y} | {"d" + name: x for name, x in found._asdict().items()}
    return {name: x.cpu() for name, x in results.items() if x is not None}


def errors_of(case, results, exact):
    return cases.errors_rounded_once(results, exact)
