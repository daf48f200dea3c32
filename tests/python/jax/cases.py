# SPDX-License-Identifier: Apache-2.0
"""Calls of every operation, at least one for each argument, as arrays of NumPy and options."""

from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

import headgate


class Case(NamedTuple):
    name: str
    arrays: dict[str, np.ndarray]
    options: dict[str, Any]

    def __str__(self) -> str:
        return self.name


RANDOM = np.random.default_rng(20)
B, HQ, HKV, T, S, D, DV = 2, 4, 2, 5, 7, 8, 6


def normal(*shape: int, dtype: Any = np.float64) -> np.ndarray:
    return RANDOM.normal(size=shape).astype(dtype)


def qkv(dtype: Any = np.float64, **others: np.ndarray) -> dict[str, np.ndarray]:
    return {
        "q": normal(B, HQ, T, D, dtype=dtype),
        "k": normal(B, HKV, S, D, dtype=dtype),
        "v": normal(B, HKV, S, DV, dtype=dtype),
        **others,
    }


def gated(dtype: Any = np.float64, features: int = 1, **others: np.ndarray) -> dict[str, np.ndarray]:
    return qkv(dtype, gate=normal(B, HQ, T, features, dtype=dtype), **others)


def packed(**others: np.ndarray) -> dict[str, np.ndarray]:
    rows = {"q": normal(1, HQ, 9, D), "k": normal(1, HKV, 11, D), "v": normal(1, HKV, 11, DV)}
    bounds = {"cu_seqlens_q": np.array([0, 4, 4, 9]), "cu_seqlens_k": np.array([0, 3, 6, 11])}
    return {**rows, **bounds, **others}


def quantized() -> dict[str, np.ndarray]:
    arrays = gated(np.float32)
    for name in ("k", "v"):
        arrays[name], arrays[f"{name}_scale"] = headgate.quantize(arrays[name])
    return arrays


def attention_cases() -> list[Case]:
    lists = RANDOM.integers(-1, S, size=(B, HKV, T, 3))
    pages = {
        "q": normal(B, HQ, T, D),
        "k": normal(6, HKV, 3, D),
        "v": normal(6, HKV, 3, DV),
        "block_table": np.array([[5, 0, 2], [1, 1, 4]], np.int32),
        "key_lengths": np.array([8, 5]),
    }
    first = {"k_first": normal(B, HKV, 2, D, dtype=np.float32), "v_first": normal(B, HKV, 2, DV, dtype=np.float32)}
    thd = {
        "q": normal(B, T, HQ, D),
        "k": normal(B, S, HKV, D),
        "v": normal(B, S, HKV, DV),
        "gate": normal(B, T, HQ, DV),
    }
    no_batch = {"q": normal(HQ, T, D), "k": normal(HKV, S, D), "v": normal(HKV, S, DV), "gate": normal(HQ, T, 1)}
    rows = [
        ("plain", qkv(), {}),
        ("headwise gate", gated(), {}),
        ("elementwise gate", gated(features=DV), {}),
        ("f32", gated(np.float32), {}),
        ("f16", gated(np.float16), {}),
        ("bf16", gated(ml_dtypes.bfloat16), {"precision": "native16"}),
        ("bias", gated(bias=normal(1, HQ, T, S)), {}),
        ("bias of keys and queries", gated(bias=normal(T, S)), {}),
        ("key_bias", gated(key_bias=normal(B, 1, 1, S)), {}),
        ("mask", gated(mask=RANDOM.random((B, 1, T, S)) < 0.7), {}),
        ("key_lengths", gated(key_lengths=np.array([3, 0], np.int32)), {}),
        ("alibi_slopes", gated(alibi_slopes=np.abs(normal(HQ))), {}),
        ("alibi_slopes of sequences", gated(alibi_slopes=np.abs(normal(B, HQ))), {"causality": "causal"}),
        ("sinks", gated(sinks=normal(HQ)), {}),
        ("sinks of queries", gated(sinks=normal(1, HQ, T)), {"causality": "causal"}),
        ("query_offsets", gated(query_offsets=np.array([1, 5])), {"causality": "causal"}),
        ("packed", packed(), {"causality": "causal"}),
        ("packed, lengths", packed(key_lengths=np.array([2, 3, 4]), alibi_slopes=np.abs(normal(3, HQ))), {}),
        ("pages", pages, {}),
        ("int8", quantized(), {}),
        ("int8, first rows", {**quantized(), **first}, {}),
        ("key_indices", gated(key_indices=lists), {}),
        ("key blocks", gated(key_indices=RANDOM.integers(-1, 3, size=(T, 2))), {"key_block_size": 3}),
        ("windows", gated(), {"window_left": 2, "window_right": 1}),
        ("scale", gated(), {"scale": -0.3, "softcap": 1.5}),
        ("dropout", gated(), {"dropout": 0.4, "dropout_seed": 11}),
        ("threshold", gated(features=DV), {"gate_threshold": 0.5}),
        ("execution", gated(), {"threads": 2, "target": headgate.active_target(), "backend": "cpu"}),
        ("bthd", thd, {"layout": "bthd", "causality": "causal"}),
        ("no batch", no_batch, {"gate_op": "add"}),
    ]
    rules = {
        "bias": normal(1, HQ, T, S),
        "key_bias": normal(B, 1, 1, S),
        "mask": RANDOM.random((B, 1, T, S)) < 0.8,
        "key_lengths": np.array([6, 7]),
        "alibi_slopes": np.abs(normal(HQ)),
        "sinks": normal(HQ),
        "query_offsets": np.array([1, 5]),
    }
    scores = {"causality": "causal", "window_left": 4, "window_right": 0, "scale": 0.6, "softcap": 2.0}
    rows += [("all rules", gated(**rules), {**scores, "gate_fn": "silu"})]
    rows += [
        (f"gate {word}", gated(features=DV), {"gate_fn": word})
        for word, _ in headgate._headgate._rows["gate_functions"]
    ]
    return [Case(*row) for row in rows]


