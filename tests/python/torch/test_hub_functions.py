# SPDX-License-Identifier: Apache-2.0
"""The linear attention of transformers' models by Headgate against transformers' own functions."""

import inspect

import pytest
import torch
import transformers
from torch.nn import functional as F

import headgate.torch.transformers
import models
from headgate.torch import hub_functions

FAMILIES = ("qwen3-next", "qwen3.5", "olmo-hybrid", "kimi-linear")
TOLERANCE = 2e-5
register, unregister = headgate.torch.transformers.register, headgate.torch.transformers.unregister
register(functions=False)


def assert_near(ours, expected, tolerance=TOLERANCE):
    assert ours.dtype == expected.dtype
    torch.testing.assert_close(ours, expected, rtol=tolerance, atol=tolerance * expected.abs().max().item())


def assert_all_near(ours, expected, tolerance=TOLERANCE):
    for mine, other in zip(ours, expected, strict=True):
        assert (mine is None) == (other is None)
        if mine is not None:
            assert_near(mine, other, tolerance)


def assert_gradients_near(ours, theirs):
    """Compares each by its norm: sums that cancel leave single elements with few right digits."""
    for mine, other in zip(ours, theirs, strict=True):
        assert (mine - other).norm() <= 2e-4 * other.norm()


QWEN, KIMI = map(hub_functions.module_of, ("qwen3_5", "kimi_linear"))


def takes_groups(rule):
    """Older versions of transformers repeat the heads of queries and keys before the rule."""
    qk, v, beta = torch.ones(1, 2, 2, 4), torch.ones(1, 2, 4, 4), torch.ones(1, 2, 4)
    try:
        return rule(qk, qk, v, -beta, beta) is not None
    except RuntimeError:
        return False


GROUPED = takes_groups(QWEN.torch_chunk_gated_delta_rule)
REFUSES_PACKED = "keep packed sequences apart" in inspect.getsource(transformers.integrations.hub_kernels)


def model_of(family, attention="eager"):
    """Makes a model whose states last for some tokens. Where they do not, the decay's gradient is a small difference."""
    made = models.model(family, attention)
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if name.endswith("A_log"):
                parameter.clamp_(max=-1.0)
    return made


def gradients_of(model, **inputs):
    """Returns the logits and the gradients of all parameters that have one."""
    logits = model(**inputs).logits
    weights = torch.linspace(-1, 1, logits.numel()).view_as(logits)
    wanted = list(model.parameters())
    found = torch.autograd.grad((logits * weights).sum(), wanted, allow_unused=True)
    return logits, [gradient for gradient in found if gradient is not None]


def calls_of_headgate(monkeypatch):
    """Returns the list to which every later call of Headgate's rule and convolution adds its name."""
    calls = []
    for name in ("linear_attention", "short_convolution"):
        inner = getattr(hub_functions, name)
        monkeypatch.setattr(
            hub_functions, name, lambda *a, name=name, inner=inner, **k: calls.append(name) or inner(*a, **k)
        )
    return calls


@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
@pytest.mark.parametrize("family", FAMILIES)
def test_model_registered_has_transformers_logits_and_gradients(family, padded, monkeypatch):
    model, inputs = model_of(family), {"input_ids": models.tokens(2, 70)}  # more than a chunk of 64
    if padded:
        inputs["attention_mask"] = (torch.arange(70) >= torch.tensor([[0], [9]])).long()
    expected, theirs = gradients_of(model, **inputs)
    calls = calls_of_headgate(monkeypatch)
    register()
    logits, ours = gradients_of(model, **inputs)
    assert_near(logits, expected)
    assert_gradients_near(ours, theirs)
    assert sorted(calls) == ["linear_attention", "short_convolution"]


