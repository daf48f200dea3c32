# SPDX-License-Identifier: Apache-2.0
"""attn_implementation="headgate" against transformers' own attention, on small random models."""

import models
import pytest
import torch
import transformers
from transformers import StaticCache

import headgate.torch.transformers

headgate.torch.transformers.register()
TOLERANCE = 2e-5


@pytest.fixture(params=models.FAMILIES)
def pair(request):
    """The same model with eager attention and with headgate's."""
    return models.model(request.param), models.model(request.param, "headgate")


def assert_near(ours, expected):
    torch.testing.assert_close(ours, expected, rtol=TOLERANCE, atol=TOLERANCE * expected.abs().max().item())


def calls_of_headgate(monkeypatch):
    """The list that every later call of the attention is added to."""
    calls = []
    inner = headgate.torch.transformers.gated_attention
    monkeypatch.setattr(
        headgate.torch.transformers, "gated_attention", lambda *a, **k: calls.append(k) or inner(*a, **k)
    )
    return calls


def test_logits_and_gradients(pair, monkeypatch):
    calls = calls_of_headgate(monkeypatch)
    ids = models.tokens(2, 13)
    found = []
    for model in pair:
        logits = model(ids).logits
        logits.square().mean().backward()
        found.append((logits, {name: p.grad for name, p in model.named_parameters() if p.grad is not None}))
    (expected, theirs), (logits, ours) = found
    assert_near(logits, expected)
    assert ours.keys() == theirs.keys() and any("q_proj" in name for name in ours)
    for name, gradient in theirs.items():
        assert_near(ours[name], gradient)
    types = getattr(pair[1].config, "layer_types", None) or ["full_attention"] * 2
    assert len(calls) == sum(kind != "linear_attention" for kind in types)


def test_padding_on_the_left(pair):
    """Each sequence gets what it gets in eager attention, at all of its tokens."""
    ids = models.tokens(3, 12)
    lengths = torch.tensor([12, 7, 1])
    mask = (torch.arange(12) >= 12 - lengths[:, None]).long()
    found = []
    for model in pair:
        logits = model(ids, attention_mask=mask).logits[mask.bool()]
        logits.square().mean().backward()
        found.append((logits, [p.grad for p in model.parameters() if p.grad is not None]))
    (expected, theirs), (logits, ours) = found
    assert_near(logits, expected)
    for mine, other in zip(ours, theirs, strict=True):
        assert_near(mine, other)


def test_generation_with_a_cache(pair):
    """The same tokens as eager attention, with a cache and without, behind padding too."""
    ids = models.tokens(2, 7)
    mask = torch.ones_like(ids)
    mask[1, :3] = 0
    options = {"attention_mask": mask, "max_new_tokens": 9, "do_sample": False, "pad_token_id": 0}
    eager, ours = (model.eval() for model in pair)
    expected = eager.generate(ids, **options)
    assert expected.shape == (2, 16)
    assert torch.equal(ours.generate(ids, **options), expected)
    assert torch.equal(ours.generate(ids, **options, use_cache=False), expected)


def test_a_prompt_in_parts(pair):
    """Logits of a prompt that a cache gets in parts are those of the whole."""
    model = pair[1].eval()
    ids = models.tokens(2, 13)
    with torch.no_grad():
        whole, cache, parts = model(ids).logits, None, []
        for first, last in ((0, 6), (6, 7), (7, 13)):
            out = model(ids[:, first:last], past_key_values=cache, use_cache=True)
            cache = out.past_key_values
            parts.append(out.logits)
    if "linear_attention" in (getattr(model.config, "layer_types", None) or []):
        return  # these layers take a part of several tokens only at the beginning, whatever attends beside them
    assert_near(torch.cat(parts, dim=1), whole)


@pytest.mark.parametrize("family", ["llama", "qwen3 with windows"])
def test_static_cache(family):
    eager, ours = (models.model(family, attention).eval() for attention in ("eager", "headgate"))
    ids = models.tokens(2, 7)
    found = []
    with torch.no_grad():
        for model in (eager, ours):
            cache = StaticCache(config=model.config, max_cache_len=24)
            prompt = model(ids, past_key_values=cache).logits
            step = model(ids[:, :1], past_key_values=cache).logits
            found.append(torch.cat((prompt, step), dim=1))
    assert_near(found[1], found[0])


def test_packed_sequences(monkeypatch):
    """Two sequences in one row, by their positions, and by their lengths too."""
    calls = calls_of_headgate(monkeypatch)
    model = models.model("qwen3", "headgate").eval()
    first, second = models.tokens(1, 5), models.tokens(1, 8)
    positions = torch.cat((torch.arange(5), torch.arange(8))).unsqueeze(0)
    lengths = torch.tensor([0, 5, 13], dtype=torch.int32)
    with torch.no_grad():
        expected = torch.cat((model(first).logits, model(second).logits), dim=1)
        both = torch.cat((first, second), dim=1)
        assert_near(model(both, position_ids=positions, use_cache=False).logits, expected)
        packed = model(
            both, position_ids=positions, cu_seq_lens_q=lengths, cu_seq_lens_k=lengths, use_cache=False
        ).logits
    assert_near(packed, expected)
    assert "cu_seqlens_q" in calls[-1] and "cu_seqlens_q" not in calls[0]


def test_a_mask_of_numbers():
    eager, ours = (models.model("llama", attention) for attention in ("eager", "headgate"))
    bias = torch.randn(2, 1, 6, 6).masked_fill(torch.ones(6, 6).triu(1).bool(), torch.finfo(torch.float32).min)
    ids = models.tokens(2, 6)
    assert_near(ours(ids, attention_mask=bias).logits, eager(ids, attention_mask=bias).logits)


def test_half_precision_and_autocast():
    eager, ours = (models.model("qwen3", attention) for attention in ("eager", "headgate"))
    ids = models.tokens(2, 9)
    expected = eager(ids).logits
    scale = expected.abs().max()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (ours(ids).logits - expected).abs().max() < 0.05 * scale
    assert (ours.bfloat16()(ids).logits - expected).abs().max() < 0.05 * scale


def test_compiles():
    model = models.model("qwen3", "headgate")
    ids = models.tokens(2, 9)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    assert_near(compiled(ids).logits, model(ids).logits)


def test_set_on_a_model_that_is_there():
    model = models.model("llama")
    ids = models.tokens(1, 6)
    expected = model(ids).logits
    model.set_attn_implementation("headgate")
    assert_near(model(ids).logits, expected)


def test_what_is_not_supported_is_refused():
    model = models.model("llama", "headgate", attention_dropout=0.1)
    ids = models.tokens(1, 4)
    with pytest.raises(ValueError, match="headgate: LlamaAttention: dropout of 0.1 is not supported"):
        model(ids)
    assert model.eval()(ids).logits.shape == (1, 4, models.VOCAB)
    layer = model.model.layers[0].self_attn
    x = torch.randn(1, 4, 3, 16)
    for name, value in (("position_bias", x), ("cache", x), ("output_attentions", True)):
        with pytest.raises(ValueError, match=f"headgate: LlamaAttention: {name} is not supported"):
            headgate.torch.transformers.attention_forward(layer, x, x, x, None, **{name: value})


def test_registered_once():
    for _ in range(2):
        assert headgate.torch.transformers.register() == "headgate"
    assert "headgate" in transformers.AttentionInterface().valid_keys()
