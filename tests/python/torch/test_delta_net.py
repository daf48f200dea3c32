# SPDX-License-Identifier: Apache-2.0
"""GatedDeltaNet against the modules of transformers whose weights it loads."""

import copy
import math
import random
import re
from itertools import permutations

import pytest
import torch
import transformers
from transformers.cache_utils import DynamicCache
from transformers.models.kimi_linear.modeling_kimi_linear import KimiLinearDeltaAttention
from transformers.models.olmo_hybrid.modeling_olmo_hybrid import OlmoHybridGatedDeltaNet
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5GatedDeltaNet
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextGatedDeltaNet

from headgate.torch import DeltaNetCache, GatedDeltaNet

C, HK, HV, D, DV, B, T = 24, 2, 4, 8, 6, 2, 70
COMMON = {
    "hidden_size": C,
    "num_attention_heads": HV,
    "num_hidden_layers": 2,
    "layer_types": ["linear_attention", "full_attention"],
}
SIZES = {
    "linear_num_key_heads": HK,
    "linear_num_value_heads": HV,
    "linear_key_head_dim": D,
    "linear_value_head_dim": DV,
}
KIMI = {"linear_num_heads": HV, "linear_head_dim": D}
MODELS = {
    "qwen3_5": (Qwen3_5GatedDeltaNet, transformers.Qwen3_5TextConfig(**COMMON, **SIZES)),
    "qwen3_next": (Qwen3NextGatedDeltaNet, transformers.Qwen3NextConfig(**COMMON, **SIZES)),
    "olmo_hybrid": (OlmoHybridGatedDeltaNet, transformers.OlmoHybridConfig(**COMMON, **SIZES)),
    "kimi_linear": (KimiLinearDeltaAttention, transformers.KimiLinearConfig(**COMMON, **KIMI)),
}
LAYOUTS = list(MODELS)


def pair(name):
    """A module of transformers with random parameters, and ours, which loaded them."""
    kind, config = MODELS[name]
    theirs = kind(config, 0)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.normal_(std=0.4)
    ours = GatedDeltaNet.from_config(config)
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


@pytest.mark.parametrize("name", LAYOUTS)
def test_layer_output_and_gradients_are_those_of_transformers(name):
    theirs, ours = pair(name)
    h = torch.randn(B, T, C, requires_grad=True)
    y, expected = ours(h), theirs(h)
    torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-5)
    dy = torch.randn_like(y)
    named = dict(theirs.named_parameters())
    own = {key.removeprefix("forget_gate."): parameter for key, parameter in named.items()}
    assert set(own) == {key for key, _ in ours.named_parameters()}
    found = torch.autograd.grad(y, [h, *(p for _, p in ours.named_parameters())], dy)
    right = torch.autograd.grad(expected, [h, *(own[key] for key, _ in ours.named_parameters())], dy)
    for key, gradient, theirs_ in zip(["h", *(key for key, _ in ours.named_parameters())], found, right):
        scale = theirs_.abs().max().item()
        torch.testing.assert_close(
            gradient, theirs_, rtol=1e-3, atol=1e-4 * scale, msg=lambda text, key=key: f"{key}: {text}"
        )


