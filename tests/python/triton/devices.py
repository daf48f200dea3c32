# SPDX-License-Identifier: Apache-2.0
"""Fake CUDA tensors, and a driver that names a GPU on which nothing can run."""

from contextlib import contextmanager
from unittest import mock

import torch
import triton
from torch._subclasses.fake_tensor import FakeTensorMode
from triton.backends.compiler import GPUTarget


class _Driver:
    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self):
        return 0

    def get_current_stream(self, device=None):
        return 0

    def get_active_torch_device(self):
        return torch.device("cuda")


@contextmanager
def fake_driver():
    with mock.patch.object(triton.runtime.driver, "_active", _Driver()):
        yield


@contextmanager
def fake_gpu():
    """Tensors made within are fake."""
    with fake_driver(), FakeTensorMode(allow_non_fake_inputs=True):
        yield


def made(*shape, dtype=torch.bfloat16, device="cuda"):
    return torch.empty(shape, dtype=dtype, device=device)
