# SPDX-License-Identifier: Apache-2.0
"""What every function refuses of its tensors: other types, devices and layouts, by one line that names the argument."""

import inspect
import math
import re

import numpy
import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask

import headgate
from headgate.operations import ATTENTION, GATED_NORM, LINEAR_ATTENTION, SHORT_CONVOLUTION
from headgate.torch import (
    DeltaNetCache,
    GatedAttention,
    GatedDeltaNet,
    GateVariant,
    attention_statistics,
    gated_attention,
    gated_norm,
    linear_attention,
    linear_attention_statistics,
    linear_attention_weights,
    ring_attention,
    scaled_dot_product_attention,
    short_convolution,
    varlen_attn,
)
from headgate.torch.flex import flex_attention
from headgate.torch.layouts import Heads, join_gate, split_blocks, split_gate

B, H, T, D, C, K, N = 2, 2, 4, 8, 6, 3, 2


def rows(width=D):
    return torch.randn(B, H, T, width)


def begins():
    return torch.tensor([0, T, 2 * T], dtype=torch.int32)


def attention_tensors():
    per_head, counts = torch.rand(H), torch.full((B,), T)
    return {
        **{name: rows() for name in ("q", "k", "v")},
        "gate": rows(1),
        "bias": torch.randn(T, T),
        "key_bias": torch.zeros(T),
        "key_indices": torch.zeros(T, 1, dtype=torch.int32),
        "mask": torch.ones(T, T, dtype=torch.bool),
        "key_lengths": counts,
        "query_offsets": counts - T,
        "alibi_slopes": per_head,
        "sinks": per_head,
        "cu_seqlens_q": begins(),
        "cu_seqlens_k": begins(),
        "block_table": torch.zeros(B, 1, dtype=torch.int32),
        "k_scale": rows(1),
        "v_scale": rows(1),
        "k_first": rows(),
        "v_first": rows(),
    }


def linear_tensors():
    return {
        **{name: rows() for name in ("q", "k", "v")},
        "decay": -torch.rand(B, H, T, 1),
        "beta": torch.rand(B, H, T, 1),
        "state": torch.randn(B, H, D, D),
        "cu_seqlens": begins(),
        "snapshot_lengths": torch.tensor([[0, T]]),
    }


def convolution_tensors():
    return {
        "x": torch.randn(B, T, C),
        "weight": torch.randn(C, K),
        "bias": torch.randn(C),
        "state": torch.randn(B, K - 1, C),
        "cu_seqlens": begins(),
        "snapshot_lengths": torch.tensor([[0, T]]),
    }


def sdpa_tensors():
    names = ("query", "key", "value")
    return {**{name: rows() for name in names}, "attn_mask": torch.zeros(T, T), "gate": rows(1), "sinks": torch.rand(H)}


def varlen_tensors():
    packed = {name: torch.randn(N * T, H, D) for name in ("query", "key", "value")}
    return {
        **packed,
        "cu_seq_q": begins(),
        "cu_seq_k": begins(),
        "seqused_k": torch.full((N,), 3),
        "gate": packed["key"],
    }


def varlen(**tensors):
    return varlen_attn(tensors.pop("query"), **tensors, max_q=T, max_k=T)


def attention(gate=None, **tensors):
    return gated_attention(tensors.pop("q"), tensors.pop("k"), tensors.pop("v"), gate, **tensors)


# The function, its tensors, and those of them that it needs.
FUNCTIONS = {
    "gated_attention": (attention, attention_tensors, ATTENTION.required),
    "linear_attention": (linear_attention, linear_tensors, LINEAR_ATTENTION.required),
    "short_convolution": (short_convolution, convolution_tensors, SHORT_CONVOLUTION.required),
    "gated_norm": (gated_norm, lambda: {"x": rows(), "weight": torch.ones(D), "gate": rows()}, GATED_NORM.required),
    "scaled_dot_product_attention": (scaled_dot_product_attention, sdpa_tensors, ("query", "key", "value")),
    "varlen_attn": (varlen, varlen_tensors, ("query", "key", "value", "cu_seq_q", "cu_seq_k")),
}
OPERATIONS = {
    "gated_attention": ATTENTION,
    "linear_attention": LINEAR_ATTENTION,
    "short_convolution": SHORT_CONVOLUTION,
    "gated_norm": GATED_NORM,
}
CASES = [(function, name) for function, (_, tensors, _) in FUNCTIONS.items() for name in tensors()]


