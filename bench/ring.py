#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Strong scaling of headgate.torch.ring_attention: causal gated attention over one sequence, by one process with N threads
and by N processes of one thread each that share the sequence, joined by gloo on this machine.

Needs PyTorch and the package (PYTHONPATH=build/python). Each of the N processes is kept to a CPU of its own. The ways take
turns; a ratio is the median over the rounds of the seconds of one process over those of the way.
"""

import argparse
import multiprocessing
import os
import statistics
import tempfile
import time

from turns import seconds_in_turns


def work(arguments, sharding, rank, ranks, meeting, pipe):
    """Receives from `pipe` whether to run the backward pass, too. Runs attention, and sends its seconds. Repeats this
    until it receives None."""
    import torch
    import torch.distributed as dist

    from headgate.torch import gated_attention, ring_attention, shard_sequence

    T, Hq, Hkv, D = arguments.tokens, arguments.heads, arguments.kv_heads, arguments.head_dim
    dtype = getattr(torch, arguments.dtype)
    torch.manual_seed(0)
    tensors = [torch.randn(1, H, T, X).to(dtype) for H, X in ((Hq, D), (Hkv, D), (Hkv, D), (Hq, 1), (Hq, D))]
    options = {"causality": "causal", "threads": arguments.count // ranks}
    attend = gated_attention
    if ranks > 1:
        cpus = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cpus[rank % len(cpus)]})
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=ranks)
        tensors = [shard_sequence(x, 2, sharding=sharding).clone() for x in tensors]
        attend, options["sharding"] = ring_attention, sharding
    *leaves, dy = tensors
    while (backward := pipe.recv()) is not None:
        for leaf in leaves:
            leaf.requires_grad_(backward).grad = None
        if ranks > 1:
            dist.barrier()
        start = time.perf_counter()
        y = attend(*leaves, **options)
        if backward:
            y.backward(dy)
        pipe.send(time.perf_counter() - start)


class Way:
    """A group of processes that compute a call together."""

    def __init__(self, arguments, sharding, ranks, directory):
        context = multiprocessing.get_context("spawn")
        self.pipes, self.processes = [], []
        for rank in range(ranks):
            pipe, theirs = context.Pipe()
            meeting = os.path.join(directory, sharding)
            given = (arguments, sharding, rank, ranks, meeting, theirs)
            self.processes.append(context.Process(target=work, args=given, daemon=True))
            self.processes[-1].start()
            self.pipes.append(pipe)

    def run(self, backward):
        """Runs a call. Returns the seconds of the slowest process."""
        for pipe in self.pipes:
            pipe.send(backward)
        return max(pipe.recv() for pipe in self.pipes) if backward is not None else 0.0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=os.cpu_count(), help="N (default: %(default)s)")
    for name, default in (("tokens", 16384), ("heads", 4), ("kv-heads", 2), ("head-dim", 64), ("rounds", 5)):
        parser.add_argument(f"--{name}", type=int, default=default, help="default: %(default)s")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16", "float16"))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        ways = {f"1 process, {arguments.count} threads": Way(arguments, "whole", 1, directory)}
        for sharding in ("balanced", "contiguous"):
            ways[f"{arguments.count} processes, {sharding}"] = Way(arguments, sharding, arguments.count, directory)
        found = []
        for backward in (False, True):
            found.append(
                seconds_in_turns(
                    [lambda way=way, backward=backward: way.run(backward) for way in ways.values()], arguments.rounds
                )
            )
        for way in ways.values():
            way.run(None)
            for process in way.processes:
                process.join()
    print("| | forward, ms | times 1 process | with backward, ms | times 1 process |\n|---|---|---|---|---|")
    for n, name in enumerate(ways):
        cells = []
        for seconds in found:
            ratio = statistics.median(one / own for one, own in zip(seconds[0], seconds[n], strict=True))
            cells += [f"{statistics.median(seconds[n]) * 1e3:.0f}", f"{ratio:.2f}"]
        print(f"| {name} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
