# SPDX-License-Identifier: Apache-2.0
"""watch() on small random models of families of transformers, compared with the weights that eager attention returns."""

import math

import pytest
import torch
import transformers

import headgate.torch.transformers
import models
import watch_reference as reference

SCRIPT = reference.small_models()
CAUSAL = """llama qwen2 qwen3 qwen3_moe mistral mixtral gemma gemma2 gemma3_text gpt_oss olmo olmo2 olmo3 phi phi3 cohere
cohere2 granite granitemoe starcoder2 gpt_neox gpt2 opt stablelm glm glm4 ernie4_5 smollm3 nemotron persimmon
exaone4 deepseek_v3 afmoe arcee hunyuan_v1_dense seed_oss gpt_bigcode apertus""".split()
MASKED = "bert roberta electra modernbert distilbert xlm-roberta camembert".split()
SEQ2SEQ = "bart t5 mbart pegasus marian m2m_100".split()
INDEXED = "deepseek_v32 axk2 glm_moe_dsa dots3_note hy_v4 minimax_m3_vl_text qwen4_exp".split()
INDEXED += ["mistral_large4"]
PARTS = ((0, 11), (11, 13), (13, 14), (14, 32))  # the parts of a text of 32 tokens that calls with a cache read
OF_EACH_QUERY = """first_token_attention first_token_attention_uniform attention_entropy attention_entropy_of_keys
mean_distance largest_logit sink_attention sink_rate""".split()
WITHOUT_CACHE = "query key value".split()


def made(task, family, implementation="eager"):
    name = SCRIPT.TASKS[task][family]
    kind = getattr(transformers, name if isinstance(name, str) else name[0])
    model = SCRIPT.made(kind, SCRIPT.config_of(kind), implementation)
    return model.eval()


def layers_of(seen, *kinds):
    return [row for row in seen.layers if row["kind"] in kinds]


def compare(rows, attentions, sequences, kind):
    attentions = [weights for weights in attentions if weights is not None]
    assert len(rows) == len(attentions) > 0
    for row, weights in zip(rows, attentions):
        reference.assert_row(row, reference.figures(weights, sequences, kind))


@pytest.mark.parametrize("family", CAUSAL)
def test_causal_family_left_padding_equals_returned_weights(family):
    model = made("causal", family)
    given, mask = SCRIPT.inputs_of("causal")
    with torch.no_grad():
        plain = model(**given, use_cache=False)
        with headgate.torch.watch(model, "all") as seen:
            out = model(**given, use_cache=False)
        attentions = model(**given, use_cache=False, output_attentions=True).attentions
    assert torch.equal(out.logits, plain.logits)
    rows = layers_of(seen, "causal")
    compare(rows, attentions, list(reference.sequences_of(mask, "causal")), "causal")


@pytest.mark.parametrize("family", MASKED)
def test_encoder_padding_equals_returned_weights(family):
    model = made("masked", family)
    given, mask = SCRIPT.inputs_of("masked")
    with torch.no_grad():
        with headgate.torch.watch(model, "all") as seen:
            model(**given)
        attentions = model(**given, output_attentions=True).attentions
    rows = layers_of(seen, "bidirectional")
    compare(rows, attentions, list(reference.sequences_of(mask, "bidirectional")), "bidirectional")


@pytest.mark.parametrize("family", SEQ2SEQ)
def test_encoder_decoder_padding_equals_returned_weights(family):
    model = made("seq2seq", family)
    given, mask = SCRIPT.inputs_of("seq2seq")
    T = given["decoder_input_ids"].shape[1]
    with torch.no_grad():
        with headgate.torch.watch(model, "all") as seen:
            model(**given, use_cache=False)
        out = model(**given, use_cache=False, output_attentions=True)
    compare(
        layers_of(seen, "bidirectional"),
        out.encoder_attentions,
        list(reference.sequences_of(mask, "bidirectional")),
        "bidirectional",
    )
    whole = torch.ones(2, T)
    compare(layers_of(seen, "causal"), out.decoder_attentions, list(reference.sequences_of(whole, "causal")), "causal")
    of_cross = [(b, int(mask[b].nonzero()[0]), range(T)) for b in range(2)]
    compare(layers_of(seen, "cross"), out.cross_attentions, of_cross, "cross")


@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("implementation", ["eager", "headgate"])
@pytest.mark.parametrize("family", INDEXED)
def test_keys_chosen_by_an_indexer_equal_returned_weights(family, implementation, left):
    task = next((task for task in ("causal", "of texts and images") if family in SCRIPT.TASKS[task]), None)
    if task is None:
        pytest.skip(f"transformers {transformers.__version__} has no {family}")
    headgate.torch.transformers.register()
    model, plain = (made(task, family, name) for name in (implementation, "eager"))
    given, mask = SCRIPT.inputs_of("causal")
    given["attention_mask"] = mask = mask if left else mask.flip(-1)
    with torch.no_grad():
        with headgate.torch.watch(model, "all") as seen:
            model(**given, use_cache=False)
        attentions = plain(**given, use_cache=False, output_attentions=True).attentions
    rows = layers_of(seen, "causal")
    attentions = [weights for weights in attentions if weights is not None]
    assert len(rows) == len(attentions) > 0
    hidden = 0
    for row, weights in zip(rows, attentions):
        sliding = getattr(model.get_submodule(row["module"]), "sliding_window", None) is not None
        expected = reference.figures(weights, list(reference.sequences_of(mask, "causal")), indexed=not sliding)
        reference.assert_row(row, expected, 1e-4)
        hidden += not sliding
    assert hidden


