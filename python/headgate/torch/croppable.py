# SPDX-License-Identifier: Apache-2.0
"""A cache for transformers that can remove the last tokens from linear attention, for draft tokens and edited chats.

A recurrent state cannot forget tokens. For each of the last passes, this cache therefore keeps the state before the
pass and the inputs of the delta rule. To remove tokens, it computes the state again from the remaining inputs.

Letters: B batch, T tokens of a pass, C channels and K columns of a convolution's state, Hv heads, D and Dv features.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import cache_utils
from transformers.generation.configuration_utils import GenerationMode

from .checks import is_whole
from .hub_functions import RulePass, attach_passes_for, take_pass


class _Pass:
    """Holds a forward pass of one layer over T tokens. Each dict has one entry per state of the layer."""

    def __init__(self, T: int):
        self.T = T
        self.columns: dict[int, Tensor] = {}  # (B,C,K+T): the convolution's old state and T inputs
        self.before: dict[int, Tensor | None] = {}  # (B,Hv,D,Dv): recurrent state before the pass; None means zeros
        self.rules: dict[int, RulePass | None] = {}  # inputs of the delta rule; None if other code computed it


class _Layer(cache_utils.LinearAttentionLayer):
    """Layer of a CroppableCache. Keeps the newest pass, and earlier ones until they cover the last `keep` tokens."""

    def __new__(cls, *_: Any) -> "_Layer":
        layer = super().__new__(cls)
        attach_passes_for(layer)  # in __new__, because copy.copy() and copy.deepcopy() do not run __init__
        return layer

    def __init__(self, like: cache_utils.LinearAttentionLayer, keep: int):
        super().__init__(number_of_states=like.number_of_states)
        self.keep = keep
        self.record_past = True  # tells models to call update_conv_state even for passes of one token
        self.length = 0  # number of tokens of each sequence
        self.passes: list[_Pass] = []
        self.tails: dict[int, Tensor] = {}  # (B,C,K): copies of conv_states, which models may overwrite

    def _begin(self, T: int) -> _Pass:
        self.passes.append(_Pass(T))
        self.length += T
        while sum(each.T for each in self.passes[1:]) >= max(self.keep, T):
            del self.passes[0]
        return self.passes[-1]

    def update_conv_state(
        self, conv_states: Tensor, state_idx: int = 0, conv_kernel_size: int | None = None, **kwargs: Any
    ) -> Tensor:
        T, before = conv_states.shape[-1], self.conv_states[state_idx]
        K = T if conv_kernel_size is None else conv_kernel_size
        first = before is None
        if first:
            before = conv_states.new_zeros(*conv_states.shape[:-1], K)
            self.dtype, self.device = conv_states.dtype, conv_states.device
            self.is_conv_states_initialized[state_idx] = True
            self.conv_kernel_size[state_idx] = K
        begins = not self.passes or state_idx in self.passes[-1].columns
        now = self._begin(T) if begins else self.passes[-1]
        self._set_columns(now, state_idx, torch.cat((before, conv_states), dim=-1))
        self.has_previous_state[state_idx] = True
        return conv_states if first else now.columns[state_idx]

    def _set_columns(self, now: _Pass, state_idx: int, columns: Tensor) -> None:
        now.columns[state_idx] = columns
        self._set_tail(state_idx, columns[..., -self.conv_kernel_size[state_idx] :])

    def _set_tail(self, state_idx: int, tail: Tensor) -> None:
        self.tails[state_idx], self.conv_states[state_idx] = tail.clone(), tail.clone()

    def update_recurrent_state(self, recurrent_states: Tensor, state_idx: int = 0, **kwargs: Any) -> Tensor:
        if not self.passes or state_idx in self.passes[-1].rules:
            self._begin_in_place()
        now = self.passes[-1]
        now.before[state_idx] = self.recurrent_states[state_idx]
        now.rules[state_idx] = take_pass(recurrent_states)
        self.recurrent_states[state_idx] = recurrent_states
        self.is_recurrent_states_initialized[state_idx] = True
        return recurrent_states

    def _begin_in_place(self) -> None:
        """Begins a pass of one token for which the model did not call update_conv_state.

        The model has itself written the token's column into conv_states. This method copies the column from there.
        """
        now = self._begin(1)
        for state_idx, state in self.conv_states.items():
            if state is not None:
                self._set_columns(now, state_idx, torch.cat((self.tails[state_idx], state[..., -1:]), dim=-1))

    def reset(self) -> None:
        self.length, self.passes, self.tails = 0, [], {}
        for states in (self.conv_states, self.recurrent_states):
            states.update(dict.fromkeys(states))
        for flags in (self.is_conv_states_initialized, self.is_recurrent_states_initialized, self.has_previous_state):
            flags.update(dict.fromkeys(flags, False))

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Selects the sequences `beam_idx`. Drops the kept passes, whose tensors have the old order of sequences."""
        super().reorder_cache(beam_idx)
        self.passes = []
        for state_idx, tail in self.tails.items():
            self.tails[state_idx] = tail.index_select(0, beam_idx)

    def _can_shorten(self, each: _Pass) -> bool:
        recurrent = [n for n, has_state in self.is_recurrent_states_initialized.items() if has_state]
        return all(each.rules.get(n) is not None for n in recurrent)

    @property
    def is_croppable(self) -> bool:
        return all(map(self._can_shorten, self.passes))

    def why_not(self, remove: int) -> str | None:
        """Returns the reason why crop() cannot remove `remove` tokens. Returns None if it can."""
        for each in reversed(self.passes):
            if remove < each.T:
                if remove == 0 or self._can_shorten(each):
                    return None
                return "other functions than Headgate's computed its last pass: register(), no compiling, no gradients"
            remove -= each.T
        if remove == 0:
            return None
        kept = sum(each.T for each in self.passes)
        return f"it keeps the last {kept} tokens: give a larger keep, and crop before beams are reordered"

    def crop(self, tokens_to_remove: int) -> None:
        remove = -tokens_to_remove
        self.length -= remove
        for state_idx, tail in self.tails.items():  # a failed pass of one token may have changed conv_states
            self.conv_states[state_idx] = tail.clone()
        while remove > 0 and remove >= self.passes[-1].T:
            remove -= self.passes[-1].T
            self._undo(self.passes.pop())
        if remove > 0:
            self._shorten(self.passes[-1], self.passes[-1].T - remove)

    def _undo(self, last: _Pass) -> None:
        for state_idx, columns in last.columns.items():
            self._set_tail(state_idx, columns[..., : self.conv_kernel_size[state_idx]])
        for state_idx, before in last.before.items():
            self.recurrent_states[state_idx] = before
            if before is None:  # the pass was the first one and began without a state
                self.is_recurrent_states_initialized[state_idx] = False
        if any(before is None for before in last.before.values()):
            self.reset()

    def _shorten(self, now: _Pass, T: int) -> None:
        for state_idx, columns in now.columns.items():
            self._set_columns(now, state_idx, columns[..., : columns.shape[-1] - now.T + T].clone())
        for state_idx, rule in now.rules.items():
            now.rules[state_idx] = rule = rule.first_tokens(T)
            self.recurrent_states[state_idx] = rule.recompute_state()
        now.T = T