def error_of(function, name, change, error):
    """The message of the call with the tensors that it needs, or its few, and with the tensor `name` changed."""
    compute, make, needed = FUNCTIONS[function]
    tensors = make()
    given = {key: x for key, x in tensors.items() if key in needed or len(tensors) < 4}
    given[name] = change(tensors[name])
    with pytest.raises(error) as found:
        compute(**given)
    message = str(found.value)
    assert "\n" not in message and message.startswith(f"{function}: "), message
    return message.removeprefix(f"{function}: ")


@pytest.mark.parametrize("function", OPERATIONS)
def test_cases_have_every_tensor_of_the_operation(function):
    assert set(FUNCTIONS[function][1]()) == set(OPERATIONS[function].tensors)


@pytest.mark.parametrize("function, name", CASES)
def test_one_tensor_on_another_device_is_refused(function, name):
    message = error_of(function, name, lambda x: x.to("meta"), ValueError)
    assert "lies on " in message and " on cpu" in message and "meta" in message and name in message


@pytest.mark.parametrize("function, name", CASES)
@pytest.mark.parametrize("made", [lambda x: x.tolist(), lambda x: x.numpy()])
def test_array_that_is_no_tensor_is_a_type_error(function, name, made):
    assert error_of(function, name, made, TypeError).startswith(f"{name} is a ")


@pytest.mark.parametrize("function", FUNCTIONS)
def test_missing_tensor_is_a_type_error(function):
    for name in FUNCTIONS[function][2]:
        if name != "cu_seq_k":  # pages have none
            assert error_of(function, name, lambda _: None, TypeError) == f"{name} is None but must be a tensor"


def to_mkldnn(x):
    return x.float().to_mkldnn()  # which has no integers


@pytest.mark.parametrize("function, name", CASES)
@pytest.mark.parametrize("layout", ["sparse_coo", "mkldnn"])
def test_sparse_tensor_is_refused(function, name, layout):
    convert = torch.Tensor.to_sparse if layout == "sparse_coo" else to_mkldnn
    assert f"{name} has the layout {layout}" in error_of(function, name, convert, ValueError)


def test_sparse_tensor_that_has_no_views_is_refused():
    q = torch.randn(3, 5, 8)
    for name in ("query", "key", "value"):
        given = {"query": q, "key": q, "value": q} | {name: q.to_sparse()}
        with pytest.raises(ValueError, match=f"^scaled_dot_product_attention: {name} has the layout sparse_coo"):
            scaled_dot_product_attention(**given)


def nested(x, layout=torch.jagged):
    return torch.nested.nested_tensor([x[0], x[0, :2]], layout=layout)


@pytest.mark.parametrize("layout", [torch.jagged, torch.strided])
@pytest.mark.parametrize("function", [name for name in FUNCTIONS if name != "gated_attention"])
def test_nested_tensor_is_refused(function, layout):
    for name in FUNCTIONS[function][2][:2]:
        message = error_of(function, name, lambda x: nested(x, layout), ValueError)
        assert message.startswith(f"{name} is a nested tensor, which only gated_attention")


# Arguments of gated_attention and of PyTorch's functions that functions with other semantics do not take.
FOREIGN = {
    "layout": "bthd",
    "causality": "causal",
    "window_left": 0,
    "bias": torch.zeros(T, T),
    "key_bias": torch.zeros(T),
    "key_indices": torch.zeros(T, 1, dtype=torch.int32),
    "key_block_size": 2,
    "mask": torch.eye(T, dtype=torch.bool),
    "key_lengths": torch.ones(B, dtype=torch.int32),
    "alibi_slopes": torch.rand(H),
    "dropout": 0.5,
    "return_lse": True,
    "cu_seqlens_q": begins(),
    "foo": 1,
}


