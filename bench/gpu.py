# SPDX-License-Identifier: Apache-2.0
"""Attention on a GPU: tests the kernels of headgate.torch.gpu there, and times them beside PyTorch's.

    python bench/gpu.py check                     # every case of tests/python/triton, twice: exact, and bitwise equal
    python bench/gpu.py time                      # ms beside scaled_dot_product_attention and FlexAttention, each gated after
    TRITON_INTERPRET=1 python bench/gpu.py check --device cpu --only packed        # without a GPU

Needs PyTorch and Triton, but not the compiled parts of Headgate. Without those, it loads the kernels from this tree.
"""

import argparse
import importlib.util
import os
import sys
import types
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "python" / "triton"))
if os.environ.get("TRITON_INTERPRET") == "1":
    import interpreter  # noqa: F401

# isort: split

import torch
import torch.nn.functional as F
import triton

if importlib.util.find_spec("headgate") is None:
    for name in ("headgate", "headgate.torch"):
        package = types.ModuleType(name)
        package.__path__ = [str(ROOT / "python" / name.replace(".", "/"))]
        sys.modules[name] = package

import cases
import convolution_cases
import linear_cases
import norm_cases
from headgate.torch.gpu import launch

KINDS = (cases, linear_cases, convolution_cases, norm_cases)


def check(device, only):
    """Prints a line for each case. Returns the number of wrong cases."""
    wrong = 0
    chosen = [(kind, case) for kind in KINDS for case in kind.CASES if only in case.name]
    for kind, case in chosen:
        try:
            problem = kind.problem_of(case, device, device == "cpu")
            first, second = (kind.computed(case, problem) for _ in range(2))
            lines = kind.errors_of(case, first, kind.expected_of(case, problem))
            lines += [
                f"{name} differs in a second call" for name in first if not torch.equal(first[name], second[name])
            ]
        except Exception as error:
            lines = [f"{type(error).__name__}: {str(error).splitlines()[0]}"]
        wrong += bool(lines)
        print(f"{'wrong' if lines else 'ok':5s} {case.name}", *lines, sep="\n        ", flush=True)
    print(f"{wrong} wrong")
    return wrong


class _Attention(torch.autograd.Function):
    """Calls the kernels directly, since headgate's operations need its compiled parts."""

    @staticmethod
    def forward(ctx, q, k, v, gate, options):
        inputs = launch.Inputs(q, k, v, gate)
        y, lse, _ = launch.forward(inputs, options)
        ctx.save_for_backward(q, k, v, gate, y, lse)
        ctx.options = options
        return y

    @staticmethod
    def backward(ctx, dy):
        *inputs, y, lse = ctx.saved_tensors
        found = launch.backward(dy, None, y, lse, None, launch.Inputs(*inputs), ctx.options)
        return found.q, found.k, found.v, found.gate, None


def _flex():
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    compiled, masks = torch.compile(flex_attention), {}

    def attend(q, k, v, causal):
        key = q.shape[2], causal
        if causal and key not in masks:
            masks[key] = create_block_mask(lambda b, h, i, j: i >= j, None, None, q.shape[2], q.shape[2])
        return compiled(q, k, v, block_mask=masks.get(key), enable_gqa=True)

    return attend


def contenders():
    """Returns the functions to time, by name. Each takes (q, k, v, gate, causal)."""
    flex = _flex()

    def ours(q, k, v, gate, causal):
        return _Attention.apply(q, k, v, gate, launch.Options(causality="causal" if causal else "none"))

    def sdpa(q, k, v, gate, causal):
        y = F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)
        return y * torch.sigmoid(gate)

    return {
        "headgate": ours,
        "sdpa × sigmoid": sdpa,
        "sdpa × sigmoid, compiled": torch.compile(sdpa),
        "flex × sigmoid": lambda q, k, v, gate, causal: flex(q, k, v, causal) * torch.sigmoid(gate),
    }


def time(device):
    """Prints the median ms of the forward pass, alone and with the backward pass. The inputs are bf16, with 16 query
    heads and 4 key/value heads."""
    name = torch.cuda.get_device_name() if device == "cuda" else device
    print(f"{name}, PyTorch {torch.__version__}, Triton {triton.__version__}; bf16, 8192 tokens, ms: forward, both")
    functions = contenders()
    for D in (64, 128, 256):
        for T in (1024, 4096):
            for causal in (True, False):
                shapes = ((16, T, D), (4, T, D), (4, T, D), (16, T, D))
                leaves = [
                    torch.randn(8192 // T, *shape, device=device, dtype=torch.bfloat16, requires_grad=True)
                    for shape in shapes
                ]
                dy = torch.randn_like(leaves[0])
                print(f"D {D}, T {T}, {'causal' if causal else 'all'}")
                for word, function in functions.items():

                    def forward(function=function, leaves=leaves, causal=causal):
                        return function(*leaves, causal)

                    def both(forward=forward, leaves=leaves, dy=dy):
                        torch.autograd.grad(forward(), leaves, dy)

                    try:
                        times = [triton.testing.do_bench(f, return_mode="median") for f in (forward, both)]
                        print(f"    {word:26s} {times[0]:8.3f} {times[1]:8.3f}", flush=True)
                    except Exception as error:
                        print(f"    {word:26s} {type(error).__name__}: {str(error).splitlines()[0]}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("check", "time"))
    parser.add_argument("--device", default="cuda", help="cuda, which AMD's are too; cpu with TRITON_INTERPRET=1")
    parser.add_argument("--only", default="", help="cases with this word in their name")
    options = parser.parse_args()
    if options.what == "check":
        sys.exit(check(options.device, options.only) > 0)
    time(options.device)


if __name__ == "__main__":
    main()
