# SPDX-License-Identifier: Apache-2.0
"""Compiles the kernels as launch.py launches them, for GPUs that are not there, and reads what they take.

A program, too: `ahead.py [TARGET …]` prints, for the table in docs/design/gpu.md, each kernel's tile, warps and stages, and
what it takes: registers / bytes of stack / KiB of shared memory.
"""

import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from headgate.torch.gpu import convolution_launch, launch, linear_launch, norm_launch
from headgate.torch.gpu.tiles import KERNELS, architecture

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
    "gfx90a": GPUTarget("hip", "gfx90a", 64),
}
# What a program may have of shared memory, in bytes.
SHARED = {"sm_80": 163 << 10, "sm_90": 227 << 10, "sm_100": 227 << 10, "gfx942": 64 << 10, "gfx90a": 64 << 10}
_NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16", torch.int32: "i32", torch.int64: "i64"}


class Launch(NamedTuple):
    """A kernel with the arguments of a launch."""

    kernel: object
    arguments: dict
    num_warps: int
    num_stages: int

    @property
    def name(self):
        return self.kernel.fn.__name__


class Resources(NamedTuple):
    """What a compiled kernel takes of a GPU, and which instructions it has. registers: AMD's vector registers."""

    registers: int
    stack: int
    shared: int
    matrix_instructions: int
    warpgroup_instructions: int
    atomics: int
    seconds: float


class Problem(NamedTuple):
    """What decides which kernels are compiled."""

    D: int = 128
    dtype: torch.dtype = torch.bfloat16
    gate: str = "elementwise"
    causality: str = "causal"
    window_left: int = -1
    gate_fn: str = "sigmoid"
    gate_op: str = "mul"
    softcap: float = 0.0
    packed: bool = False
    sinks: bool = False
    DV: int | None = None
    layout: str = "bhtd"


def _recorder():
    """A list of launches, and a launcher that appends to it."""
    recorded = []

    class Recorder:
        def __init__(self, kernel):
            self._kernel = kernel

        def __getitem__(self, grid):
            def record(*, num_warps, num_stages, **arguments):
                recorded.append(Launch(self._kernel, arguments, num_warps, num_stages))

            return record

    return recorded, Recorder


def linear_launches(target, D=128, dtype=torch.bfloat16, decays=1):
    """The kernels that forward and backward of gated linear attention launch on a target, for Gated DeltaNet.

    decays: 1, or D as Kimi Delta Attention has them.
    """
    recorded, Recorder = _recorder()

    def made(heads, features, dtype=dtype):
        return torch.empty(2, 4096, heads, features, dtype=dtype, device="meta")

    f32 = torch.float32
    inputs = linear_launch.Inputs(made(4, D), made(4, D), made(8, D), made(8, decays, f32), made(8, 1, f32))
    options = linear_launch.Options("bthd", l2_norm=1e-6)
    with mock.patch.object(launch, "backend", lambda: TARGETS[target].backend):
        y, _ = linear_launch.forward(inputs, options, True, Recorder)
        linear_launch.backward(y, None, inputs, options, launcher=Recorder)
    return recorded


def row_launches(dtype=torch.bfloat16):
    """The kernels that forward and backward of short convolution and gated norm launch, for Gated DeltaNet: on any target."""
    recorded, Recorder = _recorder()

    def made(*shape, dtype=dtype):
        return torch.empty(shape, dtype=dtype, device="meta")

    inputs = convolution_launch.Inputs(made(2, 4096, 3072), made(3072, 4), state=made(2, 3, 3072))
    y, state = convolution_launch.forward(inputs, convolution_launch.Options(), True, Recorder)
    convolution_launch.backward(y, state, inputs, convolution_launch.Options(), launcher=Recorder)
    inputs = norm_launch.Inputs(made(2, 4096, 8, 128), made(128), made(2, 4096, 8, 128))
    y = norm_launch.forward(inputs, norm_launch.Options("bthd"), Recorder)
    norm_launch.backward(y, inputs, norm_launch.Options("bthd"), launcher=Recorder)
    return recorded


def launches_of(problem, target, tiles=None):
    """The kernels that forward and backward of attention launch for a problem on a target."""
    recorded, Recorder = _recorder()

    DV = problem.DV or problem.D
    B, Hq, Hkv, T = (1 if problem.packed else 2), 8, 2, 4096

    def made(heads, features, dtype=problem.dtype):
        shape = (B, heads, T, features) if problem.layout == "bhtd" else (B, T, heads, features)
        return torch.empty(shape, dtype=dtype, device="meta")

    starts = torch.empty(9, dtype=torch.int32, device="meta") if problem.packed else None
    gate = {"none": 0, "headwise": 1, "elementwise": DV}[problem.gate]
    inputs = launch.Inputs(
        made(Hq, problem.D), made(Hkv, problem.D), made(Hkv, DV), made(Hq, gate) if gate else None,
        sinks=torch.empty(Hq, device="meta") if problem.sinks else None, cu_seqlens_q=starts, cu_seqlens_k=starts,
    )  # fmt: skip
    options = launch.Options(
        problem.layout, None, problem.softcap, problem.causality, problem.window_left, -1, problem.gate_fn,
        problem.gate_op, tiles,
    )  # fmt: skip
    keep = problem.gate != "none" and (problem.gate_op == "add" or problem.gate_fn in ("silu", "identity"))
    column = architecture(TARGETS[target].backend, TARGETS[target].arch)
    with mock.patch.object(launch, "_column", lambda: column):
        y, lse, attn = launch.forward(inputs, options, keep, Recorder)
        wanted = ("q", "k", "v", "gate")
        launch.backward(torch.empty_like(y), None, y, lse, attn, inputs, options, wanted, Recorder)
    return recorded


