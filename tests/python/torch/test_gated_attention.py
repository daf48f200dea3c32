# SPDX-License-Identifier: Apache-2.0
"""headgate.torch.gated_attention: values and gradients against plain formulas; what PyTorch asks of an operation."""

import inspect
import itertools

import pytest
import torch
from torch.nn import functional as F
from torch.nn.attention.flex_attention import create_block_mask

import headgate
import plain
from headgate.operations import keeps_output
from headgate.torch import GATE_FUNCTIONS, gated_attention
from headgate.torch.arguments import DIFFERENTIABLE, OPTIONS, TENSORS
from headgate.torch.flex import flex_attention
from headgate.torch.layer import GATE_FUNCTIONS as FORMULAS

B, HQ, HKV, T, S, D, DV = 2, 4, 2, 5, 7, 3, 4
OP = torch.ops.headgate.gated_attention
BACKWARD = torch.ops.headgate.gated_attention_backward


def normal(*shape, dtype=torch.float64):
    return torch.randn(*shape, dtype=dtype)


def problem(gate="headwise", dtype=torch.float64):
    q, k, v = normal(B, HQ, T, D, dtype=dtype), normal(B, HKV, S, D, dtype=dtype), normal(B, HKV, S, DV, dtype=dtype)
    z = {"none": None, "headwise": normal(B, HQ, T, 1), "elementwise": normal(B, HQ, T, DV)}[gate]
    return {"q": q, "k": k, "v": v, "gate": z if z is None else z.to(dtype)}


def mask():
    visible = torch.rand(B, 1, T, S) > 0.3
    visible[..., 0] = True
    return visible


# What each case gives beside q, k, v and the gate's logits; functions are called for each test.
CASES = {
    "plain": ("none", {}),
    "headwise": ("headwise", {}),
    "elementwise": ("elementwise", {}),
    "causal": ("headwise", {"causality": "causal"}),
    "window": ("elementwise", {"causality": "causal", "window_left": 2}),
    "both sides": ("headwise", {"window_left": 1, "window_right": 3}),
    "softcap and scale": ("headwise", {"softcap": 1.5, "scale": 0.7}),
    "sinks": ("headwise", {"sinks": lambda: normal(HQ), "causality": "causal"}),
    "sinks of each query": ("elementwise", {"sinks": lambda: normal(B, HQ, T), "causality": "causal"}),
    "sinks of each query of all": ("headwise", {"sinks": lambda: normal(1, HQ, T)}),
    "bias": ("elementwise", {"bias": lambda: normal(B, HQ, T, S)}),
    "one bias for all": ("headwise", {"bias": lambda: normal(1, HQ, 1, S)}),
    "two biases": ("headwise", {"bias": lambda: normal(1, HQ, T, S), "key_bias": lambda: normal(B, 1, 1, S)}),
    "mask": ("headwise", {"mask": mask}),
    "lists of keys": (
        "headwise",
        {"key_indices": lambda: torch.randint(-1, S, (B, HKV, T, 4)), "sinks": lambda: normal(HQ)},
    ),
    "lists of blocks": (
        "elementwise",
        {"key_indices": lambda: torch.arange(T)[:, None].int() % 2, "key_block_size": 4},
    ),
    "alibi": ("headwise", {"alibi_slopes": lambda: torch.rand(HQ, dtype=torch.float64), "causality": "causal"}),
    "lengths": ("headwise", {"key_lengths": lambda: torch.tensor([3, 7])}),
    "offsets": ("headwise", {"query_offsets": lambda: torch.tensor([2, 0]), "causality": "causal"}),
    **{f"{fn} {op}": ("elementwise", {"gate_fn": fn, "gate_op": op}) for fn in GATE_FUNCTIONS for op in ("mul", "add")},
}


def case(name, dtype=torch.float64):
    gate, options = CASES[name]
    return problem(gate, dtype), {key: value() if callable(value) else value for key, value in options.items()}


def call(tensors, options, **more):
    return gated_attention(tensors["q"], tensors["k"], tensors["v"], tensors["gate"], **options, **more)


def differentiable(tensors, options):
    """Replaces the tensors that have a gradient by leaves that require one."""
    leaves = []
    for name in DIFFERENTIABLE:
        given = tensors if name in tensors else options
        if given.get(name) is not None:
            given[name] = given[name].clone().requires_grad_()
            leaves.append(given[name])
    return leaves