@pytest.mark.parametrize("name", LAYOUTS)
def test_cache_token_by_token_is_the_whole_and_that_of_transformers(name):
    theirs, ours = pair(name)
    h = torch.randn(B, 12, C)
    with torch.no_grad():
        whole, cache = ours(h), DeltaNetCache()
        parts = [ours(h[:, :7], cache=cache)] + [ours(h[:, t : t + 1], cache=cache) for t in range(7, 12)]
        their_cache = {"cache_params": DynamicCache(config=MODELS[name][1])}
        their_parts = [theirs(h[:, :7], **their_cache)]
        their_parts += [theirs(h[:, t : t + 1], **their_cache) for t in range(7, 12)]
    assert cache.length == 12
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(torch.cat(their_parts, dim=1), whole, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", LAYOUTS)
def test_packed_batch_is_its_sequences(name):
    _, ours = pair(name)
    h, bounds = torch.randn(1, 20, C), [0, 3, 3, 20]
    with torch.no_grad():
        packed = ours(h, cu_seqlens=torch.tensor(bounds))
        parts = [ours(h[:, a:b]) for a, b in zip(bounds, bounds[1:]) if b > a]
    torch.testing.assert_close(packed, torch.cat(parts, dim=1), rtol=1e-5, atol=1e-6)


def test_mask_padding_before_the_tokens_changes_nothing():
    theirs, ours = pair("qwen3_5")
    h = torch.randn(1, 9, C)
    padded = torch.cat((torch.randn(1, 4, C), h), dim=1)
    mask = torch.arange(13)[None] >= 4
    with torch.no_grad():
        torch.testing.assert_close(ours(padded, mask=mask)[:, 4:], ours(h), rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(
            ours(padded, mask=mask), theirs(padded, attention_mask=mask.float()), rtol=1e-4, atol=1e-5
        )


@pytest.mark.parametrize("name", ["olmo_hybrid", "kimi_linear"])
def test_state_dict_of_files_loads(name):
    """Files hold the convolution in three parts, and Kimi's have no module for the decay."""
    theirs, ours = pair(name)
    of_file = {key.replace("forget_gate.", ""): tensor for key, tensor in theirs.state_dict().items()}
    q, k, v = of_file.pop("conv1d.weight").split(ours.widths)
    of_file |= {"q_conv1d.weight": q, "k_conv1d.weight": k, "v_conv1d.weight": v}
    loaded = GatedDeltaNet.from_config(MODELS[name][1])
    loaded.load_state_dict(of_file)
    h = torch.randn(B, 5, C)
    assert torch.equal(loaded(h), ours(h))


def parts_of(layer):
    """Returns a state dict of the layer with the convolution in three parts."""
    state = layer.state_dict()
    parts = state.pop("conv1d.weight").split(layer.widths)
    return state | {f"{letter}_conv1d.weight": part for letter, part in zip("qkv", parts)}


@pytest.mark.parametrize("name", LAYOUTS)
def test_state_dict_with_two_names_of_a_tensor_is_refused(name):
    _, ours = pair(name)
    both = {letter: ours.state_dict() | parts_of(ours) for letter in "qkv"}
    for letter, state in both.items():  # each part beside the whole, then all of them
        for other in set("qkv") - {letter}:
            del state[f"{other}_conv1d.weight"]
    aliases = [(state, f"{letter}_conv1d.weight") for letter, state in both.items()]
    aliases.append((ours.state_dict() | parts_of(ours), "v_conv1d.weight"))
    inner = ours._layout.inner_module
    if inner:
        aliases += [(ours.state_dict() | {inner + key: x}, inner + key) for key, x in ours.state_dict().items()]
    for state, unexpected in aliases:
        for layer, prefix in ((ours, ""), (torch.nn.Sequential(ours), "0.")):
            given = {prefix + key: x for key, x in state.items()}
            with pytest.raises(RuntimeError, match=f'Unexpected key.*"{re.escape(prefix + unexpected)}"'):
                layer.load_state_dict(given)


@pytest.mark.parametrize("strict", [True, False])
def test_parts_of_a_convolution_must_have_their_own_sizes(strict):
    layer = GatedDeltaNet(12, 2, linear_key_head_dim=4, linear_value_head_dim=6)
    right = parts_of(layer)
    names = [f"{letter}_conv1d.weight" for letter in "qkv"]
    assert not layer.load_state_dict(dict(right), strict).missing_keys
    wrong = [dict(right, **dict(zip(names, (right[each] for each in order)))) for order in permutations(names)]
    wrong += [right | {name: torch.zeros(shape)} for name in names for shape in ((8, 1, 3), (8, 4), (), (0, 1, 4))]
    for state in wrong:
        odd = [name for name in names if state[name].shape != right[name].shape]
        if odd:
            with pytest.raises(RuntimeError, match=f"size mismatch for {odd[0]}: it has shape"):
                layer.load_state_dict(state, strict)
        else:
            layer.load_state_dict(state, strict)


@pytest.mark.parametrize("name", LAYOUTS)
def test_layer_bfloat16_is_near_float32(name):
    _, ours = pair(name)
    low = copy.deepcopy(ours).bfloat16()
    h = torch.randn(B, T, C).bfloat16()
    expected = copy.deepcopy(low).float()(h.float())
    found = low(h)
    assert found.dtype == torch.bfloat16
    error = (found.float() - expected).norm() / expected.norm()
    assert error < 0.02, error


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("rate", [0.05, 1.0, 20.0, 50.0])
def test_gradients_of_decay_parameters_are_accurate_at_any_decay(name, rate):
    """A_log and dt_bias collect products of decays with gradients that vanish behind strong decays."""
    _, ours = pair(name)
    torch.nn.init.constant_(ours.A_log, math.log(rate))
    h, dy = torch.randn(B, 200, C), torch.randn(B, 200, C)
    wide = copy.deepcopy(ours).double()
    ours(h).backward(dy)
    wide(h.double()).backward(dy.double())
    for parameter in ("A_log", "dt_bias"):
        found, expected = getattr(ours, parameter).grad, getattr(wide, parameter).grad
        error = (found - expected).norm() / expected.norm()
        assert error < 3e-5, (parameter, error)


def test_statistics_are_those_of_the_rule():
    """Of a layer whose heads forget at once, a query reads its own token and no other."""
    layer = GatedDeltaNet(C, HK, HV, D, DV)
    h = torch.randn(B, 9, C, requires_grad=True)
    found = layer.statistics(h, ["mean_reach", "mean_decay", "half_life"])
    assert found.mean_reach.shape == (B, HV) and (found.mean_reach > 0).all() and (found.half_life > 0).all()
    torch.nn.init.constant_(layer.dt_bias, 1e4)
    torch.nn.init.zeros_(layer.A_log)
    found = layer.statistics(h, ["mean_reach", "mean_decay"])
    assert found.mean_reach.abs().max() == 0 and found.mean_decay.max() == 0
    packed = layer.statistics(h[:1], ["mean_decay"], cu_seqlens=torch.tensor([0, 4, 9]))
    assert packed.mean_decay.shape == (2, HV)


def test_from_config_files_of_models():
    """The keys as released config.json files have them."""
    qwen = {"model_type": "qwen3_5_moe", "text_config": {"model_type": "qwen3_5_moe_text", "hidden_size": C, **SIZES}}
    assert GatedDeltaNet.from_config(qwen).keys["weight_layout"] == "qwen3_5"
    kimi = {"model_type": "kimi_linear", "hidden_size": C, "rms_norm_eps": 1e-5}
    kimi["linear_attn_config"] = {"num_heads": 3, "head_dim": 8, "short_conv_kernel_size": 3}
    layer = GatedDeltaNet.from_config(kimi)
    assert (layer.Hk, layer.Hv, layer.D, layer.Dv, layer.conv1d.kernel_size[0]) == (3, 3, 8, 8, 3)
    assert layer.o_norm.eps == 1e-5 and layer.o_norm.gate_fn == "sigmoid"
    olmo = GatedDeltaNet.from_config({"model_type": "olmo_hybrid", "hidden_size": 32, "num_attention_heads": 2})
    assert (olmo.Hk, olmo.D, olmo.Dv, olmo.o_norm.eps) == (2, 12, 24, 1e-5) and olmo.keys["linear_allow_neg_eigval"]


def test_compiled_layer_equals_the_eager_one():
    _, ours = pair("qwen3_next")
    h = torch.randn(1, 9, C)
    compiled = torch.compile(ours, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(h), ours(h))


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"weight_layout": "mamba"}, "weight_layout: 'mamba' is none of"),
        ({"linear_num_value_heads": 3}, "linear_num_value_heads: 3 is not a multiple of linear_num_key_heads, 2"),
        ({"linear_key_head_dim": 257}, "linear_key_head_dim: is 257 but must be from 1 to 256"),
        ({"rms_norm_eps": -1.0}, "rms_norm_eps: is -1.0 but must be finite and at least 0"),
        ({"linear_conv_kernel_dim": 1}, "linear_conv_kernel_dim: is 1 but must be from 2 to 8"),
    ],
)
def test_wrong_sizes_are_refused(keys, words):
    with pytest.raises(ValueError, match=words):
        GatedDeltaNet(**{"hidden_size": C, "linear_num_key_heads": HK, **keys})


