# SPDX-License-Identifier: Apache-2.0
"""watch(): exactness of its figures, the seams, and what it must not change."""

import math
import warnings
from pathlib import Path

import pytest
import torch
import transformers
from torch import nn
from torch.nn.functional import scaled_dot_product_attention as imported_earlier

import headgate.torch
import headgate.torch.transformers
import models
import processes
import watch_ranks
import watch_reference as reference
from headgate.torch import gated_attention, linear_attention, watch
from headgate.torch.watch import statistics
from headgate.torch.watch.call import AttentionCall, geometry_of
from headgate.torch.watch.figures import FIGURES
from headgate.torch.watch.linear import hidden_weights, sample_of


def whole(B, T):
    return list(reference.sequences_of(torch.ones(B, T), "causal"))


def close(ours, expected):
    return torch.allclose(ours.double(), expected.double(), rtol=1e-5, atol=1e-6)


class Attention(nn.Module):
    """Self-attention with a function of PyTorch's, whose name the module has imported before watch() starts."""

    def __init__(self, function=imported_earlier, **arguments):
        super().__init__()
        self.qkv = nn.Linear(32, 96)
        self.function, self.arguments = function, arguments

    def heads(self, x):
        return (part.unflatten(-1, (4, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))

    def forward(self, x):
        q, k, v = self.heads(x)
        return self.function(q, k, v, **self.arguments).transpose(1, 2).flatten(2)

    def weights(self, x, visible):
        q, k, _ = self.heads(x)
        return torch.softmax((q @ k.transpose(-1, -2) / 8**0.5).masked_fill(~visible, -math.inf), -1)


# -- nothing changes


@pytest.mark.parametrize("family", ["llama", "qwen3-next", "gpt-oss", "afmoe"])
def test_training_step_watched_has_same_bits(family):
    ids = models.tokens(2, 16)
    results = []
    for watched in (False, True):
        model = models.model(family, "eager")
        torch.manual_seed(3)
        seen = watch(model, "all", rows=[5])
        if watched:
            seen.start()
        out = model(ids, labels=ids)
        out.loss.backward()
        seen.stop()
        results.append([out.logits, *(p.grad for p in model.parameters() if p.grad is not None)])
    assert len(results[0]) == len(results[1]) > 10
    assert all(torch.equal(a, b) for a, b in zip(*results))


def test_stop_restores_everything():
    model = models.model("qwen3-next", "sdpa")
    interface = transformers.AttentionInterface.__dict__["get_interface"]
    rules = vars(transformers.models.qwen3_next.modeling_qwen3_next).copy()
    with watch(model):
        assert transformers.AttentionInterface.__dict__["get_interface"] is not interface
    assert transformers.AttentionInterface.__dict__["get_interface"] is interface
    assert vars(transformers.models.qwen3_next.modeling_qwen3_next) == rules
    assert not any("forward" in vars(module) for module in model.modules())
    assert torch.overrides._get_current_function_mode() is None


def test_model_that_raises_leaves_nothing_behind():
    model = models.model("llama")
    with pytest.raises(IndexError), watch(model):
        model(torch.full((1, 4), models.VOCAB + 5))
    assert not any("forward" in vars(module) for module in model.modules())


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_encoder_layers_keep_their_fast_path(training, padded):
    layer = nn.TransformerEncoderLayer(32, 4, 48, batch_first=True, dropout=0.0)
    model = nn.TransformerEncoder(layer, 2).train(training)
    x, padding = torch.randn(2, 9, 32), torch.zeros(2, 9, dtype=torch.bool)
    padding[1, 6:] = padded
    given = {"src_key_padding_mask": padding} if padded else {}
    with torch.set_grad_enabled(training), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of nested tensors
        plain = model(x, **given)
        with watch(model, "all") as seen:
            out = model(x, **given)
    assert torch.equal(out, plain) and not seen.not_seen
    weights = model.layers[0].self_attn(x, x, x, key_padding_mask=padding, average_attn_weights=False)[1]
    expected = reference.figures(weights, list(reference.sequences_of(~padding, "bidirectional")))
    reference.assert_row(seen.layers[0], expected)
    assert [row["kind"] for row in seen.layers] == ["bidirectional"] * 2
    assert "massive_activation" in seen.layers[1]


# -- seams


@pytest.mark.parametrize("implementation", ["eager", "sdpa", "headgate", "flex_attention"])
@pytest.mark.parametrize("family", ["llama", "qwen3 with windows", "gpt-oss", "gemma2"])
def test_implementations_give_same_figures(family, implementation):
    if (family, implementation) in (("gpt-oss", "sdpa"), ("gemma2", "sdpa"), ("gpt-oss", "flex_attention")):
        pytest.skip("the family has no such implementation on CPUs")
    headgate.torch.transformers.register()
    ids, mask = models.tokens(2, 12), torch.ones(2, 12, dtype=torch.int64)
    mask[1, :4] = 0
    with torch.no_grad():
        with watch(models.model(family, implementation).eval(), "all") as seen:
            seen.model(ids, attention_mask=mask)
        model = models.model(family, "eager").eval()
        attentions = model(ids, attention_mask=mask, output_attentions=True).attentions
    sequences = list(reference.sequences_of(mask, "causal"))
    for row, weights in zip(seen.layers, attentions, strict=True):
        reference.assert_row(row, reference.figures(weights, sequences))


@pytest.mark.parametrize(
    "family, implementation", [("qwen3", "eager"), ("qwen3", "sdpa"), ("qwen3", "headgate"), ("gpt-oss", "headgate")]
)
def test_packed_rows_start_at_their_first_tokens(family, implementation):
    """gpt-oss hands position_ids to its attention alone, not to its mask."""
    headgate.torch.transformers.register()
    model = models.model(family, implementation).eval()
    lengths = (5, 8, 3)
    parts = [models.tokens(1, n) for n in lengths]
    positions = torch.cat([torch.arange(n) for n in lengths])[None]
    with torch.no_grad(), watch(model, "all") as packed:
        model(torch.cat(parts, 1), position_ids=positions, use_cache=False)
    apart = watch(model, "all")
    apart.start()
    for ids in parts:
        with torch.no_grad():
            model(ids, use_cache=False)
    apart.stop()
    ours, expected = packed.scalars(), apart.scalars()
    assert ours.keys() == expected.keys()
    for key, value in expected.items():
        assert ours[key] == pytest.approx(value, rel=1e-5, abs=1e-6), key


def test_decoding_with_a_cache_counts_new_queries_alone():
    model = models.model("llama", "sdpa").eval()
    ids = models.tokens(2, 10)
    with torch.no_grad():
        cache = model(ids[:, :7], use_cache=True).past_key_values
        with watch(model, ["first_token_attention", "attention_entropy", "mean_distance"]) as seen:
            for t in range(7, 10):
                cache = model(ids[:, t : t + 1], past_key_values=cache, use_cache=True).past_key_values
        whole = models.model("llama", "eager").eval()
        attentions = whole(ids, output_attentions=True).attentions
    sequences = [(b, 0, [7, 8, 9]) for b in range(2)]
    for row, weights in zip(seen.layers, attentions, strict=True):
        expected = reference.figures(weights, sequences)
        reference.assert_row(row, {key: expected[key] for key in row.keys() & expected.keys()})


@pytest.mark.parametrize("causal", [False, True])
def test_function_imported_earlier_is_seen(causal):
    model, x = nn.ModuleDict({"a": Attention(is_causal=causal)}), torch.randn(2, 9, 32)
    with watch(model, "all") as seen:
        model["a"](x)
    visible = torch.ones(9, 9, dtype=torch.bool)
    expected = reference.figures(model["a"].weights(x, visible.tril() if causal else visible), whole(2, 9))
    reference.assert_row(seen.layers[0], expected)


def test_sinks_of_each_query_equal_the_weights_of_the_model():
    if not hasattr(transformers, "Inkling2ForCausalLM"):
        pytest.skip(f"transformers {transformers.__version__} has no Inkling2ForCausalLM")
    script, kind = reference.small_models(), transformers.Inkling2ForCausalLM
    model = script.made(kind, script.config_of(kind), "eager").eval()
    with watch(model, "all") as seen, torch.no_grad():
        weights = model(models.tokens(2, 9), output_attentions=True).attentions
    assert not seen.not_seen and all((w.sum(-1) < 0.999).all() for w in weights)
    rows = [row for row in seen.layers if row["module"].endswith("self_attn")]
    for row, w in zip(rows, weights, strict=True):
        reference.assert_row(row, reference.figures(w, whole(2, 9)))


@pytest.mark.parametrize("float_mask", [False, True])
def test_function_with_mask_of_windows_is_null_for_first_token(float_mask):
    visible = torch.ones(9, 9, dtype=torch.bool).tril().triu(-3)
    mask = torch.zeros(9, 9).masked_fill(~visible, -math.inf) if float_mask else visible
    model, x = nn.ModuleDict({"a": Attention(attn_mask=mask)}), torch.randn(2, 9, 32)
    with watch(model, "all") as seen:
        model["a"](x)
    row = seen.layers[0]
    assert row["first_token_attention"] is None and "sink_rate" not in seen.scalars()
    reference.assert_row(row, reference.figures(model["a"].weights(x, visible), whole(2, 9)))


def test_function_of_headgate_is_seen_with_its_gate():
    def attend(q, k, v):
        return gated_attention(q, k, v, z, causality="causal")

    z = torch.randn(2, 4, 9, 1)
    model, x = nn.ModuleDict({"a": Attention(attend)}), torch.randn(2, 9, 32)
    with watch(model, "all") as seen:
        model["a"](x)
    weights = model["a"].weights(x, torch.ones(9, 9, dtype=torch.bool).tril())
    row = seen.layers[0]
    reference.assert_row(row, reference.figures(weights, whole(2, 9)))
    assert row["gate_mean"] == pytest.approx(z.sigmoid().mean().item(), rel=1e-5)
    passed = (weights[..., 0] * z.sigmoid()[..., 0])[:, :, 1:].mean().item()
    assert row["first_token_attention_gated"] == pytest.approx(passed, rel=1e-5)


@pytest.mark.parametrize("block", [1, 2])
@pytest.mark.parametrize("first", ["all", "even"])
def test_function_of_headgate_with_lists_of_keys_equals_its_weights(first, block):
    """Lists that skip the token before a query, and with "even" those of odd queries the first token too."""
    lists = torch.tensor([[-(i % 2) if first == "even" else 0, i // block, i // (2 * block)] for i in range(9)])

    def attend(q, k, v):
        return gated_attention(q, k, v, causality="causal", key_indices=lists, key_block_size=block)

    model, x = nn.ModuleDict({"a": Attention(attend)}), torch.randn(2, 9, 32)
    with watch(model, "all") as seen:
        model["a"](x)
    weights = model["a"].weights(x, (torch.arange(9) // block == lists[..., None]).any(1).tril())
    row, expected = seen.layers[0], reference.figures(weights, whole(2, 9))
    if first == "even":  # a first token that is not listed has a weight of 0, unlike one that a window hides
        assert row["first_token_attention"] == pytest.approx(weights[:, :, 1:, 0].mean().item(), rel=1e-5)
        expected = {name: expected[name] for name in ("attention_entropy", "mean_distance")}
    reference.assert_row(row, expected)


@pytest.mark.parametrize("batch_first", [False, True])
def test_multihead_attention_cross_with_padding_equals_its_weights(batch_first):
    model = nn.ModuleDict({"mha": nn.MultiheadAttention(32, 4, kdim=24, vdim=24, batch_first=batch_first)})
    x, memory, padding = torch.randn(2, 5, 32), torch.randn(2, 7, 24), torch.zeros(2, 7, dtype=torch.bool)
    padding[0, :2] = True
    if not batch_first:
        x, memory = x.transpose(0, 1), memory.transpose(0, 1)
    with watch(model, "all") as seen:
        _, weights = model["mha"](x, memory, memory, key_padding_mask=padding, average_attn_weights=False)
    assert seen.layers[0]["kind"] == "cross"
    reference.assert_row(seen.layers[0], reference.figures(weights, [(0, 2, range(5)), (1, 0, range(5))], "cross"))


def test_multihead_attention_causal_mask_equals_its_weights():
    model, x = nn.ModuleDict({"mha": nn.MultiheadAttention(32, 4, batch_first=True)}), torch.randn(2, 6, 32)
    mask = nn.Transformer.generate_square_subsequent_mask(6)
    with watch(model, "all") as seen:
        _, weights = model["mha"](x, x, x, attn_mask=mask, average_attn_weights=False)
    reference.assert_row(seen.layers[0], reference.figures(weights, whole(2, 6)))
    assert seen.layers[0]["kind"] == "causal"


def test_gated_delta_net_hidden_weights_give_its_outputs():
    B, T, H, D = 2, 11, 3, 8
    q, k, v = (torch.randn(B, H, T, D) for _ in range(3))
    g, beta = -torch.rand(B, H, T, D), torch.rand(B, H, T, 1)

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.part = nn.Identity()

        def forward(self, q):
            return linear_attention(q, k, v, g, beta, l2_norm=1e-6)

    model = nn.ModuleDict({"a": Layer()})
    with watch(model, "all", rows=[0, 4, 10]) as seen:
        y = model["a"](q)
    weights = seen.rows["a"]
    assert torch.allclose(weights @ v, y[:, :, [0, 4, 10]], atol=1e-5)
    row = seen.layers[0]
    assert row["kind"] == "linear"
    assert row["mean_decay"] == pytest.approx(g.exp().mean().item(), rel=1e-5)
    assert row["half_life"] == pytest.approx(math.log(2) / -g.mean().item(), rel=1e-5)
    assert row["mean_beta"] == pytest.approx(beta.mean().item(), rel=1e-5)
    with watch(model, "all", rows=[T, T + 1]) as seen:  # the call has none of these queries
        model["a"](q)
    assert not seen.not_seen and seen.rows["a"].shape == (B, H, 0, T)


def test_packed_linear_attention_rows_and_empty_last_sequence_equal_sequences_apart():
    B, T, H, D = 2, 8, 2, 4
    q, k, v = (torch.randn(B, T, H, D) for _ in range(3))
    g, beta = -torch.rand(B, T, H, 1), torch.rand(B, T, H, 1)
    given = {"q": q, "k": k, "v": v, "decay": g, "beta": beta, "scale": None, "l2_norm": 1e-6, "state": None}
    begins = torch.tensor([0, 3, 8, 16, 16])
    call = {**given, "cu_seqlens": begins}
    found = hidden_weights(call, torch.arange(T))
    packed = [x.flatten(0, 1)[None] for x in (q, k, v, g, beta)]
    y = linear_attention(*packed, layout="bthd", l2_norm=1e-6, cu_seqlens=begins.int())
    assert torch.allclose(found @ v.transpose(1, 2), y.view(B, T, H, D).transpose(1, 2), atol=1e-5)
    for b, first, last in ((0, 0, 3), (0, 3, 8), (1, 0, 8)):
        part = {name: x[b : b + 1, first:last] if isinstance(x, torch.Tensor) else x for name, x in given.items()}
        apart = hidden_weights({**part, "cu_seqlens": None}, torch.arange(last - first))
        assert close(found[b, :, first:last, first:last], apart[0])
    counted = sample_of(call, None, []).after_first
    assert [at.tolist() for at in (~counted).nonzero()] == [[0, 0], [0, 3], [1, 0]]


def test_linear_attention_left_padding_equals_sequences_apart():
    model = models.model("qwen3.5", "sdpa").eval()
    ids, mask = models.tokens(2, 12), torch.ones(2, 12, dtype=torch.int64)
    mask[1, :5] = 0
    with torch.no_grad():
        with watch(model, ["mean_decay", "mean_beta", "reach", "output_gate_mean"]) as padded:
            model(ids, attention_mask=mask)
        apart = watch(model, ["mean_decay", "mean_beta", "reach", "output_gate_mean"])
        apart.start()
        model(ids[:1])
        model(ids[1:, 5:])
        apart.stop()
    assert padded.scalars() == pytest.approx(apart.scalars(), rel=1e-4)


# -- figures


def test_maps_of_chosen_queries_equal_returned_weights():
    model, ids = models.model("gpt-oss", "eager").eval(), models.tokens(2, 12)
    with torch.no_grad():
        with watch(model, rows=[0, 7, 11]) as seen:
            model(ids)
        attentions = model(ids, output_attentions=True).attentions
    for rows, weights in zip(seen.rows.values(), attentions, strict=True):
        assert close(rows, weights[:, :, [0, 7, 11]])


def test_head_frame_equals_returned_weights():
    model, ids = models.model("llama", "eager").eval(), models.tokens(2, 12)
    with torch.no_grad():
        with watch(model, "all") as seen:
            model(ids)
        attentions = model(ids, output_attentions=True).attentions
    frame = seen.head_frame()
    assert len(frame) == 2 * 4
    for name, weights in zip(("model.layers.0.self_attn", "model.layers.1.self_attn"), attentions, strict=True):
        for key, heads in reference.figures(weights, whole(2, 12))["heads"].items():
            assert close(torch.tensor(frame.loc[name][key].to_numpy()), heads), key


def calls():
    """Calls with each rule, and their dense scores' rules."""
    B, Hq, Hkv, T, D = 2, 4, 2, 40, 16
    q, k = torch.randn(B, Hq, T, D), torch.randn(B, Hkv, T, D)
    keys = torch.ones(B, 1, 1, T, dtype=torch.bool)
    keys[1, :, :, :6] = False
    begins = torch.tensor([0, 7, 40, 63, 80])
    return {
        "causal": AttentionCall(q, k, causal=True),
        "window": AttentionCall(q, k, causal=True, window=9),
        "padding": AttentionCall(q, k, causal=True, mask=keys),
        "encoder": AttentionCall(q, k, mask=keys, kind="bidirectional"),
        "sinks": AttentionCall(q, k, causal=True, sinks=torch.randn(Hq)),
        "sinks of each query": AttentionCall(q, k, causal=True, sinks=torch.randn(B, Hq, T)),
        "packed, sinks of each query": AttentionCall(q, k, causal=True, cu_seqlens=begins, sinks=torch.randn(1, Hq, T)),
        "softcap and bias": AttentionCall(q, k, causal=True, softcap=3.0, bias=torch.randn(1, Hq, T, T)),
        "packed": AttentionCall(q, k, causal=True, cu_seqlens=begins),
        "mask": AttentionCall(q, k, mask=(torch.rand(B, 1, T, T) < 0.7).tril() | torch.eye(T, dtype=torch.bool)),
        "f64": AttentionCall(q.double(), k.double(), causal=True),
        "bf16": AttentionCall(q.bfloat16(), k.bfloat16(), causal=True),
    }


@pytest.mark.parametrize("name", list(calls()))
def test_blocks_in_pytorch_equal_kernels(name, monkeypatch):
    """The path of CUDA tensors, on CPU tensors, with blocks of a few queries."""
    call = calls()[name]
    monkeypatch.setattr(statistics, "BLOCK_ELEMENTS", 7 * 2 * 4 * 40)
    geometry, wanted = geometry_of(call), {"row_max", "entropy", "distance"}
    kernels = statistics.statistics_of(call, geometry, wanted)
    blocks = statistics.by_blocks(call, geometry, wanted)
    assert kernels.keys() == blocks.keys() == {"lse", *wanted}
    kept = geometry.after_first[:, None].expand_as(blocks["lse"])
    for key in kernels:
        assert torch.allclose(kernels[key][kept], blocks[key][kept], rtol=1e-4, atol=2e-5), key


@pytest.mark.parametrize("dtypes", [statistics.KERNEL_DTYPES, ()])
@pytest.mark.parametrize("sink", [0.0, 14.0, 100.0])
def test_statistics_of_keys_beside_a_large_sink_equal_those_without(sink, dtypes, monkeypatch):
    monkeypatch.setattr(statistics, "KERNEL_DTYPES", dtypes)
    q, k = torch.randn(2, 4, 40, 16), torch.randn(2, 2, 40, 16)
    plain, call = AttentionCall(q, k, causal=True), AttentionCall(q, k, causal=True, sinks=torch.full((4,), sink))
    expected, found = (
        statistics.statistics_of(x, geometry_of(x), {"distance", "entropy_of_keys"}) for x in (plain, call)
    )
    assert found.keys() == {"lse", "distance", "entropy_of_keys"}
    for key in ("distance", "entropy_of_keys"):
        assert torch.allclose(found[key], expected[key], rtol=1e-5, atol=1e-6), key
    assert torch.allclose(found["lse"], torch.logaddexp(expected["lse"], torch.tensor(sink).double()), atol=1e-5)


def test_largest_logit_is_that_of_the_scores():
    model, x = nn.ModuleDict({"a": Attention(is_causal=True)}), torch.randn(2, 9, 32)
    with watch(model, "largest_logit") as seen:
        model["a"](x)
    q, k, _ = model["a"].heads(x)
    logits = (q @ k.transpose(-1, -2) / 8**0.5).masked_fill(~torch.ones(9, 9, dtype=torch.bool).tril(), -math.inf)
    assert seen.head_frame()["largest_logit"].tolist() == pytest.approx(logits.amax((0, 2, 3)).tolist(), rel=1e-5)


def test_norm_ratios_of_first_tokens():
    model, x = nn.ModuleDict({"a": Attention(is_causal=True)}), torch.randn(2, 9, 32)
    with watch(model, "all") as seen:
        model["a"](x)
    for word, part in zip(("query", "key", "value"), model["a"].heads(x)):
        norms = part.norm(dim=-1)
        expected = (norms[..., 0] / norms[..., 1:].mean(-1)).mean().item()
        assert seen.layers[0][f"first_token_{word}_norm_ratio"] == pytest.approx(expected, rel=1e-5)


def test_massive_activation_names_token_and_channel():
    model, ids = models.model("llama", "sdpa").eval(), models.tokens(2, 12)
    with torch.no_grad():
        model.model.embed_tokens.weight[5, 7] = 500.0
        ids[:], ids[1, 3] = 9, 5
        with watch(model, "all") as seen:
            model(ids)
        hidden = model(ids, output_hidden_states=True).hidden_states
    row = seen.layers[0]
    assert row["massive_activation"] == hidden[1].abs().max().item()
    assert [row[f"massive_activation_{what}"] for what in ("sequence", "token", "channel")] == [1, 3, 7]
    for key, x in (("kurtosis", hidden[1].double()), ("kurtosis_without_first", hidden[1][:, 1:].double())):
        centred = x - x.mean()
        assert row[key] == pytest.approx((centred.pow(4).mean() / centred.square().mean().square()).item(), rel=1e-6)


def test_retrofitted_gate_is_read_as_applied():
    headgate.torch.transformers.register()
    model = headgate.torch.retrofit(models.model("llama", "headgate"), "g1-elementwise-sigmoid2").eval()
    attention, found = model.model.layers[0].self_attn, []
    nn.init.normal_(attention.attention_gate.weight)
    attention.attention_gate.register_forward_hook(lambda _, __, z: found.append(2 * z.sigmoid()))
    with torch.no_grad(), watch(model) as seen:
        model(models.tokens(2, 10))
    assert seen.layers[0]["gate_mean"] == pytest.approx(found[0].mean().item(), rel=1e-5)
    assert seen.layers[0]["gate_below_0.1"] == pytest.approx((found[0] < 0.1).float().mean().item(), rel=1e-5)
    assert seen.layers[1]["gate_mean"] == pytest.approx(1.0)


def test_given_gates_are_read():
    model = nn.ModuleDict({"g": nn.Linear(32, 4)})
    x = torch.randn(2, 9, 32)
    with watch(model, "all", gates={"g": lambda out: out.sigmoid().unsqueeze(-1)}) as seen:
        z = model["g"](x)
    assert seen.head_frame()["gate_mean"].tolist() == pytest.approx(z.sigmoid().mean((0, 1)).tolist(), rel=1e-5)
    expected = torch.stack([torch.histc(z.sigmoid()[..., h], 20, 0, 1) for h in range(4)])
    assert torch.equal(seen.gate_histograms["g"], expected.double())


# -- pooling


def test_micro_batches_are_weighted_by_counts():
    model = models.model("llama", "eager").eval()
    batches = watch_ranks.batches()
    with torch.no_grad():
        with watch(model, "all") as seen:
            for ids in batches:
                model(ids)
        attentions = [model(ids, output_attentions=True).attentions for ids in batches]
    for row, *weights in zip(seen.layers, *attentions, strict=True):
        parts = [reference.figures(w, whole(*ids.shape)) for w, ids in zip(weights, batches)]
        counts = [ids.shape[0] * (ids.shape[1] - 1) for ids in batches]
        for key in ("first_token_attention", "attention_entropy"):
            expected = sum(part[key] * n for part, n in zip(parts, counts)) / sum(counts)
            assert row[key] == pytest.approx(expected, rel=1e-5)
        heads = sum(part["heads"]["first_token_attention"] * n for part, n in zip(parts, counts)) / sum(counts)
        assert row["sink_rate"] == (heads > 0.3).double().mean().item()


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_layers_count_once(reentrant):
    ids = models.tokens(2, 12)
    found = []
    for checkpoints in (False, True):
        model = models.model("llama", "sdpa")
        if checkpoints:
            model.gradient_checkpointing_enable({"use_reentrant": reentrant})
        with watch(model, "all") as seen:
            model(ids, labels=ids).loss.backward()
        found.append((seen.scalars(), {name: sums.counts for name, sums in seen._sums.items()}))
    assert found[0][0] == found[1][0]
    for name, counts in found[0][1].items():
        assert all(torch.equal(count, found[1][1][name][key]) for key, count in counts.items())


@pytest.mark.parametrize("kind", ["plain", "ddp", "fsdp"])
def test_ranks_pool_to_the_figures_of_one_process(kind):
    with watch(models.model("llama", "sdpa"), "all") as seen:
        for ids in watch_ranks.batches():
            seen.model(ids)
    for ours in processes.run(2, watch_ranks.pooled, kind):
        assert ours == pytest.approx(seen.scalars(), rel=1e-6)


def test_every_watches_the_first_of_n():
    model, ids = models.model("llama", "sdpa").eval(), models.tokens(1, 8)
    seen, watched = watch(model), []
    for _ in range(5):
        with seen.every(3) as on, torch.no_grad():
            model(ids)
        watched.append(on)
    assert watched == [True, False, False, True, False]
    assert seen.scalars()


# -- loud when blind


@pytest.mark.parametrize("family", ["bloom", "gptj", "falcon"])
def test_family_beside_the_interface_is_named(family):
    script = reference.small_models()
    kind = getattr(transformers, script.TASKS["causal"][family])
    config = script.config_of(kind)
    model = script.made(kind, config, "eager").eval()
    seen = watch(model)
    with pytest.warns(UserWarning, match="is not seen: it made no call of attention"), torch.no_grad():
        with seen:
            model(models.tokens(1, 8))
    assert len(seen.not_seen) == config.num_hidden_layers and not seen.scalars(by_layer=False).keys() - {
        "massive_activation"
    }


def test_unknown_argument_is_refused_by_name():
    model = models.model("llama", "sdpa").eval()
    with (
        pytest.warns(UserWarning, match="argument 'temperature' of the attention function is unknown"),
        watch(model) as seen,
    ):
        with torch.no_grad():
            model(models.tokens(1, 8), temperature=2.0)
    assert len(seen.not_seen) == 2
    assert "first_token_attention" not in seen.scalars()


def test_errors_name_argument_and_value():
    model = models.model("llama")
    with pytest.raises(ValueError, match="figure 'sink' is none of all, first_token_attention, "):
        watch(model, ["sink"])
    assert [figure.key for figure in watch(model, iter(["sink_rate"])).figures] == ["sink_rate"]
    for rows, value in (([0, 2.5], "2.5"), (-1, "-1"), (torch.tensor([math.nan]), "nan"), ([True, False], "True")):
        with pytest.raises(ValueError, match=f"^watch: rows contains {value} but must hold positions"):
            watch(model, rows=rows)
    with pytest.raises(ValueError, match=r"every\(0\): must be at least 1"):
        with watch(model).every(0):
            pass
    with pytest.raises(AttributeError, match="nothing"):
        watch(model, blocks=["nothing"])


def test_reference_lists_every_figure():
    page = (Path(__file__).parents[3] / "docs" / "reference" / "pytorch.md").read_text(encoding="utf-8")
    for figure in FIGURES:
        row = f"| `{figure.key}` | {figure.formula} | {'yes' if figure.by_default else ''} |"
        assert row.replace("|  |", "| |") in page, row


def test_headgate_attention_lends_its_log_sum_exp(monkeypatch):
    headgate.torch.transformers.register()
    model, ids = models.model("llama", "headgate"), models.tokens(2, 12)
    with torch.no_grad(), watch(model, ["first_token_attention", "attention_entropy"]) as expected:
        model(ids)
    monkeypatch.setattr(statistics, "lse_by_kernel", None)
    with watch(model, ["first_token_attention", "attention_entropy"]) as seen:
        model(ids).logits.sum().backward()
    # Kernels that compute lse alone, without values, round otherwise in the last bits of f32.
    assert seen.scalars() == pytest.approx(expected.scalars(), rel=1e-6)
