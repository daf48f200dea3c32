# SPDX-License-Identifier: Apache-2.0
"""attention, attention_forward and attention_backward against PyTorch in float64."""

import ctypes

import ml_dtypes
import numpy as np
import pytest
import torch

import headgate
from support import GATES, close, plain_attention, problem

ROUNDOFFS = 64
DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("headwise", (False, True))
def test_gated_attention(dtype, headwise):
    inputs = problem(dtype=dtype, headwise=headwise)
    y = headgate.attention(*inputs)
    assert isinstance(y, torch.Tensor) and y.dtype == dtype
    assert close(y, plain_attention(*(x.double() for x in inputs))[0], ROUNDOFFS, dtype)


@pytest.mark.parametrize("shape", ((4, 7), (1, 4, 7), (2, 4, 7)))
@pytest.mark.parametrize("array", (lambda x: x, lambda x: x.numpy()), ids=("torch", "numpy"))
def test_gradient_of_sinks_of_each_query_has_their_shape(array, shape):
    inputs, sinks = problem(), torch.randn(shape, dtype=torch.float64)
    leaf = sinks.clone().requires_grad_()
    y, *_ = plain_attention(*inputs, sinks=leaf)
    dy = torch.randn_like(y)
    y.backward(dy)
    given = [array(x) for x in inputs]
    saved = headgate.attention_forward(*given, sinks=array(sinks))
    found = headgate.attention_backward(
        array(dy), *given, sinks=array(sinks), y=saved.y, lse=saved.lse, gradients=["dsinks"]
    ).dsinks
    assert type(found) is type(given[0]) and tuple(found.shape) == shape
    assert close(torch.as_tensor(found), leaf.grad, 16 * ROUNDOFFS)


def test_sinks_of_each_query_without_a_batch_are_those_of_one():
    one = [x[:1] for x in problem()]
    sinks = torch.randn(4, 7, dtype=torch.float64)
    y = headgate.attention(*(x[0] for x in one), sinks=sinks)
    assert torch.equal(y, headgate.attention(*one, sinks=sinks[None])[0])
    with pytest.raises(ValueError, match=r"sinks has shape \(1,4,6,1\) but \(1,Hq,T,1\) is \(1,4,7,1\)"):
        headgate.attention(*one, sinks=sinks[:, :6])


@pytest.mark.parametrize("gate_fn", GATES)
@pytest.mark.parametrize("gate_op", ("mul", "add"))
def test_gradients(gate_fn, gate_op):
    inputs = problem()
    bias = torch.randn(1, 4, 7, 9, dtype=torch.float64)
    sinks = torch.randn(4, dtype=torch.float64)
    options = dict(gate_fn=gate_fn, gate_op=gate_op, causality="causal", softcap=3.0)
    leaves = [x.clone().requires_grad_() for x in (*inputs, bias, sinks)]
    y, lse, *_ = plain_attention(*leaves[:4], bias=leaves[4], sinks=leaves[5], **options)
    dy, dlse = torch.randn_like(y), torch.randn_like(lse)
    ((y * dy).sum() + (lse * dlse).sum()).backward()

    saved = headgate.attention_forward(*inputs, bias=bias, sinks=sinks, **options)
    assert close(saved.y, y.detach(), ROUNDOFFS) and close(saved.lse, lse.detach(), ROUNDOFFS)
    found = headgate.attention_backward(
        dy, *inputs, bias=bias, sinks=sinks, y=saved.y, lse=saved.lse, attn=saved.attn, dlse=dlse, **options
    )
    for leaf, name in zip(leaves, ("dq", "dk", "dv", "dgate", "dbias", "dsinks")):
        assert close(getattr(found, name), leaf.grad, 16 * ROUNDOFFS), name


@pytest.mark.parametrize("array", (lambda x: x, lambda x: x.numpy()), ids=("torch", "numpy"))
def test_lse_without_y(array):
    q, k, v, gate = (array(x) for x in problem())
    lse = np.asarray(headgate.attention_forward(q, k, v, gate).lse)
    for found in (
        headgate.attention_forward(q, k, outputs=["lse"]),
        headgate.attention_forward(q, k, v, gate, outputs=["lse"]),
        headgate.attention_forward(q, k, out=headgate.AttentionOutputs(lse=array(torch.zeros(lse.shape)))),
    ):
        assert found.y is None and found.attn is None and type(found.lse) is type(q)
        np.testing.assert_allclose(found.lse, lse, rtol=1e-6)