def test_indexed_keys_of_packed_rows_and_of_caches_count_from_the_first_token():
    """An indexer leaves some queries one early key alone, and hides the own key of others."""
    from headgate.torch.watch.call import AttentionCall, geometry_of

    T = 8
    chosen = torch.eye(T, dtype=torch.bool)
    chosen[1:5, 0] = True
    chosen[6:, 5] = True  # the second sequence begins at token 5
    chosen[6, 6] = False
    mask, real = chosen[None, None], torch.ones(1, T, dtype=torch.bool)
    q = torch.randn(1, 2, T, 4)
    found = geometry_of(AttentionCall(q, q, mask=mask, listed=mask, real=real))
    assert found.first.tolist() == [[0] * 5 + [5] * 3]
    assert found.not_padding.all() and found.sees_first.all()
    decoding = geometry_of(AttentionCall(q[:, :, 4:5], q[:, :, :5], mask=mask[:, :, 4:5, :5], real=real[:, :5]))
    assert (decoding.own_key.item(), decoding.first.item(), decoding.after_first.item()) == (4, 0, True)


def in_parts(model, ids, mask, positions, figures="all"):
    """The watch of calls with a cache that read parts of a text."""
    with torch.no_grad(), headgate.torch.watch(model, figures) as seen:
        cache = None
        for begin, end in PARTS:
            given = {} if positions is None else {"position_ids": positions[:, begin:end]}
            out = model(ids[:, begin:end], attention_mask=mask[:, :end], past_key_values=cache, use_cache=True, **given)
            cache = out.past_key_values
    return seen


@pytest.mark.parametrize("numbered", [True, False])
@pytest.mark.parametrize("implementation", ["eager", "headgate"])
@pytest.mark.parametrize("family", "llama qwen2 mistral gemma2 gemma3_text gpt_oss afmoe exaone4 exaone_moe".split())
def test_parts_with_a_cache_equal_one_pass_or_have_no_figure(family, implementation, numbered):
    headgate.torch.transformers.register()
    model = made("causal", family, implementation)
    given, mask = SCRIPT.inputs_of("causal")
    ids, positions = given["input_ids"], (mask.cumsum(-1) - 1).clamp_min(0)
    with torch.no_grad(), headgate.torch.watch(model, "all") as whole:
        model(ids, attention_mask=mask, use_cache=False, **({"position_ids": positions} if numbered else {}))
    seen = in_parts(model, ids, mask, positions if numbered else None)
    assert not seen.not_seen
    with torch.no_grad(), headgate.torch.watch(model, "all") as prompt:
        model(ids[:, :11], attention_mask=mask[:, :11], use_cache=False)
    for ours, expected, first in zip(seen.layers, whole.layers, prompt.layers):
        for key in OF_EACH_QUERY:
            assert reference.close(ours.get(key), expected.get(key), 2e-4), (ours["module"], key)
        for word in WITHOUT_CACHE:
            key = f"first_token_{word}_norm_ratio"
            assert reference.close(ours[key], first[key], 1e-5), (ours["module"], key)


def test_generated_tokens_do_not_change_norm_ratios_of_the_prompt():
    model, ids = models.model("llama", "sdpa").eval(), models.tokens(2, 8)
    with torch.no_grad():
        model.model.embed_tokens.weight[ids[:, 0]] *= 30
        with headgate.torch.watch(model, "all") as prompt:
            model(ids)
        with headgate.torch.watch(model, "all") as seen:
            model.generate(ids, max_new_tokens=30, do_sample=False, pad_token_id=0)
    for word in WITHOUT_CACHE:
        key = f"first_token_{word}_norm_ratio"
        assert seen.scalars()[key] == pytest.approx(prompt.scalars()[key])


@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("implementation", ["eager", "sdpa", "headgate"])
@pytest.mark.parametrize("family", ["llama", "qwen3 with windows", "qwen3.5"])
def test_ids_of_padding_change_no_figure(family, implementation, left):
    headgate.torch.transformers.register()
    model, ids = models.model(family, implementation).eval(), models.tokens(2, 12)
    mask = torch.ones_like(ids)
    padding = slice(0, 6) if left else slice(6, 12)
    mask[1, padding] = 0
    found = []
    for token in (2, 3, 50):
        ids[1, padding] = token
        with torch.no_grad(), headgate.torch.watch(model, "all") as seen:
            model(ids, attention_mask=mask)
        found.append(seen.scalars())
    for other in found[1:]:
        assert other.keys() == found[0].keys()
        for key, value in other.items():
            assert math.isclose(value, found[0][key], rel_tol=1e-5, abs_tol=1e-6), key
