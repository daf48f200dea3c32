# SPDX-License-Identifier: Apache-2.0
"""Runs PyTorch's FlexAttention, compiled together with the gate or separately."""

import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from .cases import Case, Refused, Way
from .torch_common import attention_way, tensors_of


class Flex:
    def __init__(self, threads: int):
        torch.set_num_threads(threads)
        self.version = f"{torch.__version__} ({torch.backends.cpu.get_cpu_capability()})"

    def ways(self, case: Case, inputs: dict) -> dict[str, Way]:
        if case.C or case.op == "statistics":
            raise Refused("for attention alone")
        torch._dynamo.reset()
        mask = None
        if case.causal:
            mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, case.T, case.S, device="cpu")

        def attention(q, k, v, z):
            return flex_attention(q, k, v, block_mask=mask, enable_gqa=case.Hq != case.Hkv) * torch.sigmoid(z)

        flex = torch.compile(
            lambda q, k, v: flex_attention(q, k, v, block_mask=mask, enable_gqa=case.Hq != case.Hkv), dynamic=False
        )
        gate = torch.compile(lambda y, z: y * torch.sigmoid(z), dynamic=False)
        tensors = tensors_of(case, inputs)
        return {
            "one graph": attention_way(case, tensors, torch.compile(attention, dynamic=False)),
            "gate apart": attention_way(case, tensors, lambda q, k, v, z: gate(flex(q, k, v), z)),
        }
