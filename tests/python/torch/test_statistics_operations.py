# SPDX-License-Identifier: Apache-2.0
"""The statistics as PyTorch operators: the same results as headgate's functions, in compiled programs too."""

import pytest
import torch

import headgate
import headgate.torch as ht
from headgate.torch import backends

OFFSETS = torch.tensor([0, 3, 3, 9], dtype=torch.int32)
ALL = headgate.torch.statistics.AttentionStatistics._fields


def attention_call(name):
    """The arguments of attention_statistics by name, but for lse, and the options of that."""
    T = 9
    q, k, gate = torch.randn(2, 4, T, 16), torch.randn(2, 2, T, 16), torch.randn(2, 4, T, 12)
    select = {"keys": torch.tensor([3, 0]), "queries": torch.tensor([7, 1, 1]), "window": 2, "top_keys": 3}
    options = {"causality": "causal"}
    if name == "packed":
        q, k, gate = q[:1], k[:1], gate[:1]
        options |= {"cu_seqlens_q": OFFSETS, "cu_seqlens_k": OFFSETS}
    if name == "no batch":
        q, k, gate = q[0], k[0], gate[0]
    if name == "bthd":
        q, k, gate = (x.transpose(1, 2) for x in (q, k, gate))
        options["layout"] = "bthd"
    if name == "pages":
        q = q[:, :, -1:]
        gate = gate[:, :, -1:]
        k = torch.randn(6, k.shape[1], 4, k.shape[3])
        options |= {
            "block_table": torch.tensor([[4, 0, 2], [1, 5, 3]], dtype=torch.int32),
            "key_lengths": torch.tensor([12, 7]),
        }
        select["queries"] = torch.tensor([0])
    if name == "float64":
        q, k, gate = q.double(), k.double(), gate.double()
    return {"q": q, "k": k, "gate": gate}, options, select


NAMES = ("plain", "packed", "no batch", "bthd", "pages", "float64")


def lse_of(tensors, options):
    return headgate.attention_forward(**tensors, outputs=["lse"], **options).lse


def assert_same(found, expected, names):
    assert len(names) > 0
    for name in found._fields:
        if name not in names:
            assert getattr(found, name) is None, name
            continue
        one, other = getattr(found, name), getattr(expected, name)
        assert one.dtype == other.dtype and torch.equal(one, other), name


@pytest.mark.parametrize("name", NAMES)
def test_attention_statistics_equals_headgates(name):
    tensors, options, select = attention_call(name)
    lse = lse_of(tensors, options)
    expected = headgate.attention_statistics(lse, **tensors, **options, **select, outputs=list(ALL))
    assert_same(ht.attention_statistics(lse, **tensors, **options, **select, outputs=ALL), expected, ALL)


@pytest.mark.parametrize("name", NAMES)
def test_attention_statistics_opcheck_passes(name):
    tensors, options, select = attention_call(name)
    by_name = {"lse": lse_of(tensors, options), **tensors, **options, **select}
    arguments = ht.statistics._ATTENTION.arguments
    inputs = tuple(by_name.get(key) for key in arguments.tensors)
    settings = {key: value for key, value in by_name.items() if key in arguments.options}
    torch.library.opcheck(torch.ops.headgate.attention_statistics.default, inputs, {**settings, "outputs": list(ALL)})


@pytest.mark.parametrize("asked", ({}, {"window": 1}, {"keys": torch.tensor([1])}, {"top_keys": 2}, {"gate": None}))
def test_attention_statistics_defaults_are_headgates(asked):
    tensors, options, _ = attention_call("plain")
    lse = lse_of(tensors, options)
    expected = headgate.attention_statistics(lse, **tensors | options | asked)
    found = ht.attention_statistics(lse, **tensors | options | asked)
    assert_same(found, expected, [name for name in ALL if getattr(expected, name) is not None])


def test_attention_statistics_compiled_in_one_graph_equals_eager():
    tensors, options, _ = attention_call("plain")

    def watch(q, k, gate):
        y, lse = ht.gated_attention(q, k, k[..., :12], gate, return_lse=True, **options)
        found = ht.attention_statistics(lse, q, k, gate=gate, outputs=["mean_first", "key_mass"], **options)
        return y.sum() + found.mean_first.sum(), found

    compiled = torch.compile(watch, backend="aot_eager", fullgraph=True)
    q = tensors["q"].requires_grad_()
    total, found = compiled(q, tensors["k"], tensors["gate"])
    expected = watch(q, tensors["k"], tensors["gate"])
    assert_same(found, expected[1], ("mean_first", "key_mass"))
    assert not found.mean_first.requires_grad
    gradients = [torch.autograd.grad(x, q)[0] for x in (total, expected[0])]
    assert torch.equal(*gradients)


