# SPDX-License-Identifier: Apache-2.0
"""Lists the metrics ("figures") that watch() measures, one Figure each.

`headgate eval` has some of these metrics, with the same names and definitions.

Letters: B sequences, H heads, T queries, t and j indices of a query and a key, w softmax weights.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from .call import scores_of_first
from .sample import AttentionSample, TokenVectors

SINK_THRESHOLD = 0.3
"""A head is a sink head if its mean attention to the first token exceeds this threshold."""


@dataclass(frozen=True)
class Figure:
    """Describes a metric.

    - read: computes the metric for a sample, such as one attention call. Returns one value for each query (B,H,T), or
      sums (H) and the numbers of their terms. If `is_maximum`, returns the maximum of each head (H), alone or with its
      sequence, token and channel (H,3).
    - derived_from: the key of another metric, from whose mean this metric is computed. `read` is then None.
    - finish: a function of each head's mean over all calls. It returns the metric, or None if the metric is undefined.
      No function means the mean itself.
    """

    key: str
    source: str  # kind of the sample: attention, gate, output_gate, linear or block
    formula: str
    read: Callable[[Any], Any] | None = None
    needs: tuple[str, ...] = ()  # names of statistics that statistics_of() computes
    derived_from: str | None = None
    finish: Callable[[Tensor], Tensor | None] | None = None
    of_heads: bool = True
    is_maximum: bool = False
    of_first_token: bool = False  # undefined in layers whose window hides the first token
    of_powers: bool = False  # true if `finish` gets the means of x, x², x³ and x⁴ instead of one mean
    by_default: bool = True


def _first(s: AttentionSample) -> Tensor:
    return s.once("first", lambda: (scores_of_first(s.call, s.geometry).double() - s.lse_or_0).clamp_max(0.0).exp())


def _sink(s: AttentionSample) -> Tensor | None:
    return None if s.call.sinks is None else (s.call.sink_rows(torch.float64) - s.lse_or_0).exp()


def _gated(s: AttentionSample) -> Tensor | None:
    return None if s.gate is None else _first(s) * s.gate.double().mean(-1)


def _largest_logit(s: AttentionSample) -> Tensor:
    logits = s.statistics["lse"] + s.statistics["row_max"].log()
    return logits.masked_fill(~s.geometry.not_padding[:, None], -math.inf).amax((0, 2))


def _share_below(bound: float) -> Callable[[Tensor], Tensor]:
    """Returns a function for Figure.read: 1 for numbers below the bound, 0 for others, NaN for NaN."""
    return lambda gate: torch.where(gate.isnan(), gate, (gate < bound).to(gate.dtype))


def size_of(value: float) -> tuple[bool, float]:
    """Returns a key that sorts values of a metric that is a maximum. NaN exceeds all numbers."""
    return value != value, value


def _kurtosis(powers: Tensor) -> Tensor | None:
    """Returns the fourth central moment over the squared variance.

    Returns None if the mean exceeds about 300 standard deviations, for example if all entries are equal. Differences of
    means would then be mere rounding errors.
    """
    m, second, third, fourth = powers
    variance = second - m * m
    moment = fourth - m * (4 * third - m * (6 * second - 3 * m * m))
    return None if variance <= 1e-5 * second else moment / variance.square()


def _of_vectors(name: str, compute: Callable[[TokenVectors], Any]) -> Callable[[Any], Any]:
    """Returns a function for Figure.read. It applies `compute` to the keys ("k") or values ("v") of a call."""
    return lambda s: None if (vectors := s.vectors(name)) is None else compute(vectors)


def _int8_figures(word: str, of: str, source: str, reader: Callable[[Callable[..., Any]], Any]) -> list[Figure]:
    """Returns metrics of the relative error when vectors are rounded to int8.

    `reader` converts a function of TokenVectors to a function for Figure.read.
    """
    one, each = f"int8_{word}_per_tensor", f"int8_{word}_per_token"
    scale = "with one scale, max abs(x) / 127, for each sequence"
    rows: tuple[tuple[str, str, Callable[[TokenVectors], Any]], ...] = (
        (one, f"‖x - x̂‖ / ‖x‖ of {of}, x̂ rounded to int8 {scale}", lambda x: x.relative(x.errors, x.not_padding)),
        (f"{one}_of_others", f"{one} of the tokens but the first, with the scale of all tokens",
         lambda x: x.relative(x.errors, x.after_first)),
        (f"{one}_without_first", f"{one} of the tokens but the first, with the scale of these",
         lambda x: x.relative(x.errors_without_first, x.after_first)),
        (each, f"{one} with a scale for each token", lambda x: x.relative(x.errors_per_token, x.not_padding)),
        (f"{each}_without_first", f"{each} of the tokens but the first",
         lambda x: x.relative(x.errors_per_token, x.after_first)),
    )  # fmt: skip
    heads = source == "attention"
    return [
        Figure(key, source, formula, reader(compute), finish=torch.sqrt, of_heads=heads, by_default=False)
        for key, formula, compute in rows
    ]


def _norm_ratio(name: str) -> Callable[[AttentionSample], tuple[Tensor, Tensor] | None]:
    return lambda s: s.norm_ratio(getattr(s.call, name))


FIGURES = (
    Figure(
        "first_token_attention",
        "attention",
        "softmax weight on the first visible key of the sequence, mean over queries but the first",
        read=_first,
        of_first_token=True,
    ),
    Figure(
        "first_token_attention_uniform",
        "attention",
        "1 / number of visible keys, mean over the same queries",
        read=lambda s: (1 / s.geometry.keys.clamp_min(1).double())[:, None],
        of_heads=False,
        of_first_token=True,
    ),
    Figure(
        "first_token_attention_gated",
        "attention",
        "first_token_attention of a query and head, times the mean of its gate over features",
        read=_gated,
        of_first_token=True,
    ),
    Figure(
        "sink_rate",
        "attention",
        f"share of heads whose own first_token_attention exceeds {SINK_THRESHOLD}; of a head 1 or 0",
        derived_from="first_token_attention",
        finish=lambda heads: torch.where(heads.isnan(), heads, (heads > SINK_THRESHOLD).double()),
        of_first_token=True,
    ),
    Figure("sink_attention", "attention", "softmax weight on the sink logit of the head", read=_sink),
    Figure(
        "attention_entropy",
        "attention",
        "-Σ w log w in nats, the sink's weight among them",
        read=lambda s: s.statistics["entropy"],
        needs=("entropy",),
        by_default=False,
    ),
    Figure(
        "attention_entropy_of_keys",
        "attention",
        "-Σ w log w in nats of the weights on keys, divided by their sum: without the sink",
        read=lambda s: s.statistics["entropy_of_keys"],
        needs=("entropy_of_keys",),
        by_default=False,
    ),
    Figure(
        "mean_distance",
        "attention",
        "Σ_j w_tj abs(t - j) / Σ_j w_tj in tokens",
        read=lambda s: None if s.call.cross else s.statistics["distance"],
        needs=("distance",),
        by_default=False,
    ),
    Figure(
        "largest_logit",
        "attention",
        "largest score of a visible key, after scale, softcap and bias",
        read=_largest_logit,
        needs=("row_max",),
        is_maximum=True,
        by_default=False,
    ),
    *(
        Figure(
            f"first_token_{word}_norm_ratio",
            "attention",
            f"‖{letter}₀‖ over the mean of ‖{letter}_j‖, j ≥ 1, mean over sequences and heads",
            read=_norm_ratio(letter),
            by_default=False,
        )
        for word, letter in (("query", "q"), ("key", "k"), ("value", "v"))
    ),
    *(
        figure
        for word, letter in (("key", "k"), ("value", "v"))
        for figure in (
            Figure(
                f"largest_{word}",
                "attention",
                f"largest absolute value in the {word}s, as given to attention",
                read=_of_vectors(letter, TokenVectors.largest),
                is_maximum=True,
                by_default=False,
            ),
            *_int8_figures(f"{word}s", f"the {word}s x of a head", "attention", partial(_of_vectors, letter)),
        )
    ),
    Figure("gate_mean", "gate", "mean of the gate as applied, over tokens and features", read=lambda g: g),
    Figure("gate_below_0.1", "gate", "share of gates below 0.1", read=_share_below(0.1)),
    Figure("gate_below_0.01", "gate", "share of gates below 0.01", read=_share_below(0.01)),
    Figure(
        "gate_histogram",
        "gate",
        "counts of gates in 20 equal bins of [0, 1], of each head, in `gate_histograms` alone",
        by_default=False,
    ),
    Figure("mean_decay", "linear", "mean of e^g over tokens", read=lambda s: s.decay.exp().mean(-1)),
    Figure(
        "half_life",
        "linear",
        "ln 2 / -(mean of g) in tokens",
        read=lambda s: s.decay.mean(-1),
        finish=lambda means: math.log(2) / (0.0 - means),  # without decay, means is 0 and the result +infinity
    ),
    Figure("mean_beta", "linear", "mean of β over tokens", read=lambda s: s.beta),
    Figure(
        "hidden_first_token",
        "linear",
        "abs(a_t0) / Σ_j abs(a_tj) of the weights a of token j's value in output t, mean over queries but the first",
        read=lambda s: s.statistics["first_share"],
        needs=("first_share",),
        by_default=False,
    ),
    Figure(
        "reach",
        "linear",
        "Σ_j abs(a_tj) (t - j) / Σ_j abs(a_tj) in tokens, mean over the same queries",
        read=lambda s: s.statistics["reach"],
        needs=("reach",),
        by_default=False,
    ),
    Figure(
        "output_gate_mean",
        "output_gate",
        "mean of abs(silu(z)), or of σ(z) for Kimi-Linear, over tokens and features",
        read=lambda g: g,
    ),
    Figure("output_gate_below_0.1", "output_gate", "share of these gates below 0.1", read=_share_below(0.1)),
    Figure("output_gate_below_0.01", "output_gate", "share of these gates below 0.01", read=_share_below(0.01)),
    Figure(
        "massive_activation",
        "block",
        "largest absolute value in the residual stream after the block",
        read=TokenVectors.largest,
        of_heads=False,
        is_maximum=True,
    ),
    Figure(
        "kurtosis",
        "block",
        "n Σ (x - m)⁴ / (Σ (x - m)²)² of the n entries of the residual stream, of all tokens and channels, with mean m",
        read=lambda s: s.powers(s.not_padding),
        finish=_kurtosis,
        of_heads=False,
        of_powers=True,
        by_default=False,
    ),
    Figure(
        "kurtosis_without_first",
        "block",
        "kurtosis without the first token of each sequence",
        read=lambda s: s.powers(s.after_first),
        finish=_kurtosis,
        of_heads=False,
        of_powers=True,
        by_default=False,
    ),
    *_int8_figures("hidden", "the residual stream x after the block", "block", lambda compute: compute),
)
BY_KEY = {figure.key: figure for figure in FIGURES}


def select_figures(figures: Any) -> tuple[Figure, ...]:
    """Returns the metrics with the given keys. None selects the default metrics, and "all" selects all metrics.

    Raises ValueError for an unknown key.
    """
    if figures is None:
        return tuple(figure for figure in FIGURES if figure.by_default)
    if isinstance(figures, str):
        if figures == "all":
            return FIGURES
        figures = (figures,)
    figures = tuple(figures)
    for key in figures:
        if key not in BY_KEY:
            raise ValueError(f"watch: figure '{key}' is none of all, {', '.join(BY_KEY)}")
    return tuple(figure for figure in FIGURES if figure.key in figures)
