# SPDX-License-Identifier: Apache-2.0
"""Two host devices, and float64, before JAX starts."""

import os
import sys
from pathlib import Path

os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=2 --xla_backend_optimization_level=0"
)
os.environ["JAX_PLATFORMS"] = "cpu"

import pytest

jax = pytest.importorskip("jax")
jax.config.update("jax_enable_x64", True)
sys.path.insert(0, str(Path(__file__).parent))
