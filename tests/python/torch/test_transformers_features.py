# SPDX-License-Identifier: Apache-2.0
"""What attn_implementation="headgate" has beside the attention itself: weights and position biases."""

import pytest
import torch
import transformers
from transformers import StaticCache

import headgate.torch.transformers
import models

headgate.torch.transformers.register(functions=False)
TOLERANCE = 5e-5


def assert_near(ours, expected):
    torch.testing.assert_close(ours, expected, rtol=TOLERANCE, atol=TOLERANCE * max(1e-3, expected.abs().max().item()))


@pytest.mark.parametrize("family", ["llama", "qwen3 with windows", "gpt-oss", "gemma2", "qwen3.5"])
def test_weights_match_those_of_eager_attention(family):
    ids = models.tokens(2, 12)
    mask = torch.ones_like(ids)
    mask[1, :4] = 0
    found = []
    for attention in ("eager", "headgate"):
        model = models.model(family, attention)
        out = model(ids, attention_mask=mask, output_attentions=True)
        weights = [x[0] for x in out.attentions] + [x[1, :, 4:] for x in out.attentions]
        sum(x.square().sum() for x in weights).backward()
        found.append((weights, {name: p.grad for name, p in model.named_parameters() if p.grad is not None}))
    (expected, theirs), (ours, gradients) = found
    assert len(ours) == len(expected) >= 2
    for mine, other in zip(ours, expected, strict=True):
        assert_near(mine, other)
    for name, other in theirs.items():
        assert_near(gradients[name], other)
    assert not any(gradients[name].any() for name in gradients.keys() - theirs.keys())


def test_weights_of_packed_rows_stay_within_sequences():
    model = models.model("llama", "headgate").eval()
    ids = models.tokens(2, 7)
    positions = torch.tensor([[0, 1, 2, 0, 1, 2, 3], [0, 1, 2, 3, 4, 0, 1]])
    out = model(ids, position_ids=positions, use_cache=False, output_attentions=True)
    for row, cut in ((0, 3), (1, 5)):
        parts = [model(part, output_attentions=True) for part in (ids[row : row + 1, :cut], ids[row : row + 1, cut:])]
        for layer in range(2):
            weights = out.attentions[layer][row]
            assert_near(weights[:, :cut, :cut], parts[0].attentions[layer][0])
            assert_near(weights[:, cut:, cut:], parts[1].attentions[layer][0])
            assert not weights[:, cut:, :cut].any() and not weights[:, :cut, cut:].any()


def test_weights_of_a_query_that_sees_nothing_are_zero():
    layer = models.model("llama", "headgate").model.layers[0].self_attn
    q, k = torch.randn(1, 4, 3, 16), torch.randn(1, 2, 3, 16)
    mask = torch.ones(1, 1, 3, 3, dtype=torch.bool)
    mask[..., 1, :] = False
    y, weights = headgate.torch.transformers.attention_forward(layer, q, k, k, mask, output_attentions=True)
    assert not weights[:, :, 1].any() and not y[:, 1].any()
    torch.testing.assert_close(weights.sum(-1)[:, :, [0, 2]], torch.ones(1, 4, 2))


def test_weights_of_unused_slots_of_a_static_cache_are_zero():
    layer = models.model("llama", "headgate").model.layers[0].self_attn
    q, k = torch.randn(1, 4, 3, 16), torch.randn(1, 2, 8, 16)
    attend = headgate.torch.transformers.attention_forward
    y, weights = attend(layer, q, k, k, None, output_attentions=True)
    expected, of_tokens = attend(layer, q, k[:, :, :3], k[:, :, :3], None, output_attentions=True)
    assert weights.shape == (1, 4, 3, 8) and not weights[..., 3:].any()
    assert torch.equal(weights[..., :3], of_tokens) and torch.equal(y, expected)


def t5(attention):
    torch.manual_seed(0)
    config = transformers.T5Config(
        vocab_size=models.VOCAB,
        d_model=32,
        d_kv=8,
        d_ff=48,
        num_layers=2,
        num_heads=4,
        dropout_rate=0.0,
        decoder_start_token_id=0,
        eos_token_id=None,
    )
    model = transformers.T5ForConditionalGeneration._from_config(config, attn_implementation=attention)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    return model


