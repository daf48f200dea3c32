# SPDX-License-Identifier: Apache-2.0
"""watch(): the errors of int8 in keys, values and activations, and the tokens that hold the largest of them."""

import functools
import math

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from transformers.models.llama import modeling_llama

import models
import processes
from headgate.torch import watch
from headgate.torch.watch import sample
from headgate.torch.watch.figures import FIGURES

T = 12
INT8 = [figure.key for figure in FIGURES if "int8" in figure.key]
WORDS = {"key": "keys", "value": "values", "activation": "hidden"}
LARGEST = ["largest_key", "largest_value", "massive_activation"]


def rounded(x, scale):
    return x if scale == 0 else scale * torch.round(x / scale)


def parts_of(x, tokens, firsts):
    """{suffix: [(Σ‖x - x̂‖², Σ‖x‖²) of each head]} of x (B,H,T,D), whose tokens are the pairs (sequence, token)."""
    others = [token for token in tokens if token not in firsts]

    def sequence_of(token):
        return max((first for first in firsts if first[0] == token[0] and first <= token), default=None)

    def sums(h, counted, scaled):
        vectors = {(b, t): x[b, h, t].double() for b, t in tokens}
        error = square = 0.0
        for token in counted:
            of = [token] if scaled is None else [x for x in scaled if sequence_of(x) == sequence_of(token)]
            scale = max(vectors[one].abs().max().item() for one in of) / 127
            error += (vectors[token] - rounded(vectors[token], scale)).square().sum().item()
            square += vectors[token].square().sum().item()
        return error, square

    cases = {
        "_per_tensor": (tokens, tokens),
        "_per_tensor_of_others": (others, tokens),
        "_per_tensor_without_first": (others, others),
        "_per_token": (tokens, None),
        "_per_token_without_first": (others, None),
    }
    return {suffix: [sums(h, *case) for h in range(x.shape[1])] for suffix, case in cases.items()}


def pooled(*calls):
    """{suffix: (value of the layer, values of heads)} of several calls of parts_of()."""
    found = {}
    for suffix in calls[0]:
        heads = [[sum(of) for of in zip(*head)] for head in zip(*(call[suffix] for call in calls), strict=True)]
        error, square = map(sum, zip(*heads))
        found[suffix] = math.sqrt(error / square), [math.sqrt(e / s) for e, s in heads]
    return found


def assert_errors(row, word, expected):
    for suffix, (value, _) in expected.items():
        assert row[f"int8_{WORDS[word]}{suffix}"] == pytest.approx(value, rel=1e-6), (word, suffix)


def place_of(x, tokens):
    """(value, head, sequence, token, channel) of the largest absolute value of x (B,H,T,D), of equal ones the first."""
    sizes = x.abs().double()
    places = [(h, b, t, c) for b, t in tokens for h in range(x.shape[1]) for c in range(x.shape[3])]
    return max(((sizes[b, h, t, c].item(), h, b, t, c) for h, b, t, c in places), key=lambda of: of[0])


class Recorder:
    """Keeps the keys, values and block outputs of a Llama's layers, but not those that a backward pass recomputes."""

    def __init__(self, model, monkeypatch):
        self.calls, original = {"key": [], "value": [], "activation": []}, modeling_llama.eager_attention_forward

        @functools.wraps(original)
        def recording(module, query, key, value, *args, **kwargs):
            self.add("key", key)
            self.add("value", value)
            return original(module, query, key, value, *args, **kwargs)

        monkeypatch.setattr(modeling_llama, "eager_attention_forward", recording)
        for layer in model.model.layers:
            layer.register_forward_hook(lambda _, __, out: self.add("activation", out[:, None]))

    def add(self, word, x):
        if torch._C._current_graph_task_id() == -1:
            self.calls[word].append(x.detach())


@pytest.fixture
def llama(monkeypatch):
    """A Llama in which token 5 has a massive activation, and the recorder of its tensors."""
    model = models.model("llama", "eager").eval()
    with torch.no_grad():
        model.model.embed_tokens.weight[5, 7] = 3000.0
    return model, Recorder(model, monkeypatch)


