# SPDX-License-Identifier: Apache-2.0
"""Registers the statistics of attention and of linear attention as PyTorch operators, and defines the public functions.

The custom operators have fake kernels and no gradients. The functions of `headgate` with the same names do the
computation.
"""

import collections
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

import headgate
from headgate import _headgate

from ..operations import ATTENTION, LINEAR_ATTENTION, Operation
from .arguments import takes
from .calls import autocast, check_tensors, checked_options, refuse_transforms, sort_arguments
from .checks import require_tensor, shown
from .errors import call_as, in_words_of
from .operation import Named, sequences_of

Sizes = dict[str, Any]
"""Maps letters of dimensions to sizes. If a letter is missing, results lack this dimension."""


class _Figure(NamedTuple):
    """Describes a result of an operator.

    - letters: the letters of its dimensions
    - is_index: whether it holds indices
    - enabled_by: the argument that adds it to the default outputs. "" means that it always is a default output. None
      means that it never is.
    """

    letters: str
    is_index: bool
    enabled_by: str | None


def _selecting(rows: dict[str, Any], tensors: list[str], numbers: dict[str, int], first: str, unread: str) -> Operation:
    """Returns the arguments of a function that computes statistics of an operation.

    `rows` holds the tables of the operation. The result differs from the operation's own arguments:

    - Adds the required tensor `first` before the inputs, unless `first` is "".
    - Omits the input `unread`, unless `unread` is "".
    - Adds the optional `tensors` after the inputs, and the integer options `numbers`. Both select results.
    """
    leading = [(first, True, False)] if first else []
    inputs = [row for row in rows["inputs"] if row[0] != unread]
    chosen = [(name, False, False) for name in tensors]
    options = [(name, "int", default, "statistics", False, "int") for name, default in numbers.items()]
    return Operation(
        rows | {"inputs": leading + inputs + chosen, "gradients": [], "options": options + rows["options"]}
    )


class _FigureOperation:
    """Wraps the operator torch.ops.headgate.NAME, which returns a list of the results named in `outputs`.

    `sizes` computes the sizes of a call from its tensors and options. torch.autocast casts the inputs in `cast`. It
    casts those in `cast_unless_f32` only if they are not float32.
    """

    def __init__(
        self,
        name: str,
        result: str,
        figures: dict[str, _Figure],
        arguments: Operation,
        sizes: Callable[..., Sizes],
        cast: tuple[str, ...],
        cast_unless_f32: tuple[str, ...],
    ):
        self.name, self.figures, self.arguments = name, figures, arguments
        make: Any = collections.namedtuple
        self.result = make(result, figures, defaults=[None] * len(figures))
        self.result.__module__ = __name__  # pickle imports the class from here
        self._sizes, self._cast, self._cast_unless_f32 = sizes, cast, cast_unless_f32
        operator = torch.library.custom_op(
            f"headgate::{name}",
            in_words_of(name, {})(self._compute),
            mutates_args=(),
            device_types="cpu",
            schema=f"({arguments.schema_of_tensors()}, *, str[] outputs, {arguments.schema_of_options()}) -> Tensor[]",
        )
        operator.register_fake(self._fake)

    def _named(self, tensors: tuple[Tensor | None, ...]) -> Named:
        return {name: tensor for name, tensor in zip(self.arguments.tensors, tensors) if tensor is not None}

    def _compute(self, *tensors: Tensor | None, outputs: list[str], **options: Any) -> list[Tensor]:
        compute = getattr(headgate, self.name)
        found = compute(outputs=outputs, **self._named(tensors), **self.arguments.changed(options))
        return [getattr(found, name) for name in outputs]

    def _fake(self, *tensors: Tensor | None, outputs: list[str], **options: Any) -> list[Tensor]:
        named = self._named(tensors)
        q, sizes = named["q"], self._sizes(named, **options)
        real = torch.float64 if q.dtype == torch.float64 else torch.float32
        made = []
        for figure in (self.figures[name] for name in outputs):
            shape = [sizes[letter] for letter in figure.letters.split(",") if letter in sizes]
            made.append(q.new_empty(shape, dtype=torch.int64 if figure.is_index else real))
        return made

    def call(
        self,
        given: dict[str, Any],
        arguments: dict[str, Any],
        outputs: Sequence[str] | None,
        enabling: Sequence[str] = (),
    ) -> Any:
        """Calls the operator with the tensors `given` and `arguments`. Computes the results that `outputs` names.

        If `outputs` is None, computes the results whose enabled_by is "" or is in `enabling`, the enabling arguments of
        the call.
        """
        return call_as(self.name, {}, self._call, given, arguments, outputs, enabling)

    def _call(
        self, given: dict[str, Any], arguments: dict[str, Any], outputs: Sequence[str] | None, enabling: Sequence[str]
    ) -> Any:
        if outputs is None:
            outputs = [name for name, figure in self.figures.items() if figure.enabled_by in ("", *enabling)]
        listed = isinstance(outputs, Collection) and not isinstance(outputs, (str, Tensor))
        if not listed or not all(isinstance(name, str) for name in outputs):
            raise TypeError(f"{self.name}: outputs is {shown(outputs)} but must be a sequence of names")
        for name in outputs:
            if name not in self.figures:
                raise ValueError(f"{self.name}: outputs: '{name}' is none of {', '.join(self.figures)}")
        tensors = {**dict.fromkeys(self.arguments.tensors), **given}
        keywords = tuple(name for name in self.arguments.tensors if name not in given)
        options = sort_arguments(self.name, tensors, arguments, keywords, self.arguments)
        refuse_transforms(self.name, {**tensors, **options})
        check_tensors(self.name, tensors, False, self.arguments)
        options = {**self.arguments.defaults(), **checked_options(self.name, options, self.arguments)}
        autocast(tensors, self._cast_unless_f32, self._cast)
        detached = [None if tensor is None else tensor.detach() for tensor in tensors.values()]
        names = list(dict.fromkeys(outputs))
        found = getattr(torch.ops.headgate, self.name)(*detached, outputs=names, **options)
        return self.result(**dict(zip(names, found)))


