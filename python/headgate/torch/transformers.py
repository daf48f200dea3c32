# SPDX-License-Identifier: Apache-2.0
"""Headgate for Hugging Face's transformers.

Call register() once, before loading a model. Importing this module changes nothing:

    import headgate.torch.transformers
    headgate.torch.transformers.register()
    model = AutoModelForCausalLM.from_pretrained(NAME, attn_implementation="headgate")

register() adds attn_implementation="headgate", and makes Headgate compute linear attention on CPUs. To switch an
existing model, call model.set_attn_implementation("headgate"). See docs/reference/pytorch.md.
"""

import functools
import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from ..extras import require

require("transformers", "headgate.torch.transformers")  # must precede imports of modules that need transformers

import torch
import transformers
from torch import Tensor, nn
from transformers.cache_utils import Cache
from transformers.masking_utils import (
    causal_mask_function,
    eager_mask,
    prepare_padding_mask,
    sdpa_mask,
)

from . import foreign_arguments, hub_functions, mask_functions
from .attention import gated_attention
from .attention_weights import attention_weights
from .checks import shape_of
from .errors import call_as
from .foreign_arguments import refuse_unknown
from .key_lists import KeyLists, lists_of_index
from .own_attention import has_own_attention
from .packed_rows import begins_of, numbers_in_one_row, numbers_of_positions, one_row
from .pending_gate import require_gate, take_pending_gate
from .precision import IMPLEMENTATIONS, Precision, precision_of, require_precision
from .sharding import describe

if TYPE_CHECKING:
    from .watch.callback import WatchCallback

__all__ = ["WatchCallback", "register", "unregister"]

try:
    from transformers.utils.output_capturing import _active_collector
except ImportError:  # older versions of transformers lack this module
    _active_collector = None  # type: ignore[assignment]

NAME = "headgate"
INSTEAD = "use attn_implementation='eager'"
"""Advice at the end of error messages."""
# Maps argument names of gated_attention to the names that transformers' attention interface uses.
ARGUMENTS = {
    "q": "query",
    "k": "key",
    "v": "value",
    "mask": "attention_mask",
    "key_indices": "indices or block_indices",
    "bias": "attention_mask or position_bias",
    "scale": "scaling",
    "sinks": "s_aux",
    "cu_seqlens_q": "cu_seq_lens_q",
    "cu_seqlens_k": "cu_seq_lens_k",
}


_LAZY = {"WatchCallback": ".watch.callback", "CroppableCache": ".croppable", "assisted_generation": ".croppable"}


def __getattr__(name: str) -> Any:
    """Imports the modules of _LAZY on first use. transformers' Trainer takes long to import, and old versions of
    transformers lack some classes.
    """
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name], __package__), name)
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")


def _own_code(does: str) -> str:
    return (
        f"{NAME}: this model's own code {does} its attention mask, so that its attention is not one of transformers' "
        f"AttentionInterface: {INSTEAD}"
    )


class KeyMask(NamedTuple):
    """Describes a causal mask with bottom-right alignment by rules, in O(S) memory.

    A KeyMask is not a tensor, so it cannot be mistaken for a mask of the caller. Models pass it on to attention
    unchanged.
    """

    keys: Tensor | None  # (B,1,1,S), false at padding; None without padding
    window: int | None  # number of keys that a query sees, including its own; None means no limit
    sequences: Tensor | None = None  # cu_seqlens (N+1) over the B·T tokens of the rows

    # generate() and the mask functions of transformers use these members of a mask.
    ndim = 4  # type: ignore[misc]

    def contiguous(self) -> "KeyMask":
        return self

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(_own_code(f"reads '{name}' of"))

    def __getitem__(self, index: Any) -> Any:
        """Returns this mask if `index` selects the last queries. Rejects other indices, and masks of packed sequences.

        The rules align the last query with the last key, so they describe the mask of the last queries too. Gemma 4
        computes some layers only for the last queries.
        """
        whole = slice(None)
        if isinstance(index, tuple) and len(index) == 4 and (*index[:2], index[3]) == (whole, whole, whole):
            rows = index[2]
            last = isinstance(rows, slice) and rows.stop is None and rows.step is None and (rows.start or 0) <= 0
            if last and self.sequences is None:
                return self
        raise TypeError(_own_code("indexes"))

    def __radd__(self, scores: Any) -> Any:
        raise TypeError(_own_code("adds"))

    def rules(self) -> dict[str, Any]:
        """Converts the mask to arguments of gated_attention."""
        rules: dict[str, Any] = {"causality": "causal"}
        if self.window is not None:
            rules["window_left"] = self.window - 1
        if self.keys is not None:
            rules["mask"] = self.keys
        return rules