@pytest.mark.parametrize("name", FOREIGN)
def test_argument_that_is_not_declared_is_a_type_error(name):
    q = rows()
    for function in ("scaled_dot_product_attention", "varlen_attn", "flex_attention"):
        if (function, name) == ("flex_attention", "return_lse"):
            continue
        with pytest.raises(TypeError, match=rf"^{function}\(\) got an unexpected keyword argument '{name}'(; did|$)"):
            if function == "varlen_attn":
                varlen_attn(q[0], q[0], q[0], begins(), begins(), T, T, **{name: FOREIGN[name]})
            else:
                call = flex_attention if function == "flex_attention" else scaled_dot_product_attention
                call(q, q, q, **{name: FOREIGN[name]})


@pytest.mark.parametrize("function", OPERATIONS)
def test_unknown_argument_names_the_function(function):
    compute, make, needed = FUNCTIONS[function]
    given = {name: x for name, x in make().items() if name in needed}
    with pytest.raises(TypeError, match=rf"^{function}\(\) got an unexpected keyword argument 'foo'$"):
        compute(**given, foo=1)


# The function, an argument of another library or a mistyped one, and what is suggested.
SUGGESTIONS = (
    ("gated_attention", "is_causal", "causality='causal'"),
    ("gated_attention", "causal", "causality='causal'"),
    ("gated_attention", "dropout_p", "dropout"),
    ("gated_attention", "attn_mask", "mask, or bias for numbers"),
    ("gated_attention", "key_padding_mask", "key_lengths, or mask"),
    ("gated_attention", "softmax_scale", "scale"),
    ("gated_attention", "window_size", "window_left and window_right"),
    ("gated_attention", "z", "gate"),
    ("gated_attention", "causalty", "causality"),
    ("linear_attention", "cu_seqlen", "cu_seqlens"),
    ("gated_norm", "z", "gate"),
    ("scaled_dot_product_attention", "causality", "is_causal=True"),
    ("scaled_dot_product_attention", "dropout", "dropout_p"),
    ("varlen_attn", "is_causal", "window_size=(-1, 0)"),
)


@pytest.mark.parametrize("function, name, meant", SUGGESTIONS)
def test_argument_of_another_library_suggests_ours(function, name, meant):
    compute, make, needed = FUNCTIONS[function]
    given = {key: x for key, x in make().items() if key in needed}
    with pytest.raises(TypeError) as found:
        compute(**given, **{name: True})
    assert str(found.value) == f"{function}() got an unexpected keyword argument '{name}'; did you mean {meant}?"


def test_layers_suggest_their_arguments():
    layer, h = GatedAttention(16, 2), torch.randn(1, 3, 16)
    for call, name, meant in (
        (lambda: layer(h, is_causal=True), "is_causal", "causality='causal'"),
        (lambda: layer(h, attn_mask=None), "attn_mask", "mask, or bias for numbers"),
        (lambda: GatedAttention(16, num_heads=2), "num_heads", "num_attention_heads"),
        (lambda: GatedAttention(16, 2, gate_side="g1"), "gate_side", "gate_site"),
        (lambda: GatedDeltaNet(16, 2, weight_layot="qwen3_5"), "weight_layot", "weight_layout"),
    ):
        with pytest.raises(TypeError) as found:
            call()
        assert str(found.value).endswith(f"got an unexpected keyword argument '{name}'; did you mean {meant}?")
    with pytest.raises(TypeError, match="got an unexpected keyword argument 'batch_first'$"):
        GatedAttention(16, 2, batch_first=True)


def with_gate(**gate):
    q = torch.linspace(-1, 1, B * H * T * D).view(B, H, T, D)
    yield "gated_attention", lambda: gated_attention(q, q, q, **gate)
    yield "flex_attention", lambda: flex_attention(q, q, q, **gate)