def linear(heads: tuple[int, int, int] = (2, 2, 4), **others: np.ndarray) -> dict[str, np.ndarray]:
    hq, hk, hv = heads
    return {"q": normal(B, hq, T, D), "k": normal(B, hk, T, D) / 3, "v": normal(B, hv, T, DV), **others}


def linear_cases() -> list[Case]:
    decay, beta = -np.abs(normal(B, 4, T, 1)), RANDOM.random((B, 4, T, 1))
    rows9 = {"q": normal(1, 2, 9, D), "k": normal(1, 2, 9, D) / 3, "v": normal(1, 4, 9, DV)}
    gates9 = {"decay": -np.abs(normal(1, 4, 9, 1)), "beta": RANDOM.random((1, 1, 9, 1))}
    bounds = np.array([0, 4, 4, 9])
    bthd = {"q": normal(B, T, 2, D), "k": normal(B, T, 2, D) / 3, "v": normal(B, T, 4, DV)}
    rows = [
        ("plain", linear(), {}),
        ("decay", linear(decay=decay, beta=beta), {}),
        ("decay of features", linear(decay=-np.abs(normal(B, 4, T, D)), beta=beta[:, :1]), {}),
        ("gated", linear(decay=decay), {"rule": "gated"}),
        ("delta", linear(beta=beta), {"rule": "delta", "scale": 0.3}),
        ("linear, many queries", linear((8, 2, 4)), {"rule": "linear"}),
        ("norms", linear(), {"l2_norm": 1e-3, "scale": 0.7}),
        ("state", linear(state=normal(B, 4, D, DV)), {}),
        ("packed", {**rows9, "cu_seqlens": bounds, "state": normal(3, 4, D, DV), **gates9}, {}),
        ("snapshots", linear(snapshot_lengths=np.array([[0, 2, 5], [1, 1, 4]])), {}),
        ("packed snapshots", {**rows9, "cu_seqlens": bounds, "snapshot_lengths": np.array([[0], [0], [3]])}, {}),
        ("execution", linear(), {"threads": 1, "target": headgate.active_target(), "backend": "cpu"}),
        ("bthd", bthd, {"layout": "bthd"}),
        ("bf16", {name: x.astype(ml_dtypes.bfloat16) for name, x in linear().items()}, {"precision": "native16"}),
        ("no batch", {name: x[0] for name, x in linear().items()}, {}),
    ]
    return [Case(*row) for row in rows]


