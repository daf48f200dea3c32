# SPDX-License-Identifier: Apache-2.0
"""A cache whose linear attention goes back to an earlier token, and the generation that needs it."""

import copy
import gc
import weakref

import pytest
import torch
import transformers

import models
from headgate.torch import hub_functions
from headgate.torch.transformers import CroppableCache, assisted_generation, register

RECURRENT = ("qwen3-next", "qwen3.5", "olmo-hybrid", "kimi-linear")


@pytest.fixture(params=RECURRENT)
def model(request):
    register()
    return models.model(request.param).eval()


def read(model, cache, ids):
    """Runs a pass over these tokens and returns the logits of the last one."""
    with torch.no_grad():
        return model(ids, past_key_values=cache, use_cache=True).logits[:, -1]


def states(cache):
    return [
        state
        for layer in cache.layers
        if hasattr(layer, "recurrent_states")
        for state in (*layer.conv_states.values(), *layer.recurrent_states.values())
    ]


def assert_equal_states(found, expected):
    assert len(states(found)) == len(states(expected)) > 0
    for ours, theirs in zip(states(found), states(expected)):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("removed", [1, 3, 5])
def test_pass_cropped_has_the_states_of_a_pass_without_these_tokens(model, removed):
    ids, draft, other = models.tokens(2, 11), models.tokens(2, 5), models.tokens(2, 5)
    other[:, : 5 - removed] = draft[:, : 5 - removed]
    found, expected = CroppableCache(model.config), CroppableCache(model.config)
    for cache, last in ((found, draft), (expected, other)):  # they differ in the removed tokens alone
        read(model, cache, ids)
        read(model, cache, last)
        cache.crop(-removed)
        assert cache.get_seq_length(len(cache.layers) - 1) == 16 - removed
    assert_equal_states(found, expected)
    plain = transformers.DynamicCache(config=model.config)
    read(model, plain, torch.cat((ids, draft[:, : 5 - removed]), dim=1))
    following = models.tokens(2, 1)
    wanted = read(model, plain, following)
    torch.testing.assert_close(read(model, found, following), wanted, rtol=1e-4, atol=1e-4)


def test_tokens_one_by_one_are_undone_exactly(model):
    ids, more = models.tokens(2, 7), models.tokens(2, 6)
    kept, expected = CroppableCache(model.config, keep=4), CroppableCache(model.config)
    for cache, count in ((kept, 6), (expected, 2)):
        read(model, cache, ids)
        for t in range(count):
            read(model, cache, more[:, t : t + 1])
    kept.crop(-1)
    kept.crop(-3)
    assert_equal_states(kept, expected)
    for t in range(2, 6):
        assert torch.equal(read(model, kept, more[:, t : t + 1]), read(model, expected, more[:, t : t + 1]))
    assert_equal_states(kept, expected)


def test_all_tokens_cropped_leave_an_empty_cache(model):
    ids = models.tokens(2, 7)
    used, fresh = CroppableCache(model.config), CroppableCache(model.config)
    read(model, used, models.tokens(2, 7))
    used.crop(-7)
    assert torch.equal(read(model, used, ids), read(model, fresh, ids))
    assert_equal_states(used, fresh)


def test_memory_of_many_tokens_is_that_of_the_kept_ones(model):
    cache = CroppableCache(model.config, keep=4)
    read(model, cache, models.tokens(1, 20))
    for _ in range(10):
        read(model, cache, models.tokens(1, 1))
    for layer in cache.layers:
        assert len(getattr(layer, "passes", [0] * 4)) == 4


