# SPDX-License-Identifier: Apache-2.0
"""headgate.torch.scaled_dot_product_attention against PyTorch's function of the same name."""

import itertools
import math
import re
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right, causal_upper_left

import plain
from headgate.torch import gated_attention, scaled_dot_product_attention

B, H, L, S, E, EV = 2, 4, 5, 7, 3, 6
F64 = torch.float64


def normal(*shape, dtype=F64):
    return torch.randn(shape, dtype=dtype)


def visible(*shape):
    """A mask whose first row hides every key."""
    mask = torch.rand(*shape) > 0.4
    mask[..., 0, :] = False
    return mask


def theirs(*tensors, **options):
    with sdpa_kernel(SDPBackend.MATH):
        return F.scaled_dot_product_attention(*tensors, **options)


def assert_same(tensors, options=None, tolerance=1e-12):
    """Compares the results, and the gradients of all that has one, with PyTorch's."""
    options = dict(options or {})
    found = []
    for function in (scaled_dot_product_attention, theirs):
        leaves = [x.detach().clone().requires_grad_() for x in tensors]
        given = dict(options)
        if given.get("attn_mask") is not None and given["attn_mask"].is_floating_point():
            given["attn_mask"] = given["attn_mask"].clone().requires_grad_()
            leaves.append(given["attn_mask"])
        y = function(*leaves[:3], **given)
        weight = torch.linspace(0.5, 1.5, y.numel(), dtype=torch.float64).view(y.shape).to(y.dtype)
        found.append([y, *torch.autograd.grad((y * weight).sum(), leaves)])
    for ours, expected in zip(*found, strict=True):
        assert ours.dtype == expected.dtype and ours.shape == expected.shape
        torch.testing.assert_close(ours, expected, rtol=tolerance, atol=tolerance)


SHAPES = {
    "one head": ((L, E), (S, E), (S, EV)),
    "heads without a batch": ((H, L, E), (H, S, E), (H, S, EV)),
    "batch": ((B, H, L, E), (B, H, S, E), (B, H, S, EV)),
    "more leading dimensions": ((2, 1, H, L, E), (2, 3, H, S, E), (2, 3, H, S, EV)),
    "broadcast batch and heads": ((H, L, E), (B, H, S, E), (B, 1, S, EV)),
    "one key head": ((B, H, L, E), (B, 1, S, E), (B, 1, S, EV)),
    "one query head": ((B, 1, L, E), (B, H, S, E), (1, H, S, EV)),
    "more queries than keys": ((B, H, S, E), (B, H, L, E), (B, H, L, E)),
    "one row for all heads": ((L, E), (B, H, S, E), (S, EV)),
}


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("name", SHAPES)
def test_shapes_match_pytorch(name, is_causal):
    assert_same([normal(*shape) for shape in SHAPES[name]], {"is_causal": is_causal})


@pytest.mark.parametrize("lengths", [(L, S), (S, L), (L, L)])
@pytest.mark.parametrize("bias", [causal_lower_right, causal_upper_left])
def test_causal_bias_matches_pytorch(bias, lengths):
    q, k, v = normal(B, H, lengths[0], E), normal(B, H, lengths[1], E), normal(B, H, lengths[1], EV)
    y = scaled_dot_product_attention(q, k, v, bias(*lengths))
    torch.testing.assert_close(y, F.scaled_dot_product_attention(q, k, v, bias(*lengths)))
    with pytest.raises(ValueError, match="attn_mask is a CausalBias, which cannot be given together with is_causal"):
        scaled_dot_product_attention(q, k, v, bias(*lengths), is_causal=True)
    with pytest.raises(ValueError, match="gated_attention: bias is a CausalBias of PyTorch, which has no values"):
        gated_attention(q, k, v, bias=bias(*lengths))


