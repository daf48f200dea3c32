# SPDX-License-Identifier: Apache-2.0
"""Implements scaled_dot_product_attention with the kernels of gated_attention. Arguments and semantics are PyTorch's."""

import math
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack, cast

import torch
from torch import Tensor
from torch.nn.functional import pad

from .arguments import ADDED, require_known, takes
from .attention import gated_attention
from .checks import is_causal_bias, require_bool, require_real, require_tensors, shape_of, shown
from .dropout import computes_dropout
from .errors import call_as

if TYPE_CHECKING:
    from headgate._arguments import AddedArguments

NAME = "scaled_dot_product_attention"
LARGEST_HEAD = 576
_LARGEST_F32, _LARGEST_F64 = torch.finfo(torch.float32).max, torch.finfo(torch.float64).max
_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
# Maps argument names of gated_attention to those of PyTorch.
_ARGUMENTS = {
    "q": "query",
    "k": "key",
    "v": "value",
    "mask": "attn_mask",
    "bias": "attn_mask",
}


class Refusal(NamedTuple):
    """Reason why a call is rejected: the type of the error, and the error's text after the function's name."""

    error: type[Exception]
    text: str


class Sizes(NamedTuple):
    """Sizes of a call. `lead` is the shape of the result (…,L,Ev) without the last two dimensions. It includes the
    heads.
    """

    lead: tuple[int, ...]
    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    features: int


def _broadcast(shapes: list[tuple[int, ...]]) -> tuple[int, ...] | None:
    """Returns the shape that all `shapes` broadcast to. Returns None if they do not broadcast."""
    width = max(map(len, shapes))
    found = [1] * width
    for shape in shapes:
        for i, size in enumerate(shape, width - len(shape)):
            if size != 1 and size != found[i]:
                if found[i] != 1:
                    return None
                found[i] = size
    return tuple(found)


def sizes_of(query: Tensor, key: Tensor, value: Tensor, enable_gqa: bool) -> Sizes | Refusal:
    """Returns the sizes of a call. Returns a Refusal if the shapes are invalid."""
    q, k, v = tuple(query.shape), tuple(key.shape), tuple(value.shape)
    least = 3 if enable_gqa else 2
    if min(len(q), len(k), len(v)) < least:
        return Refusal(
            RuntimeError,
            f"query, key and value have {len(q)}, {len(k)} and {len(v)} dimensions but must have at least {least}",
        )
    if q[-1] != k[-1]:
        return Refusal(RuntimeError, f"query has {q[-1]} features and key {k[-1]}, but both must have as many")
    if k[-2] != v[-2]:
        return Refusal(RuntimeError, f"key has {k[-2]} rows and value {v[-2]}, but both must have as many")
    if enable_gqa:
        heads, of_k, of_v = q[-3], k[-3], v[-3]
        if min(of_k, of_v) < 1 or heads % of_k != 0 or heads % of_v != 0:
            return Refusal(
                RuntimeError, f"query has {heads} heads, which {of_k} of key or {of_v} of value do not divide"
            )
        batch = _broadcast([q[:-3], k[:-3], v[:-3]])
        lead = None if batch is None else (*batch, heads)
        kv_heads = of_k if of_k == of_v else heads
    else:
        lead = _broadcast([q[:-2], k[:-2], v[:-2]])
        of_k, of_v = (x[-3] if len(x) > 2 else 1 for x in (k, v))
        heads = lead[-1] if lead else 1
        kv_heads = of_k if of_k == of_v else heads
    if lead is None:
        return Refusal(
            RuntimeError, f"query {shape_of(query)}, key {shape_of(key)} and value {shape_of(value)} do not broadcast"
        )
    return Sizes(lead, math.prod(lead[:-1]), heads, kv_heads, q[-2], k[-2], v[-1])


def _fits(x: Tensor, shape: tuple[int, ...]) -> bool:
    """Returns whether x broadcasts to `shape`."""
    given = tuple(x.shape)
    return len(given) <= len(shape) and all(
        size == 1 or size == full for size, full in zip(reversed(given), reversed(shape))
    )


def _mask_refusal(query: Tensor, attn_mask: Tensor, sizes: Sizes) -> Refusal | None:
    shape = (*sizes.lead, sizes.queries, sizes.keys)
    if not _fits(attn_mask, shape):
        needed = ",".join(map(str, shape))
        return Refusal(RuntimeError, f"attn_mask has shape {shape_of(attn_mask)} but must broadcast to ({needed})")
    if not torch.is_autocast_enabled("cpu"):
        taken: tuple[torch.dtype, ...] = (torch.bool, torch.float32, query.dtype)
    elif query.dtype == torch.float64:  # autocast casts the mask, but not a float64 query
        taken = (torch.bool, torch.float64)
    else:
        taken = (torch.bool, torch.float32, torch.bfloat16, torch.float16)
    if attn_mask.dtype in taken:
        return None
    words = ", ".join(str(dtype).removeprefix("torch.") for dtype in dict.fromkeys(taken))
    return Refusal(RuntimeError, f"attn_mask is {attn_mask.dtype} but must be one of {words}")


