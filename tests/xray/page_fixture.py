#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a made-up report of `headgate xray`, in the template of src/page and src/xray, to look at the page and to test it.

    page_fixture.py [--large] OUT.html

Two models, one without a gate, whose heads attend to the first token, and one with a headwise gate. --large: 30 layers of
9 heads and 2048 tokens, the size of a small real model.
"""

import argparse
import base64
import json
import math
import random
from pathlib import Path

SOURCES = Path(__file__).resolve().parents[2] / "src"

FIGURES = [
    ("loss", "loss", "nats per token", "Mean of −log p of the next token over this text."),
    ("bits_per_byte", "loss per byte", "bits per byte", "The same loss in bits, over the bytes of the text, so that models "
     "with different tokenizers can be compared."),
    ("first_token_attention", "first-token attention", "", "Softmax weight on the first token, mean over queries from the "
     "second token on."),
    ("first_token_attention_uniform", "uniform first-token attention", "", "What first-token attention would be if every "
     "query looked alike at all the tokens it sees."),
    ("first_token_attention_gated", "first-token attention after the gate", "", "First-token attention with each weight "
     "times the gate of its query and head; none without a gate."),
    ("sink_rate", "sink rate", "share of heads", "Share of heads whose own first-token attention exceeds 0.3."),
    ("massive_activation", "massive activation", "", "Largest absolute value in the residual stream after a layer."),
    ("attention_entropy", "attention entropy", "nats", "Entropy of a query's softmax weights, mean over queries: 0 for one "
     "key alone, log of their number if all are alike."),
    ("gate_mean", "mean gate", "", "Mean of the gate over tokens and features; none without a gate."),
    ("gate_below_0.1", "gate below 0.1", "share of values", "Share of the gate's values below 0.1."),
    ("singular_values_rank", "rank of singular values", "of 64", "Effective rank of the product of the value and output "
     "projections, from its singular values."),
    ("loss_change_when_closed", "loss change when closed", "nats per token", "How much the loss on this text rises where this "
     "head's output is 0."),
    ("loss_change_when_open", "loss change when open", "nats per token", "How much the loss on this text rises where this "
     "head's gate is 1."),
]

OVERRIDES = [("closed", "loss_change_when_closed", "0"), ("open", "loss_change_when_open", "o")]

# Line breaks, quotes, tags, letters of several bytes and a piece that is only part of a letter.
TEXT = [
    "The", " cat", " sat", " on", " the", " mat", ",", " and", " the", " dog", " looked", " at", " it", ".", "\n", "“",
    "Who", " are", " you", "?", "”", " it", " asked", ".", "\n", "\n", "<script>", "alert", "(\"", "no", "\")", "</script>",
    " is", " only", " text", " &", " so", " is", " <b>", "this", "</b>", ".", " Die", " Straße", " war", " naß", ";", " 猫",
    "は", "", "", "座", "った", "。", " Ωμέγα", " 🙂", "\t", "'quoted'", " \\", " back", "slash", "\r\n"]

PROSE = (" Every head of every layer reads the whole text before its token and weighs what it finds there . Most of the time "
         "there is little to find , and the weights have to go somewhere all the same . The first token is always in sight , "
         "so it becomes the place where nothing is read . A gate makes that detour unnecessary , since the head may close "
         "its own output , and the weights behind a closed gate are free to lie anywhere at all .").split(" ")[1:]


def tokens(count):
    words = (" " + word if word not in ".," else word for word in PROSE * (count // len(PROSE) + 1))
    return (TEXT + list(words))[:count]


def code(values, scale):
    return base64.b64encode(bytes(min(255, max(0, round(255 * scale(value)))) for value in values)).decode()


def attention(rng, size, sink, kind, width):
    """Rows of a causal softmax of made-up logits: a sink, the recent tokens, the token before, or a few tokens."""
    favourites = {rng.randrange(size) for _ in range(size // 12 + 1)}
    rows = []
    for query in range(size):
        logits = []
        for key in range(query + 1):
            logit = rng.gauss(0, 0.5)
            if kind == "recent":
                logit += 3 * math.exp(-(query - key) / width)
            elif kind == "previous":
                logit += 5 if query - key == 1 else 0
            elif kind == "few" and key in favourites:
                logit += 2.5
            logits.append(logit)
        logits[0] += sink
        total = sum(weights := [math.exp(logit) for logit in logits])
        rows.append([weight / total for weight in weights])
    return rows


def head(rng, size, count, sink, kind, gated):
    rows = attention(rng, size, sink, kind, size / 15)
    side = count / size  # tokens of a cell
    received = [sum(rows[query][key] for query in range(key, size)) / (size - key) / side for key in range(size)]
    received = [received[int(token / side)] * (1 if side == 1 else rng.uniform(0.6, 1.4)) for token in range(count)]
    if side > 1:
        received[0] *= side
        received[1:int(side)] = [value / 8 for value in received[1:int(side)]]
    gate, level = [], 0.5 * (1 if kind == "few" else 0.25)
    for _ in range(count):
        gate.append(1 / (1 + math.exp(-rng.gauss(math.log(level / (1 - level)), 1.2))))
    histogram = [0] * 20
    for value in gate:
        histogram[min(19, int(20 * value))] += 1
    top = sorted(range(count), key=lambda token: -received[token])[:8]
    first = sum(row[0] for row in rows[1:]) / (size - 1)
    figures = {
        "first_token_attention": first,
        "attention_entropy": -sum(w * math.log(w) for row in rows[1:] for w in row) / (size - 1),
        "gate_mean": sum(gate) / count if gated else None,
        "gate_below_0.1": sum(value < 0.1 for value in gate) / count if gated else None,
        "singular_values_rank": rng.uniform(18, 55),
        "loss_change_when_closed": rng.expovariate(40) - 0.01,
        "loss_change_when_open": rng.gauss(0.0, 0.004) if gated else None,
    }
    if not gated and rng.random() < 0.06:
        figures["singular_values_rank"] = None
    return figures, received, gate, {
        "map": code([w / side for row in rows for w in row], math.sqrt),
        "received": code(received, math.sqrt),
        "gate": code(gate, float) if gated else None,
        "gate_histogram": histogram if gated else None,
        "top_keys": [[token, received[token]] for token in top]}


def mean(values):
    values = [value for value in values if value is not None]
    return sum(values) / len(values) if values else None


def model(rng, name, gated, layers, heads, count, size):
    figures, made, received_means, gate_means = [], [], [], []
    for layer in range(layers):
        row = []
        for _ in range(heads):
            sink = rng.gauss(0.3, 0.5) if gated or layer < 1 else rng.gauss(math.log(size) * 0.95, 1.6)
            row.append(head(rng, size, count, sink, rng.choice(["recent", "previous", "few", "flat"]), gated))
        figures.append([one[0] for one in row])
        made.append([one[3] for one in row])
        received_means.append([sum(one[1][t] for one in row) / heads for t in range(count)])
        gate_means.append([sum(one[2][t] for one in row) / heads for t in range(count)])
    uniform = sum(1 / (t + 1) for t in range(1, count)) / (count - 1)
    by_layer = []
    for layer, row in enumerate(figures):
        grown = 4 + layer if gated else 6 + (900 if 0 < layer < layers - 1 else 0)
        by_layer.append({"massive_activation": grown * rng.uniform(0.9, 1.1),
                         "first_token_attention": mean(one["first_token_attention"] for one in row),
                         "gate_mean": mean(one["gate_mean"] for one in row)})
    every = [one for row in figures for one in row]
    first = mean(one["first_token_attention"] for one in every)
    losses = [rng.expovariate(1 / 3.1) for _ in range(count - 1)] + [None]
    headline = {
        "loss": mean(losses), "bits_per_byte": None, "first_token_attention": first,
        "first_token_attention_uniform": uniform, "first_token_attention_gated": first * 0.21 if gated else None,
        "sink_rate": mean(float(one["first_token_attention"] > 0.3) for one in every),
        "massive_activation": max(row["massive_activation"] for row in by_layer),
        "gate_mean": mean(one["gate_mean"] for one in every), "gate_below_0.1": mean(one["gate_below_0.1"] for one in every)}
    overrides = {
        "of": "heads", "tokens": min(count, 256), "passes": 1 + (1 + gated) * layers * heads, "loss": mean(losses),
        "kinds": [{"word": word, "figure": key, "writes": writes,
                   "left_out": "the model has no gate" if word == "open" and not gated else None} for word, key, writes in OVERRIDES]}
    return {
        "name": name, "gate": "g1-headwise" if gated else "none", "parameters": 134515008 + 1290240 * gated, "layers": layers,
        "kv_heads": max(1, heads // 3), "dim": 64 * heads, "tokens": count, "figures": headline,
        "layer_figures": by_layer, "head_figures": figures, "overrides": overrides, "text": tokens(count), "token_losses": losses, "map_size": size,
        "heads": made,
        "layer_text": {"gate": [code(row, float) for row in gate_means] if gated else None,
                       "received": [code(row, math.sqrt) for row in received_means]}}


def make_report(large):
    rng = random.Random(7)
    layers, heads, count, size = (30, 9, 2048, 96) if large else (3, 4, 150, 150)
    return {
        "headgate": "0.2.0", "text": "fixture.txt",
        "figures": [dict(zip(("key", "name", "unit", "sentence"), figure)) for figure in FIGURES],
        "models": [model(rng, "models/without-gate", False, layers, heads, count, size),
                   model(rng, "models/headwise-gate", True, layers, heads, count, size)]}


def join(report):
    """The page: as `headgate xray` joins it, "<" escaped in the JSON so that no text can end the script."""
    def texts(*names):
        return "".join((SOURCES / name).read_text(encoding="utf-8") for name in names)

    page = texts("page/page.html")
    for line, text in (("@PAGE_CSS@", texts("page/page.css", "xray/xray.css")), ("@PAGE_BODY@", texts("xray/page.html")),
                       ("@PAGE_JS@", texts("page/draw.js", "page/report.js", "xray/page.js")),
                       ("@REPORT_JSON@", json.dumps(report, ensure_ascii=False).replace("<", "\\u003c"))):
        before, after = page.split(line + "\n")
        page = before + text.rstrip("\n") + "\n" + after
    return page


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--large", action="store_true", help="30 layers of 9 heads, 2048 tokens")
    parser.add_argument("out", metavar="OUT.html", type=Path)
    arguments = parser.parse_args()
    arguments.out.write_text(join(make_report(arguments.large)), encoding="utf-8")


if __name__ == "__main__":
    main()
