# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own samples of scaled_dot_product_attention, of the database that its test-suite walks, and ours beside them.

python tests/python/torch/sdpa_samples.py [DTYPE …] runs all of them, and says how many passed.
"""

import importlib.util
import itertools
import sys
import types
import unittest

import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

NAME = "nn.functional.scaled_dot_product_attention"
TOLERANCES = {torch.float64: 1e-10, torch.float32: 2e-5, torch.bfloat16: 6e-2, torch.float16: 6e-3}
DTYPES = tuple(TOLERANCES)


def opinfo_samples(dtype):
    """(tensors, options) of each sample of PyTorch's OpInfo, whose tensors require gradients; without dropout."""
    if (
        "expecttest" not in sys.modules and importlib.util.find_spec("expecttest") is None
    ):  # PyTorch's module imports it, for tests that are not here
        sys.modules["expecttest"] = types.SimpleNamespace(TestCase=unittest.TestCase)
    from torch.testing._internal.common_methods_invocations import op_db

    (info,) = (op for op in op_db if op.name == NAME)
    for sample in info.sample_inputs("cpu", dtype, requires_grad=True):
        if not sample.kwargs.get("dropout_p"):
            yield (sample.input, *sample.args), dict(sample.kwargs)


def grid_samples(dtype, every=1):
    """The sizes, masks and options that PyTorch's test_transformers.py walks on CPUs, every so-manieth of them."""
    walk = itertools.product(
        (1, 3),  # batch
        (1, 7, 33, 130),  # queries
        (1, 7, 64, 131),  # keys
        ((1, 1), (4, 4), (8, 2)),  # heads of query and of key
        (8, 16, 63),  # features
        ("none", "causal", "bool", "float", "float row", "bool heads"),
        (None, 0.25),  # scale
        (True, False),  # (B,L,H,E) in memory
    )
    for number, (B, L, S, (H, Hkv), E, mask, scale, transposed) in enumerate(walk):
        if number % every == 0:
            yield _sample(dtype, number, (B, H, L, E), (B, Hkv, S, E), mask, scale, transposed)


def _sample(dtype, number, q_shape, kv_shape, mask, scale, transposed):
    generator = torch.Generator().manual_seed(number)

    def make(shape):
        if transposed:
            B, H, n, E = shape
            return torch.randn(B, n, H, E, generator=generator).to(dtype).transpose(1, 2).requires_grad_()
        return torch.randn(shape, generator=generator).to(dtype).requires_grad_()

    (B, H, L, _), S = q_shape, kv_shape[2]
    options = {"scale": scale, "enable_gqa": q_shape[1] != kv_shape[1], "is_causal": mask == "causal"}
    if mask.startswith("bool"):
        shape = (B, H, L, S) if mask == "bool heads" else (L, S)
        options["attn_mask"] = torch.rand(shape, generator=generator) > 0.5  # some rows see nothing
    elif mask.startswith("float"):
        shape = (B, 1, 1, S) if mask == "float row" else (L, S)
        options["attn_mask"] = torch.randn(shape, generator=generator).to(dtype).requires_grad_()
    return (make(q_shape), make(kv_shape), make(kv_shape)), options


def _with_gradients(function, tensors, options):
    y = function(*tensors, **options)
    leaves = [*tensors, *(x for x in options.values() if isinstance(x, torch.Tensor) and x.requires_grad)]
    return [y.detach(), *torch.autograd.grad((y.float() if y.dtype != torch.float64 else y).square().sum(), leaves)]


def _wide(x):
    return x.detach().double().requires_grad_(x.requires_grad) if x.is_floating_point() else x


def differences(function, tensors, options):
    """Compares a sample's result and gradients with PyTorch's formula in f64, as shares of the largest element of all:
    gradients of q, k and the mask cancel, to 0 where there is one key, and v's does not. Raises AssertionError."""
    dtype = tensors[0].dtype
    ours = _with_gradients(function, tensors, options)
    wide = {name: _wide(x) if isinstance(x, torch.Tensor) else x for name, x in options.items()}
    with sdpa_kernel(SDPBackend.MATH):
        expected = _with_gradients(F.scaled_dot_product_attention, [_wide(x) for x in tensors], wide)
    assert all(mine.dtype == dtype and mine.shape == other.shape for mine, other in zip(ours, expected, strict=True))
    largest = max(1.0, *(x.abs().max().item() for x in expected))
    errors = [(mine.double() - other).abs().max() for mine, other in zip(ours, expected)]
    worst = torch.stack(errors).max().item() / largest  # Python's max() would drop NaN
    assert worst <= TOLERANCES[dtype], f"the largest error is {worst:.1e} of {largest:.1e}"


def check_gradients(function, tensors, options, fast_mode=False):
    """gradcheck of a sample in f64."""
    leaves = [x.detach().requires_grad_() for x in tensors]
    mask = options.get("attn_mask")
    if mask is not None and mask.requires_grad:
        rest = {name: x for name, x in options.items() if name != "attn_mask"}
        return torch.autograd.gradcheck(
            lambda q, k, v, m: function(q, k, v, m, **rest), (*leaves, mask), fast_mode=fast_mode
        )
    return torch.autograd.gradcheck(lambda q, k, v: function(q, k, v, **options), leaves, fast_mode=fast_mode)


def main(dtypes):
    from headgate.torch import scaled_dot_product_attention

    torch.manual_seed(0)
    failed = 0
    for dtype in dtypes or DTYPES:
        for kind, samples in (("OpInfo", opinfo_samples(dtype)), ("grid", grid_samples(dtype))):
            count = 0
            for tensors, options in samples:
                count += 1
                try:
                    differences(scaled_dot_product_attention, tensors, options)
                    if dtype == torch.float64 and kind == "OpInfo":
                        check_gradients(scaled_dot_product_attention, tensors, options)
                except AssertionError as error:
                    failed += 1
                    print(f"FAILED {dtype} {[tuple(x.shape) for x in tensors]} {options.keys()}: {error}")
            print(f"{kind}, {dtype}: {count} samples", flush=True)
    print(f"{failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main([getattr(torch, name) for name in sys.argv[1:]]))