def assert_near(ours, expected, tolerance=1e-12):
    assert ours.shape == expected.shape
    torch.testing.assert_close(ours.double(), expected.double(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", CASES)
def test_attention_matches_the_formulas(name):
    tensors, options = case(name)
    leaves = differentiable(tensors, options)
    y, lse = call(tensors, options, return_lse=True)
    expected, expected_lse = plain.attention(**tensors, **options)
    assert_near(y, expected)
    assert_near(lse, expected_lse)
    dy, dlse = torch.randn_like(y), torch.randn_like(lse)
    ours = torch.autograd.grad((y, lse), leaves, (dy, dlse))
    theirs = torch.autograd.grad((expected, expected_lse), leaves, (dy, dlse))
    for mine, other in zip(ours, theirs, strict=True):
        assert_near(mine, other, 1e-11)


@pytest.mark.parametrize("name", CASES)
def test_gradcheck(name):
    tensors, options = case(name)
    leaves = differentiable(tensors, options)
    torch.autograd.gradcheck(lambda *_: call(tensors, options, return_lse=True), leaves)


def test_gradients_of_some_inputs_are_computed_alone():
    tensors, options = case("bias")
    options["bias"].requires_grad_()
    tensors["v"].requires_grad_()
    y = call(tensors, options)
    y.sum().backward()
    assert tensors["q"].grad is None and tensors["gate"].grad is None
    expected = torch.autograd.grad(plain.attention(**tensors, **options)[0].sum(), (tensors["v"], options["bias"]))
    assert_near(tensors["v"].grad, expected[0])
    assert_near(options["bias"].grad, expected[1])


@pytest.mark.parametrize("compiles", (False, True))
def test_gate_without_a_function_is_not_applied_and_has_no_gradient(compiles):
    q, k, v, gate = (torch.randn(1, 2, 5, 4, requires_grad=True) for _ in range(4))
    call = torch.compile(gated_attention, backend="aot_eager", fullgraph=True) if compiles else gated_attention
    block_mask = create_block_mask(lambda b, h, i, j: i >= 0, None, None, 5, 5, device="cpu")
    for y in (
        call(q, k, v, gate, gate_fn="none"),
        flex_attention(q, k, v, None, block_mask, gate=gate, gate_fn="none"),
    ):
        torch.testing.assert_close(y, gated_attention(q, k, v))
        y.sum().backward()
        assert gate.grad is None and q.grad is not None


@pytest.mark.parametrize("bad", (torch.zeros(1, 1, 5, 3), torch.zeros(1, 1, 5, 1, dtype=torch.int32), "on"))
def test_gate_that_is_not_used_is_checked(bad):
    x = torch.zeros(1, 1, 5, 8)
    with pytest.raises((TypeError, ValueError), match="gate"):
        gated_attention(x, x, x, bad, gate_fn="none")
    with pytest.raises((TypeError, ValueError), match="gate"):
        headgate.torch.gated_norm(x, gate=bad, gate_fn="none")


def test_log_sum_exp_alone_has_a_gradient():
    tensors, options = case("causal")
    tensors["k"].requires_grad_()
    lse = call(tensors, options, return_lse=True)[1]
    expected = plain.attention(**tensors, **options)[1]
    ours, theirs = (torch.autograd.grad(x.square().sum(), tensors["k"])[0] for x in (lse, expected))
    assert_near(ours, theirs)


def test_tensors_of_any_strides_are_not_copied():
    """Uses views of a fused projection (B,T,[q|k|v|z]) in both layouts, and keys shared by every row."""
    fused = normal(B, T, HQ * D + 2 * HKV * D + HQ).requires_grad_()
    q, k, v, z = fused.split((HQ * D, HKV * D, HKV * D, HQ), dim=-1)
    q, k, v, z = (x.unflatten(-1, (heads, -1)) for x, heads in ((q, HQ), (k, HKV), (v, HKV), (z, HQ)))
    rows = gated_attention(q, k, v, z, layout="bthd", causality="causal")
    heads = gated_attention(*(x.transpose(1, 2) for x in (q, k, v, z)), causality="causal")
    assert rows.is_contiguous() and rows.shape == (B, T, HQ, D)
    assert torch.equal(rows, heads.transpose(1, 2))
    expected = plain.attention(*(x.transpose(1, 2) for x in (q, k, v, z)), causality="causal")[0]
    assert_near(heads, expected)
    ours, theirs = (torch.autograd.grad(y.square().sum(), fused)[0] for y in (rows, expected))
    assert_near(ours, theirs)
    one = normal(1, HKV, 1, D).expand(B, HKV, S, D)
    assert_near(gated_attention(heads, one, one), plain.attention(heads, one, one)[0])


def test_three_dimensions_are_a_batch_of_one():
    tensors, options = case("causal")
    y, lse = call({name: x[0] for name, x in tensors.items()}, options, return_lse=True)
    expected, expected_lse = call({name: x[:1] for name, x in tensors.items()}, options, return_lse=True)
    assert torch.equal(y, expected[0]) and torch.equal(lse, expected_lse[0])


@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-5), (torch.bfloat16, 2e-2), (torch.float16, 3e-3)])
def test_attention_16_bits_and_f64_match_the_formulas(dtype, tolerance):
    tensors, options = case("causal", dtype)
    leaves = differentiable(tensors, options)
    y, lse = call(tensors, options, return_lse=True)
    assert y.dtype == dtype and lse.dtype == torch.float32
    wide = [leaf.detach().double().requires_grad_() for leaf in leaves]
    expected = plain.attention(*wide, **options)[0]
    assert_near(y, expected, tolerance)
    dy = torch.randn_like(y)
    for ours, theirs in zip(torch.autograd.grad(y, leaves, dy), torch.autograd.grad(expected, wide, dy.double())):
        assert ours.dtype == dtype
        assert_near(ours, theirs, 2 * tolerance)


