#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times a training step of a small random Llama that headgate.torch.watch() watches, in turns with the same unwatched.

Prints the median seconds of each side, and the share of the side's step that watching adds: the median over the rounds
of 1 - unwatched/side. Needs PyTorch, transformers and the Python package of headgate (build/python). OMP_NUM_THREADS
sets the threads. With one thread, times are the processor's, so that other programs disturb them little; with more they
are elapsed.
"""

import argparse
import statistics
import sys

try:
    import torch
    import transformers
except ImportError as error:
    sys.exit(f"watch.py: {error.name} is not installed")

import headgate.torch
import headgate.torch.transformers
from headgate.torch.watch.figures import BY_KEY
from turns import seconds_in_turns, timed

SIDES = {
    "unwatched": None,
    "off": (),
    "default": (None,),
    "entropy": (("first_token_attention", "sink_rate", "attention_entropy", "massive_activation"),),
    "int8": ([key for key in BY_KEY if "int8" in key],),
    "all": ("all",),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--hidden", type=int, default=576)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--vocab", type=int, default=8192)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--attention", default="sdpa", help="eager, sdpa or headgate")
    parser.add_argument("--sides", nargs="*", default=list(SIDES), choices=list(SIDES), help="beside unwatched")
    arguments = parser.parse_args()
    sides = dict.fromkeys(["unwatched", *arguments.sides])  # unwatched is first, since shares are relative to it
    headgate.torch.transformers.register()
    torch.manual_seed(1)
    heads = arguments.hidden // 64
    config = transformers.LlamaConfig(
        vocab_size=arguments.vocab,
        hidden_size=arguments.hidden,
        intermediate_size=arguments.hidden * 8 // 3,
        num_hidden_layers=arguments.layers,
        num_attention_heads=heads,
        num_key_value_heads=heads // 3 if heads % 3 == 0 else heads,
        head_dim=64,
        max_position_embeddings=2 * arguments.tokens,
    )
    model = transformers.LlamaForCausalLM._from_config(config, attn_implementation=arguments.attention)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    ids = torch.randint(arguments.vocab, (1, arguments.tokens))

    def step():
        optimizer.zero_grad(set_to_none=True)
        model(ids, labels=ids, use_cache=False).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    def side(name):
        if SIDES[name] is None:
            return step
        seen = headgate.torch.watch(model, *SIDES[name])
        if name == "off":
            seen.start()
            seen.stop()
            return step

        def watched():
            with seen:
                step()

        return watched

    runs = [timed(side(name), torch.get_num_threads()) for name in sides]
    seconds = seconds_in_turns(runs, arguments.rounds)
    base = seconds[0]
    print(f"{arguments.attention}, {arguments.tokens} tokens, {arguments.layers} layers of {arguments.hidden}, medians")
    for name, times in zip(sides, seconds):
        added = statistics.median(1 - b / t for t, b in zip(times, base))
        print(f"{name:10s} {statistics.median(times):8.3f} s {100 * added:6.1f} % of the step")


if __name__ == "__main__":
    main()
