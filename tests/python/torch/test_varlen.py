# SPDX-License-Identifier: Apache-2.0
"""headgate.torch.varlen_attn against plain formulas, sequence by sequence, with the arguments of PyTorch's function."""

import inspect

import pytest
import torch

import plain
from headgate.torch import AuxRequest, varlen_attn

pytorch = pytest.importorskip("torch.nn.attention.varlen", reason="PyTorch before 2.10 has none")
H, HKV, D, DV = 4, 2, 3, 5
LENGTHS_Q, LENGTHS_K = (2, 0, 4, 1), (3, 1, 6, 5)


def begins(lengths):
    return torch.tensor([0, *torch.tensor(lengths).cumsum(0)], dtype=torch.int32)


def problem(heads=HKV):
    shapes = ((sum(LENGTHS_Q), H, D), (sum(LENGTHS_K), heads, D), (sum(LENGTHS_K), heads, DV))
    return [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]


def expected_of(q, k, v, z=None, lengths_k=LENGTHS_K, **options):
    """y (Tq,H,Dv) and lse (H,Tq); of each sequence the first keys as `lengths_k` says."""
    rows, columns = begins(LENGTHS_Q).tolist(), begins(LENGTHS_K).tolist()
    parts = []
    for n, keys in enumerate(lengths_k):
        one = [q[rows[n] : rows[n + 1]], *(x[columns[n] : columns[n] + keys] for x in (k, v))]
        gate = None if z is None else z[rows[n] : rows[n + 1]].transpose(0, 1)[None]
        parts.append(plain.attention(*(x.transpose(0, 1)[None] for x in one), gate, **options))
    return torch.cat([y[0].transpose(0, 1) for y, _ in parts]), torch.cat([lse[0] for _, lse in parts], dim=1)


def call(tensors, **options):
    cu_q, cu_k = begins(LENGTHS_Q), begins(LENGTHS_K)
    return varlen_attn(*tensors, cu_q, cu_k, max(LENGTHS_Q), max(LENGTHS_K), enable_gqa=True, **options)


def assert_near(ours, expected):
    torch.testing.assert_close(ours, expected, rtol=1e-12, atol=1e-12)


def test_arguments_are_those_of_pytorch():
    theirs = inspect.signature(pytorch.varlen_attn).parameters
    ours = inspect.signature(varlen_attn).parameters
    assert [name for name in ours if name in theirs] == list(theirs)
    for name, parameter in theirs.items():
        assert (ours[name].kind, ours[name].default) == (parameter.kind, parameter.default)


@pytest.mark.parametrize(
    "window, rules",
    [
        ((-1, -1), {}),
        ((-1, 0), {"causality": "causal"}),
        ((2, 0), {"causality": "causal", "window_left": 2}),
        ((1, 1), {"window_left": 1, "window_right": 1}),
    ],
)
def test_windows_match_the_formulas(window, rules):
    tensors = problem()
    for scale in (None, 0.4):
        y, lse = call(tensors, window_size=window, scale=scale, return_aux=pytorch.AuxRequest(lse=True))
        expected, expected_lse = expected_of(*tensors, scale=scale, **rules)
        assert_near(y, expected)
        assert_near(lse, expected_lse)
        found = [
            torch.autograd.grad(a.square().sum() + b[b.isfinite()].sum(), tensors)
            for a, b in ((y, lse), (expected, expected_lse))
        ]
        for ours, theirs in zip(*found):
            assert_near(ours, theirs)


def test_output_stands_alone_without_return_aux():
    tensors = problem()
    y = call(tensors)
    assert torch.equal(y, call(tensors, return_aux=AuxRequest()))
    assert torch.equal(y, call(tensors, return_aux=AuxRequest(lse=True), num_splits=1)[0])


def test_gate_multiplies_the_output():
    tensors = problem()
    for z in (torch.randn(sum(LENGTHS_Q), H, 1).double(), torch.randn(sum(LENGTHS_Q), H, DV).double()):
        assert_near(call(tensors, gate=z, gate_fn="silu"), expected_of(*tensors, z, gate_fn="silu")[0])


def test_used_keys_move_the_alignment():
    tensors, used = problem(), (2, 1, 5, 3)
    y = call(tensors, seqused_k=torch.tensor(used, dtype=torch.int32), window_size=(-1, 0))
    assert_near(y, expected_of(*tensors, lengths_k=used, causality="causal")[0])


def test_pages_match_keys_in_a_row():
    q, k, v = (x.detach() for x in problem())
    used, page, columns = torch.tensor(LENGTHS_K, dtype=torch.int32), 2, begins(LENGTHS_K).tolist()
    table = torch.arange(12, dtype=torch.int32).view(4, 3).flip(0)
    pages = [torch.zeros(12, page, HKV, x.shape[-1], dtype=x.dtype) for x in (k, v)]
    for n, keys in enumerate(LENGTHS_K):
        for j in range(keys):
            for x, paged in zip((k, v), pages):
                paged[table[n, j // page], j % page] = x[columns[n] + j]
    options = {"enable_gqa": True, "window_size": (-1, 0), "return_aux": AuxRequest(lse=True)}
    y, lse = varlen_attn(q, *pages, begins(LENGTHS_Q), None, 4, 6, seqused_k=used, block_table=table, **options)
    expected, expected_lse = expected_of(q, k, v, causality="causal")
    assert_near(y, expected)
    assert_near(lse, expected_lse)


def test_arguments_that_do_not_fit_are_refused():
    q, k, v = problem()
    cu_q, cu_k = begins(LENGTHS_Q), begins(LENGTHS_K)
    for arguments, options, message in (
        ((q, k, v, cu_q, cu_k, 4, 6), {}, "query has 4 heads and key 2: set enable_gqa=True"),
        ((q[:, :3], k, v, cu_q, cu_k, 4, 6), {"enable_gqa": True}, "query has 3 heads, which 2 of key do not divide"),
        ((q[0], k, v, cu_q, cu_k, 4, 6), {}, "query has 2 dimensions but must have 3"),
        ((q, k, v, cu_q, None, 4, 6), {"enable_gqa": True}, "cu_seq_k is None but there is no block_table"),
        ((q, k, v, cu_q[:-1], cu_k, 4, 6), {"enable_gqa": True}, "cu_seq_q"),
    ):
        with pytest.raises(ValueError, match="varlen_attn: .*" + message):
            varlen_attn(*arguments, **options)


def test_compiles_without_graph_breaks():
    torch._dynamo.reset()
    tensors = problem()
    expected = call(tensors, window_size=(-1, 0))
    assert_near(torch.compile(call, fullgraph=True, backend="aot_eager")(tensors, window_size=(-1, 0)), expected)
