# SPDX-License-Identifier: Apache-2.0
"""Defines the cases to measure, their inputs, and the results of each operation. Needs only NumPy.

Letters: B batch, T queries, S keys, Hq and Hkv heads of queries and of keys, D features of a head, C channels.
"""

import dataclasses
import math
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

ROPE_BASE = 10000.0
NORM_EPS = 1e-6

RESULTS = {
    "forward": ("y",),
    "forward+backward": ("y", "dq", "dk", "dv", "dz"),
    "pair": ("y",),
    "pair+backward": ("y", "dq", "dk", "dv", "dz", "dbias"),
    "listed": ("y",),
    "listed+backward": ("y", "dq", "dk", "dv", "dz"),
    "statistics": ("y", "row_max", "entropy", "first", "key_mass"),
    "layer": ("y",),
    "layer+backward": ("y", "dh"),
    "linear": ("y",),
    "linear+backward": ("y", "dq", "dk", "dv", "ddecay", "dbeta"),
}
"""Maps each operation to the names of its results, in order. The gradients of LAYER_WEIGHTS follow dh."""

LINEAR_INPUTS = ("q", "k", "v", "decay", "beta")

LAYER_WEIGHTS = ("q_proj", "gate_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm")


class Refused(Exception):
    """Raised if a peer does not compute a case. The text says why."""


class Way(NamedTuple):
    """A way in which a peer computes a case. `run` is timed. `read` converts what it returns to f32 arrays."""

    run: Callable[[], Any]
    read: Callable[[Any], list[np.ndarray]]


