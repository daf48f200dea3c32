# SPDX-License-Identifier: Apache-2.0
"""Results have the dimensions of their inputs in the same order in memory, eagerly and in compiled programs."""

import pytest
import torch

from headgate.torch import gated_attention, gated_norm, linear_attention, short_convolution

B, H, T, D = 2, 4, 24, 8
OPS = torch.ops.headgate


def rows(*sizes):
    """Returns a view (B,H,T,·) of contiguous memory (B,T,H,·)."""
    return torch.randn(B, T, H, *sizes).transpose(1, 2).requires_grad_()


def attention_inputs():
    """Returns q, k, v, gate and the bias (1,H,T,T) of a linear layer of pairs, which stores (T,T,H)."""
    return (*(rows(D) for _ in range(4)), torch.randn(1, T, T, H).permute(0, 3, 1, 2).requires_grad_())


CALLS = {
    "gated_attention": (attention_inputs, lambda q, k, v, z, bias: gated_attention(q, k, v, z, bias=bias)),
    "linear_attention": (lambda: (rows(D), rows(D), rows(D)), linear_attention),
    "short_convolution": (
        lambda: (torch.randn(T, B, D).transpose(0, 1).requires_grad_(), torch.randn(D, 4)),
        short_convolution,
    ),
    "gated_norm": (lambda: (rows(D), torch.ones(D), rows(D)), gated_norm),
}


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", CALLS)
def test_results_follow_their_inputs(name, compiled):
    make, call = CALLS[name]
    inputs = make()
    y = (torch.compile(call, backend="aot_eager", fullgraph=True) if compiled else call)(*inputs)
    assert y.stride() == inputs[0].stride()
    wanted = [x for x in inputs if x.requires_grad]
    for x, gradient in zip(wanted, torch.autograd.grad(y.square().sum(), wanted)):
        assert gradient.stride() == x.stride()


def test_contiguous_inputs_give_contiguous_results():
    inputs = [x.detach().contiguous().requires_grad_() for x in attention_inputs()]
    y = CALLS["gated_attention"][1](*inputs)
    assert all(x.is_contiguous() for x in (y, *torch.autograd.grad(y.sum(), inputs)))


def test_fused_projection_gives_results_without_gaps():
    q, k, v, z = (x.transpose(1, 2) for x in torch.randn(B, T, 4, H, D).unbind(2))
    assert gated_attention(q, k, v, z).transpose(1, 2).is_contiguous()


def test_fake_kernels_have_the_strides_of_the_real_ones():
    q, k, v, z, bias = (x.detach() for x in attention_inputs())
    found = OPS.gated_attention(q, k, v, z, bias=bias, keep_attn=True)
    torch.library.opcheck(OPS.gated_attention.default, (q, k, v, z), {"bias": bias, "keep_attn": True})
    saved = (torch.randn_like(found[0]), None, *found[:3])
    wanted = {"wanted": [True] * 5 + [False] * (len(OPS.gated_attention_backward.default._schema.returns) - 5)}
    arguments = {"bias": bias, **wanted}
    torch.library.opcheck(
        OPS.gated_attention_backward.default, (*saved, q, k, v, z), arguments, test_utils="test_faketensor"
    )


def test_arrays_of_two_libraries_may_be_mixed():
    """A tensor and an array of NumPy in one call: every result is a tensor, as q is."""
    import headgate

    q, k, v, _, bias = (x.detach() for x in attention_inputs())
    array = bias.contiguous().numpy()
    out = headgate.attention_forward(q, k, v, bias=array)
    found = headgate.attention_backward(torch.ones_like(out.y), q, k, v, bias=array, y=out.y, lse=out.lse)
    assert all(isinstance(x, torch.Tensor) for x in (out.y, found.dq, found.dbias))
    same = headgate.attention_backward(torch.ones_like(out.y), q, k, v, bias=bias, y=out.y, lse=out.lse)
    assert torch.equal(found.dbias, same.dbias)
