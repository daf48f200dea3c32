#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Headgate compared with PyTorch: sigmoid(z) * scaled_dot_product_attention(q, k, v) on the same tensors and threads.

Needs PyTorch (`pip install torch`) and a shared libheadgate, which it calls through the C ABI. The two run in turns
within one process, each after a pause in which the other's threads go to sleep; every call allocates its own outputs.
Times are medians. bf16 is measured in both precisions where the CPU has the products of native16. PyTorch is held to
its flash kernel for CPUs, the fastest that it has. The errors of both are measured on the first head, against the same
formula in f64.
"""

import argparse
import ctypes
import functools
import json
import statistics
import sys
from pathlib import Path

try:
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention
except ImportError as error:
    sys.exit(f"peers_torch.py: PyTorch is not installed ({error})")

from turns import seconds_in_turns, timed

DTYPES = {torch.float32: 1, torch.float64: 2, torch.bfloat16: 3, torch.float16: 4}  # headgate_dtype
CAUSAL = 1
PRECISIONS = {"exact": 0, "native16": 1}  # headgate_precision


class View(ctypes.Structure):
    """headgate_tensor and headgate_const_tensor."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("shape", ctypes.c_int64 * 4),
        ("strides", ctypes.c_int64 * 4),
        ("dtype", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
    ]


def view(tensor):
    shape = (ctypes.c_int64 * 4)(*tensor.shape)
    strides = (ctypes.c_int64 * 4)(*tensor.stride())
    return View(tensor.data_ptr(), shape, strides, DTYPES[tensor.dtype], 0)


class Sized(ctypes.Structure):
    """A struct that begins with its size."""

    def __init__(self, **fields):
        super().__init__(**fields)
        self.struct_size = ctypes.sizeof(self)


def views(*names):
    return [("struct_size", ctypes.c_size_t)] + [(name, View) for name in names]


class Inputs(Sized):
    _fields_ = views("q", "k", "v", "gate", "bias", "mask", "key_lengths", "alibi_slopes", "sinks", "query_offsets",
                     "cu_seqlens_q", "cu_seqlens_k", "block_table", "k_scale", "v_scale")


class Outputs(Sized):
    _fields_ = views("y", "lse", "attn", "weights")


class Saved(Sized):
    _fields_ = views("y", "lse", "attn")


class Incoming(Sized):
    _fields_ = views("dy", "dlse")


class Gradients(Sized):
    _fields_ = views("dq", "dk", "dv", "dgate", "dbias", "dsinks")


class Options(Sized):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("scale", ctypes.c_double),
        ("softcap", ctypes.c_double),
        ("window_left", ctypes.c_int64),
        ("window_right", ctypes.c_int64),
        ("has_scale", ctypes.c_int32),
        ("has_window", ctypes.c_int32),
        ("causality", ctypes.c_int32),
        ("gate_fn", ctypes.c_int32),
        ("gate_op", ctypes.c_int32),
        ("threads", ctypes.c_int32),
        ("target", ctypes.c_char_p),
        ("backend", ctypes.c_char_p),
        ("gate_threshold", ctypes.c_double),
        ("precision", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
    ]


class Headgate:
    def __init__(self, path, threads):
        self.library = ctypes.CDLL(str(path))
        self.library.headgate_last_error.restype = ctypes.c_char_p
        self.threads = threads

    def _check(self, status):
        if status != 0:
            raise RuntimeError(self.library.headgate_last_error().decode())

    def target(self):
        name = ctypes.c_char_p()
        self._check(self.library.headgate_active_target(ctypes.byref(name)))
        return name.value.decode()

    def native16_products(self):
        name = ctypes.c_char_p()
        self._check(self.library.headgate_native16_products(ctypes.byref(name)))
        return name.value.decode()

    def _options(self, causal, precision):
        return Options(causality=CAUSAL if causal else 0, threads=self.threads, precision=PRECISIONS[precision])

    @staticmethod
    def _inputs(q, k, v, z):
        return Inputs(q=view(q), k=view(k), v=view(v), gate=view(z))

    def forward(self, q, k, v, z, causal, precision="exact"):
        y = torch.empty_like(q)
        lse = torch.empty(*q.shape[:3], 1, dtype=torch.float32)
        self._check(self.library.headgate_attention_forward(
            ctypes.byref(Outputs(y=view(y), lse=view(lse))), ctypes.byref(self._inputs(q, k, v, z)),
            ctypes.byref(self._options(causal, precision))))
        return y, lse

    def train(self, q, k, v, z, dy, causal, precision="exact"):
        y, lse = self.forward(q, k, v, z, causal, precision)
        gradients = [torch.empty_like(tensor) for tensor in (q, k, v, z)]
        dq, dk, dv, dz = map(view, gradients)
        self._check(self.library.headgate_attention_backward(
            ctypes.byref(Gradients(dq=dq, dk=dk, dv=dv, dgate=dz)), ctypes.byref(self._inputs(q, k, v, z)),
            ctypes.byref(Saved(y=view(y), lse=view(lse))), ctypes.byref(Incoming(dy=view(dy))),
            ctypes.byref(self._options(causal, precision))))
        return [y, *gradients]


def torch_forward(q, k, v, z, causal):
    with torch.no_grad():
        return scaled_dot_product_attention(q, k, v, is_causal=causal) * torch.sigmoid(z)


