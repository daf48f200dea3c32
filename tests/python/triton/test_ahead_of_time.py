# SPDX-License-Identifier: Apache-2.0
"""Shipped configurations, compiled for GPUs that are not there: they fit, use matrix units and have no atomics."""

import os

import pytest
import torch
import triton
import triton.language as tl

import ahead
from headgate.torch.gpu.tiles import KERNELS

Problem = ahead.Problem
# Bytes of stack that a program may spill; of linear attention, the most of the table in docs/design/gpu.md.
MOST_STACK, MOST_STACK_LINEAR = 96, 744

QUICK = (
    ("sm_90", Problem(128, gate="headwise")),
    ("sm_90", Problem(128)),
    ("sm_80", Problem(64, gate="headwise")),
    ("gfx942", Problem(128, gate="headwise")),
)
WHOLE = (
    *((target, Problem(D, gate=gate)) for target in ("sm_90", "sm_80", "gfx942") for D in (64, 128, 256) for gate in ("headwise", "elementwise")),
    *((target, Problem(D, torch.float32)) for target in ("sm_90", "sm_80") for D in (64, 128, 256)),
    ("gfx942", Problem(64, torch.float32)),
    ("sm_90", Problem(128, torch.float16)),
    ("sm_90", Problem(128, gate="none", causality="none")),
    ("sm_90", Problem(128, window_left=512, gate="headwise")),
    ("sm_90", Problem(128, packed=True, layout="bthd")),
    ("sm_90", Problem(128, softcap=20.0, sinks=True)),
    ("sm_90", Problem(128, gate_fn="silu")),
    ("sm_90", Problem(128, gate_op="add", gate_fn="softplus", gate="headwise")),
    ("sm_90", Problem(80, DV=96)),
    *(("sm_100", Problem(D, gate=gate)) for D in (64, 128, 256) for gate in ("headwise", "elementwise")),
    ("gfx90a", Problem(128)),
)  # fmt: skip
CASES = WHOLE if os.environ.get("HEADGATE_TRITON") == "all" else QUICK


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory):
    """Compiles everything, and writes nothing into the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("triton")))
        yield


@pytest.mark.parametrize(
    "target, problem", CASES, ids=lambda x: x if isinstance(x, str) else f"{x.D}-{x.gate}-{x.dtype}"
)
def test_compiled_kernels_fit_and_have_no_atomics(target, problem):
    launches = ahead.launches_of(problem, target)
    assert [launched.name for launched in launches] == list(KERNELS)
    for launched in launches:
        found = ahead.compiled(launched, target)
        assert found.shared <= ahead.SHARED[target], launched.name
        assert found.stack <= MOST_STACK, (launched.name, found)
        assert found.atomics == 0, launched.name
        if launched.name != "attention_backward_rows" and problem.dtype != torch.float32:
            assert found.matrix_instructions > 0, launched.name
            if target == "sm_90" and problem.D <= 128:
                assert found.warpgroup_instructions > 0, launched.name


@pytest.mark.parametrize("target", ("sm_90", "sm_80", "gfx942") if WHOLE is CASES else ("sm_90",))
@pytest.mark.parametrize("D, decays", ((64, 1), (128, 1), (64, 64), (128, 128)) if WHOLE is CASES else ((128, 1),))
def test_compiled_linear_kernels_fit_and_have_no_atomics(target, D, decays):
    launches = ahead.linear_launches(target, D, decays=decays)
    assert [launched.name for launched in launches] == [
        "linear_forward", "linear_forward", "linear_backward_states", "linear_backward_chunks"
    ]  # fmt: skip
    for launched in launches[1:]:
        found = ahead.compiled(launched, target)
        assert found.shared <= ahead.SHARED[target] and found.atomics == 0, (launched.name, found)
        assert found.stack <= MOST_STACK_LINEAR, (launched.name, found)


@pytest.mark.parametrize(
    "target", ("sm_90", "sm_80", "sm_100", "gfx942", "gfx90a") if WHOLE is CASES else ("sm_80", "gfx942")
)
@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float32) if WHOLE is CASES else (torch.bfloat16,))
def test_compiled_row_kernels_fit_and_have_no_atomics(target, dtype):
    launches = ahead.row_launches(dtype)
    assert [launched.name for launched in launches] == [
        "convolution_forward", "convolution_backward_sums", "convolution_backward_rows", "norm_forward", "norm_backward"
    ]  # fmt: skip
    for launched in launches:
        found = ahead.compiled(launched, target)
        assert found.shared <= ahead.SHARED[target] and found.atomics == 0, (launched.name, found)
        assert found.stack <= (0 if dtype == torch.bfloat16 else 16), (launched.name, found)


def test_compiled_kernel_with_an_atomic_is_counted():
    """That the search for atomics finds one: a kernel of its own adds to a number."""

    @triton.jit
    def count(total):
        tl.atomic_add(total, 1)

    for target in ("sm_90", "gfx942"):
        launched = ahead.Launch(count, {"total": torch.empty(1, dtype=torch.int32, device="meta")}, 4, 1)
        assert ahead.compiled(launched, target).atomics > 0
