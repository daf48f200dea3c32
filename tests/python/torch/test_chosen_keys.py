# SPDX-License-Identifier: Apache-2.0
"""What models with an index hand to the attention: the keys or the blocks of keys of each query, and a sink for each."""

import importlib.util
import math
from pathlib import Path

import pytest
import torch
import transformers
from torch.utils._python_dispatch import TorchDispatchMode

import headgate.torch.transformers
import models

SCRIPT = Path(__file__).resolve().parents[3] / "scripts" / "check_attention_families.py"
specification = importlib.util.spec_from_file_location("check_attention_families", SCRIPT)
families = importlib.util.module_from_spec(specification)
specification.loader.exec_module(families)

headgate.torch.transformers.register(functions=False)
forward = headgate.torch.transformers.attention_forward
WITH_AN_INDEX = {
    "DeepseekV32ForCausalLM": "index_topk 4",
    "GlmMoeDsaForCausalLM": "index_topk 4",
    "AXK2ForCausalLM": "index_topk 4",
    "HYV4ForCausalLM": "index_topk 4",
    "Dots3NoteForCausalLM": "sliding_window 5, index_topk 4",
    "MistralLarge4ForConditionalGeneration": "index_topk 4",
    "MiniMaxM3VLForCausalLM": "index_topk_blocks 2, index_block_size 4",
    "Qwen4ExpForCausalLM": "indexer_budget 8, indexer_compress_ratio 4",
    "Inkling2ForCausalLM": "sliding_window_size 5",
    "Llama4ForCausalLM": "attention_chunk_size 6",
    "DeepseekV4ForCausalLM": "sliding_window 5, index_topk 4",
    "BigBirdPegasusForConditionalGeneration": "",
}
B, HEADS, T, S, D = 2, 4, 6, 9, 16


@pytest.mark.parametrize("name", WITH_AN_INDEX)
def test_family_has_the_results_of_eager_attention(name):
    """Outputs, gradients and generated tokens, with limits that eager attention feels."""
    if not hasattr(transformers, name):
        pytest.skip(f"transformers {transformers.__version__} has no {name}")
    transformers.AttentionInterface.register("headgate", recorded := families.Recorded())
    try:
        task = "seq2seq" if name.startswith("BigBird") else "causal"
        of_logits, of_gradients, same, limits = families.check(task, getattr(transformers, name), recorded)
    except families.Skipped as error:  # of versions that have a mistake there
        assert "are not finite" in str(error)
        pytest.skip(str(error))
    finally:
        headgate.torch.transformers.register(functions=False)
    assert of_logits < 1e-5 and of_gradients < 1e-4 and same == "yes"
    assert limits == WITH_AN_INDEX[name]


def layer(**config):
    made = models.model("llama", "headgate").model.layers[0].self_attn
    for name, value in config.items():
        setattr(made.config, name, value)
    return made


def tensors(kv_heads=2):
    shapes = ((B, HEADS, T, D), (B, kv_heads, S, D), (B, kv_heads, S, D))
    return [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]


def expected_of(q, k, v, visible, sinks=None):
    """y (B,T,H,D) and weights (B,H,T,S), as eager attention computes them."""
    k, v = (x.repeat_interleave(HEADS // x.shape[1], dim=1) for x in (k, v))
    scores = (q @ k.transpose(-1, -2) / math.sqrt(D)).masked_fill(~visible, -math.inf)
    if sinks is not None:
        scores = torch.cat((scores, sinks), dim=-1)
    weights = scores.softmax(-1)[..., :S]
    return (weights @ v).transpose(1, 2), weights


def assert_all_near(found, expected, inputs):
    weights = [torch.randn_like(x) for x in expected]
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs)
    gradients = [
        torch.autograd.grad(sum((x * w).sum() for x, w in zip(each, weights)), inputs) for each in (found, expected)
    ]
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs)