@pytest.mark.parametrize("family", FAMILIES)
def test_generation_registered_has_transformers_tokens(family, monkeypatch):
    """Compares prompts longer and shorter than the convolution, with padding."""
    model = model_of(family).eval()
    for length in (2, 9):
        ids = models.tokens(2, length)
        mask = torch.ones_like(ids)
        mask[1, : length // 2] = 0
        options = {"attention_mask": mask, "max_new_tokens": 9, "do_sample": False, "pad_token_id": 0}
        options |= {"output_logits": True, "return_dict_in_generate": True}
        expected = model.generate(ids, **options)
        calls = calls_of_headgate(monkeypatch)
        register()
        found = model.generate(ids, **options)
        unregister()
        assert torch.equal(found.sequences, expected.sequences)
        assert_all_near(found.logits, expected.logits)
        assert calls.count("linear_attention") == calls.count("short_convolution") == 9


@pytest.mark.parametrize("family", FAMILIES)
def test_prompt_in_parts_registered_has_the_logits_of_the_whole(family):
    register()
    model, ids = model_of(family).eval(), models.tokens(2, 13)
    parts, cache = [], None
    with torch.no_grad():
        whole = model(ids).logits
        for first, last in ((0, 6), (6, 7), (7, 13)):
            found = model(ids[:, first:last], past_key_values=cache, use_cache=True)
            cache = found.past_key_values
            parts.append(found.logits)
    assert_near(torch.cat(parts, dim=1), whole)


GIVEN = {
    "lengths": {"return_flash_attn_kwargs": True},
    "numbers": {"return_seq_idx": True},
    "both": {"return_flash_attn_kwargs": True, "return_seq_idx": True},
}


def packed(parts, given):
    """Returns the model's inputs that transformers' collator makes of sequences (1,T)."""
    collate = transformers.DataCollatorWithFlattening(return_tensors="pt", **GIVEN[given])
    batch = collate([{"input_ids": part[0]} for part in parts])
    return {name: value for name, value in batch.items() if name != "labels"} | {"use_cache": False}


@pytest.mark.parametrize("attention", ["eager", "headgate"])
@pytest.mark.parametrize("given", GIVEN)
@pytest.mark.parametrize("family", FAMILIES)
def test_packed_row_registered_is_as_separate_sequences(family, given, attention):
    model = model_of(family, attention)
    parts = [models.tokens(1, length) for length in (5, 1, 70, 2)]
    expected, theirs = zip(*(gradients_of(model, input_ids=part, use_cache=False) for part in parts))
    register()
    logits = model(**packed(parts, given)).logits
    assert_near(logits, torch.cat(expected, dim=1))
    weights = torch.cat([torch.linspace(-1, 1, x.numel()).view_as(x) for x in expected], dim=1)
    ours = torch.autograd.grad((logits * weights).sum(), list(model.parameters()), allow_unused=True)
    sums = [sum(of_part) for of_part in zip(*theirs, strict=True)]
    assert_gradients_near([gradient for gradient in ours if gradient is not None], sums)


@pytest.mark.skipif(not REFUSES_PACKED, reason="this version of transformers mixes packed rows")
@pytest.mark.parametrize("family", FAMILIES)
def test_packed_row_unregistered_raises(family):
    model, inputs = model_of(family), packed([models.tokens(1, 3), models.tokens(1, 4)], "both")
    register()
    model(**inputs)
    unregister()
    with pytest.raises(ValueError, match="can't keep packed sequences apart"):
        model(**inputs)


def test_packed_rows_of_a_batch_are_as_separate_sequences():
    register()
    model = model_of("qwen3.5")
    ids = models.tokens(2, 9)
    lengths = ((4, 5), (7, 2))
    numbers = torch.stack([torch.repeat_interleave(torch.arange(2), torch.tensor(row)) for row in lengths])
    positions = torch.stack([torch.cat([torch.arange(n) for n in row]) for row in lengths])
    found = model(ids, position_ids=positions, seq_idx=numbers.int(), use_cache=False).logits
    for row, (first, _) in enumerate(lengths):
        parts = [model(part[None], use_cache=False).logits for part in (ids[row, :first], ids[row, first:])]
        assert_near(found[row : row + 1], torch.cat(parts, dim=1))


def rule_inputs(dtype=torch.float32, T=70, Hk=2 if GROUPED else 4, Hv=4, D=16, Dv=8, by_feature=False, grad=True):
    q, k, v = torch.randn(2, T, Hk, D), torch.randn(2, T, Hk, D), torch.randn(2, T, Hv, Dv)
    g = F.logsigmoid(torch.randn((2, T, Hv, D) if by_feature else (2, T, Hv)) + 2)
    tensors = [*(x.to(dtype) for x in (q, k, v)), g, torch.rand(2, T, Hv).to(dtype)]
    return [x.requires_grad_(grad) for x in tensors]


def outputs_and_gradients(function, inputs, state, **options):
    outputs = function(*inputs, initial_state=state, output_final_state=True, **options)
    total = sum((x.float() * torch.linspace(-1, 1, x.numel()).view_as(x)).sum() for x in outputs)
    return outputs, torch.autograd.grad(total, [*inputs, *([] if state is None else [state])])


@pytest.mark.parametrize("with_state", [False, True], ids=["no state", "state"])
@pytest.mark.parametrize("norm", [False, True], ids=["no norm", "norm"])
@pytest.mark.parametrize("by_feature", [False, True], ids=["head", "feature"])
@pytest.mark.parametrize("name", ["chunk_rule", "recurrent_rule"])
def test_rule_has_transformers_results_and_gradients(name, by_feature, norm, with_state):
    theirs = {
        ("chunk_rule", False): QWEN.torch_chunk_gated_delta_rule,
        ("recurrent_rule", False): QWEN.torch_recurrent_gated_delta_rule,
        ("chunk_rule", True): KIMI.chunk_kimi_delta_attention,
        ("recurrent_rule", True): KIMI.recurrent_kimi_delta_attention,
    }[name, by_feature]
    inputs = rule_inputs(by_feature=by_feature, **({"Hk": 4} if by_feature else {}))
    if not norm:  # without it keys longer than 1 make the state grow
        inputs[1] = F.normalize(inputs[1].detach(), dim=-1).requires_grad_()
    state = torch.randn(2, 4, 16, 8, requires_grad=True) if with_state else None
    options = {"use_qk_l2norm_in_kernel": norm}
    expected, gradients = outputs_and_gradients(theirs, inputs, state, **options)
    outputs, ours = outputs_and_gradients(getattr(hub_functions, name), inputs, state, **options)
    assert_all_near(outputs, expected, 1e-4)
    assert_all_near(ours, gradients, 1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_rule_of_half_precision_has_transformers_dtypes(dtype):
    inputs = rule_inputs(dtype, grad=False)
    options = {"output_final_state": True, "use_qk_l2norm_in_kernel": True}
    expected = QWEN.torch_chunk_gated_delta_rule(*inputs, initial_state=torch.ones(2, 4, 16, 8, dtype=dtype), **options)
    for beta in (inputs[4], inputs[4].float()):
        given = (*inputs[:4], beta)
        found = hub_functions.chunk_rule(*given, initial_state=torch.ones(2, 4, 16, 8, dtype=dtype), **options)
        assert_all_near(found, expected, 1e-2)
    assert hub_functions.chunk_rule(*inputs)[1] is None


@pytest.mark.parametrize("bias", [False, True], ids=["no bias", "bias"])
@pytest.mark.parametrize("activation", [None, "silu", "swish"])
@pytest.mark.parametrize(
    "dtype, weight_dtype",
    [
        (torch.float32, torch.float32),
        (torch.float32, torch.bfloat16),
        (torch.bfloat16, torch.bfloat16),
        (torch.bfloat16, torch.float32),
    ],
    ids=str,
)
def test_convolution_has_transformers_results_and_gradients(dtype, weight_dtype, activation, bias):
    x = torch.randn(2, 6, 11).to(dtype).requires_grad_()
    weight = torch.randn(6, 4).to(weight_dtype).requires_grad_()
    tensors = [x, weight, *([torch.randn(6).to(weight_dtype).requires_grad_()] if bias else [])]
    found = []
    for function in (QWEN.causal_conv1d_fn, hub_functions.convolution):
        y = function(*tensors, activation=activation)
        found.append([y, *torch.autograd.grad((y * torch.linspace(-1, 1, 11)).sum(), tensors)])
    exact = dtype == weight_dtype == torch.float32
    assert_all_near(found[1], found[0], TOLERANCE if exact else 3e-2)


@pytest.mark.parametrize("grad", [False, True], ids=["no grad", "grad"])
@pytest.mark.parametrize("columns", [3, 4, 7])
@pytest.mark.parametrize("T", [1, 2, 9])
def test_convolution_step_has_transformers_results_and_updates_the_state(T, columns, grad):
    x, weight, bias = torch.randn(2, 6, T), torch.randn(6, 4), torch.randn(6)
    before = torch.randn(2, 6, columns)
    found = []
    for function in (QWEN.causal_conv1d_update, hub_functions.convolution_step):
        state = before.clone()
        inputs = [x.clone().requires_grad_(grad), weight.clone().requires_grad_(grad)]
        y = function(inputs[0], state, inputs[1], bias, "silu")
        found.append([y, state, *(torch.autograd.grad(y.square().sum(), inputs) if grad else ())])
    assert_all_near(found[1], found[0])
    assert torch.equal(found[1][1], found[0][1])


def test_calls_not_supported_are_not_implemented():
    inputs = rule_inputs(grad=False, T=5)
    q, k, v, g, beta = inputs
    x, weight = torch.randn(1, 6, 5), torch.randn(6, 4)
    rule, convolution, step = hub_functions.chunk_rule, hub_functions.convolution, hub_functions.convolution_step
    for found in (
        rule(*(t.double() for t in inputs)),
        rule(*(t.to("meta") for t in inputs)),
        rule(*(t[:, :0] for t in inputs)),
        rule(*rule_inputs(T=3, D=260, grad=False)),
        rule(q, k.bfloat16(), v, g, beta),
        rule(q, k, v[:, :, :3], g[..., :3], beta[..., :3]),
        rule(q, k, v, g[..., :2], beta),
        convolution(x, weight, activation="gelu"),
        convolution(x, torch.randn(6, 9)),
        convolution(x.double(), weight),
        convolution(x.to("meta"), weight.to("meta")),
        step(x, torch.zeros(1, 6, 2), weight),
        step(x, torch.zeros(2, 6, 4), weight),
    ):
        assert found is NotImplemented


def test_calls_not_supported_are_transformers():
    inputs = [x.double() for x in rule_inputs(grad=False)]
    x, weight = torch.randn(1, 6, 5), torch.randn(6, 4)
    expected = QWEN.torch_chunk_gated_delta_rule(*inputs)[0]
    convolved = QWEN.causal_conv1d_fn(x, weight, activation="gelu")
    derivative = torch.func.jvp(lambda x: QWEN.causal_conv1d_fn(x, weight), (x,), (x,))[1]
    register()
    assert torch.equal(QWEN.torch_chunk_gated_delta_rule(*inputs)[0], expected)
    assert torch.equal(QWEN.causal_conv1d_fn(x, weight, activation="gelu"), convolved)
    assert torch.equal(torch.func.jvp(lambda x: QWEN.causal_conv1d_fn(x, weight), (x,), (x,))[1], derivative)


def test_packed_arguments_that_do_not_fit_are_refused():
    inputs, x, weight = rule_inputs(T=5, grad=False), torch.randn(2, 6, 5), torch.randn(6, 4)
    numbers = torch.zeros(2, 4, dtype=torch.int32)
    with pytest.raises(ValueError, match=r"^headgate: gated delta rule: seq_idx has shape \(2,4\) but must be \(2,5\)"):
        hub_functions.chunk_rule(*inputs, seq_idx=numbers)
    with pytest.raises(ValueError, match=r"^headgate: causal_conv1d: seq_idx has shape \(2,4\) but must be \(2,5\)"):
        hub_functions.convolution(x, weight, seq_idx=numbers)
    with pytest.raises(ValueError, match="^headgate: gated delta rule: cu_seqlens"):
        hub_functions.chunk_rule(*inputs, cu_seqlens=torch.tensor([0, 5]))
    with pytest.raises(ValueError, match="^headgate: gated delta rule: initial_state"):
        hub_functions.chunk_rule(*inputs, initial_state=torch.zeros(1, 4, 16, 8))


@pytest.mark.parametrize("family", FAMILIES)
def test_autocast_registered_has_transformers_logits(family):
    model, ids = model_of(family), models.tokens(2, 20)
    exact = model(ids).logits
    with torch.autocast("cpu", dtype=torch.bfloat16):
        theirs = model(ids).logits
        register()
        ours = model(ids).logits
    assert ours.dtype == theirs.dtype
    assert (ours - exact).norm() < 1.2 * (theirs - exact).norm() + 0.01 * exact.norm()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_model_of_half_precision_registered_has_transformers_logits(dtype):
    model, ids = model_of("qwen3.5").to(dtype), models.tokens(2, 20)
    expected = model(ids).logits
    register()
    found = model(ids).logits
    assert found.dtype == dtype and (found - expected).norm() < 0.03 * expected.norm()


@pytest.mark.parametrize("family", ["qwen3.5", "kimi-linear"])
def test_function_registered_compiles_in_one_graph(family):
    kind = "by_feature" if family == "kimi-linear" else None
    inputs = rule_inputs(by_feature=kind is not None, Hk=4)
    module, name = (KIMI, "chunk_kimi_delta_attention") if kind else (QWEN, "torch_chunk_gated_delta_rule")
    x, weight = torch.randn(2, 6, 11), torch.randn(6, 4)

    def call(*inputs):
        rule = getattr(module, name)(*inputs, use_qk_l2norm_in_kernel=True, output_final_state=True)
        return *rule, module.causal_conv1d_fn(x, weight, activation="silu")

    register()
    assert_all_near(torch.compile(call, fullgraph=True, backend="aot_eager")(*inputs), call(*inputs))


def globals_of_models():
    return {
        (model, name): getattr(hub_functions.module_of(model), name)
        for model in hub_functions.MODELS
        for name in hub_functions.FUNCTIONS
        if hasattr(hub_functions.module_of(model), name)
    }


def test_registration_repeated_and_undone_restores_transformers():
    before = globals_of_models()
    assert len(before) == 4 * len(hub_functions.MODELS)
    for _ in range(2):
        register()
        ours = globals_of_models()
        assert all(ours[key] is not before[key] for key in before)
    register()
    assert globals_of_models() == ours
    for _ in range(2):
        unregister()
        assert globals_of_models() == before


def test_unregistering_keeps_what_others_replaced(monkeypatch):
    before = globals_of_models()
    register()
    other = torch.relu
    monkeypatch.setattr(QWEN, "causal_conv1d_fn", other)
    unregister()
    assert globals_of_models() == {**before, ("qwen3_5", "causal_conv1d_fn"): other}
    monkeypatch.undo()
    QWEN.causal_conv1d_fn = before["qwen3_5", "causal_conv1d_fn"]


def test_registration_without_functions_changes_no_function():
    before = globals_of_models()
    assert register(functions=False) == "headgate" and globals_of_models() == before
