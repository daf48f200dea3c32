# SPDX-License-Identifier: Apache-2.0
"""Makes the X-ray of a live PyTorch model. The parts are imported on first use."""

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
    """Returns the report of `headgate xray` of a live causal model on one text: maps, gates, sinks and ranks of each head.

        report = headgate.torch.xray(model, tokenizer, "A text.")
        report.save("page.html")

    The model runs once on the beginning of the text, as one sequence, in evaluation mode and without gradients. Maps are
    made of blocks of queries, in O(T) memory. Keys and definitions are those of `headgate xray --json`; what the model
    does not show is null, and named in `not_shown`.

    Args:
      model: a module whose call takes token ids (1,T). If it returns logits (1,T,V), the report has losses.
      tokenizer: a tokenizer of transformers, or None, with token ids as text.
      text: a str, a pathlib.Path of a text file, or token ids: a tensor or a list of whole numbers.
      name: the model's name on the page; by default that of its config, or its class.
      tokens: the maximum number of tokens. Each token needs a next one, so N ids give at most N - 1 tokens.
      map_cells: the maximum number of cells of a side of a head's map.
      gates: functions that read other gates, as in headgate.torch.watch.
      blocks: names of the modules whose outputs are the residual stream, as in headgate.torch.watch.

    Warns of attention that is not seen, as watch does. Raises ValueError for arguments outside their ranges, and where
    no causal attention is seen at all.
    """
    from .report import report_of

    return report_of(model, tokenizer, text, name, tokens, map_cells, gates, blocks)
