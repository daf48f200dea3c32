# SPDX-License-Identifier: Apache-2.0
"""Gates in models that have none: nothing changes until they are trained, and then they do what their formulas say."""

import copy
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import transformers
from torch import nn

import headgate.torch.transformers
import models
import plain
from headgate.torch import GateVariant, gate_parameters, load_retrofit, parse_gate, retrofit

headgate.torch.transformers.register(functions=False)
WITHOUT = ("llama", "qwen3", "qwen3 with windows", "gpt-oss", "gemma2")
GATES = (
    "g1-elementwise-sigmoid2",
    "g1-headwise-sigmoid2",
    "g1-head_shared-sigmoid2",
    "g1-elementwise-silu-add",
    "g1-headwise-identity-add",
    "g1-sigmoid2-parameter",
    "g1-sigmoid2-bias",
    "g2-elementwise-sigmoid2",
    "g2-headwise-identity-add",
    "g3-sigmoid2",
    "g4-headwise-sigmoid2",
    "g5-elementwise-sigmoid2",
    "g5-headwise-silu-add",
)
SITES = {"g2": "v_proj", "g3": "k_proj", "g4": "q_proj", "g5": "o_proj"}


def assert_near(ours, expected, tolerance=2e-5, rounding=0.0):
    """Compares; `rounding` says how much f32 sums may differ, whatever the largest value."""
    atol = tolerance * expected.abs().max().item() + rounding
    torch.testing.assert_close(ours, expected, rtol=tolerance, atol=atol)


def open_gates(model):
    """Gives the gates parameters that are not zero."""
    with torch.no_grad():
        for parameter in gate_parameters(model).values():
            parameter.copy_(0.3 * torch.randn_like(parameter))


@pytest.mark.parametrize("family", WITHOUT)
@pytest.mark.parametrize("gate", ["g1-elementwise-sigmoid2", "g1-headwise-identity-add", "g3-headwise-sigmoid2"])
def test_retrofit_fresh_gates_change_nothing(family, gate):
    """Logits are bitwise those of before, and the gates have gradients."""
    model = models.model(family, "headgate")
    ids = models.tokens(2, 11)
    before = model(ids).logits
    assert retrofit(model, gate) is model
    logits = model(ids).logits
    assert torch.equal(logits, before)
    logits.square().mean().backward()
    gates = gate_parameters(model)
    assert len(gates) == 2 and all(p.grad.abs().max() > 0 for p in gates.values())


def test_retrofit_shared_config_stays_as_it_was():
    """The config that the model was made from changes nothing in another model, made before or after."""
    config = models.model("llama").config
    kept = copy.deepcopy(config)
    made, before = (transformers.LlamaForCausalLM(config) for _ in range(2))
    assert made.config is config
    retrofit(made, "headwise-sigmoid2")
    assert config.to_dict() == kept.to_dict() and config._attn_implementation == kept._attn_implementation
    assert before.config is config and made.config is not config and made.config.gate_site == "g1"
    configs = {id(module.config) for module in made.modules() if hasattr(module, "config")}
    assert configs == {id(made.config)}
    ids = models.tokens(1, 5)
    for other in (before, transformers.LlamaForCausalLM(config)):
        assert other(ids).logits.isfinite().all() and not gate_parameters(other)
    assert made(ids).logits.isfinite().all()


def eager_gates(model, gate):
    """Adds the same gates to an eager model, by plain formulas: g1 before W_o, the others on projections."""
    variant = parse_gate(gate)

    def on(attention):
        state = {}

        def logits(_, args, kwargs):
            h = args[0] if args else kwargs["hidden_states"]
            z = attention.gate if hasattr(attention, "gate") else attention.attention_gate(h)
            config, D = attention.config, attention.head_dim
            heads = {"g2": config.num_key_value_heads, "g3": config.num_key_value_heads, "g5": 1}
            heads = heads.get(variant.gate_site, config.num_attention_heads)
            z = z.expand(*h.shape[:-1], -1, -1) if hasattr(attention, "gate") else z.unflatten(-1, (heads, -1))
            g = plain.FUNCTIONS[variant.gate_fn](z)
            g = g.mean(dim=-2, keepdim=True) if variant.gate_grain == "head_shared" else g
            width = config.hidden_size if variant.gate_site == "g5" else D
            state["g"] = g.expand(*h.shape[:-1], heads, width).flatten(-2)

        def act(y):
            return y + state["g"] if variant.gate_op == "add" else y * state["g"]

        attention.register_forward_pre_hook(logits, with_kwargs=True)
        if variant.gate_site == "g1":
            attention.o_proj.register_forward_pre_hook(lambda _, args: (act(args[0]),))
        else:
            getattr(attention, SITES[variant.gate_site]).register_forward_hook(lambda _, __, y: act(y))

    for layer in model.model.layers:
        on(layer.self_attn)


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_trained_gates(family, gate):
    """Logits, gradients and greedy tokens equal those of plain formulas in an eager model."""
    ours, eager = retrofit(models.model(family), gate), models.model(family)
    open_gates(ours)
    for layer, other in zip(ours.model.layers, eager.model.layers):
        for name in ("gate", "attention_gate"):
            if hasattr(layer.self_attn, name):
                setattr(other.self_attn, name, copy.deepcopy(getattr(layer.self_attn, name)))
    eager_gates(eager, gate)
    ids = models.tokens(2, 9)
    logits, expected = ours(ids).logits, eager(ids).logits
    assert_near(logits, expected)
    for model in (logits, expected):
        model.square().mean().backward()
    theirs = dict(eager.named_parameters())
    for name, parameter in ours.named_parameters():
        if not parameter.grad.abs().max() <= 1e-6:  # also true for NaN
            assert_near(parameter.grad, theirs[name].grad, 1e-4, rounding=1e-9)
    options = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    assert torch.equal(ours.eval().generate(ids, **options), eager.eval().generate(ids, **options))


