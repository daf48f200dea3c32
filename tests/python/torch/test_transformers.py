# SPDX-License-Identifier: Apache-2.0
"""attn_implementation="headgate" against transformers' own attention, on small random models."""

import pytest
import torch
import torch.utils._python_dispatch
import transformers
from transformers import StaticCache, masking_utils

import headgate.torch.transformers
import models

headgate.torch.transformers.register(functions=False)
TOLERANCE = 2e-5


@pytest.fixture(params=models.FAMILIES)
def pair(request):
    """Makes the same model with eager attention and with headgate's."""
    return models.model(request.param), models.model(request.param, "headgate")


def assert_near(ours, expected):
    torch.testing.assert_close(ours, expected, rtol=TOLERANCE, atol=TOLERANCE * expected.abs().max().item())


def calls_of_headgate(monkeypatch):
    """Returns the list to which every later call of the attention is added."""
    calls = []
    inner = headgate.torch.transformers.gated_attention
    monkeypatch.setattr(
        headgate.torch.transformers, "gated_attention", lambda *a, **k: calls.append(k) or inner(*a, **k)
    )
    return calls


def test_logits_and_gradients(pair, monkeypatch):
    calls = calls_of_headgate(monkeypatch)
    ids = models.tokens(2, 13)
    found = []
    for model in pair:
        logits = model(ids).logits
        logits.square().mean().backward()
        found.append((logits, {name: p.grad for name, p in model.named_parameters() if p.grad is not None}))
    (expected, theirs), (logits, ours) = found
    assert_near(logits, expected)
    assert ours.keys() == theirs.keys() and any("q_proj" in name for name in ours)
    for name, gradient in theirs.items():
        assert_near(ours[name], gradient)
    types = getattr(pair[1].config, "layer_types", None) or ["full_attention"] * 2
    assert len(calls) == sum(kind != "linear_attention" for kind in types)


def test_padding_on_the_left(pair):
    """Each sequence has the output of eager attention at all of its tokens."""
    ids = models.tokens(3, 12)
    lengths = torch.tensor([12, 7, 1])
    mask = (torch.arange(12) >= 12 - lengths[:, None]).long()
    found = []
    for model in pair:
        logits = model(ids, attention_mask=mask).logits[mask.bool()]
        logits.square().mean().backward()
        found.append((logits, [p.grad for p in model.parameters() if p.grad is not None]))
    (expected, theirs), (logits, ours) = found
    assert_near(logits, expected)
    for mine, other in zip(ours, theirs, strict=True):
        assert_near(mine, other)


def test_generation_with_a_cache(pair):
    """Generates the tokens of eager attention, with a cache and without, also after padding."""
    ids = models.tokens(2, 7)
    mask = torch.ones_like(ids)
    mask[1, :3] = 0
    options = {"attention_mask": mask, "max_new_tokens": 9, "do_sample": False, "pad_token_id": 0}
    eager, ours = (model.eval() for model in pair)
    expected = eager.generate(ids, **options)
    assert expected.shape == (2, 16)
    assert torch.equal(ours.generate(ids, **options), expected)
    assert torch.equal(ours.generate(ids, **options, use_cache=False), expected)


def test_prompt_in_parts_gives_the_same_logits(pair):
    """A prompt that a cache receives in parts has the logits of the whole."""
    model = pair[1].eval()
    ids = models.tokens(2, 13)
    ranges = ((0, 6), (6, 7), (7, 13))
    if "linear_attention" in (getattr(model.config, "layer_types", None) or []):
        ranges = ((0, 11), (11, 12), (12, 13))  # linear layers take several tokens only at the beginning
    with torch.no_grad():
        whole, cache, parts = model(ids).logits, None, []
        for first, last in ranges:
            out = model(ids[:, first:last], past_key_values=cache, use_cache=True)
            cache = out.past_key_values
            parts.append(out.logits)
    assert_near(torch.cat(parts, dim=1), whole)


