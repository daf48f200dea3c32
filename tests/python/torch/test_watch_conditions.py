# SPDX-License-Identifier: Apache-2.0
"""watch() under autocast, inference mode, compilation, threads, caches with windows, copies and overlapping handles."""

import copy
import functools
import threading
import warnings

import pytest
import torch
import transformers
from torch import nn
from torch.nn import functional as F
from torch.nn.attention.bias import causal_lower_right

import headgate.torch.transformers
import models
from headgate.torch import gated_attention, observers, watch
from headgate.torch.packed_rows import begins_of
from headgate.torch.watch import gates
from headgate.torch.watch.call import AttentionCall, geometry_of, sequence_numbers
from headgate.torch.watch.masks import find_rules
from headgate.torch.watch.sample import AttentionSample, TokenVectors

FIRST = "first_token_attention"


class Weights(nn.Module):
    """Attention with parameters of its own and no modules in it."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(32, 96))

    def forward(self, x, rows=slice(None), mask=None):
        q, k, v = (part.unflatten(-1, (4, 8)).transpose(1, 2) for part in (x @ self.w).chunk(3, -1))
        return F.scaled_dot_product_attention(q[:, :, rows], k, v, mask, is_causal=mask is None)


def padded(ids):
    mask = torch.ones_like(ids)
    mask[0, :3] = 0
    return mask


def test_figures_under_autocast_are_computed_in_f32():
    x, attention = torch.randn(2, 9, 32), Weights()

    def attend(of):
        return F.scaled_dot_product_attention(*of, is_causal=True)

    class Given(nn.Module):
        def forward(self, *of):
            return attend(of)

    of = [(3 * part).unflatten(-1, (4, 8)).transpose(1, 2).detach() for part in (x @ attention.w).chunk(3, -1)]
    found = []
    for enabled in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled), watch(Given(), "all", rows=[5]) as seen:
            seen.model(*of)
        found.append((seen.scalars(), seen.rows[""]))
    assert found[0][0] == found[1][0] and torch.equal(found[0][1], found[1][1])


def test_causal_bias_of_pytorch_is_the_mask_that_it_stands_for():
    """It holds no values, and PyTorch makes the call again without it."""
    x, found = torch.randn(2, 9, 32), []
    masks = (causal_lower_right(4, 9), torch.ones(4, 9, dtype=torch.bool).tril(5))
    attention = Weights()
    for mask in masks:
        with watch(attention, "all") as seen:
            y = attention(x, slice(5, None), mask)
        found.append((y, seen.scalars()))
    torch.testing.assert_close(found[0][0], found[1][0])
    assert found[0][1] == found[1][1] and found[0][1]


def test_inference_mode_with_padding_equals_no_grad():
    model, tokens, found = models.model("llama", "sdpa").eval(), models.tokens(2, 12), []
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            ids = tokens.clone()
            with watch(model, "all") as seen:
                model(ids, attention_mask=padded(ids))
        assert not seen.not_seen
        found.append(seen.scalars())
    assert found[0] == found[1]


def test_default_dtype_of_16_bits_does_not_change_linear_attention_with_padding():
    model, ids, found = models.model("qwen3-next").eval(), models.tokens(2, 300), []
    for dtype in (torch.float32, torch.bfloat16):
        torch.set_default_dtype(dtype)
        try:
            with torch.no_grad(), watch(model, ("hidden_first_token", "reach"), rows=[5, 280]) as seen:
                model(ids, attention_mask=padded(ids))
        finally:
            torch.set_default_dtype(torch.float32)
        assert not seen.not_seen
        found.append((seen.scalars(), seen.rows["model.layers.0.linear_attn"]))
    assert found[0][0] == found[1][0] and torch.equal(found[0][1], found[1][1])


def test_default_device_does_not_change_where_masks_and_packed_rows_are_read():
    visible, numbers = torch.ones(2, 1, 5, 7, dtype=torch.bool).tril(2), torch.tensor([[0, 0, 1], [0, 1, 1]])
    compiled = torch.compile(begins_of, backend="eager")
    with torch.device("meta"):
        rules, begins = find_rules(visible, None, 5, 7, None), compiled(numbers)
    assert rules.causal and rules.mask is None
    assert begins.device.type == "cpu" and begins.unique().tolist() == [0, 2, 3, 4, 6]


def test_default_device_does_not_change_weights_of_rows():
    model, x, found = Weights(), torch.randn(2, 9, 32), []
    for device in ("cpu", "meta"):
        with torch.device(device), watch(model, rows=[1, 4]) as seen:
            model(x)
        found.append((seen.scalars(), seen.rows[""]))
    assert found[0][0] == found[1][0] and torch.equal(found[0][1], found[1][1])


def test_attention_without_submodules_is_seen():
    x = torch.randn(2, 9, 32)
    with watch(Weights()) as alone:
        alone.model(x)
    with watch(nn.Sequential(alone.model)) as inside:
        inside.model(x)
    assert alone.scalars(by_layer=False) == inside.scalars(by_layer=False)
    assert [row["module"] for row in alone.layers + inside.layers] == ["", "0"]


def test_chunk_of_queries_with_cache_is_self_attention():
    model, x = Weights(), torch.randn(2, 9, 32)
    with watch(model, rows=range(5, 9)) as whole:
        model(x)
    with watch(model) as seen:
        model(x, slice(5, 9), torch.ones(4, 9, dtype=torch.bool).tril(5))
    assert [row["kind"] for row in seen.layers] == ["causal"]
    assert seen.scalars()[FIRST] == pytest.approx(whole.rows[""][..., 0].mean().item(), rel=1e-5)


@pytest.mark.parametrize("size", [(0, 9), (2, 0)])
def test_empty_batch_adds_nothing(size):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([models_block()])

        def forward(self, x):
            return self.layers[0](x)

    def models_block():
        class Attention(Weights):
            def forward(self, x):
                return super().forward(x).transpose(1, 2).flatten(2)

        return Attention()

    model, x = Model(), torch.randn(2, 9, 32)
    with watch(model, "all") as expected:
        model(x)
    with watch(model, "all") as seen:
        model(torch.randn(*size, 32))
        model(x)
    assert seen.scalars() == expected.scalars() and not seen.not_seen


def test_sequence_of_padding_alone_counts_nowhere():
    model, ids = models.model("llama", "sdpa").eval(), models.tokens(2, 12)
    mask = torch.ones_like(ids)
    mask[1] = 0
    with torch.no_grad():
        with watch(model, "all") as seen:
            model(ids, attention_mask=mask)
        with watch(model, "all") as expected:
            model(ids[:1])
    assert seen.scalars() == pytest.approx(expected.scalars(), rel=1e-5)


def test_causality_and_window_beside_a_mask_of_pairs_hide_keys():
    T, q = 8, torch.randn(1, 2, 8, 8)
    found = geometry_of(AttentionCall(q, q, causal=True, window=3, mask=torch.ones(1, 1, T, T, dtype=torch.bool)))
    plain = geometry_of(AttentionCall(q, q, causal=True, window=3))
    assert torch.equal(found.sees_first, plain.sees_first) and found.sees_first.sum() == 3
    whole = geometry_of(
        AttentionCall(q, q, causal=True, mask=torch.ones(1, 1, T, T, dtype=torch.bool).triu(-T).tril(2))
    )
    assert whole.keys.tolist() == [list(range(1, T + 1))]


def test_window_of_one_query_beside_padding_hides_the_first_key():
    k, mask = torch.randn(2, 2, 8, 8), torch.ones(2, 1, 1, 8, dtype=torch.bool)
    mask[0, ..., :4] = False
    found = geometry_of(AttentionCall(k[:, :, -1:], k, causal=True, window=4, mask=mask))
    assert found.sees_first.tolist() == [[True], [False]]


def test_nan_in_padding_reaches_no_figure():
    class Padded(nn.Module):
        def __init__(self):
            super().__init__()
            self.g = nn.Identity()

        def forward(self, x, attention_mask):
            return self.g(x)

    x, mask = torch.randn(2, 6, 32), torch.ones(2, 6, dtype=torch.bool)
    mask[0, :3] = False
    lost = x.masked_fill(~mask[..., None], torch.nan)
    found = []
    for given in (x, lost):
        model = Padded()
        with watch(model, "all", gates={"g": lambda out: out.unflatten(-1, (4, 8))}) as seen:
            model(given, attention_mask=mask)
        heads = given.unflatten(-1, (4, 8)).transpose(1, 2)
        call = AttentionCall(heads, heads, causal=True, mask=mask[:, None, None])
        sample = AttentionSample(call, geometry_of(call), {})
        powers = TokenVectors(given[:, None], mask, mask).powers(mask)
        found.append([seen.layers, sample.norm_ratio(heads)[0].tolist(), [x.tolist() for x in powers]])
    assert found[0] == found[1]
    assert found[0][0][0]["gate_mean"] is not None


def test_padding_given_by_position_equals_that_by_name():
    model, ids, found = models.model("qwen3.5", "sdpa").eval(), models.tokens(2, 12), []
    with torch.no_grad():
        for args, kwargs in (((padded(ids),), {}), ((), {"attention_mask": padded(ids)})):
            with watch(model, "all") as seen:
                model(ids, *args, **kwargs)
            found.append(seen.scalars())
    assert found[0] == found[1]


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_window_that_has_dropped_the_first_token_from_the_cache_is_null(implementation):
    model, ids = models.model("qwen3 with windows", implementation).eval(), models.tokens(2, 12)
    with torch.no_grad():
        cache = model(ids[:, :3], use_cache=True).past_key_values
        with watch(model) as short:
            cache = model(ids[:, 3:4], past_key_values=cache, use_cache=True).past_key_values
        cache = model(ids[:, 4:8], past_key_values=cache, use_cache=True).past_key_values
        with watch(model) as long:
            model(ids[:, 8:9], past_key_values=cache, use_cache=True)
    assert model.config.layer_types == ["sliding_attention", "full_attention"] and model.config.sliding_window == 5
    assert short.layers[0][FIRST] is not None
    assert long.layers[0][FIRST] is None and long.layers[1][FIRST] is not None


def test_listed_first_key_in_a_cache_that_dropped_nothing_is_seen():
    listed = torch.zeros(1, 1, 2, 6, dtype=torch.bool)
    listed[..., [0, 3]] = True
    rules = {"causal": True, "window": 8, "listed": listed}
    q, k = torch.randn(1, 2, 2, 8), torch.randn(1, 2, 6, 8)
    kept, dropped = (geometry_of(AttentionCall(q, k, positions=torch.tensor([[p, p + 1]]), **rules)) for p in (4, 5))
    assert kept.sees_first.tolist() == [[True, True]] and kept.keys.tolist() == [[2, 2]]
    assert dropped.sees_first.tolist() == [[False, False]]


def test_keys_of_packed_bidirectional_rows_are_those_of_the_sequence():
    B, T = 3, 12
    q, begins = torch.randn(B, 2, T, 8), torch.tensor([0, 3, 3, 12, 17, 30, 36])
    visible = torch.rand(B, 1, 1, T) < 0.7
    sequence = sequence_numbers(begins, B, T)
    same = sequence[:, :, None] == sequence[:, None]
    found = geometry_of(AttentionCall(q, q, cu_seqlens=begins, mask=visible))
    assert torch.equal(found.keys, (same & visible[:, 0]).sum(-1))


@pytest.mark.parametrize("causality", ["none", "causal"])
def test_mask_of_pairs_in_a_packed_batch_keeps_sequences_apart(causality):
    T, begins = 10, torch.tensor([0, 4, 10], dtype=torch.int32)
    mask = (torch.rand(1, 1, T, T) < 0.7) | torch.eye(T, dtype=torch.bool)
    q, k, v = (torch.randn(1, 2, T, 8) for _ in range(3))

    class Packed(Weights):
        def forward(self, q):
            return gated_attention(q, k, v, mask=mask, causality=causality, cu_seqlens_q=begins, cu_seqlens_k=begins)

    model = nn.ModuleDict({"a": Packed()})
    with watch(model, rows=list(range(T))) as seen:
        y = model["a"](q)
    assert torch.allclose(seen.rows["a"] @ v, y, atol=1e-5)
    model = nn.ModuleDict({"cross_attention": Packed()})
    with pytest.warns(UserWarning, match="packed cross-attention is not read"), watch(model) as seen:
        model["cross_attention"](q)
    assert not seen.layers


def test_rows_of_a_prompt_stay_while_tokens_are_generated():
    model, ids = models.model("llama", "sdpa").eval(), models.tokens(2, 12)
    with watch(model, rows=[3]) as seen:
        model.generate(ids, max_new_tokens=4, min_new_tokens=4, do_sample=False)
    assert seen.rows["model.layers.0.self_attn"].shape == (2, 4, 1, 12)


def test_handles_that_end_in_the_order_of_their_start_leave_nothing_behind():
    model, ids = models.model("llama", "sdpa").eval(), models.tokens(2, 12)
    interface = transformers.AttentionInterface.__dict__["get_interface"]
    custom = Weights()
    first, second, third = watch(model), watch(model), watch(custom)
    for seen in (first, second, third):
        seen.start()
    with torch.no_grad():
        model(ids)
    first.stop()
    with torch.no_grad():
        model(ids)
    custom(torch.randn(2, 9, 32))
    second.stop()
    third.stop()
    assert first.scalars() == second.scalars() and third.scalars()
    assert transformers.AttentionInterface.__dict__["get_interface"] is interface
    assert not any("forward" in vars(module) for module in model.modules())
    assert torch.overrides._get_current_function_mode() is None


def test_copy_of_a_watched_model_is_a_model_of_its_own():
    model, ids = models.model("llama", "sdpa").eval(), models.tokens(2, 12)
    with watch(model) as seen, torch.no_grad():
        model(ids)
        other = copy.deepcopy(model)
    for parameter in other.parameters():
        nn.init.zeros_(parameter)
    with torch.no_grad():
        assert other(ids).logits.abs().max() == 0
    assert seen.scalars()


def test_replicas_of_data_parallel_are_refused():
    model = models.model("llama", "sdpa")
    with warnings.catch_warnings(), watch(model):
        warnings.simplefilter("ignore")
        with pytest.raises(RuntimeError, match="nn.DataParallel copies a watched model to other threads"):
            model.model.layers[0]._replicate_for_data_parallel()
    model.model.layers[0]._replicate_for_data_parallel()


def test_other_thread_is_named():
    model, ids = models.model("llama", "sdpa").eval(), models.tokens(2, 12)
    with pytest.warns(UserWarning, match="it ran in another thread than start"), watch(model) as seen:
        thread = threading.Thread(target=lambda: model(ids))
        thread.start()
        thread.join()
    assert len(seen.not_seen) == 2 and not seen.scalars()


def test_log_sum_exp_of_another_thread_is_not_kept():
    q = torch.randn(1, 2, 5, 8)
    call = functools.partial(gated_attention, q, q, q, return_lse=True)
    with observers.kept_lse() as kept:
        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
        assert not kept
        _, lse = call()
    assert len(kept) == 1 and torch.equal(kept[0].to(lse.dtype), lse)


@pytest.mark.parametrize("of", ["model", "layers", "submodule"])
def test_compiled_model_is_named(of):
    model, ids = models.model("llama", "sdpa").eval(), models.tokens(2, 12)
    called = model
    if of == "model":
        called = torch.compile(model, backend="aot_eager", fullgraph=True)
    elif of == "layers":
        for layer in model.model.layers:
            layer.compile(backend="aot_eager", fullgraph=True)
    else:
        model.model.layers[1] = torch.compile(model.model.layers[1], backend="aot_eager")
    why = "no module of the model ran in Python" if of == "model" else "it is compiled"
    with torch.no_grad():
        plain = called(ids).logits
        with pytest.warns(UserWarning, match=why), watch(called) as seen:
            assert torch.equal(called(ids).logits, plain)
        assert len(seen.not_seen) == {"model": 0, "layers": 2, "submodule": 1}[of]
        assert len(seen.probe(input_ids=ids).layers) == 2 and not seen.not_seen


def test_long_watch_keeps_no_masks():
    model, ids = models.model("llama", "eager").eval(), models.tokens(2, 12)
    with watch(model) as seen, torch.no_grad():
        for _ in range(3):
            model(ids, attention_mask=padded(ids))
            assert not seen.masks._found and not seen._geometries


@pytest.mark.parametrize("implementation", ["eager", "sdpa", "headgate"])
@pytest.mark.parametrize("family", ["llama", "qwen3 with windows"])
def test_static_cache_gives_the_figures_of_the_whole_sequence(family, implementation):
    headgate.torch.transformers.register()
    model, ids, mask = models.model(family, implementation).eval(), models.tokens(2, 6), torch.ones(2, 6).long()
    mask[1, :2] = 0
    figures, found = [FIRST, "attention_entropy", "mean_distance"], []
    for cache in (None, "static"):
        with watch(model, figures) as seen:
            given = {} if cache is None else {"cache_implementation": cache}
            out = model.generate(ids, attention_mask=mask, max_new_tokens=6, min_new_tokens=6, do_sample=False, **given)
        found.append(seen.scalars())
    mask = F.pad(mask, (0, 5), value=1)
    with watch(model, figures) as seen, torch.no_grad():
        model(out[:, :-1], attention_mask=mask, position_ids=(mask.cumsum(-1) - 1).clamp_min(0))
    assert found[0] == pytest.approx(seen.scalars(), rel=1e-5) and found[1] == pytest.approx(seen.scalars(), rel=1e-5)


@pytest.mark.parametrize("family", ["qwen3.5", "olmo-hybrid"])
def test_linear_attention_that_continues_from_a_state_has_no_first_token(family):
    model, ids = models.model(family, "sdpa").eval(), models.tokens(2, 12)
    figures = ["mean_decay", "hidden_first_token", "reach"]
    with torch.no_grad():
        with watch(model, figures, rows=[0, 2]) as prompt:
            model(ids[:, :6])
        with watch(model, figures, rows=[0, 2]) as seen:
            cache = model(ids[:, :6], use_cache=True).past_key_values
            model(ids[:, 6:], past_key_values=cache, use_cache=True)
        with watch(model, figures) as whole:
            model(ids)
    for key in ("hidden_first_token", "reach"):
        assert seen.scalars()[key] == prompt.scalars()[key]
    assert seen.scalars()["mean_decay"] == pytest.approx(whole.scalars()["mean_decay"])
    assert all(torch.equal(seen.rows[name], rows) for name, rows in prompt.rows.items() if "linear" in name)


@pytest.mark.parametrize("shape", [(4, 9, 9), (1, 4, 9, 9), (4, 1, 9, 9)])
def test_mask_of_any_dimensions_broadcasts_as_in_pytorch(shape):
    model, x = Weights(), torch.randn(4, 9, 32)
    mask = ((torch.rand(shape) < 0.7) | torch.ones(9, 9, dtype=torch.bool).triu(-1)).tril()
    mask[..., 0] = True
    with watch(model, [FIRST]) as seen:
        model(x, mask=mask)
    q, k, _ = (part.unflatten(-1, (4, 8)).transpose(1, 2) for part in (x @ model.w).chunk(3, -1))
    weights = torch.softmax((q @ k.transpose(-1, -2) / 8**0.5).masked_fill(~mask, -torch.inf), -1)
    assert seen.layers[0]["module"] == ""
    heads = seen.head_frame()[FIRST]
    assert heads.tolist() == pytest.approx(weights[:, :, 1:, 0].mean((0, 2)).tolist(), rel=1e-5)


def test_start_that_raises_leaves_nothing_behind(monkeypatch):
    model = models.model("llama", "sdpa")
    interface = transformers.AttentionInterface.__dict__["get_interface"]
    monkeypatch.setattr(gates, "install", None)
    seen = watch(model)
    with pytest.raises(TypeError):
        seen.start()
    assert not seen.on and not any("forward" in vars(module) for module in model.modules())
    assert transformers.AttentionInterface.__dict__["get_interface"] is interface
    assert torch.overrides._get_current_function_mode() is None


def test_block_that_cannot_be_measured_is_named():
    class Layers(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([Weights()])

        def forward(self, x):
            return self.layers[0](x).transpose(1, 2).flatten(2) > 0

    model, x = nn.ModuleDict({"a": Layers()}), torch.randn(2, 9, 32)
    with pytest.warns(UserWarning, match="'a' is not seen: "), watch(model, "all", blocks=["a"]) as seen:
        model["a"](x)
    assert list(seen.not_seen) == ["a"] and seen.layers[0]["module"] == "a.layers.0"


def test_frame_of_heads_may_be_empty():
    with watch(nn.Sequential(Weights()), "largest_logit") as seen:
        pass
    assert len(seen.head_frame()) == 0


class GatedDecoder(nn.Module):
    """Reads an encoder's tokens. Its own tokens have a mask of their own, or none."""

    def __init__(self):
        super().__init__()
        self.attention = headgate.torch.GatedAttention(32, 4)

    def forward(self, x, encoder_hidden_states, attention_mask=None):
        return self.attention(x) + encoder_hidden_states.mean(1, keepdim=True)


class GatedEncoderDecoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = headgate.torch.GatedAttention(32, 4)
        self.decoder = GatedDecoder()

    def forward(self, x, y, attention_mask, decoder_attention_mask=None):
        hidden = self.encoder(x)
        return self.decoder(y, encoder_hidden_states=hidden, attention_mask=decoder_attention_mask)


@pytest.mark.parametrize("own_mask", [False, True])
def test_gates_of_a_decoder_do_not_use_the_padding_of_its_encoder(own_mask):
    torch.manual_seed(0)
    model, x, y = GatedEncoderDecoder().eval(), torch.randn(2, 9, 32), torch.randn(2, 6, 32)
    mask, own = torch.ones(2, 9, dtype=torch.bool), torch.ones(2, 6, dtype=torch.bool)
    mask[1, 5:] = False
    own[0, 4:] = False
    with torch.no_grad():
        with watch(model, ["gate_mean"]) as seen:
            model(x, y, attention_mask=mask, decoder_attention_mask=own if own_mask else None)
        with watch(model.encoder, ["gate_mean"]) as encoder:
            for row in range(2):
                model.encoder(x[row : row + 1, : int(mask[row].sum())])
        with watch(model.decoder.attention, ["gate_mean"]) as decoder:
            for row in range(2):
                model.decoder.attention(y[row : row + 1, : int(own[row].sum()) if own_mask else 6])
    found = {row["module"]: row["gate_mean"] for row in seen.layers}
    assert found["encoder"] == pytest.approx(encoder.layers[0]["gate_mean"], rel=1e-5)
    assert found["decoder.attention"] == pytest.approx(decoder.layers[0]["gate_mean"], rel=1e-5)
