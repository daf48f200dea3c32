# SPDX-License-Identifier: Apache-2.0
"""Arguments that do not fit: one line that names the argument, before anything is computed."""

import array

import numpy as np
import pytest
import torch

import headgate
from headgate import _headgate
from headgate.operations import Operation
from support import problem

Q, K, V, GATE = problem(dtype=torch.float32)


def refused(message, call, error=ValueError):
    with pytest.raises(error) as caught:
        call()
    assert str(caught.value) == message


@pytest.mark.parametrize(
    "message, arguments",
    (
        ("attention: q is required but None", (None, K, V)),
        ("attention: k is a list but must be an array (NumPy's, PyTorch's or another with DLPack)", (Q, [1.0], V)),
        ("attention: q has shape (7,16) but must be (B,H,T,D) or (H,T,D)", (Q[0, 0], K, V)),
        ("attention_forward: k has shape (2,2,9,8) but q has shape (2,4,7,16): D is 8 and 16", (Q, K[..., :8], V)),
        ("attention_forward: q has dtype i32 but must be f32 or f64 or bf16 or f16", (Q.int(), K, V)),
        (
            "attention: q has dtype torch.uint8 but must be one of float32, float64, bfloat16, float16, bool, int32, "
            "int64, int8",
            (Q.to(torch.uint8), K, V),
        ),
        (
            "attention: v of dtype torch.float32 cannot be read as an array of the CPU: Cannot pack tensors on meta",
            (Q, K, V.to("meta")),
        ),
        (
            "attention: q requires a gradient, which autograd would not get of this call: detach it, or call under "
            "no_grad",
            (Q.clone().requires_grad_(), K, V),
        ),
    ),
)
def test_array_bad_is_refused(message, arguments):
    refused(message, lambda: headgate.attention(*arguments))


@pytest.mark.parametrize(
    "message, options",
    (
        ("attention: causality: 'yes' is none of none, causal", dict(causality="yes")),
        ("attention: layout: 'tbhd' is none of bhtd, bthd", dict(layout="tbhd")),
        (
            "attention: gate_fn: 'relu' is none of sigmoid, sigmoid2, ns_sigmoid, silu, softplus, identity, none",
            dict(gate_fn="relu"),
        ),
        *(
            (
                f"attention: threads is {threads} but must be 1 to {headgate.max_threads()}, four for each processor, or "
                "None for default_threads()",
                dict(threads=threads),
            )
            for threads in (-1, 0, headgate.max_threads() + 1, 10**9)
        ),
        (
            "attention: mask has shape (7) but must be (B,H,T,X), (H,T,X) or (T,X), X = S, or K of key_indices",
            dict(mask=torch.ones(7, dtype=torch.bool)),
        ),
    ),
)
def test_options(message, options):
    refused(message, lambda: headgate.attention(Q, K, V, GATE, **options))


def test_types_of_options():
    refused(
        "attention: softcap is 'x' but must be a number", lambda: headgate.attention(Q, K, V, softcap="x"), TypeError
    )
    for name, meant in (
        ("is_causal", "causality='causal'"),
        ("dropout_p", "dropout"),
        ("gate_logits", "gate"),
        ("z", "gate"),
    ):
        message = f"attention: there is no argument '{name}'; did you mean {meant}?"
        refused(message, lambda name=name: headgate.attention(Q, K, V, **{name: 1}), TypeError)
    refused(
        "attention_forward: outputs: 'z' is none of y, lse, attn, weights, max_logit",
        lambda: headgate.attention_forward(Q, K, V, outputs=["z"]),
    )
    refused("AttentionOutputs: there is no argument 'z'", lambda: headgate.AttentionOutputs(z=Q), TypeError)