@pytest.mark.parametrize("floating", [False, True])
@pytest.mark.parametrize(
    "shape", [(L, S), (H, 1, S), (B, 1, L, S), (1, H, L, S), (B, H, L, S), (L, 1), (1, 1), (S,), ()]
)
def test_masks_of_any_shape_match_pytorch(shape, floating):
    mask = normal(*shape) if floating else torch.rand(shape) > 0.3
    assert_same([normal(B, H, L, E), normal(B, H, S, E), normal(B, H, S, EV)], {"attn_mask": mask})


@pytest.mark.parametrize("lead", [(), (3,), (2, 2, 3)])
def test_masks_of_other_leading_dimensions_match_pytorch(lead):
    tensors = [normal(*lead, n, E) for n in (L, S, S)]
    for shape in ((L, S), (*lead[-1:], L, S), (*lead, 1, S)):
        assert_same(tensors, {"attn_mask": normal(*shape)})


def test_rows_that_see_nothing_are_zero_as_in_pytorch():
    tensors = [normal(B, H, L, E), normal(B, H, S, E), normal(B, H, S, EV)]
    mask = visible(L, S)
    bias = torch.zeros(L, S, dtype=F64).masked_fill(~mask, -math.inf)
    for given in (mask, bias):
        assert_same(tensors, {"attn_mask": given})
        assert not scaled_dot_product_attention(*tensors, attn_mask=given)[..., 0, :].any()


@pytest.mark.parametrize("of_k, of_v", [(2, 2), (1, 1), (4, 2), (2, 1)])
def test_grouped_queries_match_pytorch(of_k, of_v):
    for batch in (B, 1):
        tensors = [normal(B, H, L, E), normal(batch, of_k, S, E), normal(batch, of_v, S, EV)]
        assert_same(tensors, {"enable_gqa": True, "is_causal": True})
    assert_same([normal(H, L, E), normal(of_k, S, E), normal(of_v, S, EV)], {"enable_gqa": True})


@pytest.mark.parametrize("scale", [None, 0.3, -1, 0.0])
def test_scale_matches_pytorch(scale):
    assert_same([normal(B, H, L, E), normal(B, H, S, E), normal(B, H, S, EV)], {"scale": scale})


@pytest.mark.parametrize(
    "shapes",
    [
        ((B, H, 0, E), (B, H, S, E), (B, H, S, EV)),
        ((B, H, L, E), (B, H, 0, E), (B, H, 0, EV)),
        ((0, H, L, E), (0, H, S, E), (0, H, S, EV)),
        ((0, H, L, E), (1, H, S, E), (1, H, S, EV)),
        ((B, 0, L, E), (B, 0, S, E), (B, 0, S, EV)),
        ((B, H, L, 0), (B, H, S, 0), (B, H, S, EV)),
        ((B, H, L, E), (B, H, S, E), (B, H, S, 0)),
        ((0, E), (S, E), (S, EV)),
        ((1, H, 0, E), (B, H, S, E), (B, H, S, EV)),
        ((1, 1, 0, E), (B, H, S, E), (1, H, S, EV)),
        ((H, 0, E), (B, H, S, E), (B, H, S, EV)),
        ((1, H, L, E), (B, H, 0, E), (B, H, 0, EV)),
        ((1, H, L, E), (0, H, S, E), (0, H, S, EV)),
        ((1, H, L, E), (B, H, S, E), (B, H, S, 0)),
        ((1, H, L, 0), (B, H, S, 0), (B, H, S, EV)),
    ],
    ids=str,
)
@pytest.mark.parametrize("is_causal", [False, True])
def test_empty_dimensions_match_pytorch(shapes, is_causal):
    assert_same([normal(*shape) for shape in shapes], {"is_causal": is_causal})


LEADS = ((1, 2), (0, 2), (3, 2), (3, 1), (1, 0), (2,), (0,), ())