def make_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] = causal_mask_function,
    attention_mask: Tensor | KeyMask | None = None,
    local_size: int | None = None,
    allow_is_causal_skip: bool = True,
    config: Any = None,
    **given: Any,
) -> Tensor | KeyMask | None:
    """Implements the mask interface of transformers. attention_mask (B,S) is false at padding.

    - Causal masks, causal windows, and rows that hold several sequences: returns a KeyMask.
    - Models whose own code adds the mask (own_attention.py): returns the result of transformers' eager_mask.
    - All other masks, and static caches: returns the result of transformers' sdpa_mask, (B,1,T,S).

    Rejects unknown arguments unless they are harmless.
    """
    refuse_unknown(f"{NAME}: mask", given, _MASK_ARGUMENTS, INSTEAD)
    if isinstance(attention_mask, KeyMask):
        return attention_mask
    if has_own_attention(type(config)):
        return eager_mask(
            batch_size,
            q_length,
            kv_length,
            q_offset,
            kv_offset,
            mask_function,
            attention_mask,
            local_size=local_size,
            allow_is_causal_skip=allow_is_causal_skip,
            config=config,
            **given,
        )
    # Models whose indexer selects keys read elements of their masks, so these masks must be tensors.
    read = getattr(config, "index_topk", None) or "indexed_attention" in (getattr(config, "layer_types", None) or ())
    allow_is_causal_skip = allow_is_causal_skip and not read
    tracing = torch.compiler.is_compiling()
    padded = attention_mask is not None and (tracing or not bool(attention_mask.all()))
    numbers = None if padded or read else mask_functions.numbers_of(mask_function, local_size)
    windowed = local_size is not None and kv_length >= local_size
    aligned = isinstance(q_offset, int) and q_offset + q_length == kv_offset + kv_length
    ruled = numbers is not None or (allow_is_causal_skip and mask_functions.is_causal(mask_function, local_size))
    if not (ruled and aligned):
        # Gemma 4 cuts its mask to the last queries. Without a mask, these would be taken for the first queries.
        allow_is_causal_skip = allow_is_causal_skip and not getattr(config, "num_kv_shared_layers", None)
        return sdpa_mask(
            batch_size,
            q_length,
            kv_length,
            q_offset,
            kv_offset,
            mask_function,
            attention_mask,
            local_size,
            allow_is_causal_skip,
            config=config,
            **given,
        )
    keys = None
    if padded:
        keys = prepare_padding_mask(attention_mask, kv_length, kv_offset)[:, kv_offset : kv_offset + kv_length]
        keys = keys[:, None, None]
    sequences = None if numbers is None else begins_of(numbers)
    return KeyMask(keys, local_size if windowed else None, sequences)  # type: ignore[call-arg]


_MASK_ARGUMENTS = dict.fromkeys(inspect.signature(sdpa_mask).parameters, "sdpa_mask's") | foreign_arguments.MASK


def _mask_rules(what: str, mask: Tensor | KeyMask) -> dict[str, Any]:
    """Converts a mask to arguments of gated_attention. Rejects integer masks, as PyTorch's attention does: they could
    be either boolean or additive.
    """
    if isinstance(mask, KeyMask):
        return mask.rules()
    if not isinstance(mask, Tensor):
        raise ValueError(f"{what}: attention_mask is a {type(mask).__name__} but must be a tensor: {INSTEAD}")
    if mask.dtype == torch.bool:
        return {"mask": mask}
    if mask.is_floating_point():
        return {"bias": mask}
    raise ValueError(
        f"{what}: attention_mask is {describe(mask)} but must be bool, true where visible, or floating point, added "
        "to the scores: convert it, or give one of padding (B,S) to the model"
    )