@pytest.mark.parametrize("family", ["llama", "qwen3 with windows"])
def test_static_cache(family):
    eager, ours = (models.model(family, attention).eval() for attention in ("eager", "headgate"))
    ids = models.tokens(2, 7)
    found = []
    with torch.no_grad():
        for model in (eager, ours):
            cache = StaticCache(config=model.config, max_cache_len=24)
            prompt = model(ids, past_key_values=cache).logits
            step = model(ids[:, :1], past_key_values=cache).logits
            found.append(torch.cat((prompt, step), dim=1))
    assert_near(found[1], found[0])


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_packed_sequences(family, monkeypatch):
    """Packs two sequences in one row, by their positions, and by their lengths too."""
    calls = calls_of_headgate(monkeypatch)
    model = models.model(family, "headgate").eval()
    first, second = models.tokens(1, 5), models.tokens(1, 8)
    positions = torch.cat((torch.arange(5), torch.arange(8))).unsqueeze(0)
    lengths = torch.tensor([0, 5, 13], dtype=torch.int32)
    with torch.no_grad():
        expected = torch.cat((model(first).logits, model(second).logits), dim=1)
        both = torch.cat((first, second), dim=1)
        assert_near(model(both, position_ids=positions, use_cache=False).logits, expected)
        packed = model(
            both, position_ids=positions, cu_seq_lens_q=lengths, cu_seq_lens_k=lengths, use_cache=False
        ).logits
    assert_near(packed, expected)
    assert "cu_seqlens_q" in calls[-1] and "cu_seqlens_q" not in calls[0]


class LargeMasks(torch.utils._python_dispatch.TorchDispatchMode):
    """Raises if an operation makes booleans or masks of T·T elements."""

    def __init__(self, tokens):
        super().__init__()
        self.tokens = tokens

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        for x in found if isinstance(found, (tuple, list)) else (found,):
            if isinstance(x, torch.Tensor) and x.shape[-2:] == (self.tokens, self.tokens):
                raise AssertionError(f"{func} makes {tuple(x.shape)}")
        return found


PACKED = [[5, 8, 24], [37], [1, 1, 35]]


@pytest.mark.parametrize("lengths", PACKED, ids=str)
@pytest.mark.parametrize("given", ["positions", "positions and lengths"])
@pytest.mark.parametrize("family", ["llama", "qwen3", "qwen3 with windows", "gpt-oss", "gemma2", "afmoe"])
def test_packed_rows_make_no_large_mask(family, given, lengths, monkeypatch):
    """Several sequences in a row have the results and gradients of separate calls, without a mask of T·T elements."""
    calls = calls_of_headgate(monkeypatch)
    model = models.model(family, "headgate")
    parts = [models.tokens(1, n) for n in lengths]
    expected = torch.cat([model(part, use_cache=False).logits for part in parts], dim=1)
    parameters = [p for p in model.parameters() if p.requires_grad]
    weights = torch.randn_like(expected)
    theirs = torch.autograd.grad((expected * weights).sum(), parameters, allow_unused=True)
    del calls[:]
    begins = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
    both = {"cu_seq_lens_q": begins, "cu_seq_lens_k": begins} if given == "positions and lengths" else {}
    positions = torch.cat([torch.arange(n) for n in lengths]).unsqueeze(0)
    with LargeMasks(sum(lengths)):
        logits = model(torch.cat(parts, dim=1), position_ids=positions, use_cache=False, **both).logits
    ours = torch.autograd.grad((logits * weights).sum(), parameters, allow_unused=True)
    assert_near(logits, expected)
    for mine, other in zip(ours, theirs, strict=True):
        if other is not None and not other.abs().max() <= 1e-6:  # also true for NaN
            torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-4 * other.abs().max().item())
    assert not any("mask" in call or "bias" in call for call in calls)