@pytest.mark.parametrize("L, S, E, EV", [(3, 5, 4, 4), (0, 5, 4, 4), (3, 0, 4, 4), (3, 5, 4, 0), (3, 5, 0, 4)])
def test_shape_of_any_empty_result_is_that_of_pytorch(L, S, E, EV):
    for lead in itertools.product(LEADS, repeat=3):
        q, k, v = (torch.zeros(*sizes, *rows) for sizes, rows in zip(lead, ((L, E), (S, E), (S, EV))))
        try:  # PyTorch accepts some empty shapes that do not broadcast
            torch.broadcast_shapes(*lead)
            expected = F.scaled_dot_product_attention(q, k, v)
        except RuntimeError:
            continue
        y = scaled_dot_product_attention(q, k, v)
        assert y.shape == expected.shape and torch.equal(y, expected), lead


EMPTY = {
    "batch": ((0, H, L, E), (0, H, S, E), (0, H, S, EV)),
    "broadcast batch": ((1, H, L, E), (0, H, S, E), (0, H, S, EV)),
    "heads": ((B, 0, L, E), (B, 0, S, E), (B, 0, S, EV)),
    "queries": ((B, H, 0, E), (B, H, S, E), (B, H, S, EV)),
    "broadcast queries": ((1, H, 0, E), (B, H, S, E), (B, H, S, EV)),
    "keys": ((B, H, L, E), (B, H, 0, E), (B, H, 0, EV)),
    "broadcast keys": ((1, H, L, E), (B, H, 0, E), (B, H, 0, EV)),
    "features": ((B, H, L, 0), (B, H, S, 0), (B, H, S, EV)),
    "features of value": ((B, H, L, E), (B, H, S, E), (B, H, S, 0)),
    "broadcast features of value": ((1, H, L, E), (B, H, S, E), (B, H, S, 0)),
}
WRONG = {"gate_fn": "relu", "gate_op": "sub", "softcap": -4.0, "precision": "low", "threads": -1}


@pytest.mark.parametrize("name", EMPTY)
def test_empty_call_checks_its_options(name):
    tensors = [normal(*shape) for shape in EMPTY[name]]
    for option, value in (WRONG | {"sinks": torch.ones(99, dtype=F64)}).items():
        with pytest.raises(ValueError, match=rf"^scaled_dot_product_attention: {option}\b"):
            scaled_dot_product_attention(*tensors, **{option: value})


@pytest.mark.parametrize("name", EMPTY)
@pytest.mark.parametrize("gate_op", ["mul", "add"])
@pytest.mark.parametrize("features", [1, None])
def test_empty_call_has_a_gate_and_gradients(name, gate_op, features):
    leaves = [normal(*shape).requires_grad_() for shape in EMPTY[name]]
    lead = torch.broadcast_shapes(*(x.shape[:-2] for x in leaves))
    rows, width = leaves[0].shape[-2], leaves[2].shape[-1]
    leaves.append(normal(*lead, rows, features or width).requires_grad_())
    if lead[-1:] == (H,):
        leaves.append(normal(H).requires_grad_())
    y = scaled_dot_product_attention(*leaves[:3], gate=leaves[3], gate_op=gate_op, sinks=(*leaves, None)[4])
    assert y.shape == (*lead, rows, width)
    for x, gradient in zip(leaves, torch.autograd.grad(y.sum(), leaves)):
        assert gradient.shape == x.shape
    if name in ("keys", "broadcast keys"):
        expected = torch.sigmoid(leaves[3]) if gate_op == "add" else torch.zeros(())
        torch.testing.assert_close(y, expected.expand(y.shape).to(F64))


@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-5), (torch.bfloat16, 4e-2), (torch.float16, 5e-3)])
def test_dtypes_match_pytorch(dtype, tolerance):
    tensors = [normal(B, H, n, E, dtype=dtype) for n in (L, S, S)]
    for options in ({"is_causal": True}, {"attn_mask": normal(L, S, dtype=dtype)}, {"attn_mask": visible(L, S)}):
        assert_same(tensors, options, tolerance)
    wide = normal(L, S, dtype=torch.float32)
    y = scaled_dot_product_attention(*tensors, attn_mask=wide)
    torch.testing.assert_close(y, F.scaled_dot_product_attention(*tensors, attn_mask=wide), rtol=0, atol=tolerance)