def _collects_weights() -> bool:
    """Returns whether the running model collects the attention weights that its modules return.

    Many image encoders collect weights without passing output_attentions on to their attention modules.
    """
    if _active_collector is None or torch.compiler.is_compiling():  # compiled programs cannot read a ContextVar
        return False
    return any(name.endswith("attentions") for name in _active_collector.get() or ())


def attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    cu_seq_lens_q: Tensor | None = None,
    cu_seq_lens_k: Tensor | None = None,
    position_bias: Tensor | None = None,
    output_attentions: bool | None = None,
    sliding_window: int | None = None,
    indices: Tensor | None = None,
    block_indices: Tensor | None = None,
    sinks: Tensor | None = None,
    precision: Precision = "exact",
    **given: Any,
) -> tuple[Tensor, Tensor | None]:
    """Implements the attention interface of transformers.

    query is (B,Hq,T,D), key and value are (B,Hkv,S,·). Returns y (B,T,Hq,Dv) and the weights (B,Hq,T,S). The weights
    are None unless output_attentions is true. If output_attentions is None, it is true if the model collects weights.

    attention_mask comes from make_mask or from the caller:

    - KeyMask: describes the mask by rules.
    - Boolean tensor (B,1,T,S): true for visible keys. It includes windows.
    - Floating-point tensor (B,1,T,S): added to the scores.
    - None: the module's is_causal and sliding_window define the mask. Some encoders have no is_causal. Nothing is then
      hidden, as in eager attention.

    position_bias (B|1,Hq|1,T|1,S) is added to the scores, and has a gradient. cu_seq_lens_q and cu_seq_lens_k (N+1)
    give the first token of each sequence in a row. If they are absent, a KeyMask or position_ids can give them.

    indices (B,T,K) list the keys that all heads may see. The mask may hide some of them. block_indices (B,G,T,K) list
    blocks of config.index_block_size keys, with one list for Hq/G heads. Unused entries of both are -1. s_aux (Hq)
    holds one sink logit per head. sinks holds one sink logit per head (Hq) or per query (B|1,Hq,T,1). Both have
    gradients.

    precision is gated_attention's argument for calls in bfloat16. All other calls are exact. The returned weights are
    always computed with "exact".

    A cache must be one that the model has already updated. Paged caches are rejected: key does not hold their keys.
    Harmless other arguments (foreign_arguments.py) are ignored. All others are rejected.
    """
    what = f"{NAME}: {type(module).__name__}"
    for name in foreign_arguments.CACHES:
        cache = given.pop(name, None)
        if cache is not None and not isinstance(cache, Cache):
            raise ValueError(f"{what}: {name} is a {type(cache).__name__}, with keys that key lacks: {INSTEAD}")
    refuse_unknown(what, given, foreign_arguments.ATTENTION, INSTEAD)
    require_gate(module)
    rules: dict[str, Any] = {"softcap": softcap or 0.0, "scale": scaling, **take_pending_gate(module)}
    rules |= precision_of(query, precision)
    if dropout:
        rules["dropout"] = dropout
    T, S = query.shape[2], key.shape[2]
    if query.shape[0] != key.shape[0]:  # learned queries that all sequences share
        query = query.expand(key.shape[0], -1, -1, -1)
    lists = lists_of_index(what, module, query, S, indices, block_indices)
    if cu_seq_lens_q is not None:
        rules |= {"cu_seqlens_q": cu_seq_lens_q, "cu_seqlens_k": cu_seq_lens_k}
    if attention_mask is not None:
        rules |= _mask_rules(what, attention_mask)
    elif getattr(module, "is_causal", False) if is_causal is None else is_causal:
        rules["causality"] = "causal"
        if sliding_window is not None:
            rules["window_left"] = sliding_window - 1
        if T > 1 and cu_seq_lens_q is None:  # later keys are unused slots of a static cache
            key, value = key[:, :, :T], value[:, :, :T]
    elif sliding_window is not None and sliding_window < key.shape[2]:
        raise ValueError(
            f"{what}: sliding_window is {sliding_window}, without a mask that says on which sides of a query: {INSTEAD}"
        )
    if position_bias is not None:
        rules["bias"] = _with_position_bias(position_bias, rules.get("bias"), key.shape[2])
    if s_aux is not None or sinks is not None:
        rules["sinks"] = _sinks(what, s_aux, sinks, query)
    sequences = None
    if isinstance(attention_mask, KeyMask) and cu_seq_lens_q is None:
        sequences = sequences_of(attention_mask, query.shape, key.shape[2], given)
    if sequences is not None:
        rules |= {"cu_seqlens_q": sequences, "cu_seqlens_k": sequences}
    if output_attentions is None:
        output_attentions = _collects_weights()
    _add_lists(rules, lists, query.shape[1], key, bool(output_attentions))
    names = ARGUMENTS if sinks is None else {**ARGUMENTS, "sinks": "sinks"}
    if not output_attentions:
        return _attend(what, names, query, key, value, rules)[0], None
    y, lse = _attend(what, names, query, key, value, {**rules, "return_lse": True})
    weights = _weights(query, key, lse, rules)
    return y, torch.nn.functional.pad(weights, (0, S - weights.shape[-1]))  # unused slots of a static cache