CAUSAL = torch.arange(S) <= torch.arange(T)[:, None] + S - T


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_indices_limit_the_keys_that_the_mask_leaves(dtype):
    q, k, v = inputs = tensors()
    indices = torch.stack([torch.randperm(S)[:4] for _ in range(B * T)]).view(B, T, 4)
    indices[:, :, 0] = S - T  # every query sees a key
    indices[0, 2, 2:] = -1
    chosen = torch.zeros(B, T, S, dtype=torch.bool)
    for b in range(B):
        for t in range(T):
            chosen[b, t, [i for i in indices[b, t].tolist() if i >= 0]] = True
    for mask in (CAUSAL[None, None], headgate.torch.transformers.KeyMask(None, None)):
        found = forward(layer(), q, k, v, mask, indices=indices.to(dtype), output_attentions=True)
        assert_all_near(found, expected_of(q, k, v, chosen[:, None] & CAUSAL), inputs)


def blocks_of(groups, size=4):
    """Returns the first block and another one or none for each query, and the mask (B,HEADS,T,S) of their keys."""
    blocks = torch.randint(-1, -(-S // size), (B, groups, T, 2))
    blocks[..., 0] = 0
    chosen = torch.zeros(B, groups, T, size * -(-S // size), dtype=torch.bool)
    for b, g, t in torch.cartesian_prod(*map(torch.arange, (B, groups, T))).tolist():
        for block in blocks[b, g, t].tolist():
            if block >= 0:
                chosen[b, g, t, size * block : size * block + size] = True
    return blocks, chosen[..., :S].repeat_interleave(HEADS // groups, dim=1)


@pytest.mark.parametrize("groups", [1, 2, HEADS])
def test_block_indices_limit_the_blocks_of_each_group_of_heads(groups):
    q, k, v = inputs = tensors()
    blocks, chosen = blocks_of(groups)
    for mask in (CAUSAL[None, None], headgate.torch.transformers.KeyMask(None, None)):
        found = forward(layer(index_block_size=4), q, k, v, mask, block_indices=blocks, output_attentions=True)
        assert_all_near(found, expected_of(q, k, v, chosen & CAUSAL), inputs)


@pytest.mark.parametrize("groups", [1, 2, HEADS])
def test_indices_and_block_indices_limit_the_keys_together(groups):
    q, k, v = inputs = tensors()
    blocks, chosen = blocks_of(groups)
    mask = headgate.torch.transformers.KeyMask(None, None)
    indices = torch.tensor([0, 2, 5, -1]).expand(B, T, -1)
    visible = chosen & CAUSAL & torch.zeros(S, dtype=torch.bool).index_fill(0, torch.tensor([0, 2, 5]), True)
    given = {"indices": indices, "block_indices": blocks}
    found = forward(layer(index_block_size=4), q, k, v, mask, **given, output_attentions=True)
    assert_all_near(found, expected_of(q, k, v, visible), inputs)


def test_indices_of_a_padded_text_number_the_padding_too():
    q, k, v = inputs = tensors()
    real = torch.arange(S) >= torch.tensor([[0], [3]])
    mask = headgate.torch.transformers.KeyMask(real[:, None, None], None)
    indices = torch.tensor([0, 1, 3, 6]).expand(B, T, -1)
    visible = torch.zeros(S, dtype=torch.bool).index_fill(0, torch.tensor([0, 1, 3, 6]), True)
    found = forward(layer(), q, k, v, mask, indices=indices, output_attentions=True)
    assert_all_near(found, expected_of(q, k, v, visible & real[:, None, None] & CAUSAL), inputs)


def test_indices_of_packed_sequences_number_the_keys_of_the_row():
    q, k, v = inputs = [torch.randn(1, HEADS, T, D, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    begins = torch.tensor([0, 2, T])
    mask = headgate.torch.transformers.KeyMask(None, None, begins)
    indices = torch.tensor([[[0], [0], [2], [2], [3], [4]]])
    indices = torch.cat((indices, torch.zeros_like(indices)), dim=-1)  # key 0 is of the first sequence alone
    visible = torch.zeros(1, 1, T, T, dtype=torch.bool).scatter_(-1, indices[:, None], True)
    visible[:, :, 2:, 0] = False
    found = forward(layer(), q, k, v, mask, indices=indices, output_attentions=True)
    assert_all_near(found, expected_of(q, k, v, visible), inputs)


def calls_of(monkeypatch):
    """Returns a list to which every later call of gated_attention appends its arguments."""
    calls = []

    def recorded(*args, **kwargs):
        calls.append(kwargs)
        return headgate.torch.gated_attention(*args, **kwargs)

    monkeypatch.setattr(headgate.torch.transformers, "gated_attention", recorded)
    return calls


@pytest.mark.parametrize("rows", [1, 2])
def test_indices_of_packed_rows_stay_lists(monkeypatch, rows):
    T = S
    q, k, v = inputs = [torch.randn(rows, HEADS, T, D, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    # Two sequences in each row.
    begins = torch.cat([torch.tensor([0, 5]) + T * row for row in range(rows)] + [torch.tensor([rows * T])])
    indices = torch.stack([torch.stack([torch.randperm(T)[:7] for _ in range(T)]) for _ in range(rows)])
    indices[..., 0] = torch.arange(T)  # each query sees itself
    indices[0, 3, 4:] = -1
    number = (torch.arange(T) >= 5).long()
    same = (number[:, None] == number) & (torch.arange(T) <= torch.arange(T)[:, None])
    chosen = torch.zeros(rows, 1, T, T + 1, dtype=torch.bool)
    chosen.scatter_(-1, torch.where(indices < 0, T, indices)[:, None], True)
    calls = calls_of(monkeypatch)
    mask = headgate.torch.transformers.KeyMask(None, None, begins)
    found = forward(layer(), q, k, v, mask, indices=indices)[:1]
    assert_all_near(found, expected_of(q, k, v, chosen[..., :T] & same)[:1], inputs)
    assert [("key_indices" in call, "mask" in call) for call in calls] == [(True, False)]


def test_wrong_bounds_of_packed_rows_are_named():
    q, k, v = (torch.randn(1, HEADS, T, D) for _ in range(3))
    indices = torch.zeros(1, T, 2, dtype=torch.int64)
    begins = torch.tensor([0, 2, T])
    for q_begins, k_begins, message in (
        (torch.tensor([0, 2, T - 1]), torch.tensor([0, 2, T - 1]), f"cu_seq_lens_q.2. is {T - 1} but must be T = {T}"),
        (begins, None, "cu_seq_lens_k is absent"),
        (torch.tensor([0]), torch.tensor([0]), "cu_seq_lens_q"),
    ):
        with pytest.raises(ValueError, match=message):
            forward(layer(), q, k, v, None, indices=indices, cu_seq_lens_q=q_begins, cu_seq_lens_k=k_begins)


@pytest.mark.parametrize("groups, lists", [(1, True), (2, True), (4, True), (8, False)])
def test_block_lists_that_key_heads_share_stay_lists(monkeypatch, groups, lists):
    q = torch.randn(B, 8, T, D, dtype=torch.float64, requires_grad=True)
    k, v = (torch.randn(B, 4, S, D, dtype=torch.float64, requires_grad=True) for _ in range(2))
    blocks, _ = blocks_of(1)
    blocks = torch.cat([blocks] + [blocks_of(1)[0] for _ in range(groups - 1)], dim=1)
    chosen = headgate.torch.transformers.KeyLists(blocks, 4, S).mask(8, S)
    calls = calls_of(monkeypatch)
    mask = headgate.torch.transformers.KeyMask(None, None)
    found = forward(layer(index_block_size=4), q, k, v, mask, block_indices=blocks)[:1]
    wide = [x.repeat_interleave(2, dim=1) for x in (k, v)]
    scores = (q @ wide[0].transpose(-1, -2) / math.sqrt(D)).masked_fill(~(chosen & CAUSAL), -math.inf)
    assert_all_near(found, [(scores.softmax(-1) @ wide[1]).transpose(1, 2)], [q, k, v])
    assert [("key_indices" in call) for call in calls] == [lists]


class LargestTensor(TorchDispatchMode):
    """Records the number of elements of the largest tensor that an operator returns."""

    elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        for x in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(x, torch.Tensor):
                self.elements = max(self.elements, x.numel())
        return out


@pytest.mark.parametrize("name, groups", [("indices", None), ("block_indices", 1), ("block_indices", 2)])
def test_lists_make_no_mask_of_all_keys(monkeypatch, name, groups):
    """No tensor has T·S elements, forward and backward."""
    queries, keys = 40, 2000  # T·S is more than any input has
    q, k, v = (torch.randn(1, heads, n, D, requires_grad=True) for heads, n in ((4, queries), (2, keys), (2, keys)))
    shape = (1, queries, 8) if groups is None else (1, groups, queries, 8)
    lists = torch.randint(0, keys // 4, shape, dtype=torch.int32)
    calls = calls_of(monkeypatch)
    mask = headgate.torch.transformers.KeyMask(None, None)
    with LargestTensor() as largest:
        y, _ = forward(layer(index_block_size=4), q, k, v, mask, **{name: lists})
        y.sum().backward()
    assert largest.elements == k.numel() < queries * keys
    (call,) = calls
    assert "mask" not in call and call["key_indices"].data_ptr() == lists.data_ptr()


@pytest.mark.parametrize("shape", [(B, HEADS, T, 1), (1, HEADS, T, 1), (HEADS,)])
@pytest.mark.parametrize("weights", [False, True])
def test_sinks_of_each_query_take_part_of_the_weights(weights, shape):
    q, k, v = tensors()
    sinks = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    y, found = forward(layer(), q, k, v, CAUSAL[None, None], sinks=sinks, output_attentions=weights)
    expected = expected_of(q, k, v, CAUSAL, sinks.view(1, HEADS, 1, 1).expand(B, -1, T, 1) if len(shape) == 1 else
                           sinks.expand(B, -1, -1, -1))  # fmt: skip
    if weights:
        assert_all_near((y, found), expected, [q, k, v, sinks])
    else:
        assert found is None
        assert_all_near((y,), expected[:1], [q, k, v, sinks])


@pytest.mark.parametrize("shape", [(B, HEADS, T, 1), (1, HEADS, T, 1)])
def test_sinks_of_queries_of_packed_rows_stay_with_their_queries(shape):
    q = torch.randn(B, HEADS, T, D, dtype=torch.float64)
    sinks = torch.randn(shape, dtype=torch.float64)
    begins = torch.tensor([0, T, B * T], dtype=torch.int32)
    rules = {"is_causal": True, "sinks": sinks, "output_attentions": True}
    found = forward(layer(), q, q, q, None, cu_seq_lens_q=begins, cu_seq_lens_k=begins, **rules)
    for ours, theirs in zip(found, forward(layer(), q, q, q, None, **rules), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_sink_of_a_query_that_sees_nothing_leaves_zero():
    q, k, v = tensors()
    sinks = torch.randn(B, HEADS, T, 1, dtype=torch.float64, requires_grad=True)
    visible = CAUSAL.clone()
    visible[2] = False
    y, weights = forward(layer(), q, k, v, visible[None, None], sinks=sinks, output_attentions=True)
    assert not y[:, 2].any() and not weights[:, :, 2].any()
    y.sum().backward()
    assert not sinks.grad[:, :, 2].any() and all(x.grad.isfinite().all() for x in (q, k, v, sinks))


@pytest.mark.parametrize("name", ["indices", "block_indices"])
def test_lists_of_a_static_prompt_may_name_slots_that_are_not_filled(name):
    q, k, v = torch.randn(1, 2, 3, D), torch.randn(1, 2, 7, D), torch.randn(1, 2, 7, D)
    if name == "indices":
        lists = torch.tensor([[[0, 6], [1, 3], [2, 0]]])
        visible = torch.tensor([[1, 0, 0], [0, 1, 0], [1, 0, 1]]).bool()
    else:
        lists = torch.tensor([[[[0, 3], [2, 0], [1, -1]]]])
        visible = torch.tensor([[1, 0, 0], [1, 1, 0], [0, 0, 1]]).bool()
    y, _ = forward(layer(index_block_size=2), q, k, v, None, **{name: lists})
    torch.testing.assert_close(y, forward(layer(), q, k[:, :, :3], v[:, :, :3], visible[None, None])[0])
    with pytest.raises(ValueError, match=f"{name} has entry 7 but must be -1 to {6 if name == 'indices' else 3}"):
        forward(layer(index_block_size=2), q, k, v, None, **{name: torch.full_like(lists, 7)})


@pytest.mark.parametrize(
    "given, message",
    [
        ({"indices": torch.zeros(1, T, 2).long()}, r"indices has shape \(1,6,2\) but must be \(2,6,K\)"),
        ({"indices": torch.zeros(B, T, 2)}, "indices is torch.float32 but must be int32 or int64"),
        ({"indices": torch.full((B, T, 1), -2)}, "indices has entry -2 but must be -1 to 8"),
        ({"indices": torch.full((B, T, 1), S)}, "indices has entry 9 but must be -1 to 8"),
        (
            {"block_indices": torch.zeros(B, 3, T, 1).long()},
            r"block_indices has shape \(2,3,6,1\) but must be \(2,G,6,K\)",
        ),
        ({"block_indices": torch.full((B, 2, T, 1), 3)}, "block_indices has entry 3 but must be -1 to 2"),
        ({"sinks": torch.zeros(3, HEADS, T, 1)}, r"sinks has shape \(3,4,6,1\) but must be \(4\) or \(2,4,6,1\)"),
        ({"sinks": torch.zeros(B, HEADS, T)}, r"sinks has shape \(2,4,6\) but must be \(4\) or \(2,4,6,1\)"),
        ({"sinks": torch.zeros(HEADS), "s_aux": torch.zeros(HEADS)}, "s_aux and sinks are both given"),
        ({"sinks": torch.full((B, HEADS, T, 1), math.nan)}, r"sinks\[0,0,0\] is nan"),
    ],
    ids=lambda given: next(iter(given)) if isinstance(given, dict) else "",
)
def test_argument_of_another_shape_is_refused(given, message):
    with pytest.raises(ValueError, match=f"^headgate: LlamaAttention: {message}"):
        forward(layer(index_block_size=4), *tensors(), CAUSAL[None, None], **given)


def test_block_indices_without_a_size_of_blocks_are_refused():
    with pytest.raises(ValueError, match="^headgate: LlamaAttention: block_indices need the keys of a block.* None"):
        forward(layer(), *tensors(), CAUSAL[None, None], block_indices=torch.zeros(B, 2, T, 1).long())


def test_model_with_an_index_compiles():
    kind = transformers.DeepseekV32ForCausalLM
    model = families.made(kind, families.config_of(kind), "headgate")
    given, _ = families.inputs_of("causal")
    compiled = torch.compile(model, backend="aot_eager")
    torch.testing.assert_close(compiled(**given).logits, model(**given).logits, rtol=1e-4, atol=1e-4)


def test_packed_rows_of_a_model_with_an_index_match_eager_attention():
    """Whose own code reads its mask, so that it is whole."""
    kind = transformers.DeepseekV32ForCausalLM
    ids, positions = torch.randint(3, 97, (1, 20)), torch.cat((torch.arange(8), torch.arange(12)))[None]
    found = [
        families.made(kind, families.config_of(kind), attention)(ids, position_ids=positions, use_cache=False).logits
        for attention in ("eager", "headgate")
    ]
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-4)
