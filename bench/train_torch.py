#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Training steps of headgate compared with PyTorch's: the same gated decoder, the same batch, the same threads.

Needs PyTorch (`pip install torch`) and a built `headgate`, whose `train/*` benchmarks give the models. A step consists
of the forward pass, the backward pass, clipping of the gradient's norm, and AdamW. Parameters are in f32. Steps run in
turns, PyTorch's in this process and headgate's in another. A ratio is the median over the rounds of PyTorch's seconds
divided by headgate's.

In the cases named …/bf16, headgate trains with `--precision bf16`, and PyTorch under torch.autocast in bfloat16. With
--autocast, PyTorch also does so in the other cases.

PyTorch uses its fast functions: scaled_dot_product_attention (its flash kernel) and fused AdamW. Like headgate, it
computes q, gate, k and v in one matrix product, and the two halves of SwiGLU in another. --compile adds the same model
through torch.compile, which needs a C++ compiler.
"""

import argparse
import json
import math
import re
import statistics
import subprocess
import sys
from pathlib import Path

try:
    import torch
    from torch import nn
    from torch.nn import functional
except ImportError as error:
    sys.exit(f"train_torch.py: PyTorch is not installed ({error})")

from turns import seconds_in_turns, timed

NORM_EPS = 1e-6
ROPE_BASE = 10000.0
INIT_STD = 0.02
CLIP = 1.0


class Headgate:
    """A process of `headgate bench --on-demand CASE`, which runs a step for every line that it reads."""

    def __init__(self, tool, case, threads):
        self.process = subprocess.Popen(
            [tool, "bench", "--on-demand", case, "--threads", str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.facts = json.loads(self._line())

    def _line(self):
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"train_torch.py: headgate ended with status {self.process.wait()}")
        return line

    def step(self):
        """Runs a step. Returns its seconds, as headgate measures them."""
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return float(self._line())

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def rotate(x, cos, sin):
    """Applies RoPE to x (B,H,T,D). Features i and i + D/2 are a pair."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


class Layer(nn.Module):
    def __init__(self, facts):
        super().__init__()
        dim, ffn = facts["dim"], facts["ffn"]
        self.heads, self.kv_heads, self.head_dim = facts["Hq"], facts["Hkv"], facts["D"]
        self.gated = facts["gate"] != "none"
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        self.widths = [q, q, kv, kv] if self.gated else [q, kv, kv]
        self.attention_norm = nn.RMSNorm(dim, eps=NORM_EPS)
        self.qzkv = nn.Linear(dim, sum(self.widths), bias=False)
        self.q_norm = nn.RMSNorm(self.head_dim, eps=NORM_EPS)
        self.k_norm = nn.RMSNorm(self.head_dim, eps=NORM_EPS)
        self.out = nn.Linear(q, dim, bias=False)
        self.mlp_norm = nn.RMSNorm(dim, eps=NORM_EPS)
        self.gate_up = nn.Linear(dim, 2 * ffn, bias=False)
        self.down = nn.Linear(ffn, dim, bias=False)

    def attention(self, h, cos, sin):
        B, T, _ = h.shape
        parts = [part.view(B, T, -1, self.head_dim) for part in self.qzkv(h).split(self.widths, dim=-1)]
        q, k, v = parts[0], parts[-2], parts[-1]
        q = rotate(self.q_norm(q).transpose(1, 2), cos, sin)  # (B,Hq,T,D)
        k = rotate(self.k_norm(k).transpose(1, 2), cos, sin)  # (B,Hkv,T,D)
        y = functional.scaled_dot_product_attention(
            q, k, v.transpose(1, 2), is_causal=True, enable_gqa=self.heads != self.kv_heads
        ).transpose(1, 2)
        if self.gated:
            y = y * torch.sigmoid(parts[1])
        return self.out(y.reshape(B, T, -1))

    def forward(self, x, cos, sin):
        x = x + self.attention(self.attention_norm(x), cos, sin)
        gate, up = self.gate_up(self.mlp_norm(x)).chunk(2, dim=-1)
        return x + self.down(functional.silu(gate) * up)


class Decoder(nn.Module):
    """A decoder that returns the mean loss of the next tokens, in nats."""

    def __init__(self, facts):
        super().__init__()
        self.embedding = nn.Embedding(facts["vocab"], facts["dim"])
        self.layers = nn.ModuleList(Layer(facts) for _ in range(facts["layers"]))
        self.norm = nn.RMSNorm(facts["dim"], eps=NORM_EPS)
        frequencies = ROPE_BASE ** (-torch.arange(0, facts["D"], 2, dtype=torch.float64) / facts["D"])
        angles = torch.outer(torch.arange(facts["T"], dtype=torch.float64), frequencies)  # (T,D/2)
        self.register_buffer("cos", angles.cos().float())
        self.register_buffer("sin", angles.sin().float())
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=INIT_STD)

    def forward(self, tokens, targets):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        logits = functional.linear(self.norm(x), self.embedding.weight)
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


