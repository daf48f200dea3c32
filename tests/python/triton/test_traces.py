# SPDX-License-Identifier: Apache-2.0
"""What PyTorch sees of the operations, on fake CUDA tensors: shapes, and what each kernel writes."""

import pytest
import torch
from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table
from torch._subclasses.functional_tensor import dispatch_functionalize
from torch.fx.experimental.proxy_tensor import make_fx

from devices import fake_driver, fake_gpu, made
from headgate.torch import (
    GatedDeltaNet,
    delta_net,
    gated_attention,
    gated_norm,
    gpu,
    linear_attention,
    short_convolution,
)


def problem(gate=64, layout="bhtd"):
    shapes = (2, 4, 70, 64), (2, 2, 90, 64), (2, 2, 90, 48), (2, 4, 70, 48 if gate == 64 else gate)
    return [made(*(shape if layout == "bhtd" else (shape[0], shape[2], shape[1], shape[3]))) for shape in shapes]


@pytest.mark.parametrize("layout", ("bhtd", "bthd"))
def test_fake_tensors_on_a_gpu_have_shapes(layout):
    with fake_gpu():
        q, k, v, gate = problem(layout=layout)
        y, lse = gated_attention(q, k, v, gate, causality="causal", layout=layout, return_lse=True)
        assert y.shape == (*q.shape[:-1], 48) and y.dtype == torch.bfloat16 and y.device.type == "cuda"
        assert lse.shape == (2, 4, 70) and lse.dtype == torch.float32
        found = torch.ops.headgate.gated_attention_triton_backward(
            y, None, y, lse, None, q, k, v, gate, wanted=[True] * 4 + [False], layout=layout
        )
        assert [x.shape for x in found] == [q.shape, k.shape, v.shape, gate.shape, (0,)]


def writes_of(function, tensors):
    """For each kernel of the functionalised program its name and the arguments that it writes."""
    program = make_fx(dispatch_functionalize(function), tracing_mode="fake")(*tensors)
    found = []
    for node in program.graph.nodes:
        if "triton_kernel_wrapper" in str(node.target):
            kernel = kernel_side_table.get_kernel(node.kwargs["kernel_idx"])
            kernel = getattr(kernel, "fn", kernel)
            found.append((getattr(kernel, "fn", kernel).__name__, set(node.kwargs["tensors_to_clone"])))
    return found


KEYS_AND_QUERIES = [("attention_backward_keys", {"dk", "dv"}), ("attention_backward_queries", {"dq"})]
ROWS = "attention_backward_rows"


@pytest.mark.parametrize(
    "gate, options, wanted, expected",
    (
        (64, {}, "qkvg", [(ROWS, {"delta", "dgate", "do"}), *KEYS_AND_QUERIES]),
        (1, {}, "qkvg", [(ROWS, {"delta", "dgate"}), *KEYS_AND_QUERIES]),
        (64, {"gate_op": "add"}, "qkvg", [(ROWS, {"delta", "dgate"}), *KEYS_AND_QUERIES]),
        (0, {}, "qkv", [(ROWS, {"delta"}), *KEYS_AND_QUERIES]),
        (64, {}, "q", [(ROWS, {"delta", "do"}), KEYS_AND_QUERIES[1]]),
        (64, {}, "g", [(ROWS, {"delta", "dgate"})]),
    ),
    ids=("elementwise", "headwise", "added", "none", "dq alone", "dgate alone"),
)
def test_traces_of_passes_list_what_kernels_write(gate, options, wanted, expected):
    with fake_gpu():
        q, k, v, z = problem(gate or 1)
        z = z if gate else None
        names = ["y", "lse", "attn"] if options else ["y", "lse"]

        def forward(q, k, v, z):
            return torch.ops.headgate.gated_attention_triton(q, k, v, z, keep_attn=bool(options), **options)

        gated_attention(q, k, v, z)  # which registers the operations
        assert writes_of(forward, (q, k, v, z)) == [("attention_forward", set(names))]
        y, lse, attn = forward(q, k, v, z)

        def backward(dy, y, lse, attn, q, k, v, z):
            asked = [name in wanted for name in "qkvgs"]
            return torch.ops.headgate.gated_attention_triton_backward(
                dy, None, y, lse, attn if options else None, q, k, v, z, wanted=asked, **options
            )

        assert writes_of(backward, (made(*y.shape), y, lse, attn, q, k, v, z)) == expected


def test_traces_of_linear_attention_list_what_kernels_write():
    with fake_gpu():
        q, k, v = (made(1, 70, heads, 64) for heads in (2, 2, 4))
        decay, beta = (made(1, 70, 4, 1, dtype=torch.float32) for _ in range(2))
        y, state = linear_attention(q, k, v, decay, beta, l2_norm=1e-6, layout="bthd", return_state=True)
        assert y.shape == v.shape and y.dtype == torch.bfloat16 and y.device.type == "cuda"
        assert state.shape == (1, 4, 64, 64) and state.dtype == torch.float32

        def forward(*tensors):
            return torch.ops.headgate.linear_attention_triton(*tensors, layout="bthd")

        def backward(dy, *tensors):
            wanted = [True] * 5 + [False]
            return torch.ops.headgate.linear_attention_triton_backward(dy, None, *tensors, wanted=wanted, layout="bthd")

        tensors = (q, k, v, decay, beta)
        assert writes_of(forward, tensors) == [("linear_forward", {"y"})]
        assert writes_of(backward, (y, *tensors)) == [
            ("linear_forward", {"states"}),
            ("linear_backward_states", {"dv", "u", "db", "dstates"}),
            ("linear_backward_chunks", {"dq", "dk", "ddecay", "dbeta"}),
        ]
        assert [x.shape for x in backward(y, *tensors)] == [*(x.shape for x in tensors), (0,)]