class CroppableCache(transformers.DynamicCache):
    """A DynamicCache whose `crop(-n)` also removes the last n tokens from the states of linear attention.

    After `crop`, the states are bitwise identical to those of the same passes without the removed tokens. Requires
    `headgate.torch.transformers.register()`. Works with Qwen3-Next, Qwen3.5, OLMo-Hybrid and Kimi-Linear.

    Args:
        config: the model's config.
        keep: the number of tokens that `crop` must be able to remove. `crop` can always remove the whole last pass.

    For each pass that `crop` may have to shorten or remove, each layer of linear attention stores two things: the state
    (B,Hv,D,Dv) before the pass, and the inputs of the delta rule. `crop` raises ValueError, and changes nothing, if it
    cannot remove n tokens. It can shorten a pass only if Headgate's functions computed the pass. Compiled models,
    packed rows and calls with gradients use other functions.
    """

    def __init__(self, config: transformers.PreTrainedConfig, *, keep: int = 0):
        if not is_whole(keep) or keep < 0:
            raise ValueError(f"CroppableCache: keep is {keep!r} but must be a whole number, at least 0")
        if not hasattr(cache_utils.LinearAttentionLayer, "activate_past_recording"):
            raise ImportError(
                f"CroppableCache: transformers {transformers.__version__} cannot record the past of linear attention; "
                "install version 5.23 or a later one"
            )
        super().__init__(config=config)
        for n, layer in enumerate(self.layers):
            if type(layer) is cache_utils.LinearAttentionLayer:
                self.layers[n] = _Layer(layer, keep)
            elif isinstance(layer, cache_utils.LinearAttentionCacheLayerMixin):
                raise ValueError(f"CroppableCache: layer {n}, a {type(layer).__name__}, cannot be cropped")

    def tokens(self) -> int:
        """Returns the number of tokens of each sequence.

        A failed pass can leave layers of different lengths. The result is then the smallest length.
        """
        return min(map(_length_of, self.layers), default=0)

    def crop(self, tokens_to_remove: int) -> None:
        """Removes the last n = −tokens_to_remove tokens of each sequence.

        n is counted from tokens(). Tokens that a failed pass has added to only some layers are also removed.
        """
        left = self.tokens() + tokens_to_remove
        if tokens_to_remove > 0 or left < 0:
            raise ValueError(
                f"CroppableCache: tokens_to_remove is {tokens_to_remove} but must be -n, to remove n of "
                f"{self.tokens()} tokens"
            )
        for n, layer in enumerate(self.layers):
            reason = _why_not(layer, _length_of(layer) - left)
            if reason is not None:
                raise ValueError(f"CroppableCache: crop cannot remove {-tokens_to_remove} tokens: layer {n}: {reason}")
        for layer in self.layers:
            remove = _length_of(layer) - left
            if remove > 0 or getattr(layer, "record_past", False):
                layer.crop(-remove)


