# SPDX-License-Identifier: Apache-2.0
"""What type checkers and `help` read of the extension module."""

import ast
import inspect
from pathlib import Path

import headgate
from headgate import _headgate

FOLDER = Path(headgate.__file__).parent


def test_stub_every_name_agrees_with_the_module():
    """Every public name is in the stub, with the arguments of its docstring, and has a docstring."""
    assert (FOLDER / "py.typed").exists()
    tree = ast.parse((FOLDER / "_headgate.pyi").read_text())
    stubs = {node.name: node for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    public = [name for name in dir(_headgate) if not name.startswith("_")]
    assert set(public) <= set(stubs) and len(public) > 20
    for name in public:
        assert inspect.getdoc(getattr(_headgate, name)), name
        assert ast.get_docstring(stubs[name]), name
    arguments = stubs["attention"].args
    names = [argument.arg for argument in arguments.args + arguments.kwonlyargs]
    assert names[:4] == ["q", "k", "v", "gate"] and "gate_threshold" in names and names[-1] == "out"
    for name in names:
        assert f"    {name}: " in headgate.attention.__doc__, name


def test_every_documented_option_is_taken():
    """Passes the defaults of the signature explicitly."""
    import numpy as np

    signature = ast.parse((FOLDER / "_headgate.pyi").read_text())
    attention = next(node for node in signature.body if getattr(node, "name", "") == "attention")
    defaults = {
        argument.arg: ast.literal_eval(value)
        for argument, value in zip(attention.args.kwonlyargs, attention.args.kw_defaults)
    }
    x = np.ones((1, 1, 2, 4), np.float32)
    assert np.array_equal(headgate.attention(x, x, x, x, **defaults), headgate.attention(x, x, x, x))


def test_every_name_is_documented():
    page = (Path(__file__).resolve().parents[2] / "docs" / "reference" / "python.md").read_text()
    for name in ("attention", "attention_forward", "attention_backward", "attention_statistics", "KvCache", "convert",
                 "attention_merge", "narrow_keys", "linear_attention", "linear_attention_forward",
                 "linear_attention_backward", "linear_attention_weights", "linear_attention_statistics",
                 "short_convolution", "short_convolution_forward",
                 "short_convolution_backward", "gated_norm", "gated_norm_backward", "quantize", "load", "explain",
                 "runs"):  # fmt: skip
        assert f"{name}(" in page or f"`{name}`" in page, name
