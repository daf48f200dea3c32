# SPDX-License-Identifier: Apache-2.0
"""Functions on the ranks of a torch.distributed process group: processes of this machine, joined by gloo."""

import multiprocessing
import os
import tempfile
import traceback
from datetime import timedelta

SECONDS = 150  # for a group of processes, from its start
# Modules that the functions and the first call of an operation import. They are imported once, and not on every rank.
IMPORTED = [
    "pytest",
    "headgate.torch",
    "torch._dynamo",
    "torch.distributed.fsdp",
    "torch.distributed.tensor.debug",
    "torch.distributed.tensor.parallel",
    "transformers.models.llama.modeling_llama",
]


def _work(function, arguments, rank, ranks, meeting, answer):
    import torch
    import torch.distributed as dist

    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    try:
        dist.init_process_group(
            "gloo", init_method=f"file://{meeting}", rank=rank, world_size=ranks, timeout=timedelta(seconds=SECONDS / 2)
        )
        answer.send((function(*arguments), None))
        dist.destroy_process_group()
    except BaseException:
        answer.send((None, traceback.format_exc()))


def run(ranks, function, *arguments):
    """Returns what function(*arguments), of an importable module, returns on each rank. Fails with the traceback of the
    first rank that raised, or after SECONDS; leaves no process behind.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(IMPORTED)
    with tempfile.TemporaryDirectory() as directory:
        pipes = [context.Pipe(duplex=False) for _ in range(ranks)]
        workers = [
            context.Process(
                target=_work,
                daemon=True,
                args=(function, arguments, rank, ranks, os.path.join(directory, "meeting"), answer),
            )
            for rank, (_, answer) in enumerate(pipes)
        ]
        try:
            for worker, (_, answer) in zip(workers, pipes):
                worker.start()
                answer.close()  # a process that dies closes the last copy
            found = [_answer(rank, given) for rank, (given, _) in enumerate(pipes)]
            for worker in workers:
                worker.join(SECONDS)
            assert [worker.exitcode for worker in workers] == [0] * ranks
            return found
        finally:
            for worker in workers:
                if worker.is_alive():
                    worker.kill()
                    worker.join()


def _answer(rank, given):
    assert given.poll(SECONDS), f"rank {rank} has not ended after {SECONDS} seconds"
    try:
        value, error = given.recv()
    except EOFError:
        raise AssertionError(f"rank {rank} died") from None
    assert error is None, f"rank {rank}: {error}"
    return value
