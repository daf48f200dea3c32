#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A small random model of transformers, with its own functions and with headgate's: a training step, a prompt, a token.

Needs PyTorch, transformers and the Python package of headgate (build/python). All sides have the same weights and the
same tokens, and run in one process, in turns. Before a side is timed, its loss, gradient and logits must agree with
those of eager attention. OMP_NUM_THREADS sets the threads of PyTorch and headgate. With one thread, times are CPU time,
which other programs disturb little. With more threads, they are elapsed time.
"""

import argparse
import json
import os
import statistics
import sys
from pathlib import Path

try:
    import torch
    import transformers
except ImportError as error:
    sys.exit(f"transformers_models.py: {error.name} is not installed")

import headgate.torch.transformers
from turns import seconds_in_turns, timed

# Maps each side to (whether headgate's functions are registered, attention implementation).
SIDES = {
    "eager": (False, "eager"),
    "sdpa": (False, "sdpa"),
    "functions": (True, "sdpa"),
    "headgate": (True, "headgate"),
}
CLIP = 1.0
TOLERANCES = {"float32": 1e-4, "bfloat16": 0.1}


def common_sizes(arguments):
    layers = arguments.layers
    return {
        "vocab_size": arguments.vocab,
        "hidden_size": arguments.hidden,
        "num_hidden_layers": layers,
        "layer_types": ["full_attention" if i % 4 == 3 else "linear_attention" for i in range(layers)],
        **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id")),
    }


def qwen(arguments):
    """Returns Qwen3.5-0.8B with widths scaled to `hidden`, fewer layers and a small vocabulary."""
    hidden = arguments.hidden
    return transformers.Qwen3_5ForCausalLM, transformers.Qwen3_5TextConfig(
        **common_sizes(arguments),
        intermediate_size=hidden * 7 // 2,
        num_attention_heads=hidden // 128,
        num_key_value_heads=max(1, hidden // 512),
        head_dim=256,
        linear_num_key_heads=hidden // 64,
        linear_num_value_heads=hidden // 64,
        linear_key_head_dim=128,
        linear_value_head_dim=128,
    )


def kimi(arguments):
    """Returns Kimi-Linear with widths scaled to `hidden`, fewer layers, a small vocabulary and no experts."""
    hidden = arguments.hidden
    return transformers.KimiLinearForCausalLM, transformers.KimiLinearConfig(
        **common_sizes(arguments),
        intermediate_size=hidden * 4,
        mlp_layer_types=["dense"] * arguments.layers,
        num_attention_heads=hidden // 64,
        num_key_value_heads=hidden // 64,
        kv_lora_rank=hidden // 4,
        linear_num_heads=hidden // 64,
        linear_head_dim=128,
    )


FAMILIES = {"qwen3.5": qwen, "kimi-linear": kimi}


class Side:
    """A model. Each of its calls first registers or unregisters headgate's functions."""

    def __init__(self, name, arguments):
        self.registered, attention = SIDES[name]
        torch.manual_seed(1)
        kind, config = FAMILIES[arguments.family](arguments)
        self.model = kind._from_config(config, attn_implementation=attention)
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
        """Runs the forward and backward pass, which sets the gradients. Returns the loss."""
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
        """Reads the prompt into the cache. Returns the logits after its last token."""
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


def measure(sides, arguments):
    rows = []
    for case, call in (("train", "step"), ("prompt", "prompt"), ("token", "token")):
        runs = [timed(getattr(side, call), torch.get_num_threads()) for side in sides.values()]
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


def print_table(rows, names):
    others = [name for name in names if name != "headgate"]
    print(
        "| case |" + "".join(f" {name}, ms |" for name in names) + "".join(f" {name} / headgate |" for name in others)
    )
    print("|---|" + "---|" * (len(names) + len(others)))
    for row in rows:
        cells = [f"{1e3 * statistics.median(row[name]['seconds']):.1f}" for name in names]
        cells += [f"{row['headgate']['ratios'][f'{name}/headgate']:.2f}" for name in others]
        print(f"| {row['case']} | " + " | ".join(cells) + " |")


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--family", choices=FAMILIES, default="qwen3.5")
    parser.add_argument("--sides", default=",".join(SIDES), help="eager and headgate among them (default %(default)s)")
    parser.add_argument("--hidden", type=int, default=512, help="a multiple of 128 (default %(default)s)")
    parser.add_argument("--layers", type=int, default=8, help="three of four are linear (default %(default)s)")
    parser.add_argument("--vocab", type=int, default=8192, help="tokens of the vocabulary (default %(default)s)")
    parser.add_argument("--batch", type=int, default=1, help="sequences (default %(default)s)")
    parser.add_argument("--tokens", type=int, default=1024, help="tokens of each (default %(default)s)")
    parser.add_argument("--dtype", choices=TOLERANCES, default="float32")
    parser.add_argument("--rounds", type=int, default=7, help="timed calls of each (default %(default)s)")
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    arguments = parser.parse_args()
    arguments.sides = arguments.sides.split(",")
    if not {"eager", "headgate"} <= set(arguments.sides) <= set(SIDES):
        parser.error(f"--sides: are eager, headgate and any of {', '.join(SIDES)}, got {','.join(arguments.sides)}")
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
    sides = {name: Side(name, arguments) for name in arguments.sides}
    check(sides, TOLERANCES[arguments.dtype])
    parameters = sum(p.numel() for p in sides["eager"].model.parameters())
    print(
        f"PyTorch {torch.__version__}, transformers {transformers.__version__}, {threads} threads, "
        f"{arguments.dtype}; {arguments.family}, {parameters / 1e6:.1f}M parameters, {arguments.batch} x {arguments.tokens} tokens; "
        f"load {os.getloadavg()[0]:.1f}\n"
    )
    rows = measure(sides, arguments)
    print_table(rows, arguments.sides)
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
