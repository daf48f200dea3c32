# SPDX-License-Identifier: Apache-2.0
"""Replaces the functions that linear-attention models of transformers take from the kernels hub.

At every call, a model looks up these functions in the Python module of its code. register() replaces them in this
module, so existing models also use Headgate's functions. unregister() restores the functions of transformers. Calls
that Headgate does not support go to the previous function.

Letters: B batch, N sequences, T tokens, C channels, K taps, Hk heads of q and k with D features, Hv heads of v with Dv
features.
"""

import contextlib
import functools
import importlib
import threading
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .calls import refuse_transforms
from .errors import call_as
from .foreign_arguments import CONVOLUTION, RULE, refuse_unknown
from .linear_attention import L2_NORM_EPS, linear_attention
from .packed_rows import begins_of, one_row
from .precision import Precision
from .short_convolution import short_convolution

MODELS = ("qwen3_next", "qwen3_5", "qwen3_5_moe", "olmo_hybrid", "kimi_linear")
"""Model folders of transformers in which register() replaces functions."""
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
"""Types that Headgate computes. transformers computes float64 itself, and its delta rule does so in float32."""
HEAD_DIMS = range(1, 257)
TAPS = range(2, 9)
ACTIVATIONS = {None: "none", "silu": "silu", "swish": "silu"}
# Maps argument names of linear_attention and short_convolution to transformers' names, for error messages.
RULE_ARGUMENTS = {"q": "query", "k": "key", "v": "value", "decay": "g", "state": "initial_state"}
CONVOLUTION_ARGUMENTS = {"x": "hidden_states", "state": "conv_state"}
SEQUENCES = ("cu_seqlens", "cu_seq_lens_q", "seq_idx")
"""Arguments that give the sequence boundaries of packed rows. The first one that a call passes is used."""


def _refuse_unknown(what: str, given: dict[str, Any], harmless: dict[str, str]) -> None:
    others = {name: value for name, value in given.items() if name not in SEQUENCES}
    refuse_unknown(what, others, harmless, "headgate.torch.transformers.unregister() lets transformers compute it")


def sequences_of_rows(what: str, batch: int, tokens: int, given: dict[str, Any]) -> Tensor | None:
    """Returns cu_seqlens (N+1) of the packed batch that consists of all rows. Returns None if each row is one sequence.

    `given` holds the arguments of the call. SEQUENCES names the arguments that give the boundaries of sequences.
    """
    *begins, numbers = (given.get(name) for name in SEQUENCES)
    for each in begins:
        if each is not None:
            return each
    if numbers is None:
        return None
    if tuple(numbers.shape) != (batch, tokens):
        shape = ",".join(map(str, numbers.shape))
        raise ValueError(f"{what}: seq_idx has shape ({shape}) but must be ({batch},{tokens}), a number for each token")
    return begins_of(numbers)


def _are_known(*tensors: Any) -> bool:
    """Returns whether Headgate supports these tensors.

    All must be dense floating-point tensors on the CPU, without forward-mode tangents, and not differentiated by
    torch.func. The first must have a dtype in DTYPES.
    """
    if not all(isinstance(t, Tensor) and t.device.type == "cpu" and t.layout == torch.strided for t in tensors):
        return False
    try:
        refuse_transforms("", {str(i): tensor for i, tensor in enumerate(tensors)})
    except RuntimeError:
        return False
    return tensors[0].dtype in DTYPES and all(t.is_floating_point() for t in tensors)