LENGTHS_Q, LENGTHS_K = torch.tensor([0, 2, 2, 6]), torch.tensor([0, 3, 4, 9])


@pytest.mark.parametrize("options", [{}, {"causality": "causal"}, {"window_left": 1}], ids=str)
def test_packed_batch(options):
    q, k, v, z = normal(1, HQ, 6, D), normal(1, HKV, 9, D), normal(1, HKV, 9, DV), normal(1, HQ, 6, 1)
    leaves = [x.requires_grad_() for x in (q, k, v, z)]
    y, lse = gated_attention(*leaves, cu_seqlens_q=LENGTHS_Q, cu_seqlens_k=LENGTHS_K, return_lse=True, **options)
    expected, expected_lse = plain.packed_attention(*leaves, LENGTHS_Q, LENGTHS_K, **options)
    assert_near(y, expected)
    assert_near(lse, expected_lse)
    for ours, theirs in zip(*(torch.autograd.grad(x.square().sum(), leaves) for x in (y, expected))):
        assert_near(ours, theirs)
    torch.autograd.gradcheck(
        lambda *x: gated_attention(*x, cu_seqlens_q=LENGTHS_Q, cu_seqlens_k=LENGTHS_K, **options), leaves
    )


def jagged(parts, layout):
    """Makes nested tensors of sequences (T_n,H,X): (N,T*,H,X), or with the heads before the rows."""
    nested = torch.nested.nested_tensor(parts, layout=torch.jagged)
    return nested if layout == "bthd" else nested.transpose(1, 2)


@pytest.mark.parametrize("layout", ["bthd", "bhtd"])
def test_nested_tensors(layout):
    lengths = (3, 1, 4)
    parts = [[normal(n, heads, X) for n in lengths] for heads, X in ((HQ, D), (HKV, D), (HKV, DV), (HQ, 1))]
    nested = [jagged(sequences, layout).detach().requires_grad_() for sequences in parts]
    y, lse = gated_attention(*nested, layout=layout, causality="causal", return_lse=True)
    assert y.is_nested and lse.is_nested
    torch.cat([x.flatten() for x in y.unbind()]).square().sum().backward()
    for n, (ours, our_lse) in enumerate(zip(y.unbind(), lse.unbind(), strict=True)):
        single = [sequences[n].transpose(0, 1).unsqueeze(0).clone().requires_grad_() for sequences in parts]
        expected, expected_lse = plain.attention(*single, causality="causal")
        assert_near(ours if layout == "bhtd" else ours.transpose(0, 1), expected[0])
        assert_near(our_lse, expected_lse[0])
        expected.square().sum().backward()
        for tensor, alone in zip(nested, single, strict=True):
            gradient = tensor.grad.unbind()[n]
            assert_near(gradient if layout == "bhtd" else gradient.transpose(0, 1), alone.grad[0])


def test_nested_tensors_that_do_not_fit_are_refused():
    q, k = jagged([normal(3, HQ, D), normal(2, HQ, D)], "bthd"), jagged([normal(3, HQ, D), normal(1, HQ, D)], "bthd")
    dense = normal(2, 3, HQ, D)
    for arguments, message in (
        (((q, dense, k), {"layout": "bthd"}), "k must be a jagged nested tensor"),
        (((q, q, q), {}), r"q must be a jagged nested tensor \(N,H,T\*,D\)"),
        (((q, q, k), {"layout": "bthd"}), "v has sequences of other lengths than k"),
        (((q, q, q, k), {"layout": "bthd"}), "gate has sequences of other lengths than q"),
        (((q, q, q), {"layout": "bthd", "cu_seqlens_q": LENGTHS_Q}), "cu_seqlens_q cannot be given with nested"),
    ):
        with pytest.raises(ValueError, match=message):
            gated_attention(*arguments[0], **arguments[1])


