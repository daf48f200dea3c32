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


@pytest.fixture
def loaded(monkeypatch, tmp_path):
    """Returns a function that loads the checkpoint of a run, or a model's folder, with its own code if it has some."""
    import transformers

    monkeypatch.setattr(transformers.dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))

    def load(folder):
        if (folder / "checkpoint").exists():
            folder = folder / "checkpoint"
        model, found = transformers.AutoModelForCausalLM.from_pretrained(
            folder, trust_remote_code=True, output_loading_info=True, attn_implementation="eager"
        )
        assert not found["missing_keys"] and not found["unexpected_keys"]
        return model.eval()

    return load
