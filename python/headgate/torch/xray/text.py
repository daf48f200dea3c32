# SPDX-License-Identifier: Apache-2.0
"""Converts a text to token ids, and finds the part of the text that each token adds."""

import codecs
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

LONGEST_TOKEN = 64
"""Number of bytes of text to read for each requested token. Tokens are much shorter on average, so this is enough
text."""


def ids_of(tokenizer: Any, text: Any, tokens: int) -> tuple[list[int], str]:
    """Returns the first `tokens` + 1 ids of a text, or all ids if there are fewer. Also returns the name of the text.

    Raises TypeError if `text` is neither text nor the ids of one sequence, or if a text has no suitable tokenizer.
    Raises ValueError if a text is not UTF-8.
    """
    if tokenizer is not None and not (callable(tokenizer) and hasattr(tokenizer, "decode")):
        raise TypeError(f"xray: tokenizer is a {type(tokenizer).__name__} but must be one of transformers, or None")
    if isinstance(text, (str, os.PathLike)):
        if tokenizer is None:
            raise TypeError("xray: tokenizer is None but text is no token ids: give the tokenizer, or ids")
        whole = text.encode(errors="surrogatepass") if isinstance(text, str) else Path(text).read_bytes()
        ids = tokenizer(_decoded(whole, LONGEST_TOKEN * tokens))["input_ids"]
        return list(ids)[: tokens + 1], "text" if isinstance(text, str) else str(text)
    try:
        ids = torch.as_tensor(text, device="cpu")
    except (TypeError, ValueError, RuntimeError):
        ids = torch.empty(0, device="cpu")
    if ids.dim() == 2 and len(ids) == 1:
        ids = ids[0]
    if ids.dim() != 1 or ids.dtype not in (torch.int32, torch.int64):
        found = (
            f"a tensor {tuple(ids.shape)} of {ids.dtype}" if isinstance(text, Tensor) else f"a {type(text).__name__}"
        )
        raise TypeError(f"xray: text is {found} but must be a str, a pathlib.Path, or the ids of one sequence")
    return ids.tolist()[: tokens + 1], "token ids"


def _decoded(whole: bytes, most: int) -> str:
    """Returns the characters in the first `most` bytes. Raises ValueError for text that is not UTF-8."""
    try:
        return codecs.getincrementaldecoder("utf-8")().decode(whole[:most], final=len(whole) <= most)
    except UnicodeDecodeError as error:
        raise ValueError(f"xray: text is not UTF-8: {error}") from None


def pieces_of(tokenizer: Any, ids: list[int]) -> list[str]:
    """Returns the part of the text that each token adds. If several tokens encode one character, it belongs to the last
    token.

    Without a tokenizer, returns the ids as text.
    """
    if tokenizer is None:
        return [f"{token} " for token in ids]

    def decoded(part: list[int]) -> str:
        return tokenizer.decode(part, skip_special_tokens=False, clean_up_tokenization_spaces=False)

    pieces, begin, done, shown = [], 0, 0, ""
    for end in range(1, len(ids) + 1):  # decodes tokens together with earlier ones: tokenizers trim the first space
        now = decoded(ids[begin:end])
        whole = now if end == len(ids) else now.rstrip("\N{REPLACEMENT CHARACTER}")
        pieces.append(whole[len(shown) :])
        if whole == now:
            begin, done = done, end
            shown = decoded(ids[begin:done])
        elif len(whole) > len(shown):
            shown = whole
    return pieces
