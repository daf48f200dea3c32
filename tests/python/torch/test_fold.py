# SPDX-License-Identifier: Apache-2.0
"""headgate.torch.fold beside the formula as models that fold proteins write it, with all gradients."""

import inspect
import itertools
import math
import re

import numpy as np
import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from headgate.torch import fold

H, T, S, D = 3, 11, 13, 8


def made(*shape, learned=True):
    return torch.randn(shape, dtype=torch.float64).requires_grad_(learned)


def plain(q, k, v, biases=(), gate=None, scale=None):
    scores = q @ k.mT * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    for bias in biases:
        scores = scores + bias
    y = scores.softmax(-1) @ v
    return y if gate is None else y * gate.sigmoid()


def hidden_keys(*shape):
    """A bias that hides some keys by -1e9, and shows the first."""
    bias = torch.where(torch.rand(*shape) < 0.3, -1e9, 0.0).double()
    bias[..., 0] = 0.0
    return bias


CASES = {
    "no bias": ((2,), []),
    "no leading dimension": ((), [(H, T, S)]),
    "pairs that all share": ((2, 5), [(1, 1, H, T, S)]),
    "pairs of each structure": ((2, 5), [(2, 1, H, T, S)]),
    "pairs of each row": ((2, 5), [(2, 5, H, T, S)]),
    "pairs along the last dimension": ((2, 5), [(1, 5, H, T, S)]),
    "pairs without leading dimensions": ((2, 5), [(T, S)]),
    "two of pairs": ((4,), [(1, H, T, S), (4, 1, T, S)]),
    "three leading dimensions": ((2, 3, 2), [(2, 1, 1, H, T, S)]),
}


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_attention_matches_the_formula_with_gradients(case, masked, gated):
    lead, shapes = CASES[case]
    tensors = [made(*lead, H, n, D) for n in (T, S, S)]
    pairs = [made(*shape) for shape in shapes]
    gate = made(*lead, H, T, D) if gated else None
    biases = [hidden_keys(*lead, 1, 1, S), *pairs] if masked else pairs
    dy = torch.randn(*lead, H, T, D, dtype=torch.float64)
    learned = [*tensors, *pairs, *([gate] if gated else [])]
    for scale in (None, 0.3):
        found = fold.attention(*tensors, biases, gate, scale=scale)
        expected = plain(*tensors, biases, gate, scale)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(
            torch.autograd.grad(found, learned, dy), torch.autograd.grad(expected, learned, dy), rtol=1e-9, atol=1e-9
        )


FULL = (2, 5, H, T, S)
BROADCAST = [
    tuple(size if kept else 1 for size, kept in zip(FULL[-dims or len(FULL) :], chosen))
    for dims in range(len(FULL) + 1)
    for chosen in itertools.product((True, False), repeat=dims)
]


def test_shapes_that_broadcast_are_all_of_them():
    assert len(set(BROADCAST)) == 2 ** (len(FULL) + 1) - 1


@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize("shape", BROADCAST, ids=str)
def test_bias_of_any_shape_is_added_where_it_belongs(shape, learned):
    q, k, v = (made(2, 5, H, n, D) for n in (T, S, S))
    mask, dy = hidden_keys(2, 5, 1, 1, S), torch.randn(2, 5, H, T, D, dtype=torch.float64)
    bias = made(*shape, learned=learned)
    asked = [q, k, v, *([bias] if learned else [])]
    found, expected = fold.attention(q, k, v, [bias, mask]), plain(q, k, v, [bias, mask])
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(
        torch.autograd.grad(found, asked, dy), torch.autograd.grad(expected, asked, dy), rtol=1e-9, atol=1e-9
    )


def test_rows_of_a_bias_may_hold_zeros_and_ones():
    q, k, v = (made(2, 5, H, n, D) for n in (T, S, S))
    mask, pairs = made(2, 5, 1, 1, S, learned=False), made(1, 5, H, T, S)
    mask[:, 2] = 1.0
    torch.testing.assert_close(fold.attention(q, k, v, [mask, pairs]), plain(q, k, v, [mask, pairs]))