def test_y_without_values_is_refused():
    q, k, _, _ = problem()
    for outputs in (None, ["y"], ["lse", "attn"]):
        with pytest.raises(ValueError, match="^attention_forward: v is required but None$"):
            headgate.attention_forward(q, k, outputs=outputs)


@pytest.mark.parametrize(
    "options",
    (
        dict(causality="causal"),
        dict(window_left=3, window_right=1),
        dict(window_left=6, window_right=-2),
        dict(scale=0.3, softcap=2.0),
        dict(key_lengths=torch.tensor([4, 9])),
        dict(alibi_slopes=torch.tensor([0.5, 0.25, 0.125, 0.0625])),
        dict(alibi_slopes=torch.tensor([[0.5, 0.25, 0.125, 0.0625], [1.0, 2.0, 0.0, 0.75]])),
        dict(sinks=torch.tensor([0.0, 1.0, -1.0, 2.0], dtype=torch.float64)),
        dict(sinks=torch.linspace(-2, 2, 28).reshape(4, 7)),
        dict(sinks=torch.linspace(-2, 2, 28).reshape(1, 4, 7)),
        dict(sinks=torch.linspace(-2, 2, 56, dtype=torch.float64).reshape(2, 7, 4).transpose(1, 2)),
        dict(mask=torch.arange(9)[None, :] % 3 != torch.arange(7)[:, None] % 3),
        dict(bias=torch.linspace(-1, 1, 63, dtype=torch.float64).reshape(7, 9)),
        dict(key_bias=torch.linspace(-1, 1, 18, dtype=torch.float64).reshape(2, 1, 1, 9)),
        dict(key_indices=torch.arange(28).reshape(7, 4) * 5 % 9),
        dict(key_indices=torch.arange(84).reshape(2, 2, 7, 3).int() % 6 - 1, causality="causal"),
        dict(key_indices=torch.arange(14).reshape(1, 7, 2) % 3, key_block_size=4),
    ),
    ids=lambda options: "-".join(options),
)
def test_attention_options_of_scores_match_numpy(options):
    inputs = problem()
    found = headgate.attention_forward(*inputs, outputs=("y", "lse", "attn", "weights"), **options)
    for name, expected in zip(("y", "lse", "attn", "weights"), plain_attention(*inputs, **options)):
        assert close(getattr(found, name), expected, ROUNDOFFS), name


def test_dropout_both_passes_are_those_of_the_dropped_weights():
    q, k, v, z = inputs = problem()
    options = dict(dropout=0.4, dropout_seed=11, causality="causal")
    whole = headgate.attention_forward(*inputs, outputs=("y", "weights"), causality="causal").weights
    found = headgate.attention_forward(*inputs, outputs=("y", "lse", "weights"), **options)
    kept = found.weights != 0
    assert 0.4 < kept.sum() / (whole != 0).sum() < 0.8
    assert close(found.weights, torch.where(kept, whole / 0.6, 0.0), ROUNDOFFS)
    leaves = [x.clone().requires_grad_() for x in inputs]
    y, *_ = plain_attention(*leaves, kept=kept.double() / 0.6, causality="causal")
    assert close(found.y, y.detach(), ROUNDOFFS)
    dy = torch.randn_like(y)
    y.backward(dy)
    gradients = headgate.attention_backward(dy, *inputs, y=found.y, lse=found.lse, **options)
    for leaf, name in zip(leaves, ("dq", "dk", "dv", "dgate")):
        assert close(getattr(gradients, name), leaf.grad, 16 * ROUNDOFFS), name


def test_numpy_and_pytorch_give_the_same_bits():
    for dtype, name in ((torch.float32, np.float32), (torch.float16, np.float16), (torch.bfloat16, ml_dtypes.bfloat16)):
        tensors = problem(dtype=dtype)
        arrays = [x.float().numpy().astype(name) for x in tensors]
        found = headgate.attention(*arrays)
        assert isinstance(found, np.ndarray) and found.dtype == name
        expected = headgate.attention(*tensors)
        assert np.array_equal(found.astype(np.float32), expected.float().numpy())