def assert_layers(seen, calls, tokens, firsts):
    frame = seen.head_frame()
    for row, *of_layer in zip(seen.layers, *calls.values(), strict=True):
        for word, x in zip(calls, of_layer):
            expected = pooled(parts_of(x, tokens, firsts))
            assert_errors(row, word, expected)
            value, head, *place = place_of(x, tokens)
            if word == "activation":
                assert (row["massive_activation"], "massive_activation_head" in row) == (value, False)
                key = "massive_activation"
            else:
                key = f"largest_{word}"
                assert (row[key], row[f"{key}_head"]) == (value, head)
                heads = frame.loc[row["module"]]
                assert len(heads) == 4  # query heads: each has the figure of its key/value head
                for suffix, (_, values) in expected.items():
                    wanted = [v for v in values for _ in range(2)]
                    assert heads[f"int8_{WORDS[word]}{suffix}"].tolist() == pytest.approx(wanted, rel=1e-6)
                for h in range(2):
                    of_head = place_of(x[:, h : h + 1], tokens)
                    found = heads.iloc[2 * h][[key, *(f"{key}_{what}" for what in ("sequence", "token", "channel"))]]
                    assert found.tolist() == [of_head[0], *of_head[2:]]
            assert [row[f"{key}_{what}"] for what in ("sequence", "token", "channel")] == place


def test_left_padding_figures_equal_their_definition(llama):
    model, recorder = llama
    ids, mask = models.tokens(2, T), torch.ones(2, T, dtype=torch.int64)
    mask[1, :4] = 0
    ids[0, 0] = ids[1, 4] = ids[1, 1] = 5
    with torch.no_grad(), watch(model, "all") as seen:
        model(ids, attention_mask=mask)
    tokens = [(b, t) for b in range(2) for t in range(T) if mask[b, t]]
    assert_layers(seen, recorder.calls, tokens, {(0, 0), (1, 4)})


def test_packed_sequences_figures_equal_their_definition(llama):
    model, recorder = llama
    lengths = (5, 8, 3)
    positions = torch.cat([torch.arange(n) for n in lengths])[None]
    ids = models.tokens(1, 16)
    ids[0, [0, 5, 13]] = 5
    with torch.no_grad(), watch(model, "all") as seen:
        model(ids, position_ids=positions, use_cache=False)
    assert_layers(seen, recorder.calls, [(0, t) for t in range(16)], {(0, 0), (0, 5), (0, 13)})


@pytest.mark.parametrize("checkpoints", [False, True])
def test_micro_batches_pool_squares_of_each_call(llama, checkpoints):
    model, recorder = llama
    if checkpoints:
        model.train().gradient_checkpointing_enable()
    batches = models.tokens(1, 8), models.tokens(2, 20)
    with watch(model, INT8) as seen:
        for ids in batches:
            loss = model(ids, labels=ids, use_cache=False).loss
            if checkpoints:
                loss.backward()
    firsts = [{(b, 0) for b in range(len(ids))} for ids in batches]
    everywhere = [[(b, t) for b in range(ids.shape[0]) for t in range(ids.shape[1])] for ids in batches]
    for word, calls in recorder.calls.items():
        assert len(calls) == 4
        for layer, row in enumerate(seen.layers):
            of_calls = [parts_of(calls[layer + 2 * n], everywhere[n], firsts[n]) for n in range(2)]
            assert_errors(row, word, pooled(*of_calls))


def test_massive_activation_of_first_token_costs_other_tokens_their_bits(llama):
    model, _ = llama
    ids = models.tokens(2, T).clamp_min(6)
    with torch.no_grad():
        found = []
        for first in (5, 6):
            ids[:, 0] = first
            with watch(model, [*INT8, "massive_activation"]) as seen:
                model(ids)
            found.append(seen.scalars(by_layer=False))
    with_sink, without = found
    assert with_sink["massive_activation"] > 2500 and without["massive_activation"] < 100
    key = "int8_hidden"
    # With a scale of 3000 / 127, entries below 12 become 0.
    assert with_sink[f"{key}_per_tensor_of_others"] > 0.9 and with_sink[f"{key}_per_tensor_without_first"] < 0.05
    assert without[f"{key}_per_tensor_of_others"] < 0.05
    assert with_sink[f"{key}_per_token_without_first"] < 0.03


class Model(nn.Module):
    """Attention on given tensors, and a block that returns its argument."""

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, x):
            return x

    def __init__(self):
        super().__init__()
        self.block = self.Block()

    def forward(self, q, k, v, x=None):
        if x is not None:
            self.block(x)
        return scaled_dot_product_attention(q, k, v, is_causal=q.shape[2] == k.shape[2], enable_gqa=True)


