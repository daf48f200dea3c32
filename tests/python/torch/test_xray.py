# SPDX-License-Identifier: Apache-2.0
"""xray() of live models: the report of `headgate xray` of the same model and text, and reports of other models."""

import base64
import json
import math
import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import numpy
import pytest
import torch
import transformers

import headgate.torch
import models
import tool_runs
from headgate.torch import xray
from headgate.torch.xray import ranks
from headgate.torch.xray.verdict import verdict

ONLY_LINEAR = {"layer_types": ["linear_attention"] * 2}
READ = (
    ("llama", {}),
    ("mistral", {"sliding_window": 30}),
    ("mistral", {"sliding_window": 5}),
    ("mistral", {"sliding_window": None}),
    ("qwen3 with windows", {}),
    ("qwen3 with windows", {"sliding_window": 30}),
    ("qwen3 with windows", {"layer_types": ["sliding_attention"] * 2}),
    ("qwen3-next", {}),
    ("qwen3.5", {}),
    ("qwen3.5", ONLY_LINEAR),
    ("olmo-hybrid", {}),
    ("afmoe", {}),
    ("gpt-oss", {}),
)
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
    tokens = ids.numel() - 1
    options = ("--tokens", tokens, "--threads", 1, "--json")
    return reported("xray", where / "model", "--token-ids", where / "ids.npy", *options)