def _specialized(launched):
    """The signature that Triton gives a launch: whole numbers of 1 are constants, those divisible by 16 are marked."""
    signature, constants, attributes = {}, {}, {}
    kernel = launched.kernel
    fixed = {name for name, parameter in zip(kernel.arg_names, kernel.params) if parameter.is_constexpr}
    for position, name in enumerate(kernel.arg_names):
        value = launched.arguments[name]
        if name in fixed or value is None or (isinstance(value, int) and value == 1):
            signature[name] = "constexpr"
            constants[name] = value
        elif isinstance(value, torch.Tensor):
            signature[name] = f"*{_NAMES[value.dtype]}"
            attributes[(position,)] = [["tt.divisibility", 16]]
        elif isinstance(value, float):
            signature[name] = "fp32"
        else:
            signature[name] = "i32" if -(2**31) <= value < 2**31 else "i64"
            if value % 16 == 0:
                attributes[(position,)] = [["tt.divisibility", 16]]
    return ASTSource(kernel, signature, constexprs=constants, attrs=attributes)


def _count(pattern, text):
    return len(re.findall(pattern, text))


def compiled(launched, target):
    """Compiles a launch for a target."""
    began = time.perf_counter()
    options = {"num_warps": launched.num_warps, "num_stages": launched.num_stages}
    found = triton.compile(_specialized(launched), target=TARGETS[target], options=options)
    seconds = time.perf_counter() - began
    if "ptx" in found.asm:
        ptx = found.asm["ptx"]
        tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            Path(file.name).write_bytes(found.asm["cubin"])
            usage = subprocess.run([tool, "--dump-resource-usage", file.name], capture_output=True, text=True).stdout
        registers, stack = re.search(r"REG:(\d+) STACK:(\d+)", usage).groups()
        warpgroup = _count(r"wgmma\.mma_async", ptx)
        matrix = warpgroup + _count(r"\bmma\.sync", ptx) + _count(r"\btcgen05\.mma", ptx)
        atomics = _count(r"\b(?:atom|red)\.", ptx)
    else:
        asm = found.asm["amdgcn"]
        registers, stack = (
            int(re.search(rf"\.{word}:\s+(\d+)", asm)[1]) for word in ("vgpr_count", "private_segment_fixed_size")
        )
        warpgroup, matrix = 0, _count(r"\bv_mfma", asm)
        atomics = _count(r"(?:global|flat|buffer|ds)_(?:atomic|add|cmpst)", asm)
    return Resources(int(registers), int(stack), found.metadata.shared, matrix, warpgroup, atomics, seconds)


def cell_of(launched, target):
    """A cell of the table in docs/design/gpu.md."""
    found = compiled(launched, target)
    # How kernels name the sizes of their tiles.
    of_kernels = (("BLOCK_M", "BLOCK_N"), ("BLOCK_T", "BLOCK_C"), ("C", "BLOCK_DV"))
    names = next(names for names in of_kernels if names[0] in launched.arguments)
    tile = "×".join(str(launched.arguments[name]) for name in names if launched.arguments.get(name))
    over = " TOO MUCH" if found.shared > SHARED[target] else ""
    resources = f"{found.registers} / {found.stack} / {found.shared / 1024:.3g}{over}"
    return f"{tile}, {launched.num_warps}, {launched.num_stages}: {resources}"


def main(targets):
    targets = targets or ["sm_80", "sm_90", "gfx942"]
    print(f"Triton {triton.__version__}, PyTorch {torch.__version__}\n")
    print("| type | kernel | D = Dv |", " | ".join(targets), "|")
    print("|" + "---|" * (3 + len(targets)))
    for dtype in (torch.bfloat16, torch.float32):
        for n, kernel in enumerate(KERNELS):
            for D in (64, 128, 256):
                cells = []
                for target in targets:
                    cells.append(cell_of(launches_of(Problem(D, dtype), target)[n], target))
                name = kernel.removeprefix("attention_").replace("_", " ")
                print(f"| {_NAMES[dtype]} | {name} | {D} |", " | ".join(cells), "|", flush=True)
    print("\n| linear attention, convolution, norm | D = Dv |", " | ".join(targets), "|")
    print("|" + "---|" * (2 + len(targets)))
    for D, decays in ((64, 1), (128, 1), (128, 128)):
        for n in (1, 2, 3):  # the first launch is the second without states
            own = [linear_launches(target, D, decays=decays)[n] for target in targets]
            cells = [cell_of(launched, target) for launched, target in zip(own, targets)]
            of_features = " of features" if decays > 1 else ""
            print(f"| {own[0].name}{of_features} | {D} |", " | ".join(cells), "|", flush=True)
    for launched in row_launches():
        print(f"| {launched.name} | |", " | ".join(cell_of(launched, target) for target in targets), "|", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