def test_no_sequences_have_no_results():
    q, k, v = (made(0, 5, H, n, D) for n in (T, S, S))
    assert fold.attention(q, k, v, [made(0, 1, H, T, S)]).shape == (0, 5, H, T, D)


def test_bias_and_gate_of_other_dtypes_are_taken():
    q, k, v = (made(2, H, n, D, learned=False).float() for n in (T, S, S))
    bias, gate = made(1, H, T, S, learned=False).bfloat16(), made(2, H, T, D, learned=False).bfloat16()
    torch.testing.assert_close(
        fold.attention(q, k, v, [bias], gate), plain(q, k, v, [bias.float()], gate.float()), rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_float32_biases_of_pairs_are_not_rounded_beside_16_bits(dtype):
    """Rounded to bfloat16, 1000 + 1 is 1000; rounded to float16, -1e9 is -inf."""
    q, k, v = (torch.zeros(2, H, n, D, dtype=dtype) for n in (T, S, S))
    v[..., 0, :] = 1.0
    bias = torch.full((1, H, T, S), 1000.0)
    bias[..., 0] += 1.0
    bias[:, :, 0] = -1e9
    expected = bias.double().softmax(-1)[..., :1].expand(2, H, T, D).to(dtype)
    torch.testing.assert_close(fold.attention(q, k, v, [bias]), expected, rtol=0.01, atol=0)


@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize("rows", [1, T])
def test_sums_of_biases_of_16_bits_are_not_rounded(rows, learned):
    q, k, v = (torch.randn(2, H, n, D) for n in (T, S, S))
    biases = [(100 * torch.rand(2, 1, rows, S)).bfloat16().requires_grad_(learned) for _ in range(2)]
    y = fold.attention(q, k, v, biases)
    expected = plain(*(x.double() for x in (q, k, v)), biases=[b.double() for b in biases])
    torch.testing.assert_close(y.double(), expected, rtol=1e-4, atol=1e-4)


def test_float64_biases_keep_float32_beside_16_bits():
    q, k, v = (torch.randn(2, H, n, D).bfloat16() for n in (T, S, S))
    bias = 100 * torch.rand(2, 1, T, S, dtype=torch.float64)
    assert torch.equal(fold.attention(q, k, v, [bias]), fold.attention(q, k, v, [bias.float()]))


def test_triangle_attention_has_the_arguments_of_cuequivariance():
    q, k, v = (made(2, 5, H, n, D) for n in (T, S, S))
    bias, mask = made(2, 1, H, T, S), hidden_keys(2, 5, 1, 1, S) == 0
    expected = plain(q, k, v, [torch.where(mask, 0.0, -math.inf), bias], scale=0.5)
    torch.testing.assert_close(fold.triangle_attention(q, k, v, bias, mask, 0.5), expected)
    torch.testing.assert_close(fold.triangle_attention(q, k, v, bias), plain(q, k, v, [bias]))


def test_default_device_does_not_change_where_triangle_attention_computes():
    q, k, v, bias = made(1, 2, H, T, D), made(1, 2, H, S, D), made(1, 2, H, S, D), made(1, 1, H, T, S)
    mask = torch.rand(1, 2, 1, 1, S, device="cpu") < 0.7
    expected = fold.triangle_attention(q, k, v, bias, mask)
    with torch.device("meta"):
        y = fold.triangle_attention(q, k, v, bias, mask)
    assert torch.equal(y, expected)
    there = fold.triangle_attention(*(x.to("meta") for x in (q, k, v, bias, mask)))
    assert there.device.type == "meta" and there.shape == y.shape


def test_evoformer_attention_has_the_arguments_of_deepspeed():
    Q, K, V = (made(2, 5, T, H, D) for _ in range(3))
    mask, bias = hidden_keys(2, 5, 1, 1, T), made(2, 1, H, T, T)
    expected = plain(*(x.transpose(-2, -3) for x in (Q, K, V)), [mask, bias]).transpose(-2, -3)
    torch.testing.assert_close(fold.evoformer_attention(Q, K, V, [mask, bias]), expected)
    assert fold.evoformer_attention(Q, K, V, [None, None]).shape == Q.shape


def test_pair_bias_of_0_and_1_equals_its_expanded_form():
    q, k, v = torch.randn(2, H, T, D), torch.randn(2, H, S, D), torch.randn(2, H, S, D)
    bias = (torch.rand(T, S) < 0.5).float()
    assert torch.equal(fold.attention(q, k, v, [bias]), fold.attention(q, k, v, [bias.expand(1, H, T, S)]))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"q": torch.zeros(T, D)}, r"^fold.attention: q has shape \(11, ?8\) but must be \(\*, H, rows, features\)$"),
        ({"k": torch.zeros(3, H, S, D)}, "^fold.attention: k has shape .*: other leading sizes$"),
        (
            {"biases": [torch.zeros(T, T)]},
            r"^fold.attention: biases\[0\] has shape .* must broadcast to \(2, 3, 11, 13\)$",
        ),
        (
            {"biases": [torch.ones(2, 1, 1, S, dtype=torch.bool)]},
            r"biases\[0\] has dtype torch.bool: write torch.where",
        ),
        ({"biases": [torch.ones(2, 1, 1, S)]}, r"biases\[0\] holds only 0 and 1, as a mask does: write \(mask - 1\)"),
        ({"v": torch.zeros(2, H, S + 1, D)}, "^fold.attention: v has shape"),
    ],
)
def test_bad_arguments_are_named(change, words):
    given = {"q": torch.zeros(2, H, T, D), "k": torch.zeros(2, H, S, D), "v": torch.zeros(2, H, S, D)}
    with pytest.raises(ValueError, match=words) as error:
        fold.attention(**{**given, **change})
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda x: fold.attention(x, x, x, x),
            r"^fold.attention: biases is a tensor of shape \(2,3,11,8\) but must be a sequence: write \[bias\]$",
        ),
        (lambda x: fold.evoformer_attention(x, x, x, x), r"^fold.evoformer_attention: biases is a tensor .*\[bias\]$"),
        (lambda x: fold.attention(x, x, x, [None]), r"^fold.attention: biases\[0\] is None but must be a tensor$"),
        (
            lambda x: fold.attention(x, x, x, [x[..., :1], 0.5]),
            r"^fold.attention: biases\[1\] is a float but must be a tensor$",
        ),
        (
            lambda x: fold.attention(x, x, x, None),
            r"^fold.attention: biases is None but must be a sequence: write \[\] for no bias$",
        ),
        (lambda x: fold.attention(None, x, x), r"^fold.attention: q is None but must be a tensor$"),
    ],
)
def test_what_is_no_tensor_is_named(call, words):
    with pytest.raises(TypeError, match=words):
        call(torch.zeros(2, H, T, D))