def test_cached_pages_without_gradients():
    """Uses int8 pages of two tokens each for k and v, in another order."""
    tensors, options = case("causal", torch.float32)
    scales = {name: tensors[name].abs().amax(-1, keepdim=True) / 127 for name in ("k", "v")}
    stored = {name: (tensors[name] / scales[name]).round().to(torch.int8) for name in ("k", "v")}
    expected = call({**tensors, **{name: stored[name] * scales[name] for name in ("k", "v")}}, options)
    order = torch.tensor([5, 0, 3, 6, 1, 2, 4, 7])

    def pages(x):
        cut = torch.cat((x, x[:, :, :1]), dim=2).unflatten(2, (4, 2)).transpose(1, 2).flatten(0, 1)
        out = torch.empty_like(cut)
        out[order] = cut
        return out

    table = order.view(B, 4).to(torch.int32)

    def paged(**first):
        return gated_attention(
            tensors["q"],
            pages(stored["k"]),
            pages(stored["v"]),
            tensors["gate"],
            k_scale=pages(scales["k"]),
            v_scale=pages(scales["v"]),
            block_table=table,
            key_lengths=torch.tensor([S, S]),
            query_offsets=torch.tensor([S - T, S - T]),
            **first,
            **options,
        )

    assert_near(paged(), expected, 1e-5)
    first = {name: tensors[name][:, :, :3] for name in ("k", "v")}
    mixed = {name: torch.cat((first[name], (stored[name] * scales[name])[:, :, 3:]), dim=2) for name in first}
    assert_near(paged(k_first=first["k"], v_first=first["v"]), call({**tensors, **mixed}, options), 1e-5)


def test_closed_rows_are_left_out():
    tensors, _ = case("headwise")
    tensors["gate"][0, 1] = -20
    y = call(tensors, {"gate_threshold": 0.01})
    assert torch.equal(y[0, 1], torch.zeros(T, DV, dtype=torch.float64))
    assert_near(y[1], call(tensors, {})[1])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype):
    x = normal(B, T, 8, dtype=torch.float32)
    project = torch.nn.Linear(8, HQ * D)
    z = normal(B, HQ, T, 1, dtype=torch.float32)
    with torch.autocast("cpu", dtype=dtype):
        half = project(x).unflatten(-1, (HQ, D)).transpose(1, 2)
        assert half.dtype == dtype
        wide = half.detach().float().requires_grad_()
        y = gated_attention(half, wide, wide, z, causality="causal")
        kernel = gated_attention(half, half, half, z.to(dtype))
    assert y.dtype == dtype and kernel.dtype == dtype
    key = wide.to(dtype)
    assert torch.equal(y, gated_attention(half, key, key, z, causality="causal"))  # the gate stays float32
    expected = plain.attention(half.double(), half.double(), half.double(), z.double(), causality="causal")[0]
    assert_near(y, expected, 2e-2)
    y.sum().backward()
    assert wide.grad.dtype == torch.float32 and project.weight.grad.dtype == torch.float32
    with torch.autocast("cpu", dtype=dtype):
        doubles, _ = case("causal")
        assert call(doubles, {}).dtype == torch.float64


CHECKED = ("causal", "sinks", "sinks of each query", "bias", "silu mul", "sigmoid add", "lengths")
CHECKS = ("test_schema", "test_autograd_registration", "test_faketensor")
MAX_LOGIT = ("none", "heads", "rows")


@pytest.mark.parametrize("name", CHECKED)
def test_opcheck(name):
    """Compiles the forward pass, which takes most of the time, with one kind of maximum for each case, in turns."""
    tensors, options = case(name)
    differentiable(tensors, options)
    inputs = [tensors.get(key, options.get(key)) for key in TENSORS]
    options = {key: value for key, value in options.items() if key in OPTIONS}
    keep_attn = keeps_output(options.get("gate_fn", "sigmoid"), options.get("gate_op", "mul"))
    for asked in MAX_LOGIT:
        compiled = asked == MAX_LOGIT[CHECKED.index(name) % len(MAX_LOGIT)]
        checks = (*CHECKS, "test_aot_dispatch_dynamic") if compiled else CHECKS
        asked_options = {**options, "keep_attn": keep_attn, "max_logit": asked}
        torch.library.opcheck(OP.default, tuple(inputs), asked_options, test_utils=checks)
    y, lse, attn, _ = (x.detach() for x in OP(*inputs, **options, keep_attn=keep_attn))
    inputs = [x if x is None else x.detach() for x in inputs]
    wanted = [x is not None for x in (inputs[TENSORS.index(key)] for key in DIFFERENTIABLE)]
    saved = (torch.randn_like(y), torch.randn_like(lse), y, lse, attn if keep_attn else None)
    torch.library.opcheck(BACKWARD.default, (*saved, *inputs), {**options, "wanted": wanted})