def _number_refusal(dropout_p: float, scale: float | None, dtype: torch.dtype) -> Refusal | None:
    if not 0 <= dropout_p <= 1:
        return Refusal(RuntimeError, f"dropout_p is {shown(dropout_p)} but must be in [0, 1]")
    if not computes_dropout(dropout_p):
        return Refusal(ValueError, f"dropout of {dropout_p} is not supported: set it to 0")
    largest = _LARGEST_F64 if dtype == torch.float64 else _LARGEST_F32
    if isinstance(scale, (int, float)) and not abs(scale) <= largest:
        suffix = "" if dtype == torch.float64 else " in f32"
        return Refusal(ValueError, f"scale is {shown(scale)} but must be finite{suffix}")
    return None


def refusal_of(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
) -> Refusal | Sizes:
    """Returns the sizes of a call. Returns a Refusal if PyTorch rejects the call or if the kernels do not support it."""
    dtype = query.dtype
    if dtype not in _DTYPES:
        return Refusal(RuntimeError, f"query is {dtype} but must be float32, float64, bfloat16 or float16")
    dtypes = {dtype, key.dtype, value.dtype}
    # Autocast does not cast float64.
    if len(dtypes) > 1 and (torch.float64 in dtypes or not torch.is_autocast_enabled("cpu")):
        return Refusal(
            RuntimeError, f"query, key and value are {dtype}, {key.dtype} and {value.dtype}, not of one type"
        )
    sizes = sizes_of(query, key, value, enable_gqa)
    if isinstance(sizes, Refusal):
        return sizes
    wrong = _number_refusal(dropout_p, scale, dtype)
    if wrong is None and attn_mask is not None:
        if is_causal:
            return Refusal(RuntimeError, "attn_mask and is_causal cannot be given together")
        wrong = _mask_refusal(query, attn_mask, sizes)
    if wrong is None and max(query.shape[-1], sizes.features) > LARGEST_HEAD:
        wrong = Refusal(
            ValueError,
            f"heads have {query.shape[-1]} and {sizes.features} features but may have at most {LARGEST_HEAD}",
        )
    return sizes if wrong is None else wrong


def _as_batch(x: Tensor, sizes: Sizes, heads: int) -> Tensor:
    """Reshapes x (…,heads|1,n,features) to (B,heads,n,features). Returns a view if the strides permit it."""
    batch = sizes.lead[:-1]
    if x.dim() == 2:
        x = x.unsqueeze(0)
    if tuple(x.shape[:-2]) == (sizes.batch, heads):
        return x
    x = x.expand(*batch, heads, *x.shape[-2:])
    return x if len(batch) == 1 else x.reshape(sizes.batch, heads, *x.shape[-2:])


def _kv_as_batch(x: Tensor, sizes: Sizes) -> Tensor:
    """Reshapes key or value to (B,Hkv,S,features). First repeats heads if key and value have different numbers of
    heads.
    """
    own = x.shape[-3] if x.dim() > 2 else 1
    if own not in (1, sizes.kv_heads):
        x = x.repeat_interleave(sizes.kv_heads // own, dim=-3)
    return _as_batch(x, sizes, sizes.kv_heads)


def _mask_as_batch(attn_mask: Tensor, sizes: Sizes) -> Tensor:
    """Reshapes attn_mask to (B|1,H|1,L|1,S)."""
    width = len(sizes.lead) + 2
    x = attn_mask[(None,) * (max(width, 4) - attn_mask.dim())]
    if x.shape[-1] != sizes.keys:
        x = x.expand(*x.shape[:-1], sizes.keys)
    if x.dim() == 4:
        return x
    if all(size == 1 for size in x.shape[:-3]):
        return x.reshape(1, *x.shape[-3:])
    return x.expand(*sizes.lead[:-1], *x.shape[-3:]).reshape(sizes.batch, *x.shape[-3:])


def _rules(query: Tensor, attn_mask: Tensor | None, is_causal: bool, sizes: Sizes) -> dict[str, Any]:
    """Converts the mask or causality to arguments of gated_attention."""
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            return {"mask": _mask_as_batch(attn_mask, sizes)}
        if query.dtype == torch.float64:  # kernels do not support a float32 bias with a float64 query
            attn_mask = attn_mask.double()
        return {"bias": _mask_as_batch(attn_mask, sizes)}
    if not is_causal:
        return {}
    if sizes.queries == sizes.keys:
        return {"causality": "causal"}
    # PyTorch uses top-left alignment: query i sees keys 0 … i, so the first query is at position 0.
    first = query.new_zeros(sizes.batch, dtype=torch.int64)  # a DTensor if query is one
    return {"causality": "causal", "query_offsets": first}


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    sizes: Sizes,
    gate: Tensor | None = None,
    options: dict[str, Any] | None = None,
) -> Tensor:
    """Computes a call. `sizes` is the result of refusal_of for the call."""
    shape, own = (*sizes.lead, sizes.queries, sizes.features), (*query.shape[:-1], sizes.features)
    # As in PyTorch, the result has the leading shape of query if there are no queries or values.
    keeps_lead = gate is None and own != shape and (sizes.queries == 0 or value.numel() == 0)
    if sizes.features == 0:  # kernels require at least one feature
        value, gate = (x if x is None or x.shape[-1] > 0 else pad(x, (0, 1)) for x in (value, gate))
    if query.shape[-1] == 0:  # without features, all scores are 0; one zero feature gives the same
        query, key, scale = pad(query, (0, 1)), pad(key, (0, 1)), 1.0
    arguments = dict(options) if options else {}
    arguments.update(_rules(query, attn_mask, is_causal, sizes))
    if scale is not None:
        arguments["scale"] = float(scale) if isinstance(scale, bool) else scale  # PyTorch takes True for 1
    if dropout_p > 0:
        arguments["dropout"] = dropout_p
    q = _as_batch(query, sizes, sizes.heads)
    z = None if gate is None else _as_batch(gate, sizes, sizes.heads)
    y = gated_attention(q, _kv_as_batch(key, sizes), _kv_as_batch(value, sizes), z, **arguments)
    if sizes.features == 0:
        y = y[..., :0]
    if keeps_lead:  # y is empty or 0. Adding the sum of none of its numbers keeps it in autograd's graph.
        return y.new_zeros(own) + y.reshape(-1)[:0].sum()
    return y if len(sizes.lead) == 2 else y.reshape(shape)