def test_more_than_the_kept_tokens_are_refused_without_effect(model):
    ids = models.tokens(1, 7)
    cache, untouched = CroppableCache(model.config), CroppableCache(model.config)
    for each in (cache, untouched):
        read(model, each, ids)
        read(model, each, ids[:, :2])
    with pytest.raises(ValueError, match=r"crop cannot remove 3 tokens: layer 0: it keeps the last 2 tokens: give a"):
        cache.crop(-3)
    assert_equal_states(cache, untouched)
    assert torch.equal(read(model, cache, ids[:, :1]), read(model, untouched, ids[:, :1]))
    for wrong in (5, -11):
        with pytest.raises(ValueError, match=f"tokens_to_remove is {wrong} but must be -n, to remove n of 10 tokens"):
            cache.crop(wrong)
    for keep in (-1, 1.5, True):
        with pytest.raises(ValueError, match=f"keep is {keep} but must be a whole number, at least 0"):
            CroppableCache(model.config, keep=keep)


def test_passes_of_other_functions_are_refused():
    model = models.model("qwen3.5").eval()
    cache = CroppableCache(model.config)
    read(model, cache, models.tokens(1, 7))
    assert not cache.is_croppable
    with pytest.raises(ValueError, match="crop cannot remove 1 tokens: layer 0: other functions than Headgate's"):
        cache.crop(-1)
    cache.crop(-7)  # a whole pass
    assert cache.tokens() == 0


def test_states_before_the_kept_passes_are_freed(model):
    cache = CroppableCache(model.config)
    read(model, cache, models.tokens(1, 8))
    early = [weakref.ref(layer.recurrent_states[0]) for layer in cache.layers if hasattr(layer, "passes")]
    for _ in range(3):
        read(model, cache, models.tokens(1, 1))
    gc.collect()
    assert early and all(state() is None for state in early)


def inputs_alive(states):
    """Runs three passes of an unrelated model, whose final states it adds to `states`. Returns how many of the passes
    have inputs that are still in memory."""
    inputs = []
    for _ in range(3):
        q, k, v, g, beta = (torch.rand(1, 6, 2, *rest) for rest in ((8,), (8,), (8,), (), ()))
        states.append(hub_functions.recurrent_rule(q, k, v, -g, beta, output_final_state=True)[1])
        inputs.append(weakref.ref(q))
    del q, k, v, g, beta
    return sum(x() is not None for x in inputs)


def test_states_of_other_models_do_not_keep_inputs():
    register()
    gc.collect()  # frees the caches of other tests
    states = []
    assert inputs_alive(states) == 0
    cache = CroppableCache(models.model("qwen3.5").config)
    assert inputs_alive(states) <= 1
    del cache
    gc.collect()
    assert inputs_alive(states) == 0


def test_copied_cache_is_cropped_without_the_original(model):
    ids, draft = models.tokens(2, 7), models.tokens(2, 3)
    original, expected = CroppableCache(model.config, keep=3), CroppableCache(model.config)
    for cache in (original, expected):
        read(model, cache, ids)
    found = copy.deepcopy(original)
    del original, cache
    for tokens, cache in ((draft, found), (draft[:, :1], expected)):
        read(model, cache, tokens)
    found.crop(-2)
    assert found.tokens() == expected.tokens() == 8
    torch.testing.assert_close(states(found), states(expected))


def test_failed_pass_is_removed_by_the_next_crop():
    register()
    layers = ["linear_attention", "linear_attention", "full_attention"]
    model = models.model("qwen3.5", num_hidden_layers=3, layer_types=layers).eval()
    ids, draft = models.tokens(2, 8), models.tokens(2, 3)
    broken, expected = CroppableCache(model.config, keep=8), CroppableCache(model.config, keep=8)
    for cache in (broken, expected):
        read(model, cache, ids)

    def fails(*_):
        raise KeyboardInterrupt

    first, second, last = model.model.layers
    for part in (first.linear_attn.norm, second, second.linear_attn.out_proj, last.self_attn.q_proj):
        hook = part.register_forward_pre_hook(fails)
        with pytest.raises(KeyboardInterrupt):
            read(model, broken, draft)
        hook.remove()
        assert broken.tokens() == 8
        broken.crop(0)
        assert_equal_states(broken, expected)
    for cache in (broken, expected):
        cache.crop(-2)
    assert_equal_states(broken, expected)
    assert torch.equal(read(model, broken, draft), read(model, expected, draft))