def test_traces_of_the_convolution_list_what_kernels_write():
    with fake_gpu():
        x, weight, bias, state = made(2, 70, 40), made(40, 4), made(40), made(2, 3, 40, dtype=torch.float32)
        y, new_state = short_convolution(x, weight, bias, state=state, return_state=True)
        assert y.shape == x.shape and y.dtype == torch.bfloat16 and y.device.type == "cuda"
        assert new_state.shape == state.shape and new_state.dtype == torch.float32

        def forward(*tensors):
            return torch.ops.headgate.short_convolution_triton(*tensors)

        tensors = (x, weight, bias, state)
        assert writes_of(forward, tensors) == [("convolution_forward", {"y"})]
        sums, rows = "convolution_backward_sums", "convolution_backward_rows"
        for wanted, activation, expected in (
            ("xwbs", "silu", [(sums, {"dsums", "dweight", "dbias"}), (rows, {"dx", "dstate"})]),
            ("x", "silu", [(sums, {"dsums"}), (rows, {"dx"})]),
            ("w", "silu", [(sums, {"dweight"})]),
            ("xb", "none", [(sums, {"dbias"}), (rows, {"dx"})]),
            ("s", "none", [(rows, {"dstate"})]),
        ):
            asked = [name in wanted for name in "xwbs"]

            def backward(dy, dstate, *tensors, asked=asked, activation=activation):
                return torch.ops.headgate.short_convolution_triton_backward(
                    dy, dstate, *tensors, wanted=asked, activation=activation
                )

            assert writes_of(backward, (y, new_state, *tensors)) == expected
            found = backward(y, new_state, *tensors)
            assert [x.shape for x in found] == [x.shape if own else (0,) for x, own in zip(tensors, asked)]


def test_traces_of_the_norm_list_what_kernels_write():
    with fake_gpu():
        x, weight, gate = made(2, 70, 4, 64), made(64, dtype=torch.float32), made(2, 70, 4, 64)
        y = gated_norm(x, weight, gate, layout="bthd")
        assert y.shape == x.shape and y.dtype == torch.bfloat16 and y.device.type == "cuda"

        def forward(*tensors):
            return torch.ops.headgate.gated_norm_triton(*tensors, layout="bthd")

        def backward(dy, *tensors):
            return torch.ops.headgate.gated_norm_triton_backward(dy, *tensors, wanted=[True] * 3, layout="bthd")

        tensors = (x, weight, gate)
        assert writes_of(forward, tensors) == [("norm_forward", {"y"})]
        assert writes_of(backward, (y, *tensors)) == [("norm_backward", {"dx", "dgate", "dweight"})]
        assert [x.shape for x in backward(y, *tensors)] == [x.shape for x in tensors]


@pytest.mark.parametrize("layout", delta_net.WEIGHT_LAYOUTS)
def test_layer_of_gated_delta_net_is_computed_on_a_gpu(layout):
    """Its gradients are test_interpreted_convolution_norm.py's: autograd has no devices without CUDA."""
    layer = GatedDeltaNet(64, 2, 2 if layout == "kimi_linear" else 4, 16, weight_layout=layout)
    with fake_gpu():
        own = {name: made(*x.shape) for name, x in layer.named_parameters()}
        h = made(2, 33, 64)
        y = torch.func.functional_call(layer, own, h)
        assert y.shape == h.shape and y.dtype == torch.bfloat16 and y.device.type == "cuda"


COMPILED = {
    "gated_attention": (dict.fromkeys(("q", "k", "v", "gate"), (1, 2, 8, 16)), {"causality": "causal"}, False),
    "linear_attention": (dict.fromkeys(("q", "k", "v"), (1, 2, 8, 16)), {"l2_norm": 1e-6}, False),
    "short_convolution": ({"x": (1, 8, 16), "weight": (16, 4)}, {}, True),
    "gated_norm": ({"x": (1, 2, 8, 16), "gate": (1, 2, 8, 16)}, {"eps": 0.1}),
}


@pytest.mark.parametrize("name", COMPILED)
def test_compiled_function_has_one_operation_and_no_graph_break(name):
    """On tensors of the CPU, which PyTorch's build has: the choice by device is made before."""
    graphs = []
    shapes, *others = COMPILED[name]

    def backend(program, inputs):
        graphs.append(program)
        outputs = len(program.graph.output_node().args[0])
        return lambda *tensors: [torch.zeros(1)] * outputs

    def function(*tensors):
        return getattr(gpu, name)(dict(zip(shapes, tensors)), *others)

    tensors = [made(*shape, device="cpu") for shape in shapes.values()]
    with fake_driver():
        torch.compile(function, fullgraph=True, backend=backend)(*tensors)
    calls = [str(node.target) for node in graphs[0].graph.nodes if node.op == "call_function"]
    assert [call for call in calls if "headgate" in call] == [f"headgate.{name}_triton"]
