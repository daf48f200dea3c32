# SPDX-License-Identifier: Apache-2.0
"""The kernels in Triton's interpreter against float64, and faults that the comparison must see."""

import faulthandler
import multiprocessing
import os
import sys
from unittest import mock

import interpreter  # noqa: F401, before Triton

# isort: split

import pytest
import torch

import cases
import faults
from headgate.torch.gpu import kernels, launch

ALL = os.environ.get("HEADGATE_TRITON") == "all"
# One of each kind that differs in the kernels; HEADGATE_TRITON=all takes them all.
QUICK = (
    "none",
    "causal",
    "causal, rows that see nothing",
    "window on both sides",
    "one head of keys for all",
    "a query",
    "no keys",
    "no queries",
    "D 24, Dv 48",
    "packed",
    "packed, window, 64-bit offsets",
    "half of a projection",
    "features first",
    "constant dy",
    "softcap",
    "sinks",
    "sinks of each query",
    "sinks of each query, shared by batches",
    "packed, sinks of each query",
    "no key is there",
    "cache",
    "bf16, gate f32",
    "f16",
    "sigmoid2 mul headwise",
    "ns_sigmoid mul elementwise",
    "silu mul headwise",
    "softplus mul elementwise",
    "identity mul headwise",
    "silu add elementwise",
    "softplus add headwise",
)


def wrong(case):
    problem = cases.problem_of(case)
    return cases.errors_of(case, cases.computed(case, problem), cases.expected_of(case, problem))


@pytest.mark.parametrize("name", cases.NAMED if ALL else QUICK)
def test_kernels_case_matches_float64(name):
    assert not wrong(cases.NAMED[name])


@pytest.mark.parametrize("softcap", [0.0, 1.5])
@pytest.mark.parametrize(
    "rules", [{"causality": "causal", "query_offsets": (0,)}, {"window_left": 4, "window_right": 4}]
)
def test_kernels_largest_number_at_hidden_keys_leaves_nothing(rules, softcap):
    case = cases.Case("hidden", T=20, S=60, gate="elementwise", softcap=softcap, **rules)
    ordinary, huge = cases.problem_of(case), cases.problem_of(case)
    (_, _, _, rule), *_ = huge.parts
    hidden = ~rule.visible(case.T, case.S).any(0)
    assert 16 < hidden.sum() < case.S
    for x in huge.inputs[1:3]:
        x[:, :, hidden] = torch.finfo(x.dtype).max * torch.randn(x[:, :, hidden].shape).sign()
    for name, found in cases.computed(case, huge).items():
        expected = cases.computed(case, ordinary)[name]
        assert (found is None and expected is None) or torch.equal(found, expected), name


# What is planted: text of kernels.py, what replaces its first occurrence, and the case that must see it.
FAULTS = {
    "the causal diagonal is hidden": ("columns <= rows + high", "columns < rows + high", "causal"),
    "the window is a key too short": ("columns >= rows + low", "columns > rows + low", "window on both sides"),
    "a masked block is taken for a whole one": (
        "tl.minimum(all_to, first + high + 1)",
        "tl.minimum(all_to, first + high + 33)",
        "causal",
    ),
    "query heads share keys in another order": ("_base(k, b, h // GROUP", "_base(k, b, h % (H // GROUP)", "headwise"),
    "dk sums another group": ("head = h * GROUP + member", "head = h + member * H", "headwise"),
    "old sums are not scaled to a new maximum": ("acc * shrink[:, None]", "acc", "headwise"),
    "the maximum is not in the log-sum-exp": ("(top + tl.log2(", "(0.0 * top + tl.log2(", "headwise"),
    "dlse has the wrong sign": ("d -= tl.load(dlse", "d += tl.load(dlse", "sinks"),
    "the slope of another function": (
        'if FN == "sigmoid" or FN == "sigmoid2":\n        slope = _sigmoid(-z)',
        'if FN == "sigmoid" or FN == "sigmoid2":\n        slope = _sigmoid(z)',
        "causal",
    ),
    "a headwise gate is left out of dp": ("dp = dp * g[None, :]", "dp = dp * 1.0", "headwise"),
    "the cap's slope is left out": ("slope = 1.0 - c * c", "slope = 1.0 + 0.0 * c", "softcap"),
    "sinks are not in base 2": (
        "top = tl.load(own, mask=queries < t, other=0.0).to(tl.float32) * LOG2E",
        "top = tl.load(own, mask=queries < t, other=0.0).to(tl.float32)",
        "sinks",
    ),
    "queries of a sequence take the first sink": ("+ queries * sinks_t", "+ queries * 0", "sinks of each query"),
    "a tile of another sequence": ("+ middle <= tile", "+ middle < tile", "packed"),
    "lengths move the diagonal": (
        "shift = (n * 0 + s - t).to(tl.int64)",
        "shift = (tl.load(key_lengths + n) - t).to(tl.int64)",
        "no key is there",
    ),
    "a row behind the tensor is read": (
        "mask=(first + rows)[:, None] < n_rows, other",
        "mask=(first + rows)[:, None] <= n_rows, other",
        "headwise",
    ),
    "a row behind the tensor is written": (
        "mask=(rows[:, None] < n_rows) & (columns",
        "mask=(rows[:, None] <= n_rows) & (columns",
        "headwise",
    ),
    "q is scaled and rounded before the product": (
        "    k_base = _base(k, b, h // GROUP",
        "    q_rows = (q_rows.to(tl.float32) * outer).to(q_rows.dtype)\n    outer = 1.0\n"
        "    k_base = _base(k, b, h // GROUP",
        "f16",
    ),
    "o is rounded before the gate": ("o = o * g", "o = o.to(y.dtype.element_ty).to(tl.float32) * g", "bf16 headwise"),
    "weights are rounded to the wrong type": ("p.to(v.dtype)", "p.to(tl.float8e5).to(v.dtype)", "f16"),
}


@pytest.mark.filterwarnings("ignore:All-NaN slice")
@pytest.mark.parametrize("fault", FAULTS)
def test_comparison_planted_fault_is_seen(fault, tmp_path):
    old, new, case = FAULTS[fault]
    with mock.patch.object(launch, "kernels", faults.with_fault(kernels, old, new, tmp_path)):
        assert faults.seen(lambda: wrong(cases.NAMED[case]))


def in_a_process(case, folder, old="", new=""):
    """Computes a case in a process of its own, which addresses out of bounds may end. Returns its exit status."""

    def compute():
        faulthandler.disable()  # an exit that is expected needs no trace
        with mock.patch.object(launch, "kernels", faults.with_fault(kernels, old, new, folder)):
            sys.exit(bool(wrong(cases.NAMED[case])))

    process = multiprocessing.get_context("fork").Process(target=compute)
    process.start()
    process.join()
    return process.exitcode


def test_offsets_beyond_32_bits_are_right(tmp_path):
    """Heads that lie 2^30 elements apart, in memory of which pages that are not touched cost nothing."""
    assert in_a_process("far heads", tmp_path) == 0
    assert in_a_process("far heads", tmp_path, "h.to(tl.int64) * stride_h", "h * stride_h") != 0


def test_results_of_packed_sequences_are_those_of_separate_calls():
    """Bitwise, with a batch of two in place of a packed one."""
    one = cases.Case("", B=1, T=40, S=40, causality="causal", gate="elementwise")
    packed = one._replace(lengths=((40, 40),))
    results = [cases.computed(case, cases.problem_of(case)) for case in (one, packed)]
    assert all(results[0][name].equal(results[1][name]) for name in results[0])