def test_old_name_of_the_gate_warns_and_computes_the_same():
    z = rows(1)
    for (name, old), (_, new) in zip(with_gate(gate_logits=z), with_gate(gate=z)):
        with pytest.warns(DeprecationWarning, match=f"^{name}: gate_logits is an old name of gate$") as found:
            y = old()
        assert found[0].filename == __file__ or name != "gated_attention"
        assert torch.equal(y, new()), name
    compiled = torch.compile(gated_attention, backend="aot_eager")
    with pytest.warns(DeprecationWarning):
        assert torch.equal(compiled(z, z, z, gate_logits=z), gated_attention(z, z, z, z))


def test_both_names_of_the_gate_are_refused():
    z = rows(1)
    for name, call in with_gate(gate=z, gate_logits=z):
        with pytest.raises(TypeError, match=rf"^{name}\(\) got both gate and gate_logits, its old name$"):
            call()


def test_every_function_names_the_gate_alike():
    for function in (
        gated_attention,
        ring_attention,
        flex_attention,
        varlen_attn,
        scaled_dot_product_attention,
        gated_norm,
    ):
        assert "gate" in inspect.signature(function).parameters, function
    for function in (headgate.attention, headgate.attention_forward, headgate.attention_merge, headgate.gated_norm):
        assert "gate: Array" in function.__nb_signature__[0][0], function
    for method in (GateVariant.values, GateVariant.applied, GateVariant.kernel_arguments):
        assert "gate" in inspect.signature(method).parameters, method


def test_flex_attention_names_what_is_no_dense_tensor():
    q = rows()
    for x, error, message in (
        ([1.0], TypeError, "key is a list but must be a tensor"),
        (q.to_sparse(), ValueError, "key has the layout sparse_coo"),
        (nested(q), ValueError, "key is a nested tensor"),
        (q[0], ValueError, r"key is \[2, 4, 8\] on cpu but must be a tensor \(B,H,T,D\)"),
    ):
        with pytest.raises(error, match=f"^flex_attention: {message}"):
            flex_attention(q, x, q)


def test_varlen_attn_names_options_of_another_type():
    tensors = varlen_tensors()
    del tensors["seqused_k"], tensors["gate"]
    with pytest.raises(TypeError, match="^varlen_attn: return_aux is True but must be an AuxRequest or None$"):
        varlen(**tensors, return_aux=True)
    for window in (3, (1, 2, 3)):
        with pytest.raises(ValueError, match="^varlen_attn: window_size is .* but must be two whole numbers"):
            varlen(**tensors, window_size=window)


def test_layouts_name_what_is_no_tensor():
    heads, q = Heads(2, 1, 4, 1), torch.zeros(8, 3)
    for call, message in (
        (lambda: split_gate([1], "trailing", heads), "split_gate: layout trailing: fused is a list"),
        (lambda: join_gate(q, numpy.zeros((2, 3)), "trailing", heads), "join_gate: gate is a ndarray"),
        (lambda: split_blocks(None, heads), "split_blocks: fused is None"),
    ):
        with pytest.raises(TypeError, match=f"^{message} but must be a tensor$"):
            call()