def torch_train(q, k, v, z, dy, causal):
    inputs = [tensor.detach().requires_grad_() for tensor in (q, k, v, z)]
    y = scaled_dot_product_attention(*inputs[:3], is_causal=causal) * torch.sigmoid(inputs[3])
    y.backward(dy)
    return [y.detach(), *(tensor.grad for tensor in inputs)]


def first_head_in_f64(q, k, v, z, dy, causal):
    """y, dq, dk, dv and dz of the first head."""
    inputs = [tensor[:, :1].double().requires_grad_() for tensor in (q, k, v, z)]
    with sdpa_kernel(SDPBackend.MATH):
        y = scaled_dot_product_attention(*inputs[:3], is_causal=causal) * torch.sigmoid(inputs[3])
        y.backward(dy[:, :1].double())
    return [y.detach(), *(tensor.grad for tensor in inputs)]


def error(results, exact):
    """Largest |error| in the first head over the largest |element| there, over all tensors."""
    return max(((a[:, :1].double() - b).abs().max() / b.abs().max()).item() for a, b in zip(results, exact))


def measure(headgate, heads, length, dim, dtype, causal, repeat):
    """A row for each pass and precision; all precisions and PyTorch take turns."""
    generator = torch.Generator().manual_seed(1)
    q, k, v, z, dy = (torch.randn(1, heads, length, dim, generator=generator).to(dtype) for _ in range(5))
    pairs = length * (length + 1) // 2 if causal else length * length
    exact = first_head_in_f64(q, k, v, z, dy, causal)
    forward_flops = 4.0 * pairs * dim * heads
    precisions = list(PRECISIONS) if dtype == torch.bfloat16 and headgate.native16_products() else ["exact"]
    rows = []
    for op, flops, run, theirs in (
        ("forward", forward_flops, lambda precision: headgate.forward(q, k, v, z, causal, precision)[:1],
         lambda: [torch_forward(q, k, v, z, causal)]),
        ("forward+backward", 3.5 * forward_flops, lambda precision: headgate.train(q, k, v, z, dy, causal, precision),
         lambda: torch_train(q, k, v, z, dy, causal)),
    ):
        ours = [functools.partial(run, precision) for precision in precisions]
        their_error = error(theirs(), exact)
        errors = [error(each(), exact) for each in ours]
        *our_seconds, their_seconds = map(statistics.median,
                                          seconds_in_turns([timed(each) for each in (*ours, theirs)], repeat))
        for precision, seconds, our_error in zip(precisions, our_seconds, errors):
            rows.append({
                "op": op, "Hq": heads, "T": length, "D": dim, "dtype": str(dtype).removeprefix("torch."),
                "precision": precision, "causal": causal, "headgate_ms": 1e3 * seconds, "torch_ms": 1e3 * their_seconds,
                "headgate_gflops": flops / seconds * 1e-9, "torch_gflops": flops / their_seconds * 1e-9,
                "speedup": their_seconds / seconds, "headgate_error": our_error, "torch_error": their_error,
            })
    return rows


def parse_arguments():
    root = Path(__file__).resolve().parent.parent
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--library", type=Path, help="libheadgate.so (default: found below build/)")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--repeat", type=int, default=9, help="timed runs of each (default 9)")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], help="one of the two alone")
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    arguments = parser.parse_args()
    if arguments.library is None:
        found = sorted((root / "build").rglob("libheadgate.so"))
        if not found:
            parser.error("no libheadgate.so below build/: build first, or give --library")
        arguments.library = found[0]
    return arguments


def main():
    arguments = parse_arguments()
    torch.set_num_threads(arguments.threads)
    headgate = Headgate(arguments.library, arguments.threads)
    print(f"PyTorch {torch.__version__} ({torch.backends.cpu.get_cpu_capability()}), headgate ({headgate.target()}), "
          f"{arguments.threads} threads\n")
    print(f"{'op':<17}{'heads':>6}{'T':>6}{'D':>5}  {'dtype':<9}{'precision':<10}{'causal':<7}"
          f"{'headgate':>11}{'PyTorch':>12}{'GFLOP/s':>15}{'ratio':>8}{'errors':>16}")
    rows = []
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        for heads, length, dim, causal in ((8, 512, 64, False), (8, 2048, 64, False), (8, 2048, 64, True),
                                           (8, 2048, 128, False), (8, 2048, 128, True), (8, 2048, 256, False),
                                           (1, 4096, 64, False), (16, 4096, 128, True),
                                           *((512, length, 64, False) for length in (16, 32, 64, 128, 256))):
            for dtype in (torch.float32, torch.bfloat16):
                if arguments.dtype not in (None, str(dtype).removeprefix("torch.")):
                    continue
                for row in measure(headgate, heads, length, dim, dtype, causal, arguments.repeat):
                    rows.append(row)
                    print(f"{row['op']:<17}{heads:>6}{length:>6}{dim:>5}  {row['dtype']:<9}"
                          f"{row['precision']:<10}"
                          f"{'yes' if causal else 'no':<7}{row['headgate_ms']:>8.1f} ms{row['torch_ms']:>9.1f} ms"
                          f"{row['headgate_gflops']:>8.1f}{row['torch_gflops']:>7.1f}{row['speedup']:>7.2f}x"
                          f"{row['headgate_error']:>9.1e} {row['torch_error']:.1e}", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps({
            "torch": torch.__version__, "isa": headgate.target(), "threads": arguments.threads, "rows": rows,
        }, indent=2) + "\n")


if __name__ == "__main__":
    main()
