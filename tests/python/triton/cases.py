# SPDX-License-Identifier: Apache-2.0
"""Problems for the kernels of headgate.torch.gpu, their exact results, and the comparison.

A result is compared with float64 autograd. Its relative RMS error may be a small multiple of the floor's: of an exact
computation that rounds only where a kernel must (formulas.py). Inputs lie amid NaN, so that what a kernel reads beside a
tensor spoils its result; outputs lie amid marks and begin as NaN, so that what it writes beside one, or leaves out, shows.
"""

import math
from contextlib import contextmanager
from typing import NamedTuple

import torch

import formulas
from headgate.torch.gpu import launch
from headgate.torch.gpu.tiles import KERNELS, Tile

MARGIN = 1 << 12
MARK = 1234.0


class Case(NamedTuple):
    """A call: B sequences of T queries and S keys, or a packed batch of the sequences `lengths`."""

    name: str
    B: int = 1
    Hq: int = 4
    Hkv: int = 2
    T: int = 50
    S: int = 50
    D: int = 32
    DV: int = 32
    gate: str = "headwise"
    gate_fn: str = "sigmoid"
    gate_op: str = "mul"
    causality: str = "none"
    window_left: int = -1
    window_right: int = -1
    scale: float | None = None
    softcap: float = 0.0
    sinks: str = ""  # "head", "query" or "query of any batch": what has a sink of its own
    key_lengths: tuple[int, ...] = ()
    query_offsets: tuple[int, ...] = ()
    lengths: tuple[tuple[int, int], ...] = ()
    dtype: torch.dtype = torch.float32
    gate_dtype: torch.dtype | None = None
    layout: str = "bhtd"
    strides: str = "own"  # or "fused": a half of each row of one projection; "features first"; "far": heads 2^30 apart
    dlse: bool = False
    dy_is_constant: bool = False  # of strides 0, as y.sum().backward() makes it
    blocks: tuple[int, int] = (32, 32)
    index_dtype: torch.dtype = torch.int32


class Problem(NamedTuple):
    """The tensors of a case on a device, and what formulas.py needs to know of each sequence."""

    inputs: launch.Inputs
    options: launch.Options
    dy: torch.Tensor
    dlse: torch.Tensor | None
    parts: list  # (batch, rows of queries, rows of keys, Rule)
    arithmetic: formulas.Arithmetic