@pytest.mark.parametrize("name", ("plain", "packed", "bthd", "no batch"))
def test_linear_statistics_equal_headgates_and_opcheck_passes(name):
    B, T, H, D, Dv = 1, 9, 2, 8, 6
    tensors = {"q": torch.randn(B, H, T, D), "k": torch.randn(B, 1, T, D), "v": torch.randn(B, H, T, Dv)}
    tensors |= {"decay": -torch.rand(B, H, T, 1), "beta": torch.rand(B, H, T, 1), "state": torch.randn(B, H, D, Dv)}
    options, queries = {"l2_norm": 1e-6}, torch.tensor([8, 0, 5])
    if name == "packed":
        tensors["cu_seqlens"] = OFFSETS
        tensors.pop("state", None)
    if name == "bthd":
        tensors = {key: x if key == "state" else x.transpose(1, 2) for key, x in tensors.items()}
        options["layout"] = "bthd"
    if name == "no batch":
        tensors = {key: x if key == "state" else x[0] for key, x in tensors.items()}
    for operation, leading in ((ht.statistics._LINEAR, {}), (ht.statistics._LINEAR_WEIGHTS, {"queries": queries})):
        own = operation.name
        fields = operation.result._fields
        expected = getattr(headgate, own)(**leading, **tensors, **options)
        assert_same(getattr(ht, own)(**leading, **tensors, **options), expected, fields)
        inputs = tuple((leading | tensors).get(key) for key in operation.arguments.tensors)
        torch.library.opcheck(getattr(torch.ops.headgate, own).default, inputs, {**options, "outputs": list(fields)})


def test_errors_name_the_function_and_the_value():
    tensors, options, _ = attention_call("plain")
    lse = lse_of(tensors, options)
    with pytest.raises(ValueError, match="^attention_statistics: outputs: 'firs' is none of row_max, "):
        ht.attention_statistics(lse, **tensors, outputs=["firs"])
    with pytest.raises(TypeError, match=r"attention_statistics\(\) got an unexpected keyword argument 'is_causal'"):
        ht.attention_statistics(lse, **tensors, is_causal=True)
    with pytest.raises(ValueError, match="^attention_statistics: lse has shape "):
        ht.attention_statistics(lse[:, :1], **tensors)
    with pytest.raises(TypeError, match="lse"):
        ht.attention_statistics(None, **tensors)


@pytest.mark.parametrize(
    "given, error, message",
    [
        ({"window": "a"}, ValueError, "window is 'a' but must be a whole number"),
        ({"top_keys": 1.5}, ValueError, "top_keys is 1.5 but must be a whole number"),
        ({"outputs": "entropy"}, TypeError, "outputs is 'entropy' but must be a sequence of names"),
        ({"outputs": 3}, TypeError, "outputs is 3 but must be a sequence of names"),
        ({"v_scale": 1.0}, TypeError, "v_scale is a float but must be a tensor"),
    ],
)
def test_arguments_that_headgates_function_refuses_are_refused_by_name(given, error, message):
    q = torch.randn(1, 2, 5, 8)
    lse = lse_of({"q": q, "k": q}, {})
    with pytest.raises(error, match=f"^attention_statistics: {message}"):
        ht.attention_statistics(lse, q, q, **given)
    with pytest.raises((ValueError, TypeError), match=f"^attention_statistics: {next(iter(given))} is "):
        headgate.attention_statistics(lse, q, q, **given)


def test_window_and_top_keys_none_are_defaults():
    q = torch.randn(1, 2, 5, 8)
    lse = lse_of({"q": q, "k": q}, {})
    found = ht.attention_statistics(lse, q, q, window=None, top_keys=None)
    expected = ht.attention_statistics(lse, q, q)
    assert_same(found, expected, [name for name in expected._fields if getattr(expected, name) is not None])
    assert found.window_share is None and found.topk_index is None


def test_backend_is_found_by_the_type_of_the_device():
    backend = object()
    backends.register("meta", backend)
    try:
        assert backends.backend_of(torch.empty(1, device="meta")) is backend
        assert backends.backend_of(torch.empty(1)) is None and backends.backend_of(3) is None
    finally:
        del backends._BACKENDS["meta"]