def test_wrong_calls_are_refused():
    layer = GatedDeltaNet(C, HK, HV, D)
    h = torch.randn(B, 3, C)
    for call, message in (
        (lambda: layer(h[..., 0]), r"h is \[2, 3\] but must be \(B,T,24\)"),
        (lambda: layer(h, mask=torch.ones(2, 4)), r"mask is \[2, 4\] but must be \[2, 3\]"),
        (lambda: layer(torch.nested.nested_tensor([h[0], h[1]], layout=torch.jagged)), "h is a nested tensor"),
        (lambda: layer(h.to_sparse()), "h has the layout sparse_coo"),
        (
            lambda: layer(h, cu_seqlens=torch.tensor([0, 3])),
            r"cu_seqlens needs h of shape \(1,T,C\) but h is \[2, 3, 24\]",
        ),
        (lambda: layer(h[:1], cu_seqlens=torch.tensor(3)), r"cu_seqlens has shape \(\) but must be \(N\+1\)"),
        (lambda: layer.statistics(h, ["foo"]), "outputs: 'foo' is none of"),
    ):
        with pytest.raises(ValueError, match=f"^GatedDeltaNet: {message}"):
            call()
    for call, message in (
        (lambda: layer([1.0]), "h is a list but must be a tensor"),
        (lambda: layer(h, mask=[1]), "mask is a list but must be a tensor"),
        (lambda: layer(h[:1], cu_seqlens=[0, 3]), "cu_seqlens is a list but must be a tensor"),
        (lambda: layer(h, cache={}), "cache is a dict but must be a DeltaNetCache"),
    ):
        with pytest.raises(TypeError, match=f"^GatedDeltaNet: {message}$"):
            call()
    with pytest.raises(ValueError, match="no gradients with a cache"):
        layer(h, cache=DeltaNetCache())
    cache = DeltaNetCache()
    with torch.no_grad():
        layer(h, cache=cache)
        with pytest.raises(ValueError, match="cache: holds 2 sequences but the layer was given 1"):
            layer(h[:1], cache=cache)
        kept, cache.state = cache.convolution, torch.zeros(B, 1, 1, 1)  # a state of another layer
        with pytest.raises(ValueError, match="state has shape"):
            layer(h, cache=cache)
        assert cache.convolution is kept and cache.length == 3
    with pytest.raises(ValueError, match="the config has no linear_num_key_heads"):
        GatedDeltaNet.from_config({"model_type": "qwen3_next", "hidden_size": 8})
    with pytest.raises(ValueError, match="weight_layout: 'llama' is none of"):
        GatedDeltaNet.from_config({"model_type": "llama", "hidden_size": 8, "linear_num_key_heads": 2})