@pytest.mark.parametrize(
    "message, call",
    (
        ("attention: threads is '2' but must be a whole number", lambda: headgate.attention(Q, K, V, threads="2")),
        ("attention: k is missing", lambda: headgate.attention(Q)),
        ("attention: takes 4 arguments by position but got 5", lambda: headgate.attention(Q, K, V, GATE, 1.0)),
        ("attention: q is given by position and by name", lambda: headgate.attention(Q, K, V, q=Q)),
        ("attention: layout is 5 but must be a word", lambda: headgate.attention(Q, K, V, layout=5)),
        (
            "attention: layout is a ndarray but must be a word",
            lambda: headgate.attention(Q, K, V, layout=np.zeros((9, 99))),
        ),
        (
            "attention_merge: parts is 5 but must be a sequence of pairs (attn, lse)",
            lambda: headgate.attention_merge(5),
        ),
        ("narrow_keys: begin is 'a' but must be a whole number", lambda: headgate.narrow_keys("a", 5, q=Q, k=K)),
        ("set_target: name is 5 but must be a str", lambda: headgate.set_target(5)),
        ("set_target: name is missing", headgate.set_target),
        ("set_backend: name is None but must be a str", lambda: headgate.set_backend(None)),
        ("max_threads: takes 0 arguments by position but got 1", lambda: headgate.max_threads(1)),
        ("convert: dtype is 5 but must be a str", lambda: headgate.convert(Q, 5)),
        ("KvCache: head_dim is 'a' but must be a whole number", lambda: headgate.KvCache(1, "a", 8, pages=4)),
        ("KvCache: pages is missing", lambda: headgate.KvCache(1, 8, 8)),
        ("KvCache: there is no argument 'size'", lambda: headgate.KvCache(1, 8, 8, pages=4, size=1)),
        (
            "append: sequences is 0 but must be a sequence of whole numbers",
            lambda: headgate.KvCache(1, 8, 8, pages=4).append(0, K, V),
        ),
        (
            "length: sequence is None but must be a whole number",
            lambda: headgate.KvCache(1, 8, 8, pages=4).length(None),
        ),
        ("AttentionOutputs: takes 0 arguments by position but got 1", lambda: headgate.AttentionOutputs(Q)),
        ("path is a int but must be a str or a pathlib.Path", lambda: headgate.load(5)),
        ("path is a bytes but must be a str or a pathlib.Path", lambda: headgate.load(b"run")),
        ("directory is None but must be a str or a pathlib.Path", lambda: headgate.runs(None)),
        ("problem is None but must be a dict, or the path of a JSON file", lambda: headgate.explain(None)),
        (
            "problem: Q is a set but must be an array, nested lists, a number, a str or a bool",
            lambda: headgate.explain({"Q": {1}}),
        ),
    ),
)
def test_wrong_types_are_named_in_one_line(message, call):
    refused(message, call, TypeError)


def test_ranges_of_keys_refuse_lists():
    lists = torch.zeros(Q.shape[-2], 1, dtype=torch.int32)
    refused(
        "narrow_keys: key_indices is given but its entries number all keys: make lists of the range's keys, numbered from 0",
        lambda: headgate.narrow_keys(0, 5, q=Q, k=K, v=V, key_indices=lists),
    )


def test_backward_bad_array_is_refused():
    saved = headgate.attention_forward(Q, K, V)
    dy = torch.ones_like(saved.y)
    refused(
        "attention_backward: dgate is asked for but gate is None",
        lambda: headgate.attention_backward(dy, Q, K, V, y=saved.y, lse=saved.lse, gradients=["dgate"]),
    )
    refused("attention_backward: y is required but absent", lambda: headgate.attention_backward(dy, Q, K, V))


def test_tensor_recorded_is_read_under_no_grad():
    recorded = Q.clone().requires_grad_()
    with torch.no_grad():
        y = headgate.attention(recorded, K, V)
    assert torch.equal(y, headgate.attention(Q, K, V)) and not y.requires_grad


def test_call_refused_writes_nothing():
    out = np.full((2, 4, 7, 12), 5.0, np.float32)
    with pytest.raises(ValueError):
        headgate.attention(Q.numpy(), K.numpy(), V.numpy(), softcap=-1.0, out=out)
    assert (out == 5.0).all()


def test_output_overlapping_an_input_is_refused():
    x = np.ones((1, 1, 4, 8), np.float32)
    with pytest.raises(ValueError, match="^attention_forward: y overlaps q in memory"):
        headgate.attention(x, x.copy(), x.copy(), out=x)


def test_results_of_arrays_without_a_shape_have_a_repr():
    given = headgate.AttentionOutputs(y=array.array("f", [0.0]), lse=np.zeros((2, 3)))
    assert repr(given) == "AttentionOutputs(y: <class 'array.array'>, lse: (2, 3))"


NUMBERS = {
    headgate.attention: (_headgate._rows, (Q, K, V)),
    headgate.linear_attention: (_headgate._linear_rows, (Q, Q, Q)),
    headgate.short_convolution: (_headgate._convolution_rows, (Q[0], torch.ones(16, 4))),
    headgate.gated_norm: (_headgate._norm_rows, (Q,)),
}


@pytest.mark.parametrize("function", NUMBERS, ids=lambda function: function.__name__)
@pytest.mark.parametrize("value", [True, False, np.True_])
def test_bool_for_a_number_is_refused(function, value):
    rows, tensors = NUMBERS[function]
    options = [name for name, option in Operation(rows).options.items() if option.type != "str"]
    assert options
    for option in options:
        message = f"{function.__name__}: {option} is {value!r} but must be "
        with pytest.raises(TypeError) as caught:
            function(*tensors, **{option: value})
        assert str(caught.value).startswith(message)


@pytest.mark.parametrize("function", NUMBERS, ids=lambda function: function.__name__)
def test_message_that_quotes_a_word_is_one_line(function):
    rows, tensors = NUMBERS[function]
    for name, option in Operation(rows).options.items():
        if option.type == "str":
            with pytest.raises(ValueError) as caught:
                function(*tensors, **{name: "a\nb\r\x7f"})
            assert "'a\\x0ab\\x0d\\x7f'" in str(caught.value) and "\n" not in str(caught.value)


def test_array_without_dimensions_as_parts_is_refused():
    refused(
        "attention_merge: parts is array(1) but must be a sequence of pairs (attn, lse)",
        lambda: headgate.attention_merge(np.array(1)),
        TypeError,
    )