@pytest.mark.parametrize("shape", [(L, S), (B, 1, L, S), (S,)])
def test_mask_of_float32_beside_float64_matches_pytorch(shape):
    tensors = [normal(B, H, n, E) for n in (L, S, S)]
    assert_same(tensors, {"attn_mask": normal(*shape, dtype=torch.float32)}, 1e-6)


def test_gradcheck_of_tensors_and_mask():
    leaves = [normal(*shape).requires_grad_() for shape in ((L, E), (B, 2, S, E), (1, 2, S, EV), (2, L, 1))]
    torch.autograd.gradcheck(lambda q, k, v, m: scaled_dot_product_attention(q, k, v, m), leaves)


def test_views_are_not_changed_by_layout():
    fused = normal(B, L, 3 * H * E)
    q, k, v = (x.unflatten(-1, (H, E)).transpose(1, 2) for x in fused.chunk(3, dim=-1))
    assert_same([q, k, v], {"is_causal": True})


def test_gate_multiplies_the_output():
    q, k, v = normal(B, H, L, E), normal(B, 2, S, E), normal(B, 2, S, EV)
    for z in (normal(B, H, L, 1), normal(1, 1, L, EV), normal(L, 1)):
        y = scaled_dot_product_attention(q, k, v, enable_gqa=True, gate=z, gate_fn="silu")
        expected = plain.attention(q, k, v, z, gate_fn="silu")[0]
        torch.testing.assert_close(y, expected, rtol=1e-12, atol=1e-12)
    sinks = normal(H)
    y = scaled_dot_product_attention(q, k, v, enable_gqa=True, gate=z, sinks=sinks)
    torch.testing.assert_close(y, plain.attention(q, k, v, z, sinks=sinks)[0], rtol=1e-12, atol=1e-12)


def test_gate_of_one_head_needs_no_batch():
    q, k, v, z = normal(L, E), normal(S, E), normal(S, EV), normal(L, 1)
    y = scaled_dot_product_attention(q, k, v, gate=z)
    torch.testing.assert_close(y, theirs(q, k, v) * torch.sigmoid(z), rtol=1e-12, atol=1e-12)


