# SPDX-License-Identifier: Apache-2.0
"""xray() of live models: the report of `headgate xray` of the same model and text, and reports of other models."""

import base64
import json
import math
import subprocess

import numpy
import pytest
import torch
import transformers

import headgate
import models
import tool_runs
from headgate.torch import xray

READ = ("llama", "qwen3 with windows", "qwen3-next", "qwen3.5", "olmo-hybrid", "afmoe", "gpt-oss")
TOLERANCE = 2e-5
OF_FIVE_DIGITS = 2e-4
ROUNDED = ("token_losses", "singular_values", "top_keys")
TEXT = "The quick brown fox jumps over the lazy dog. Voilà: 漢字 and 🦊, café. " * 3
SIZES = {
    "vocab_size": models.VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}


def reported(*words):
    done = subprocess.run([str(word) for word in (tool_runs.TOOL, *words)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def of_the_tool(model, ids, where):
    model.save_pretrained(where / "model")
    numpy.save(where / "ids.npy", ids.flatten().int().numpy())
    return reported("xray", where / "model", "--token-ids", where / "ids.npy", "--threads", 1, "--json")


def differences(ours, theirs, at=()):
    """Yields the places at which a report differs from the tool's, and both values."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        for key in theirs.keys() | ours.keys():
            if key in theirs and key in ours:
                yield from differences(ours[key], theirs[key], (*at, key))
            elif key != "not_shown":
                yield (*at, key), key in ours, key in theirs
    elif isinstance(theirs, list) and isinstance(ours, list) and len(theirs) == len(ours):
        for n, (a, b) in enumerate(zip(ours, theirs)):
            yield from differences(a, b, (*at, n))
    elif isinstance(theirs, (int, float)) and isinstance(ours, (int, float)):
        tolerance = OF_FIVE_DIGITS if any(key in at for key in ROUNDED) else TOLERANCE
        if not math.isclose(ours, theirs, rel_tol=tolerance, abs_tol=1e-6):
            yield at, ours, theirs
    elif None not in (ours, theirs) and (at[-1] in ("map", "received") or "gate" in at[3:] or "received" in at[3:]):
        a, b = (numpy.frombuffer(base64.b64decode(x), numpy.uint8).astype(int) for x in (ours, theirs))
        if a.shape != b.shape or abs(a - b).max() > 1:
            yield at, a, b
    elif ours != theirs and at[-1] != "sentence":
        yield at, ours, theirs


@pytest.mark.parametrize("family", READ)
def test_report_equals_that_of_the_tool(family, tmp_path):
    model, ids = models.model(family).eval(), models.tokens(1, 24)
    theirs = of_the_tool(model, ids, tmp_path)
    report = xray(model, None, ids, name=str(tmp_path / "model"))
    different = [place for place, *_ in differences(report.report, theirs) if "text" not in place]
    assert not different
    assert report.verdict == theirs["models"][0]["verdict"] and not report.not_shown
    assert all(figure["sentence"].endswith(".") for figure in report.report["figures"])
    assert report.heads[1][0].map.shape == (23, 23)


def test_maps_of_fewer_cells_than_tokens_equal_those_of_the_tool(tmp_path):
    model, ids = models.model("qwen3-next").eval(), models.tokens(1, 60)
    of_the_tool(model, ids, tmp_path)
    options = ["--token-ids", tmp_path / "ids.npy", "--map", 7, "--threads", 1, "--json"]
    theirs = reported("xray", tmp_path / "model", *options)
    report = xray(model, None, ids, name=str(tmp_path / "model"), map_cells=7).report
    assert theirs["models"][0]["map_size"] == 7
    assert not [place for place, *_ in differences(report, theirs) if "text" not in place]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    (folder / "text.txt").write_text(TEXT * 20, encoding="utf-8")
    tool_runs.run_tool("tokenize", "--train", 300, "--text", folder / "text.txt", "--out", folder / "tokenizer.json")
    return transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))


@pytest.mark.parametrize("tokens", [2048, 40])
def test_text_is_read_as_by_the_tool(tokenizer, tokens, tmp_path):
    model = models.model("llama", vocab_size=len(tokenizer), max_position_embeddings=512).eval()
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    theirs = headgate.load(tmp_path).xray(TEXT, tokens=tokens)
    ours = xray(model, tokenizer, TEXT, name=theirs.name, tokens=tokens)
    assert ours.text == theirs.text and (tokens == 40 or "".join(ours.text).startswith(TEXT[:100]))
    assert ours.figures["bits_per_byte"] == pytest.approx(theirs.figures["bits_per_byte"], rel=TOLERANCE)
    assert not [place for place, *_ in differences(ours.report, theirs.report) if place != ("text",)]
    path = tmp_path / "text.txt"
    path.write_text(TEXT, encoding="utf-8")
    of_file = xray(model, tokenizer, path, tokens=tokens).report
    assert of_file["text"] == str(path) and of_file["models"][0]["text"] == ours.text


OTHERS = {
    "GPT-NeoX": (transformers.GPTNeoXForCausalLM, transformers.GPTNeoXConfig(**SIZES)),
    "Phi": (transformers.PhiForCausalLM, transformers.PhiConfig(**SIZES)),
    "Phi-3": (transformers.Phi3ForCausalLM, transformers.Phi3Config(**SIZES, num_key_value_heads=2, pad_token_id=0)),
    "OLMo 2": (transformers.Olmo2ForCausalLM, transformers.Olmo2Config(**SIZES)),
    "GPT-2": (
        transformers.GPT2LMHeadModel,
        transformers.GPT2Config(vocab_size=models.VOCAB, n_embd=32, n_layer=2, n_head=4, n_positions=64),
    ),
}


def products_of(family, model, head):
    """W_v W_o of a head of layer 1, from the definition of the family."""
    D = 8
    rows, columns = slice(head * D, head * D + D), slice(head * D, head * D + D)
    if family == "GPT-NeoX":
        layer = model.gpt_neox.layers[1].attention
        v, o = layer.query_key_value.weight.view(4, 3, D, 32)[head, 2], layer.dense.weight
    elif family == "GPT-2":
        layer = model.transformer.h[1].attn
        v, o = layer.c_attn.weight[:, 64:].T[rows], layer.c_proj.weight.T
    elif family == "Phi-3":
        layer = model.model.layers[1].self_attn
        v, o = layer.qkv_proj.weight[-16:].view(2, D, 32)[head // 2], layer.o_proj.weight
    else:
        layer = model.model.layers[1].self_attn
        v, o = layer.v_proj.weight[rows], (layer.dense if family == "Phi" else layer.o_proj).weight
    return (o[:, columns].double() @ v.double()).detach()


@pytest.mark.parametrize("family", OTHERS)
def test_models_that_the_tool_does_not_read_are_shown(family, tmp_path):
    kind, config = OTHERS[family]
    model = kind(config).eval()
    ids = models.tokens(1, 40)
    report = xray(model, None, ids)
    assert not report.not_shown and report.name == kind.__name__ and report.gate == "none"
    with torch.no_grad():
        model.set_attn_implementation("eager")
        out = model(ids[:, :-1], output_attentions=True)
    for layer, weights in enumerate(out.attentions):
        for h, head in enumerate(report.heads[layer]):
            assert abs(head.map - weights[0, h].numpy()).max() < 2.1 / 255
            first = weights[0, h, 1:, 0].double().mean().item()
            assert report.head_figures[layer][h]["first_token_attention"] == pytest.approx(first, rel=TOLERANCE)
    for h in range(4):
        expected = torch.linalg.svdvals(products_of(family, model, h))[:8].numpy()
        assert report.heads[1][h].singular_values == pytest.approx(expected, rel=OF_FIVE_DIGITS, abs=1e-6)
    loss = torch.nn.functional.cross_entropy(out.logits[0], ids[0, 1:]).item()
    assert report.figures["loss_nats"] == pytest.approx(loss, rel=TOLERANCE)
    theirs = of_the_tool(models.model("llama"), ids, tmp_path)
    headgate.page([report, theirs]).save(tmp_path / "both.html")
    assert kind.__name__ in (tmp_path / "both.html").read_text(encoding="utf-8")