@dataclasses.dataclass(frozen=True)
class Case:
    """A computation to measure. It is sigmoid(z) * softmax(q k^T / sqrt(D)) v, its gradients, statistics of its
    weights, or a layer around it. Attention may have a learned bias that all sequences share, or a list of keys for
    each query. Another computation is the gated delta rule on normalised q and k, with one decay per head and token."""

    group: str  # each group has its own table
    op: str  # a key of RESULTS
    dtype: str  # float32 or bfloat16
    B: int
    Hq: int
    Hkv: int
    T: int
    S: int
    D: int
    causal: bool = False
    C: int = 0  # only for layers
    K: int = 0  # keys of a list; only for lists

    @property
    def sizes(self) -> str:
        heads = f"H{self.Hq}" if self.Hq == self.Hkv else f"H{self.Hq}of{self.Hkv}"
        length = f"T{self.T}" if self.T == self.S else f"T{self.T}/S{self.S}"
        parts = [f"B{self.B}", heads, length, f"D{self.D}"] + [
            f"{x}{size}" for x, size in (("C", self.C), ("K", self.K)) if size
        ]
        return "/".join(parts) + ("/causal" if self.causal else "")

    @property
    def name(self) -> str:
        return f"{self.group}/{self.op}/{self.dtype}/{self.sizes}"

    @property
    def is_linear(self) -> bool:
        """Returns whether the case is the gated delta rule."""
        return self.op.startswith("linear")

    @property
    def is_pair(self) -> bool:
        """Returns whether the scores have a bias."""
        return self.op.startswith("pair")

    @property
    def is_listed(self) -> bool:
        """Returns whether each query has a list of the keys that it sees."""
        return self.op.startswith("listed")

    @property
    def pairs(self) -> int:
        """Returns the number of visible (query, key) pairs of a head. Query i has the position of key i + S - T."""
        if self.is_listed:
            return self.T * self.K
        return self.T * self.S - (self.T * (self.T - 1) // 2 if self.causal else 0)

    def require_memory(self, copies: int) -> None:
        """Raises Refused if the peer would need more than a quarter of the machine's memory. It holds `copies` of the
        weights (B,Hq,T,S) in f32."""
        taken = 4.0 * self.B * self.Hq * self.T * self.S * copies
        if 4 * taken > os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"):
            raise Refused(f"would hold {taken / 2**30:.1f} GiB of weights")

    @property
    def flops(self) -> float:
        """Returns the number of floating-point operations, 2 for each multiply-add of a matrix product. The backward
        pass has 2.5 times those of the forward pass, and statistics have as many. The delta rule counts those of the
        recurrence: 6 D^2 per token and head, and 22 D^2 more for the backward pass."""
        if self.is_linear:
            a_token = 28.0 if self.op.endswith("+backward") else 6.0
            return a_token * self.B * self.Hq * self.T * self.D**2
        attention = 4.0 * self.B * self.Hq * self.pairs * self.D
        total = attention * (3.5 if self.op.endswith("+backward") else 1.0)
        if self.C:
            rows = (3 * self.Hq + 2 * self.Hkv) * self.D  # of the projections of q, gate, k, v and the output
            total += 2.0 * self.B * self.T * self.C * rows * (3.0 if self.op.endswith("+backward") else 1.0)
        return total


def _attention_sizes() -> list[tuple[int, int, int, bool]]:
    """Returns rows of Hq, T, D and whether attention is causal."""
    return [
        (8, 512, 64, False),
        (8, 2048, 64, False),
        (8, 2048, 64, True),
        (8, 2048, 128, False),
        (8, 2048, 128, True),
        (8, 2048, 256, False),
        (1, 4096, 64, False),
        (16, 4096, 128, True),
    ]


def _pair_sizes() -> list[tuple[int, int, int, int]]:
    """Returns rows of B, H, T and D. They are those of triangles and MSA rows, pair biases of one structure, windows of
    images, patches of images, and texts."""
    return [
        (128, 4, 128, 32),
        (64, 4, 256, 32),
        (64, 4, 384, 32),
        (64, 8, 128, 32),
        (1, 16, 256, 48),
        (1, 16, 384, 48),
        (256, 6, 49, 32),
        (8, 12, 197, 64),
        (2, 8, 512, 64),
    ]


def _of_dtype(dtype: str) -> list[Case]:
    cases = [
        Case("attention", op, dtype, 1, H, H, T, T, D, causal)
        for op in ("forward", "forward+backward")
        for H, T, D, causal in _attention_sizes()
    ]
    cases += [
        Case("layer", op, dtype, B, Hq, Hkv, T, T, D, True, C)
        for op in ("layer", "layer+backward")
        for B, Hq, Hkv, T, D, C in ((4, 8, 8, 512, 64, 512), (1, 8, 2, 2048, 128, 1024))
    ]
    cases += [Case("decode", "forward", dtype, 1, Hq, 8, 1, 16384, 128) for Hq in (8, 32)]
    cases += [
        Case("small", op, dtype, 64, 8, 8, T, T, 64)
        for op in ("forward", "forward+backward")
        for T in (16, 32, 64, 128, 256)
    ]
    cases += [
        Case("linear", op, dtype, 1, 16, 16, T, T, 128) for op in ("linear", "linear+backward") for T in (512, 2048)
    ]
    cases += [Case("linear-decode", "linear", dtype, B, H, H, 1, 1, 128) for B in (1, 8) for H in (16, 32)]
    cases += [
        Case("pair", op, dtype, B, H, H, T, T, D) for op in ("pair", "pair+backward") for B, H, T, D in _pair_sizes()
    ]
    cases += [
        Case("listed", op, dtype, 1, Hq, Hkv, 256, 32768, 128, False, 0, 2048)
        for op in ("listed", "listed+backward")
        for Hq, Hkv in ((16, 2), (32, 1))
    ]
    cases += [Case("statistics", "statistics", dtype, 1, 8, 8, 2048, 2048, 128, causal) for causal in (False, True)]
    return cases


def all_cases(tiny: bool = False) -> list[Case]:
    """Returns every case. With `tiny`, sequences are few and short, to try the program out."""
    cases = [case for dtype in ("float32", "bfloat16") for case in _of_dtype(dtype)]
    if not tiny:
        return cases
    cut = [
        dataclasses.replace(c, B=min(c.B, 2), T=min(c.T, 24), S=min(c.S, 24), D=16, C=min(c.C, 32), K=min(c.K, 8))
        for c in cases
    ]
    return list(dict.fromkeys(cut))


def round_to_bf16(array: np.ndarray) -> np.ndarray:
    """Rounds finite f32 numbers to bf16, to nearest with ties to even. The result is still f32."""
    bits = array.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)).view(np.float32)


