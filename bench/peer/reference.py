# SPDX-License-Identifier: Apache-2.0
"""Computes the exact results of a case, in f64 with elementary operations of PyTorch, and the error of a peer."""

import math

import numpy as np
import torch
import torch.utils.checkpoint
from torch.nn import functional as F

from .cases import LAYER_WEIGHTS, LINEAR_INPUTS, NORM_EPS, RESULTS, Case, Refused, checked_heads, inputs_of, rope_angles
from .torch_common import mask_of_lists

TOLERANCE = {"float32": 1e-4, "bfloat16": 5e-2}
"""Largest error that error_of accepts. Rounding errors are far smaller, and errors of a wrong formula far larger."""


def _weights(q: torch.Tensor, k: torch.Tensor, causal: bool, bias: torch.Tensor | float = 0.0) -> torch.Tensor:
    """Returns softmax(q k^T / sqrt(D) + bias), (B,Hq,T,S)."""
    k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    scores = q @ k.mT / math.sqrt(q.shape[-1]) + bias
    if causal:
        T, S = scores.shape[-2:]
        hidden = torch.ones(T, S, dtype=torch.bool).triu(1 + S - T)
        scores = scores.masked_fill(hidden, -math.inf)
    return scores.softmax(-1)


def _gated(weights: torch.Tensor, v: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    return weights @ v.repeat_interleave(weights.shape[1] // v.shape[1], dim=1) * torch.sigmoid(z)


def _attention(case: Case, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    q, k, v, z = (inputs[name] for name in "qkvz")
    bias = inputs.get("bias", 0.0)
    if case.is_listed:
        bias = torch.zeros(case.T, case.S).masked_fill(~mask_of_lists(inputs["lists"], case.S), -math.inf)
    return _gated(_weights(q, k, case.causal, bias), v, z)


def _statistics(case: Case, inputs: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    weights = _weights(inputs["q"], inputs["k"], case.causal)
    return [
        _gated(weights, inputs["v"], inputs["z"]),
        weights.amax(-1),
        torch.special.entr(weights).sum(-1),
        weights[..., 0],
        weights.sum(-2),
    ]


def _layer(case: Case, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    angles = torch.from_numpy(rope_angles(case))

    def heads(name: str) -> torch.Tensor:
        return (inputs["h"] @ inputs[name].T).unflatten(-1, (-1, case.D)).transpose(1, 2)

    def turned(x: torch.Tensor, norm: torch.Tensor) -> torch.Tensor:
        x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + NORM_EPS) * norm
        a, b = x.chunk(2, dim=-1)
        cos, sin = angles.cos(), angles.sin()
        return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)

    q, k = turned(heads("q_proj"), inputs["q_norm"]), turned(heads("k_proj"), inputs["k_norm"])
    y = _attention(case, {"q": q, "k": k, "v": heads("v_proj"), "z": heads("gate_proj")})
    return F.linear(y.transpose(1, 2).flatten(-2), inputs["o_proj"])


def _delta_rule(case: Case, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """Computes the recurrence token by token. The backward pass recomputes the states, 64 tokens at a time."""
    q, k = (x * torch.rsqrt(x.square().sum(-1, keepdim=True) + NORM_EPS) for x in (inputs["q"], inputs["k"]))

    def part(state, q, k, v, decay, beta):
        y = []
        for t in range(q.shape[2]):
            state = state * decay[:, :, t, None, None].exp()
            u = beta[:, :, t, None] * (v[:, :, t] - (state * k[:, :, t, :, None]).sum(-2))
            state = state + k[:, :, t, :, None] * u[:, :, None]
            y.append((state * q[:, :, t, :, None]).sum(-2) / math.sqrt(case.D))
        return state, torch.stack(y, 2)

    state = inputs.get("state", q.new_zeros(*q.shape[:2], case.D, case.D))
    parts = []
    for tensors in zip(*(x.split(64, dim=2) for x in (q, k, *(inputs[name] for name in LINEAR_INPUTS[2:])))):
        state, y = torch.utils.checkpoint.checkpoint(part, state, *tensors, use_reentrant=False)
        parts.append(y)
    return torch.cat(parts, dim=2)


def reference(case: Case) -> list[np.ndarray]:
    """Returns `checked_heads` of each result in `result_names`."""
    arrays = {name: checked_heads(case, array) for name, array in inputs_of(case).items()}
    inputs = {name: torch.from_numpy(np.ascontiguousarray(array)).double() for name, array in arrays.items()}
    if case.op == "statistics":
        return [result.numpy() for result in _statistics(case, inputs)]
    dy = inputs.pop("dy")
    formula = _delta_rule if case.is_linear else _layer if case.C else _attention
    if not case.op.endswith("+backward"):
        with torch.no_grad():
            return [formula(case, inputs).numpy()]
    names = LINEAR_INPUTS if case.is_linear else ("h", *LAYER_WEIGHTS) if case.C else ("q", "k", "v", "z")
    names = (*names, "bias") if case.is_pair else names
    for name in names:
        inputs[name].requires_grad_()
    y = formula(case, inputs)
    y.backward(dy)
    return [y.detach().numpy(), *(inputs[name].grad.numpy() for name in names)]


def error_of(case: Case, results: list[np.ndarray], exact: list[np.ndarray]) -> float:
    """Returns the largest error of a result. It is the largest |error| of an element over the largest |element|. Raises
    Refused if it is above the tolerance, or if results are missing or have other shapes."""
    names = result_names(case)
    if len(results) != len(exact):
        raise Refused(f"wrong: {len(results)} results in place of {', '.join(names)}")
    worst = 0.0
    for name, result, right in zip(names, results, exact, strict=True):
        if result.ndim < 2 and not case.C:
            raise Refused(f"wrong: {name} has shape {result.shape}")
        result = checked_heads(case, result)
        if result.shape != right.shape:
            raise Refused(f"wrong: {name} has shape {result.shape} where it is checked, not {right.shape}")
        error = float(np.abs(result - right).max() / np.abs(right).max())
        if not error <= TOLERANCE[case.dtype]:  # also true for NaN
            raise Refused(f"wrong: the error of {name} is {error:.1e}, more than {TOLERANCE[case.dtype]:.0e}")
        worst = max(worst, error)
    return worst


def result_names(case: Case) -> tuple[str, ...]:
    names = RESULTS[case.op]
    return (*names, *(f"d{name}" for name in LAYER_WEIGHTS)) if case.op == "layer+backward" else names