RAGGED = ((33, 40), (1, 20), (0, 5), (20, 3), (7, 0))
CASES = [
    Case("none", gate="none"),
    Case("headwise", S=70),
    Case("elementwise", gate="elementwise", B=2),
    Case("causal", causality="causal", gate="elementwise"),
    Case("causal, more keys than queries", causality="causal", T=40, S=80, dlse=True),
    Case("causal, rows that see nothing", causality="causal", T=80, S=37, gate="elementwise", dlse=True),
    Case("window", causality="causal", window_left=20, T=100, S=100, dlse=True),
    Case("window on both sides", window_left=25, window_right=17, T=60, S=100, gate="elementwise", blocks=(16, 32)),
    Case("window that hides everything of some rows", window_left=3, window_right=2, T=60, S=30),
    Case("one head of keys for all", Hq=3, Hkv=1, causality="causal"),
    Case("a query", T=1, S=90, causality="causal", gate="elementwise", dlse=True),
    Case("no keys", S=0, gate="elementwise"),
    Case("no queries", T=0),
    Case("D 24, Dv 48", D=24, DV=48, gate="elementwise", causality="causal"),
    Case("D 80, Dv 96", D=80, DV=96, T=40, causality="causal"),
    Case("D 256", Hq=2, D=256, DV=256, T=40, S=40, causality="causal", gate="elementwise", dtype=torch.bfloat16),
    Case("D 1, Dv 1", D=1, DV=1, gate="elementwise"),
    Case("packed", lengths=RAGGED, causality="causal", gate="elementwise", dlse=True),
    Case("packed, window, 64-bit offsets", lengths=RAGGED, causality="causal", window_left=9, index_dtype=torch.int64,
         layout="bthd"),
    Case("packed, one sequence", lengths=((50, 61),), gate="none"),
    Case("rows of heads", B=2, layout="bthd", causality="causal", gate="elementwise"),
    Case("half of a projection", strides="fused", causality="causal", gate="elementwise", layout="bthd"),
    Case("features first", strides="features first", gate="elementwise"),
    Case("far heads", Hq=4, Hkv=4, strides="far", dtype=torch.float16, causality="causal"),
    Case("constant dy", dy_is_constant=True, causality="causal"),
    Case("scale", scale=-0.7, causality="causal"),
    Case("softcap", softcap=1.5, causality="causal", gate="elementwise", dlse=True),
    Case("sinks", sinks="head", causality="causal", T=60, S=40, dlse=True),
    Case("sinks of each query", B=2, sinks="query", causality="causal", T=60, S=40, dlse=True),
    Case("sinks of each query, shared by batches", B=2, sinks="query of any batch", gate="elementwise", dlse=True),
    Case("packed, sinks of each query", lengths=RAGGED, sinks="query", causality="causal", layout="bthd"),
    Case("lengths", B=2, key_lengths=(13, 50), dlse=True),
    Case("no key is there", B=2, key_lengths=(0, 37), causality="causal", gate="elementwise"),
    Case("offsets", B=2, query_offsets=(3, 1 << 40), causality="causal", gate="elementwise"),
    Case("cache", B=2, T=5, S=96, key_lengths=(40, 96), query_offsets=(35, 91), causality="causal", window_left=16),
    Case("bf16 headwise", dtype=torch.bfloat16, D=64, DV=64, causality="causal", dlse=True),
    Case("bf16 elementwise", dtype=torch.bfloat16, D=64, DV=64, causality="causal", gate="elementwise"),
    Case("bf16, gate f32", dtype=torch.bfloat16, gate_dtype=torch.float32, gate="elementwise", gate_fn="silu"),
    Case("f16", dtype=torch.float16, D=64, DV=64, causality="causal", gate="elementwise", window_left=40),
    Case("bf16 packed", dtype=torch.bfloat16, D=64, DV=64, lengths=RAGGED, causality="causal", gate="elementwise"),
    *[
        Case(f"{fn} {op} {gate}", T=40, S=40, Hq=2, gate=gate, gate_fn=fn, gate_op=op, causality="causal")
        for fn in formulas.FUNCTIONS
        for op in ("mul", "add")
        for gate in ("headwise", "elementwise")
        if (fn, op) != ("sigmoid", "mul")
    ],
]  # fmt: skip
NAMED = {case.name: case for case in CASES}


def guarded(x, device="cpu"):
    """The same values amid NaN; lengths and offsets amid numbers that fit no tensor."""
    outside = math.nan if x.is_floating_point() else 1 << 30
    around = torch.full((x.numel() + 2 * MARGIN,), outside, dtype=x.dtype, device=device)
    inner = around[MARGIN : MARGIN + x.numel()].view(x.shape)
    return inner.copy_(x)


def _placed(x, case, device):
    """x (B,H,T,F) with the case's strides, as (B,H,T,F)."""
    B, H, T, F = x.shape
    if case.strides == "fused":
        both = torch.full((B, T, H, 2 * F), math.nan, dtype=x.dtype)
        both[..., F:] = x.transpose(1, 2)
        return guarded(both, device)[..., F:].transpose(1, 2)
    if case.strides == "features first":
        return guarded(x.mT.contiguous(), device).mT
    if case.strides == "far":  # pages that are not touched cost nothing
        far = torch.empty(((H - 1) << 30) + T * F, dtype=x.dtype, device=device)
        return far.as_strided((B, H, T, F), (0, 1 << 30, F, 1)).copy_(x)
    if case.layout == "bthd":
        return guarded(x.transpose(1, 2).contiguous(), device).transpose(1, 2)
    return guarded(x, device)