@pytest.mark.parametrize("family", ["llama", "qwen3 with windows", "gpt-oss"])
def test_packed_rows_of_a_compiled_model_make_no_large_mask(family):
    """One program for all lengths, without a graph break; its gradients too."""
    model = models.model(family, "headgate")
    parameters = list(model.parameters())
    shapes, programs = set(), []

    def backend(program, inputs):
        programs.append(program)
        for node in program.graph.nodes:
            value = node.meta.get("example_value")
            if isinstance(value, torch.Tensor):
                shapes.add(tuple(value.shape[-2:]))
        return program

    compiled = torch.compile(model, fullgraph=True, backend=backend, dynamic=False)
    for lengths in PACKED:
        ids = models.tokens(1, sum(lengths))
        positions = torch.cat([torch.arange(n) for n in lengths]).unsqueeze(0)
        found = []
        for run in (compiled, model):
            logits = run(ids, position_ids=positions, use_cache=False).logits
            found.append((logits, *torch.autograd.grad(logits.square().sum(), parameters)))
        for ours, expected in zip(*found, strict=True):
            assert_near(ours, expected)
    assert len(programs) == 1 and (37, 37) not in shapes and (37, 64) in shapes


def test_packed_rows_of_a_batch_are_each_their_own():
    """Compares rows with different positions with whole masks in eager attention."""
    eager, ours = (models.model("qwen3 with windows", attention) for attention in ("eager", "headgate"))
    ids = models.tokens(2, 13)
    positions = torch.stack([torch.cat((torch.arange(5), torch.arange(8))), torch.arange(13)])
    expected = eager(ids, position_ids=positions, use_cache=False).logits
    with LargeMasks(13):
        assert_near(ours(ids, position_ids=positions, use_cache=False).logits, expected)


def packed(rule, positions, numbers):
    """The mask function that transformers make of a rule for packed rows."""
    remap = getattr(masking_utils, "remap_positions_for_packed_sequence", None)  # older versions have none
    remapped = rule if remap is None else remap(rule, positions)
    return masking_utils.and_masks(remapped, masking_utils.packed_sequence_mask_function(numbers))


@pytest.mark.parametrize("window", [None, 4])
def test_packed_rows_with_other_rules_are_whole_masks(window):
    """Combines other rules with causality, within each sequence."""
    numbers = torch.tensor([[0, 0, 0, 1, 1, 1]])
    positions = torch.tensor([[0, 1, 2, 0, 1, 2]])
    base = masking_utils.causal_mask_function
    if window is not None:
        base = masking_utils.sliding_window_causal_mask_function(window)
    others = masking_utils.or_masks(base, lambda b, h, q, kv: kv == q + 1)
    config = transformers.Qwen3Config(sliding_window=window, use_sliding_window=window is not None)
    for rule, whole in ((base, False), (others, True), (masking_utils.and_masks(base, others), True)):
        function = packed(rule, positions, numbers)
        mask = headgate.torch.transformers.make_mask(
            1, 6, 6, mask_function=function, local_size=window, allow_is_causal_skip=False, config=config
        )
        assert isinstance(mask, torch.Tensor) == whole
        if not whole:
            assert mask.keys is None and mask.window == window and mask.sequences.tolist() == [0, 3, 6]


def test_packed_rows_with_padding_are_a_whole_mask():
    numbers, positions = torch.tensor([[0, 0, 0, 1, 1, 1]]), torch.tensor([[0, 1, 2, 0, 1, 2]])
    causal = masking_utils.causal_mask_function
    function = packed(causal, positions, numbers)
    padding = torch.arange(6)[None] > 0
    mask = headgate.torch.transformers.make_mask(
        1, 6, 6, mask_function=function, attention_mask=padding, allow_is_causal_skip=False
    )
    same = numbers[0, :, None] == numbers[0]
    assert torch.equal(mask[0, 0], same & torch.ones(6, 6, dtype=torch.bool).tril() & padding)


def dense(mask, T, S, window):
    """Expands a mask of make_mask to (B or 1,1,T,S)."""
    at, key = torch.arange(T)[:, None] + S - T, torch.arange(S)
    if mask is None:
        return (key <= at)[None, None]
    if isinstance(mask, torch.Tensor):
        return mask
    visible = key <= at
    if mask.window is not None:
        assert mask.window == window
        visible = visible & (key > at - window)
    return (visible if mask.keys is None else visible & mask.keys)[(None,) * (2 if mask.keys is None else 0)]


