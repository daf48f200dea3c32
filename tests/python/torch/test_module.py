# SPDX-License-Identifier: Apache-2.0
"""GatedAttention against the eager code that headgate's programs write beside their models, and against those programs.

That code, modeling_headgate.py, has the module's projections, gates and norms, and attention of its own;
scripts/check_transformers.py compares it with the C++ layers for every variant.
"""

import ast
import importlib.util
import itertools
import json
import math
import os
import re
import subprocess
from pathlib import Path

import numpy
import pytest
import torch
from torch.nn import functional as F

import headgate
import models
from headgate.torch import (
    AttentionCache,
    DeltaNetCache,
    GatedAttention,
    GatedDeltaNet,
    GateVariant,
    gated_attention,
    parse_gate,
    variant,
)

ROOT = Path(__file__).resolve().parents[3]
_spec = importlib.util.spec_from_file_location("modeling", ROOT / "python" / "transformers" / "modeling_headgate.py")
modeling = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(modeling)

C, HQ, HKV, D, B, T = 24, 4, 2, 8, 2, 7
SIZES = {
    "hidden_size": C,
    "num_attention_heads": HQ,
    "num_key_value_heads": HKV,
    "head_dim": D,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500.0,
    "initializer_range": 0.3,
    "gate_init_std": 0.5,
}


def every_variant():
    for site, grain, source, op in itertools.product(
        variant.SITES[1:], variant.GRAINS, variant.SOURCES, variant.OPERATIONS
    ):
        if (site, grain) != ("g5", "head_shared"):
            keys = {"gate_site": site, "gate_grain": grain, "gate_source": source, "gate_op": op}
            # A norm behind it undoes the scale that such a gate gives to a head.
            yield {**keys, "qk_norm": "none"} if site in ("g3", "g4") and grain == "headwise" else keys
    for site, grain, fn in itertools.product(("g1", "g3"), ("elementwise", "head_shared"), variant.FUNCTIONS[1:]):
        for op in variant.OPERATIONS:
            yield {"gate_site": site, "gate_grain": grain, "gate_fn": fn, "gate_op": op}
    for site in variant.SITES[1:]:
        yield {"gate_site": site, "gate_bias": "bias", "gate_bias_init": 0.5}
    for site, grain, layout in itertools.product(
        ("g1", "g4"), ("headwise", "elementwise"), ("per_query_head", "per_group", "trailing")
    ):
        yield {"gate_site": site, "gate_grain": grain, "gate_layout": layout}
    for control in variant.CONTROLS:
        yield {"gate_site": "none", "attention_output_control": control}
    for sinks in variant.SINKS[1:]:
        yield {"gate_site": "none", "attention_sinks": sinks}
        yield {"gate_site": "g1", "gate_grain": "headwise", "attention_sinks": sinks}


OTHER_KEYS = [
    {"attention_window": 3},
    {"attention_qkv_bias": "learned"},
    {"qk_norm": "none"},
    {"norm_kind": "zero_centred", "attention_output_control": "none"},
    {"partial_rotary_factor": 0.25},
    {"partial_rotary_factor": 0.0},
    {"rope_scaling_type": "linear", "rope_scaling_factor": 3.0},
    {"rope_scaling_type": "llama3", "rope_scaling_factor": 8.0, "rope_original_seq_len": 64},
    {"attention_out_bias": True, "rope_scaling_type": "yarn", "rope_scaling_factor": 8.0, "rope_original_seq_len": 64},
]
VARIANTS = [*every_variant(), *({"gate_site": "g1", **keys} for keys in OTHER_KEYS)]


def text(keys):
    return "-".join(str(value) for value in keys.values())


def layer(keys):
    """Makes a layer whose vectors differ from their initial values, which would hide their misuse."""
    made = GatedAttention(**SIZES, **keys)
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.dim() == 1 or parameter is getattr(made, "gate", None):
                parameter.add_(0.3 * torch.randn_like(parameter))
    return made


def eager(made, causality="causal"):
    """Returns the same layer of modeling_headgate.py: a function of h, and the module."""
    config = modeling.HeadgateConfig(**{**SIZES, **made.keys})
    other = modeling.Attention(config, 0)
    other.load_state_dict(made.state_dict())

    def call(h):
        at = torch.arange(h.shape[1])
        angles = at[None, None, :, None].double() * modeling.rope_frequencies(config, "cpu")
        seen = at <= at[:, None] if causality == "causal" else torch.ones(len(at), len(at), dtype=torch.bool)
        if config.attention_window > 0:
            seen &= at > at[:, None] - config.attention_window
        factor = modeling.rope_attention_factor(config)
        cos, sin = (factor * angles.cos()).float(), (factor * angles.sin()).float()
        return other(h, cos, sin, seen[None, None], None)[0]

    return call, other