class TorchTraining:
    def __init__(self, facts, compiled, autocast):
        torch.manual_seed(1)
        self.autocast = autocast
        self.model = Decoder(facts)
        self.loss = torch.compile(self.model) if compiled else self.model
        self.parameters = list(self.model.parameters())
        self.optimizer = torch.optim.AdamW(
            [
                {"params": [p for p in self.parameters if p.dim() == 2], "weight_decay": 0.1},
                {"params": [p for p in self.parameters if p.dim() != 2], "weight_decay": 0.0},
            ],
            lr=1e-3,
            betas=(0.9, 0.95),
            fused=True,
        )
        text = torch.randint(facts["vocab"], (facts["B"], facts["T"] + 1))
        self.tokens, self.targets = text[:, :-1].contiguous(), text[:, 1:].contiguous()
        self.check(facts)

    def check(self, facts):
        count = sum(p.numel() for p in self.parameters)
        if count != facts["parameters"]:
            sys.exit(f"train_torch.py: {facts['name']} has {facts['parameters']} parameters, PyTorch's model {count}")
        first, uniform = self.step(), math.log(facts["vocab"])
        if abs(first - uniform) > 0.1 * uniform:
            sys.exit(f"train_torch.py: PyTorch's first loss is {first:.3f}, far from {uniform:.3f} of a uniform guess")

    def step(self):
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=self.autocast):
            loss = self.loss(self.tokens, self.targets)
        loss.backward()
        nn.utils.clip_grad_norm_(self.parameters, CLIP, foreach=True)
        self.optimizer.step()
        return loss.item()


def ratio(theirs, ours):
    return statistics.median(a / b for a, b in zip(theirs, ours))


def measure(case, arguments):
    headgate = Headgate(arguments.headgate, case, arguments.threads)
    facts = headgate.facts
    autocast = arguments.autocast or facts["dtype"] == "bf16"
    peers = {"eager": TorchTraining(facts, False, autocast)}
    if arguments.compile:
        peers["compiled"] = TorchTraining(facts, True, autocast)
    runs = [headgate.step, *(timed(peer.step) for peer in peers.values())]
    ours, *theirs = seconds_in_turns(runs, arguments.rounds)
    headgate.close()
    row = dict(facts)
    rate = facts["tokens"] / statistics.median(ours)
    row["headgate"] = {"tokens_per_second": rate, "seconds": ours}
    for name, seconds in zip(peers, theirs):
        rate = facts["tokens"] / statistics.median(seconds)
        row[name] = {"tokens_per_second": rate, "seconds": seconds, "ratio": ratio(seconds, ours)}
    row["ratio"] = min(row[name]["ratio"] for name in peers)  # the ratio of the faster peer
    return row


def share_of_peak(row, name):
    return row["flops"] * row[name]["tokens_per_second"] / row["tokens"] / (row["fma_peak_gflops"] * 1e9)


def print_row(row, names):
    rates = "".join(
        f"{row[name]['tokens_per_second']:>12,.0f} {share_of_peak(row, name):>5.2f}" for name in ("headgate", *names)
    )
    ratios = "".join(f"{row[name]['ratio']:>12.2f}x" for name in names)
    print(f"{row['name']:<22}{row['parameters']:>12,}{row['tokens']:>8}{rates}{ratios}", flush=True)


def parse_arguments():
    root = Path(__file__).resolve().parent.parent
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--headgate", type=Path, default=root / "build" / "headgate", help="the tool")
    parser.add_argument("--filter", default="^train/", help="the cases whose names match this (default ^train/)")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=5, help="timed steps of each (default 5)")
    parser.add_argument("--compile", action="store_true", help="torch.compile beside eager PyTorch")
    parser.add_argument("--autocast", action="store_true", help="PyTorch in bfloat16 in all cases")
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    arguments = parser.parse_args()
    if not arguments.headgate.exists():
        parser.error(f"no {arguments.headgate}: build first, or give --headgate")
    return arguments


def cases_of(arguments):
    listed = subprocess.run([arguments.headgate, "bench", "--list"], check=True, capture_output=True, text=True).stdout
    cases = [name for name in listed.splitlines() if name.startswith("train/") and re.search(arguments.filter, name)]
    if not cases:
        sys.exit(f"train_torch.py: no training case matches {arguments.filter}")
    return cases


def main():
    arguments = parse_arguments()
    torch.set_num_threads(arguments.threads)
    names = ["eager", "compiled"] if arguments.compile else ["eager"]
    print(
        f"PyTorch {torch.__version__} ({torch.backends.cpu.get_cpu_capability()}), {arguments.threads} threads; "
        f"tokens a second, and the share of FMA peak\n"
    )
    columns = "".join(f"{name:>18}" for name in ("headgate", *names))
    print(f"{'case':<22}{'parameters':>12}{'tokens':>8}{columns}" + "".join(f"{'vs ' + name:>13}" for name in names))
    rows = []
    for case in cases_of(arguments):
        rows.append(measure(case, arguments))
        print_row(rows[-1], names)
    facts = rows[-1]
    print(f"\n{facts['cpu']}, headgate's vector target {facts['isa']}, FMA peak {facts['fma_peak_gflops']:.1f} GFLOP/s")
    if arguments.json:
        arguments.json.write_text(
            json.dumps({"torch": torch.__version__, "threads": arguments.threads, "rows": rows}, indent=2) + "\n"
        )


if __name__ == "__main__":
    main()
