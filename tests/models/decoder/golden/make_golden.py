#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the losses of ten AdamW steps and the first step's gradients of tiny decoders, as PyTorch finds them in f64.

    make_golden.py [FOLDER]     default: the folder of this script; needs torch and numpy

The models are those of tests/models/decoder/tiny.hpp: parameters and tokens come from the same SplitMix64 draws. NAME.npy holds
ten losses, then the gradients in the order of the parameter table. models_golden_test compares.
"""

import sys
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

VOCAB, DIM, LAYERS, HEADS, KV_HEADS, HEAD_DIM, FFN = 11, 8, 2, 4, 2, 6, 10
BATCH, SEQ, EPS, ROPE_BASE = 2, 7, 1e-6, 10000.0
STEPS, LR, BETAS, ADAM_EPS, WEIGHT_DECAY = 10, 1e-2, (0.9, 0.95), 1e-8, 0.1
PARAMETER_SEED, TOKEN_SEED = 17, 5
MASK = (1 << 64) - 1

# name: site, grain, function, operation, source, sinks, control
VARIANTS = {
    "none": (None, None, None, None, None, None, None),
    "g1-headwise": ("g1", "headwise", "sigmoid", "mul", "input", None, None),
    "g1-elementwise": ("g1", "elementwise", "sigmoid", "mul", "input", None, None),
    "g1-head_shared": ("g1", "head_shared", "sigmoid", "mul", "input", None, None),
    "g1-elementwise-silu-add": ("g1", "elementwise", "silu", "add", "input", None, None),
    "g1-elementwise-parameter": ("g1", "elementwise", "sigmoid", "mul", "parameter", None, None),
    "g2-elementwise-ns_sigmoid": ("g2", "elementwise", "ns_sigmoid", "mul", "input", None, None),
    "g5-elementwise": ("g5", "elementwise", "sigmoid", "mul", "input", None, None),
    "head_rmsnorm-learned_sinks": (None, None, None, None, None, "learned", "head_rmsnorm"),
}

FUNCTIONS = {
    "sigmoid": torch.sigmoid,
    "ns_sigmoid": lambda z: 0.5 + 0.5 * torch.sigmoid(z),
    "silu": F.silu,
}


class Draws:
    """Generates SplitMix64 numbers."""

    def __init__(self, seed):
        self.state = seed

    def bits(self):
        self.state = (self.state + 0x9E3779B97F4A7C15) & MASK
        x = self.state
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
        return x ^ (x >> 31)

    def symmetric(self):
        bits = self.bits()
        return (bits - (1 << 64) if bits >> 63 else bits) * 2.0**-63


def shapes(variant):
    """Returns (name, shape) of every parameter, in the order of the flat buffer."""
    site, grain, _, _, source, sinks, control = variant
    heads = {"g1": HEADS, "g4": HEADS, "g2": KV_HEADS, "g3": KV_HEADS, "g5": 1}.get(site, 0)
    features = 1 if grain == "headwise" else DIM if site == "g5" else HEAD_DIM
    yield "embed", (VOCAB, DIM)
    for layer in range(LAYERS):
        at = f"{layer}."
        yield at + "input_norm", (DIM,)
        yield at + "q", (HEADS * HEAD_DIM, DIM)
        if site and source == "input":
            yield at + "gate_proj", (heads * features, DIM)
        yield at + "k", (KV_HEADS * HEAD_DIM, DIM)
        yield at + "v", (KV_HEADS * HEAD_DIM, DIM)
        yield at + "q_norm", (HEAD_DIM,)
        yield at + "k_norm", (HEAD_DIM,)
        if site and source == "parameter":
            yield at + "gate", (heads, features)
        if sinks == "learned":
            yield at + "sinks", (HEADS,)
        if control == "head_rmsnorm":
            yield at + "head_norm", (HEAD_DIM,)
        yield at + "o", (DIM, HEADS * HEAD_DIM)
        yield at + "middle_norm", (DIM,)
        yield at + "mlp_gate", (FFN, DIM)
        yield at + "mlp_up", (FFN, DIM)
        yield at + "mlp_down", (DIM, FFN)
    yield "norm", (DIM,)


def make_parameters(variant):
    draws = Draws(PARAMETER_SEED)
    parameters = {}
    for name, shape in shapes(variant):
        values = [0.8 * draws.symmetric() for _ in range(int(np.prod(shape)))]
        tensor = torch.tensor(values, dtype=torch.float64).reshape(shape)
        parameters[name] = (tensor + 1.0 if name.endswith("norm") else tensor).requires_grad_()
    return parameters


def make_batch():
    draws = Draws(TOKEN_SEED)
    tokens, targets = [], []
    for n in range(BATCH * SEQ):
        tokens.append(draws.bits() % VOCAB)
        targets.append(draws.bits() % VOCAB if n % SEQ + 2 < SEQ else -1)
    return torch.tensor(tokens).reshape(BATCH, SEQ), torch.tensor(targets)


def rotate(x):
    """Applies RoPE, pairs (i, i + half), to (B,H,T,D)."""
    half = HEAD_DIM // 2
    angles = torch.arange(SEQ, dtype=torch.float64)[:, None] * ROPE_BASE ** (
        -torch.arange(half, dtype=torch.float64) / half
    )
    cos, sin = torch.cat([angles.cos()] * 2, -1), torch.cat([angles.sin()] * 2, -1)
    return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin


def split(x, heads):
    return x.reshape(BATCH, SEQ, heads, -1).transpose(1, 2)


def attention(p, at, h, variant):
    site, grain, function, operation, source, sinks, control = variant

    def gate(place, y, heads):  # y (B,heads,T,features)
        if site != place:
            return y
        z = split(h @ p[at + "gate_proj"].T, heads) if source == "input" else p[at + "gate"][None, :, None, :]
        g = FUNCTIONS[function](z)
        if grain == "head_shared":
            g = g.mean(1, keepdim=True)
        return y * g if operation == "mul" else y + g

    q = gate("g4", split(h @ p[at + "q"].T, HEADS), HEADS)
    k = gate("g3", split(h @ p[at + "k"].T, KV_HEADS), KV_HEADS)
    v = gate("g2", split(h @ p[at + "v"].T, KV_HEADS), KV_HEADS)
    q = rotate(F.rms_norm(q, (HEAD_DIM,), p[at + "q_norm"], EPS))
    k = rotate(F.rms_norm(k, (HEAD_DIM,), p[at + "k_norm"], EPS))
    k, v = (x.repeat_interleave(HEADS // KV_HEADS, 1) for x in (k, v))
    if sinks is None:
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    else:
        scores = q @ k.transpose(2, 3) / HEAD_DIM**0.5
        scores = scores.masked_fill(torch.ones(SEQ, SEQ).triu(1).bool(), float("-inf"))
        sink = p[at + "sinks"][None, :, None, None].expand(BATCH, HEADS, SEQ, 1)
        y = torch.softmax(torch.cat([scores, sink], -1), -1)[..., :-1] @ v
    if control == "head_rmsnorm":
        y = F.rms_norm(y, (HEAD_DIM,), p[at + "head_norm"], EPS)
    y = gate("g1", y, HEADS).transpose(1, 2).reshape(BATCH, SEQ, -1)
    return gate("g5", split(y @ p[at + "o"].T, 1), 1).transpose(1, 2).reshape(BATCH, SEQ, DIM)


def loss_of(p, tokens, targets, variant):
    x = p["embed"][tokens]
    for layer in range(LAYERS):
        at = f"{layer}."
        x = x + attention(p, at, F.rms_norm(x, (DIM,), p[at + "input_norm"], EPS), variant)
        h = F.rms_norm(x, (DIM,), p[at + "middle_norm"], EPS)
        x = x + (F.silu(h @ p[at + "mlp_gate"].T) * (h @ p[at + "mlp_up"].T)) @ p[at + "mlp_down"].T
    logits = F.rms_norm(x, (DIM,), p["norm"], EPS) @ p["embed"].T
    return F.cross_entropy(logits.reshape(-1, VOCAB), targets, ignore_index=-1)


def decays(name):
    last = name.rpartition(".")[2]
    return last in {"embed", "q", "k", "v", "o", "gate_proj", "mlp_gate", "mlp_up", "mlp_down"}


def golden(variant):
    p = make_parameters(variant)
    tokens, targets = make_batch()
    groups = [
        {"params": [t for name, t in p.items() if decays(name)], "weight_decay": WEIGHT_DECAY},
        {"params": [t for name, t in p.items() if not decays(name)], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=LR, betas=BETAS, eps=ADAM_EPS)
    losses, gradients = [], None
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(p, tokens, targets, variant)
        loss.backward()
        losses.append(loss.item())
        if gradients is None:
            gradients = torch.cat([t.grad.flatten() for t in p.values()]).numpy().copy()
        optimizer.step()
    return np.concatenate([losses, gradients])


def main():
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent
    for name, variant in VARIANTS.items():
        values = golden(variant)
        np.save(folder / f"{name}.npy", values)
        print(f"{name}: loss {values[0]:.6f} to {values[STEPS - 1]:.6f}, {values.size - STEPS} gradients")


if __name__ == "__main__":
    main()
