# SPDX-License-Identifier: Apache-2.0
"""Watches the attention of live PyTorch models. The parts are imported on first use."""

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .handle import Watch


def watch(model: Any, figures: Any = None, *, rows: Any = None, gates: Any = None, blocks: Any = None) -> "Watch":
    """Returns a handle that watches sinks, gates and activations of a model of PyTorch while it runs.

        with headgate.torch.watch(model) as seen:
            model(**batch)
        seen.scalars()["sink_rate"]

    The model's outputs and gradients stay bitwise the same. Each attention call is measured in O(T) memory; CUDA tensors
    are measured on their device, by blocks of queries. Names and definitions are those of `headgate eval`.

    figures: keys of headgate.torch.watch.figures.FIGURES, "all", or None for those by default.
    rows: positions of queries. seen.rows then holds the attention weights of these queries on all keys. For each layer,
        they are those of the last call that has such queries.
    gates: {module name: function}; the function returns the gate (B,T,H,D or 1) from the output of that module.
    blocks: names of modules that return the residual stream; by default the members of lists of layers.

    Raises ValueError for unknown figures and for rows that are not whole numbers from 0 on. Raises AttributeError for
    unknown modules.
    """
    from .handle import Watch

    return Watch(model, figures, rows=rows, gates=gates, blocks=blocks)


def override(model: Any, changes: dict[Any, Any]) -> AbstractContextManager[None]:
    """Changes attention of heads or layers of a model of transformers in a `with` block, to measure the effect.

        with headgate.torch.override(model, {(12, 0): "closed", 20: "mean_gate"}):
            loss = model(**batch).loss

    Keys are (layer, head), or a layer for all its heads; a layer is its number or the name of its attention module.

    | change | what it does |
    |---|---|
    | "closed" | nothing of the head reaches the output projection |
    | "open" | the gate is 1 |
    | "mean_gate" | each feature's gate is its mean over the tokens of the call |
    | "no_first_token" | queries but the first do not see the first token of their sequence |
    | "sink_logit", ("sink_logit", x) | a sink logit, 0 or x, joins the softmax |

    Linear attention supports "closed" and "mean_gate". "no_first_token" and "sink_logit" compute attention again; their
    gradients take T × S memory. Raises ValueError for unknown layers and changes, and for "open" and "mean_gate" if the
    layer has no gate that can be read.
    """
    from .override import overridden

    return overridden(model, changes)
