# SPDX-License-Identifier: Apache-2.0
"""Arguments of gated_attention with tensors of a GPU: what is declined is declined by name, in one line."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from devices import fake_gpu, made
from headgate.torch import GATE_FUNCTIONS, gated_attention, linear_attention
from headgate.torch.arguments import OPTIONS, TENSORS
from headgate.torch.gpu import support
from headgate.torch.gpu.launch import Inputs, Options

ROOT = Path(__file__).resolve().parents[3]


def problem(D=64, dtype=torch.bfloat16):
    return made(2, 4, 8, D, dtype=dtype), *(made(2, 2, 9, D, dtype=dtype) for _ in range(2))


# A value of each argument that may be declined which is not its default.
VALUES = {
    "bias": lambda: made(2, 4, 8, 9),
    "mask": lambda: made(1, 1, 8, 9, dtype=torch.bool),
    "alibi_slopes": lambda: made(4, dtype=torch.float32),
    "block_table": lambda: made(2, 4, dtype=torch.int32),
    "k_scale": lambda: made(2, 2, 9, 1, dtype=torch.float32),
    "v_scale": lambda: made(2, 2, 9, 1, dtype=torch.float32),
    "gate_threshold": lambda: 0.1,
    "dropout": lambda: 0.1,
    "dropout_seed": lambda: 1,
    "threads": lambda: 2,
    "target": lambda: "avx3",
    "backend": lambda: "cpu",
}


@pytest.mark.parametrize("name", support.DECLINED)
def test_arguments_declined_one_is_named(name):
    with fake_gpu(), pytest.raises(ValueError) as error:
        gated_attention(*problem(), **{name: VALUES[name]()})
    assert str(error.value).startswith(f"gated_attention: {name} is not supported on GPUs") and "\n" not in str(
        error.value
    )


@pytest.mark.parametrize("name", [name for name in support.DECLINED if name in OPTIONS])
def test_arguments_declined_one_at_its_default_is_taken(name):
    with fake_gpu():
        default = None if name == "threads" else OPTIONS[name].default
        assert gated_attention(*problem(), **{name: default}).shape == (2, 4, 8, 64)


def test_arguments_list_is_that_of_the_operation_and_of_the_documents():
    assert set(support.SUPPORTED_TENSORS) <= set(TENSORS) and set(support.SUPPORTED_OPTIONS) <= set(OPTIONS)
    assert support.SUPPORTED_TENSORS == Inputs._fields
    assert set(support.SUPPORTED_OPTIONS) == {*Options._fields, "precision"} - {"tiles"}
    section = (ROOT / "docs/reference/pytorch.md").read_text().partition("## On GPUs")[2].partition("\n## ")[0]
    rows = dict(re.findall(r"^\| (computed|declined|takes|refuses)[^|]*\| (.*) \|$", section, re.M))
    named = {word: set(re.findall(r"`(\w+)`", row)) for word, row in rows.items()}
    assert named["declined"] == set(support.DECLINED)
    assert named["refuses"] == set(support.LINEAR_DECLINED)
    assert named["takes"] >= set(support.LINEAR_TENSORS + support.LINEAR_OPTIONS) - {"q", "k", "v"}
    assert named["computed"] >= set(support.SUPPORTED_TENSORS + support.SUPPORTED_OPTIONS) - {"q", "k", "v", "gate"}


def test_arguments_gate_functions_are_of_the_library():
    """One that the library has and GPUs have not is refused by its name, like a word that nobody knows."""
    assert set(support.GATE_FUNCTIONS) <= set(GATE_FUNCTIONS)


def call(**changed):
    q, k, v = problem()
    arguments = {"q": q, "k": k, "v": v, "gate_logits": made(2, 4, 8, 1), **changed}
    return gated_attention(**{name: value() if callable(value) else value for name, value in arguments.items()})


@pytest.mark.parametrize(
    "changed, message",
    (
        ({"k": lambda: made(2, 2, 9, 64, device="cpu")}, "k lies on cpu but must lie on cuda:0, as q does"),
        ({"gate_logits": lambda: made(2, 4, 8, 1, device="cpu")}, "gate_logits lies on cpu but must lie on cuda:0"),
        ({"q": lambda: made(2, 4, 8, 64, dtype=torch.float64)}, "q is float64 but must be float32 or bfloat16 or float16"),
        ({"v": lambda: made(2, 2, 9, 64, dtype=torch.float16)}, "v is float16 but must be bfloat16"),
        ({"gate_logits": lambda: made(2, 4, 8, 1, dtype=torch.float16)}, "gate_logits is float16 but must be bfloat16 or"),
        ({"v": lambda: made(2, 2, 9, 257)}, "v has 257 features but must have 1 to 256"),
        ({"v": lambda: made(2, 2, 8, 64)}, "v has shape (2,2,8,64) but must have (2,2,9,64)"),
        ({"k": lambda: made(2, 3, 9, 64), "v": lambda: made(2, 3, 9, 64)}, "q has 4 heads but must have a multiple of"),
        ({"gate_logits": lambda: made(2, 4, 8, 5)}, "gate_logits has shape (2,4,8,5) but must have (2,4,8,1) or"),
        ({"sinks": lambda: made(3, dtype=torch.float32)}, "sinks has shape (3) but must have (4)"),
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
        call(**changed)
    assert str(error.value).startswith(f"gated_attention: {message}") and "\n" not in str(error.value)


def linear(**changed):
    arguments = {name: lambda: made(1, 2, 5, 16) for name in ("q", "k", "v")}
    arguments = {**arguments, "decay": lambda: made(1, 2, 5, 1), **changed}
    return linear_attention(**{name: value() if callable(value) else value for name, value in arguments.items()})


@pytest.mark.parametrize("name", support.LINEAR_DECLINED)
def test_linear_arguments_declined_one_is_named(name):
    with fake_gpu(), pytest.raises(ValueError) as error:
        linear(**{name: VALUES[name]()})
    assert str(error.value).startswith(f"linear_attention: {name} is not supported on GPUs")


@pytest.mark.parametrize(
    "changed, message",
    (
        ({"q": lambda: made(1, 4, 5, 16)}, "v has 2 heads but must have a multiple of q's 4 on GPUs"),
        ({"decay": lambda: made(1, 2, 5, 16)}, "decay has shape (1,2,5,16) but must have (1,2,5,1)"),
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
        linear(**changed)
    assert str(error.value).startswith(f"linear_attention: {message}") and "\n" not in str(error.value)


def test_arguments_not_a_tensor_is_a_type_error():
    with fake_gpu(), pytest.raises(TypeError, match="gated_attention: k is a list but must be a tensor"):
        call(k=[1.0])


def test_arguments_precision_native16_is_for_bf16():
    with fake_gpu():
        assert call(precision="native16").dtype == torch.bfloat16
        with pytest.raises(ValueError, match="precision native16 is for bfloat16, and q is float32"):
            gated_attention(*problem(dtype=torch.float32), precision="native16")


def test_arguments_q_on_the_cpu_stays_with_the_cpu_s_words():
    with fake_gpu(), pytest.raises(ValueError, match="k lies on cuda:0 but must be in the CPU's memory"):
        call(q=lambda: made(2, 4, 8, 64, device="cpu"))


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
        "headgate.torch on GPUs needs triton, which is not installed: pip install 'headgate[triton]'\n"
    )