def assert_near(ours, expected, tolerance=2e-5):
    assert ours.shape == expected.shape
    torch.testing.assert_close(ours, expected, rtol=tolerance, atol=tolerance * expected.abs().max().item())


@pytest.mark.parametrize("keys", VARIANTS, ids=text)
def test_output_and_gradients(keys):
    made = layer(keys)
    call, other = eager(made)
    h = torch.randn(B, T, C, requires_grad=True)
    ours, expected = made(h), call(h)
    assert_near(ours, expected)
    names = [name for name, _ in made.named_parameters()]
    mine = torch.autograd.grad(ours.square().sum(), [h, *made.parameters()])
    theirs = dict(other.named_parameters())
    theirs = torch.autograd.grad(expected.square().sum(), [h, *(theirs[name] for name in names)])
    for name, a, b in zip(["h", *names], mine, theirs, strict=True):
        assert b.abs().max() > 0, name
        assert_near(a, b, 1e-4)


@pytest.mark.parametrize("name", ["headwise", "g2-elementwise-silu-add", "head_shared", "g5", "output_silu"])
def test_gradcheck(name):
    keys = {key: getattr(parse_gate(name), key) for key in variant.KEYS}
    made = layer({**keys, "attention_sinks": "learned_sinks"}).double()
    h = torch.randn(1, 4, C, dtype=torch.float64, requires_grad=True)
    torch.autograd.gradcheck(made, h)
    out, weight = made(h).square().sum(), made.k_proj.weight
    (gradient,) = torch.autograd.grad(out, weight)
    step = 1e-6 * torch.randn_like(weight)
    with torch.no_grad():
        weight.add_(step)
        ahead = made(h).square().sum()
        behind = ahead - 2 * (gradient * step).sum()
        weight.sub_(2 * step)
        assert abs(made(h).square().sum() - behind) < 1e-9 * max(1, abs(out))


@pytest.mark.parametrize("causality", ["causal", "none"])
@pytest.mark.parametrize("name", ["none", "headwise", "elementwise", "head_shared-silu", "g1-add", "g2-headwise"])
def test_statistics(name, causality):
    """Compares with statistics of the eager layer's weights, with the gate's values if one multiplies."""
    made = layer({key: getattr(parse_gate(name), key) for key in variant.KEYS})
    call, other = eager(made, causality)
    kept = []
    other.weights = lambda *arguments: kept.append(type(other).weights(other, *arguments)) or kept[-1]
    h = torch.randn(B, T, C)
    assert_near(made(h, causality=causality), call(h))
    weights = kept[0]
    found = made.statistics(h, ("first", "row_max", "entropy", "mean_first", "key_mass"), causality=causality)
    assert_near(found.first, weights[..., 0])
    assert_near(found.row_max, weights.amax(-1))
    assert_near(found.entropy, -torch.xlogy(weights, weights).sum(-1))
    counted = 1 if causality == "causal" else 0  # query 0 sees itself alone
    assert_near(found.mean_first, weights[..., counted:, 0].mean(-1))
    assert_near(found.key_mass, weights.sum(-2))
    if made.variant.gate_site == "g1" and made.variant.gate_op == "mul":
        _, z = made.queries_and_logits(h)
        gate = made.variant.values(z).mean(-1).transpose(1, 2).expand(B, HQ, T)
        passed = made.statistics(h, ("first_gated",), causality=causality).first_gated
        assert_near(passed, weights[..., 0] * gate)


def test_encoder_padded_or_packed_agrees():
    """Without a causal mask, each sequence has its own output: padded to a length, and in a packed batch."""
    made = layer({"gate_grain": "headwise"})
    h = torch.randn(B, T, C)
    alone = made(h[1:, :4], causality="none")[0]
    assert_near(made(h, key_lengths=torch.tensor([T, 4]), causality="none")[1, :4], alone)
    starts = torch.tensor([0, T, T + 4])
    packed = torch.cat((h[0], h[1, :4])).unsqueeze(0)
    assert_near(made(packed, cu_seqlens=starts, causality="none")[0, T:], alone)
    figures = made.statistics(packed, ("entropy",), cu_seqlens=starts, causality="none").entropy
    assert_near(figures[0, :, T:], made.statistics(h[1:, :4], ("entropy",), causality="none").entropy[0])
    parts = torch.nested.nested_tensor([h[0], h[1, :4]], layout=torch.jagged)
    assert_near(made(parts, causality="none").unbind()[1], alone)
    with pytest.raises(ValueError, match="statistics of a nested h"):
        made.statistics(parts)
    with pytest.raises(ValueError, match="causality"):
        made(h, causality="sideways")