def test_failed_token_is_removed_from_a_convolution_updated_in_place():
    register()
    model = models.model("kimi-linear").eval()
    ids, token = models.tokens(2, 8), models.tokens(2, 1)
    broken, expected = CroppableCache(model.config), CroppableCache(model.config)
    for cache in (broken, expected):
        read(model, cache, ids)

    def fails(*_):
        raise KeyboardInterrupt

    hook = model.model.layers[0].self_attn.forget_gate.register_forward_pre_hook(fails)
    with pytest.raises(KeyboardInterrupt):
        read(model, broken, token)
    hook.remove()
    broken.crop(0)
    assert_equal_states(broken, expected)
    assert torch.equal(read(model, broken, token), read(model, expected, token))


def test_windows_that_dropped_keys_are_refused_without_effect():
    register()
    model = models.model("qwen3 with windows").eval()
    cache = CroppableCache(model.config)
    read(model, cache, models.tokens(1, 12))
    with pytest.raises(ValueError, match="layer 0: its window has dropped keys: call activate_past_recording"):
        cache.crop(-2)
    assert [layer.get_seq_length() for layer in cache.layers] == [12, 12]


@pytest.mark.parametrize("drafts", ["lookup", "another model", "the model itself"])
def test_assisted_generation_gives_the_tokens_of_greedy(model, drafts, monkeypatch):
    # Texts that repeat, so that some drafts are accepted and others refused.
    ids = models.tokens(1, 6).repeat(1, 3)
    settings = {"max_new_tokens": 20, "do_sample": False}
    expected = model.generate(ids, **settings)
    family = next(name for name in RECURRENT if isinstance(model, models.FAMILIES[name][0]))
    own = {
        "lookup": {"prompt_lookup_num_tokens": 4},
        "another model": {"assistant_model": models.model("llama", seed=1).eval()},
        "the model itself": {"assistant_model": models.model(family).eval()},
    }[drafts]
    removed = []
    crop = CroppableCache.crop
    monkeypatch.setattr(CroppableCache, "crop", lambda self, n: (removed.append(-n), crop(self, n))[1])
    with assisted_generation(model):
        found = model.generate(ids, **settings, **own)
    assert torch.equal(found, expected)
    assert removed and (drafts == "the model itself" or max(removed) > 0), "no draft was refused"
    with pytest.raises(ValueError, match="not supported with stateful models"):
        model.generate(ids, **settings, **own)


def test_assisted_generation_refuses_caches_that_give_other_tokens(model):
    ids = models.tokens(1, 6)
    settings = {"max_new_tokens": 4, "do_sample": False, "prompt_lookup_num_tokens": 2}
    used = CroppableCache(model.config)
    read(model, used, ids[:, :3])
    with assisted_generation(model):
        with assisted_generation(model):
            pass
        for given, message in (
            (
                {"past_key_values": transformers.DynamicCache(config=model.config)},
                "the cache is DynamicCache but must",
            ),
            ({"cache_implementation": "offloaded"}, "the cache is of the implementation 'offloaded' but must be"),
            ({"past_key_values": used}, "past_key_values holds 3 tokens, which transformers would read again"),
        ):
            with pytest.raises(ValueError, match=f"assisted_generation: {message}"):
                model.generate(ids, **settings, **given)
        cache = CroppableCache(model.config)
        assert torch.equal(model.generate(ids, **settings, past_key_values=cache), model.generate(ids, **settings))
    assert "_is_stateful" not in model.__dict__ and "_prepare_cache_for_generation" not in model.__dict__


def test_beams_have_the_tokens_of_transformers_functions(model):
    ids, settings = models.tokens(2, 9), {"max_new_tokens": 8, "num_beams": 3, "do_sample": False}
    found = model.generate(ids, **settings)
    hub_functions.unregister()
    assert torch.equal(found, model.generate(ids, **settings))
    register()
    assert torch.equal(found, model.generate(ids, past_key_values=CroppableCache(model.config), **settings))