@torch.no_grad()
def test_cache_is_as_before_a_call_that_fails():
    """Also where it fails behind the rule, whose state the call has computed by then."""
    layer, cache = GatedDeltaNet(C, HK, HV, D, DV), DeltaNetCache()
    h = torch.randn(B, 6, C)
    whole = layer(h)
    layer(h[:, :4], cache=cache)
    state, convolution = cache.state, cache.convolution
    for name in ("norm", "out_proj"):
        part, weight = getattr(layer, name), getattr(layer, name).weight
        part.weight = torch.nn.Parameter(weight[..., :3])
        with pytest.raises((ValueError, RuntimeError)):
            layer(h[:, 4:5], cache=cache)
        part.weight = weight
        assert cache.state is state and cache.convolution is convolution and cache.length == 4
    torch.testing.assert_close(layer(h[:, 4:], cache=cache), whole[:, 4:])


def test_weight_on_another_device_is_refused():
    layer = GatedDeltaNet(C, HK, HV, D, DV)
    layer.load_state_dict({"norm.weight": torch.empty(DV, device="meta")}, strict=False, assign=True)
    with pytest.raises(ValueError, match="^GatedDeltaNet: weight lies on meta but x on cpu"):
        layer(torch.randn(B, 3, C))


@pytest.mark.parametrize("padding", [torch.nan, torch.inf])
def test_padding_of_any_values_changes_nothing(padding):
    layer = GatedDeltaNet(C, HK, HV, D, DV)
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
    h = torch.randn(B, 5, C)
    found = []
    for value in (0.0, padding):
        leaf = h.masked_fill(mask.unsqueeze(-1) == 0, value).requires_grad_()
        for given in (mask, mask.bool(), mask.float()):
            y = layer(leaf, mask=given)
            found.append([y, *torch.autograd.grad(y.square().sum(), [leaf, *layer.parameters()])])
    for other in found[1:]:
        for ours, expected in zip(other, found[0], strict=True):
            assert torch.equal(ours, expected)
    assert not found[0][1][0, :2].any()