def _length_of(layer: Any) -> int:
    return layer.length if isinstance(layer, _Layer) else int(layer.get_seq_length())


def _why_not(layer: Any, remove: int) -> str | None:
    """Returns the reason why a layer's crop() cannot remove `remove` tokens. Returns None if it can."""
    if isinstance(layer, _Layer):
        return layer.why_not(remove)
    window = getattr(layer, "sliding_window", None)
    if remove > 0 and window is not None and not layer.record_past and layer.get_seq_length() >= window:
        return "its window has dropped keys: call activate_past_recording() before the tokens are read"
    return None


@contextlib.contextmanager
def assisted_generation(model: nn.Module) -> Iterator[None]:
    """Lets `model.generate` use draft tokens with linear-attention models. transformers alone refuses this.

    Within this context, `prompt_lookup_num_tokens` and `assistant_model` work. Greedy generation returns the same
    tokens as without drafts, up to rounding. With drafts, `generate` uses a CroppableCache. It raises ValueError for
    other types of cache. It also raises ValueError if the cache already holds tokens, since transformers would read
    those tokens twice.
    """
    prepare = model._prepare_cache_for_generation

    def prepared(
        generation_config: Any, model_kwargs: dict[str, Any], generation_mode: Any, *args: Any, **kw: Any
    ) -> Any:
        if generation_mode == GenerationMode.ASSISTED_GENERATION and generation_config.use_cache is not False:
            cache, kind = model_kwargs.get("past_key_values"), generation_config.cache_implementation
            if kind not in (None, "dynamic") or not (cache is None or isinstance(cache, CroppableCache)):
                found = type(cache).__name__ if kind is None else f"of the implementation {kind!r}"
                raise ValueError(f"assisted_generation: the cache is {found} but must be a CroppableCache, or left out")
            if cache is None:
                cache = model_kwargs["past_key_values"] = CroppableCache(model.config)
            if cache.tokens() > 0:
                raise ValueError(
                    f"assisted_generation: past_key_values holds {cache.tokens()} tokens, which transformers would "
                    "read again: give an empty CroppableCache, or leave it out"
                )
        return prepare(generation_config, model_kwargs, generation_mode, *args, **kw)

    own = {"_prepare_cache_for_generation": prepared, "_is_stateful": False}
    before = {name: model.__dict__[name] for name in own if name in model.__dict__}
    model.__dict__.update(own)
    try:
        yield
    finally:
        for name in own:
            model.__dict__.pop(name, None)
        model.__dict__.update(before)
