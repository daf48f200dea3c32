# SPDX-License-Identifier: Apache-2.0
"""Registers attention as the PyTorch operator torch.ops.headgate.gated_attention, and defines the public function.

The operator and its backward pass are custom operators with fake kernels, which torch.compile, torch.export and
autograd can trace. Eager calls bypass the dispatcher (eager.py). headgate.attention_forward and attention_backward do
all computation.
"""

import operator
from collections.abc import Callable, Container, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NoReturn, Unpack, overload

import torch
from torch import Tensor
from torch.autograd import forward_ad

import headgate

from . import gpu
from .arguments import (
    ATTENTION,
    DIFFERENTIABLE,
    FORWARD_ONLY,
    OPTIONAL,
    OPTIONS,
    TENSORS,
    Operation,
    require_known,
    take_old_name,
    takes,
)
from .checks import require_one_device, require_tensor
from .dropout import draw_seed
from .eager import EagerOperation, Named, RecordedCall
from .errors import in_words_of
from .gates import keeps_output
from .tensor_parallel import are_dtensors, attend_on_dtensors
from .transforms import (
    FORWARD_MODE,
    SECOND,
    FunctionalAttention,
    backward_over_batch,
    forward_over_batch,
    transforms_are_active,
)

if TYPE_CHECKING:
    from headgate._arguments import AttentionArguments

NAME = "gated_attention"


_INPUTS, _SETTINGS = ATTENTION.schema_of_tensors(), ATTENTION.schema_of_options()


class Saved(NamedTuple):
    """Results of a forward pass: y; lse (B,H,T) in f64; attn, the output before the gate, or an empty tensor if not
    kept."""

    y: Tensor
    lse: Tensor
    attn: Tensor


def _rows_shape(q: Tensor, layout: str) -> list[int]:
    """Returns the shape of lse: (B,H,T), or (H,T) without a batch."""
    *batch, first, second, _ = q.shape
    return [*batch, first, second] if layout == "bhtd" else [*batch, second, first]


@torch.library.custom_op(
    "headgate::gated_attention",
    mutates_args=(),
    device_types="cpu",
    schema=f"({_INPUTS}, *, {_SETTINGS}, bool keep_attn=False) -> (Tensor y, Tensor lse, Tensor attn)",
)
@in_words_of(NAME, {})
def _forward(*tensors: Tensor | None, keep_attn: bool = False, **options: Any) -> tuple[Tensor, Tensor, Tensor]:
    outputs = ["y", "lse", "attn"] if keep_attn else ["y", "lse"]
    out = headgate.attention_forward(outputs=outputs, **_given(tensors), **ATTENTION.changed(options))
    return out.y, out.lse, out.attn if keep_attn else tensors[0].new_empty(0)