def test_triangle_attention_takes_lengths_of_keys_and_no_auxiliary_results():
    """The arguments are those of cuequivariance_torch 0.13."""
    names = ["q", "k", "v", "bias", "mask", "scale", "return_aux", "kv_lengths"]
    assert list(inspect.signature(fold.triangle_attention).parameters) == names
    q, k, v = (made(2, 5, H, n, D) for n in (T, S, S))
    bias, lengths = made(2, 1, H, T, S), torch.randint(1, S + 3, (2, 5, 1, 1, 1), dtype=torch.int32)
    y = fold.triangle_attention(q, k, v, bias, None, None, False, kv_lengths=lengths)
    assert torch.equal(y, fold.triangle_attention(q, k, v, bias, torch.arange(S) < lengths))
    with pytest.raises(ValueError, match="^fold.triangle_attention: return_aux is True but must be False"):
        fold.triangle_attention(q, k, v, bias, None, None, True)
    with pytest.raises(ValueError, match="^fold.triangle_attention: mask and kv_lengths cannot be given together$"):
        fold.triangle_attention(q, k, v, bias, torch.arange(S) < lengths, kv_lengths=lengths)


SIDE = torch.randn(1, 3, 4, 4, 4)  # heads, rows and features alike: fits every function
COMPLETE = {
    "attention": {"q": SIDE, "k": SIDE, "v": SIDE, "biases": [SIDE[:1, :1]], "gate": SIDE, "scale": 0.5},
    "triangle_attention": {"q": SIDE, "k": SIDE, "v": SIDE, "bias": SIDE[:, :1], "scale": 0.5},
    "evoformer_attention": {"Q": SIDE, "K": SIDE, "V": SIDE, "biases": [SIDE[:, :, :1, :1], SIDE[:, :1]]},
}
ODD = (
    *(None, "x", b"x", 3, -1, True, 2.5, math.nan, math.inf, 1e300, 2**80, 1j, [1, 2], (1,), {}, object(), len),
    *(np.ones(3), np.ones((2, 2)), torch.float32, torch.tensor(1), torch.ones(2), torch.ones(2, 2), torch.zeros(0)),
    *(SIDE[0], SIDE[None], SIDE[..., :3], SIDE[..., :3, :], SIDE[:, :, :3], SIDE[:, :2], SIDE > 0, SIDE.int()),
    *(SIDE + 0j, SIDE.double(), SIDE.to_sparse(), SIDE.to("meta"), torch.nested.nested_tensor([SIDE[0, 0]])),
)