def problem_of(case, device="cpu", tiles=True):
    """The tensors of a case. tiles: with its blocks, in place of the table's."""
    torch.manual_seed(7)
    B, T, S = case.B, case.T, case.S
    starts_q = starts_k = None
    if case.lengths:
        starts_q, starts_k = (
            torch.tensor([0, *(pair[n] for pair in case.lengths)]).cumsum(0).to(case.index_dtype) for n in (0, 1)
        )
        B, T, S = 1, int(starts_q[-1]), int(starts_k[-1])

    def made(H, rows, features, dtype=case.dtype):
        x = _placed(torch.randn(B, H, rows, features).to(dtype), case, device)
        return x.transpose(1, 2) if case.layout == "bthd" else x

    def vector(values, dtype):
        return guarded(torch.tensor(values, dtype=dtype), device) if values else None

    q, k, v = made(case.Hq, T, case.D), made(case.Hkv, S, case.D), made(case.Hkv, S, case.DV)
    features = {"none": 0, "headwise": 1, "elementwise": case.DV}[case.gate]
    gate = made(case.Hq, T, features, case.gate_dtype or case.dtype) if features else None
    rows = (B, case.Hq, T) if case.layout == "bhtd" else (B, T, case.Hq)
    dy = torch.ones(1, dtype=case.dtype, device=device).expand(*rows, case.DV)
    dy = dy if case.dy_is_constant else guarded(torch.randn(*rows, case.DV).to(case.dtype), device)
    dlse = guarded(torch.randn(B, case.Hq, T), device) if case.dlse else None
    of_sinks = {"head": (case.Hq,), "query": (B, case.Hq, T), "query of any batch": (1, case.Hq, T)}
    sinks = guarded(torch.randn(of_sinks[case.sinks]), device) if case.sinks else None
    packed = [None if x is None else guarded(x, device) for x in (starts_q, starts_k)]
    lengths, offsets = vector(case.key_lengths, case.index_dtype), vector(case.query_offsets, torch.int64)
    inputs = launch.Inputs(q, k, v, gate, lengths, sinks, offsets, *packed)
    own = dict.fromkeys(KERNELS, Tile(*case.blocks, 4, 1)) if tiles else None
    options = {name: getattr(case, name) for name in launch.Options._fields if name != "tiles"}
    parts = _parts(case, B, T, S)
    scale = case.D**-0.5 if case.scale is None else case.scale
    arithmetic = formulas.Arithmetic(scale, case.softcap, case.gate_fn, case.gate_op)
    return Problem(inputs, launch.Options(**options, tiles=own), dy, dlse, parts, arithmetic)


def _parts(case, B, T, S):
    parts, at = [], [0, 0]
    for n, (t, s) in enumerate(case.lengths or ((T, S),) * B):
        right = 0 if case.causality == "causal" else case.window_right
        rule = formulas.Rule(
            case.query_offsets[n] if case.query_offsets else s - t,
            case.key_lengths[n] if case.key_lengths else s,
            None if case.window_left < 0 else case.window_left,
            None if right < 0 else right,
        )
        queries, keys = (slice(begin, begin + size) for begin, size in zip(at, (t, s)))
        parts.append((0 if case.lengths else n, queries, keys, rule))
        if case.lengths:
            at = [queries.stop, keys.stop]
    return parts


def _exact_parts(case, problem):
    """For each sequence the tensors in float64, (H,T,·), and its Rule."""
    swap = (lambda x: x.transpose(1, 2)) if case.layout == "bthd" else (lambda x: x)
    q, k, v, gate = (None if x is None else swap(x).cpu().double() for x in problem.inputs[:4])
    dy = swap(problem.dy).cpu().double()
    dlse = None if problem.dlse is None else problem.dlse.cpu().double()
    sinks = None if problem.inputs.sinks is None else problem.inputs.sinks.cpu().double()
    for b, queries, keys, rule in problem.parts:
        own = [
            None if x is None else x[b, :, rows] for x, rows in ((q, queries), (k, keys), (v, keys), (gate, queries))
        ]
        row = sinks if sinks is None or sinks.dim() == 1 else sinks.expand(dy.shape[0], -1, -1)[b, :, queries]
        yield b, queries, keys, own, row, dy[b, :, queries], None if dlse is None else dlse[b, :, queries], rule