def test_attention_any_layout_and_strides_agrees():
    inputs = problem(dtype=torch.float32)
    expected = headgate.attention(*inputs)
    projections = [x.transpose(1, 2).contiguous() for x in inputs]  # (B,T,H,D)
    found = headgate.attention(*projections, layout="bthd")
    assert found.is_contiguous() and torch.equal(found.transpose(1, 2), expected)
    assert torch.equal(headgate.attention(*(x.transpose(1, 2) for x in projections)), expected)
    fused = torch.cat([x.flatten(2) for x in projections[1:3]], dim=-1)  # k and v side by side
    k = fused[..., : 2 * 16].unflatten(-1, (2, 16))
    v = fused[..., 2 * 16 :].unflatten(-1, (2, 12))
    assert torch.equal(headgate.attention(projections[0], k, v, projections[3], layout="bthd"), found)
    backwards = [np.flip(np.flip(x.numpy(), 3).copy(), 3) for x in inputs]  # negative strides
    assert np.array_equal(headgate.attention(*backwards), expected.numpy())
    broadcast = inputs[3][:, :1].expand(2, 4, 7, 12)
    assert torch.equal(
        headgate.attention(*inputs[:3], broadcast), headgate.attention(*inputs[:3], broadcast.contiguous())
    )


def test_inputs_of_any_strides_are_not_copied():
    """Uses views of one large block; a copy would exceed the memory that the process may take."""
    import resource

    q = torch.zeros(1, 1, 1, 64, dtype=torch.float32)
    block = torch.zeros(1, 1, 1 << 20, 128, dtype=torch.float32)  # 512 MiB
    k, v = block[..., :64], block[..., 64:]
    headgate.attention(q, k, v)  # threads have their stacks
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (now + (192 << 20), hard))
    try:
        y = headgate.attention(q, k, v)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    assert torch.equal(y, torch.zeros(1, 1, 1, 64))


def test_outputs_are_written_in_place():
    inputs = problem(dtype=torch.float32)
    expected = headgate.attention_forward(*inputs)
    y = torch.full((2, 7, 4, 12), 9.0).transpose(1, 2)
    lse = torch.empty(2, 4, 7, dtype=torch.float64)
    out = headgate.AttentionOutputs(y=y, lse=lse)
    found = headgate.attention_forward(*inputs, out=out)
    assert found.y is y and found.lse is lse and found.attn is None
    assert torch.equal(y, expected.y) and torch.equal(lse, expected.lse)
    assert headgate.attention(*inputs, out=y) is y
    dq = torch.empty_like(inputs[0])
    dy = torch.ones_like(expected.y)
    saved = dict(y=expected.y, lse=expected.lse)
    only = headgate.attention_backward(dy, *inputs, **saved, out=headgate.AttentionGradients(dq=dq))
    assert only.dq is dq and only.dk is None
    empty = headgate.attention_backward(dy, *inputs, **saved, out=headgate.AttentionGradients())
    assert torch.equal(empty.dq, dq) and empty.dgate is not None
    named = headgate.attention_backward(dy, *inputs, **saved, gradients=("dv", "dgate"))
    assert named.dq is None and named.dv.shape == inputs[2].shape
    whole = headgate.attention_backward(dy, *inputs, **saved)
    assert torch.equal(whole.dq, dq) and torch.equal(whole.dv, named.dv) and torch.equal(whole.dgate, named.dgate)


def test_attention_without_a_batch_dimension():
    inputs = problem(B=1)
    expected = headgate.attention_forward(*inputs)
    found = headgate.attention_forward(*(x[0] for x in inputs))
    assert torch.equal(found.y, expected.y[0]) and torch.equal(found.lse, expected.lse[0])


def test_packed_batch():
    lengths = [(3, 5), (0, 2), (7, 7)]
    parts = [problem(B=1, T=T, S=S, seed=n) for n, (T, S) in enumerate(lengths)]
    packed = [torch.cat([part[i][0].transpose(0, 1) for part in parts]) for i in range(4)]  # (T,H,D)
    cu = [torch.tensor([0, *np.cumsum([pair[i] for pair in lengths])], dtype=torch.int32) for i in (0, 1)]
    y = headgate.attention(*packed, layout="bthd", causality="causal", cu_seqlens_q=cu[0], cu_seqlens_k=cu[1])
    expected = [headgate.attention(*part, causality="causal")[0].transpose(0, 1) for part in parts]
    assert torch.equal(y, torch.cat(expected))


def test_read_only_inputs_and_outputs():
    arrays = [x.numpy() for x in problem(dtype=torch.float32)]
    expected = headgate.attention(*arrays)
    for array in arrays:
        array.flags.writeable = False
    assert np.array_equal(headgate.attention(*arrays), expected)
    out = np.empty_like(expected)
    out.flags.writeable = False
    with pytest.raises(ValueError, match="^attention: y is read-only$"):
        headgate.attention(*arrays, out=out)