def differences(ours, theirs, at=()):
    """Yields the places at which a report differs from the tool's, and both values."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        for key in theirs.keys() | ours.keys():
            if key in theirs and key in ours:
                yield from differences(ours[key], theirs[key], (*at, key))
            elif key not in ("not_shown", "layer_names"):  # of live models
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


@pytest.mark.parametrize("family, keys", READ)
def test_report_equals_that_of_the_tool(family, keys, tmp_path):
    model, ids = models.model(family, **keys).eval(), models.tokens(1, 24)
    theirs = of_the_tool(model, ids, tmp_path)
    report = xray(model, None, ids, name=str(tmp_path / "model"))
    different = [place for place, *_ in differences(report.report, theirs) if "text" not in place]
    assert different == ([("models", 0, "gate")] if keys is ONLY_LINEAR else [])  # the gate of no layer
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


@pytest.mark.parametrize("whole", [b"caf\xe9 au lait", b"caf\xc3"])
def test_text_that_is_not_utf8_is_refused(tokenizer, whole, tmp_path):
    (tmp_path / "text.txt").write_bytes(whole)
    model = models.model("llama", vocab_size=len(tokenizer))
    with pytest.raises(ValueError, match="^xray: text is not UTF-8: .* position 3"):
        xray(model, tokenizer, tmp_path / "text.txt")
    with pytest.raises(ValueError, match="^xray: text is not UTF-8: .* position 1"):
        xray(model, tokenizer, "a\ud800")


def test_character_across_the_end_of_what_is_read_is_left_out(tokenizer, tmp_path):
    model = models.model("llama", vocab_size=len(tokenizer)).eval()
    text = "a" * 127 + "é" * 400  # two tokens have 128 bytes at most
    (tmp_path / "text.txt").write_text(text, encoding="utf-8")
    assert xray(model, tokenizer, tmp_path / "text.txt", tokens=2).text == xray(model, tokenizer, text, tokens=2).text


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


def run_module(*words, start=("-m", "headgate"), **options):
    return subprocess.run([sys.executable, *start, *map(str, words)], capture_output=True, text=True, **options)


@pytest.fixture
def saved(tokenizer, tmp_path):
    """Returns a function that saves a small model with a tokenizer, and a text beside it."""
    (tmp_path / "text.txt").write_text(TEXT, encoding="utf-8")

    def save(kind, config):
        config.vocab_size = len(tokenizer)
        model = kind(config).eval()
        model.save_pretrained(tmp_path / "model")
        tokenizer.save_pretrained(tmp_path / "model")
        return model, tmp_path

    return save


def test_module_shows_a_model_that_transformers_loads(saved, tokenizer):
    model, folder = saved(transformers.GPTNeoXForCausalLM, transformers.GPTNeoXConfig(**SIZES))
    done = run_module("xray", folder / "model", "--text", folder / "text.txt", "--name", "neox", "--tokens", 40,
                      "--out", folder / "page.html", "--json-out", folder / "page.json")  # fmt: skip
    assert done.returncode == 0, done.stderr
    expected = xray(model, tokenizer, folder / "text.txt", name="neox", tokens=40)
    assert done.stdout == f"neox: {expected.verdict}\n"
    assert not list(differences(json.loads((folder / "page.json").read_text(encoding="utf-8")), expected.report))
    assert "neox" in (folder / "page.html").read_text(encoding="utf-8")


def test_module_lets_the_program_read_what_it_reads(saved):
    _, folder = saved(transformers.LlamaForCausalLM, transformers.LlamaConfig(**SIZES))
    words = ("xray", folder / "model", "--text", folder / "text.txt", "--tokens", 40)
    done = run_module(*words, "--json-out", folder / "page.json", "--name", "small")
    theirs = reported(*words, "--json")
    ours = json.loads((folder / "page.json").read_text(encoding="utf-8"))
    assert done.stdout == f"small: {theirs['models'][0]['verdict']}\n"
    assert [place for place, *_ in differences(ours, theirs)] == [("models", 0, "name")]


def test_module_names_what_is_missing(saved):
    _, folder = saved(transformers.GPTNeoXForCausalLM, transformers.GPTNeoXConfig(**SIZES))
    code = "import runpy, sys\nsys.modules['transformers'] = None\nrunpy.run_module('headgate', run_name='__main__')"
    words = ("xray", folder / "model", "--text", folder / "text.txt")
    done = run_module(*words, start=("-c", code))
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert "model_type is 'gpt_neox'" in done.stderr and "pip install 'headgate-attention[transformers]'" in done.stderr
    (folder / "model" / "config.json").write_text("{}")
    done = run_module(*words)
    assert done.returncode == 1 and "; transformers: " in done.stderr.splitlines()[-1]


def test_module_passes_other_verbs_to_the_program(tmp_path):
    package = tmp_path / "headgate"
    package.mkdir()
    for path in Path(headgate.__file__).parent.glob("*.*"):
        (package / path.name).symlink_to(path.resolve()) if path.suffix == ".so" else shutil.copy(path, package)
    (package / "bin").mkdir()
    (package / "bin" / "headgate").symlink_to(tool_runs.TOOL)
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    xray_words = ["xray", "a", "--text", "b"]
    for words in (
        ["--version"],
        ["xray", "--list"],
        ["xray", "a", "b", "--text"],
        [*xray_words, "--text", "c"],
        [*xray_words, "--tokens", "8", "--tokens", "8"],
        [*xray_words, "--out", ""],
        ["xray", "", "--text", "b"],
    ):
        ours = run_module(*words, env=environment)
        theirs = subprocess.run([tool_runs.TOOL, *words], capture_output=True, text=True)
        assert (ours.returncode, ours.stdout, ours.stderr) == (theirs.returncode, theirs.stdout, theirs.stderr)


MORE_POSITIONS = transformers.GPT2LMHeadModel(
    transformers.GPT2Config(vocab_size=models.VOCAB, n_embd=32, n_layer=2, n_head=4, n_positions=128)
)
ENCODER_DECODER = transformers.T5ForConditionalGeneration(
    transformers.T5Config(vocab_size=97, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4)
)


@pytest.mark.parametrize(
    "change, error, said",
    [
        ({"model": "a/path"}, TypeError, "model is a str but must be a torch.nn.Module; headgate.load reads files"),
        ({"tokenizer": 3, "text": "A text."}, TypeError, "tokenizer is a int but must be one of transformers, or None"),
        ({"text": "A text."}, TypeError, "tokenizer is None but text is no token ids"),
        ({"text": torch.rand(8)}, TypeError, r"text is a tensor \(8,\) of torch.float32 but must be a str"),
        ({"text": torch.zeros(2, 8, dtype=torch.int64)}, TypeError, r"text is a tensor \(2, 8\)"),
        ({"text": [[1], 2]}, TypeError, "text is a list but must be a str"),
        ({"text": [1, 2]}, ValueError, "the text is 2 tokens but must be at least 3"),
        ({"text": [1, 97, 3]}, ValueError, "text has token ids 1 to 97 but the model has 97 tokens"),
        ({"text": [1, 2, 97]}, ValueError, "text has token ids 1 to 97 but the model has 97 tokens"),
        ({"text": [1, 2, -100]}, ValueError, "text has token ids -100 to 2 but the model has 97 tokens"),
        ({"model": MORE_POSITIONS, "text": [1, 98, 3]}, ValueError, "text has token ids 1 to 98 but the model has 97"),
        ({"model": ENCODER_DECODER}, ValueError, "model is an encoder-decoder but must be a causal model: its decoder"),
        ({"tokens": 1}, ValueError, "tokens is 1 but must be at least 2"),
        ({"tokens": 2.0}, TypeError, "tokens is 2.0 but must be a whole number"),
        ({"map_cells": 2000}, ValueError, "map_cells is 2000 but must be at least 1 and at most 1024"),
    ],
)
def test_wrong_arguments_are_refused_by_name(change, error, said):
    given = {"model": models.model("llama"), "tokenizer": None, "text": models.tokens(1, 8)} | change
    with pytest.raises(error, match=f"^xray: {said}"):
        xray(given.pop("model"), **given)


def test_what_a_model_does_not_show_is_named():
    ids = models.tokens(1, 24)
    base = xray(transformers.LlamaModel(transformers.LlamaConfig(**SIZES)), None, ids)
    assert base.not_shown == ["losses: the model returns no logits"] and base.figures["loss_nats"] is None
    assert base.verdict.endswith(" Not shown: losses: the model returns no logits.")
    assert numpy.isnan(base.token_losses).all()
    latent = xray(models.model("kimi-linear").eval(), None, ids)
    assert latent.not_shown == ["model.layers.1.self_attn: value_output_rank, as its matrices are not found"]
    assert latent.layer_figures[1]["value_output_rank"] is None and len(latent.heads[1][0].singular_values) == 0
    assert latent.layer_figures[1]["written_rank"] > 0
    headgate.page([base, latent])
    for kind, config, why in (
        (transformers.BertForMaskedLM, transformers.BertConfig(**SIZES), "its queries see later tokens"),
        (transformers.BloomForCausalLM, transformers.BloomConfig(vocab_size=97, hidden_size=32, n_layer=1, n_head=4),
         "it made no call of attention"),
    ):  # fmt: skip
        with pytest.warns() if kind is transformers.BloomForCausalLM else warnings.catch_warnings():
            with pytest.raises(ValueError, match=f"^xray: no causal attention of {kind.__name__} is seen: {why}"):
                xray(kind(config), None, ids)


@pytest.mark.parametrize("first", [0, 1])
def test_layers_without_attention_are_named(first):
    kinds = (["conv", "full_attention"] * 3)[first:][:4]
    config = transformers.Lfm2Config(**SIZES | {"num_hidden_layers": 4}, num_key_value_heads=2, layer_types=kinds)
    model, ids = transformers.Lfm2ForCausalLM(config).eval(), models.tokens(1, 24)
    with torch.no_grad():
        model.model.layers[3].feed_forward.w2.weight *= 1e6
    report = xray(model, None, ids)
    shown = [f"model.layers.{n}" for n in range(4) if kinds[n] != "conv"]
    assert report.report["models"][0]["layer_names"] == [f"{name}.self_attn" for name in shown]
    assert report.not_shown == [f"model.layers.{first} and 1 more: no attention, and so no layer of the report"]
    place, module = (1, {}) if kinds[3] == "full_attention" else (None, {"module": "model.layers.3"})
    largest = report.report["models"][0]["largest_activation"]
    assert largest.items() >= {"layer": place, **module}.items() and ("module" in largest) == bool(module)
    assert f", after {module.get('module', 'layer 1')}." in report.verdict
    assert largest["value"] == report.figures["massive_activation"] > 100
    headgate.page([report])


def test_model_without_a_list_of_layers_has_no_residual_stream():
    class Single(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.attention = torch.nn.Embedding(97, 32), headgate.torch.GatedAttention(32, 4)

        def forward(self, ids):
            return self.attention(self.embed(ids))

    model, ids = Single(), models.tokens(1, 24)
    report = xray(model, None, ids)
    assert report.not_shown[0].startswith("the residual stream: no member") and "activation" not in report.verdict
    places = ("massive_activation", "massive_activation_token", "massive_activation_channel")
    assert [report.figures[key] for key in places] == [None] * 3
    assert report.report["models"][0]["dim"] == 32 and report.gate == "g1-elementwise"
    assert report.heads[0][1].gate is not None
    named = xray(model, None, ids, blocks=[""])
    assert named.not_shown == ["losses: the model returns no logits"] and named.figures["massive_activation"] > 0
    headgate.page([report, named])


def test_unseen_layer_warns_and_is_named():
    model = models.model("llama").eval()
    own = model.model.layers[1].self_attn

    class PlainAttention(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.out = torch.nn.Linear(32, 32)

        def forward(self, hidden_states, **_):
            return self.out(hidden_states), None

    model.model.layers[1].self_attn = PlainAttention()
    with pytest.warns(UserWarning, match=r"^watch: attention of 'model\.layers\.1\.self_attn' is not seen"):
        report = xray(model, None, models.tokens(1, 24))
    assert len(report.heads) == 1 and report.not_shown[0].startswith("model.layers.1.self_attn: it made no call")
    model.model.layers[1].self_attn = own
    assert not xray(model, None, models.tokens(1, 24)).not_shown


class SharedBlock(torch.nn.Module):
    """A block whose linear maps of attention and MLP are parts of one module."""

    def __init__(self, gate_after, width):
        super().__init__()
        self.qkv, self.late, self.out = (torch.nn.Linear(32, size) for size in (96, 32, 32))
        self.up, self.down = torch.nn.Linear(32, width), torch.nn.Linear(width, 32)
        self.gate_after = gate_after

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (4, 8)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(-2)
        x = x + self.out(y * self.late(x).sigmoid() if self.gate_after else y)
        return x + self.down(self.up(x).relu())


@pytest.mark.parametrize("gate_after", [False, True])
@pytest.mark.parametrize("width", [64, 32])
def test_output_matrix_is_not_taken_from_an_mlp(gate_after, width):
    class SharedAttentionModel(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.head = torch.nn.Embedding(97, 32), torch.nn.Linear(32, 97)
            self.layers = torch.nn.ModuleList([SharedBlock(gate_after, width) for _ in range(2)])

        def forward(self, ids):
            x = self.embed(ids)
            for layer in self.layers:
                x = layer(x)
            return self.head(x)

    model, ids = SharedAttentionModel(), models.tokens(1, 24)
    report = xray(model, None, ids, blocks=["layers.0", "layers.1"])
    found = [head.singular_values for head in report.heads[0]]
    if width == 32:  # W_o or the MLP's first map
        said = "layers.0 and 1 more: value_output_rank and written_rank, as its matrices are not found"
        assert said in report.not_shown and not any(map(len, found))
        return
    assert not any("rank" in text for text in report.not_shown)
    layer = model.layers[0]
    for h in range(4):
        at = slice(8 * h, 8 * h + 8)
        product = layer.out.weight[:, at].double() @ layer.qkv.weight[64:][at].double()
        assert found[h] == pytest.approx(torch.linalg.svdvals(product.detach())[:8].numpy(), rel=OF_FIVE_DIGITS)


def test_given_gate_is_shown():
    class Gated(torch.nn.Module):
        """Attention with a gate that no reader knows."""

        def __init__(self):
            super().__init__()
            self.qkv, self.my_gate, self.out = (torch.nn.Linear(32, size) for size in (96, 4, 32))

        def forward(self, x):
            q, k, v = (part.unflatten(-1, (4, 8)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
            y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
            return self.out((y * self.my_gate(x).sigmoid()[..., None]).flatten(-2))

    class GatedAttentionModel(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.head = torch.nn.Embedding(97, 32), torch.nn.Linear(32, 97)
            self.layers = torch.nn.ModuleList([Gated(), Gated()])

        def forward(self, ids):
            x = self.embed(ids)
            for layer in self.layers:
                x = x + layer(x)
            return self.head(x), None

    Gated.__name__ = "MyAttention"
    model, ids = GatedAttentionModel(), models.tokens(1, 24)
    plain = xray(model, None, ids)
    assert plain.not_shown == ["layers.0 and 1 more: the gate, if my_gate is one (gates= reads it)"]
    report = xray(model, None, ids, gates={"layers.1.my_gate": lambda out: out.sigmoid().unsqueeze(-1)})
    x = model.embed(ids[:, :-1])
    gate = model.layers[1].my_gate(x + model.layers[0](x))[0].sigmoid().detach()
    assert report.gate == "g1-headwise" and report.heads[0][2].gate is None
    assert report.not_shown == ["layers.0: the gate, if my_gate is one (gates= reads it)"]
    for h in range(4):
        assert abs(report.heads[1][h].gate - gate[:, h].numpy()).max() < 1 / 255
        assert report.head_figures[1][h]["gate_mean"] == pytest.approx(gate[:, h].mean().item(), rel=TOLERANCE)
        assert report.head_figures[0][h]["gate_mean"] is None
    assert report.figures["gate_mean"] == report.layer_figures[1]["gate_mean"] is not None
    assert len(report.heads[0][0].singular_values) == 8
    loss = torch.nn.functional.cross_entropy(model(ids[:, :-1])[0][0], ids[0, 1:]).item()
    assert report.figures["loss_nats"] == pytest.approx(loss, rel=TOLERANCE)


def test_verdict_counts_heads_where_layers_differ_in_their_number():
    rng = numpy.random.default_rng(5)
    largest = {"value": 1.0, "layer": 0, "token": 0, "channel": 0}
    for _ in range(300):
        counts = rng.choice([1, 2, 8, 32], rng.integers(2, 6))
        sinks = [(rng.random(count) < rng.choice([0, 0.3, 0.6, 1])).astype(float).tolist() for count in counts]
        sinks[0] = [1.0, 1.0, 1.0]
        found = {
            "figures": {"first_token_attention": 0.3, "first_token_attention_uniform": 0.1, "sink_rate": 0.5},
            "layer_types": ["full_attention"] * len(sinks),
            "layer_figures": [{"sink_rate": float(numpy.mean(heads))} for heads in sinks],
            "head_figures": [[{"sink_rate": head} for head in heads] for heads in sinks],
            "largest_activation": largest,
            "not_shown": [],
        }
        text = verdict(found, True)
        flat = [head for heads in sinks for head in heads]
        share = sum(flat) / len(flat)
        assert f": {100 * share:.{1 if share < 0.01 else 0}f}% of the heads give" in text
        from_here = [numpy.concatenate(sinks[layer:]).mean() for layer in range(len(sinks))]
        first = [n for n, heads in enumerate(sinks[:-1]) if min(numpy.mean(heads), from_here[n]) >= 0.5]
        assert text.startswith(f"Sinks from layer {first[0]} on:" if first else "Sinks in layer"), (text, sinks)


def test_numbers_that_are_not_finite_are_null_and_named():
    model = models.model("llama").eval()
    with torch.no_grad():
        model.model.layers[0].self_attn.q_proj.weight[3, 3] = torch.inf
    report = xray(model, None, models.tokens(1, 24))
    said = "The model gives numbers that are not finite. The activations are not finite from layer 0, token 0 on."
    assert report.verdict.startswith(said) and report.figures["first_token_attention"] is None
    headgate.page([report])


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_head_that_is_not_finite_leaves_the_maps_of_others(attention):
    model, ids = models.model("llama", attention).eval(), models.tokens(1, 24)
    before = xray(model, None, ids).heads[0]
    with torch.no_grad():
        model.model.layers[0].self_attn.q_proj.weight[:16] = torch.nan
    after = xray(model, None, ids).heads[0]
    assert not after[0].map.any()
    for h in range(1, 4):
        assert (after[h].map == before[h].map).all() and before[h].map.any()


def test_models_in_16_bits_are_shown():
    ids = models.tokens(1, 24)
    for family in ("llama", "qwen3-next"):
        wide = xray(models.model(family).eval(), None, ids)
        report = xray(models.model(family).eval().bfloat16(), None, ids)
        assert not report.not_shown
        for key in ("loss_nats", "first_token_attention", "mean_distance", "value_output_rank"):
            assert report.figures[key] == pytest.approx(wide.figures[key], rel=0.05), key


class ScaledLinear(torch.nn.Linear):
    """A linear map with a scale beside its weight, as of quantized models."""

    def forward(self, x):
        return torch.nn.functional.linear(x, self.weight * torch.arange(1, self.out_features + 1)[:, None])


def test_ranks_of_scaled_weights_are_null_and_named():
    model = models.model("llama").eval()
    own = model.model.layers[1].self_attn
    own.o_proj, own.my_gate = ScaledLinear(64, 32, bias=False), torch.nn.Linear(1, 1)
    report = xray(model, None, models.tokens(1, 24))
    assert report.not_shown == [
        "model.layers.1.self_attn: value_output_rank and written_rank, as its matrices are not found",
        "model.layers.1.self_attn: the gate, if my_gate is one (gates= reads it)",
    ]
    assert report.layer_figures[1]["written_rank"] is None
    del own.my_gate
    own.o_proj, own.v_proj = torch.nn.Linear(64, 32, bias=False), ScaledLinear(32, 32, bias=False)
    report = xray(model, None, models.tokens(1, 24))
    assert report.not_shown == ["model.layers.1.self_attn: value_output_rank, as its matrices are not found"]
    assert report.layer_figures[1]["written_rank"] > 0


class OwnLinear(torch.nn.Linear):
    """A linear map with another forward, as Falcon's."""

    def forward(self, x):
        return x @ self.weight.T


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_own_forward_of_a_linear_map_does_not_change_ranks(dtype):
    model, ids = models.model("llama").to(dtype).eval(), models.tokens(1, 24)
    before = xray(model, None, ids).layer_figures[1]
    for part in model.model.layers[1].self_attn.children():
        part.__class__ = OwnLinear
    report = xray(model, None, ids)
    assert not report.not_shown
    for key in ("value_output_rank", "written_rank"):
        assert report.layer_figures[1][key] == pytest.approx(before[key], rel=1e-3)