def _by_autograd(tensors, sinks, dy, dlse, rule, arithmetic):
    leaves = [None if x is None else x.clone().requires_grad_() for x in (*tensors, sinks)]
    y, lse = formulas.attention(*leaves, rule, arithmetic)
    loss = (y * dy).sum()
    if dlse is not None:
        loss = loss + (lse * dlse).masked_fill(torch.isinf(lse), 0).sum()
    given = [x for x in leaves if x is not None]
    gradients = iter(torch.autograd.grad(loss, given, allow_unused=True, materialize_grads=True))
    return (y.detach(), lse.detach(), *(None if x is None else next(gradients) for x in leaves))


RESULTS = ("y", "lse", "dq", "dk", "dv", "dgate", "dsinks")


def expected_of(case, problem):
    """The exact results and the floor's, each a dict of RESULTS, in (B,H,T,·)."""

    def rounding(dtype):
        return lambda x: x.to(dtype).double()

    exact, floor = {}, {}
    rounded = rounding(case.dtype), rounding(case.gate_dtype or case.dtype)
    for b, queries, keys, tensors, sinks, dy, dlse, rule in _exact_parts(case, problem):
        one = _by_autograd(tensors, sinks, dy, dlse, rule, problem.arithmetic)
        other = formulas.floor(*tensors, sinks, dy, dlse, rule, problem.arithmetic, *rounded)
        for into, values in ((exact, one), (floor, other)):
            for name, value in zip(RESULTS, values):
                if value is None:
                    continue
                if name == "dsinks" and value.dim() == 1:
                    into[name] = into.get(name, 0) + value
                else:
                    into.setdefault(name, []).append((b, keys if name in ("dk", "dv") else queries, value))
    for results in (exact, floor):
        results |= {name: _joined(value) for name, value in results.items()}
        if case.sinks == "query of any batch":
            results["dsinks"] = results["dsinks"].sum(0, keepdim=True)
    return exact, floor


def _joined(parts):
    if not isinstance(parts, list):
        return parts
    batches = {}
    for b, _, value in parts:
        batches.setdefault(b, []).append(value)
    return torch.stack([torch.cat(values, dim=1) for values in batches.values()])


class Outputs:
    """Makes outputs that begin as NaN and lie amid marks; tells whether all marks are still there."""

    def __init__(self):
        self._made = []

    def new(self, like, shape, dtype=None):
        size, dtype = math.prod(shape), dtype or like.dtype
        around = torch.full((size + 2 * MARGIN,), MARK, dtype=dtype, device=like.device)
        inner = around[MARGIN : MARGIN + size].view(shape)
        inner.fill_(math.nan)
        self._made.append((around, size, around[0].clone()))
        return inner

    def are_whole(self):
        return all(
            bool((around[:MARGIN] == mark).all() and (around[MARGIN + size :] == mark).all())
            for around, size, mark in self._made
        )


@contextmanager
def marked_outputs(module=launch):
    outputs, before = Outputs(), module.new
    module.new = outputs.new
    try:
        yield outputs
    finally:
        module.new = before


def computed(case, problem, module=launch):
    """What the kernels of `module` compute: a dict of RESULTS, in (B,H,T,·), on the CPU."""
    keep = problem.inputs.gate is not None and (case.gate_op == "add" or case.gate_fn in ("silu", "identity"))
    with marked_outputs(module) as outputs:
        inputs, options = module.Inputs(*problem.inputs), module.Options(*problem.options)
        y, lse, attn = module.forward(inputs, options, keep)
        found = module.backward(problem.dy, problem.dlse, y, lse, attn, inputs, options)
        assert outputs.are_whole(), "a kernel writes beside a tensor"
    swap = (lambda x: x.transpose(1, 2)) if case.layout == "bthd" else (lambda x: x)
    results = {"y": swap(y), "lse": lse, "dsinks": found.sinks}
    results |= {"d" + name: None if x is None else swap(x) for name, x in zip(("q", "k", "v", "gate"), found)}
    return {name: x.cpu() for name, x in results.items() if x is not None}