@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize("padding", ["none", "left", "both", "short"])
@pytest.mark.parametrize("T, S, past", [(6, 6, 0), (1, 9, 8), (3, 9, 6), (1, 4, 8), (2, 5, 7), (6, 16, 0)])
def test_masks(T, S, past, padding, window):
    """make_mask allows what sdpa_mask allows, as a mask of keys if the last query is aligned with the last key."""
    seen = past + T
    function = masking_utils.causal_mask_function
    if window is not None:
        function = masking_utils.sliding_window_causal_mask_function(window)
    left = torch.arange(seen) >= torch.tensor([[0], [2]])
    both = left & (torch.arange(seen) != seen - 2)
    mask = {"none": None, "left": left, "both": both, "short": left[:, :-1]}[padding]
    arguments = {
        "batch_size": 2,
        "q_length": T,
        "kv_length": S,
        "q_offset": past,
        "kv_offset": max(0, seen - S),
        "mask_function": function,
        "attention_mask": mask,
        "local_size": window,
        "config": transformers.Qwen3Config(sliding_window=window, use_sliding_window=window is not None),
    }
    ours = headgate.torch.transformers.make_mask(**arguments)
    expected = masking_utils.sdpa_mask(**arguments, allow_is_causal_skip=False)
    if (T, S) == (6, 16):  # a static cache, whose last slots are not filled yet
        if ours is None:  # then the attention leaves them out
            ours, expected, S = None, expected[..., :T], T
        assert ours is None or ours.dtype == torch.bool
    else:
        assert ours is None or isinstance(ours, headgate.torch.transformers.KeyMask)
    assert torch.equal(dense(ours, T, S, window).expand(2, 1, T, S), expected.expand(2, 1, T, S))


def test_mask_of_other_rules_is_whole():
    """Covers chunks, and overlays, which prevent leaving causality to the attention."""
    arguments = {"batch_size": 1, "q_length": 6, "kv_length": 6, "local_size": 4}
    chunks = masking_utils.chunked_causal_mask_function(4, torch.zeros(1, dtype=torch.long))
    config = transformers.Llama4TextConfig(attention_chunk_size=4)
    config.sliding_window = 4
    mask = headgate.torch.transformers.make_mask(**arguments, mask_function=chunks, config=config)
    assert mask.dtype == torch.bool and mask.shape == (1, 1, 6, 6) and not mask[0, 0, 4, 3]
    mask = headgate.torch.transformers.make_mask(1, 3, 6, q_offset=3, allow_is_causal_skip=False)
    assert torch.equal(mask[0, 0], torch.ones(6, 6).tril().bool()[3:])


def test_windows_and_padding_take_little_memory(monkeypatch):
    calls = calls_of_headgate(monkeypatch)
    model = models.model("qwen3 with windows", "headgate")
    ids = models.tokens(2, 12)
    model(ids)
    assert [call.get("window_left") for call in calls] == [4, None] and not any("mask" in call for call in calls)
    model(ids, attention_mask=(torch.arange(12) >= torch.tensor([[0], [3]])).long())
    assert all(call["mask"].shape == (2, 1, 1, 12) and call["causality"] == "causal" for call in calls[2:])


def test_mask_of_numbers_is_added():
    eager, ours = (models.model("llama", attention) for attention in ("eager", "headgate"))
    bias = torch.randn(2, 1, 6, 6).masked_fill(torch.ones(6, 6).triu(1).bool(), torch.finfo(torch.float32).min)
    ids = models.tokens(2, 6)
    assert_near(ours(ids, attention_mask=bias).logits, eager(ids, attention_mask=bias).logits)


INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize("shape", [(2, 1, 9, 9), (2, 1, 1, 9), (1, 1, 1, 1), (2, 4, 9, 9)], ids=str)
def test_mask_of_integers_is_refused(dtype, shape):
    """Integers are refused, as in sdpa. A caller's mask is never mistaken for the rules that make_mask makes."""
    model = models.model("llama", "headgate")
    with pytest.raises(ValueError) as error:
        model(models.tokens(2, 9), attention_mask=torch.ones(shape, dtype=dtype))
    assert str(error.value) == (
        f"headgate: LlamaAttention: attention_mask is {str(dtype)[6:]} {str(shape).replace(' ', '')} but must be bool, "
        "true where visible, or floating point, added to the scores: convert it, or give one of padding (B,S) to the "
        "model"
    )


