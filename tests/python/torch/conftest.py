# SPDX-License-Identifier: Apache-2.0
"""Small problems gain nothing from threads, which may have to wait for each other where cores are busy."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)
