# SPDX-License-Identifier: Apache-2.0
"""Runs the command-line program as `python -m headgate`. Its `xray` command also accepts models that only transformers
loads.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any, NoReturn

from . import page, tool
from .extras import require
from .models import Xray, _xray_of, load


class _Parser(argparse.ArgumentParser):
    """Reports invalid arguments as a ValueError. argparse would end the process."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def _given(words: list[str]) -> argparse.Namespace | None:
    """Parses the words after `xray` if they name one model and one text.

    Returns None for all other words. The command-line program then parses them and reports errors.
    """
    parser = _Parser(add_help=False, allow_abbrev=False)
    parser.add_argument("model", nargs=1)
    parser.add_argument("--text", action="append", required=True)
    parser.add_argument("--tokens", action="append", type=int)
    for name in ("--name", "--out", "--json-out"):
        parser.add_argument(name, action="append")
    try:
        values = vars(parser.parse_args(words))
    except ValueError:
        return None
    if any(each is not None and (len(each) > 1 or each[0] == "") for each in values.values()):
        return None  # the command-line program parses repeated options and empty values
    once = {name: None if each is None else each[0] for name, each in values.items()}
    return argparse.Namespace(**once | {"tokens": 2048 if once["tokens"] is None else once["tokens"]})


def _by_transformers(given: argparse.Namespace, refusal: str) -> Xray:
    """Returns the X-ray (measurements of every head) of a model that transformers loads in f32.

    `refusal` is the error message of headgate.load(), which failed before.
    """
    transformers: Any = require("transformers", f"{refusal}: an X-ray of it")
    from .torch import xray

    path = Path(given.model)
    where = {"pretrained_model_name_or_path": given.model}
    if path.suffix == ".gguf":
        where = {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
    try:
        model = transformers.AutoModelForCausalLM.from_pretrained(**where, dtype="float32")
        tokenizer = transformers.AutoTokenizer.from_pretrained(**where)
    except Exception as error:  # catches all, since transformers raises many exception types
        raise ValueError(f"{refusal}; transformers: {error}") from None
    return xray(model, tokenizer, Path(given.text), name=given.name or given.model, tokens=given.tokens)


def _xray(given: argparse.Namespace) -> None:
    """Computes, saves and prints the X-ray of one model."""
    try:
        model = load(given.model)
    except (ValueError, FileNotFoundError) as error:
        report = _by_transformers(given, str(error))
    else:
        report = model.xray(Path(given.text), tokens=given.tokens)
        report.report["models"][0]["name"] = given.name or model.name
        report = _xray_of(report.report)
    if given.out:
        page([report]).save(given.out)
    if given.json_out:
        Path(given.json_out).write_text(json.dumps(report.report) + "\n", encoding="utf-8")
    print(f"{report.name}: {report.verdict}")


def main() -> None:
    given = _given(sys.argv[2:]) if sys.argv[1:2] == ["xray"] else None
    if given is None:
        tool.main()
        return
    try:
        _xray(given)
    except (ValueError, TypeError, OSError, ImportError) as error:
        sys.exit(f"headgate xray: {' '.join(str(error).split())}")


if __name__ == "__main__":
    main()