Q = torch.randn(B, H, T, D)
VISIBLE = create_block_mask(lambda b, h, q, kv: q >= kv, None, None, T, T, device="cpu", BLOCK_SIZE=T)
CALLS = {
    "gated_attention": (gated_attention, {"q": Q, "k": Q, "v": Q, "gate": Q}),
    "linear_attention": (linear_attention, {"q": Q, "k": Q, "v": Q}),
    "short_convolution": (short_convolution, {"x": torch.randn(B, T, C), "weight": torch.randn(C, K)}),
    "gated_norm": (gated_norm, {"x": Q, "weight": torch.ones(D), "gate": Q}),
    "scaled_dot_product_attention": (scaled_dot_product_attention, {"query": Q, "key": Q, "value": Q, "gate": Q}),
    "flex_attention": (flex_attention, {"query": Q, "key": Q, "value": Q, "gate": Q}),
    "flex_attention with a mask": (flex_attention, {"query": Q, "key": Q, "value": Q, "block_mask": VISIBLE}),
    "varlen_attn": (varlen_attn, {**varlen_tensors(), "max_q": T, "max_k": T}),
    "attention_statistics": (attention_statistics, {"lse": Q[..., 0], "q": Q, "k": Q, "gate": Q}),
    "linear_attention_statistics": (linear_attention_statistics, {"q": Q, "k": Q, "v": Q}),
    "linear_attention_weights": (linear_attention_weights, {"queries": torch.tensor([0]), "q": Q, "k": Q, "v": Q}),
}
ODD = (
    *("x", b"x", 1j, [1, 2], {}, object(), len, numpy.ones(3), numpy.ones((2, 2)), torch.float32, 10**400),
    *(torch.ones(2), torch.ones(2, 2), torch.zeros(0), torch.ones(2, 2).to_sparse(), torch.ones(2, 2) + 1j),
    torch.nested.nested_tensor([torch.ones(2)]),
)


@pytest.mark.parametrize("name", CALLS)
def test_odd_options_are_refused_in_one_line_that_names_them(name):
    function, given = CALLS[name]
    parameters = inspect.signature(function).parameters
    tensors = {key for key, x in given.items() if isinstance(x, torch.Tensor)}
    options = [key for key, each in parameters.items() if key not in tensors and each.annotation != torch.Tensor | None]
    ignored = {"max_q", "max_k", "num_splits", "v_scale", "v_first"}
    for option in set(options) - ignored:
        for value in ODD:
            try:
                function(**{**given, option: value})
            except (TypeError, ValueError, RuntimeError) as error:
                pattern = rf"{name.partition(' ')[0]}: [^\n]*\b{option}\b[^\n]*"
                assert re.fullmatch(pattern, str(error)) and len(str(error)) < 300, (option, value, error)


@pytest.mark.parametrize("kind", [GatedAttention, GatedDeltaNet])
def test_odd_values_of_constructors_are_refused_in_one_line_that_names_them(kind):
    required = {"hidden_size": 16, list(inspect.signature(kind).parameters)[1]: 2}
    # Options of kinds that are off by default are read where they are on.
    bases = [required, {**required, "gate_bias": "bias"}] if kind is GatedAttention else [required]
    for name, parameter in inspect.signature(kind).parameters.items():
        flag, size = isinstance(parameter.default, bool), parameter.annotation in (int, int | None)
        for value in (*ODD, None, True, 1, 2.5, 4.0, -1, math.nan, math.inf):
            for base in bases:
                try:
                    kind(**{**base, name: value})
                except (TypeError, ValueError) as error:
                    assert re.fullmatch(rf"[^\n]*\b{name}\b[^\n]*", str(error)) and len(str(error)) < 300, (
                        name,
                        value,
                        error,
                    )
                else:
                    assert not flag or value is True, (name, value)
                    assert not size or value is None or type(value) is int, (name, value)
                    assert not isinstance(value, str) and value not in (math.nan, math.inf), (name, value)


@pytest.mark.parametrize(
    "value", [None, "no", 1, 0, 1.0, numpy.bool_(True), torch.tensor(True), torch.ones(2)], ids=str
)
@pytest.mark.parametrize("name", CALLS)
def test_flags_must_be_true_or_false(name, value):
    function, given = CALLS[name]
    flags = [
        flag
        for flag in ("return_lse", "return_state", "is_causal", "enable_gqa")
        if flag in inspect.signature(function).parameters
    ]
    for flag in flags:
        with pytest.raises(TypeError, match=rf"^{name.partition(' ')[0]}: {flag} is .* but must be True or False$"):
            function(**{**given, flag: value})


def test_vmapped_backward_pass_with_a_block_mask_is_refused_by_name():
    with pytest.raises(
        RuntimeError, match="^flex_attention: transforms of torch.func, such as vmap, are not supported"
    ):
        torch.autograd.functional.jacobian(lambda q: flex_attention(q, Q, Q, block_mask=VISIBLE), Q, vectorize=True)