def sequences_of(mask: KeyMask, query: torch.Size, keys: int, given: Mapping[str, Any]) -> Tensor | None:
    """Returns cu_seqlens (N+1) of packed rows for query (B,Hq,T,D) and `keys` keys, or None if rows are not packed.

    Some models, such as gpt-oss, make their masks without position_ids, but give these to the attention. The sequences
    of a row then begin where its position_ids restart. As in transformers, this needs use_cache=False.
    """
    B, _, T, _ = query
    positions = given.get("position_ids")
    unknown = mask.sequences is None and mask.keys is None and 1 < T == keys and not given.get("use_cache")
    if not unknown or not isinstance(positions, Tensor) or positions.shape not in ((1, T), (B, T)):
        return mask.sequences
    numbers = numbers_of_positions(positions)
    return None if numbers is None else begins_of(numbers.expand(B, T))


def _add_lists(rules: dict[str, Any], lists: list[KeyLists], heads: int, key: Tensor, weights: bool) -> None:
    """Adds lists of keys to the arguments `rules` of gated_attention, for `heads` query heads and key (B,Hkv,S,D).

    gated_attention takes one KeyLists, with one list for all heads or one per key/value head. In packed sequences, it
    counts keys within the sequence, but models count them within the row.

    Adds a mask (B,1|Hq,T,S) instead of the lists in these cases:

    - Query heads of one key/value head have different lists.
    - Another KeyLists was added before.
    - Sequences are packed, and the lists hold blocks, or `weights` is true, or the bounds do not match.
    """
    kv_heads, keys = key.shape[1:3]
    for each in lists:
        packed = "cu_seqlens_q" in rules
        bounds = rules.get("cu_seqlens_q"), rules.get("cu_seqlens_k")
        renumbered = each.block == 1 and not weights and _are_bounds(*bounds)
        if "key_indices" in rules or kv_heads % each.entries.shape[1] != 0 or (packed and not renumbered):
            mask = each.mask(heads, keys)
            rules["mask"] = mask & rules["mask"] if "mask" in rules else mask
            continue
        if packed:
            each = each.in_sequences(*bounds)
        rules.update(each.rules(each.keys if packed else keys, kv_heads))


def _are_bounds(begins_q: Tensor | None, begins_k: Tensor | None) -> bool:
    """Returns whether both arguments are cu_seqlens (N+1) with the same N of at least 1.

    gated_attention rejects all other arguments.
    """
    if begins_q is None or begins_k is None:
        return False
    return begins_q.dim() == 1 and begins_q.shape == begins_k.shape and len(begins_q) > 1


def _sinks(what: str, s_aux: Tensor | None, sinks: Tensor | None, query: Tensor) -> Tensor:
    """Returns the sink logits, (Hq) or (B|1,Hq,T), in f32 or better."""
    if s_aux is not None and sinks is not None:
        raise ValueError(f"{what}: s_aux and sinks are both given, but a query has one sink: {INSTEAD}")
    found = s_aux if sinks is None else sinks
    if found.dim() != 1 and sinks is not None:
        B, heads, T = query.shape[:3]
        if found.dim() != 4 or found.shape[0] not in (1, B) or found.shape[1:] != (heads, T, 1):
            raise ValueError(
                f"{what}: sinks has shape {shape_of(sinks)} but must be ({heads}) or ({B},{heads},{T},1), or of 1 batch"
            )
        found = found.squeeze(-1)
    return found.to(torch.promote_types(found.dtype, torch.float32))


