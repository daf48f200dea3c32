# SPDX-License-Identifier: Apache-2.0
"""Watches the attention of live PyTorch models. The parts are imported on first use."""

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
    rows: positions of queries; seen.rows then holds their weights on all keys, of the last call of each layer.
    gates: {module name: function}; the function returns the gate (B,T,H,D or 1) from the output of that module.
    blocks: names of modules that return the residual stream; by default the members of lists of layers.

    Raises ValueError for unknown figures, modules and rows that are no whole numbers.
    """
    from .handle import Watch

    return Watch(model, figures, rows=rows, gates=gates, blocks=blocks)