@torch.no_grad()
@pytest.mark.parametrize("name", LAYOUTS)
def test_cache_truncated_is_that_of_the_remaining_tokens(name):
    _, layer = pair(name)
    h, other = torch.randn(B, 12, C), torch.randn(B, 12, C)
    for pieces, length in (
        ((5, 4), 6),
        ((5, 4), 4),
        ((7, 1, 1, 1, 1), 7),
        ((7, 1, 1, 1), 9),
        ((3, 2, 4), 2),
        ((4,), 0),
    ):
        cache, expected = DeltaNetCache(keep=7), DeltaNetCache(keep=7)
        for each, differs in ((cache, h), (expected, torch.cat((h[:, :length], other[:, length:]), dim=1))):
            for T in pieces:
                layer(differs[:, each.length : each.length + T], cache=each)
            each.truncate(length)
            assert each.length == length
        for _ in range(2):
            assert torch.equal(layer(h[:, 11:], cache=cache), layer(h[:, 11:], cache=expected))
        cache.truncate(length)
        rest = layer(h[:, length:], cache=cache)
        torch.testing.assert_close(rest, layer(h)[:, length:], rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_cache_truncated_too_far_is_as_before():
    layer, h = GatedDeltaNet(C, HK, HV, D, DV), torch.randn(B, 9, C)
    for keep, least in ((0, 9), (2, 7), (3, 3)):  # a pass is kept whole
        cache = DeltaNetCache(keep)
        for piece in h.split((3, 4, 1, 1), dim=1):
            layer(piece, cache=cache)
        state = cache.state
        for length in (least - 1, 10, -1, 8.5):
            with pytest.raises(ValueError, match=f"cannot be cut to {length} tokens, it holds 9 and keeps the last"):
                cache.truncate(length)
        assert cache.length == 9 and cache.state is state
        cache.truncate(least)
    packed = DeltaNetCache(keep=4)
    layer(h[:1], cache=packed, cu_seqlens=torch.tensor([0, 4, 9]))
    with pytest.raises(ValueError, match="keeps the last 0 for that"):
        packed.truncate(8)
    for keep in (-1, 1.5, True):
        with pytest.raises(ValueError, match=f"DeltaNetCache: keep is {keep} but must be a whole number, at least 0"):
            DeltaNetCache(keep)


@torch.no_grad()
@pytest.mark.parametrize("keep", [1, 2, 3, 5])
def test_cache_drops_what_its_documentation_says_in_any_order(keep):
    """Each dropped token makes the next call drop one less, and each token that is read one more, up to `keep`."""
    layer, h, draw = GatedDeltaNet(C, HK, HV, D, DV), torch.randn(1, 400, C), random.Random(keep)
    cache, droppable = DeltaNetCache(keep), 0
    for _ in range(80):
        count = draw.choice((1, 1, 2, 4))
        layer(h[:, cache.length : cache.length + count], cache=cache)
        droppable = min(keep, droppable + count)
        if draw.random() < 0.5:
            dropped = draw.randint(0, droppable)
            cache.truncate(cache.length - dropped)
            droppable -= dropped
    expected, length = layer(h[:, : cache.length + 1])[:, -1:], cache.length
    torch.testing.assert_close(layer(h[:, length : length + 1], cache=cache), expected, rtol=1e-4, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("one_by_one", [False, True])
def test_cache_of_n_tokens_serves_n_draft_tokens_a_step(one_by_one):
    layer, h, draw = GatedDeltaNet(C, HK, HV, D, DV), torch.randn(1, 300, C), random.Random(0)
    for drafts in (1, 2, 5):
        cache = DeltaNetCache(keep=drafts)
        for _ in range(30):
            piece = h[:, cache.length : cache.length + drafts + 1]
            for part in piece.split(1, dim=1) if one_by_one else [piece]:
                layer(part, cache=cache)
            cache.truncate(cache.length - draw.randint(0, drafts))