@pytest.mark.parametrize("dynamic, backend", [(False, "aot_eager"), (True, "inductor")])
def test_compiles_without_graph_breaks(dynamic, backend):
    def block(x, w):
        q, k, v, z = (x @ w).split((HQ * D, HKV * D, HKV * D, HQ), dim=-1)
        q, k, v, z = (x.unflatten(-1, (heads, -1)) for x, heads in ((q, HQ), (k, HKV), (v, HKV), (z, HQ)))
        y, lse = gated_attention(q, k, v, z, gate_fn="silu", layout="bthd", causality="causal", return_lse=True)
        return torch.relu(y).sum() + lse.square().sum()

    torch._dynamo.reset()
    compiled = torch.compile(block, fullgraph=True, dynamic=dynamic, backend=backend)
    w = normal(6, HQ * D + 2 * HKV * D + HQ).requires_grad_()
    for length in (5, 9):
        x = normal(B, length, 6).requires_grad_()
        ours, expected = compiled(x, w), block(x, w)
        assert_near(ours, expected)
        for mine, other in zip(torch.autograd.grad(ours, (x, w)), torch.autograd.grad(expected, (x, w))):
            assert_near(mine, other)


def test_sinks_of_each_query_compile_and_have_a_gradient():
    def block(x, w):
        q = x[..., :-1].unflatten(-1, (HQ, D)).transpose(1, 2)
        return gated_attention(q, q, q, sinks=(x @ w).transpose(1, 2), causality="causal").square().sum()

    torch._dynamo.reset()
    compiled = torch.compile(block, fullgraph=True, dynamic=True, backend="aot_eager")
    w = normal(HQ * D + 1, HQ).requires_grad_()
    for length in (5, 9):
        x = normal(B, length, HQ * D + 1).requires_grad_()
        ours, expected = compiled(x, w), block(x, w)
        assert_near(ours, expected)
        for mine, other in zip(torch.autograd.grad(ours, (x, w)), torch.autograd.grad(expected, (x, w))):
            assert_near(mine, other)


def test_compiles_under_autocast():
    torch._dynamo.reset()
    tensors, options = case("causal", torch.float32)

    def call_once(q):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return gated_attention(q, tensors["k"], tensors["v"], tensors["gate"], **options)

    compiled = torch.compile(call_once, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(tensors["q"]), call_once(tensors["q"]))


def test_compiled_nested_tensors():
    def call_once(x):
        return gated_attention(x, x, x, x, causality="causal", layout="bthd")

    torch._dynamo.reset()
    compiled = torch.compile(call_once, fullgraph=True, backend="aot_eager")
    for lengths in ((3, 1, 4), (2, 6)):
        nested = jagged([normal(n, HQ, D) for n in lengths], "bthd").detach().requires_grad_()
        assert_near(compiled(nested).values(), call_once(nested).values())
        compiled(nested).values().square().sum().backward()
        expected = nested.detach().clone().requires_grad_()
        call_once(expected).values().square().sum().backward()
        assert_near(nested.grad.values(), expected.grad.values())


def test_export():
    class Call(torch.nn.Module):
        def forward(self, q, k, v, gate):
            return gated_attention(q, k, v, gate, causality="causal")

    inputs = tuple(problem().values())
    assert torch.equal(torch.export.export(Call(), inputs).module()(*inputs), Call()(*inputs))


def test_second_derivatives_are_refused_by_name():
    tensors, options = case("causal")
    tensors["q"].requires_grad_()
    (dq,) = torch.autograd.grad(call(tensors, options).sum(), tensors["q"], create_graph=True)
    with pytest.raises(RuntimeError, match="headgate::gated_attention_backward.*double backward"):
        dq.sum().backward()


def test_forward_mode_is_refused_by_name():
    tensors, options = case("causal")
    q = tensors.pop("q")

    def of_q(x):
        return call({"q": x, **tensors}, options)

    for transform in (lambda: torch.func.jvp(of_q, (q,), (q,)), lambda: torch.func.jacfwd(of_q)(q)):
        with pytest.raises(RuntimeError, match="gated_attention: q has a tangent: forward-mode derivatives"):
            transform()
    with torch.autograd.forward_ad.dual_level():
        expected = of_q(q)
        with pytest.raises(RuntimeError, match="gated_attention: q has a tangent"):
            of_q(torch.autograd.forward_ad.make_dual(q, q))
    assert torch.equal(of_q(q), expected)