def _with_position_bias(position_bias: Tensor, bias: Tensor | None, keys: int) -> Tensor:
    """Returns the sum of position_bias and bias for the first `keys` keys."""
    position_bias = position_bias[..., :keys].expand(*position_bias.shape[:-1], keys)
    return position_bias if bias is None else position_bias + bias


def _attend(
    what: str, names: dict[str, str], query: Tensor, key: Tensor, value: Tensor, rules: dict[str, Any]
) -> tuple[Tensor, Tensor | None]:
    """Returns y (B,T,Hq,Dv), and the log-sum-exp (B,Hq,T) if `rules` has return_lse. Otherwise, the log-sum-exp is
    None.

    Joins rows of packed sequences to one row for the kernel. Errors use `names` for the arguments of gated_attention.
    """
    query, key, value = (x.transpose(1, 2) for x in (query, key, value))
    B, T, heads = query.shape[:3]
    packed = "cu_seqlens_q" in rules and B > 1
    if packed:
        query, key, value = map(one_row, (query, key, value))
        if "gate" in rules:
            rules = {**rules, "gate": one_row(rules["gate"])}
        if "sinks" in rules and rules["sinks"].dim() > 1:
            rules = {**rules, "sinks": numbers_in_one_row(rules["sinks"], B)}
    found = call_as(what, names, gated_attention, query, key, value, layout="bthd", **rules)
    y, lse = found if "return_lse" in rules else (found, None)
    if packed:
        y = y.view(B, T, heads, -1)
        lse = None if lse is None else lse.view(heads, B, T).transpose(0, 1)
    return y, lse


def _weights(query: Tensor, key: Tensor, lse: Tensor, rules: dict[str, Any]) -> Tensor:
    """Returns the attention weights (B,Hq,T,S) of a call. Processes packed sequences one row at a time."""
    B, _, T, _ = query.shape
    if "cu_seqlens_q" not in rules or B == 1:
        return attention_weights(query, key, lse, rules)
    rows = []
    for b in range(B):
        begins = (rules["cu_seqlens_q"] - b * T).clamp(0, T)
        own = {**rules, "cu_seqlens_q": begins, "cu_seqlens_k": begins}
        rows.append(attention_weights(query[b : b + 1], key[b : b + 1], lse[b : b + 1], own))
    return torch.cat(rows)


def register(*, functions: bool = True, linear_precision: Precision | None = None) -> str:
    """Registers `attn_implementation="headgate"` for every model that calls attention through transformers'
    AttentionInterface. Returns that name. Also registers "headgate-native16", which computes attention in bfloat16 with
    precision="native16". This is faster on CPUs that multiply bfloat16, and as accurate as PyTorch's attention.

    Headgate then also computes the linear attention of Qwen3-Next, Qwen3.5, OLMo-Hybrid and Kimi-Linear on CPUs, for
    any attn_implementation. This covers the chunked and the recurrent (gated) delta rule, and the causal convolution
    before it (hub_functions.py). Existing models are also affected. `functions=False` does not replace these functions.

    linear_precision="native16" permits the delta rule in bfloat16 to multiply bfloat16 numbers, like linear_attention's
    argument `precision`. None keeps the value of an earlier call. The initial value is "exact".

    Later calls only set linear_precision. unregister() restores the functions, and makes the delta rule exact again.
    Raises ValueError for linear_precision with functions=False.
    """
    if linear_precision is not None:
        require_precision("register", linear_precision)
        if not functions:
            raise ValueError(f"register: linear_precision={linear_precision!r} has no effect with functions=False")
    for name, precision in IMPLEMENTATIONS.items():
        function = attention_forward if name == NAME else functools.partial(attention_forward, precision=precision)
        transformers.AttentionInterface.register(name, function)
        transformers.AttentionMaskInterface.register(name, make_mask)
    mask_functions.register()
    if functions:
        hub_functions.register(linear_precision)
    return NAME


def unregister() -> None:
    """Restores transformers' functions of linear attention for all models.

    `attn_implementation="headgate"` stays registered, since it affects only models that select it.
    """
    hub_functions.unregister()