def _attention_sizes(named: Named, layout: str = "bhtd", top_keys: int = 0, **_: Any) -> Sizes:
    q, k = named["q"], named["k"]
    heads, rows = (-3, -2) if layout == "bhtd" else (-2, -3)
    sizes = {"Hq": q.shape[heads], "T": q.shape[rows], "S": k.shape[rows], "K": top_keys}
    if "block_table" in named:
        sizes["S"] = k.shape[rows] * named["block_table"].shape[-1]
    for letter, name in (("J", "keys"), ("R", "queries")):
        sizes[letter] = named[name].shape[0] if name in named else 0
    if q.dim() == 4:
        sizes["B"] = sizes["N"] = sizes["M"] = q.shape[0]
    if "cu_seqlens_q" in named:
        sizes["N"] = named["cu_seqlens_q"].shape[0] - 1
        if "cu_seqlens_k" not in named:
            sizes["M"] = sizes["N"]
    return sizes


def _linear_sizes(named: Named, layout: str = "bhtd", **_: Any) -> Sizes:
    q, v = named["q"], named["v"]
    heads, rows = (-3, -2) if layout == "bhtd" else (-2, -3)
    sizes = {"Ho": max(q.shape[heads], v.shape[heads]), "Hv": v.shape[heads], "T": q.shape[rows], "D": q.shape[-1]}
    if "queries" in named:
        sizes["R"] = named["queries"].shape[0]
    if q.dim() == 4:
        sizes["B"] = sizes["N"] = q.shape[0]
    if "cu_seqlens" in named:
        sizes["N"] = sequences_of(named, 1)
    return sizes


def _figures(rows: list[tuple[str, str, bool, str | None]]) -> dict[str, _Figure]:
    return {name: _Figure(letters, is_index, enabled_by) for name, letters, is_index, enabled_by in rows}


