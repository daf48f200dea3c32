# SPDX-License-Identifier: Apache-2.0
"""Observes nn.MultiheadAttention, and the fast path of nn.TransformerEncoderLayer, which calls no Python function."""

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .call import AttentionCall
from .masks import Rules, find_rules, split_bias
from .wrapping import Wrapped

if TYPE_CHECKING:
    from .handle import Watch


def install(watch: "Watch") -> Callable[[], None]:
    """Wraps the attention and encoder modules of a model. Returns a function that unwraps them."""
    wrapped = Wrapped()
    for module, name in watch.modules():
        if isinstance(module, nn.MultiheadAttention):
            wrapped.wrap(module, _around_attention(watch, module))
        elif isinstance(module, (nn.TransformerEncoderLayer, nn.TransformerEncoder)):
            wrapped.wrap(module, _around_encoder(watch, module, name))
    return wrapped.undo


def _around_attention(watch: "Watch", module: nn.MultiheadAttention) -> Callable[..., Any]:
    def around(forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with watch.observed(module) as layer, torch._C.DisableTorchFunction():
            if layer is not None:
                named = inspect.signature(nn.MultiheadAttention.forward).bind(module, *args, **kwargs).arguments
                named.pop("self")
                watch.observe_attention(layer, lambda: (call_of(module, **named), None))
            return forward(*args, **kwargs)

    return around


def _around_encoder(watch: "Watch", module: nn.Module, name: str) -> Callable[..., Any]:
    """Observes the fast path of an encoder layer. The layer took the fast path if its forward method made no observed
    call.

    Turns off __torch_function__ meanwhile, since active function modes would disable the fast path.
    """

    def around(forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if torch.compiler.is_compiling():
            return forward(*args, **kwargs)
        watch.ran(name)
        before = watch.seen_calls
        with torch._C.DisableTorchFunction():
            out = forward(*args, **kwargs)
        if isinstance(module, nn.TransformerEncoderLayer) and watch.seen_calls == before:
            with watch.observed(module.self_attn) as layer:
                if layer is not None:
                    watch.ran(layer.name)
                    named = inspect.signature(nn.TransformerEncoderLayer.forward).bind(module, *args, **kwargs)
                    watch.observe_attention(layer, lambda: (_of_encoder(module, **named.arguments), None))
        if isinstance(module, nn.TransformerEncoderLayer):
            watch.observe_block(name, out)
        return out

    return around


def _of_encoder(
    module: nn.TransformerEncoderLayer,
    src: Tensor,
    src_mask: Tensor | None = None,
    src_key_padding_mask: Tensor | None = None,
    is_causal: bool = False,
    **_: Any,
) -> AttentionCall:
    if src.is_nested:  # nn.TransformerEncoder converts padded sequences to a nested tensor
        lengths = torch.tensor([len(x) for x in src.unbind()], device=src.device)
        src = src.to_padded_tensor(0.0)
        src_key_padding_mask = torch.arange(src.shape[1], device=src.device) >= lengths[:, None]
    x = module.norm1(src) if module.norm_first else src
    return call_of(module.self_attn, x, x, x, src_key_padding_mask, attn_mask=src_mask)


def call_of(
    module: nn.MultiheadAttention,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> AttentionCall:
    """Converts a call of nn.MultiheadAttention to an AttentionCall, from its inputs and the module's projections.

    Boolean masks of nn.MultiheadAttention are true for hidden keys.
    """
    for name in ("bias_k", "add_zero_attn"):
        if getattr(module, name) is not None and getattr(module, name) is not False:
            raise ValueError(f"nn.MultiheadAttention with {name} is not read")
    cross = key is not query and (key.shape != query.shape or not torch.equal(key, query))
    if query.dim() == 2:
        query, key = query[None], key[None]
        key_padding_mask = None if key_padding_mask is None else key_padding_mask[None]
    elif not module.batch_first:
        query, key = query.transpose(0, 1), key.transpose(0, 1)
    E, H = module.embed_dim, module.num_heads
    if module.in_proj_weight is not None:
        of_q, of_k, _ = module.in_proj_weight.split(E)
    else:
        of_q, of_k = module.q_proj_weight, module.k_proj_weight
    bias_q, bias_k = (None, None) if module.in_proj_bias is None else module.in_proj_bias.split(E)[:2]
    q = F.linear(query, of_q, bias_q).unflatten(-1, (H, -1)).transpose(1, 2)
    k = F.linear(key, of_k, bias_k).unflatten(-1, (H, -1)).transpose(1, 2)
    (B, _, T, _), S = q.shape, k.shape[2]
    rules = Rules()
    visible = bias = None
    if attn_mask is not None:
        mask = attn_mask.detach()
        mask = mask[None, None] if mask.dim() == 2 else mask.view(B, H, T, S)
        visible, bias = (~mask, None) if mask.dtype == torch.bool else split_bias(mask)
    if key_padding_mask is not None:
        padding = key_padding_mask.detach()[:, None, None]
        shown, more = (~padding, None) if padding.dtype == torch.bool else split_bias(padding)
        if shown is not None:
            visible = shown if visible is None else visible & shown
        if more is not None:
            bias = more if bias is None else bias + more
    if visible is not None or bias is not None:
        rules = find_rules(visible, bias, T, S, None)
    kind = "causal" if rules.causal else "bidirectional"
    return AttentionCall(q, k, cross=cross, kind=kind, **rules._asdict())
