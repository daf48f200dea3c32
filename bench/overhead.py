#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The time of calls that compute next to nothing: what a call costs before and after its arithmetic. JAX has larger
calls too.

Prints a table of microseconds a call: Headgate and, in turns, scaled_dot_product_attention of PyTorch times a sigmoid. The
peer of JAX's rows is its own dot_product_attention. Each entry is the median and the best of all rounds. The C library is
called through ctypes with all its arguments ready; the row `ctypes` is what a call through ctypes takes by itself. Needs
PYTHONPATH=build/python.
"""

import argparse
import ctypes
import statistics
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch.nn import functional

import headgate
from headgate import jax as headgate_jax
from headgate import torch as headgate_torch

SECONDS_A_RUN = 2e-3  # duration of the calls that are timed together
SIZE = 8  # queries, keys and features of the smallest problem


def tensors(*shape, count=4, requires_grad=False):
    return [torch.randn(shape, requires_grad=requires_grad) for _ in range(count)]


def peer(q, k, v, gate):
    return functional.scaled_dot_product_attention(q, k, v) * torch.sigmoid(gate)


def with_backward(forward, inputs, dy):
    def call():
        for tensor in inputs:
            tensor.grad = None
        forward(*inputs).backward(dy)

    return call


def without_grad(function, *inputs):
    def call():
        with torch.no_grad():
            return function(*inputs)

    return call


def torch_cases():
    """Yields (name, Headgate's call, PyTorch's call or None)."""
    smallest, learned = tensors(1, 1, SIZE, SIZE), tensors(1, 1, SIZE, SIZE, requires_grad=True)
    dy = torch.ones(1, 1, SIZE, SIZE)
    ours = headgate_torch.gated_attention
    yield "forward", lambda: ours(*smallest), lambda: peer(*smallest)
    yield "forward, recorded", lambda: ours(*learned), lambda: peer(*learned)
    yield "forward, under no_grad", without_grad(ours, *learned), without_grad(peer, *learned)
    yield "forward and backward", with_backward(ours, learned, dy), with_backward(peer, learned, dy)
    for keys in (64, 256):
        q, gate = tensors(1, 8, 1, 64, count=2)
        k, v = tensors(1, 8, keys, 64, count=2)
        token = (q, k, v, gate)
        yield f"one token on {keys} keys", lambda t=token: ours(*t), lambda t=token: peer(*t)


def linear_cases():
    q, k, v = tensors(1, 1, SIZE, SIZE, count=3)
    decay, beta = -torch.rand(1, 1, SIZE, 1), torch.rand(1, 1, SIZE, 1)
    yield "`linear_attention`", lambda: headgate_torch.linear_attention(q, k, v, decay, beta), None
    learned = [tensor.clone().requires_grad_() for tensor in (q, k, v, decay, beta)]
    backward = with_backward(headgate_torch.linear_attention, learned, torch.ones_like(v))
    yield "`linear_attention` and backward", backward, None


def array_cases():
    smallest = tensors(1, 1, SIZE, SIZE)
    arrays = [tensor.numpy() for tensor in smallest]
    out = np.empty_like(arrays[0])
    yield "`headgate.attention`, NumPy", lambda: headgate.attention(*arrays), None
    yield "`headgate.attention`, NumPy, `out`", lambda: headgate.attention(*arrays, out=out), None
    yield "`headgate.attention`, tensors", lambda: headgate.attention(*smallest), None


def jax_cases():
    """Yields (name, Headgate's call, JAX's call) of compiled functions."""

    def ours(q, k, v, gate):
        return headgate_jax.gated_attention(q, k, v, gate, layout="bthd", causality="causal")

    def theirs(q, k, v, gate):
        return jax.nn.dot_product_attention(q, k, v, is_causal=True) * jax.nn.sigmoid(gate)

    def compiled(function, arrays):
        run = jax.jit(function)
        return lambda: jax.block_until_ready(run(*arrays))

    def gradients(function):
        return jax.grad(lambda *arrays: function(*arrays).sum(), (0, 1, 2, 3))

    for name, heads, tokens, dim in (("smallest", 1, SIZE, SIZE), ("8 heads, 512 tokens", 8, 512, 64)):
        arrays = [jnp.asarray(np.random.default_rng(i).normal(size=(1, tokens, heads, dim)), "f4") for i in range(4)]
        yield f"JAX, {name}", compiled(ours, arrays), compiled(theirs, arrays)
        yield f"JAX, {name}, gradients", compiled(gradients(ours), arrays), compiled(gradients(theirs), arrays)


class CTensor(ctypes.Structure):
    """The struct headgate_tensor of headgate/types.h."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("shape", ctypes.c_int64 * 4),
        ("strides", ctypes.c_int64 * 4),
        ("dtype", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
    ]


