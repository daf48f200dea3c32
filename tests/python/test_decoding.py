# SPDX-License-Identifier: Apache-2.0
"""Caches: decoding token by token is attention over all tokens; parts of the keys merge to the whole."""

import numpy as np
import pytest
import torch

import headgate
from support import close, problem


@pytest.mark.parametrize("dtype, roundoffs", (("f32", 16), ("i8", 1 << 19)))
@pytest.mark.parametrize("layout", ("bhtd", "bthd"))
def test_decoding_token_by_token_matches_the_whole(dtype, roundoffs, layout):
    q, k, v, gate = problem(B=2, T=9, S=9, dtype=torch.float32)
    expected = headgate.attention(q, k, v, gate, causality="causal")
    if layout == "bthd":
        q, k, v, gate = (x.transpose(1, 2) for x in (q, k, v, gate))
    tokens = 1 if layout == "bthd" else 2
    cache = headgate.KvCache(2, 16, 12, page=4, pages=6, dtype=dtype)
    sequences = [cache.add_sequence(), cache.add_sequence()]
    for begin, end in ((0, 5), *((i, i + 1) for i in range(5, 9))):
        part = [x.narrow(tokens, begin, end - begin) for x in (q, k, v, gate)]
        cache.append(sequences, part[1], part[2], layout=layout)
        batch = cache.batch(sequences, end - begin, layout=layout)
        y = headgate.attention(part[0], gate=part[3], causality="causal", **batch)
        y = y if layout == "bhtd" else y.transpose(1, 2)
        assert close(y, expected[:, :, begin:end].double(), roundoffs, torch.float32)
    assert [cache.length(s) for s in sequences] == [9, 9] and cache.free_pages == 0
    assert batch["k"].base is not None  # the cache's own memory


@pytest.mark.parametrize("layout", ("bhtd", "bthd"))
@pytest.mark.parametrize("whole", ("f32", "bf16"))
def test_first_tokens_beside_int8_are_whole(whole, layout):
    q, k, v, _ = problem(B=2, T=9, S=9, dtype=torch.float32)
    given = [x if layout == "bhtd" else x.transpose(1, 2) for x in (q[:, :, -1:], k, v)]
    cache = headgate.KvCache(2, 16, 12, page=4, pages=6, dtype="i8", whole_first=3, whole_dtype=whole)
    sequences = [cache.add_sequence(), cache.add_sequence()]
    cache.append(sequences, given[1], given[2], layout=layout)
    batch = cache.batch(sequences, layout=layout)
    for name, x in (("k", k), ("v", v)):
        first = torch.as_tensor(headgate.convert(batch[f"{name}_first"], "f32"))
        first = first if layout == "bhtd" else first.transpose(1, 2)
        assert torch.equal(first, x[:, :, :3] if whole == "f32" else x[:, :, :3].bfloat16().float())
    y = headgate.attention(given[0], **batch)
    mixed = []
    for x in (k, v):
        small, scale = headgate.quantize(x)
        kept = x[:, :, :3] if whole == "f32" else x[:, :, :3].bfloat16().float()
        mixed.append(torch.cat([kept, (small * scale)[:, :, 3:]], dim=2))
    expected = headgate.attention(q[:, :, -1:], *mixed)
    assert close(y if layout == "bhtd" else y.transpose(1, 2), expected.double(), 16, torch.float32)
    cache.truncate(sequences[0], 1)
    assert headgate.attention(given[0], **cache.batch(sequences, layout=layout)).shape == given[0].shape[:3] + (12,)
    with pytest.raises(ValueError, match="whole_first is 3 but dtype is f32"):
        headgate.KvCache(2, 16, 12, page=4, pages=6, whole_first=3)


