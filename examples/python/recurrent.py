#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A recurrent network that may look back: a GRU reads text byte by byte, and attends to its own past states.

    examples/python/recurrent.py --memory attention --gate none
    examples/python/recurrent.py --memory attention --gate headwise
    examples/python/recurrent.py --memory none            the GRU alone, with as many parameters

The text is Debian's list of packages, a line each, "name: description"; the network predicts the next byte. A gate is
said to suit recurrent networks too: they have gates of their own, on what they keep, and this one is on what they look
up. Losses are in nats a byte, over all bytes and over those that begin a window, for which there is little to look up.
"""

import torch
from torch import nn

import training

HEAD = 32  # number of bytes at the begin of a window


class Model(nn.Module):
    def __init__(self, options):
        super().__init__()
        self.embedding = nn.Embedding(257, options.dim)
        self.gru = nn.GRU(options.dim, options.dim, batch_first=True)
        gate = options.gate if options.memory == "attention" else "absent"
        self.block = training.Block(options.dim, options.heads, gate)
        self.head = nn.Sequential(nn.RMSNorm(options.dim), nn.Linear(options.dim, 256))

    def forward(self, tokens, looks=None):
        """Returns logits (B,T,256) of the bytes after tokens (B,T). Appends attention statistics to the list `looks`,
        if given."""
        states, _ = self.gru(self.embedding(tokens))
        if looks is not None and self.block.attention is not None:
            looks.append(self.block.looks(states))
        return self.head(self.block(states))


@torch.no_grad()
def evaluate(model, text, options):
    windows = training.all_windows(text, options.length, options.eval_bytes)
    looks, losses = [], []
    for part in windows.split(options.batch):
        losses.append(training.next_token_loss(model(part[:, :-1], looks), part, "none").view(len(part), -1))
    losses = torch.cat(losses)
    found = {"loss_nats": losses.mean().item(), "head_loss_nats": losses[:, :HEAD].mean().item()}
    if looks:
        found |= training.mean_looks([{name: torch.cat([part[name] for part in looks]) for name in looks[0]}])
    return found


def more_options(parser):
    parser.add_argument("--memory", choices=("attention", "none"), default="attention", help="default attention")
    parser.add_argument("--length", type=int, default=256, help="bytes of a window (default %(default)s)")
    parser.add_argument("--eval-bytes", type=int, default=65536, help="default %(default)s")


def main(arguments=None):
    options = training.parse(__doc__, arguments, more_options, steps=300, batch=8, dim=96, heads=4, lr=4e-3)
    data = training.read_packages(options)
    text = training.text_of(data.of("train"))
    model = Model(options)

    def loss_of_batch(generator):
        tokens = training.some_windows(text, options.length, options.batch, generator)
        return training.next_token_loss(model(tokens[:, :-1]), tokens)

    trained = training.train(model, loss_of_batch, options)
    metrics = evaluate(model, training.text_of(data.of("test")), options)
    metrics["valid_loss_nats"] = evaluate(model, training.text_of(data.of("valid")), options)["loss_nats"]
    return training.finish(options, model, data, trained, metrics)


if __name__ == "__main__":
    main()