def test_training_gates_alone_changes_no_other_weight():
    model = retrofit(models.model("llama"), "headwise-sigmoid2")
    model.requires_grad_(False)
    gates = gate_parameters(model)
    assert sorted(gates) == [f"model.layers.{n}.self_attn.attention_gate.weight" for n in range(2)]
    for parameter in gates.values():
        parameter.requires_grad_()
    optimizer = torch.optim.AdamW(gates.values(), lr=0.05)
    ids = models.tokens(2, 16)
    losses = []
    for _ in range(8):
        loss = model(ids, labels=ids).loss
        losses.append(loss.item())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert losses[-1] < losses[0] - 0.01


def test_copy_trained_does_not_change_the_original():
    model = retrofit(models.model("qwen3"), "g2-sigmoid2")
    other = copy.deepcopy(model)
    open_gates(other)
    ids = models.tokens(1, 6)
    assert torch.equal(model(ids).logits, models.model("qwen3", "headgate")(ids).logits)
    assert not torch.equal(other(ids).logits, model(ids).logits)
    assert len(gate_parameters(other)) == 2


def test_saved_and_loaded(tmp_path):
    model = retrofit(models.model("llama"), "headwise-sigmoid2")
    open_gates(model)
    model.save_pretrained(tmp_path)
    config = transformers.AutoConfig.from_pretrained(tmp_path)
    assert GateVariant(**{key: getattr(config, key) for key in ("gate_site", "gate_grain", "gate_fn")}) == parse_gate(
        "headwise-sigmoid2"
    )
    again = retrofit(models.model("llama", seed=1), "headwise-sigmoid2")
    from safetensors.torch import load_file

    again.load_state_dict(load_file(tmp_path / "model.safetensors"))
    ids = models.tokens(1, 6)
    assert torch.equal(again(ids).logits, model(ids).logits)


@pytest.mark.parametrize("gate", ["headwise-sigmoid2", "g1-sigmoid2-bias", "g1-sigmoid2-parameter", "g5-silu-add"])
@pytest.mark.parametrize("family", WITHOUT)
def test_load_retrofit_saved_model_computes_the_same(family, gate, tmp_path):
    model = retrofit(models.model(family).eval(), gate)
    open_gates(model)
    model.save_pretrained(tmp_path / "one", max_shard_size="20KB")
    ids = models.tokens(2, 7)
    loaded = load_retrofit(tmp_path / "one")
    assert type(loaded) is type(model) and not loaded.training
    assert gate_parameters(loaded).keys() == gate_parameters(model).keys()
    assert torch.equal(loaded(ids).logits, model(ids).logits)
    loaded.save_pretrained(tmp_path / "two")
    again = load_retrofit(tmp_path / "two", dtype=torch.bfloat16)
    theirs = dict(model.named_parameters())
    for name, parameter in again.named_parameters():
        assert torch.equal(parameter, theirs[name].to(torch.bfloat16))


def by_the_old_name(directory):
    """Renames the gate's matrices in a saved file to their old name, that of the MLP's. Returns the tensors."""
    from safetensors.torch import load_file, save_file

    state = load_file(directory / "model.safetensors")
    old = {name.replace("attention_gate", "gate_proj"): x for name, x in state.items()}
    assert old.keys() != state.keys()
    save_file(old, directory / "model.safetensors", {"format": "pt"})
    return old


