# SPDX-License-Identifier: Apache-2.0
"""Small problems gain nothing from threads, which may have to wait for each other where cores are busy."""

import os
import sys

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def own_functions():
    """Gives transformers' models their own functions back after a test that registers Headgate's."""
    yield
    if "headgate.torch.transformers" in sys.modules:
        sys.modules["headgate.torch.transformers"].unregister()
