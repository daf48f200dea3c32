#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A small transformer is trained on texts of 256 bytes and reads longer ones. What happens beyond 256?

    examples/python/length.py --gate none
    examples/python/length.py --gate headwise

The text is Debian's list of packages, a line each, "name: description", in the alphabet's order; the network predicts
the next byte and knows positions by RoPE alone. The same bytes are read in windows of 256, 512, … bytes, each behind a
token that begins it. For each length this prints the loss of all bytes, that of the bytes at positions that were never
trained, and how much attention goes to the first token. Attention to it is a sink where the token has nothing to say;
a gate is said to make it needless, and to help with longer texts than those that were trained.
"""

import torch
from torch import nn

import training


class Model(nn.Module):
    def __init__(self, options):
        super().__init__()
        self.embedding = nn.Embedding(257, options.dim)
        blocks = (training.Block(options.dim, options.heads, options.gate) for _ in range(options.layers))
        self.blocks = nn.ModuleList(blocks)
        self.head = nn.Sequential(nn.RMSNorm(options.dim), nn.Linear(options.dim, 256))

    def forward(self, tokens, looks=None):
        """Returns logits (B,T,256) of the bytes after tokens (B,T). Appends the attention statistics of each layer to
        the list `looks`, if given."""
        x = self.embedding(tokens)
        for block in self.blocks:
            if looks is not None:
                looks.append(block.looks(x))
            x = block(x)
        return self.head(x)


@torch.no_grad()
def evaluate(model, text, length, options):
    """Returns losses in nats and attention statistics, for windows of `length` bytes. `most_first_weight` is the
    largest mean weight of the first token among all layers and heads."""
    windows = training.all_windows(text, length, options.eval_bytes)
    looks, losses = [], []
    for part in windows.split(max(1, 8192 // length)):
        losses.append(training.next_token_loss(model(part[:, :-1], looks), part, "none").view(len(part), -1))
    losses = torch.cat(losses)
    layers = len(model.blocks)
    joined = [{name: torch.cat([part[name] for part in looks[n::layers]]) for name in looks[0]} for n in range(layers)]
    beyond = losses[:, options.length :]
    return {
        "loss_nats": losses.mean().item(),
        "beyond_loss_nats": beyond.mean().item() if beyond.numel() else None,
        "most_first_weight": max(layer["first"].mean((0, 2)).max().item() for layer in joined),
        **training.mean_looks(joined),
    }


def more_options(parser):
    parser.add_argument("--layers", type=int, default=3, help="default %(default)s")
    parser.add_argument("--length", type=int, default=256, help="bytes of a window in training (default %(default)s)")
    parser.add_argument("--longest", type=int, default=4096, help="bytes of the longest window (default %(default)s)")
    parser.add_argument("--eval-bytes", type=int, default=32768, help="default %(default)s")


def main(arguments=None):
    options = training.parse(__doc__, arguments, more_options, steps=500, batch=8, dim=64, heads=4, lr=4e-3)
    data = training.read_packages(options)
    text = training.text_of(data.of("train"))
    model = Model(options)

    def loss_of_batch(generator):
        tokens = training.some_windows(text, options.length, options.batch, generator)
        return training.next_token_loss(model(tokens[:, :-1]), tokens)

    trained = training.train(model, loss_of_batch, options)
    valid = evaluate(model, training.text_of(data.of("valid")), options.length, options)
    text, length, at = training.text_of(data.of("test")), options.length, {}
    print(f"{'length':>8} {'loss':>8} {'beyond':>8} {'first':>8} {'entropy':>8}")
    while length <= options.longest:
        found = at[str(length)] = evaluate(model, text, length, options)
        beyond = "" if found["beyond_loss_nats"] is None else f"{found['beyond_loss_nats']:.4f}"
        looks = f"{found['first_weight']:8.4f} {found['attention_entropy']:8.4f}"
        print(f"{length:8} {found['loss_nats']:8.4f} {beyond:>8} {looks}")
        length *= 2
    metrics = {**at[str(options.length)], "valid_loss_nats": valid["loss_nats"], "at": at}
    return training.finish(options, model, data, trained, metrics)


if __name__ == "__main__":
    main()
