#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Usage: argument_types.py PACKAGE. Writes PACKAGE/_arguments.pyi, which declares the keyword arguments of
headgate.torch's functions for type checkers.

Each function has a TypedDict, built from the argument tables of the extension module in PACKAGE. The module _arguments
does not exist at run time.
"""

import sys
from pathlib import Path

HEADER = """\
from typing import Literal, TypedDict

from torch import Tensor

"""

# Arguments that Headgate adds to those of PyTorch in its drop-in replacements for PyTorch functions.
ADDED = ("gate_fn", "gate_op", "sinks", "softcap", "precision", "threads")
# RING: arguments that ring_attention always accepts. RING_PARTS: parts of attention whose options it accepts too.
# Options of these parts are excluded if only the forward pass supports them.
RING = ("key_lengths", "alibi_slopes", "sinks", "layout", "threads")
RING_PARTS = ("scores", "gate")


def types_of(rows, positional=()):
    """Returns the type annotation of each keyword argument in the table `rows`."""
    types = {name: "Tensor | None" for name, _, _ in rows["inputs"] if name not in positional}
    if rows["layout"]:
        types["layout"] = rows["layout"]
    return types | {name: annotation for name, *_, annotation in rows["options"]}


def dictionaries(module):
    """Yields the name of each TypedDict and its arguments, a dict from name to type annotation."""
    rows = module._rows
    attention = types_of(rows, ("q", "k", "v", "gate"))
    of_parts = {
        name for name, _, _, part, forward_only, _ in rows["options"] if part in RING_PARTS and not forward_only
    } - {"key_block_size"}  # ring_attention does not support key_block_size
    yield "AttentionArguments", attention
    yield "AddedArguments", {name: attention[name] for name in ADDED}
    yield "FlexArguments", {name: attention[name] for name in ADDED if name != "sinks"}
    yield "RingArguments", {name: text for name, text in attention.items() if name in of_parts or name in RING}
    yield "LinearArguments", types_of(module._linear_rows, ("q", "k", "v", "decay", "beta", "snapshot_lengths"))
    yield "ConvolutionArguments", types_of(module._convolution_rows, ("x", "weight", "bias", "snapshot_lengths"))
    yield "NormArguments", types_of(module._norm_rows, ("x", "weight", "gate"))


def main(package):
    sys.path.insert(0, package)
    import _headgate

    text = HEADER
    for name, types in dictionaries(_headgate):
        text += f"\nclass {name}(TypedDict, total=False):\n"
        text += "".join(f"    {argument}: {annotation}\n" for argument, annotation in types.items())
    functions = [word for word, _ in _headgate._rows["gate_functions"]]
    text += f"\nGateFunction = Literal[{', '.join(map(repr, functions))}]\n"
    Path(package, "_arguments.pyi").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