def rms(x):
    return x.square().mean().sqrt().item() if x.numel() else 0.0


# By how much the RMS error may pass the floor's, and what is allowed beside it, relative to the result.
SHARE_OF_FLOOR = 1.08
SPARE = {torch.float32: 2e-6, torch.float16: 1e-5, torch.bfloat16: 1e-5}


def errors_of(case, results, expected):
    """For each result that is wrong, a line that says how wrong."""
    (exact, floor), wrong = expected, []
    for name in RESULTS:
        if name not in exact:
            continue
        ours, true = results[name].double(), exact[name]
        if ours.shape != true.shape:
            wrong.append(f"{name} has shape {tuple(ours.shape)} but must have {tuple(true.shape)}")
            continue
        if not torch.equal(torch.isinf(ours), torch.isinf(true)) or torch.isnan(ours).any():
            wrong.append(f"{name} has an infinity or NaN in a wrong place")
            continue
        ours, true, least = (torch.nan_to_num(x.double(), neginf=0.0) for x in (ours, true, floor[name]))
        dtype = torch.float32 if name in ("lse", "dsinks") else case.dtype
        error, bound = rms(ours - true), SHARE_OF_FLOOR * rms(least - true) + SPARE[dtype] * rms(true)
        if not error <= bound:
            wrong.append(f"{name} has an RMS error of {error:.2e}, the floor's is {rms(least - true):.2e}")
    return wrong


def computed_with_state(compute, problem):
    """y, the new state and the gradients that the kernels of the launch module `compute` find, by name, on the CPU."""
    with marked_outputs() as outputs:
        y, state = compute.forward(problem.inputs, problem.options, True)
        found = compute.backward(problem.dy, problem.dstate, problem.inputs, problem.options)
        assert outputs.are_whole(), "a kernel writes beside a tensor"
    results = {"y": y, "new_state": state} | {"d" + name: x for name, x in found._asdict().items()}
    return {name: x.cpu() for name, x in results.items() if x is not None}


def exact_with_state(compute, problem, y, state, leaves):
    """y, the new state and the gradients of `leaves`, the first inputs, in float64, by name."""
    loss = (y * problem.dy.cpu().double()).sum()
    if problem.dstate is not None:
        loss = loss + (state * problem.dstate.cpu().double()).sum()
    given = {"d" + name: x for name, x in zip(compute.Gradients._fields, leaves) if x is not None}
    gradients = torch.autograd.grad(loss, list(given.values()), allow_unused=True, materialize_grads=True)
    return {"y": y.detach(), "new_state": state.detach(), **dict(zip(given, gradients))}


# What a result that is computed in f32 and rounded once may have of relative RMS error, beside 1.1 times the rounding's.
SPARE_OF_F32 = 5e-6


def errors_rounded_once(results, exact, times=None):
    """errors_of for kernels that compute all in f32; `times` of the spare are allowed to a result by its name."""
    wrong = []
    for name, true in exact.items():
        ours = results[name]
        if ours.shape != true.shape or torch.isnan(ours).any():
            wrong.append(f"{name} has NaN, or shape {tuple(ours.shape)} but must have {tuple(true.shape)}")
            continue
        error, size, spare = rms(ours.double() - true), rms(true), SPARE_OF_F32 * (times or {}).get(name, 1)
        if not error <= 1.1 * rms(true.to(ours.dtype).double() - true) + spare * size + 1e-40:
            wrong.append(f"{name} has a relative RMS error of {error / size:.2e}")
    return wrong