def bf16_bits(array: np.ndarray) -> np.ndarray:
    """Returns the bits of bf16 numbers, as uint16. `array` is f32 with values that bf16 represents exactly."""
    return (np.ascontiguousarray(array).view(np.uint32) >> 16).astype(np.uint16)


def widen_bf16(bits: np.ndarray) -> np.ndarray:
    """Converts bf16 numbers, in an array of any 16-bit type, to f32."""
    return (bits.view(np.uint16).astype(np.uint32) << 16).view(np.float32)


def inputs_of(case: Case) -> dict[str, np.ndarray]:
    """Returns the inputs of a case in f32, the same in every process. They are rounded to bf16 if that is the dtype.

    Attention: q, z and dy (B,Hq,T,D), k and v (B,Hkv,S,D). bias (1,Hq,T,S) has the strides that a linear layer of pairs
    gives it. lists (T,K) have different keys in ascending order.
    Layers: h and dy (B,T,C), matrices (rows,columns), weights of norms (D).
    The delta rule: q, k, v and dy (B,H,T,D), decay and beta (B,H,T). If T is 1, also the state (B,H,D,D).
    """
    generator = np.random.default_rng(1)

    def normal(*shape: int, std: float = 1.0) -> np.ndarray:
        values = generator.standard_normal(shape, dtype=np.float32) * np.float32(std)
        return round_to_bf16(values) if case.dtype == "bfloat16" else values

    if case.is_linear:
        rows = (case.B, case.Hq, case.T, case.D)
        inputs = {name: normal(*rows) for name in ("q", "k", "v", "dy")}
        inputs["decay"] = -np.abs(normal(*rows[:3], std=0.2))
        inputs["beta"] = (1 / (1 + np.exp(-normal(*rows[:3])))).astype(np.float32)
        if case.dtype == "bfloat16":
            inputs["beta"] = round_to_bf16(inputs["beta"])
        return inputs if case.T > 1 else {**inputs, "state": normal(case.B, case.Hq, case.D, case.D)}
    queries, keys = (case.B, case.Hq, case.T, case.D), (case.B, case.Hkv, case.S, case.D)
    if not case.C:
        inputs = {
            "q": normal(*queries),
            "k": normal(*keys),
            "v": normal(*keys),
            "z": normal(*queries),
            "dy": normal(*queries),
        }
        if case.is_pair:
            inputs["bias"] = normal(case.T, case.S, case.Hq).transpose(2, 0, 1)[None]
        if case.is_listed:
            lists = [np.sort(generator.permutation(case.S)[: case.K]) for _ in range(case.T)]
            inputs["lists"] = np.stack(lists).astype(np.int32)
        return inputs
    C, rows, kv_rows = case.C, case.Hq * case.D, case.Hkv * case.D
    inputs = {"h": normal(case.B, case.T, C), "dy": normal(case.B, case.T, C)}
    for name, shape in (
        ("q_proj", (rows, C)),
        ("gate_proj", (rows, C)),
        ("k_proj", (kv_rows, C)),
        ("v_proj", (kv_rows, C)),
        ("o_proj", (C, rows)),
    ):
        inputs[name] = normal(*shape, std=1 / math.sqrt(shape[1]))
    for name in ("q_norm", "k_norm"):
        inputs[name] = normal(case.D, std=0.1) + np.float32(1)
        inputs[name] = round_to_bf16(inputs[name]) if case.dtype == "bfloat16" else inputs[name]
    return inputs


def rope_angles(case: Case) -> np.ndarray:
    """Returns the angles of RoPE (T,D/2) in f64. Features i and i + D/2 are a pair."""
    frequencies = ROPE_BASE ** (-np.arange(0, case.D, 2) / case.D)
    return np.outer(np.arange(case.T), frequencies)


def checked_heads(case: Case, array: np.ndarray) -> np.ndarray:
    """Returns the heads of an array (B,H,...) that are checked: those of the first and of the last key/value head, in
    the first and the last sequence. Layers, and cases with a bias, whose gradient sums over sequences, are checked
    whole."""
    if case.C or case.is_pair or array.ndim < 3:
        return array
    group = array.shape[1] // case.Hkv
    heads = np.arange(array.shape[1]).reshape(case.Hkv, group)[sorted({0, case.Hkv - 1})].ravel()
    return array[sorted({0, case.B - 1})][:, heads]
