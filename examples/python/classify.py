#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Which section of Debian is a package in? A small transformer reads the words of its one-line description.

    examples/python/classify.py --gate none
    examples/python/classify.py --gate headwise

A gate is said to make attention sharper and its predictions better calibrated, and to help classification. This prints
what can be measured of that: accuracy, loss and Brier score; the expected calibration error, and with --figure a
reliability diagram; the entropy of the predictions and that of the attention, which headgate has without ever making
the matrix of its weights.
"""

import re
import zlib

import torch
from torch import nn
from torch.nn import functional as F

import training

WORDS, LONGEST = 8192, 24  # number of ids, which are hashes of words; maximum number of words to read
SUMMARY = 0  # id of the first token, whose output gives the class


def tokens_of(description):
    words = re.findall(r"[a-z0-9]+", description.lower())[: LONGEST - 1]
    return torch.tensor([SUMMARY] + [1 + zlib.crc32(word.encode()) % (WORDS - 1) for word in words])


def packed(rows):
    """Packs N sequences without padding. Returns tokens (1,T), and the begin of each sequence, followed by T, (N+1)."""
    lengths = torch.tensor([0] + [len(row) for row in rows])
    return torch.cat(rows).unsqueeze(0), lengths.cumsum(0)


class Classifier(nn.Module):
    def __init__(self, options, classes):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, options.dim)
        self.dropout = nn.Dropout(options.dropout)
        blocks = (training.Block(options.dim, options.heads, options.gate, causality="none") for _ in range(2))
        self.blocks = nn.ModuleList(blocks)
        self.head = nn.Sequential(nn.RMSNorm(options.dim), nn.Linear(options.dim, classes))

    def forward(self, tokens, starts, looks=None):
        """Returns logits (N,classes). Appends the attention statistics of each layer to the list `looks`, if given."""
        x = self.dropout(self.embedding(tokens))
        for block in self.blocks:
            if looks is not None:
                looks.append(block.looks(x, cu_seqlens=starts))
            x = self.dropout(block(x, cu_seqlens=starts))
        return self.head(x[0, starts[:-1]])


@torch.no_grad()
def evaluate(model, packages, sections):
    rows = [tokens_of(package.description) for package in packages]
    looks = []
    logits = model(*packed(rows), looks)
    labels = torch.tensor([sections.index(package.section) for package in packages])
    return {**training.classification(logits, labels), **training.mean_looks(looks)}


def draw_reliability(table, path):
    """Draws accuracy over confidence. On the diagonal, predictions with a probability of 70% are right in 70% of
    cases."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4, 4), layout="constrained")
    axes = figure.add_subplot(xlabel="confidence", ylabel="accuracy", xlim=(0, 1), ylim=(0, 1))
    filled = [row for row in table if row[0]]
    axes.plot([0, 1], [0, 1], color="#999999", linestyle=":")
    axes.plot([row[1] for row in filled], [row[2] for row in filled], marker="o")
    figure.savefig(path)


def more_options(parser):
    parser.add_argument("--dropout", type=float, default=0.2, help="default %(default)s")
    parser.add_argument("--figure", metavar="FILE", help="draw a reliability diagram (.png, .svg) by matplotlib")


def main(arguments=None):
    options = training.parse(__doc__, arguments, more_options, steps=1000, batch=128, dim=64, heads=4, lr=3e-3)
    data = training.read_packages(options)
    sections = data.sections()
    rows = [tokens_of(package.description) for package in data.of("train")]
    labels = torch.tensor([sections.index(package.section) for package in data.of("train")])
    model = Classifier(options, len(sections))

    def loss_of_batch(generator):
        at = torch.randint(len(rows), (options.batch,), generator=generator)
        return F.cross_entropy(model(*packed([rows[i] for i in at])), labels[at])

    trained = training.train(model, loss_of_batch, options)
    metrics = evaluate(model, data.of("test"), sections)
    metrics["valid_loss_nats"] = evaluate(model, data.of("valid"), sections)["loss_nats"]
    if options.figure:
        draw_reliability(metrics["reliability"], options.figure)
    return training.finish(options, model, data, trained, metrics)


if __name__ == "__main__":
    main()
