# SPDX-License-Identifier: Apache-2.0
"""Watches and changes the attention of live PyTorch models. The submodules are imported on first use."""

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .handle import Watch


def watch(model: Any, figures: Any = None, *, rows: Any = None, gates: Any = None, blocks: Any = None) -> "Watch":
    """Returns a handle that measures sinks, gates and activations of a PyTorch model while it runs.

        with headgate.torch.watch(model) as seen:
            model(**batch)
        seen.scalars()["sink_rate"]

    The model's outputs and gradients stay bitwise identical. Each attention call is measured in O(T) memory. CUDA
    tensors are measured on their device, in blocks of queries. Names and definitions are those of `headgate eval`.

    figures: keys of the metrics to measure, or "all". headgate.torch.watch.figures.FIGURES lists them. None selects the
        default metrics.
    rows: positions of queries. seen.rows holds the attention weights of these queries on all keys. The weights of a
        layer come from its last call that has such queries.
    gates: {module name: function}. The function receives the module's output, and returns the gate (B,T,H,D or 1).
    blocks: names of modules that return the residual stream. By default, these are the modules in lists of layers.

    Raises ValueError for unknown keys in `figures`, and for `rows` that are not whole numbers from 0 on. Raises
    AttributeError for unknown modules.
    """
    from .handle import Watch

    return Watch(model, figures, rows=rows, gates=gates, blocks=blocks)


def override(model: Any, changes: dict[Any, Any]) -> AbstractContextManager[None]:
    """Changes the attention of heads or layers of a transformers model in a `with` block, to measure the effect.

        with headgate.torch.override(model, {(12, 0): "closed", 20: "mean_gate"}):
            loss = model(**batch).loss

    Keys are (layer, head), or a layer for all its heads. A layer is given by its number or the name of its attention
    module.

    | change | what it does |
    |---|---|
    | "closed" | nothing of the head reaches the output projection |
    | "open" | the gate is 1 |
    | "mean_gate" | each feature's gate is its mean over the tokens of the call |
    | "no_first_token" | queries but the first do not see the first token of their sequence |
    | "sink_logit", ("sink_logit", x) | a sink logit, 0 or x, joins the softmax |

    Linear attention supports "closed" and "mean_gate". "no_first_token" and "sink_logit" compute attention again, and
    their gradients need T × S memory. Several changes of a head apply together, and "closed" prevails. Compiled models
    run uncompiled in the block.

    Raises ValueError for unknown layers and changes, and for contradictory changes of a head. Also raises it for "open"
    and "mean_gate" if the layer has no gate that can be read. At the end of the block, raises it for a change that had
    no effect while the model ran. Also raises it if reentrant gradient checkpointing would compute changed layers after
    the block.
    """
    from .override import overridden

    return overridden(model, changes)