CACHED = [
    {"gate_site": "g1"},
    {"gate_site": "g2", "gate_grain": "headwise"},
    {"gate_site": "g1", "attention_window": 3},
    {"gate_site": "none", "attention_sinks": "off_by_one"},
]


@pytest.mark.parametrize("keys", CACHED, ids=text)
@torch.no_grad()
def test_cache(keys):
    """Output in parts and token by token equals that of one pass, also after truncation."""
    made, cache = layer(keys), AttentionCache()
    h = torch.randn(B, 12, C)
    whole = made(h)
    parts = [made(h[:, a:b], cache=cache) for a, b in ((0, 5), (5, 8), *((n, n + 1) for n in range(8, 12)))]
    assert cache.length == 12
    assert_near(torch.cat(parts, dim=1), whole)
    cache.truncate(6)
    assert_near(made(h[:, 6:], cache=cache), whole[:, 6:])


def test_cache_refuses_gradients_and_other_batches():
    made, cache = layer({}), AttentionCache()
    with pytest.raises(ValueError, match="no gradients with a cache"):
        made(torch.randn(B, 3, C), cache=cache)
    with torch.no_grad():
        made(torch.randn(B, 3, C), cache=cache)
        with pytest.raises(ValueError, match="holds 2 sequences but the layer was given 3"):
            made(torch.randn(3, 1, C), cache=cache)
    for length in (4, -1, 2.5, True, None):
        with pytest.raises(ValueError, match=f"cannot be cut to {length} tokens, it holds 3"):
            cache.truncate(length)
    assert cache.length == 3


FAILING = {
    "causality": lambda made, x, cache: made(x, cache=cache, causality="casual"),
    "mask": lambda made, x, cache: made(x, cache=cache, mask=torch.ones(1, 1, 1, 20, dtype=torch.bool)),
    "key_lengths": lambda made, x, cache: made(x, cache=cache, key_lengths=torch.tensor([1])),
    "positions": lambda made, x, cache: made(x, cache=cache, positions=torch.zeros(1, 4)),
    "features": lambda made, x, cache: made(x[..., :3], cache=cache),
    "sequences": lambda made, x, cache: made(x[:1], cache=cache),
    "dtype": lambda made, x, cache: made.double()(x.double(), cache=cache),
}


@pytest.mark.parametrize("held", (0, 5))
@pytest.mark.parametrize("name", FAILING)
@torch.no_grad()
def test_cache_is_as_before_a_call_that_fails(name, held):
    """At each length but 0, where a cache takes any sequences and dtype, and with and without room for the token."""
    made, cache, h = layer({}), AttentionCache(), torch.randn(B, 8, C)
    whole = made(h)
    if held > 0:
        made(h[:, :held], cache=cache)
    for n in range(held, 8):
        if n > 0 or name not in ("sequences", "dtype"):
            with pytest.raises(ValueError):
                FAILING[name](made, h[:, n : n + 1], cache)
            made.float()
        assert cache.length == n
        assert_near(made(h[:, n : n + 1], cache=cache), whole[:, n : n + 1])


@torch.no_grad()
def test_cache_of_another_dtype_is_refused_by_name():
    made, cache, h = layer({}), AttentionCache(), torch.randn(B, 8, C)
    with torch.autocast("cpu", torch.bfloat16):
        made(h[:, :6], cache=cache)
        expected = made(h)[:, 6:]
    with pytest.raises(ValueError, match="^cache: holds torch.bfloat16 but the layer was given torch.float32$"):
        made(h[:, 6:7], cache=cache)
    with torch.autocast("cpu", torch.bfloat16):
        assert cache.length == 6
        assert_near(made(h[:, 6:], cache=cache), expected, 0.1)


@torch.no_grad()
def test_cache_of_another_layer_is_refused():
    cache, h = AttentionCache(), torch.randn(B, 3, C)
    GatedAttention(C, 4, 2, 6)(h, cache=cache)
    with pytest.raises(ValueError, match="^cache: holds 2 heads of 6 but the layer was given 1 of 6$"):
        GatedAttention(C, 4, 1, 6)(h, cache=cache)
    assert cache.length == 3


@torch.no_grad()
def test_cache_that_holds_nothing_takes_other_sequences():
    made, cache, h = layer({}), AttentionCache(), torch.randn(3, 4, C)
    with pytest.raises(ValueError, match="causality"):
        made(h, cache=cache, causality="casual")
    assert_near(made(h[:2], cache=cache), made(h[:2]))


