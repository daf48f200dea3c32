# SPDX-License-Identifier: Apache-2.0
"""Makes an X-ray of a live PyTorch model. The submodules are imported on first use."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headgate import Xray


def xray(
    model: Any,
    tokenizer: Any,
    text: Any,
    *,
    name: str | None = None,
    tokens: int = 2048,
    map_cells: int = 96,
    gates: Any = None,
    blocks: Any = None,
) -> "Xray":
    """Returns the report of `headgate xray` for a live causal model on one text: maps, gates, sinks and ranks of each
    head.

        report = headgate.torch.xray(model, tokenizer, "A text.")
        report.save("page.html")

    The model runs once on the beginning of the text, as one sequence, in evaluation mode and without gradients. Maps
    are computed from blocks of queries, in O(T) memory. Keys and definitions are those of `headgate xray --json`.
    Values that the model does not show are null, and `not_shown` names them.

    Args:
      model: a module whose call takes token ids (1,T). If it returns logits (1,T,V), the report has losses.
      tokenizer: a tokenizer of transformers. It may be None if `text` is token ids.
      text: a str, a pathlib.Path of a text file, or token ids in a tensor or list.
      name: the model's name on the page. The default is the name in its config or the name of its class.
      tokens: the maximum number of tokens. Each token needs a next token, so N ids give at most N - 1 tokens.
      map_cells: the maximum number of cells of a side of a head's map.
      gates: functions that read gates, as in headgate.torch.watch.
      blocks: names of the modules whose outputs are the residual stream, as in headgate.torch.watch.

    Warns of attention that is not observed, as watch does. Raises ValueError for arguments outside their ranges. Also
    raises it if no causal attention is observed.
    """
    from .report import report_of

    return report_of(model, tokenizer, text, name, tokens, map_cells, gates, blocks)
