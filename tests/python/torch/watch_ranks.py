# SPDX-License-Identifier: Apache-2.0
"""What the ranks of a test of watch() compute."""

import torch

import headgate.torch
import models


def batches():
    torch.manual_seed(7)
    tokens = torch.randint(2, models.VOCAB, (3, 20))
    return tokens[:1, :8], tokens[1:]  # of different sizes: a mean of means would be wrong


def pooled(kind):
    """The figures of both ranks together, after a step of DDP or FSDP."""
    import torch.distributed as dist

    model = models.model("llama", "sdpa")
    watched = model
    if kind == "ddp":
        watched = torch.nn.parallel.DistributedDataParallel(model)
    elif kind == "fsdp":
        from torch.distributed.fsdp import fully_shard

        mesh = dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),))
        for layer in model.model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    ids = batches()[dist.get_rank()]
    with headgate.torch.watch(model, "all") as seen:
        watched(ids, labels=ids).loss.backward()
    return seen.pool_ranks().scalars()