_ATTENTION = _FigureOperation(
    "attention_statistics",
    "AttentionStatistics",
    _figures(_headgate._statistics_rows),
    _selecting(_headgate._rows, ["keys", "queries"], {"window": -1, "top_keys": 0}, "lse", "v"),
    _attention_sizes,
    cast=("q", "k"),
    cast_unless_f32=("gate", "bias"),
)
_LINEAR, _LINEAR_WEIGHTS = (
    _FigureOperation(
        name,
        result,
        _figures(rows),
        _selecting(_headgate._linear_rows, [], {}, first, ""),
        _linear_sizes,
        cast=("q", "k", "v"),
        cast_unless_f32=("decay", "beta"),
    )
    for name, result, rows, first in (
        ("linear_attention_statistics", "LinearAttentionStatistics", _headgate._linear_statistics_rows, ""),
        ("linear_attention_weights", "LinearAttentionWeights", _headgate._linear_weights_rows, "queries"),
    )
)
AttentionStatistics = _ATTENTION.result
LinearAttentionStatistics = _LINEAR.result
LinearAttentionWeights = _LINEAR_WEIGHTS.result

_KEYWORDS = tuple(name for name in ATTENTION.optional if name != "gate")
_LINEAR_KEYWORDS = tuple(name for name in LINEAR_ATTENTION.optional if name not in ("decay", "beta"))


@takes(*_KEYWORDS, *ATTENTION.options)
def attention_statistics(
    lse: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor | None = None,
    gate: Tensor | None = None,
    *,
    keys: Tensor | None = None,
    queries: Tensor | None = None,
    window: int | None = -1,
    top_keys: int | None = 0,
    outputs: Sequence[str] | None = None,
    **arguments: Any,
) -> Any:
    """Computes statistics of the softmax weights without storing the T x S weights. Works under torch.compile.

    The arguments are those of headgate.attention_statistics. `lse` is the log-sum-exp that gated_attention returned for
    the same inputs and options. v is ignored. Returns a named tuple with the fields of headgate.AttentionStatistics.
    Fields that are not computed are None. Results have no gradients.
    """
    given = {"lse": lse, "q": q, "k": k, "gate": gate, "keys": keys, "queries": queries}
    name, of = (
        "attention_statistics",
        {"window": -1 if window is None else window, "top_keys": 0 if top_keys is None else top_keys},
    )
    numbers = checked_options(name, of, _ATTENTION.arguments)
    gating: dict[str, Any] = {word: arguments[word] for word in ("gate_fn", "gate_op") if word in arguments}
    arguments |= checked_options(name, gating, _ATTENTION.arguments)
    for of_values in ("v_scale", "v_first"):
        if (unread := arguments.pop(of_values, None)) is not None:
            require_tensor(name, of_values, unread)
    gated = gate is not None and arguments.get("gate_fn") != "none" and arguments.get("gate_op") != "add"
    enabling = [name for name, value in (("keys", keys), ("queries", queries)) if value is not None]
    enabling += ["gate"] * gated + ["window"] * (numbers["window"] >= 0) + ["top_keys"] * (numbers["top_keys"] > 0)
    numbers["window"] = max(numbers["window"], 0)
    return _ATTENTION.call(given, {**numbers, **arguments}, outputs, enabling)


@takes(*_LINEAR_KEYWORDS, *LINEAR_ATTENTION.options, operation=LINEAR_ATTENTION)
def linear_attention_statistics(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor | None = None,
    beta: Tensor | None = None,
    *,
    outputs: Sequence[str] | None = None,
    **arguments: Any,
) -> Any:
    """Computes statistics of the implicit weights of linear attention and of its states. Works under torch.compile.

    The arguments are those of headgate.linear_attention_statistics. Returns a named tuple with the fields of
    headgate.LinearAttentionStatistics. Fields that are not computed are None. Results have no gradients.
    """
    return _LINEAR.call({"q": q, "k": k, "v": v, "decay": decay, "beta": beta}, arguments, outputs)


@takes(*_LINEAR_KEYWORDS, *LINEAR_ATTENTION.options, operation=LINEAR_ATTENTION)
def linear_attention_weights(
    queries: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor | None = None,
    beta: Tensor | None = None,
    *,
    outputs: Sequence[str] | None = None,
    **arguments: Any,
) -> Any:
    """Computes the weights with which chosen queries of linear attention read each token. Works under torch.compile.

    The arguments are those of headgate.linear_attention_weights. Returns a named tuple with the fields of
    headgate.LinearAttentionWeights. Fields that are not computed are None. Results have no gradients.
    """
    given = {"queries": queries, "q": q, "k": k, "v": v, "decay": decay, "beta": beta}
    return _LINEAR_WEIGHTS.call(given, arguments, outputs)
