#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A small random Qwen3.5 of transformers, with its own functions and with headgate's: a training step, a prompt, a token.

Needs PyTorch, transformers and the Python package of headgate (build/python). All sides have the same weights and the
same tokens, in one process, in turns; none is timed before its loss, gradient and logits are those of eager attention.
OMP_NUM_THREADS sets the threads of both. With one thread, times are the processor's, so that other programs disturb them
little; with more they are elapsed.
"""

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path

try:
    import torch
    import transformers
except ImportError as error:
    sys.exit(f"transformers_models.py: {error.name} is not installed")

import headgate.torch.transformers
from turns import seconds_in_turns

# Side: whether headgate's functions are registered, and the attention.
SIDES = {
    "eager": (False, "eager"),
    "sdpa": (False, "sdpa"),
    "functions": (True, "sdpa"),
    "headgate": (True, "headgate"),
}
CLIP = 1.0
TOLERANCES = {"float32": 1e-4, "bfloat16": 0.1}


def config_of(arguments):
    """Qwen3.5-0.8B with its widths scaled to hidden_size, fewer layers and a small vocabulary."""
    hidden = arguments.hidden
    return transformers.Qwen3_5TextConfig(
        vocab_size=arguments.vocab,
        hidden_size=hidden,
        intermediate_size=hidden * 7 // 2,
        num_hidden_layers=arguments.layers,
        num_attention_heads=hidden // 128,
        num_key_value_heads=max(1, hidden // 512),
        head_dim=256,
        linear_num_key_heads=hidden // 64,
        linear_num_value_heads=hidden // 64,
        linear_key_head_dim=128,
        linear_value_head_dim=128,
        pad_token_id=None,
        bos_token_id=None,
        eos_token_id=None,
    )


class Side:
    """A model whose calls all begin with its own registration."""

    def __init__(self, name, arguments):
        self.registered, attention = SIDES[name]
        torch.manual_seed(1)
        kind = transformers.Qwen3_5ForCausalLM
        self.model = kind._from_config(config_of(arguments), attn_implementation=attention)
        self.model.to(getattr(torch, arguments.dtype))
        self.ids = torch.randint(arguments.vocab, (arguments.batch, arguments.tokens))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5, fused=True)
        self.cache = None

    def _switch(self):
        if self.registered:
            headgate.torch.transformers.register()
        else:
            headgate.torch.transformers.unregister()

    def gradient(self):
        """The loss, after it has left its gradient."""
        self._switch()
        self.model.train()
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.model(self.ids, labels=self.ids, use_cache=False).loss
        loss.backward()
        return loss.detach()

    def step(self):
        self.gradient()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), CLIP, foreach=True)
        self.optimizer.step()

    @torch.no_grad()
    def prompt(self):
        """The logits behind the last token; fills the cache."""
        self._switch()
        self.model.eval()
        found = self.model(self.ids, use_cache=True, logits_to_keep=1)
        self.cache = found.past_key_values
        return found.logits

    @torch.no_grad()
    def token(self):
        self._switch()
        return self.model(self.ids[:, :1], past_key_values=self.cache, use_cache=True).logits

    def results(self):
        loss = self.gradient()
        gradient = torch.cat([p.grad.flatten() for p in self.model.parameters() if p.grad is not None])
        return loss, gradient, self.prompt(), self.token()


def check(sides, tolerance):
    expected = sides["eager"].results()
    for name, side in sides.items():
        for what, ours, theirs in zip(("loss", "gradient", "prompt", "token"), side.results(), expected, strict=True):
            error = ((ours - theirs).float().norm() / theirs.float().norm()).item()
            if not error <= tolerance:
                sys.exit(f"transformers_models.py: {name}: the {what} differs from eager's by {error:.2g}")


def timed(call):
    """A call that returns the seconds it took."""
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter

    def run():
        start = clock()
        call()
        return clock() - start

    return run


def measure(sides, arguments):
    rows = []
    for case, call in (("train", "step"), ("prompt", "prompt"), ("token", "token")):
        runs = [timed(getattr(side, call)) for side in sides.values()]
        times = seconds_in_turns(runs, arguments.rounds)
        row = {"case": case}
        for name, seconds in zip(sides, times, strict=True):
            ratios = {
                f"{other}/{name}": statistics.median(a / b for a, b in zip(theirs, seconds, strict=True))
                for other, theirs in zip(sides, times, strict=True)
                if other != name
            }
            row[name] = {"seconds": seconds, "ratios": ratios}
        rows.append(row)
    return rows


def print_table(rows):
    print("| case |" + "".join(f" {name}, ms |" for name in SIDES) + " eager / headgate | sdpa / headgate |")
    print("|---|" + "---|" * (len(SIDES) + 2))
    for row in rows:
        cells = [f"{1e3 * statistics.median(row[name]['seconds']):.1f}" for name in SIDES]
        cells += [f"{row['headgate']['ratios'][f'{other}/headgate']:.2f}" for other in ("eager", "sdpa")]
        print(f"| {row['case']} | " + " | ".join(cells) + " |")


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hidden", type=int, default=512, help="a multiple of 128 (default %(default)s)")
    parser.add_argument("--layers", type=int, default=8, help="three of four are linear (default %(default)s)")
    parser.add_argument("--vocab", type=int, default=8192, help="tokens of the vocabulary (default %(default)s)")
    parser.add_argument("--batch", type=int, default=1, help="sequences (default %(default)s)")
    parser.add_argument("--tokens", type=int, default=1024, help="tokens of each (default %(default)s)")
    parser.add_argument("--dtype", choices=TOLERANCES, default="float32")
    parser.add_argument("--rounds", type=int, default=7, help="timed calls of each (default %(default)s)")
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    arguments = parser.parse_args()
    if arguments.hidden <= 0 or arguments.hidden % 128:
        parser.error(f"--hidden: {arguments.hidden} is not a multiple of 128")
    return arguments


def main():
    arguments = parse_arguments()
    threads = torch.get_num_threads()
    if threads != headgate.default_threads():
        sys.exit(
            f"transformers_models.py: PyTorch has {threads} threads, headgate {headgate.default_threads()}: "
            "set OMP_NUM_THREADS"
        )
    transformers.logging.set_verbosity_error()
    headgate.torch.transformers.register(functions=False)
    sides = {name: Side(name, arguments) for name in SIDES}
    check(sides, TOLERANCES[arguments.dtype])
    parameters = sum(p.numel() for p in sides["eager"].model.parameters())
    print(
        f"PyTorch {torch.__version__}, transformers {transformers.__version__}, {threads} threads, "
        f"{arguments.dtype}; {parameters / 1e6:.1f}M parameters, {arguments.batch} x {arguments.tokens} tokens; "
        f"load {os.getloadavg()[0]:.1f}\n"
    )
    rows = measure(sides, arguments)
    print_table(rows)
    if arguments.json:
        facts = {name: value for name, value in vars(arguments).items() if name != "json"}
        facts |= {
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "parameters": parameters,
            "threads": threads,
        }
        arguments.json.write_text(json.dumps({**facts, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