@pytest.mark.parametrize("modes", itertools.product([torch.no_grad, torch.inference_mode, torch.enable_grad], repeat=4))
@pytest.mark.parametrize("kind", ["attention", "delta"])
def test_cache_continues_in_any_mode(kind, modes):
    """Passes of 2, 1 and 3 tokens fill the cache, fit into it, and exceed it. The last pass follows truncate()."""
    made = layer({}) if kind == "attention" else GatedDeltaNet(C, HKV, linear_key_head_dim=D)
    if kind == "delta":  # this cache refuses to record gradients
        modes = [torch.no_grad if mode is torch.enable_grad else mode for mode in modes]
    made.requires_grad_(False)
    cache = AttentionCache() if kind == "attention" else DeltaNetCache(keep=3)
    h, found = torch.randn(B, 6, C), []
    for mode, length in zip(modes, (2, 1, 3)):
        with mode():
            found.append(made(h[:, cache.length : cache.length + length], cache=cache))
    with modes[3]():
        cache.truncate(4)
        again = made(h[:, 4:], cache=cache)
    torch.testing.assert_close(torch.cat(found, dim=1), made(h), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(again, made(h)[:, 4:], rtol=1e-4, atol=1e-5)


def test_padding():
    """Pads at the end by lengths, and at the start by a mask and positions."""
    made = layer({"gate_grain": "headwise"})
    h = torch.randn(B, T, C)
    out = made(h, key_lengths=torch.tensor([T, 4]))
    assert_near(out[0], made(h[:1])[0])
    assert_near(out[1, :4], made(h[1:, :4])[0])
    visible = torch.ones(B, 1, 1, T, dtype=torch.bool)
    visible[1, ..., :3] = False
    positions = torch.stack((torch.arange(T), torch.arange(T) - 3))
    out = made(h, mask=visible, positions=positions)
    assert_near(out[0], made(h[:1])[0])
    assert_near(out[1, 3:], made(h[1:, 3:])[0])


@pytest.mark.parametrize("site", variant.SITES)
def test_packed_and_nested(site):
    made = layer({"gate_site": site})
    parts = [torch.randn(n, C) for n in (3, 1, 5)]
    expected = [made(part.unsqueeze(0))[0] for part in parts]
    packed = made(torch.cat(parts).unsqueeze(0), cu_seqlens=torch.tensor([0, 3, 4, 9]))
    assert_near(packed[0], torch.cat(expected))
    nested = torch.nested.nested_tensor(parts, layout=torch.jagged, requires_grad=True)
    out = made(nested)
    for ours, alone in zip(out.unbind(), expected, strict=True):
        assert_near(ours, alone)
    out.values().sum().backward()
    assert nested.grad.values().abs().max() > 0
    with pytest.raises(ValueError, match="cache cannot be given with a nested h"):
        made(nested, cache=AttentionCache())
    with pytest.raises(ValueError, match="cu_seqlens needs h of shape"):
        made(torch.randn(2, 9, C), cu_seqlens=torch.tensor([0, 9]))


def test_error_of_the_operation_names_the_layer_and_its_argument():
    made, h = layer({}), torch.randn(B, T, C)
    for call, message in (
        (lambda: made(h, mask=torch.ones(1, 1, T, T + 1).bool()), "mask has shape"),
        (lambda: made(h, causality=True), "causality: 'True' is none of none, causal"),
        (lambda: made(h[:1], cu_seqlens=torch.tensor([0, T + 1])), r"cu_seqlens\[1\] is 8 but must be T = 7"),
        (
            lambda: made(torch.randn(1, 9, C), cu_seqlens=torch.tensor([0, 4, 8])),
            r"cu_seqlens\[2\] is 8 but must be T = 9",
        ),
        (lambda: made(h[:1], cu_seqlens=torch.tensor(7)), r"cu_seqlens has shape \(\) but must be \(N\+1\)"),
        (lambda: made(h[:1], cu_seqlens=torch.zeros(0).int()), r"cu_seqlens has shape \(0\) but must be \(N\+1\)"),
        (lambda: made(h, positions=torch.arange(T + 1)), r"positions has shape \(8\) but must be \(1,7\) or \(2,7\)"),
        (lambda: made(h, positions=torch.zeros(3, T)), r"positions has shape \(3,7\) but must be"),
        *((lambda x=x: made(x), r"h is \[.*\] but must be \(B,T,24\)") for x in (h[0], h[0, 0], h[..., :5], h[None])),
        (lambda: made(h.to_sparse()), "h has the layout sparse_coo"),
        (
            lambda: made(h[:1], cu_seqlens=torch.tensor([0, T]), cache=AttentionCache()),
            "cu_seqlens cannot be given with a cache",
        ),
        (lambda: made.statistics(h[0]), r"h is \[7, 24\] but must be \(B,T,24\)"),
        (lambda: made.statistics(h, key_lengths=torch.tensor([1])), "key_lengths has"),
        (lambda: made.statistics(h, outputs=["mean"]), "outputs: 'mean' is none of"),
    ):
        with pytest.raises(ValueError, match=f"^GatedAttention: {message}"):
            call()


def test_argument_of_another_type_is_a_type_error():
    made, h = layer({}), torch.randn(1, T, C)
    for call, message in (
        (lambda: made([1.0]), "h is a list but must be a tensor"),
        (lambda: made.statistics([1.0]), "h is a list but must be a tensor"),
        (lambda: made(h, cu_seqlens=[0, T]), "cu_seqlens is a list but must be a tensor"),
        (lambda: made(h, positions=range(T)), "positions is a range but must be a tensor"),
        (lambda: made(h, mask=[[True]]), "mask is a list but must be a tensor"),
        (lambda: made(h, cache=[]), "cache is a list but must be an AttentionCache"),
    ):
        with pytest.raises(TypeError, match=f"^GatedAttention: {message}$"):
            call()


@pytest.mark.parametrize("name", ("rope_theta", "partial_rotary_factor", "rms_norm_eps"))
def test_key_requires_a_gradient_is_refused(name):
    with pytest.raises(ValueError, match=f"^GatedAttention: {name} requires a gradient but has none: detach it"):
        GatedAttention(C, 4, **{name: torch.nn.Parameter(torch.tensor(0.5))})


def test_half_precision_and_autocast():
    made = layer({"gate_fn": "silu", "attention_sinks": "learned_sinks"})
    h = torch.randn(B, T, C)
    expected = made(h)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = made(h)
    out.float().square().sum().backward()
    assert all(parameter.grad is not None for parameter in made.parameters())
    assert (out - expected).abs().max() < 0.03 * expected.abs().max()
    out = made.bfloat16()(h.bfloat16())
    assert out.dtype == torch.bfloat16 and (out - expected).abs().max() < 0.03 * expected.abs().max()


def test_default_dtype_of_16_bits_does_not_change_a_layer():
    keys = {**SIZES, "attention_sinks": "off_by_one"}
    h, made = torch.randn(B, T, C), GatedAttention(**keys)
    expected = made(h)
    torch.set_default_dtype(torch.bfloat16)
    try:
        assert torch.equal(made(h), expected)
        assert GatedAttention(**keys)(h.bfloat16()).dtype == torch.bfloat16
    finally:
        torch.set_default_dtype(torch.float32)


def test_native16():
    keys = {"hidden_size": C, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
    exact = GatedAttention(**keys).bfloat16()
    rounded = GatedAttention(**keys, precision="native16").bfloat16()
    rounded.load_state_dict(exact.state_dict())
    h = torch.randn(2, 140, C).bfloat16()
    ours, expected = rounded(h), exact(h)
    assert (ours - expected).abs().max() < 0.03 * expected.abs().max()
    assert torch.equal(ours, expected) == (headgate.native16_products() == "")
    ours.float().square().sum().backward()
    assert all(parameter.grad is not None for parameter in rounded.parameters())
    with pytest.raises(ValueError, match="precision is native16 but q is f32"):
        rounded.float()(h.float())
    with pytest.raises(ValueError, match="precision: 'half' is none of exact, native16"):
        GatedAttention(**keys, precision="half")


def test_compiles_without_graph_breaks():
    made = layer({"gate_grain": "head_shared"})
    compiled = torch.compile(made, fullgraph=True, backend="aot_eager")
    h = torch.randn(B, T, C)
    assert_near(compiled(h), made(h))


def decoder_log_probs(config, tensors, tokens):
    """Computes a decoder of GatedAttention layers by formulas; norms come before them and, sandwiched, after."""

    def norm(name, x):
        weight = tensors[name + ".weight"] + (1.0 if config.get("norm_kind") == "zero_centred" else 0.0)
        return x / torch.sqrt(x.square().mean(-1, keepdim=True) + config["rms_norm_eps"]) * weight

    sandwich = config.get("norm_placement") == "sandwich"
    x = tensors["model.embed_tokens.weight"][tokens]
    for n in range(config["num_hidden_layers"]):
        at = f"model.layers.{n}."
        attention = GatedAttention.from_config(config)
        own = at + "self_attn."
        attention.load_state_dict({key[len(own) :]: t for key, t in tensors.items() if key.startswith(own)})
        y = attention(norm(at + "input_layernorm", x))
        x = x + (norm(at + "attention_output_layernorm", y) if sandwich else y)
        h = norm(at + "post_attention_layernorm", x)
        gate, up, down = (tensors[f"{at}mlp.{name}_proj.weight"] for name in ("gate", "up", "down"))
        y = (F.silu(h @ gate.T) * (h @ up.T)) @ down.T
        x = x + (norm(at + "mlp_output_layernorm", y) if sandwich else y)
    head = tensors["model.embed_tokens.weight" if config["tie_word_embeddings"] else "lm_head.weight"]
    return torch.log_softmax((norm("model.norm", x) @ head.T).double(), dim=-1)


BUILD = Path(headgate.__file__).parents[2]
SAMPLE = BUILD / "tests" / "models" / "train" / "model_sample"
needs_sample = pytest.mark.skipif(
    not SAMPLE.exists() and os.environ.get("CI") != "true", reason=f"{SAMPLE} is not built, and this is not CI"
)


@needs_sample
@torch.no_grad()
def test_module_loads_models_of_the_program(tmp_path):
    """Loads some models of each kind that headgate's programs write, and compares their log-probabilities."""
    from safetensors.torch import load_file

    names = subprocess.run([SAMPLE, "names"], check=True, capture_output=True, text=True).stdout.split()
    names = [name for name in names if not name.startswith("layers_")]
    assert len(names) > 40
    for name in names[::3]:
        folder = tmp_path / name
        subprocess.run([SAMPLE, "write", folder, name], check=True)
        config = json.loads((folder / "model" / "config.json").read_text())
        tokens = torch.from_numpy(numpy.load(folder / "tokens.npy")).long()
        expected = torch.from_numpy(numpy.load(folder / "log_probs.npy")).double()
        ours = decoder_log_probs(config, load_file(folder / "model" / "model.safetensors"), tokens)
        assert (ours - expected).abs().max() < 1e-4, name


def test_config():
    """Covers Qwen3's config too, whose layer it then is."""
    model = models.model("qwen3", rope_parameters={"rope_type": "default", "rope_theta": 300.0})
    theirs = model.model.layers[0].self_attn
    ours = GatedAttention.from_config(model.config.to_dict())
    assert ours.variant.name == "none" and ours.keys["rope_theta"] == 300.0
    ours.load_state_dict(theirs.state_dict())
    h = torch.randn(1, 6, 32)
    causal = torch.full((1, 1, 6, 6), torch.finfo(torch.float32).min).triu(1)
    angles = model.model.rotary_emb(h, torch.arange(6).unsqueeze(0))
    assert_near(ours(h), theirs(h, position_embeddings=angles, attention_mask=causal)[0])
    with pytest.raises(ValueError, match="rope_type 'yarn' is not known"):
        GatedAttention.from_config({**SIZES, "rope_parameters": {"rope_type": "yarn"}})


def test_initial_values():
    torch.manual_seed(1)
    made = GatedAttention(64, 8, 4, 16, gate_layout="per_group", gate_init_std=0.001)
    q, gate = made.q_proj.weight.unflatten(0, (4, -1)).split((32, 32), dim=1)
    assert 0.018 < q.std() < 0.022 and 0.0009 < gate.std() < 0.0011
    made = GatedAttention(64, 8, gate_bias="bias", gate_bias_init=2.0, attention_sinks="learned_sinks")
    assert torch.equal(made.gate_proj.bias, torch.full((64,), 2.0)) and torch.equal(made.sinks, torch.zeros(8))
    assert math.isclose(made.o_proj.weight.std().item(), 0.02, rel_tol=0.1)


@pytest.mark.parametrize("rope", ("none", "linear", "llama3", "yarn"))
def test_module_on_the_meta_device_takes_no_memory(rope):
    keys = {**SIZES, "attention_sinks": "off_by_one", "rope_scaling_type": rope, "rope_scaling_factor": 4.0}
    with torch.device("meta"):
        made = GatedAttention(**keys)
        assert made(torch.empty(B, T, C)).shape == (B, T, C)
    layers = [made.to_empty(device="cpu"), GatedAttention(**keys)]
    for one in layers:
        torch.manual_seed(0)
        one.reset_parameters()
    h = torch.randn(B, T, C)
    assert torch.equal(*(one(h) for one in layers))


def test_arguments_bad_are_refused():
    for keys, message in (
        ({"num_key_value_heads": 3}, "num_attention_heads: 4 is not a multiple of num_key_value_heads, 3"),
        ({"hidden_size": 0}, "hidden_size: is 0 but must be finite and at least 1"),
        (
            {"hidden_size": 33, "num_key_value_heads": 4, "head_dim": None},
            "hidden_size: 33 is not a multiple of num_attention_heads, 4: give head_dim",
        ),
        ({"head_dim": 0}, "head_dim: is 0 but must be finite and at least 1"),
        ({"gate_site": "g6"}, "gate_site: 'g6' is none of none, g1"),
        ({"gate_fn": "tanh"}, "gate_fn: 'tanh' is none of sigmoid"),
        ({"gate_layout": "blocked"}, "gate_layout: 'blocked' is none of separate"),
        ({"gate_layout": "trailing", "gate_site": "g2"}, "gate_layout: trailing is for gates of g1 and g4"),
        ({"gate_site": "g5", "gate_grain": "head_shared"}, "has no heads to share a gate"),
        ({"attention_output_control": "output_silu"}, "output_silu is a control for a layer without a gate"),
        ({"gate_site": "none", "gate_bias": "bias"}, "a bias needs a gate"),
        ({"gate_source": "parameter", "gate_bias": "bias"}, "an input-independent gate is a bias already"),
        ({"rms_norm_eps": -1.0}, "rms_norm_eps: is -1.0 but must be finite and at least 0"),
        ({"rms_norm_eps": "1"}, "rms_norm_eps: is '1' but must be finite and at least 0"),
        ({"rope_theta": 0.0}, "rope_theta: is 0.0 but must be finite and above 0"),
        ({"rope_theta": -5.0}, "rope_theta: is -5.0 but must be finite and above 0"),
        ({"rope_theta": 10**400}, "rope_theta: is 10+… but must be finite and above 0"),
        ({"rope_theta": math.nan}, "rope_theta: is nan but must be finite and above 0"),
        ({"rope_theta": 1.0, "rope_scaling_type": "yarn"}, "rope_theta: is 1.0 but must be above 1 with yarn"),
        ({"rope_scaling_type": "linear", "rope_scaling_factor": 0.0}, "rope_scaling_factor: is 0.0 but must be"),
        ({"attention_window": -1}, "attention_window: is -1 but must be finite and at least 0"),
        ({"partial_rotary_factor": 1.5}, r"partial_rotary_factor: is 1.5 but must be in \[0, 1\]"),
    ):
        with pytest.raises(ValueError, match=message) as error:
            GatedAttention(**{**SIZES, **keys})
        assert "\n" not in str(error.value)


def test_layer_whose_projections_are_quantized_computes():
    for sinks in variant.SINKS:
        made, h = layer({"attention_sinks": sinks}), torch.randn(B, T, C)
        quantized = torch.ao.quantization.quantize_dynamic(made, {torch.nn.Linear})
        assert type(quantized.o_proj) is not type(made.o_proj)
        error = (quantized(h) - made(h)).norm() / made(h).norm()
        assert error < 0.1, error


@pytest.mark.parametrize("gate", [{"gate_site": "none"}, {"gate_fn": "sigmoid2", "gate_init_std": 0.0}])
@pytest.mark.parametrize("causal", [False, True])
def test_layer_without_rope_and_norms_is_pytorchs_layer(gate, causal):
    """With a gate of one and without a gate: outputs, and gradients of the input and of all parameters."""
    theirs = torch.nn.MultiheadAttention(C, HQ, batch_first=True)
    torch.nn.init.normal_(theirs.in_proj_bias)
    torch.nn.init.normal_(theirs.out_proj.bias)
    bias = {"attention_qkv_bias": "learned", "attention_out_bias": True}
    ours = GatedAttention(C, HQ, qk_norm="none", partial_rotary_factor=0.0, **bias, **gate)
    weights = {"o_proj.weight": theirs.out_proj.weight, "o_proj.bias": theirs.out_proj.bias}
    for part in ("weight", "bias"):
        rows = getattr(theirs, f"in_proj_{part}").chunk(3)
        weights |= {f"{name}_proj.{part}": x for name, x in zip("qkv", rows)}
    missing, unexpected = ours.load_state_dict(weights, strict=False)
    assert missing == ([] if gate == {"gate_site": "none"} else ["gate_proj.weight"]) and not unexpected
    h, dy = torch.randn(B, T, C), torch.randn(B, T, C)
    hidden = torch.ones(T, T, dtype=torch.bool).triu(1) if causal else None
    results = []
    for compute in (
        lambda x: ours(x, causality="causal" if causal else "none"),
        lambda x: theirs(x, x, x, attn_mask=hidden, is_causal=causal, need_weights=False)[0],
    ):
        x = h.clone().requires_grad_()
        y = compute(x)
        y.backward(dy)
        results.append((y.detach(), x.grad))
    for found, expected in zip(*results):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    for part in ("weight", "bias"):
        found = torch.cat([getattr(getattr(ours, f"{name}_proj"), part).grad for name in "qkv"])
        torch.testing.assert_close(found, getattr(theirs, f"in_proj_{part}").grad, rtol=1e-5, atol=1e-5)


def test_default_layer_is_not_pytorchs():
    """The documents say so: the first token of two is independent of the second, positions and norms matter."""
    torch.manual_seed(0)
    layer, h = GatedAttention(C, HQ, gate_site="none"), torch.randn(1, 2, C)
    other = torch.cat((h[:, :1], torch.randn(1, 1, C)), dim=1)
    assert torch.equal(layer(h)[:, 0], layer(other)[:, 0])
    assert not torch.equal(layer(h, causality="none")[:, 0], layer(other, causality="none")[:, 0])


def test_names():
    """parse_gate reads what GateVariant.name writes, for every variant, and short names."""
    for keys in every_variant():
        made = GateVariant(**{key: value for key, value in keys.items() if key in variant.KEYS})
        assert parse_gate(made.name) == made
    assert parse_gate("headwise") == GateVariant("g1", "headwise")
    assert parse_gate("mul-silu-g2").name == "g2-elementwise-silu-mul"
    assert parse_gate("head-shared").name == "g1-head_shared-sigmoid-mul"
    assert parse_gate("none") == GateVariant()
    for name in ("", "g1-g2", "g1-tanh", "output_silu-headwise"):
        with pytest.raises(ValueError):
            parse_gate(name)


def test_words_of_gates_are_those_of_the_program():
    """The lists of variant.py agree with the C++ headers."""

    def words(file, begin, end):
        return re.findall(r'"(\w+)"', (ROOT / "src" / file).read_text().partition(begin)[2].partition(end)[0])

    lists = {
        key: words("models/layers/gate_variant.hpp", f"struct Words<layers::{name}>", "};\n}")
        for key, name in (
            ("gate_grain", "GateGrain"),
            ("gate_source", "GateSource"),
            ("gate_bias", "GateBias"),
            ("attention_output_control", "OutputControl"),
            ("attention_sinks", "SinkKind"),
        )
    }
    for key, theirs in lists.items():
        assert set(theirs) == set(variant.WORDS[key]), key
    sites = words("models/layers/gate_site.hpp", "constexpr std::array kGateSites{", "};")
    assert set(sites) >= set(variant.SITES) - {"none"} and "g6" not in sites


def test_gate_is_applied_in_the_kernel():
    """The layer of g1 is the operation on views of the projections."""
    made = layer({"qk_norm": "none", "partial_rotary_factor": 0.0, "gate_layout": "per_query_head"})
    h = torch.randn(B, T, C)
    q, z = made.q_proj(h).unflatten(-1, (HQ, 2 * D)).split((D, D), dim=-1)
    k, v = (p(h).unflatten(-1, (HKV, D)) for p in (made.k_proj, made.v_proj))
    y = gated_attention(q, k, v, z, causality="causal", layout="bthd")
    assert torch.equal(made(h), made.o_proj(y.flatten(-2)))


def definitions(path):
    """Functions, classes and tables of a file, as they read."""
    text = path.read_text()
    found = {}
    for node in ast.parse(text).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found[node.name] = ast.get_source_segment(text, node)
        elif isinstance(node, ast.Assign):
            found[node.targets[0].id] = ast.get_source_segment(text, node)
    return found


@needs_sample
def test_code_beside_a_checkpoint_is_the_layer_and_the_decoder(tmp_path):
    """Word by word, and it imports nothing of headgate."""
    name = next(
        n for n in subprocess.run([SAMPLE, "names"], capture_output=True, text=True).stdout.split() if "g1" in n
    )
    subprocess.run([SAMPLE, "write", tmp_path, name], check=True)
    written = tmp_path / "model" / "modeling_headgate.py"
    layer = definitions(ROOT / "python" / "headgate" / "torch" / "layer.py")
    decoder = definitions(ROOT / "python" / "transformers" / "modeling_headgate.py")
    assert {"GATE_FUNCTIONS", "GatedLayer", "apply_rope"} <= set(layer) and {"Attention", "DEFAULTS"} <= set(decoder)
    assert not set(layer) & set(decoder)
    assert definitions(written) == layer | decoder
    assert "import headgate" not in written.read_text() and "from headgate" not in written.read_text()
