# SPDX-License-Identifier: Apache-2.0
"""Kernels with a planted fault, which a comparison must see."""

import importlib.util
import inspect


def with_fault(module, old, new, folder):
    """A file of kernels with the first occurrence of `old` replaced, as a module of the same package."""
    source = inspect.getsource(module)
    assert old in source
    path = folder / f"faulty_{module.__name__.rpartition('.')[2]}.py"
    path.write_text(source.replace(old, new, 1))
    spec = importlib.util.spec_from_file_location(module.__name__, path)
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def seen(wrong):
    """Whether the comparison `wrong()` finds something, or fails itself."""
    try:
        return bool(wrong())
    except AssertionError:
        return True