def test_position_biases_of_t5_match_eager_attention():
    ids, labels = models.tokens(2, 9), models.tokens(2, 6)
    mask = torch.ones_like(ids)
    mask[1, 5:] = 0
    found = []
    for attention in ("eager", "headgate"):
        model = t5(attention)
        out = model(ids, attention_mask=mask, labels=labels, output_attentions=True)
        out.loss.backward()
        found.append([out.logits, *out.decoder_attentions, *(p.grad for p in model.parameters())])
    names = [name for name, _ in model.named_parameters()]
    assert any("relative_attention_bias" in name for name in names)
    for expected, ours in zip(*found, strict=True):
        assert_near(ours, expected)
    options = {"max_new_tokens": 6, "do_sample": False, "attention_mask": mask}
    assert torch.equal(*(t5(attention).eval().generate(ids, **options) for attention in ("eager", "headgate")))


ENCODER = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}


@pytest.mark.parametrize("family", ["AlignText", "ClapText", "Splinter"])
def test_attention_without_is_causal_or_mask_is_that_of_eager_attention(family):
    """The attention modules of these encoders have no attribute is_causal."""
    kind = getattr(transformers, f"{family}Model")
    config = kind.config_class(vocab_size=100, **ENCODER)
    found = []
    for attention in ("eager", "headgate"):
        torch.manual_seed(0)
        model = kind._from_config(config, attn_implementation=attention).eval()
        found.append(model(models.tokens(2, 9)).last_hidden_state)
    assert_near(found[1], found[0])


@pytest.mark.skipif(not hasattr(transformers, "Gemma4TextConfig"), reason="needs Gemma 4")
@pytest.mark.parametrize("keep", [0, 1, 3])
@pytest.mark.parametrize("static", [False, True])
def test_last_queries_of_shared_layers_match_eager_attention(keep, static):
    """Gemma 4 computes layers that share keys for the last queries alone, with the rows of the mask for these."""
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "global_head_dim": 16}
    layers = {"num_hidden_layers": 4, "num_kv_shared_layers": 2, "per_layer_config": None}
    config = transformers.Gemma4TextConfig(
        **{"vocab_size": 100, "vocab_size_per_layer_input": 100, "hidden_size": 32, "intermediate_size": 48},
        **{"hidden_size_per_layer_input": 8, "sliding_window": 5, "pad_token_id": 0},
        **{"layer_types": ["sliding_attention", "full_attention"] * 2},
        **heads,
        **layers,
    )
    ids = models.tokens(2, 9)
    found = []
    for attention in ("eager", "headgate"):
        torch.manual_seed(0)
        model = transformers.Gemma4ForCausalLM._from_config(config, attn_implementation=attention).eval()
        for parameter in model.parameters():
            parameter.data.mul_(3 if parameter.dim() > 1 else 1)
        cache = {"past_key_values": StaticCache(config=config, max_cache_len=16)} if static else {}
        with torch.no_grad():
            found.append(model(ids, logits_to_keep=keep, **cache).logits)
    assert_near(found[1], found[0])


@pytest.mark.skipif(not hasattr(transformers, "Gemma4AudioConfig"), reason="needs Gemma 4")
def test_audio_model_that_computes_with_its_mask_matches_eager_attention():
    config = transformers.Gemma4AudioConfig(
        hidden_size=32, num_attention_heads=4, num_hidden_layers=2, output_proj_dims=16
    )
    features, mask = torch.linspace(-1, 1, 2 * 64 * 128).view(2, 64, 128), torch.ones(2, 64, dtype=torch.bool)
    mask[1, 40:] = False
    found = []
    for attention in ("eager", "headgate"):
        torch.manual_seed(0)
        model = transformers.Gemma4AudioModel._from_config(config, attn_implementation=attention).eval()
        found.append(model(features, mask).last_hidden_state)
    assert_near(found[1], found[0])


def test_weights_of_a_model_that_does_not_pass_output_attentions_are_returned():
    config = transformers.SiglipVisionConfig(image_size=16, patch_size=8, **ENCODER)
    found = []
    for attention in ("eager", "headgate"):
        torch.manual_seed(0)
        model = transformers.SiglipVisionModel._from_config(config, attn_implementation=attention).eval()
        pixels = torch.linspace(-1, 1, 2 * 3 * 16 * 16).view(2, 3, 16, 16)
        found.append(model(pixels, output_attentions=True).attentions)
        assert not hasattr(model(pixels), "attentions") or model(pixels).attentions is None
    expected, ours = found
    assert len(ours) == len(expected) == 2
    for mine, other in zip(ours, expected, strict=True):
        assert_near(mine, other)


def test_rules_in_a_model_without_the_interface_are_explained():
    with pytest.raises(AttributeError, match="reads 'size' of its attention mask, .* use attn_implementation='eager'"):
        headgate.torch.transformers.KeyMask(None, None).size()
