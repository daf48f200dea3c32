#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Small models that mix tokens by attention, by Gated DeltaNet, or by three layers of that for each one of attention.

    examples/python/mixers.py --task recall --mixer attention --gate none
    examples/python/mixers.py --task recall --mixer attention --gate elementwise
    examples/python/mixers.py --task recall --mixer delta
    examples/python/mixers.py --task text --mixer hybrid --gate elementwise

All have four layers and as many parameters. Attention knows positions by RoPE; Gated DeltaNet by its convolution and
its decay.

recall: a sequence holds P pairs of a key and a value, then each key again in another order, behind which the model has
to say its value. Models are trained on 4 to 32 pairs, and tested on 4 to 64. Attention can keep all pairs; a delta rule
keeps them in a state of fixed size.

text: Debian's list of packages, a line each, "name: description"; the model predicts the next byte. It is trained on
windows of 256 bytes, and reads the same bytes in windows of 256 and four times as long.
"""

import torch
from torch import nn
from torch.nn import functional as F

import training
from headgate.torch import GatedDeltaNet

LAYERS = 4
KEYS = 64  # number of key tokens in recall; there are as many other tokens for values
TRAINED_PAIRS, TESTED_PAIRS = (4, 8, 16, 32), (4, 8, 16, 32, 64)
FIGURES = {
    "mean_first_share": "first_share",
    "mean_reach": "reach",
    "mean_decay": "decay",
    "mean_beta": "beta",
    "effective_rank": "effective_rank",
}
"""Maps fields of headgate.LinearAttentionStatistics to their names in results."""


class DeltaBlock(nn.Module):
    """Computes x + GatedDeltaNet(norm(x)), then x + mlp(norm(x)), with as many parameters as training.Block."""

    def __init__(self, dim, heads, mlp=2):
        super().__init__()
        self.mixer = GatedDeltaNet(dim, heads, linear_key_head_dim=dim // heads, initializer_range=0.5 * dim**-0.5)
        hidden = mlp * dim + (4 * dim * dim - training.count(self.mixer)) // (2 * dim)
        self.mlp = nn.Sequential(nn.Linear(dim, hidden, bias=False), nn.GELU(), nn.Linear(hidden, dim, bias=False))
        self.norms = nn.ModuleList(nn.RMSNorm(dim) for _ in range(2))

    def forward(self, x):
        x = x + self.mixer(self.norms[0](x))
        return x + self.mlp(self.norms[1](x))

    def figures(self, x):
        """Returns means over the heads and sequences of x (B,T,C), by their names in results."""
        found = self.mixer.statistics(self.norms[0](x), list(FIGURES))
        figures = {name: getattr(found, key).mean().item() for key, name in FIGURES.items()}
        # "closed" is the fraction of outputs whose gate silu(z) is within 0.1 of 0.
        z = self.mixer.in_proj_z(self.norms[0](x))
        return {**figures, "closed": (F.silu(z).abs() < 0.1).float().mean().item()}


class Model(nn.Module):
    def __init__(self, options, tokens):
        super().__init__()
        self.embedding = nn.Embedding(tokens, options.dim)
        kinds = {"attention": "aaaa", "delta": "dddd", "hybrid": "ddda"}[options.mixer]
        self.blocks = nn.ModuleList(
            training.Block(options.dim, options.heads, options.gate)
            if kind == "a"
            else DeltaBlock(options.dim, options.heads)
            for kind in kinds
        )
        self.head = nn.Sequential(nn.RMSNorm(options.dim), nn.Linear(options.dim, tokens))

    def forward(self, tokens):
        """Returns logits (B,T,V) of the tokens after `tokens` (B,T)."""
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)

    @torch.no_grad()
    def figures(self, tokens):
        """Returns means over the layers: statistics of gates and weights for layers with a delta rule, and attention
        statistics for layers with attention."""
        x, found = self.embedding(tokens), []
        for block in self.blocks:
            if isinstance(block, DeltaBlock):
                found.append({f"delta_{name}": value for name, value in block.figures(x).items()})
            else:
                looks = {training.LOOKS[name]: value.mean().item() for name, value in block.looks(x).items()}
                found.append({f"attention_{name.removeprefix('attention_')}": value for name, value in looks.items()})
            x = block(x)
        names = dict.fromkeys(name for layer in found for name in layer)
        values = {name: [layer[name] for layer in found if name in layer] for name in names}
        return {name: sum(list_) / len(list_) for name, list_ in values.items()}


def recall_batch(pairs, count, generator):
    """Returns tokens (count, 4·pairs): k v k v …, then the same pairs in another order."""
    keys = torch.stack([torch.randperm(KEYS, generator=generator)[:pairs] for _ in range(count)])
    values = KEYS + torch.randint(KEYS, (count, pairs), generator=generator)
    again = torch.stack([torch.randperm(pairs, generator=generator) for _ in range(count)])
    both = torch.stack((keys, values), -1)
    return torch.cat((both, both.gather(1, again[..., None].expand(-1, -1, 2))), 1).flatten(1)


def recall_logits(model, tokens):
    """Returns the logits and the correct values after the keys that are repeated."""
    at = torch.arange(tokens.shape[1] // 2, tokens.shape[1], 2)
    return model(tokens)[:, at].flatten(0, 1), tokens[:, at + 1].flatten()


def train_recall(model, options):
    def loss_of_batch(generator):
        pairs = TRAINED_PAIRS[torch.randint(len(TRAINED_PAIRS), (), generator=generator)]
        tokens = recall_batch(pairs, options.batch * 256 // (4 * pairs), generator)
        return F.cross_entropy(*recall_logits(model, tokens))

    return training.train(model, loss_of_batch, options)


@torch.no_grad()
def test_recall(model, options):
    at = {}
    for pairs in TESTED_PAIRS:
        generator = torch.Generator().manual_seed(1000 + pairs)
        logits, right = recall_logits(model, recall_batch(pairs, options.tests // pairs, generator))
        at[str(pairs)] = (logits.argmax(-1) == right).float().mean().item()
        print(f"{pairs:4} pairs: {at[str(pairs)]:.4f} right")
    generator = torch.Generator().manual_seed(1)
    return {"accuracy": at, **model.figures(recall_batch(TRAINED_PAIRS[-1], 16, generator))}


@torch.no_grad()
def test_text(model, text, options):
    at = {}
    for length in (options.length, 4 * options.length):
        losses = []
        windows = training.all_windows(text, length, options.eval_bytes)
        for part in windows.split(max(1, 8192 // length)):
            losses.append(training.next_token_loss(model(part[:, :-1]), part, "none").view(len(part), -1))
        losses = torch.cat(losses)
        beyond = losses[:, options.length :]
        at[str(length)] = {
            "loss_nats": losses.mean().item(),
            "beyond_loss_nats": beyond.mean().item() if beyond.numel() else None,
            **model.figures(windows[:16, :-1]),
        }
        print(f"windows of {length} bytes: {at[str(length)]['loss_nats']:.4f} nats a byte")
    return {"at": at, **at[str(options.length)]}


def more_options(parser):
    parser.add_argument("--task", choices=("recall", "text"), default="recall", help="default recall")
    parser.add_argument("--mixer", choices=("attention", "delta", "hybrid"), default="hybrid", help="default hybrid")
    parser.add_argument("--length", type=int, default=256, help="bytes of a window in training (default %(default)s)")
    parser.add_argument("--eval-bytes", type=int, default=32768, help="default %(default)s")
    parser.add_argument("--tests", type=int, default=8192, help="keys of recall that are tested (default %(default)s)")


def main(arguments=None):
    options = training.parse(__doc__, arguments, more_options, steps=600, batch=8, dim=64, heads=4, lr=4e-3)
    data = training.read_packages(options)
    if options.task == "recall":
        model = Model(options, 2 * KEYS)
        trained = train_recall(model, options)
        return training.finish(options, model, data, trained, test_recall(model, options))
    text = training.text_of(data.of("train"))
    model = Model(options, 257)

    def loss_of_batch(generator):
        tokens = training.some_windows(text, options.length, options.batch, generator)
        return training.next_token_loss(model(tokens[:, :-1]), tokens)

    trained = training.train(model, loss_of_batch, options)
    metrics = test_text(model, training.text_of(data.of("test")), options)
    return training.finish(options, model, data, trained, metrics)


if __name__ == "__main__":
    main()