def test_pages_of_16_bits_are_read():
    q, k, v, _ = problem(T=1, S=8, dtype=torch.bfloat16)
    cache = headgate.KvCache(2, 16, 12, page=8, pages=2, dtype="bf16")
    sequences = [cache.add_sequence(), cache.add_sequence()]
    cache.append(sequences, k, v)
    assert torch.equal(headgate.attention(q, **cache.batch(sequences)), headgate.attention(q, k, v))


def test_pages_after_the_cache_is_deleted_stay_valid():
    cache = headgate.KvCache(1, 4, 4, page=2, pages=1)
    s = cache.add_sequence()
    ones = np.ones((1, 1, 2, 4), np.float32)
    cache.append([s], ones, ones)
    before = cache.batch([s])["k"]
    cache.grow(3)
    cache.append([s], 2 * ones, 2 * ones)
    after = cache.batch([s])["k"]
    del cache
    assert before.shape == (1, 1, 2, 4) and (before == 1).all()
    assert after.shape == (3, 1, 2, 4) and set(np.unique(after[:2])) == {1.0, 2.0}


def test_sequences():
    cache = headgate.KvCache(1, 4, 4, page=2, pages=8)
    s = cache.add_sequence()
    k = np.arange(20, dtype=np.float32).reshape(1, 1, 5, 4)
    cache.append([s], k, k)
    other = cache.fork(s)
    cache.truncate(other, 3)
    assert (cache.length(s), cache.length(other), len(cache.pages(s))) == (5, 3, 3)
    cache.slide(s, 0, 1)
    assert cache.length(s) == 1 and cache.position(s) == 5
    cache.remove_sequence(s)
    cache.remove_sequence(other)
    assert cache.free_pages == 8
    with pytest.raises(ValueError, match="sequence"):
        cache.length(s)
    with pytest.raises(ValueError, match="^append: v is required but None$"):
        cache.append([0], k, None)
    with pytest.raises(ValueError, match="^grow: pages is 2 but the cache has 8$"):
        cache.grow(2)


def test_merge_parts_of_the_keys_equals_the_whole():
    q, k, v, gate = problem(T=6, S=11)
    lengths = torch.tensor([11, 4])
    options = dict(causality="causal", key_lengths=lengths)
    whole = headgate.attention_forward(q, k, v, gate, **options)
    ranges = [headgate.narrow_keys(b, e, q=q, k=k, v=v, key_lengths=lengths) for b, e in ((0, 3), (3, 11))]
    parts = [headgate.attention_forward(causality="causal", **inputs) for inputs in ranges]
    merged = headgate.attention_merge([(part.y, part.lse) for part in parts], gate)
    assert close(merged.y, whole.y, 16) and close(merged.lse, whole.lse, 16)

    dy = torch.randn_like(whole.y)
    pairs, dgate = headgate.attention_merge_backward(dy, [(part.y, part.lse) for part in parts], gate)
    expected = headgate.attention_backward(dy, q, k, v, gate, y=whole.y, lse=whole.lse, **options)
    assert close(dgate, expected.dgate, 64)
    of_parts = [
        headgate.attention_backward(dattn, y=part.y, lse=part.lse, dlse=dlse, causality="causal", **inputs)
        for inputs, part, (dattn, dlse) in zip(ranges, parts, pairs)
    ]
    assert close(sum(x.dq for x in of_parts), expected.dq, 64)
    assert close(torch.cat([x.dk for x in of_parts], dim=2), expected.dk, 64)
    with pytest.raises(ValueError, match="^attention_merge: parts is empty$"):
        headgate.attention_merge([])


def test_rounding():
    x = torch.randn(2, 3, 4, 8)
    assert torch.equal(headgate.convert(x, "bf16"), x.bfloat16())
    assert np.array_equal(headgate.convert(x.numpy(), "f16"), x.numpy().astype(np.float16))
    small, scale = headgate.quantize(x)
    assert small.dtype == torch.int8 and scale.shape == (2, 3, 4, 1)
    assert (small * scale - x).abs().max() <= scale.max() / 2 * 1.0001
