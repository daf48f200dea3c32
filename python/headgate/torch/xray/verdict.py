# SPDX-License-Identifier: Apache-2.0
"""Says in sentences what the numbers of a report mean. `headgate xray` prints the same sentences."""

from typing import Any

from ..watch.figures import SINK_THRESHOLD


def _percent(share: float) -> str:
    return f"{100 * share:.{1 if share < 0.01 else 0}f}%"


def _share(heads: list[float]) -> float:
    return sum(heads) / len(heads)


def _where(sinks: dict[int, list[float]]) -> str:
    """Describes which layers have sinks. `sinks` maps a layer to 1 for each head with a sink, 0 for each other head.

    Returns "from layer N on" for the first layer N that meets two conditions: at least half of its heads have sinks,
    and so do at least half of the heads from N on. N cannot be the last layer. Without such an N, names the layers that
    have any sinks.
    """
    layers = list(sinks)
    for i, layer in enumerate(layers[:-1]):
        rest = [head for later in layers[i:] for head in sinks[later]]
        if _share(sinks[layer]) >= 0.5 and _share(rest) >= 0.5:
            return f"from layer {layer} on"
    some = [layer for layer in layers if any(sinks[layer])]
    return f"in layer {some[0]}" if len(some) == 1 else f"in layers {some[0]} to {some[-1]}"


def _sinks(model: dict[str, Any]) -> str:
    figures, threshold = model["figures"], _percent(SINK_THRESHOLD)
    first = figures.get("first_token_attention")
    if first is None:
        if all(kind == "linear_attention" for kind in model["layer_types"]):
            return "Linear attention has no softmax, and so no sinks."
        if "first_token_attention" in figures:
            return "The model gives numbers that are not finite."
        return "Sinks are not measured: windows hide the first token from later ones."
    of_layers = ([row["sink_rate"] for row in rows if row["sink_rate"] is not None] for rows in model["head_figures"])
    sinks = {layer: heads for layer, heads in enumerate(of_layers) if heads}
    rate = _share(sum(sinks.values(), []))
    text = f"No sinks: no head gives more than {threshold} of its attention to the first token."
    if rate > 0:
        text = f"Sinks {_where(sinks)}: {_percent(rate)} of the heads give more than {threshold} of their attention to the "
        text += "first token."
    text += f" It gets {_percent(first)} of all attention; if heads looked at all tokens alike, it would get "
    text += f"{_percent(figures['first_token_attention_uniform'])}."
    gated = figures.get("first_token_attention_gated")
    return text if gated is None else f"{text} {_percent(gated)} passes the gate."


def verdict(model: dict[str, Any], has_stream: bool) -> str:
    """Returns sentences about a model: its attention sinks, its largest activation, and what the report does not show.

    `model` is the report's dict with the keys figures, head_figures, layer_types, largest_activation and not_shown.
    `has_stream` tells whether the residual stream was observed.
    """
    text, largest = _sinks(model), model["largest_activation"]
    sink = model["figures"].get("sink_attention")
    if sink is not None:
        text += f" {_percent(sink)} of the attention goes to the sink logits of the heads."
    value, token = largest["value"], largest["token"]
    place = largest.get("module", f"layer {largest['layer']}")
    if has_stream and value is None:
        text += f" The activations are not finite from {place}, token {token} on."
    elif has_stream:
        digits = 2 if value < 100 else 0
        text += f" The largest activation is {value:.{digits}f}, at token {token}, channel {largest['channel']}, "
        text += f"after {place}."
    return f"{text} Not shown: {'; '.join(model['not_shown'])}." if model["not_shown"] else text