def test_numbers_of_sequences_are_compared_by_the_names_of_the_caller():
    parts = [torch.randn(T, H, D) for _ in range(3)]
    q, k = (torch.nested.nested_tensor(parts[:n], layout=torch.jagged).transpose(1, 2) for n in (2, 3))
    with pytest.raises(ValueError, match="^gated_attention: k holds 3 sequences but q holds 2$"):
        gated_attention(q, k, k)
    given = {**varlen_tensors(), "max_q": T, "max_k": T}
    for wrong in (torch.ones(N + 1), torch.ones(N, 1), torch.ones(()), torch.ones(0)):
        with pytest.raises(ValueError, match=r"^varlen_attn: seqused_k has shape .* and cu_seq_q \(3\) but must be"):
            varlen_attn(**{**given, "seqused_k": wrong.int()})


@torch.no_grad()
@pytest.mark.parametrize(
    "size",
    ["linear_num_key_heads", "linear_key_head_dim", "linear_value_head_dim", "linear_conv_kernel_dim", "weight_layout"],
)
def test_cache_of_another_layer_is_named(size):
    own = {
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 4,
        "linear_value_head_dim": 4,
        "linear_conv_kernel_dim": 4,
        "weight_layout": "qwen3_5",
    }
    other = {"linear_num_key_heads": 4, "linear_conv_kernel_dim": 3, "weight_layout": "qwen3_next"}
    cache, h = DeltaNetCache(), torch.randn(B, T, C)
    GatedDeltaNet(C, **{**own, size: other.get(size, 6)})(h, cache=cache)
    state = cache.state
    with pytest.raises(ValueError, match=r"^cache: its (state|convolution) has shape .* another layer filled it$"):
        GatedDeltaNet(C, **own)(h, cache=cache)
    assert cache.length == T and cache.state is state


SMALL_CALLS = {
    gated_attention: (ATTENTION, lambda: [rows(), rows(), rows()]),
    linear_attention: (LINEAR_ATTENTION, lambda: [rows(), rows(), rows()]),
    short_convolution: (SHORT_CONVOLUTION, lambda: [torch.randn(B, T, C), torch.randn(C, K)]),
    gated_norm: (GATED_NORM, lambda: [rows()]),
}


@pytest.mark.parametrize("mode", ["eager", "recorded", "mapped"])
@pytest.mark.parametrize("function", SMALL_CALLS, ids=lambda function: function.__name__)
def test_bool_for_a_number_is_refused(function, mode):
    operation, make = SMALL_CALLS[function]
    tensors = [x.requires_grad_(mode == "recorded") for x in make()]
    call = (
        function
        if mode != "mapped"
        else lambda *x, **o: torch.func.vmap(lambda *x: function(*x, **o), randomness="same")(*x)
    )
    given = [x[None] for x in tensors] if mode == "mapped" else tensors
    names = [name for name, option in operation.options.items() if option.type != "str"]
    for name, value in ((name, value) for name in names for value in (True, False, numpy.True_)):
        message = rf"^{function.__name__}: {name} is (True|False|np.True_) but must be [^\n]*$"
        with pytest.raises((TypeError, ValueError), match=message):
            call(*given, **{name: value})


NUMBERS = {
    "scale": (gated_attention, (0.5, 0.25, 0.125)),
    "softcap": (gated_attention, (2.0, 3.0, 4.0)),
    "window_left": (gated_attention, (1, 2, 3)),
    "l2_norm": (linear_attention, (1e-6, 1e-2, 0.5)),
    "eps": (gated_norm, (1e-6, 1e-2, 0.5)),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_compiled_program_takes_other_numbers(name):
    torch._dynamo.reset()
    function, values = NUMBERS[name]
    tensors = SMALL_CALLS[function][1]()
    compiled = torch.compile(lambda value: function(*tensors, **{name: value}), backend="aot_eager", fullgraph=True)
    for value in values:
        assert torch.equal(compiled(value), function(*tensors, **{name: value}))
