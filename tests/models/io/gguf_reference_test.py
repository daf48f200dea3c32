#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares widened tensors of GGUF files bit for bit with those of the package `gguf`.

    gguf_reference_test.py GGUF_TO_NPY [FILE.gguf ...]

Compares random blocks of every format, and the files that are named.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter
from gguf.constants import GGML_QUANT_SIZES
from gguf.quants import dequantize

FORMATS = ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K", "MXFP4"]
# Where the halves of a block lie that may not be infinite or NaN.
HALVES = {"Q4_1": (0, 2), "Q5_1": (0, 2), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}


def random_blocks(random, name, blocks):
    """Returns (blocks, bytes) of a format whose numbers are finite."""
    size = GGML_QUANT_SIZES[GGMLQuantizationType[name]][1]
    if name == "F32":
        return random.standard_normal((blocks, 1)).astype(numpy.float32).view(numpy.uint8)
    if name == "BF16":
        bits = random.standard_normal((blocks, 1)).astype(numpy.float32).view(numpy.uint32) >> 16
        return bits.astype(numpy.uint16).view(numpy.uint8)
    raw = random.integers(0, 256, (blocks, size), dtype=numpy.uint8)
    if name == "MXFP4":
        raw[:, 0] = random.integers(0, 253, blocks)  # a larger scale may make numbers that f32 cannot hold
        return raw
    for at in HALVES.get(name, (0,)):
        scale = (random.standard_normal(blocks) * 10.0 ** random.integers(-7, 3, blocks)).astype(numpy.float16)
        raw[:, at : at + 2] = scale.reshape(blocks, 1).view(numpy.uint8)
    return raw


def write_random(path):
    random = numpy.random.default_rng(7)
    writer = GGUFWriter(path, "llama")
    for name in FORMATS:
        kind = GGMLQuantizationType[name]
        numbers, _ = GGML_QUANT_SIZES[kind]
        raw = random_blocks(random, name, 6 * 1024 // numbers).reshape(6, -1)
        writer.add_tensor(name, raw, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def compare(program, path):
    """Returns the number of tensors that differ."""
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([program, path, folder], check=True)
        tensors = GGUFReader(path).tensors
        for tensor in tensors:
            ours = numpy.load(Path(folder) / f"{tensor.name}.npy")
            theirs = dequantize(tensor.data, tensor.tensor_type).reshape(ours.shape)
            same = ours.shape == tuple(reversed(tensor.shape.tolist())) and numpy.array_equal(ours, theirs)
            wrong += not same
            if not same:
                print(f"{path}: {tensor.name} ({tensor.tensor_type.name}) differs")
        print(f"{path}: {len(tensors)} tensors, {wrong} of them differ")
    return wrong


def main():
    program, files = sys.argv[1], sys.argv[2:]
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "random.gguf")
        write_random(path)
        wrong = compare(program, path)
    return 1 if wrong + sum(compare(program, file) for file in files) else 0


if __name__ == "__main__":
    sys.exit(main())