def test_arguments_bad_are_refused_in_one_line():
    tensors, _ = case("causal")
    learned = tensors["q"].clone().requires_grad_()
    for change, message in (
        ({"q": normal(B, HQ, T, D + 1)}, "q has"),
        ({"k": tensors["k"].float()}, "k "),
        ({"causality": "backwards"}, "causality"),
        ({"threads": -1}, "threads"),
        ({"alibi_slopes": torch.rand(HQ).requires_grad_()}, "alibi_slopes requires a gradient but has none"),
        ({"key_bias": torch.rand(S).requires_grad_()}, "key_bias requires a gradient but has none"),
        ({"q": learned, "gate_threshold": 0.1}, "gate_threshold there are no gradients"),
        ({"q": learned, "k_scale": normal(B, HKV, S, 1)}, "k_scale there are no gradients"),
        ({"q": learned, "k_first": normal(B, HKV, 2, D)}, "k_first there are no gradients"),
    ):
        with pytest.raises(ValueError, match=message) as error:
            arguments = {**tensors, **change}
            gated_attention(**arguments)
        assert "\n" not in str(error.value)
    with pytest.raises(TypeError, match="v is a list but must be a tensor"):
        gated_attention(tensors["q"], tensors["k"], [1.0])


LEARNED = torch.nn.Parameter(torch.tensor(0.5))


@pytest.mark.parametrize("name", OPTIONS)
def test_option_requires_a_gradient_is_refused(name):
    """The option's gradient would be lost silently."""
    tensors, _ = case("causal")
    with pytest.raises(ValueError) as error:
        call(tensors, {name: LEARNED})
    assert str(error.value) == f"gated_attention: {name} requires a gradient but has none: detach it"
    torch._dynamo.reset()
    # With graph breaks, which take longer, each frame on the way to the refusal is compiled. Dropout's value needs one.
    fullgraph = name not in ("scale", "dropout")
    compiled = torch.compile(lambda option: call(tensors, {name: option}), backend="aot_eager", fullgraph=fullgraph)
    with pytest.raises(Exception, match=f"gated_attention: {name} requires a gradient but has none"):
        compiled(LEARNED)


def test_option_under_no_grad_is_a_number():
    tensors, _ = case("causal")
    with torch.no_grad():
        found = call(tensors, {"scale": LEARNED, "softcap": LEARNED})
    assert torch.equal(found, call(tensors, {"scale": 0.5, "softcap": torch.tensor(0.5)}))


@pytest.mark.parametrize("name", ("scale", "softcap", "window_left"))
def test_option_that_is_a_tensor_needs_a_graph_break(name):
    tensors, _ = case("causal")
    value = torch.tensor(1 if name == "window_left" else 0.5)

    def compute(option):
        return call(tensors, {name: option})

    torch._dynamo.reset()
    expected = compute(value)
    assert torch.equal(torch.compile(compute, backend="aot_eager")(value), expected)
    torch._dynamo.reset()
    with pytest.raises(Exception, match=f"gated_attention: {name} is a tensor but must be a number in a program that"):
        torch.compile(compute, backend="aot_eager", fullgraph=True)(value)


@pytest.mark.parametrize("transform", (torch.func.grad, torch.func.jacfwd))
def test_option_differentiated_by_torch_func_is_refused(transform):
    tensors, _ = case("causal")
    with pytest.raises(RuntimeError, match="gated_attention: scale (is differentiated by torch.func|has a tangent)"):
        transform(lambda scale: call(tensors, {"scale": scale}).sum())(torch.tensor(0.5))


@pytest.mark.parametrize(
    "name, value, message",
    (
        ("causality", True, "causality: 'True' is none of none, causal"),
        ("causality", None, "causality: 'None' is none of none, causal"),
        ("layout", 1, "layout: '1' is none of bhtd, bthd"),
        ("gate_fn", torch.sigmoid, "gate_fn: '<built-in method sigmoid of type object"),
        ("gate_op", False, "gate_op: 'False' is none of mul, add"),
        ("precision", 16, "precision: '16' is none of exact, native16"),
        ("target", 2, "target: find_target names vector target '2', but this CPU and build can run: "),
        ("backend", 2, "backend: find_backend names backend '2', but this build has: "),
        ("scale", "0.5", "scale is '0.5' but must be a number or None"),
        ("softcap", None, "softcap is None but must be a number"),
        ("gate_threshold", 1j, "gate_threshold is 1j but must be a number"),
        ("window_left", 1.5, "window_left is 1.5 but must be a whole number of 64 bits"),
        ("window_right", 2**70, "window_right is 1180591620717411303424 but must be a whole number of 64 bits"),
        ("threads", 0, "threads is 0 but must be 1 to "),
        ("threads", torch.tensor(0), "threads is 0 but must be 1 to "),
    ),
)
def test_option_of_another_type_is_refused_in_one_line(name, value, message):
    tensors, _ = case("causal")
    with pytest.raises(ValueError) as error:
        call(tensors, {name: value})
    assert str(error.value).startswith(f"gated_attention: {message}") and "\n" not in str(error.value)


