# SPDX-License-Identifier: Apache-2.0
"""override(): interventions in single heads and layers of a live model."""

import json
import subprocess

import numpy
import pytest
import torch
import transformers

import headgate.torch.transformers
import models
import tool_runs
import watch_reference
from headgate.torch import override, watch


def loss_of(model, ids, changes):
    """The loss of all tokens but the first. The last one is a target alone, as the tool has it."""
    with torch.no_grad(), override(model, changes):
        logits = model(ids[:, :-1]).logits
    return torch.nn.functional.cross_entropy(logits[0].double(), ids[0, 1:]).item()


def xray(model, ids, where, of):
    model.save_pretrained(where / "model")
    numpy.save(where / "tokens.npy", ids.flatten().int().numpy())
    words = ["xray", where / "model", "--token-ids", where / "tokens.npy", "--override", of, "--threads", 1, "--json"]
    done = subprocess.run([str(word) for word in (tool_runs.TOOL, *words)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["models"][0]


@pytest.mark.parametrize("family", ["llama", "afmoe", "qwen3-next", "qwen3.5"])
def test_changes_equal_those_of_xray(family, tmp_path):
    model, ids = models.model(family, "sdpa").eval(), models.tokens(1, 24)
    found = xray(model, ids, tmp_path, "heads")
    plain, compared = loss_of(model, ids, {}), 0
    for layer, heads in enumerate(found["head_figures"]):
        for head, figures in enumerate(heads):
            for key, word in (
                ("loss_change_when_closed", "closed"),
                ("loss_change_when_open", "open"),
                ("loss_change_at_mean_gate", "mean_gate"),
            ):
                if figures.get(key) is not None:
                    ours = loss_of(model, ids, {(layer, head): word}) - plain
                    assert ours == pytest.approx(figures[key], abs=3e-6), (layer, head, key)
                    compared += 1
    assert compared >= 8


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_hidden_first_token_gets_no_attention(implementation):
    model, ids = models.model("llama", implementation).eval(), models.tokens(2, 12)
    visible = torch.ones(12, 12, dtype=torch.bool).tril()
    visible[1:, 0] = False
    bias = torch.zeros(12, 12).masked_fill(~visible, torch.finfo(torch.float32).min)[None, None]
    with torch.no_grad():
        expected = model(ids, attention_mask=bias.expand(2, 1, -1, -1)).logits
        with override(model, {0: "no_first_token", 1: "no_first_token"}):
            ours = model(ids).logits
    assert torch.allclose(ours, expected, atol=1e-5)


@pytest.mark.parametrize("word", ["no_first_token", ("sink_logit", 0.7)])
def test_attention_computed_again_has_gradients(word):
    model, ids = models.model("llama", "sdpa").eval().double(), models.tokens(2, 12)
    weight = model.model.layers[0].self_attn.q_proj.weight
    step = 0.01 * torch.randn_like(weight)

    def loss():
        with override(model, {0: word, (1, 2): word}):
            logits = model(ids).logits
        return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())

    (gradient,) = torch.autograd.grad(loss(), weight)
    with torch.no_grad():
        weight.add_(step)
        above = loss()
        weight.sub_(2 * step)
        below = loss()
    by_differences = (above - below).item() / 2
    assert by_differences != 0
    assert (gradient * step).sum().item() == pytest.approx(by_differences, rel=0.01)  # norms are f32


@pytest.mark.parametrize("word", ["no_first_token", "sink_logit"])
def test_attention_dropout_of_attention_computed_again_is_refused(word):
    model, ids = models.model("llama", "sdpa"), models.tokens(1, 12)
    for module in model.modules():
        if hasattr(module, "attention_dropout"):
            module.attention_dropout = 0.5
    with override(model.train(), {0: word}), pytest.raises(ValueError, match=f"'{word}' .* dropout of 0.5"):
        model(ids)
    with override(model, {0: "closed"}):
        model(ids)
    with override(model.eval(), {0: word}):
        model(ids)


def test_sink_logit_equals_that_of_gpt_oss():
    model, ids = models.model("gpt-oss", "eager").eval(), models.tokens(2, 12)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.sinks.fill_(0.7)
        expected = model(ids).logits
        for layer in model.model.layers:
            layer.self_attn.sinks.fill_(-1e4)
        with override(model, dict.fromkeys(range(2), ("sink_logit", 0.7))):
            ours = model(ids).logits
    assert torch.allclose(ours, expected, atol=1e-5)


def test_negligible_sink_logit_keeps_the_sinks_of_each_query():
    if not hasattr(transformers, "Inkling2ForCausalLM"):
        pytest.skip(f"transformers {transformers.__version__} has no Inkling2ForCausalLM")
    script, kind = watch_reference.small_models(), transformers.Inkling2ForCausalLM
    model, ids = script.made(kind, script.config_of(kind), "eager").eval(), models.tokens(2, 9)
    with torch.no_grad():
        expected = model(ids).logits
        with override(model, {0: ("sink_logit", -1e4)}):
            ours = model(ids).logits
        with override(model, {0: ("sink_logit", 2.0)}):
            assert not torch.allclose(model(ids).logits, expected, atol=1e-3)
    assert torch.allclose(ours, expected, atol=1e-5)


def test_one_head_changes_alone_and_watch_sees_the_rest():
    model, ids = models.model("llama", "sdpa").eval(), models.tokens(2, 12)
    found = []
    model.model.layers[1].self_attn.o_proj.register_forward_pre_hook(lambda _, given: found.append(given[0]))
    with torch.no_grad():
        model(ids)
        with override(model, {(1, 2): "closed"}), watch(model) as seen:
            model(ids)
    plain, closed = (x.unflatten(-1, (4, 16)) for x in found)
    assert (closed[:, :, 2] == 0).all() and torch.equal(plain[:, :, [0, 1, 3]], closed[:, :, [0, 1, 3]])
    assert not seen.not_seen


def test_errors_name_layer_and_change():
    model = models.model("llama")
    for changes, message in (
        ({9: "closed"}, "9 is no layer with attention"),
        ({0: "shut"}, "'shut' is none of closed, open, mean_gate"),
        ({0: "mean_gate"}, "the gate of LlamaAttention is not known: 'mean_gate' needs one"),
    ):
        with pytest.raises(ValueError, match=message), override(model, changes):
            pass
    with pytest.raises(ValueError, match="'open' is not for linear attention"):
        with override(models.model("qwen3.5"), {0: "open"}):
            pass


@pytest.mark.parametrize("word", ["closed", "mean_gate"])
def test_head_that_the_layer_lacks_is_named(word):
    model, ids = models.model("qwen3.5", "sdpa").eval(), models.tokens(1, 8)
    layer = next(i for i, layer in enumerate(model.model.layers) if hasattr(layer, "self_attn"))
    heads = model.config.num_attention_heads
    with override(model, {(layer, heads): word}), pytest.raises(ValueError, match=f"no head {heads} in a layer of"):
        model(ids)


def retrofitted(gate):
    """A model with trained gates, an input, and the outputs (B,T,H,D) of its first layer under changes."""
    headgate.torch.transformers.register()
    model, ids = models.model("llama", "headgate").eval(), models.tokens(2, 12)
    found = []

    def first(changes):
        with torch.no_grad(), override(model, changes):
            model(ids)
        return found[-1].unflatten(-1, (4, 16))

    o_proj = model.model.layers[0].self_attn.o_proj
    o_proj.register_forward_pre_hook(lambda _, given: found.append(given[0]))
    plain = {word: first({} if word is None else {0: word}) for word in (None, "no_first_token", "sink_logit")}
    headgate.torch.retrofit(model, gate)
    attention = model.model.layers[0].self_attn
    gates = []
    torch.nn.init.normal_(attention.attention_gate.weight, std=0.5)
    attention.attention_gate.register_forward_hook(lambda _, __, z: gates.append(z.unflatten(-1, (4, -1))))
    return model, first, plain, gates


GATES = {
    "g1-elementwise-sigmoid2": (lambda z: 2 * z.sigmoid(), torch.mul),
    "g1-headwise-sigmoid2": (lambda z: 2 * z.sigmoid(), torch.mul),
    "g1-elementwise-silu-add": (torch.nn.functional.silu, torch.add),
}


@pytest.mark.parametrize("gate", GATES)
def test_retrofitted_gate_held_at_its_mean_equals_computing_by_hand(gate):
    model, first, plain, gates = retrofitted(gate)
    function, apply = GATES[gate]
    ours = first({(0, 2): "mean_gate"})
    g = function(gates[-1])
    g[:, :, 2] = g[:, :, 2].mean((0, 1))
    assert torch.allclose(ours, apply(plain[None], g), atol=1e-6)
    assert not torch.allclose(ours, apply(plain[None], function(gates[-1])), atol=1e-3)
    if apply is torch.mul:
        ours = first({(0, 1): "open"})
        g = function(gates[-1])
        g[:, :, 1] = 1
        assert torch.allclose(ours, plain[None] * g, atol=1e-6)
    with watch(model) as seen:
        first({0: "mean_gate"})
    if apply is torch.mul:
        assert seen.layers[0]["gate_mean"] == pytest.approx(function(gates[-1]).mean().item(), rel=1e-5)


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("word", ["no_first_token", "sink_logit"])
def test_attention_computed_again_passes_the_retrofitted_gate(gate, word):
    _, first, plain, gates = retrofitted(gate)
    function, apply = GATES[gate]
    ours = first({0: word})
    assert torch.allclose(ours, apply(plain[word], function(gates[-1])), atol=1e-6)
    ours = first({0: "mean_gate", (0, 3): word})
    g = function(gates[-1]).mean((0, 1), keepdim=True)
    assert torch.allclose(ours[:, :, 3], apply(plain[word], g)[:, :, 3], atol=1e-6)


def test_gates_that_cannot_be_held_are_refused():
    for gate, word, message in (
        ("g2-elementwise-sigmoid2", "mean_gate", "'mean_gate' is for gates at g1, but LlamaAttention has one at g2"),
        ("g1-elementwise-silu-add", "open", "'open' is not for a gate that is added"),
    ):
        model = headgate.torch.retrofit(models.model("llama"), gate)
        with pytest.raises(ValueError, match=message), override(model, {0: word}):
            pass


FAMILIES = """llama gemma2 gpt_oss olmo2 cohere glm4 nemotron gpt2 opt stablelm deepseek_v3 afmoe jetmoe gpt_bigcode minimax
bloom falcon mpt codegen gptj""".split()
MASKED = "bert roberta electra roformer rembert megatron-bert modernbert distilbert".split()
SEQ2SEQ = "bart t5 led fsmt prophetnet mvp m2m_100".split()
WORDS_OF_ATTENTION = ("closed", "no_first_token", ("sink_logit", 2.0))


def family(task, name):
    """A small model of a family of transformers, with its arguments."""
    script = watch_reference.small_models()
    kind = script.TASKS[task][name]
    kind = getattr(transformers, kind if isinstance(kind, str) else kind[0])
    return script.made(kind, script.config_of(kind), "eager").eval(), script.inputs_of(task)[0]


def effect(model, given, changes):
    """The largest difference of the logits by changes, or the text of the ValueError."""
    with torch.no_grad():
        plain = model(**given).logits
        try:
            with override(model, changes):
                changed = model(**given).logits
        except ValueError as error:
            return str(error)
    return (changed - plain).abs().nan_to_num(0).max().item()


@pytest.mark.parametrize(
    ("task", "name"),
    [("causal", name) for name in FAMILIES] + [("masked", name) for name in MASKED] + [("seq2seq", x) for x in SEQ2SEQ],
)
def test_each_accepted_module_changes_the_outputs_or_is_refused(task, name):
    model, given = family(task, name)
    modules = [
        module
        for module, part in model.named_modules()
        if any(word in type(part).__name__ for word in ("Attention", "Attn")) and ("0" in module.split("."))
    ]
    assert modules
    for module in (0, *modules):
        for word in WORDS_OF_ATTENTION:
            found = effect(model, given, {module: word})
            if isinstance(found, str):
                assert "had no effect" in found or "no layer with" in found or "several attention modules" in found
            else:
                assert found > 0, (module, word)


@pytest.mark.parametrize("name", SEQ2SEQ)
def test_number_of_several_modules_is_refused_with_their_names(name):
    model, _ = family("seq2seq", name)
    numbered = [name for name, part in model.named_modules() if getattr(part, "layer_idx", None) == 0]
    assert len(numbered) > 1
    with pytest.raises(ValueError, match="0 is the number of several attention modules") as refused:
        with override(model, {0: "closed"}):
            pass
    assert all(name in str(refused.value) for name in numbered)


def test_module_without_attention_calls_is_refused_with_the_one_inside():
    model, given = family("masked", "bert")
    found = effect(model, given, {"bert.encoder.layer.0.attention": "closed"})
    assert "had no effect" in found and "'bert.encoder.layer.0.attention.self' did" in found
    with override(model, {"bert.encoder.layer.0.attention": "closed"}):
        pass  # the model did not run


@pytest.mark.parametrize("when", ["before", "within", "in place"])
def test_compiled_model_is_changed(when):
    model, ids = models.model("llama", "sdpa").eval(), models.tokens(2, 12)
    changes = {0: "closed"}
    with torch.no_grad():
        with override(model, changes):
            expected = model(ids).logits
        compiled = model if when == "in place" else torch.compile(model, backend="eager")
        if when == "in place":
            model.compile(backend="eager")
        if when != "within":
            plain = compiled(ids).logits
            assert not torch.allclose(plain, expected, atol=1e-3)
        with override(compiled, changes):
            assert torch.allclose(compiled(ids).logits, expected, atol=1e-5)
        if when != "within":
            assert torch.allclose(compiled(ids).logits, plain, atol=1e-5)


@pytest.mark.parametrize("name", ["qwen3-next", "qwen3.5", "olmo-hybrid", "kimi-linear"])
def test_each_layer_kind_of_hybrids_takes_its_changes(name):
    model, given = models.model(name).eval(), {"input_ids": models.tokens(2, 12)}
    for layer in range(2):
        linear = model.config.layer_types[layer] == "linear_attention"
        for word in WORDS_OF_ATTENTION:
            found = effect(model, given, {layer: word})
            if linear and word != "closed":
                assert "is not for linear attention" in found
            else:
                assert found > 0, (layer, word)


BAD = {
    "list": [(0, "closed")],
    "no layer": {None: "closed"},
    "bool as layer": {True: "closed"},
    "float as layer": {1.0: "closed"},
    "key of three": {(0, 0, 0): "closed"},
    "float as head": {(0, 1.5): "closed"},
    "bool as head": {(0, True): "closed"},
    "text as head": {(0, "1"): "closed"},
    "no head": {(0, None): "closed"},
    "negative head": {(0, -1): "closed"},
    "list as change": {0: ["closed"]},
    "empty change": {0: ()},
    "unneeded value": {0: ("closed", 3.0)},
    "no value": {0: ("sink_logit",)},
    "two values": {0: ("sink_logit", 1, 2)},
    "text as value": {0: ("sink_logit", "x")},
    "bool as value": {0: ("sink_logit", True)},
    "NaN": {0: ("sink_logit", float("nan"))},
    "infinity": {0: ("sink_logit", float("inf"))},
    "two sinks": {0: ("sink_logit", 1.0), (0, 1): ("sink_logit", 2.0)},
}


@pytest.mark.parametrize("case", BAD)
def test_bad_changes_are_refused_on_entry(case):
    with pytest.raises(ValueError, match="^override: ") as refused, override(models.model("llama"), BAD[case]):
        raise AssertionError("entered")
    values = BAD[case].items() if isinstance(BAD[case], dict) else [(BAD[case], BAD[case])]
    assert any(repr(key) in str(refused.value) or repr(what)[1:-1] in str(refused.value) for key, what in values)


def test_two_values_of_a_gate_are_refused():
    with pytest.raises(ValueError, match="'mean_gate' for .* contradicts another change of the same head"):
        with override(models.model("qwen3.5"), {1: "open", (1, 0): "mean_gate"}):
            pass


@pytest.mark.parametrize("implementation", ["eager", "headgate"])
@pytest.mark.parametrize("name", ["llama", "gpt-oss"])
def test_changes_of_a_head_compose_in_any_order(name, implementation):
    headgate.torch.transformers.register()
    model, ids = models.model(name, implementation).eval(), models.tokens(2, 12)
    found = []
    attention = model.model.layers[0].self_attn
    attention.o_proj.register_forward_pre_hook(lambda _, given: found.append(given[0].unflatten(-1, (4, 16))))

    def heads(changes):
        with torch.no_grad(), override(model, changes):
            model(ids)
        return found[-1]

    layer = "model.layers.0.self_attn"
    both = heads({0: "no_first_token", layer: ("sink_logit", 1.0)})
    assert torch.equal(both, heads({layer: ("sink_logit", 1.0), 0: "no_first_token"}))
    without_first, sink = heads({0: "no_first_token"}), heads({0: ("sink_logit", 1.0)})
    for one in (without_first, sink):
        assert not torch.allclose(both, one, atol=1e-4)
    each = heads({(0, 1): "no_first_token", (0, 2): ("sink_logit", 1.0)})
    assert torch.equal(each[:, :, 1], without_first[:, :, 1])
    assert torch.allclose(each[:, :, 2], sink[:, :, 2], atol=1e-6)
    for word, expected in (("no_first_token", without_first), (("sink_logit", 1.0), sink)):
        for changes in ({(0, 1): "closed", 0: word}, {0: word, (0, 1): "closed"}):
            ours = heads(changes)
            assert (ours[:, :, 1] == 0).all()
            assert torch.equal(ours[:, :, [0, 2, 3]], expected[:, :, [0, 2, 3]])


def test_composed_hidden_token_and_sink_equal_weights_by_hand():
    model, ids = models.model("gpt-oss", "eager", layer_types=["full_attention"] * 2).eval(), models.tokens(2, 12)
    visible = torch.ones(12, 12, dtype=torch.bool).tril()
    visible[1:, 0] = False
    bias = torch.zeros(12, 12).masked_fill(~visible, torch.finfo(torch.float32).min)[None, None]
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.sinks.fill_(0.7)
        expected = model(ids, attention_mask=bias.expand(2, 1, -1, -1)).logits
        for layer in model.model.layers:
            layer.self_attn.sinks.fill_(-1e4)
        names = {f"model.layers.{i}.self_attn": "no_first_token" for i in range(2)}
        with override(model, dict.fromkeys(range(2), ("sink_logit", 0.7)) | names):
            ours = model(ids).logits
    assert torch.allclose(ours, expected, atol=1e-5)


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("reentrant", [None, True])
def test_gradients_with_checkpointing_are_equal_or_refused(reentrant, inside):
    changes = {0: "no_first_token", (1, 2): "closed"}

    def gradients(reentrant, inside):
        model, ids = models.model("llama", "sdpa").train(), torch.arange(2, 26).view(2, 12)
        if reentrant is not None:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
        with override(model, changes):
            loss = model(ids, labels=ids).loss
            if inside:
                loss.backward()
        if not inside:
            loss.backward()
        return [parameter.grad for parameter in model.parameters()]

    if reentrant and not inside:
        with pytest.raises(ValueError, match=r"use_reentrant=True .* call backward\(\) within the `with` block"):
            gradients(reentrant, inside)
        return
    for ours, expected in zip(gradients(reentrant, inside), gradients(None, True)):
        assert torch.allclose(ours, expected, atol=1e-6)