def convolution(**others: np.ndarray) -> dict[str, np.ndarray]:
    return {"x": normal(B, T, 3), "weight": normal(3, 4), **others}


def convolution_cases() -> list[Case]:
    bounds = np.array([0, 1, 1, 9])
    packed_rows = {"x": normal(1, 9, 3), "weight": normal(3, 4), "cu_seqlens": bounds, "state": normal(3, 3, 3)}
    rows = [
        ("plain", convolution(), {}),
        ("bias and state", convolution(bias=normal(3), state=normal(B, 3, 3)), {"activation": "none"}),
        ("packed", packed_rows, {}),
        ("snapshots", convolution(snapshot_lengths=np.array([[0, 2, 5]])), {}),
        ("packed snapshots", {**packed_rows, "snapshot_lengths": np.array([[1], [0], [5]])}, {}),
        ("execution", convolution(), {"threads": 1, "target": headgate.active_target(), "backend": "cpu"}),
        ("f32", {name: x.astype(np.float32) for name, x in convolution().items()}, {}),
        ("no batch", {**convolution(), "x": normal(T, 3)}, {}),
    ]
    return [Case(*row) for row in rows]


def norm(*weight: int, **others: np.ndarray) -> dict[str, np.ndarray]:
    return {"x": normal(B, HQ, T, D), "weight": normal(*weight), "gate": normal(B, HQ, T, D), **others}


def norm_cases() -> list[Case]:
    rows = [
        ("plain", {"x": normal(B, HQ, T, D)}, {}),
        ("weight", norm(D), {"eps": 1e-2}),
        ("weight of heads", norm(HQ, D), {"gate_fn": "sigmoid"}),
        ("bthd", norm(T, D), {"layout": "bthd"}),
        ("no gate", norm(D), {"gate_fn": "none"}),
        ("execution", norm(D), {"threads": 1, "target": headgate.active_target(), "backend": "cpu"}),
        ("f16", {name: x.astype(np.float16) for name, x in norm(D).items()}, {}),
        ("no batch", {name: x[0] if x.ndim == 4 else x for name, x in norm(D).items()}, {}),
    ]
    return [Case(*row) for row in rows]


CASES: dict[str, list[Case]] = {
    "gated_attention": attention_cases(),
    "linear_attention": linear_cases(),
    "short_convolution": convolution_cases(),
    "gated_norm": norm_cases(),
}
ALL = [(operation, case) for operation, cases in CASES.items() for case in cases]

ELSEWHERE: dict[str, dict[str, bool]] = {
    "gated_attention": {
        "headwise gate": False,
        "all rules": True,
        "sinks of queries": False,
        "packed, lengths": True,
        "pages": False,
        "int8, first rows": False,
        "key blocks": False,
        "threshold": False,
        "bf16": False,
        "bthd": False,
        "no batch": False,
        "dropout": True,
    },
    "linear_attention": {
        "decay of features": False,
        "linear, many queries": False,
        "norms": False,
        "packed": True,
        "packed snapshots": False,
        "bthd": False,
    },
    "short_convolution": {
        "bias and state": False,
        "packed": True,
        "packed snapshots": False,
        "no batch": False,
    },
    "gated_norm": {"weight": True, "weight of heads": False, "bthd": False, "no batch": False},
}
"""Cases that are also computed as on platforms other than CPUs, and whether gradients are."""
IN_ELSEWHERE = [
    (operation, case, ELSEWHERE[operation][case.name]) for operation, case in ALL if case.name in ELSEWHERE[operation]
]
