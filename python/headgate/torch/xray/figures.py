# SPDX-License-Identifier: Apache-2.0
"""Lists the metrics ("figures") of a report, one Row each, in the order of the page.

watch() measures some of these metrics. Their definitions are in watch/figures.py.
"""

from dataclasses import dataclass

from ..watch.figures import BY_KEY

ATTENTION, FIRST, SINK, LINEAR, ANY = "attention", "first token", "sink", "linear", "any"


@dataclass(frozen=True)
class Row:
    """Describes a metric of the report.

    `watch_keys` are keys of metrics of watch(). The value in the report is that of the first key that a layer has.
    """

    key: str
    layers: str = ANY  # the layers that have this metric
    share: bool = False  # whether the metric is in [0,1] by definition
    watch_keys: tuple[str, ...] = ()
    levels: str = "model layer head"
    sentence: str = ""

    def report_entry(self) -> dict[str, object]:
        """Returns the description of the metric in a report: "key", "name", "sentence" (the definition) and "share"."""
        sentence = self.sentence or BY_KEY[self.watch_keys[0]].formula
        sentence = sentence[0].upper() + sentence[1:] + ("" if sentence.endswith(".") else ".")
        return {"key": self.key, "name": self.key.replace("_", " "), "sentence": sentence, "share": self.share}


def _watched(key: str, layers: str, share: bool = False, levels: str = "model layer head") -> Row:
    return Row(key, layers, share, (key,), levels)


BLOCK = "model layer"
ROWS = (
    Row("loss_nats", levels="model", sentence="Mean of -log p of the next token, in nats."),
    Row(
        "bits_per_byte",
        levels="model",
        sentence="The loss in bits for each byte of the text that the targets stand for.",
    ),
    Row("perplexity", levels="model", sentence="e to the loss."),
    _watched("first_token_attention", FIRST, True),
    _watched("first_token_attention_uniform", FIRST, True, BLOCK),
    _watched("first_token_attention_gated", FIRST, True),
    _watched("sink_rate", FIRST, True),
    _watched("sink_attention", SINK, True),
    _watched("attention_entropy", ATTENTION),
    _watched("massive_activation", ANY, levels=BLOCK),
    Row("massive_activation_token", levels=BLOCK, sentence="The token that holds the largest activation, from 0 on."),
    Row(
        "massive_activation_channel", levels=BLOCK, sentence="The channel that holds the largest activation, from 0 on."
    ),
    _watched("kurtosis", ANY, levels=BLOCK),
    _watched("kurtosis_without_first", ANY, levels=BLOCK),
    *(
        _watched(f"int8_{of}_{scale}{tokens}", layers, levels=BLOCK)
        for of, layers in (("hidden", ANY), ("keys", ATTENTION), ("values", ATTENTION))
        for scale in ("per_tensor", "per_token")
        for tokens in ("", "_without_first")
    ),
    _watched("gate_mean", ATTENTION, True),
    _watched("gate_below_0.1", ATTENTION, True),
    _watched("gate_below_0.01", ATTENTION, True),
    _watched("mean_decay", LINEAR, True),
    _watched("half_life", LINEAR),
    _watched("mean_beta", LINEAR),
    _watched("output_gate_mean", LINEAR),
    _watched("output_gate_below_0.1", LINEAR, True),
    _watched("output_gate_below_0.01", LINEAR, True),
    Row("hidden_first_token_share", LINEAR, True, ("hidden_first_token",)),
    Row(
        "state_rank",
        LINEAR,
        sentence="(Σ σ²)² / Σ σ⁴ of the singular values σ of the state after the last token, mean over value heads.",
    ),
    Row("mean_distance", watch_keys=("mean_distance", "reach")),
    Row(
        "value_output_rank",
        sentence="How many directions W_v W_o of a head has: the effective rank e^H of its singular values.",
    ),
    Row(
        "written_rank",
        sentence="How many directions a head's output has over the text, after W_o: the effective rank of the product.",
    ),
)
WATCHED = list(dict.fromkeys(key for row in ROWS for key in row.watch_keys))
"""Keys of the metrics that a report needs from watch()."""


def rows_for(has_linear: bool, has_sinks: bool, hides_first: bool) -> list[Row]:
    """Returns the metrics that are defined for a model.

    `hides_first` is true if windows hide the first token in every attention layer.
    """
    absent = {LINEAR: not has_linear, SINK: not has_sinks, FIRST: hides_first}
    return [row for row in ROWS if not absent.get(row.layers, False)]
