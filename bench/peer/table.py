# SPDX-License-Identifier: Apache-2.0
"""Writes reports of peers.py as Markdown."""

import itertools
import math
from typing import Any

HEADER = """{cpu}, {threads} threads. A cell has the median time in ms, how far the farther quartile is from it, and the
ratio to headgate's time (the faster precision): above 1 headgate is ahead, **bold** where the peer is. *error*: the
largest of the group against f64, by the largest element of a result.

{versions}
"""


def merged(reports: list[dict[str, Any]]) -> dict[str, Any]:
    """Merges reports into one. If several have a case, uses the last one. Refuses reports of different machines."""
    whole = dict(reports[0])
    cases = {}
    for report in reports:
        for key in ("cpu", "threads"):
            if report[key] != whole[key]:
                raise SystemExit(f"peers.py: --table: {key} is {whole[key]} in one file and {report[key]} in another")
        whole["versions"] = {**whole["versions"], **report["versions"]}
        whole["missing"] = {**whole["missing"], **report["missing"]}
        cases |= {case["name"]: case for case in report["cases"]}
    whole["cases"] = list(cases.values())
    return whole


def _milliseconds(seconds: float) -> str:
    """Formats seconds as milliseconds, with at least three digits."""
    value = 1e3 * seconds
    return f"{value:.{max(0, 2 - math.floor(math.log10(value)))}f}"


def _cell(result: dict[str, Any] | None) -> str:
    if result is None or "refused" in result:
        return "–"
    low, middle, high = result["seconds"]
    spread = max(high - middle, middle - low) / middle
    text = f"{_milliseconds(middle)} ±{100 * spread:.0f}%"
    if "ratio" not in result:
        return text
    ratio = result["ratio"][1]
    behind = ratio < 1 and not result["peer"].startswith("headgate")
    return f"{text}, **{ratio:.2f}**" if behind else f"{text}, {ratio:.2f}"


def _group(cases: list[dict[str, Any]]) -> str:
    """Returns the table of a group: one row per case, and one column per peer that computes one of the cases."""
    peers = list(dict.fromkeys(r["peer"] for case in cases for r in case["results"] if "seconds" in r))
    lines = ["| case | " + " | ".join(peers) + " |", "|---|" + "---|" * len(peers)]
    errors = dict.fromkeys(peers, 0.0)
    for case in cases:
        results = {result["peer"]: result for result in case["results"]}
        name = case["name"].removeprefix(case["group"] + "/")
        lines.append(f"| {name} | " + " | ".join(_cell(results.get(peer)) for peer in peers) + " |")
        for peer in peers:
            errors[peer] = max(errors[peer], results.get(peer, {}).get("error", 0.0))
    lines.append("| *error* | " + " | ".join(f"{errors[peer]:.0e}" for peer in peers) + " |")
    return "\n".join(lines)


def _summary(cases: list[dict[str, Any]]) -> str:
    """Returns a table of the smallest and the largest ratios. It has one row per group, operation and dtype, and one
    column per peer."""
    peers = list(dict.fromkeys(r["peer"] for case in cases for r in case["results"] if "ratio" in r))
    peers = [peer for peer in peers if not peer.startswith("headgate")]
    lines = ["| cases | " + " | ".join(peers) + " |", "|---|" + "---|" * len(peers)]

    def key(case):
        return case["group"], case["op"], case["dtype"]

    for (group, op, dtype), some in itertools.groupby(sorted(cases, key=key), key=key):
        ratios: dict[str, list[float]] = {peer: [] for peer in peers}
        for result in (result for case in some for result in case["results"]):
            if result["peer"] in ratios and "ratio" in result:
                ratios[result["peer"]].append(result["ratio"][1])
        name = dtype if group == op else f"{op}, {dtype}"
        lines.append(f"| {group}: {name} | " + " | ".join(map(_range, ratios.values())) + " |")
    return "\n".join(lines)


def _range(ratios: list[float]) -> str:
    if not ratios:
        return "–"
    low, high = f"{min(ratios):.2f}", f"{max(ratios):.2f}"
    text = low if low == high else f"{low} to {high}"
    return f"**{text}**" if min(ratios) < 1 else text


def _refusals(cases: list[dict[str, Any]]) -> str:
    """Returns a list of untimed cases, with one line per peer and reason."""
    found: dict[tuple[str, str], list[str]] = {}
    for case in cases:
        for result in case["results"]:
            if "refused" in result:
                found.setdefault((result["peer"], result["refused"]), []).append(case["name"])
    return "\n".join(f"- {peer}: {why} ({_several(names)})" for (peer, why), names in found.items())


def _several(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{len(names)} cases, {names[0]} the first"


def markdown(report: dict[str, Any]) -> str:
    versions = ", ".join(f"{peer} {version}" for peer, version in report["versions"].items()) + "."
    parts = [HEADER.format(cpu=report["cpu"], threads=report["threads"], versions=versions)]
    if any("ratio" in result for case in report["cases"] for result in case["results"]):
        parts.append(f"### Times over headgate's\n\n{_summary(report['cases'])}\n")

    def key(case):
        return case["group"], case["dtype"]

    for (group, dtype), cases in itertools.groupby(sorted(report["cases"], key=key), key=key):
        parts.append(f"### {group}, {dtype}\n\n{_group(list(cases))}\n")
    missing = "\n".join(f"- {peer} is missing: {why}" for peer, why in report["missing"].items())
    notes = "\n".join(filter(None, (missing, _refusals(report["cases"]))))
    if notes:
        parts.append(f"### Not timed\n\n{notes}\n")
    return "\n".join(parts)