@pytest.mark.parametrize("gate", ["headwise-sigmoid2", "g2-sigmoid2-bias"])
def test_load_retrofit_files_of_the_old_name_compute_the_same(gate, tmp_path):
    model = retrofit(models.model("llama").eval(), gate)
    open_gates(model)
    model.save_pretrained(tmp_path)
    old = by_the_old_name(tmp_path)
    ids = models.tokens(2, 7)
    loaded = load_retrofit(tmp_path)
    assert torch.equal(loaded(ids).logits, model(ids).logits)
    by_hand = retrofit(models.model("llama", seed=1).eval(), gate)
    by_hand.load_state_dict(old)
    assert torch.equal(by_hand(ids).logits, model(ids).logits)
    assert copy.deepcopy(by_hand).load_state_dict(old)
    with pytest.raises(RuntimeError, match='Unexpected key.*"model.layers.0.self_attn.gate_proj.weight"'):
        by_hand.load_state_dict(old | model.state_dict())
    loaded.save_pretrained(tmp_path)
    from safetensors.torch import load_file

    assert load_file(tmp_path / "model.safetensors").keys() == model.state_dict().keys()


def test_load_retrofit_other_directories_are_refused(tmp_path):
    models.model("llama").save_pretrained(tmp_path / "plain")
    with pytest.raises(ValueError, match="plain' is no retrofitted model: its config.json has no gate_site"):
        load_retrofit(tmp_path / "plain")
    model = retrofit(models.model("llama"))
    model.config.architectures = ["OtherForCausalLM"]
    model.config.save_pretrained(tmp_path / "plain")
    with pytest.raises(ValueError, match="has architecture OtherForCausalLM, which is no class of transformers"):
        load_retrofit(tmp_path / "plain")
    model.config.architectures = ["LlamaForCausalLM"]
    model.config.save_pretrained(tmp_path / "plain")
    with pytest.raises(ValueError, match="has no model.layers.0.self_attn.attention_gate.weight: its files have no"):
        load_retrofit(tmp_path / "plain")


def test_from_pretrained_without_the_gates_is_refused(tmp_path):
    """from_pretrained leaves out the gates, which the model's class lacks; headgate's attention then refuses."""
    retrofit(models.model("llama")).save_pretrained(tmp_path)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="headgate")
    with pytest.raises(ValueError, match="config has a gate at g1 but the model has none: load it with headgate.torch"):
        model(models.tokens(1, 4))
    assert retrofit(model)(models.tokens(1, 4)).logits.shape == (1, 4, models.VOCAB)


@pytest.mark.parametrize("family", WITHOUT)
def test_gate_matrices_have_their_own_names(family):
    """LoRA selects target modules by the last part of their names: no other module has the gate's."""
    model = models.model(family)
    names = {name.rpartition(".")[2] for name, _ in model.named_modules()}
    retrofit(model)
    added = {name.rpartition(".")[2] for name, _ in model.named_modules()} - names
    assert added == {"attention_gate"} and not names & added


class LowRank(nn.Module):
    """A projection that LoRA adapts: its output, plus that of a product."""

    def __init__(self, base):
        super().__init__()
        self.base_layer = base
        self.product = nn.Sequential(
            nn.Linear(base.in_features, 2, bias=False), nn.Linear(2, base.out_features, bias=False)
        )

    def forward(self, x):
        return self.base_layer(x) + self.product(x)