Q, K, V = (torch.zeros(B, H, n, E) for n in (L, S, S))
REFUSED = {
    "mask beside is_causal": ((Q, K, V), {"attn_mask": torch.ones(L, S) > 0, "is_causal": True}, "cannot be given"),
    "types": ((Q, K.double(), V), {}, "not of one type"),
    "integers": ((Q.int(), K.int(), V.int()), {}, "query is torch.int32 but must be float32"),
    "features": ((Q, K[..., :2], V), {}, "query has 3 features and key 2"),
    "rows": ((Q, K, V[:, :, :2]), {}, "key has 7 rows and value 2"),
    "heads": ((Q, K[:, :3], V[:, :3]), {}, "do not broadcast"),
    "grouped heads": ((Q, K[:, :3], V[:, :3]), {"enable_gqa": True}, "which 3 of key or 3 of value do not divide"),
    "one dimension": ((Q[0, 0, 0], K, V), {}, "1, 4 and 4 dimensions but must have at least 2"),
    "grouped rows": ((Q[0, 0], K[0, 0], V[0, 0]), {"enable_gqa": True}, "must have at least 3"),
    "mask shape": ((Q, K, V), {"attn_mask": torch.zeros(L, L)}, r"must broadcast to \(2,4,5,7\)"),
    "wider mask": ((Q, K, V), {"attn_mask": torch.zeros(3, 1, 1, L, S)}, "must broadcast to"),
    "mask of integers": ((Q, K, V), {"attn_mask": torch.zeros(L, S).int()}, "must be one of bool, float32$"),
    "mask of f64": ((Q, K, V), {"attn_mask": torch.zeros(L, S).double()}, "must be one of bool, float32$"),
    "dropout": ((Q, K, V), {"dropout_p": 1.5}, r"dropout_p is 1.5 but must be in \[0, 1\]"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_pytorch_refuses_is_a_runtime_error(name):
    tensors, options, message = REFUSED[name]
    with pytest.raises(RuntimeError, match="scaled_dot_product_attention: .*" + message):
        scaled_dot_product_attention(*tensors, **options)
    with pytest.raises((RuntimeError, IndexError)):
        theirs(*tensors, **options)


ODD = (None, True, False, 0, 1, 0.5, 1j, "no", [], (), {}, 10**400, F, Decimal("0.5"), Fraction(1, 2)) + (
    *(torch.ones(shape) for shape in ((), (1,), (2,), (2, 2))),
    *(kind(0.5) for kind in (np.float64, np.float32, np.float16)),
    *(np.int64(0), np.bool_(True), np.ones(2), np.ones((2, 2)), torch.tensor(True), torch.tensor(0)),
    torch.tensor(0.5, requires_grad=True),
)


@pytest.mark.parametrize("name", ["is_causal", "enable_gqa", "dropout_p", "scale"])
@pytest.mark.parametrize("value", ODD, ids=lambda x: f"{type(x).__name__} {str(x)[:20]}")
def test_type_error_is_raised_where_pytorch_raises_it(name, value):
    raised = []
    for function in (F.scaled_dot_product_attention, scaled_dot_product_attention):
        try:
            function(Q, K, V, **{name: value})
            raised.append(None)
        except Exception as error:
            raised.append(error)
    theirs_, ours = raised
    assert isinstance(ours, TypeError) == isinstance(theirs_, TypeError)
    if ours is not None:
        names = f"{name}|dropout" if name == "dropout_p" else name
        assert re.fullmatch(rf"scaled_dot_product_attention: ({names}) [^\n]*", str(ours)) and len(str(ours)) < 200


@pytest.mark.parametrize(
    "change, options, message",
    [
        ({}, {"dropout_p": 1.0}, "dropout of 1.0 is not supported"),
        ({}, {"scale": math.inf}, "scale is inf but must be finite"),
        ({"query": torch.zeros(1, 577), "key": torch.zeros(1, 577), "value": torch.zeros(1, 3)}, {}, "at most 576"),
        ({}, {"gate": torch.zeros(B, H, L, 2)}, r"gate has shape \(2,4,5,2\) but must be \(2,4,5,1\) or \(2,4,5,3\)"),
        ({}, {"sinks": torch.zeros(3)}, "scaled_dot_product_attention: sinks has"),
    ],
)
def test_what_headgate_cannot_compute_is_a_value_error(change, options, message):
    with pytest.raises(ValueError, match=message):
        scaled_dot_product_attention(**{"query": Q, "key": K, "value": V, **change}, **options)
    with pytest.raises(TypeError, match="key is None but must be a tensor"):
        scaled_dot_product_attention(Q, None, V)


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiles_without_graph_breaks(dynamic):
    torch._dynamo.reset()

    def block(x, mask):
        q, k, v = x.chunk(3, dim=-1)
        return (
            scaled_dot_product_attention(q, k, v, mask)
            + scaled_dot_product_attention(q[..., :2, :], k, v, is_causal=True).sum()
        )

    compiled = torch.compile(block, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for length in (5, 8):
        x, mask = normal(B, H, length, 9).requires_grad_(), normal(length, length).requires_grad_()
        ours, expected = compiled(x, mask), block(x, mask)
        torch.testing.assert_close(ours, expected)
        for mine, other in zip(*(torch.autograd.grad(y.square().sum(), (x, mask)) for y in (ours, expected))):
            torch.testing.assert_close(mine, other)


def test_autocast_casts_as_pytorch_does():
    q, k, v = (normal(B, H, n, E, dtype=torch.float32) for n in (L, S, S))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = scaled_dot_product_attention(q.bfloat16(), k, v, normal(L, S, dtype=torch.float32))
        assert y.dtype == F.scaled_dot_product_attention(q, k, v).dtype == torch.bfloat16