@pytest.mark.parametrize("dtype", [*INTEGERS[:5], torch.bool, torch.float32], ids=str)
@pytest.mark.parametrize("family", ["llama", "qwen3 with windows"])
def test_padding_mask_of_any_type_is_taken(family, dtype):
    eager, ours = (models.model(family, attention) for attention in ("eager", "headgate"))
    ids = models.tokens(2, 9)
    padding = torch.arange(9) >= torch.tensor([[0], [4]])
    expected = eager(ids, attention_mask=padding.to(dtype)).logits[padding]
    assert_near(ours(ids, attention_mask=padding.to(dtype)).logits[padding], expected)


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_mask_of_bools_is_taken(family):
    """A caller's own mask replaces causality: here every token sees all keys, then a random half."""
    eager, ours = (models.model(family, attention) for attention in ("eager", "headgate"))
    ids = models.tokens(2, 9)
    for mask in (torch.ones(2, 1, 9, 9, dtype=torch.bool), (torch.rand(2, 1, 9, 9) > 0.5) | torch.eye(9).bool()):
        bias = torch.zeros(mask.shape).masked_fill(~mask, torch.finfo(torch.float32).min)
        assert_near(ours(ids, attention_mask=mask).logits, eager(ids, attention_mask=bias).logits)


def test_static_cache_of_windows_generates():
    """generate() makes the masks of such a cache itself, and gives them to the model."""
    eager, ours = (models.model("qwen3 with windows", attention).eval() for attention in ("eager", "headgate"))
    ids = models.tokens(2, 7)
    options = {"max_new_tokens": 4, "do_sample": False, "cache_implementation": "static", "disable_compile": True}
    mask = (torch.arange(7) >= torch.tensor([[0], [3]])).long()
    for given in ({}, {"attention_mask": mask}):
        assert torch.equal(ours.generate(ids, **options, **given), eager.generate(ids, **options, **given))


def test_error_of_the_kernels_names_the_interfaces_arguments():
    model = models.model("llama", "headgate")
    layer, x = model.model.layers[0].self_attn, torch.randn(1, 4, 3, 16)
    for change, message in (
        ({"attention_mask": torch.ones(1, 1, 3, 4).bool()}, r"attention_mask has shape \(1,1,3,4\)"),
        ({"key": x[..., :8]}, "key has shape .* but query has shape"),
        ({"s_aux": torch.zeros(3)}, "s_aux has shape"),
        ({"cu_seq_lens_q": torch.tensor([0.0])}, "cu_seq_lens_q"),
        ({"scaling": torch.tensor(0.5, requires_grad=True)}, "scaling requires a gradient but has none"),
    ):
        given = {"query": x, "key": x, "value": x, "attention_mask": None, **change}
        with pytest.raises(ValueError, match=f"^headgate: LlamaAttention: {message}"):
            headgate.torch.transformers.attention_forward(layer, **given)


def test_half_precision_and_autocast():
    eager, ours = (models.model("qwen3", attention) for attention in ("eager", "headgate"))
    ids = models.tokens(2, 9)
    expected = eager(ids).logits
    scale = expected.abs().max()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (ours(ids).logits - expected).abs().max() < 0.05 * scale
    assert (ours.bfloat16()(ids).logits - expected).abs().max() < 0.05 * scale


def test_compiles():
    model = models.model("qwen3", "headgate")
    ids = models.tokens(2, 9)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    assert_near(compiled(ids).logits, model(ids).logits)


def test_attention_set_on_a_loaded_model_is_used():
    model = models.model("llama")
    ids = models.tokens(1, 6)
    expected = model(ids).logits
    model.set_attn_implementation("headgate")
    assert_near(model(ids).logits, expected)


def test_registration_repeated_happens_once():
    for _ in range(2):
        assert headgate.torch.transformers.register(functions=False) == "headgate"
    assert "headgate" in transformers.AttentionInterface().valid_keys()
