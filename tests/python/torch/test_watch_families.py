# SPDX-License-Identifier: Apache-2.0
"""watch() on small random models of families of transformers, compared with the weights that eager attention returns."""

import pytest
import torch
import transformers

import headgate.torch
import watch_reference as reference

SCRIPT = reference.small_models()
CAUSAL = """llama qwen2 qwen3 qwen3_moe mistral mixtral gemma gemma2 gemma3_text gpt_oss olmo olmo2 olmo3 phi phi3 cohere
cohere2 granite granitemoe starcoder2 gpt_neox gpt2 opt stablelm glm glm4 ernie4_5 smollm3 nemotron persimmon
exaone4 deepseek_v3 afmoe arcee hunyuan_v1_dense seed_oss gpt_bigcode apertus""".split()
MASKED = "bert roberta electra modernbert distilbert xlm-roberta camembert".split()
SEQ2SEQ = "bart t5 mbart pegasus marian m2m_100".split()


def made(task, family):
    name = SCRIPT.TASKS[task][family]
    kind = getattr(transformers, name if isinstance(name, str) else name[0])
    model = SCRIPT.made(kind, SCRIPT.config_of(kind), "eager")
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