def _require_gate(gate: Tensor, sizes: Sizes) -> None:
    rows = (*sizes.lead, sizes.queries)
    if gate.dim() >= 2 and gate.shape[-2] == sizes.queries and gate.shape[-1] in (1, sizes.features):
        if _fits(gate, (*rows, gate.shape[-1])):
            return
    needed = ",".join(map(str, rows))
    raise ValueError(f"{NAME}: gate has shape {shape_of(gate)} but must be ({needed},1) or ({needed},{sizes.features})")


def _read_causal_bias(bias: Any, query: Tensor, is_causal: bool) -> tuple[Tensor | None, bool]:
    """Converts PyTorch's CausalBias to the arguments attn_mask and is_causal."""
    if is_causal:
        raise ValueError(f"{NAME}: attn_mask is a CausalBias, which cannot be given together with is_causal")
    L, S = bias.seq_len_q, bias.seq_len_kv
    if L == S or bias.variant.name == "UPPER_LEFT":
        return None, True
    return torch.ones(L, S, dtype=torch.bool, device=query.device).tril(S - L), False


@takes(*ADDED)
def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
    gate: Tensor | None = None,
    **options: "Unpack[AddedArguments]",
) -> Tensor:
    """Computes torch.nn.functional.scaled_dot_product_attention with a gate: softmax(scale query key^T + attn_mask)
    value, times g(gate). The semantics are PyTorch's.

    query (…,H,L,E), key (…,H,S,E) and value (…,H,S,Ev) broadcast over their leading dimensions. Tensors with two
    dimensions are one head. The result is (…,H,L,Ev). attn_mask broadcasts to (…,H,L,S). A boolean mask is true for
    keys that a query may attend to. A floating-point mask is added to the scores and has a gradient. A CausalBias of
    PyTorch stands for its causal mask. is_causal lets query i see keys 0 … i (top-left alignment). With enable_gqa, key
    and value may have fewer heads. Their numbers of heads must divide that of query. A query that sees no key has the
    result 0 and zero gradients. The default of scale is 1/sqrt(E).

    gate, (…,H,L,1) or (…,H,L,Ev), holds the raw logits of the gate. gate_fn, gate_op, sinks, softcap, precision and
    threads are arguments of gated_attention.

    Raises TypeError for arguments of another type: a flag that is no bool, or a scale or dropout_p that is no number.
    Raises RuntimeError for other calls that PyTorch rejects: wrong dtypes or shapes, or attn_mask together with
    is_causal. Raises ValueError for calls that Headgate does not support: dropout_p of 1, heads of more than 576 features, other
    devices, and invalid options.
    """
    for name, x in (("is_causal", is_causal), ("enable_gqa", enable_gqa)):
        require_bool(NAME, name, x)
    require_real(NAME, "dropout_p", dropout_p)
    if scale is not None:
        require_real(NAME, "scale", scale)
    if is_causal_bias(attn_mask) and isinstance(query, Tensor):
        attn_mask, is_causal = _read_causal_bias(attn_mask, query, is_causal)
    require_tensors(NAME, {"query": query, "key": key, "value": value}, {"attn_mask": attn_mask, "gate": gate})
    require_known(
        NAME, options, ADDED, ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "gate")
    )
    sizes = refusal_of(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    if isinstance(sizes, Refusal):
        raise sizes.error(f"{NAME}: {sizes.text}")
    if gate is not None:
        _require_gate(gate, sizes)
    return call_as(
        NAME,
        _ARGUMENTS,
        attend,
        query,
        key,
        value,
        attn_mask,
        dropout_p,
        is_causal,
        scale,
        sizes,
        gate,
        cast("dict[str, Any]", options),
    )
