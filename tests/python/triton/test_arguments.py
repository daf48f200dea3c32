# SPDX-License-Identifier: Apache-2.0
"""Arguments of the operations with tensors of a GPU: what is declined is declined by name, in one line."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from devices import fake_gpu, made
from headgate.torch import GATE_FUNCTIONS, gated_attention, gated_norm, linear_attention, short_convolution
from headgate.torch.gpu import convolution_launch, launch, linear_launch, norm_launch, support

ROOT = Path(__file__).resolve().parents[3]


def problem(D=64, dtype=torch.bfloat16):
    return made(2, 4, 8, D, dtype=dtype), *(made(2, 2, 9, D, dtype=dtype) for _ in range(2))


# Maps each argument that an operation may not support to a value other than its default.
VALUES = {
    "bias": lambda: made(2, 4, 8, 9),
    "key_bias": lambda: made(2, 1, 1, 9),
    "mask": lambda: made(1, 1, 8, 9, dtype=torch.bool),
    "key_indices": lambda: made(8, 3, dtype=torch.int32),
    "key_block_size": lambda: 2,
    "alibi_slopes": lambda: made(4, dtype=torch.float32),
    "block_table": lambda: made(2, 4, dtype=torch.int32),
    "k_scale": lambda: made(2, 2, 9, 1, dtype=torch.float32),
    "v_scale": lambda: made(2, 2, 9, 1, dtype=torch.float32),
    "k_first": lambda: made(2, 2, 4, 64),
    "v_first": lambda: made(2, 2, 4, 64),
    "gate_threshold": lambda: 0.1,
    "dropout": lambda: 0.1,
    "dropout_seed": lambda: 1,
    "snapshot_lengths": lambda: [1, 2],
    "threads": lambda: 2,
    "target": lambda: "avx3",
    "backend": lambda: "cpu",
}


def called(function, **changed):
    """A call that fits, with some arguments changed; those that are functions are called for their values."""
    q, k, v = problem()
    fitting = {
        gated_attention: lambda: {"q": q, "k": k, "v": v, "gate": made(2, 4, 8, 1)},
        linear_attention: lambda: {name: made(1, 2, 5, 16) for name in "qkv"} | {"decay": made(1, 2, 5, 1)},
        short_convolution: lambda: {"x": made(2, 9, 24), "weight": made(24, 4)},
        gated_norm: lambda: {"x": made(2, 3, 9, 24), "gate": made(2, 3, 9, 24)},
    }[function]() | changed
    return function(**{name: value() if callable(value) else value for name, value in fitting.items()})


FUNCTIONS = {function.__name__: function for function in (gated_attention, linear_attention, short_convolution, gated_norm)}  # fmt: skip
LAUNCHES = {
    "gated_attention": launch,
    "linear_attention": linear_launch,
    "short_convolution": convolution_launch,
    "gated_norm": norm_launch,
}
UNSUPPORTED = [(function, name) for function, supported in support.FUNCTIONS.items() for name in supported.unsupported]


@pytest.mark.parametrize("function, name", UNSUPPORTED)
def test_arguments_unsupported_one_is_named(function, name):
    with fake_gpu(), pytest.raises(ValueError) as error:
        called(FUNCTIONS[function], **{name: VALUES[name]})
    assert str(error.value).startswith(f"{function}: {name} is not supported on GPUs") and "\n" not in str(error.value)


@pytest.mark.parametrize("function, name", UNSUPPORTED)
def test_arguments_unsupported_one_at_its_default_is_taken(function, name):
    options = support.FUNCTIONS[function].operation.options
    with fake_gpu():
        default = None if name == "threads" or name not in options else options[name].default
        found = called(FUNCTIONS[function], **{name: default})
        assert found.dtype == torch.bfloat16 and found.device.type == "cuda"


@pytest.mark.parametrize("function", support.FUNCTIONS)
def test_arguments_list_is_that_of_the_operation_and_of_the_documents(function):
    supported, compute = support.FUNCTIONS[function], LAUNCHES[function]
    assert set(supported.tensors) <= set(supported.operation.tensors)
    assert supported.tensors == compute.Inputs._fields
    own = {*compute.Options._fields} - {"tiles", "tile"}
    assert set(supported.options) - {"precision"} == own <= set(supported.operation.options)
    defaults = compute.Options()._asdict()
    assert all(defaults[name] == supported.operation.options[name].default for name in own)
    section = (ROOT / "docs/reference/pytorch.md").read_text().partition("## On GPUs")[2].partition("\n## ")[0]
    (row,) = re.findall(rf"^\| `{function}` \| (.*) \| (.*) \|$", section, re.M)
    takes, refuses = (set(re.findall(r"`(\w+)`", cell)) for cell in row)
    assert refuses == set(supported.unsupported)
    assert takes >= set(supported.tensors + supported.options) - {"q", "k", "v", "gate", "x", "weight"}


def test_arguments_bounds_are_those_of_the_cpu():
    """Of the taps, which GPUs bound as CPUs do."""
    for taps in range(1, 11):
        fits = support.CONVOLUTION_TAPS[0] <= taps <= support.CONVOLUTION_TAPS[1]
        x, weight = torch.randn(1, 3, 2), torch.randn(2, taps)
        if fits:
            short_convolution(x, weight)
        else:
            with pytest.raises(ValueError, match=f"K is {taps} but must be"):
                short_convolution(x, weight)


def test_arguments_gate_functions_are_of_the_library():
    """One that the library has and GPUs have not is refused by its name, like a word that nobody knows."""
    assert set(support.GATE_FUNCTIONS) <= set(GATE_FUNCTIONS)


@pytest.mark.parametrize(
    "changed, message",
    (
        ({"k": lambda: made(2, 2, 9, 64, device="cpu")}, "k lies on cpu but must lie on cuda:0, as q does"),
        ({"gate": lambda: made(2, 4, 8, 1, device="cpu")}, "gate lies on cpu but must lie on cuda:0"),
        ({"q": lambda: made(2, 4, 8, 64, dtype=torch.float64)}, "q is float64 but must be float32 or bfloat16 or float16"),
        ({"v": lambda: made(2, 2, 9, 64, dtype=torch.float16)}, "v is float16 but must be bfloat16"),
        ({"gate": lambda: made(2, 4, 8, 1, dtype=torch.float16)}, "gate is float16 but must be bfloat16 or"),
        ({"v": lambda: made(2, 2, 9, 257)}, "v has 257 features but must have 1 to 256"),
        ({"v": lambda: made(2, 2, 8, 64)}, "v has shape (2,2,8,64) but must have (2,2,9,64)"),
        ({"k": lambda: made(2, 3, 9, 64), "v": lambda: made(2, 3, 9, 64)}, "q has 4 heads but must have a multiple of"),
        ({"gate": lambda: made(2, 4, 8, 5)}, "gate has shape (2,4,8,5) but must have (2,4,8,1) or"),
        ({"sinks": lambda: made(3, dtype=torch.float32)}, "sinks has shape (3) but must have (4) or (4,8) or"),
        ({"sinks": lambda: made(4)}, "sinks is bfloat16 but must be float32 or float64"),
        ({"key_lengths": lambda: made(1, dtype=torch.int32)}, "key_lengths has shape (1) but must have (2)"),
        ({"cu_seqlens_q": lambda: made(3, dtype=torch.int32)}, "cu_seqlens_q and cu_seqlens_k must be given together"),
        ({"gate_fn": "relu"}, "gate_fn: 'relu' is none of none, sigmoid"),
        ({"layout": "thd"}, "layout: 'thd' is none of bhtd, bthd"),
        ({"causality": "causal "}, "causality: 'causal ' is none of none, causal"),
        ({"window_left": -2}, "window_left is -2 but must be at least -1"),
        ({"scale": float("nan")}, "scale is nan but must be finite"),
        ({"softcap": -1.0}, "softcap is -1.0 but must be finite and at least 0"),
        ({"bias": 3}, "bias is not supported on GPUs"),
    ),
)  # fmt: skip
def test_arguments_that_do_not_fit_are_named(changed, message):
    with fake_gpu(), pytest.raises(ValueError) as error:
        called(gated_attention, **changed)
    assert str(error.value).startswith(f"gated_attention: {message}") and "\n" not in str(error.value)


@pytest.mark.parametrize(
    "changed, message",
    (
        ({"q": lambda: made(1, 4, 5, 16)}, "v has 2 heads but must have a multiple of q's 4 on GPUs"),
        ({"decay": lambda: made(1, 2, 5, 8)}, "decay has shape (1,2,5,8) but must have (1,2,5,1) or (1,2,5,16)"),
        ({"k": lambda: made(1, 2, 5, 16, dtype=torch.float32)}, "k is float32 but must be bfloat16"),
        ({"q": lambda: made(1, 2, 5, 129)}, "q has 129 features but must have 1 to 128"),
        ({"rule": "delta"}, "decay is not for the rule delta"),
        ({"rule": "none"}, "rule: 'none' is none of gated_delta"),
        ({"l2_norm": -1.0}, "l2_norm is -1.0 but must be finite and at least 0"),
        ({"state": lambda: made(2, 2, 16, 16, dtype=torch.float32)}, "state has shape (2,2,16,16) but must have (1,2,"),
        ({"beta": lambda: made(1, 2, 5, 1, device="cpu")}, "beta lies on cpu but must lie on cuda:0"),
    ),
)  # fmt: skip
def test_linear_arguments_that_do_not_fit_are_named(changed, message):
    with fake_gpu(), pytest.raises(ValueError) as error:
        called(linear_attention, **changed)
    assert str(error.value).startswith(f"linear_attention: {message}") and "\n" not in str(error.value)


@pytest.mark.parametrize(
    "function, changed, message",
    (
        (short_convolution, {"x": lambda: made(24)}, "x has 1 dimensions but must be (B,T,C) or (T,C)"),
        (short_convolution, {"weight": lambda: made(24, 9)}, "weight has 9 taps but must have 2 to 8"),
        (short_convolution, {"weight": lambda: made(23, 4)}, "weight has shape (23,4) but must have (24,4)"),
        (short_convolution, {"bias": lambda: made(4)}, "bias has shape (4) but must have (24)"),
        (short_convolution, {"state": lambda: made(1, 3, 24)}, "state has shape (1,3,24) but must have (2,3,24)"),
        (short_convolution, {"cu_seqlens": lambda: made(3, dtype=torch.int32)}, "cu_seqlens must be (N+1), N >= 1, and x"),
        (short_convolution, {"weight": lambda: made(24, 4, dtype=torch.float16)}, "weight is float16 but must be bfloat16"),
        (short_convolution, {"activation": "sigmoid"}, "activation: 'sigmoid' is none of silu, none"),
        (short_convolution, {"bias": lambda: made(24, device="cpu")}, "bias lies on cpu but must lie on cuda:0, as x does"),
        (gated_norm, {"x": lambda: made(2, 3, 9, 4097)}, "x has 4097 features but must have 1 to 4096 on GPUs"),
        (gated_norm, {"x": lambda: made(2, 24)}, "x has 2 dimensions but must have 4"),
        (gated_norm, {"weight": lambda: made(9)}, "weight has shape (9) but must have (24) or (3,24)"),
        (gated_norm, {"gate": lambda: made(2, 3, 9, 1)}, "gate has shape (2,3,9,1) but must have (2,3,9,24)"),
        (gated_norm, {"gate_fn": "relu"}, "gate_fn: 'relu' is none of none, sigmoid"),
        (gated_norm, {"eps": -1.0}, "eps is -1.0 but must be finite and at least 0"),
        (gated_norm, {"x": lambda: made(2, 3, 9, 24, dtype=torch.float64)}, "x is float64 but must be float32 or"),
    ),
)  # fmt: skip
def test_row_arguments_that_do_not_fit_are_named(function, changed, message):
    with fake_gpu(), pytest.raises(ValueError) as error:
        called(function, **changed)
    assert str(error.value).startswith(f"{function.__name__}: {message}") and "\n" not in str(error.value)


def test_arguments_not_a_tensor_is_a_type_error():
    with fake_gpu(), pytest.raises(TypeError, match="gated_attention: k is a list but must be a tensor"):
        called(gated_attention, k=[1.0])


def test_arguments_precision_native16_is_for_bf16():
    with fake_gpu():
        assert called(gated_attention, precision="native16").dtype == torch.bfloat16
        with pytest.raises(ValueError, match="precision native16 is for bfloat16, and q is float32"):
            gated_attention(*problem(dtype=torch.float32), precision="native16")


def test_arguments_q_on_the_cpu_stays_with_the_cpu_s_words():
    with fake_gpu(), pytest.raises(ValueError, match="k lies on cuda:0 but must be in the CPU's memory"):
        called(gated_attention, q=lambda: made(2, 4, 8, 64, device="cpu"))


def in_a_process(program):
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)


def test_import_cpu_tensors_do_not_import_triton():
    program = """
import sys, torch
from headgate.torch import gated_attention
q = torch.randn(1, 2, 3, 8)
gated_attention(q, q, q, q)
assert not any(name == "headgate.torch.gpu.operation" or name == "headgate.torch.gpu.kernels" for name in sys.modules)
sys.modules["triton"] = None
from torch._subclasses.fake_tensor import FakeTensorMode
with FakeTensorMode():
    q = torch.empty(1, 2, 3, 8, device="cuda")
    try:
        gated_attention(q, q, q)
    except ModuleNotFoundError as error:
        print(error)
"""
    found = in_a_process(program)
    assert found.returncode == 0, found.stderr
    assert found.stdout == (
        "headgate.torch on GPUs needs triton, which is not installed: pip install 'headgate-attention[triton]'\n"
    )