def _as_dtype_or_f32(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Converts `x` to float32 unless its dtype is float32 or `dtype`, the two dtypes that kernels accept for `x`."""
    return x if x.dtype in (dtype, torch.float32) else x.float()


def _without_autocast() -> Any:
    """Returns a context without torch.autocast.

    transformers requires results in the input's dtype even under autocast.
    """
    return torch.autocast("cpu", enabled=False) if torch.is_autocast_enabled("cpu") else contextlib.nullcontext()


def _takes_rule(query: Tensor, key: Tensor, value: Tensor, g: Tensor, beta: Tensor, *states: Tensor) -> bool:
    if not _are_known(query, key, value, g, beta, *states) or not query.dim() == value.dim() == 4:
        return False
    (B, T, Hk, D), (Hv, Dv) = query.shape, value.shape[2:]
    return (
        query.dtype == key.dtype == value.dtype
        and query.shape == key.shape
        and value.shape[:2] == (B, T)
        and beta.shape == (B, T, Hv)
        and g.shape in ((B, T, Hv), (B, T, Hv, D))
        and Hv % Hk == 0
        and D in HEAD_DIMS
        and Dv in HEAD_DIMS
        and T > 0
    )


class RulePass(NamedTuple):
    """Holds the inputs and options of a call of recurrent_rule, from which its final state can be recomputed."""

    inputs: list[Tensor]  # q, k, v, decay and beta, (B,T,·,·)
    options: dict[str, Any]  # keyword arguments of linear_attention, such as scale and state

    def first_tokens(self, T: int) -> "RulePass":
        """Returns a RulePass that has only the first T tokens. Its final state is the state after these tokens."""
        return RulePass([x[:, :T] for x in self.inputs], self.options)

    @torch.no_grad()
    def recompute_state(self) -> Tensor:
        """Computes the final state (N,Hv,D,Dv) again."""
        with _without_autocast():
            return linear_attention(*self.inputs, **self.options)[1]


_precision: Precision = "exact"
"""linear_attention's argument `precision` for calls in bfloat16. register() sets it."""
_pass_owners: weakref.WeakSet[Any] = weakref.WeakSet()
"""Objects that will call take_pass(). recurrent_rule attaches passes while one of them lives."""
# `_last.state` is a weak reference to the final state to which this thread's last call attached a RulePass.
_last = threading.local()


def attach_passes_for(owner: Any) -> None:
    """Makes recurrent_rule attach a RulePass to each final state while the object `owner` lives. take_pass() returns
    this RulePass.
    """
    _pass_owners.add(owner)


def _attach_pass(state: Tensor, found: RulePass) -> None:
    """Attaches a RulePass to a final state.

    First removes the RulePass that this thread's previous call has attached, if take_pass() has not removed it. This
    frees memory, since a RulePass holds the inputs of its call.
    """
    before = getattr(_last, "state", lambda: None)()
    if before is not None:
        take_pass(before)
    state._headgate_pass = found
    _last.state = weakref.ref(state)


def take_pass(state: Tensor) -> RulePass | None:
    """Removes the RulePass that recurrent_rule attached to this state, and returns it. Returns None if none is
    attached.

    Only the final state of this thread's last call has a RulePass. recurrent_rule attaches none in these cases: without
    attach_passes_for(), for packed batches, in compiled models, and to states with gradients.
    """
    found: RulePass | None = state.__dict__.pop("_headgate_pass", None)
    return found


def recurrent_rule(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    g: Tensor,
    beta: Tensor,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    scale: float | None = None,
    **given: Any,
) -> Any:
    """Computes fused_recurrent_gated_delta_rule and fused_recurrent_kda of transformers. For each token in turn:

        S ← e^g S;  S ← S + k (β (v − Sᵀk))ᵀ;  y = scale Sᵀq,  scale 1 / √D by default

    query and key (B,T,Hk,D) and value (B,T,Hv,Dv) are float32, bfloat16 or float16. g, the natural logarithm of the
    decay, is (B,T,Hv) or (B,T,Hv,D). beta is (B,T,Hv). initial_state is (N,Hv,D,Dv). None means zeros.
    use_qk_l2norm_in_kernel first divides query and key by √(Σx² + 1e-6). Value head h reads key head ⌊h / (Hv/Hk)⌋.
    Computes in float32. If register() permits native16, calls in bfloat16 may multiply bfloat16 numbers instead.

    Returns y (B,T,Hv,Dv) in query's dtype, and the final state in float32. Without output_final_state, the state is
    None. Both results are differentiable. Returns NotImplemented for calls that transformers must compute.

    A row may hold several sequences, each with a separate state. One of three arguments defines them: cu_seqlens or
    cu_seq_lens_q (N+1), which count all B·T tokens, or seq_idx (B,T). Without these arguments, each row is one sequence
    and N = B. Harmless other arguments (foreign_arguments.py) are ignored. All others are rejected.
    """
    states = () if initial_state is None else (initial_state.float(),)
    if not _takes_rule(query, key, value, g, beta, *states):
        return NotImplemented
    what = "headgate: gated delta rule"
    _refuse_unknown(what, given, RULE)
    B, T = query.shape[:2]
    begins = sequences_of_rows(what, B, T, given)
    g = g if g.dim() == 4 else g.unsqueeze(-1)
    read = [query, key, value, _as_dtype_or_f32(g, query.dtype), _as_dtype_or_f32(beta, query.dtype).unsqueeze(-1)]
    options: dict[str, Any] = {"layout": "bthd", "return_state": output_final_state}
    if _precision != "exact" and query.dtype == torch.bfloat16:
        options["precision"] = _precision
    if scale is not None:
        options["scale"] = scale
    if begins is not None:
        options["cu_seqlens"] = begins
        read = [one_row(x) for x in read]
    if states:
        options["state"] = states[0]
    if use_qk_l2norm_in_kernel:
        options["l2_norm"] = L2_NORM_EPS
    with _without_autocast():
        found = call_as(what, RULE_ARGUMENTS, linear_attention, *read, **options)
    y, state = found if output_final_state else (found, None)
    if state is not None and begins is None and not torch.compiler.is_compiling() and _pass_owners:
        if not state.requires_grad:
            # detach() returns the initial state as another tensor, without the RulePass of an earlier call.
            # Otherwise each RulePass would hold the previous RulePass, and all inputs would stay in memory.
            own = {**options, "state": states[0].detach()} if states else options
            _attach_pass(state, RulePass(read, own))
    return y.view(value.shape), state


def chunk_rule(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    g: Tensor,
    beta: Tensor,
    chunk_size: int = 64,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    scale: float | None = None,
    **given: Any,
) -> Any:
    """Computes chunk_gated_delta_rule and chunk_kda of transformers with recurrent_rule. chunk_size has no effect."""
    return recurrent_rule(
        query, key, value, g, beta, initial_state, output_final_state, use_qk_l2norm_in_kernel, scale, **given
    )


def _takes_convolution(x: Tensor, weight: Tensor, bias: Tensor | None, activation: Any, *states: Tensor) -> bool:
    biases = () if bias is None else (bias,)
    return (
        _are_known(x, weight, *biases, *states)
        and x.dim() == 3
        and weight.dim() == 2
        and weight.shape[0] == x.shape[1]
        and weight.shape[1] in TAPS
        and all(b.shape == x.shape[1:2] for b in biases)
        and activation in ACTIVATIONS
        and x.numel() > 0
    )


def _convolve(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None, **options: Any) -> Tensor:
    """Convolves x (B,T,C). The result has the shape of x."""
    with _without_autocast():
        return call_as(
            "headgate: causal_conv1d",
            CONVOLUTION_ARGUMENTS,
            short_convolution,
            x,
            _as_dtype_or_f32(weight, x.dtype),
            None if bias is None else _as_dtype_or_f32(bias, x.dtype),
            activation=ACTIVATIONS[activation],
            **options,
        )


def convolution(
    hidden_states: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str | None = None, **given: Any
) -> Any:
    """Computes causal_conv1d_fn of transformers, with zeros before the first token:

        y[c,t] = activation(bias[c] + Σ over j < K of weight[c,j] · x[c,t−K+1+j])

    hidden_states (B,C,T) is float32, bfloat16 or float16. weight is (C,K), bias (C), activation "silu", "swish" or
    None. Returns y (B,C,T) in the dtype of hidden_states. y is differentiable. cu_seqlens, cu_seq_lens_q or seq_idx
    define the sequences in the rows, as in recurrent_rule. Returns NotImplemented for calls that transformers must
    compute.
    """
    if not _takes_convolution(hidden_states, weight, bias, activation):
        return NotImplemented
    what = "headgate: causal_conv1d"
    _refuse_unknown(what, given, CONVOLUTION)
    x = hidden_states.transpose(1, 2)
    begins = sequences_of_rows(what, x.shape[0], x.shape[1], given)
    if begins is None:
        return _convolve(x, weight, bias, activation).transpose(1, 2)
    return _convolve(one_row(x), weight, bias, activation, cu_seqlens=begins).view(x.shape).transpose(1, 2)


def convolution_step(
    hidden_states: Tensor,
    conv_state: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
) -> Any:
    """Computes causal_conv1d_update of transformers, the convolution of hidden_states (B,C,T).

    The columns of conv_state (B,C,S), S ≥ K−1, precede the first token. Overwrites conv_state with the last S columns
    of conv_state and hidden_states joined.
    """
    if not _takes_convolution(hidden_states, weight, bias, activation, conv_state):
        return NotImplemented
    S, before = conv_state.shape[-1], weight.shape[1] - 1
    if conv_state.shape[:2] != hidden_states.shape[:2] or S < before:
        return NotImplemented
    columns = torch.cat((conv_state, hidden_states), dim=-1)
    x = hidden_states.transpose(1, 2)
    state = _as_dtype_or_f32(columns[..., S - before : S], x.dtype).transpose(1, 2)
    y = _convolve(x, weight, bias, activation, state=state).transpose(1, 2)
    conv_state.copy_(columns[..., -S:])
    return y


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "torch_chunk_gated_delta_rule": chunk_rule,
    "torch_recurrent_gated_delta_rule": recurrent_rule,
    "chunk_kimi_delta_attention": chunk_rule,
    "recurrent_kimi_delta_attention": recurrent_rule,
    "causal_conv1d_fn": convolution,
    "causal_conv1d_update": convolution_step,
}
"""Maps names of functions in the modules of transformers to Headgate's replacements."""


