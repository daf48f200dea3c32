# SPDX-License-Identifier: Apache-2.0
"""What type checkers find: nothing in the package, and words that an argument does not take in programs that use it."""

import ast
import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import headgate
import headgate.torch
from headgate.torch import module, variant
from headgate.torch.flex import flex_attention

ROOT = Path(__file__).resolve().parents[3]
PACKAGE = Path(headgate.__file__).parent
LINEAR = {"q", "k", "v", "decay", "beta"}
# The keywords of each function for type checkers, and those of its arguments that have parameters of their own.
DICTIONARIES = {
    "AttentionArguments": (headgate.torch.gated_attention, {"q", "k", "v", "gate", "return_lse", "return_max_logit"}),
    "RingArguments": (headgate.torch.ring_attention, {"q", "k", "v", "gate", "group", "sharding", "return_lse"}),
    "LinearArguments": (headgate.torch.linear_attention, {*LINEAR, "return_state", "snapshot_lengths"}),
    "ConvolutionArguments": (
        headgate.torch.short_convolution,
        {"x", "weight", "bias", "return_state", "snapshot_lengths"},
    ),
    "NormArguments": (headgate.torch.gated_norm, {"x", "weight", "gate"}),
    "AddedArguments": (
        headgate.torch.scaled_dot_product_attention,
        {"query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa", "gate"},
    ),
}
BEGINNING = """\
import torch
import headgate
from headgate.torch import GatedAttention, GatedDeltaNet, gated_attention, linear_attention, ring_attention
from headgate.torch import scaled_dot_product_attention

q = k = v = torch.randn(1, 2, 3, 4)
"""
GOOD = """\
headgate.attention(q, k, v, causality="causal", layout="bthd", gate_fn="silu")
y: torch.Tensor = gated_attention(q, k, v, q, causality="causal", window_left=2, gate_fn="sigmoid2", gate_op="add")
y, lse = gated_attention(q, k, v, causality="none", return_lse=True)
y, state = linear_attention(q, k, v, rule="gated", return_state=True)
y, state, snapshots = linear_attention(q, k, v, return_state=True, snapshot_lengths=[1, 2])
scaled_dot_product_attention(q, k, v, is_causal=True, precision="native16")
GatedAttention(16, 2, gate_site="g2", gate_grain="headwise", gate_layout="separate", qk_norm="none")
GatedDeltaNet(16, 2, weight_layout="kimi_linear")
"""
BAD = (
    'headgate.attention(q, k, v, causality="causl")',
    'headgate.linear_attention(q, k, v, rule="delt")',
    'gated_attention(q, k, v, causality="causl")',
    'gated_attention(q, k, v, layout="thd", return_lse=True)',
    "gated_attention(q, k, v, is_causal=True)",
    'ring_attention(q, k, v, sharding="zigzag")',
    'ring_attention(q, k, v, causality="causl")',
    'linear_attention(q, k, v, rule="delt")',
    'scaled_dot_product_attention(q, k, v, precision="bf16")',
    'GatedAttention(16, 2, gate_site="g9")',
    'GatedAttention(16, 2, gate_fn="tanh")',
    'GatedAttention(16, 2, gate_layout="blocked")',
    'GatedAttention(16, 2).forward(q, causality="causl")',
    'GatedDeltaNet(16, 2, weight_layout="qwen4")',
)


@pytest.fixture(scope="module")
def mypy(tmp_path_factory):
    """Runs mypy on paths, with the project's settings: the lines that it writes."""
    cache = tmp_path_factory.mktemp("mypy")

    def run(*paths):
        command = [sys.executable, "-m", "mypy", "--config-file", ROOT / "pyproject.toml", "--cache-dir", cache, *paths]
        environment = {**os.environ, "MYPYPATH": str(PACKAGE.parent)}
        done = subprocess.run(command, cwd=cache, env=environment, capture_output=True, text=True)
        assert done.returncode in (0, 1) and not done.stderr, done.stderr
        return done.stdout.splitlines()

    return run


def test_package_passes_mypy(mypy):
    found = mypy(PACKAGE)
    assert len(found) == 1 and found[0].startswith("Success: no issues found in "), found
    assert int(found[0].split()[5]) >= 40


def test_programs_wrong_words_are_found(mypy, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(BEGINNING + GOOD)
    assert mypy(program)[-1].startswith("Success"), mypy(program)
    program.write_text(BEGINNING + "\n".join(BAD))
    first = BEGINNING.count("\n") + 1
    lines = {int(line.split(":")[1]) for line in mypy(program) if ": error: " in line}
    assert lines == {first + i for i in range(len(BAD))}, [BAD[i] for i in range(len(BAD)) if first + i not in lines]


def test_keywords_for_type_checkers_are_those_of_the_functions():
    tree = ast.parse((PACKAGE / "_arguments.pyi").read_text(encoding="utf-8"))
    written = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    assert set(written) == {*DICTIONARIES, "FlexArguments"}
    for name, (function, own) in DICTIONARIES.items():
        typed = [field.target.id for field in written[name].body]
        assert typed == [p for p in inspect.signature(function).parameters if p not in own], name
    flex = {field.target.id for field in written["FlexArguments"].body}
    assert flex <= set(inspect.signature(flex_attention).parameters)


def test_words_of_a_layer_are_those_of_the_kernels():
    functions = tuple(word for word, _ in headgate._headgate._rows["gate_functions"])
    assert variant.FUNCTIONS == functions
    options = {name: annotation for name, *_, annotation in headgate._headgate._rows["options"]}
    assert options["gate_op"] == f"Literal[{', '.join(map(repr, variant.OPERATIONS))}]"
    assert options["precision"] == f"Literal[{', '.join(map(repr, module._CHOICES['precision']))}]"


@pytest.mark.parametrize("layer", [headgate.torch.GatedAttention, headgate.torch.GatedDeltaNet])
def test_constructor_documents_every_argument(layer):
    text = inspect.getdoc(layer)
    listed = [line.split(":")[0] for line in text.partition("\nArgs:\n")[2].splitlines() if line[4:5] != " "]
    named = [name.strip() for name in listed if name.strip()]
    assert named == list(inspect.signature(layer).parameters)
    assert issubclass(layer, torch.nn.Module)