def watched(*tensors, figures="all"):
    with watch(Model(), figures, blocks=["block"]) as seen:
        seen.model(*tensors)
    return seen


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_tensors_of_any_type_are_measured_and_left_alone(dtype):
    q, k, v = (torch.randn(2, heads, 9, 8, dtype=dtype) for heads in (4, 2, 2))
    x = torch.randn(2, 9, 32, dtype=dtype)
    k[1, 1, 4, 3], v[0, 0, 8, 7], x[1, 6, 31] = -50.0, 60.0, -70.0
    given = q, k, v, x
    copies = [tensor.clone() for tensor in given]
    seen = watched(*given)
    assert all(map(torch.equal, given, copies))
    (row,) = [row for row in seen.layers if row["kind"] == "causal"]
    (block,) = [row for row in seen.layers if row["kind"] == "block"]
    row |= block
    places = {"largest_key": (50, 1, 1, 4, 3), "largest_value": (60, 0, 0, 8, 7), "massive_activation": (70, 1, 6, 31)}
    for key, (value, *place) in places.items():
        names = ["head", "sequence", "token", "channel"][-len(place) :]
        assert [row[key], *(row[f"{key}_{name}"] for name in names)] == [value, *place], key
    tokens = [(b, t) for b in range(2) for t in range(9)]
    for word, of in (("key", k), ("value", v), ("activation", x[:, None])):
        assert_errors(row, word, pooled(parts_of(of, tokens, {(0, 0), (1, 0)})))


def test_place_of_a_later_call_replaces_that_of_a_smaller_maximum():
    seen = watch(Model(), "largest_key")
    seen.start()
    for size, token in ((9.0, 2), (20.0, 5), (15.0, 7)):
        q, k = torch.rand(1, 2, 9, 8), torch.rand(1, 2, 9, 8)
        k[0, token % 2, token, 1], k[0, 1 - token % 2, 8, 0] = size, 2.0
        seen.model(q, k, k)
    seen.stop()
    assert [seen.layers[0][f"largest_key{what}"] for what in ("", "_head", "_token")] == [20.0, 1, 5]
    frame = seen.head_frame()
    assert frame["largest_key"].tolist() == [9.0, 20.0] and frame["largest_key_token"].tolist() == [2, 5]


def test_blocks_of_tokens_give_the_errors_of_the_whole(monkeypatch):
    tensors = [*(torch.randn(2, 2, 9, 8) for _ in range(3)), torch.randn(2, 9, 32)]
    whole = watched(*tensors, figures=INT8).scalars()
    monkeypatch.setattr(sample, "BLOCK_ELEMENTS", 2 * 2 * 2 * 8)
    assert watched(*tensors, figures=INT8).scalars() == pytest.approx(whole, rel=1e-12)
    assert len(whole) == 2 * len(INT8)


def test_zeros_have_no_error_and_nan_has_nan():
    q, k, v = (torch.randn(1, 2, 9, 8) for _ in range(3))
    k[:, 1], v[0, 0, 3, 3] = 0.0, math.nan
    row = watched(q, k, v, figures=INT8).layers[0]
    expected = pooled(parts_of(k[:, :1], [(0, t) for t in range(9)], {(0, 0)}))
    assert_errors(row, "key", expected)
    k.zero_()
    assert all(value is None for key, value in watched(q, k, v, figures=INT8).layers[0].items() if "int8_keys" in key)
    assert all(math.isnan(row[key]) for key in INT8 if "values" in key)
    assert not any("hidden" in key for key in row)


def test_calls_with_a_cache_leave_keys_of_earlier_tokens_out():
    q, k = torch.randn(1, 2, 9, 8), torch.randn(1, 2, 9, 8)
    assert "int8_keys_per_tensor" not in watched(q[:, :, 8:], k, k).layers[0]
    with watch(Model(), INT8) as seen:
        seen.model(q, k, k)
        seen.model(q[:, :, 8:], k, k)
    assert seen.scalars() == watched(q, k, k, figures=INT8).scalars()


def of_ranks():
    """Figures that the ranks of a process group pool of the halves of a batch."""
    import torch.distributed as dist

    seen = watched(*halves()[dist.get_rank()], figures=[*INT8, *LARGEST])
    return seen.pool_ranks().layers


def halves():
    torch.manual_seed(5)
    return [[*(size * torch.randn(1, 2, 9, 8) for _ in range(3)), torch.randn(1, 9, 16)] for size in (1, 3)]


def test_ranks_pool_squares_and_keep_the_place_of_the_largest():
    seen = watch(Model(), [*INT8, *LARGEST], blocks=["block"])
    seen.start()
    for tensors in halves():
        seen.model(*tensors)
    seen.stop()
    for ours in processes.run(2, of_ranks):
        for row, expected in zip(ours, seen.layers, strict=True):
            assert row.keys() == expected.keys() and len(row) > 5
            assert all(row[key] == pytest.approx(value) for key, value in expected.items())