def test_options_numbers_of_other_libraries_are_taken():
    import numpy as np

    tensors, _ = case("causal")
    found = call(tensors, {"scale": np.float32(0.5), "window_left": np.int64(2), "softcap": 2})
    assert torch.equal(found, call(tensors, {"scale": 0.5, "window_left": 2, "softcap": 2.0}))


def test_error_of_the_kernels_names_the_callers_function_and_argument():
    tensors, _ = case("causal")
    tensors["gate"] = normal(B, HQ, T, DV + 1)
    message = r"^gated_attention: gate has shape \(2,4,5,5\) but must be"
    with pytest.raises(ValueError, match=message):
        call(tensors, {})
    torch._dynamo.reset()
    with pytest.raises(ValueError, match=message):
        torch.compile(lambda: call(tensors, {}), fullgraph=True, backend="aot_eager")()
    tensors["gate"] = tensors["q"].to(torch.float16)
    with pytest.raises(ValueError, match="^gated_attention: gate has dtype f16"):
        call(tensors, {})
    with pytest.raises(ValueError, match="^gated_attention: gate_threshold is 0.5 but there is no gate that"):
        call({**tensors, "gate": None}, {"gate_threshold": 0.5})


def test_lazy_negation_is_resolved():
    """Covers inputs, and the gradient of the output."""
    tensors, _ = case("causal")
    dy = torch.randn(B, HQ, T, DV, dtype=torch.cdouble).conj().imag
    plain_dy = torch.empty(dy.shape, dtype=dy.dtype).copy_(dy)
    tensors["v"] = torch.randn(B, HKV, S, DV, dtype=torch.cdouble).conj().imag
    assert dy.is_neg() and tensors["v"].is_neg()
    found = []
    for v, given in ((tensors["v"], dy), (torch.empty(B, HKV, S, DV, dtype=dy.dtype).copy_(tensors["v"]), plain_dy)):
        leaves = [tensors["q"].clone().requires_grad_(), tensors["gate"].clone().requires_grad_()]
        y = call({"q": leaves[0], "k": tensors["k"], "v": v, "gate": leaves[1]}, {})
        found.append([y, *torch.autograd.grad(y, leaves, given)])
    for ours, theirs in zip(*found):
        assert torch.equal(ours, theirs)


def test_other_devices_are_refused():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        q = torch.empty(1, 1, 2, 4)
        elsewhere = torch.empty(1, 1, 2, 4, device="cuda")
        with pytest.raises(ValueError, match="v lies on cuda:0 but must be in the CPU's memory"):
            gated_attention(q, q, elsewhere)


def test_shapes_on_the_meta_device_take_no_memory():
    meta = {name: x.to("meta") for name, x in problem().items()}
    y, lse = call(meta, {}, return_lse=True)
    assert y.shape == (B, HQ, T, DV) and lse.shape == (B, HQ, T) and y.device.type == "meta"


def test_any_number_of_threads_gives_the_same_bits():
    tensors, options = case("causal")
    leaves = differentiable(tensors, options)
    one, two = (call(tensors, options, threads=n) for n in (1, 2))
    assert torch.equal(one, two)
    for a, b in zip(*(torch.autograd.grad(y.square().sum(), leaves) for y in (one, two))):
        assert torch.equal(a, b)


def test_arguments_are_those_of_the_package():
    """The lists of the module say what headgate.attention_forward takes and when it keeps the output."""
    ours = [name for name in inspect.signature(gated_attention).parameters if not name.startswith("return_")]
    assert ours == [*TENSORS, *OPTIONS]
    signature = headgate.attention_forward.__nb_signature__[0][0]
    theirs = [part.split(":")[0].strip() for part in signature.partition("(")[2].split(",") if ":" in part]
    assert set(theirs) - {"outputs", "out"} == {*TENSORS, *OPTIONS}
    x = problem("headwise")
    with pytest.raises(ValueError, match="gate_fn: '\\?' is none of") as error:
        headgate.attention_forward(*x.values(), gate_fn="?")
    functions = str(error.value).partition(" is none of ")[2].split(", ")
    assert functions == [*GATE_FUNCTIONS, "none"]
    for fn, op, dtype in itertools.product(functions, ("mul", "add"), (torch.float32, torch.bfloat16, torch.float16)):
        given = [tensor.to(dtype) for tensor in x.values()]
        kept = headgate.attention_forward(*given, gate_fn=fn, gate_op=op).attn is not None
        assert kept == keeps_output(fn, op, is_f16=dtype == torch.float16)