@_forward.register_fake
def _(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *tensors: Tensor | None,
    keep_attn: bool = False,
    layout: str = "bhtd",
    **options: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    y = q.new_empty([*q.shape[:-1], v.shape[-1]])
    lse = q.new_empty(_rows_shape(q, layout), dtype=torch.float64)
    return y, lse, q.new_empty(y.shape if keep_attn else 0)


def _given(tensors: tuple[Tensor | None, ...]) -> dict[str, Any]:
    """Returns the tensors that are not None, by name. `tensors` may end before the last optional ones."""
    return {name: tensor for name, tensor in zip(TENSORS, tensors) if tensor is not None}


@torch.library.custom_op(
    "headgate::gated_attention_backward",
    mutates_args=(),
    device_types="cpu",
    schema=f"(Tensor dy, Tensor? dlse, Tensor y, Tensor lse, Tensor? attn, {_INPUTS}, *, bool[] wanted, {_SETTINGS}) "
    f"-> ({', '.join('Tensor d' + name for name in DIFFERENTIABLE)})",
)
@in_words_of(NAME, {})
def _backward(
    dy: Tensor,
    dlse: Tensor | None,
    y: Tensor,
    lse: Tensor,
    attn: Tensor | None,
    *tensors: Tensor | None,
    wanted: list[bool],
    **options: Any,
) -> tuple[Tensor, ...]:
    names = ["d" + name for name, asked in zip(DIFFERENTIABLE, wanted) if asked]
    saved: dict[str, Any] = {"y": y, "lse": lse, "attn": attn, "dlse": dlse}
    found = headgate.attention_backward(dy, gradients=names, **saved, **_given(tensors), **ATTENTION.changed(options))
    gradients = [getattr(found, "d" + name) for name in DIFFERENTIABLE]
    return tuple(dy.new_empty(0) if gradient is None else gradient for gradient in gradients)


@_backward.register_fake
def _(
    dy: Tensor,
    dlse: Tensor | None,
    y: Tensor,
    lse: Tensor,
    attn: Tensor | None,
    *tensors: Tensor | None,
    wanted: list[bool],
    **options: Any,
) -> tuple[Tensor, ...]:
    inputs = dict(zip(TENSORS, tensors))
    return tuple(
        inputs[name].new_empty(inputs[name].shape) if asked else dy.new_empty(0)
        for name, asked in zip(DIFFERENTIABLE, wanted)
    )


def register_autograd(
    name: str,
    forward: Any,
    backward: Any,
    tensors: tuple[str, ...],
    differentiable: tuple[str, ...],
    save: Callable[..., None],
    read: Callable[..., tuple[Sequence[Tensor | None], Sequence[Tensor | None]]],
) -> None:
    """Registers the backward pass headgate::NAME_backward as autograd's formula of headgate::NAME. Double backward
    raises an error.

    `save(ctx, inputs, keyword_only_inputs, output)` saves what the backward pass needs, and sets ctx.options.
    `read(ctx, *gradients of the results)` returns the arguments that the backward pass has before the inputs, and the
    inputs.
    """

    def gradients(ctx: Any, *incoming: Tensor | None) -> tuple[Tensor | None, ...]:
        leading, inputs = read(ctx, *incoming)
        # PyTorch omits trailing inputs that have the default None.
        needed = dict(zip(tensors, ctx.needs_input_grad))
        wanted = [needed.get(tensor, False) for tensor in differentiable]
        found = backward(*leading, *inputs, wanted=wanted, **ctx.options)
        by_name = {tensor: gradient for tensor, gradient, asked in zip(differentiable, found, wanted) if asked}
        return tuple(by_name.get(tensor) for tensor in tensors)

    def refuse_second(ctx: Any, *_: Tensor | None) -> NoReturn:
        raise RuntimeError(SECOND.format(name))

    forward.register_autograd(gradients, setup_context=save)
    backward.register_autograd(refuse_second)


def register_gradients(
    name: str,
    forward: Any,
    backward: Any,
    tensors: tuple[str, ...],
    options: Iterable[str],
    differentiable: tuple[str, ...],
) -> None:
    """Calls register_autograd for an operator (*tensors, *, **options, keep_attn) -> (y, lse, attn)."""

    def save(ctx: Any, inputs: tuple[Any, ...], keyword_only_inputs: dict[str, Any], output: Any) -> None:
        y, lse, attn = output
        ctx.options = {option: keyword_only_inputs[option] for option in options}
        ctx.keeps_attn = keyword_only_inputs["keep_attn"]
        ctx.save_for_backward(*inputs, y, lse, attn)
        ctx.mark_non_differentiable(attn)
        ctx.set_materialize_grads(False)

    def read(ctx: Any, dy: Tensor | None, dlse: Tensor | None, _: Tensor | None) -> tuple[Any, Any]:
        *inputs, y, lse, attn = ctx.saved_tensors
        dy = torch.zeros_like(y) if dy is None else dy
        return (dy, dlse, y, lse, attn if ctx.keeps_attn else None), inputs

    register_autograd(name, forward, backward, tensors, differentiable, save, read)


register_gradients(NAME, _forward, _backward, TENSORS, OPTIONS, DIFFERENTIABLE)
_forward.register_vmap(forward_over_batch)
_backward.register_vmap(backward_over_batch)


def _has_tangent(tensor: Tensor) -> bool:
    try:
        return forward_ad.unpack_dual(tensor).tangent is not None
    except RuntimeError:  # raised for a tensor batched by torch.func.vmap, within forward mode
        return True


def _is_differentiated(tensor: Tensor) -> bool:
    """Returns whether torch.func differentiates with respect to this tensor, at any level of its transforms."""
    inner = torch.func.debug_unwrap(tensor, recurse=False)
    while inner is not tensor:
        if tensor.requires_grad:
            return True
        tensor, inner = inner, torch.func.debug_unwrap(inner, recurse=False)
    return False


def refuse_transforms(what: str, arguments: dict[str, Any], differentiable: Container[str] = ()) -> None:
    """Raises RuntimeError for forward-mode derivatives, which PyTorch would silently lose, and for arguments that
    torch.func differentiates, except those in `differentiable`. The message names the argument; PyTorch's own error
    would not."""
    if torch.compiler.is_compiling():
        return
    for name, tensor in arguments.items():
        if not isinstance(tensor, Tensor):
            continue
        if _has_tangent(tensor):
            raise RuntimeError(f"{what}: {name} {FORWARD_MODE}")
        if name not in differentiable and _is_differentiated(tensor):
            raise RuntimeError(f"{what}: {name} is differentiated by torch.func, which is not supported: use autograd")


def check_tensors(
    what: str, tensors: dict[str, Tensor | None], recorded: bool, operation: Operation = ATTENTION, nested: bool = False
) -> None:
    """Checks what the kernels cannot see: types, devices, and gradients that would be lost. Rejects nested tensors
    unless `nested` is true. Errors name the function `what`."""
    for name, tensor in tensors.items():
        if tensor is None and name not in operation.required:
            continue
        require_tensor(what, name, tensor, nested)
        if tensor.device.type not in ("cpu", "meta"):
            raise ValueError(f"{what}: {name} lies on {tensor.device} but must be in the CPU's memory")
        if recorded and tensor.requires_grad and name not in operation.differentiable:
            raise ValueError(f"{what}: {name} requires a gradient but has none: detach it")
        if recorded and name in operation.forward_only:
            raise ValueError(f"{what}: with {name} there are no gradients: call it under torch.no_grad()")
    require_one_device(what, tensors)


_WANTED = {"int": "a whole number of 64 bits", "float": "a number", "float?": "a number or None"}


def _number(kind: str, value: Any) -> int | float:
    """Converts `value` to an int or float for the schema type `kind`. Raises TypeError, ValueError or OverflowError if
    that fails."""
    if kind == "int":
        number = value if isinstance(value, (int, torch.SymInt)) else operator.index(value)
        if not torch.compiler.is_compiling() and not -(2**63) <= number < 2**63:
            raise OverflowError
        return number
    if isinstance(value, (str, bytes)):
        raise TypeError
    return value if isinstance(value, (int, float, torch.SymInt, torch.SymFloat)) else float(value)


def checked_options(what: str, options: dict[str, Any], operation: Operation = ATTENTION) -> dict[str, Any]:
    """Converts options to the schema's types, and rejects those that require a gradient. A value that should be a str
    but is not becomes its repr, so that the kernels reject it with a list of valid words."""
    refuse_learned(what, options)
    checked: dict[str, Any] = {}
    for name, value in options.items():
        kind = operation.options[name].type
        if kind == "str":
            checked[name] = value if isinstance(value, str) else repr(value)
        elif value is None and kind == "float?":
            checked[name] = None
        elif value is None and name == "threads":
            checked[name] = 0  # 0 means headgate.default_threads() in the schema
        elif isinstance(value, Tensor) and torch.compiler.is_compiling():
            # Without fullgraph=True, this TypeError causes a graph break, and the eager call reads the tensor.
            raise TypeError(
                f"{what}: {name} is a tensor but must be a number in a program that is compiled in one graph"
            )
        else:
            try:
                checked[name] = _number(kind, value)
            except (TypeError, ValueError, OverflowError, RuntimeError):
                raise ValueError(f"{what}: {name} is {value!r} but must be {_WANTED[kind]}") from None
            if name == "threads" and isinstance(checked[name], int) and checked[name] == 0:
                raise ValueError(
                    f"{what}: threads is 0 but must be 1 to {headgate.max_threads()}, or None for "
                    "headgate.default_threads()"
                )
    return checked


def refuse_learned(what: str, options: dict[str, Any]) -> None:
    """Raises ValueError if an option requires a gradient, which would be lost silently."""
    for name, value in options.items():
        if isinstance(value, Tensor) and value.requires_grad and torch.is_grad_enabled():
            raise ValueError(f"{what}: {name} requires a gradient but has none: detach it")


def autocast(
    tensors: dict[str, Tensor | None],
    others: tuple[str, ...] = ("gate", "bias"),
    cast: tuple[str, ...] = ("q", "k", "v"),
    device: str = "cpu",
) -> None:
    """Casts tensors to the autocast dtype, if autocast is on: those in `cast`, and those in `others` that are not f32.
    Does nothing if the first tensor is f64."""
    if not torch.is_autocast_enabled(device) or tensors[cast[0]].dtype == torch.float64:
        return
    dtype = torch.get_autocast_dtype(device)
    for name in (*cast, *others):
        tensor = tensors.get(name)
        kept = tensor is None or not tensor.is_floating_point() or (name in others and tensor.dtype == torch.float32)
        if not kept:
            tensors[name] = tensor.to(dtype)


def _same_lengths(one: Tensor, other: Tensor, ragged: int) -> bool:
    """Returns whether two nested tensors have equal sequence lengths. A compiled program cannot read the lengths:
    there, both tensors must share the same offsets."""
    if one.shape[ragged] == other.shape[ragged]:
        return True
    return not torch.compiler.is_compiling() and torch.equal(one.offsets(), other.offsets())


def unnest(tensors: dict[str, Tensor | None], layout: str) -> Tensor | None:
    """Converts jagged nested tensors in `tensors` to a packed batch, in place. Returns the original q, or None if no
    tensor is nested."""
    nested = [name for name, tensor in tensors.items() if tensor is not None and tensor.is_nested]
    if not nested:
        return None
    ragged = 1 if layout == "bthd" else 2
    for name in ("q", "k", "v", "gate"):
        tensor = tensors[name]
        if tensor is None:
            continue
        if name not in nested or tensor.layout != torch.jagged or tensor.dim() != 4 or tensor._ragged_idx != ragged:
            letters = "(N,T*,H,D)" if layout == "bthd" else "(N,H,T*,D)"
            raise ValueError(f"{NAME}: {name} must be a jagged nested tensor {letters} like q, k, v and gate beside it")
        if tensor.lengths() is not None:
            raise ValueError(f"{NAME}: {name} is a nested tensor with holes: make it contiguous")
    others = [name for name in nested if name not in ("q", "k", "v", "gate")]
    packed = [name for name in ("cu_seqlens_q", "cu_seqlens_k", *FORWARD_ONLY) if tensors[name] is not None]
    if others or packed:
        raise ValueError(f"{NAME}: {(others + packed)[0]} cannot be given with nested q, k and v")
    q = tensors["q"]
    for name, other in (("gate", "q"), ("v", "k")):
        if tensors[name] is not None and not _same_lengths(tensors[name], tensors[other], ragged):
            raise ValueError(f"{NAME}: {name} has sequences of other lengths than {other}")
    tensors["cu_seqlens_q"], tensors["cu_seqlens_k"] = q.offsets(), tensors["k"].offsets()
    for name in ("q", "k", "v", "gate"):
        tensors[name] = None if tensors[name] is None else tensors[name].values()
    return q


_DEFAULTS = ATTENTION.defaults()
_NO_TENSORS = dict.fromkeys(TENSORS)
_KEYWORDS = tuple(name for name in OPTIONAL if name != "gate")


def sort_arguments(
    what: str,
    tensors: dict[str, Tensor | None],
    arguments: dict[str, Any],
    keywords: tuple[str, ...] = _KEYWORDS,
    operation: Operation = ATTENTION,
) -> dict[str, Any]:
    """Moves inputs with a name in `keywords` from `arguments` to `tensors`, and returns the options. Raises TypeError
    for unknown arguments."""
    require_known(what, arguments, {*operation.options, *keywords}, operation.tensors)
    options: dict[str, Any] = {}
    for name, value in arguments.items():
        (options if name in operation.options else tensors)[name] = value
    return options


def as_returned(lse: Tensor, y: Tensor) -> Tensor:
    """Converts the log-sum-exp to the dtype that callers get: f64 if y is f64, otherwise f32. The backward pass uses
    f64."""
    return lse if y.dtype == torch.float64 else lse.float()


class _EagerAttention(EagerOperation):
    def forward(self, named: Named, options: dict[str, Any], keep: bool, recorded: bool) -> tuple[Any, tuple[Any, ...]]:
        if not (keep or recorded):
            return headgate.attention(**named, **options), ()
        keep_attn = (
            recorded
            and "gate" in named
            and keeps_output(options.get("gate_fn", _DEFAULTS["gate_fn"]), options.get("gate_op", _DEFAULTS["gate_op"]))
        )
        out = headgate.attention_forward(outputs=_Y_LSE_ATTN if keep_attn else _Y_LSE, **named, **options)
        y, lse = out.y, out.lse
        return (y, as_returned(lse, y)) if keep else y, (y, lse, out.attn)

    def backward(self, recorded: RecordedCall, names: tuple[str, ...]) -> Any:
        named, options, (y, lse, attn), _ = recorded
        dy, dlse = self._incoming(recorded)
        return headgate.attention_backward(dy, y=y, lse=lse, attn=attn, dlse=dlse, gradients=names, **named, **options)

    def general_backward(self, recorded: RecordedCall, wanted: tuple[str, ...]) -> dict[str, Tensor]:
        dy, dlse = self._incoming(recorded)
        inputs, settings = self.all_arguments(recorded, wanted)
        found = torch.ops.headgate.gated_attention_backward(dy, dlse, *recorded.saved, *inputs, **settings)
        return dict(zip(DIFFERENTIABLE, found))

    def _incoming(self, recorded: RecordedCall) -> tuple[Tensor, Tensor | None]:
        """Returns dy, zeros if absent, and the gradient of lse, or None."""
        dy, dlse = recorded.incoming if len(recorded.incoming) == 2 else (*recorded.incoming, None)
        return torch.zeros_like(recorded.saved[0]) if dy is None else dy, dlse


_Y_LSE, _Y_LSE_ATTN = ("y", "lse"), ("y", "lse", "attn")
_EAGER = _EagerAttention(ATTENTION)


@overload
def gated_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gate: Tensor | None = None,
    *,
    return_lse: Literal[False] = False,
    **arguments: "Unpack[AttentionArguments]",
) -> Tensor: ...
@overload
def gated_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gate: Tensor | None = None,
    *,
    return_lse: Literal[True],
    **arguments: "Unpack[AttentionArguments]",
) -> tuple[Tensor, Tensor]: ...
@takes(*_KEYWORDS, *OPTIONS)
def gated_attention(
    q: Tensor, k: Tensor, v: Tensor, gate: Tensor | None = None, *, return_lse: bool = False, **arguments: Any
) -> Tensor | tuple[Tensor, Tensor]:
    """Computes y = g(gate) * softmax(scale q k^T + bias, mask) v, with gradients.

    The arguments are those of headgate.attention, as CPU tensors with any strides; none is copied. `gate`, (B,H,T,1) or
    (B,H,T,Dv), holds the raw logits of the gate. Returns y, with q's dtype and shape except for Dv features. With
    return_lse, also returns the log-sum-exp (B,H,T), which is differentiable.

    q, k, v, gate, bias and sinks have gradients. block_table, k_scale, v_scale and gate_threshold need calls without
    gradients. Without a dropout_seed, dropout draws a seed from PyTorch's default generator.

    Jagged nested tensors (N,H,T*,D), or (N,T*,H,D) with layout "bthd", are a packed batch. The result is then nested
    like q. torch.autocast casts q, k and v, and also gate and bias unless they are float32. Triton kernels compute GPU
    tensors; they support fewer arguments (docs/reference/pytorch.md). Raises ValueError with a one-line message for
    invalid arguments.
    """
    if "gate_logits" in arguments:
        gate = take_old_name(NAME, arguments, "gate_logits", "gate", gate)
    given = {"q": q, "k": k, "v": v, "gate": gate}
    if getattr(q, "is_cuda", False):
        return gpu.gated_attention(given, arguments, return_lse)
    if arguments.get("dropout") and arguments.get("dropout_seed") is None:
        arguments["dropout_seed"] = draw_seed()
    result = _EAGER.call(given, arguments, return_lse)
    return _call_generally(given, arguments, return_lse) if result is None else result


