# SPDX-License-Identifier: Apache-2.0
"""GatedAttention in PyTorch's wrappers for several processes: DDP, FSDP, and DDP over sequences that are sharded. After
some steps of training the parameters are those of one process with the whole batch."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import processes
from headgate.torch import AttentionCache, GatedAttention, shard_sequence

B, T, C = 4, 16, 24
STEPS = 4


class Decoder(nn.Module):
    """Has two layers with residuals; `ring` as in GatedAttention."""

    def __init__(self, ring=None, **keys):
        super().__init__()
        self.layers = nn.ModuleList(
            GatedAttention(C, 4, 2, 8, initializer_range=0.2, gate_init_std=0.2, **keys) for _ in range(2)
        )
        self.ring = ring

    def forward(self, h):
        for layer in self.layers:
            h = h + layer(h, ring=self.ring)
        return h


def data():
    torch.manual_seed(7)
    return [(torch.randn(B, T, C), torch.randn(B, T, C)) for _ in range(STEPS)]


def train(model, batches):
    """Trains on the mean loss over tokens, so that the mean over equal parts of a batch is that of the batch."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    for h, target in batches:
        optimizer.zero_grad()
        (model(h) - target).square().mean().backward()
        optimizer.step()


def made(**keys):
    torch.manual_seed(3)
    return Decoder(**keys)


def assert_trained_alike(model, keys):
    """Compares the parameters of `model` with those of one process. Training has moved them by far more than the
    tolerance.
    """
    whole, first = made(**keys), dict(made(**keys).named_parameters())
    train(whole, data())
    found = dict(model.named_parameters())
    for name, expected in whole.named_parameters():
        ours = found[name].full_tensor() if isinstance(found[name], DTensor) else found[name]
        torch.testing.assert_close(ours, expected, rtol=1e-5, atol=2e-6)
        assert (expected - first[name]).abs().max() > 1e-3


def own_sequences():
    rank, count = dist.get_rank(), B // dist.get_world_size()
    return [tuple(x[rank * count : (rank + 1) * count] for x in batch) for batch in data()]


def with_ddp(keys):
    model = DistributedDataParallel(made(**keys))
    train(model, own_sequences())
    assert_trained_alike(model.module, keys)


def with_fsdp(keys):
    model = made(**keys)
    for layer in model.layers:
        fully_shard(layer)
    fully_shard(model)
    assert isinstance(model.layers[0].q_proj.weight, DTensor)
    assert model.layers[0].q_proj.weight.to_local().shape[0] == 32 // dist.get_world_size()
    train(model, own_sequences())
    assert_trained_alike(model, keys)


def with_ddp_and_a_ring(keys):
    """Gives every process all sequences, and a part of each: DDP averages over the parts."""
    model = DistributedDataParallel(made(**keys, ring=dist.group.WORLD))
    train(model, [tuple(shard_sequence(x, 1) for x in batch) for batch in data()])
    assert_trained_alike(model.module, keys)
    h = torch.randn(1, 4, C)
    for change in (
        {"cache": AttentionCache()},
        {"mask": torch.ones(1, 1, 4, 4) > 0},
        {"cu_seqlens": torch.tensor([0, 4])},
    ):
        with pytest.raises(ValueError, match=f"{next(iter(change))} cannot be given with a ring"):
            model.module.layers[0](h, ring=dist.group.WORLD, **change)


KEYS = {"gate_grain": "headwise", "attention_sinks": "learned_sinks", "attention_window": 9}


@pytest.mark.parametrize("wrapped", [with_ddp, with_fsdp, with_ddp_and_a_ring])
@pytest.mark.parametrize("keys", [{}, KEYS], ids=["elementwise", "headwise"])
def test_trains_as_one_process(wrapped, keys):
    processes.run(2, wrapped, keys)
