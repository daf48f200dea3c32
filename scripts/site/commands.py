# SPDX-License-Identifier: Apache-2.0
"""Generates the reference of the command line: a page for each verb, from `headgate man --json`."""

import json
import re
import subprocess
from pathlib import Path

TOOL = Path(__file__).resolve().parents[2] / "build" / "headgate"


def escaped(text):
    """Escapes a text for Markdown, except for code in backticks."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(
        p if i % 2 else re.sub(r"([\\*_\[\]#|])", r"\\\1", p).replace("<", "&lt;") for i, p in enumerate(parts)
    )


def paragraphs(text, language="text"):
    """Converts text of --help to Markdown. Indented lines become blocks of code."""
    out = []
    for indented, lines in runs(text.split("\n")):
        body = "\n".join(line[2:] if indented else line for line in lines).strip("\n")
        if body.strip():
            out.append(f"```{language}\n{body}\n```" if indented else escaped(body))
    return "\n\n".join(out)


def runs(lines):
    """Splits lines into runs of (whether they are indented, lines). An empty line belongs to the run before it."""
    found = []
    for line in lines:
        indented = line.startswith("  ") if line.strip() else found[-1][0] if found else False
        if not found or found[-1][0] != indented:
            found.append((indented, []))
        found[-1][1].append(line)
    return found


def sections(footer):
    """Converts the footer of --help to Markdown. A line that ends in a colon, before indented lines, is a heading."""
    out, text, language = [], [], "text"
    lines = footer.split("\n")
    for i, line in enumerate(lines):
        heads = line.endswith(":") and not line.startswith(" ") and i + 1 < len(lines) and lines[i + 1].startswith(" ")
        if heads and (i == 0 or not lines[i - 1]):
            out.append(paragraphs("\n".join(text), language))
            out.append(f"## {line[:-1]}")
            text, language = [], "sh" if line.startswith("Example") else "text"
        elif not line and text and language == "sh":
            out.append(paragraphs("\n".join(text), language))
            text, language = [], "text"
        else:
            text.append(line)
    out.append(paragraphs("\n".join(text), language))
    return [part for part in out if part]


def option(row):
    names = [row["type"] + "…" * row["several"]] if row["positional"] else row["names"]
    value = "" if row["positional"] or not row["type"] else f" *{escaped(row['type'])}*"
    text = escaped(row["help"]).replace("\n", "\n    ")
    return ", ".join(f"`{name}`" for name in names) + value + f"\n:   {text or '&nbsp;'}"


def synopsis(verb):
    words = [
        f"{row['names'][-1]} {row['type']}" for row in verb["options"] if row["required"] and not row["positional"]
    ]
    words.append("[OPTION]...")
    for row in verb["options"]:
        if row["positional"]:
            name = row["type"] + "..." * row["several"]
            words.append(name if row["required"] else f"[{name}]")
    return " ".join(["headgate", *filter(None, [verb["name"]]), *words])


def page(verb, exit_status):
    out = [f"# headgate {verb['name']}", escaped(verb["summary"]) + ".", f"```text\n{synopsis(verb)}\n```"]
    out.append(paragraphs(verb["description"]))
    groups = list(dict.fromkeys("Arguments" if row["positional"] else row["group"] for row in verb["options"]))
    for group in sorted(
        groups, key=lambda name: {"Arguments": 0, "Options": 2}.get(name, 1)
    ):  # --help is the last option
        rows = [row for row in verb["options"] if ("Arguments" if row["positional"] else row["group"]) == group]
        out.append(f"## {group}\n\n" + "\n\n".join(option(row) for row in rows))
    out += sections(verb["footer"])
    heading, *rows = exit_status.strip().split("\n")
    rows = [re.match(r"\s*(.*?)\s\s+(.*)", row).groups() for row in rows if row.strip()]
    out.append("## Exit status\n\n" + "\n\n".join(f"`{number}`\n:   {escaped(text)}" for number, text in rows))
    return "\n\n".join(filter(None, out)) + "\n"


def pages():
    """Returns (verb, Markdown) for every verb."""
    if not TOOL.exists():
        raise SystemExit(f"docs: {TOOL} is not there; `make docs` builds it")
    done = subprocess.run([TOOL, "man", "--json"], capture_output=True, text=True, check=True)
    tool = json.loads(done.stdout)
    return [(verb["name"], page(verb, tool["exit_status"])) for verb in tool["verbs"]]