def _call_with_lse(tensors: dict[str, Tensor | None], options: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Calls gated_attention with return_lse on tensors given by name."""
    others = {name: x for name, x in tensors.items() if x is not None and name not in ("q", "k", "v", "gate")}
    q, k, v, gate = (tensors[name] for name in ("q", "k", "v", "gate"))
    return gated_attention(q, k, v, gate, return_lse=True, **others, **options)


@in_words_of(NAME, {})
def _call_generally(
    given: dict[str, Tensor | None], arguments: dict[str, Any], return_lse: bool
) -> Tensor | tuple[Tensor, Tensor]:
    """Computes gated_attention through PyTorch's dispatcher, with torch.ops.headgate."""
    tensors = {**_NO_TENSORS, **given}
    given = sort_arguments(NAME, tensors, arguments)
    recorded = torch.is_grad_enabled() and any(isinstance(t, Tensor) and t.requires_grad for t in tensors.values())
    refuse_transforms(NAME, {**tensors, **given}, DIFFERENTIABLE)
    check_tensors(NAME, tensors, recorded, nested=True)
    options = {**_DEFAULTS, **checked_options(NAME, given)}
    if recorded and options["gate_threshold"] > 0:
        raise ValueError(f"{NAME}: with gate_threshold there are no gradients: call it under torch.no_grad()")
    if are_dtensors(tensors):
        y, lse = attend_on_dtensors(NAME, tensors, options["layout"], lambda own: _call_with_lse(own, given))
        return (y, lse) if return_lse else y
    nested = unnest(tensors, options["layout"])
    autocast(tensors)
    transformed = transforms_are_active()
    keep_attn = (
        (recorded or transformed)
        and tensors["gate"] is not None
        and keeps_output(options["gate_fn"], options["gate_op"])
    )
    if transformed:
        y, lse, _ = FunctionalAttention.apply(options, keep_attn, *tensors.values())
    else:
        y, lse, _ = torch.ops.headgate.gated_attention(*tensors.values(), **options, keep_attn=keep_attn)
    lse = as_returned(lse, y) if return_lse else lse
    if nested is not None:
        y = torch.nested.nested_tensor_from_jagged(y, nested.offsets(), jagged_dim=nested._ragged_idx)
        lse = torch.nested.nested_tensor_from_jagged(lse, nested.offsets(), jagged_dim=2) if return_lse else lse
    return (y, lse) if return_lse else y