def test_attention_that_reads_more_channels_than_it_writes_has_ranks():
    config = transformers.Zamba2Config(
        **SIZES | {"num_hidden_layers": 4}, num_mem_blocks=1, hybrid_layer_ids=[1, 3], mamba_d_state=8,
        layers_block_type=["mamba", "hybrid"] * 2, mamba_headdim=8, n_mamba_heads=8, mamba_ngroups=1,
    )  # fmt: skip
    report = xray(transformers.Zamba2ForCausalLM(config).eval(), None, models.tokens(1, 24))
    assert report.not_shown == ["model.layers.0 and 1 more: no attention, and so no layer of the report"]
    assert report.layer_figures[1]["written_rank"] > 0


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.bfloat16])
def test_weights_of_8_bits_are_no_matrices(dtype):
    linear = torch.nn.Linear(32, 32).to(dtype)
    assert (ranks.matrix_of(linear) is None) == (dtype.itemsize == 1)


def test_default_device_does_not_change_the_report():
    model, ids = models.model("llama"), models.tokens(1, 24)
    expected = xray(model, None, ids)
    with torch.device("meta"):
        for given in (ids, ids[0].tolist()):
            found = xray(model, None, given)
            assert found.layer_figures == expected.layer_figures
            assert numpy.array_equal(found.heads[0][0].map, expected.heads[0][0].map)


def test_mode_of_the_model_is_restored():
    model = models.model("llama").train()
    report = xray(torch.compile(model), None, models.tokens(1, 24))
    assert model.training and "forward" not in model.__dict__ and report.name == "LlamaForCausalLM"