def test_masked_arrays_are_refused():
    q, k, v, gate = (x.numpy() for x in problem(dtype=torch.float32))
    masked = np.ma.masked_array(q, mask=np.ones_like(q, dtype=bool))
    with pytest.raises(ValueError, match="^attention: q is a masked array, whose mask is not read"):
        headgate.attention(masked, k, v, gate)
    with pytest.raises(ValueError, match="^attention: y is a masked array"):
        headgate.attention(q, k, v, gate, out=np.ma.empty((2, 4, *v.shape[2:]), np.float32))


def test_buffers_without_strides_are_read_and_written():
    array = ((ctypes.c_float * 3) * 2)((1, 2, 3), (4, 5, 6))
    assert headgate.convert(array, "f64").tolist() == [[1, 2, 3], [4, 5, 6]]
    out = (ctypes.c_double * 3)()
    headgate.convert(array[1], out=out)
    assert list(out) == [4, 5, 6]
    with pytest.raises(ValueError, match="^convert: array is a c_float_be_Array_3 but must be an array"):
        headgate.convert((ctypes.c_float.__ctype_be__ * 3)(1, 2, 3))
    with pytest.raises(ValueError, match="^convert: array has dtype unknown but must be one of"):
        headgate.convert((ctypes.c_uint8 * 3)(1, 2, 3))


@pytest.mark.parametrize("name", (np.float32, ml_dtypes.bfloat16))
def test_arrays_of_another_byte_order_are_refused(name):
    q, k, v, gate = (x.float().numpy().astype(name) for x in problem(dtype=torch.float32))
    swapped = np.dtype(name).newbyteorder()
    with pytest.raises(ValueError, match="^attention: q of dtype .* as an array of the CPU: .* byte order"):
        headgate.attention(q.astype(swapped), k, v, gate)
    with pytest.raises(ValueError, match="^attention: y of dtype .* byte order"):
        headgate.attention(q, k, v, gate, out=np.empty((2, 4, *v.shape[2:]), swapped))


def test_outputs_under_another_default_device_are_on_the_cpu():
    q, k, v, gate = problem(dtype=torch.float32)
    expected = headgate.attention_forward(q, k, v, gate)
    with torch.device("meta"):
        found = headgate.attention_forward(q, k, v, gate)
    assert torch.equal(found.y, expected.y) and torch.equal(found.lse, expected.lse)


def test_attention_no_rows_or_no_keys_is_defined():
    q, k, v, gate = problem()
    assert headgate.attention(q[:, :, :0], k, v, gate[:, :, :0]).shape == (2, 4, 0, 12)
    assert headgate.attention(q[:0], k[:0], v[:0], gate[:0]).shape == (0, 4, 7, 12)
    found = headgate.attention_forward(q, k[:, :, :0], v[:, :, :0])
    assert torch.equal(found.y, torch.zeros(2, 4, 7, 12, dtype=torch.float64))
    assert torch.equal(found.lse, torch.full((2, 4, 7), -torch.inf, dtype=torch.float64))


def test_attention_every_target_and_number_of_threads_agrees():
    inputs = problem(T=100, S=130)
    expected = plain_attention(*inputs)[0]
    for target in headgate.supported_targets():
        bits = [headgate.attention(*inputs, target=target, threads=n, backend="cpu") for n in (1, 2, 3)]
        assert torch.equal(bits[0], bits[1]) and torch.equal(bits[0], bits[2])
        assert close(bits[0], expected, ROUNDOFFS)


def test_gate_threshold_closed_rows_are_left_out():
    q, k, v, gate = problem(headwise=True)
    found = headgate.attention_forward(q, k, v, gate, gate_threshold=0.5)
    closed = torch.sigmoid(gate[..., 0]) <= 0.5
    assert closed.any() and not closed.all()
    assert torch.equal(torch.isinf(found.lse), closed) and torch.equal((found.y == 0).all(-1), closed)


def test_native16_products_are_within_their_tolerance():
    # More rows than few queries of few keys, which are computed as exact does.
    inputs = problem(dtype=torch.bfloat16, T=80, S=144)
    exact = headgate.attention(*inputs)
    found = headgate.attention(*inputs, precision="native16")
    expected = plain_attention(*(x.double() for x in inputs))[0]
    assert close(found, expected, 4 * ROUNDOFFS, torch.bfloat16)
    assert torch.equal(found, exact) == (headgate.native16_products() == "")
    assert headgate.native16_products() in ("", *headgate.supported_native16_products())
    with pytest.raises(ValueError, match="precision is native16 but q is f32, not bf16"):
        headgate.attention(*(x.float() for x in inputs), precision="native16")
    with pytest.raises(ValueError, match="precision"):
        headgate.attention(*inputs, precision="half")
