# SPDX-License-Identifier: Apache-2.0
"""Tensors with a lazy negation or conjugation, options that require a gradient, and tensors with a tangent."""

import pytest
import torch
from torch.autograd import forward_ad

import headgate

torch.manual_seed(0)


def lazy(*shape):
    """Returns a tensor with a lazy negation, and a plain one with the same elements."""
    x = torch.randn(*shape, dtype=torch.cfloat).conj().imag
    assert x.is_neg()
    return x, torch.empty(shape).copy_(x)


Q, K, V, Z = (lazy(1, 2, 8, 4) for _ in range(4))
LAZY, PLAIN = 0, 1


def inputs(kind):
    return [x[kind] for x in (Q, K, V, Z)]


def same(call):
    """Asserts that `call` returns the same tensors for lazy arrays as for plain ones."""
    found, expected = (call(kind) for kind in (LAZY, PLAIN))
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected):
        assert torch.equal(torch.as_tensor(ours), torch.as_tensor(theirs))


def test_attention_lazy_negation_is_resolved():
    bias = lazy(1, 2, 8, 8)
    same(lambda kind: [headgate.attention(*inputs(kind)), headgate.attention(*inputs(kind), bias=bias[kind])])


def test_backward_lazy_negation_is_resolved():
    def gradients(kind):
        saved = headgate.attention_forward(*inputs(PLAIN))
        found = headgate.attention_backward(V[kind], *inputs(kind), y=saved.y, lse=saved.lse)
        return [found.dq, found.dk, found.dv, found.dgate]

    same(gradients)


def test_merge_lazy_negation_is_resolved():
    lse = lazy(1, 2, 8)

    def merged(kind):
        parts = [(V[kind], lse[kind]), (K[PLAIN], lse[PLAIN])]
        whole = headgate.attention_merge(parts, Z[kind])
        back, dgate = headgate.attention_merge_backward(Q[kind], parts, Z[kind])
        return [whole.y, whole.lse, *(x for pair in back for x in pair), dgate]

    same(merged)


def test_narrow_keys_lazy_negation_is_resolved():
    def part(kind):
        return [headgate.attention(**headgate.narrow_keys(2, 6, q=Q[kind], k=K[kind], v=V[kind]))]

    same(part)


def test_convert_and_quantize_lazy_negation_is_resolved():
    same(lambda kind: [headgate.convert(Q[kind], "f64"), *headgate.quantize(Q[kind])])


def test_statistics_lazy_negation_is_resolved():
    def figures(kind):
        lse = headgate.attention_forward(*inputs(PLAIN)[:3]).lse
        found = headgate.attention_statistics(lse, Q[kind], K[kind], gate=Z[kind])
        return [found.entropy, found.first_gated]

    same(figures)


def test_cache_lazy_negation_is_resolved():
    def decoded(kind):
        cache = headgate.KvCache(2, 4, 4, pages=2)
        s = cache.add_sequence()
        cache.append([s], K[kind], V[kind])
        return [headgate.attention(Q[PLAIN], **cache.batch([s], 8))]

    same(decoded)


MESSAGE = (
    "{} has a lazy negation or conjugation, which its memory does not have: give a tensor of its own, {}.resolve_neg()"
)


@pytest.mark.parametrize(
    "name, call",
    (
        ("attention: y", lambda out: headgate.attention(*inputs(PLAIN), out=out)),
        (
            "attention_forward: attn",
            lambda out: headgate.attention_forward(*inputs(PLAIN), out=headgate.AttentionOutputs(attn=out)),
        ),
        ("convert: out", lambda out: headgate.convert(Q[PLAIN], out=out)),
        (
            "attention_merge: attn",
            lambda out: headgate.attention_merge([(V[1], V[1][..., 0])], out=headgate.AttentionOutputs(attn=out)),
        ),
    ),
)
def test_output_lazy_negation_is_refused(name, call):
    out, before = lazy(1, 2, 8, 4)
    with pytest.raises(ValueError) as caught:
        call(out)
    assert str(caught.value) == MESSAGE.format(name, name.split(": ")[1])
    assert torch.equal(out, before)


def test_statistics_output_lazy_negation_is_refused():
    lse = headgate.attention_forward(*inputs(PLAIN)[:3]).lse
    out = headgate.AttentionStatistics(entropy=lazy(1, 2, 8)[0])
    with pytest.raises(ValueError, match="^attention_statistics: entropy has a lazy negation"):
        headgate.attention_statistics(lse, *inputs(PLAIN)[:2], out=out)


def test_input_lazy_conjugation_is_refused_by_its_dtype():
    with pytest.raises(ValueError, match="^attention: q has dtype torch.complex64 but must be one of float32"):
        headgate.attention(torch.randn(1, 2, 8, 4, dtype=torch.cfloat).conj(), K[PLAIN], V[PLAIN])


@pytest.mark.parametrize("name", ("scale", "softcap", "gate_threshold", "window_left"))
def test_option_requires_a_gradient_is_refused(name):
    """The option's gradient would be lost, like that of an array."""
    option = torch.tensor(0.5, requires_grad=True)
    with pytest.raises(ValueError, match=f"^attention: {name} requires a gradient, which autograd would not get"):
        headgate.attention(*inputs(PLAIN), **{name: option})


def test_option_under_no_grad_is_a_number():
    option = torch.tensor(0.5, requires_grad=True)
    with torch.no_grad():
        found = headgate.attention(*inputs(PLAIN), scale=option)
    assert torch.equal(found, headgate.attention(*inputs(PLAIN), scale=0.5))


def test_tensor_with_a_tangent_is_refused():
    """The tangent of the result would be lost."""
    q, k, v, z = inputs(PLAIN)
    message = "^attention: {} has a tangent, which forward-mode autograd would not get of this call"
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(q, torch.ones_like(q))
        with pytest.raises(ValueError, match=message.format("q")):
            headgate.attention(dual, k, v, z)
        with pytest.raises(ValueError, match=message.format("y")):
            headgate.attention(q, k, v, z, out=dual)
        primal = forward_ad.unpack_dual(dual).primal
        assert torch.equal(headgate.attention(primal, k, v, z), headgate.attention(q, k, v, z))
