# SPDX-License-Identifier: Apache-2.0
"""Code that the examples share: options, a transformer block of the same size with every gate, the training loop,
figures, and the result as JSON."""

import argparse
import json
import math
import platform
import statistics
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

import debian_packages
import headgate
from headgate.torch import GatedAttention

GATES = ("none", "headwise", "elementwise")
LOOKS = {
    "entropy": "attention_entropy",
    "row_max": "largest_weight",
    "first": "first_weight",
}  # fields of headgate.AttentionStatistics, with their names in results


def parse(doc, arguments=None, more=None, **defaults):
    """Parses the options that all examples have, with the example's defaults, and those that more(parser) adds."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gate", choices=GATES, default="none", help="of the attention (default none)")
    parser.add_argument("--seed", type=int, default=1)
    for name, kind in (("steps", int), ("batch", int), ("dim", int), ("heads", int), ("lr", float)):
        parser.add_argument(f"--{name}", type=kind, default=defaults[name], help="default %(default)s")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--packages", type=int, default=0, metavar="N", help="only about N of them (default: all)")
    parser.add_argument("--data", metavar="FILE", help="a list of packages (default: apt's of Debian 12)")
    parser.add_argument("--json", metavar="FILE", help="write the result there")
    if more:
        more(parser)
    options = parser.parse_args(arguments)
    for name in ("steps", "batch", "dim", "heads", "threads"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} is at least 1")
    if options.dim % (2 * options.heads) or not options.lr > 0 or options.packages < 0:
        parser.error("--dim is a multiple of twice --heads, --lr is above 0, --packages is not negative")
    torch.manual_seed(options.seed)
    torch.set_num_threads(options.threads)
    torch.use_deterministic_algorithms(True)
    return options


def read_packages(options):
    try:
        return debian_packages.read_list(options.data, options.packages)
    except debian_packages.DataError as error:
        sys.exit(f"{options_name()}: {error}")


def options_name():
    return sys.argv[0].rsplit("/", 1)[-1]


def count(module):
    return sum(parameter.numel() for parameter in module.parameters())


class Block(nn.Module):
    """Computes x + attention(norm(x)), then x + mlp(norm(x)), for x (B,T,C). The number of parameters is the same for
    every gate: the MLP is narrower by those of the gate. Without attention (gate "absent") it is wider instead."""

    def __init__(self, dim, heads, gate, mlp=2, causality="causal", **keys):
        super().__init__()
        site = {"gate_site": "g1", "gate_grain": gate} if gate in GATES[1:] else {"gate_site": "none"}
        attention = GatedAttention(dim, heads, **site, qk_norm="none", initializer_range=0.5 * dim**-0.5, **keys)
        self.attention = attention if gate != "absent" else None
        hidden = mlp * dim + (4 * dim * dim - (count(attention) if gate != "absent" else 0)) // (2 * dim)
        self.mlp = nn.Sequential(nn.Linear(dim, hidden, bias=False), nn.GELU(), nn.Linear(hidden, dim, bias=False))
        self.norms = nn.ModuleList(nn.RMSNorm(dim) for _ in range(2))
        self.causality = causality

    def forward(self, x, **rules):
        if self.attention is not None:
            x = x + self.attention(self.norms[0](x), causality=self.causality, **rules)
        return x + self.mlp(self.norms[1](x))

    def looks(self, x, **rules):
        """Returns statistics of the attention at x: figures (B,H,T) of headgate.AttentionStatistics, by name."""
        found = self.attention.statistics(self.norms[0](x), LOOKS, causality=self.causality, **rules)
        return {name: getattr(found, name) for name in LOOKS}


def train(model, batch_of, options, weight_decay=0.01):
    """Runs `options.steps` steps of AdamW on the loss that batch_of(generator) returns. Returns figures of the
    training."""
    optimizer = torch.optim.AdamW(
        model.parameters(), options.lr, weight_decay=weight_decay, betas=(0.9, 0.98), fused=True
    )
    warmup = max(1, options.steps // 20)
    generator = torch.Generator().manual_seed(options.seed)
    print(f"{options_name()}: gate {options.gate}, seed {options.seed}, {count(model)} parameters", flush=True)
    began, losses = time.monotonic(), []
    model.train()
    for step in range(1, options.steps + 1):
        decay = 0.5 + 0.5 * math.cos(math.pi * step / options.steps)
        for group in optimizer.param_groups:
            group["lr"] = options.lr * min(step / warmup, 1) * decay
        loss = batch_of(generator)
        if not math.isfinite(loss.item()):
            sys.exit(f"{options_name()}: step {step}: the loss is {loss.item()}")
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
        if step % max(1, options.steps // 20) == 0:
            print(f"step {step}/{options.steps}: loss {loss.item():.4f}", flush=True)
    model.eval()
    last = losses[-20:]
    return {"steps": len(losses), "seconds": time.monotonic() - began, "train_loss": sum(last) / len(last)}


def classification(logits, labels, bins=15):
    """Returns figures of predicted classes, from logits (N,K) and labels (N). Losses are in nats. `ece` is the expected
    calibration error, Σ n_b / N · |accuracy_b − confidence_b|. The bins b of the largest probability have equal width.
    `reliability` has (n_b, confidence_b, accuracy_b) of each bin."""
    log_p = logits.double().log_softmax(-1)
    p = log_p.exp()
    confidence, predicted = p.max(-1)
    right = (predicted == labels).double()
    at = (confidence * bins).long().clamp(max=bins - 1)
    inside = [at == b for b in range(bins)]
    table = [
        (n, *((x[i].mean().item() if n else 0.0) for x in (confidence, right))) for i in inside for n in [int(i.sum())]
    ]
    return {
        "loss_nats": F.nll_loss(log_p, labels).item(),
        "accuracy": right.mean().item(),
        "brier": (p - F.one_hot(labels, p.shape[-1])).square().sum(-1).mean().item(),
        "ece": sum(n * abs(conf - acc) for n, conf, acc in table) / len(labels),
        "confidence": confidence.mean().item(),
        "prediction_entropy": -(p * log_p).sum(-1).mean().item(),
        "reliability": table,
    }


BEGIN = 256  # the token before the first byte of a sequence; the others are bytes


def text_of(packages):
    """Returns the names and descriptions of packages, one per line, as bytes (N)."""
    text = "".join(f"{package.name}: {package.description}\n" for package in packages)
    return torch.tensor(list(text.encode()))


def some_windows(text, length, count, generator):
    """Returns tokens (count,1+length): BEGIN, then `length` bytes from a random place in the text."""
    starts = torch.randint(len(text) - length + 1, (count,), generator=generator)
    return F.pad(text[starts[:, None] + torch.arange(length)], (1, 0), value=BEGIN)


def all_windows(text, length, most):
    """Returns tokens (N,1+length): at most the first `most` bytes of the text, as windows that start with BEGIN."""
    count = min(len(text), most) // length
    if count == 0:
        sys.exit(f"{options_name()}: a text of {len(text)} bytes has no window of {length}; more packages have")
    return F.pad(text[: count * length].view(count, length), (1, 0), value=BEGIN)


def next_token_loss(logits, tokens, reduction="mean"):
    """Returns the loss in nats of logits (B,T,V), which are those at all tokens (B,1+T) except the last."""
    return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction=reduction)


def mean_looks(found):
    """Returns the means of figures over heads and tokens, for all layers together and for each one. `found` has
    {name: (B,H,T)} of each layer."""
    layers = [{LOOKS[name]: x.mean().item() for name, x in figures.items()} for figures in found]
    return {**{name: statistics.fmean(layer[name] for layer in layers) for name in layers[0]}, "layers": layers}


def finish(options, model, data, trained, metrics):
    """Prints the figures, and writes the result to the file of --json."""
    for name, value in metrics.items():
        if isinstance(value, float):
            print(f"{name:20} {value:.4f}")
    kept = {name: value for name, value in vars(options).items() if name not in ("json", "data")}
    result = {
        "program": options_name(),
        "options": kept,
        "seed": options.seed,
        "parameters": count(model),
        **trained,
        "metrics": metrics,
        "data": {**data.facts, "packages": len(data.packages)},
        "versions": {"headgate": headgate.__version__, "torch": torch.__version__, "python": platform.python_version()},
    }
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(result, file, indent=1)
            file.write("\n")
    return result