@pytest.mark.parametrize("gate", ["g1-sigmoid2", "g2-sigmoid2", "g3-sigmoid2", "g4-sigmoid2", "g5-sigmoid2"])
def test_adapted_projections_are_gated_as_merged_ones(gate):
    model, merged = (retrofit(models.model("llama"), gate) for _ in range(2))
    open_gates(model)
    merged.load_state_dict(model.state_dict())
    originals = copy.deepcopy(model)
    for layer, other in zip(model.model.layers, merged.model.layers):
        for name in (*SITES.values(), "attention_gate"):
            adapted = LowRank(getattr(layer.self_attn, name))
            setattr(layer.self_attn, name, adapted)
            with torch.no_grad():
                first, second = adapted.product
                getattr(other.self_attn, name).weight += second.weight @ first.weight
    gates = [n for n, _ in model.named_parameters() if ".attention_gate." in n or n.endswith(".gate")]
    assert list(gate_parameters(model)) == gates and len(gates) == 6
    ids = models.tokens(2, 9)
    expected = merged(ids).logits
    for found in (model, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert_near(found(ids).logits, expected)
    if gate == "g2-sigmoid2":
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
        assert_near(compiled(ids, use_cache=False).logits, expected)
    for layer in model.model.layers:
        for name in (*SITES.values(), "attention_gate"):
            setattr(layer.self_attn, name, getattr(layer.self_attn, name).base_layer)
    assert torch.equal(model(ids).logits, originals(ids).logits)


@pytest.mark.parametrize("gate", ["headwise-sigmoid2", "g1-sigmoid2-parameter", "g2-sigmoid2"])
def test_packed_rows(gate):
    """Packed sequences, separated by their positions, use the gates of their own tokens."""
    model = retrofit(models.model("llama"), gate)
    open_gates(model)
    first, second = models.tokens(2, 5), models.tokens(2, 8)
    expected = torch.cat([model(part, use_cache=False).logits for part in (first, second)], dim=1)
    positions = torch.cat((torch.arange(5), torch.arange(8))).expand(2, -1)
    both = torch.cat((first, second), dim=1)
    assert_near(model(both, position_ids=positions, use_cache=False).logits, expected)


def test_gradient_checkpointing_and_compile():
    model = retrofit(models.model("llama"), "g1-elementwise-sigmoid2")
    open_gates(model)
    ids = models.tokens(2, 7)
    plain_logits = model(ids).logits
    plain_logits.square().mean().backward()
    expected = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    model(ids, use_cache=False).logits.square().mean().backward()
    for name, parameter in model.named_parameters():
        assert_near(parameter.grad, expected[name])
    model.gradient_checkpointing_disable()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    assert_near(compiled(ids, use_cache=False).logits, plain_logits)


@pytest.mark.parametrize("gate", ["g1-sigmoid2", "g2-sigmoid2", "g5-sigmoid2"])
def test_forward_in_two_threads_uses_the_gates_of_each_call(gate):
    """Both threads wait for each other between the computation of a gate's logits and their use."""
    model = retrofit(models.model("llama"), gate)
    open_gates(model)
    both = models.tokens(2, 5), models.tokens(1, 9)
    expected = [model(ids, use_cache=False).logits.detach() for ids in both]
    barrier = threading.Barrier(2, timeout=30)
    for layer in model.model.layers:
        layer.self_attn.q_proj.register_forward_hook(lambda *_: (barrier.wait(), None)[1])
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda ids: model(ids, use_cache=False).logits.detach(), both))
    for ours, alone in zip(found, expected):
        assert torch.equal(ours, alone)


def test_forward_with_another_attention_is_refused():
    """Another attention would leave out the gate of g1."""
    model = retrofit(models.model("llama"))
    model.set_attn_implementation("eager")
    with pytest.raises(RuntimeError, match="LlamaAttention was not applied: attn_implementation is 'eager'"):
        model(models.tokens(1, 4))
    model.set_attn_implementation("headgate")
    assert model(models.tokens(1, 4)).logits.shape == (1, 4, models.VOCAB)


def test_forward_with_two_calls_of_the_attention_is_refused():
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4}
    config = transformers.DiffLlamaConfig(vocab_size=100, num_key_value_heads=2, **sizes)
    model = retrofit(transformers.DiffLlamaForCausalLM(config))
    for _ in range(2):
        with pytest.raises(ValueError, match="DiffLlamaAttention computes attention more than once in a call"):
            model(models.tokens(1, 5))


def test_models_and_gates_unknown_are_refused():
    gpt2 = transformers.GPT2LMHeadModel(transformers.GPT2Config(n_embd=16, n_layer=1, n_head=2, vocab_size=9))
    for model, gate, message in (
        (gpt2, "sigmoid2", "GPT2LMHeadModel has no attention that is known"),
        (torch.nn.Linear(2, 2), "sigmoid2", "Linear is no model of transformers"),
        (models.model("qwen3-next"), "sigmoid2", r"self_attn \(Qwen3NextAttention\) has a gate already"),
        (models.model("afmoe"), "sigmoid2", r"self_attn \(AfmoeAttention\) has a gate already"),
        (retrofit(models.model("llama")), "sigmoid2", "has a gate already"),
        (models.model("llama"), "headwise", r"does not start as the identity: g\(0\) is 0.5"),
        (models.model("llama"), "ns_sigmoid", r"g\(0\) is 0.75"),
        (models.model("llama"), "silu", r"g\(0\) is 0"),
        (models.model("llama"), "none", "'none' has no gate"),
        (models.model("llama"), "sigmoid2-learned_sinks", "learned_sinks would change the model"),
        (models.model("llama"), "g9", "gate 'g9'"),
    ):
        before = set(model.state_dict())
        with pytest.raises(ValueError, match=message) as error:
            retrofit(model, gate)
        assert "\n" not in str(error.value) and set(model.state_dict()) == before