def test_native16_trains_within_the_rounding_of_bf16():
    # More rows than the kernel of few queries takes, which computes as exact does.
    torch.manual_seed(5)
    q, k, v, z = (normal(1, 2, 80, 32, dtype=torch.bfloat16) for _ in range(4))
    dy = normal(1, 2, 80, 32, dtype=torch.bfloat16)
    found = {}
    for precision in ("exact", "native16"):
        leaves = [x.clone().requires_grad_() for x in (q, k, v, z)]
        y = gated_attention(*leaves, causality="causal", precision=precision)
        y.backward(dy)
        found[precision] = [y.detach(), *(leaf.grad for leaf in leaves)]
    for exact, rounded in zip(*found.values()):
        torch.testing.assert_close(rounded.float(), exact.float(), rtol=0.05, atol=0.05)
    same = all(torch.equal(exact, rounded) for exact, rounded in zip(*found.values()))
    assert same == (headgate.native16_products() == "")
    with pytest.raises(ValueError, match="precision is native16 but q is f32, not bf16"):
        gated_attention(*(x.float() for x in (q, k, v, z)), precision="native16")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("grain", ["headwise", "elementwise"])
@pytest.mark.parametrize("op", ["mul", "add"])
@pytest.mark.parametrize("fn", FORMULAS)
def test_gradients_are_as_accurate_as_the_formula_in_the_same_dtype(fn, op, grain, dtype):
    """From nearly closed gates to open ones, with the large gradients of a GradScaler behind closed ones."""

    def formula(q, k, v, z):
        y, g = F.scaled_dot_product_attention(q, k, v), FORMULAS[fn](z)
        return y + g if op == "add" else y * g

    for mean in (-20, -18, -16, -15, -14, -12, -10, -8, -4, 0, 4, 8, 12, 16, 20):
        q, k, v, dy = (torch.randn(1, 2, 48, 32).to(dtype) for _ in range(4))
        z = (torch.randn(1, 2, 48, 1 if grain == "headwise" else 32) / 2 + mean).to(dtype)
        dy = dy * (1000 if mean < 0 and fn in ("sigmoid", "sigmoid2", "silu", "softplus") and op == "mul" else 1)
        found = {}
        for name, function, kind in (
            ("ours", lambda *x: gated_attention(*x, gate_fn=fn, gate_op=op), dtype),
            ("eager", formula, dtype),
            ("right", formula, torch.float64),
        ):
            leaves = [x.to(kind).requires_grad_() for x in (q, k, v, z)]
            found[name] = torch.autograd.grad(function(*leaves), leaves, dy.to(kind))
        for name, ours, eager, right in zip("qkvz", found["ours"], found["eager"], found["right"]):
            errors = [((x.double() - right).norm() / right.norm()).item() for x in (ours, eager)]
            assert errors[0] <= 2 * errors[1] + max(2 * torch.finfo(dtype).eps, 1e-6), (mean, name, errors)


def compiled_attention(*tensors):
    torch._dynamo.reset()
    return torch.compile(gated_attention, backend="aot_eager", fullgraph=True)(*tensors)


def attention_by_blocks(*tensors):
    visible = create_block_mask(lambda b, h, q, kv: kv >= 0, None, None, 48, 48, device="cpu", BLOCK_SIZE=16)
    return flex_attention(*tensors[:3], block_mask=visible, gate=tensors[3])


def transformed_attention(*tensors):
    return torch.func.vmap(gated_attention)(*(x[None] for x in tensors))[0]


@pytest.mark.parametrize("function", [gated_attention, compiled_attention, attention_by_blocks, transformed_attention])
def test_gradient_of_nearly_closed_gate_in_float16_is_accurate(function):
    leaves = [torch.randn(1, 2, 48, 32).half().requires_grad_() for _ in range(3)]
    leaves.append((torch.randn(1, 2, 48, 1) / 2 - 15).half().requires_grad_())
    dy = 1000 * torch.randn(1, 2, 48, 32).half()
    found = torch.autograd.grad(function(*leaves), leaves[3], dy)[0]
    wide = [x.detach().double().requires_grad_() for x in leaves]
    right = torch.autograd.grad(gated_attention(*wide), wide[3], dy.double())[0]
    assert (found.double() - right).norm() <= 2e-3 * right.norm()