@pytest.mark.parametrize("name", COMPLETE)
def test_odd_values_are_refused_in_one_line_that_names_the_argument(name):
    function, refused = getattr(fold, name), 0
    for parameter in inspect.signature(function).parameters:
        others = "|".join((parameter, *COMPLETE[name]))
        for value in ODD:
            try:
                function(**{**COMPLETE[name], parameter: value})
            except (TypeError, ValueError, RuntimeError) as error:
                refused += 1
                # The message may be on another argument, which does not fit this one.
                found = re.fullmatch(rf"fold\.{name}: ({others})\b[^\n]*", str(error))
                assert found and len(str(error)) < 300, (parameter, value, error)
    assert refused > 60


def pieces(name, masked):
    """Returns a function of tensors, and tensors: all that the function takes, with a bias or mask of keys."""
    keys = torch.randn(1, 3, 1, 1, 4)
    if name == "attention":
        return lambda q, b, z: fold.attention(q, q, q, [b, q[:, :1]], z), (SIDE, keys, SIDE)
    if name == "evoformer_attention":
        return lambda q, b: fold.evoformer_attention(q, q, q, [b, q[:, :1]]), (SIDE, keys)
    if masked:
        return lambda q, m: fold.triangle_attention(q, q, q, q[:, :1], m), (SIDE, keys > 0)
    return lambda q, n: fold.triangle_attention(q, q, q, q[:, :1], kv_lengths=n), (SIDE, (keys[..., :1] > 0).int() + 1)


@pytest.mark.parametrize("name, masked", [(name, False) for name in COMPLETE] + [("triangle_attention", True)])
def test_functions_are_traced_and_mapped(name, masked):
    function, tensors = pieces(name, masked)
    y = function(*tensors)
    mapped = torch.func.vmap(function)(*(torch.stack((x, x)) for x in tensors))
    torch.testing.assert_close(mapped, torch.stack((y, y)))
    for mode in ("real", "fake", "symbolic"):
        torch.testing.assert_close(make_fx(function, tracing_mode=mode)(*tensors)(*tensors), y)
    with FakeTensorMode() as mode:
        assert function(*(mode.from_tensor(x) for x in tensors)).shape == y.shape
