#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that gguf_keys.txt has every key that the `gguf` package knows, except those of other kinds of files."""

import re
import sys
from pathlib import Path

from gguf.constants import Keys

# Adapters, importance matrices, encoders of images and audio; and two architectures' keys without their name.
OTHERS = {"Adapter", "IMatrix", "Clip", "ClipVision", "ClipAudio", "Diffusion", "xIELU"}
EXAMPLES = {"id": "0", "name": "tool_use", "dense": "dense"}


def keys_of(group):
    for name, value in vars(group).items():
        if isinstance(value, str) and not name.startswith("_"):
            yield re.sub(r"\{(id|name|dense)\}", lambda found: EXAMPLES[found[1]], value)
        elif isinstance(value, type):
            yield from keys_of(value)


def main():
    listed = set((Path(__file__).parent / "gguf_keys.txt").read_text(encoding="utf-8").split())
    known = set()
    for name, group in vars(Keys).items():
        if isinstance(group, type) and name not in OTHERS:
            known |= set(keys_of(group))
    missing = sorted(known - listed)
    for key in missing:
        print(f"{key} is not in gguf_keys.txt")
    print(f"{len(known)} keys of the package, {len(listed)} in the list")
    return 1 if missing or len(known) < 200 else 0


if __name__ == "__main__":
    sys.exit(main())