class _Replaced(NamedTuple):
    module: ModuleType
    name: str
    ours: Callable[..., Any]
    theirs: Callable[..., Any]


_replaced: list[_Replaced] = []


def _with_fallback(ours: Callable[..., Any], theirs: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that calls `ours`. If the result is NotImplemented, the function falls back to `theirs`.
    During torch.export, it calls only `theirs`.
    """

    @functools.wraps(theirs, updated=())
    def call(*args: Any, **kwargs: Any) -> Any:
        found = NotImplemented if torch.compiler.is_exporting() else ours(*args, **kwargs)
        return theirs(*args, **kwargs) if found is NotImplemented else found

    return call


def module_of(model: str) -> ModuleType | None:
    """Returns the module with a model's code. Returns None if this version of transformers lacks the model."""
    name = f"transformers.models.{model}.modeling_{model}"
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not name.startswith(error.name):
            raise
        return None


def register(precision: Precision | None = None) -> None:
    """Replaces FUNCTIONS in the modules of MODELS, and sets the precision of calls in bfloat16.

    None leaves the precision unchanged. A repeated call only sets the precision.
    """
    global _precision
    _precision = _precision if precision is None else precision
    for module in filter(None, map(module_of, MODELS)):
        for name, ours in FUNCTIONS.items():
            known = any(each.module is module and each.name == name for each in _replaced)
            if known or not hasattr(module, name):
                continue
            theirs = getattr(module, name)
            _replaced.append(_Replaced(module, name, _with_fallback(ours, theirs), theirs))
            setattr(module, name, _replaced[-1].ours)


def unregister() -> None:
    """Undoes register(): restores the replaced functions and the precision "exact". Does nothing without register().

    Leaves functions unchanged that other code has replaced since.
    """
    global _precision
    _precision = "exact"
    while _replaced:
        each = _replaced.pop()
        if getattr(each.module, each.name) is each.ours:
            setattr(each.module, each.name, each.theirs)