def c_cases(library):
    c = ctypes.CDLL(str(library))
    arrays = [np.ones((1, 1, SIZE, SIZE), np.float32) for _ in range(5)]
    strides = (SIZE * SIZE, SIZE * SIZE, SIZE, 1)

    def view(array):
        return CTensor(array.ctypes.data, (ctypes.c_int64 * 4)(*array.shape), (ctypes.c_int64 * 4)(*strides), 1, 0)

    def struct(count, given):
        """Returns a struct with its size and `count` tensors, of which the first are `given`."""

        class Struct(ctypes.Structure):
            _fields_ = [("struct_size", ctypes.c_size_t), ("tensors", CTensor * count)]

        return ctypes.byref(Struct(ctypes.sizeof(Struct), (CTensor * count)(*map(view, given))))

    outputs, inputs = struct(4, arrays[:1]), struct(15, arrays[1:])
    function, version = c.headgate_attention_forward, c.headgate_version
    if function(outputs, inputs, None) != 0:
        c.headgate_last_error.restype = ctypes.c_char_p
        raise RuntimeError(c.headgate_last_error().decode())
    yield "C", lambda: function(outputs, inputs, None), None
    yield "ctypes", lambda: version(), None


def calls_a_run(call):
    """Warms up, and returns the number of calls that take SECONDS_A_RUN."""
    for _ in range(50):
        call()
    start = time.perf_counter()
    for _ in range(20):
        call()
    return max(1, int(SECONDS_A_RUN * 20 / (time.perf_counter() - start)))


def microseconds(call, count):
    start = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - start) / count * 1e6


def measure(calls, rounds):
    """Returns the microseconds of each call in every round. The order is reversed in every other round."""
    counts = [calls_a_run(call) for call in calls]
    times = [[] for _ in calls]
    order = list(range(len(calls)))
    for _ in range(rounds):
        for i in order:
            times[i].append(microseconds(calls[i], counts[i]))
        order.reverse()
    return times


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=25, help="default: %(default)s")
    parser.add_argument("--filter", default="", help="only cases whose names contain this")
    parser.add_argument("--library", type=Path, default="build/src/library/libheadgate.so", help="default: %(default)s")
    arguments = parser.parse_args()
    cases = [*torch_cases(), *linear_cases(), *array_cases(), *c_cases(arguments.library), *jax_cases()]
    print("| | Headgate, µs: median, best | PyTorch or JAX, µs | Headgate's median / theirs, and of the best |")
    print("|---|---|---|---|")
    for name, ours, theirs in cases:
        if arguments.filter not in name:
            continue
        times = measure([call for call in (ours, theirs) if call is not None], arguments.rounds)
        figures = [(statistics.median(t), min(t)) for t in times]
        cells = [f"{median:.1f}, {best:.1f}" for median, best in figures]
        if theirs is not None:
            cells.append(", ".join(f"{a / b:.2f}" for a, b in zip(*figures, strict=True)))
        print(f"| {name} | " + " | ".join([*cells, "", ""][:3]) + " |", flush=True)


if __name__ == "__main__":
    main()
