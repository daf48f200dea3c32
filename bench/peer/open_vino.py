# SPDX-License-Identifier: Apache-2.0
"""Runs OpenVINO's ScaledDotProductAttention times a sigmoid on its CPU plugin."""

import math

import numpy as np
import openvino as ov
from openvino import opset13 as ops

from .cases import Case, Refused, Way, bf16_bits, widen_bf16


class OpenVino:
    def __init__(self, threads: int):
        self.core = ov.Core()
        self.threads = threads
        self.version = ov.get_version().split("-")[0]

    def ways(self, case: Case, inputs: dict) -> dict[str, Way]:
        if case.op != "forward":
            raise Refused("no backward pass" if "backward" in case.op else "for attention alone")
        kind = ov.Type.bf16 if case.dtype == "bfloat16" else ov.Type.f32
        # ScaledDotProductAttention has no groups of query heads. A single new token sees every key, so its queries of a
        # group can be rows of one head.
        rows = (case.B, case.Hkv, case.Hq // case.Hkv * case.T, case.D)
        if case.Hq != case.Hkv and case.T != 1:
            raise Refused("its operation has no groups of query heads")
        arrays = {name: inputs[name].reshape(rows) if name in "qz" else inputs[name] for name in "qkvz"}
        ways = {
            "ScaledDotProductAttention": lambda q, k, v: ops.scaled_dot_product_attention(q, k, v, causal=case.causal)
        }
        if not case.causal:
            ways["MatMul and Softmax"] = lambda q, k, v: self._composed(case, kind, q, k, v)
        return {name: self._way(case, arrays, kind, attention) for name, attention in ways.items()}

    @staticmethod
    def _composed(case: Case, kind: ov.Type, q: ov.Node, k: ov.Node, v: ov.Node) -> ov.Node:
        scale = ops.constant(1 / math.sqrt(case.D), kind)
        scores = ops.matmul(ops.multiply(q, scale), k, False, True)
        return ops.matmul(ops.softmax(scores, -1), v, False, False)

    def _way(self, case: Case, arrays: dict, kind: ov.Type, attention) -> Way:
        nodes = {name: ops.parameter(array.shape, kind, name=name) for name, array in arrays.items()}
        y = ops.multiply(attention(nodes["q"], nodes["k"], nodes["v"]), ops.sigmoid(nodes["z"]))
        compiled = self.core.compile_model(
            ov.Model([ops.result(y)], list(nodes.values())),
            "CPU",
            {
                "INFERENCE_NUM_THREADS": self.threads,
                "PERFORMANCE_HINT": "LATENCY",
                "INFERENCE_PRECISION_HINT": "bf16" if case.dtype == "bfloat16" else "f32",
            },
        )
        request = compiled.create_infer_request()
        for i, name in enumerate(nodes):
            request.set_input_tensor(i, self._tensor(arrays[name], kind))

        def run():
            request.infer()
            return request.get_output_tensor()

        return Way(run, lambda tensor: [self._array(tensor).reshape(case.B, case.Hq, case.T, case.D)])

    @staticmethod
    def _tensor(array: np.ndarray, kind: ov.Type) -> ov.Tensor:
        array = np.ascontiguousarray(array)
        if kind == ov.Type.f32:
            tensor = ov.Tensor(ov.Type.f32, array.shape)
            tensor.data[:] = array
        else:
            tensor = ov.Tensor(ov.Type.bf16, array.shape)
            tensor.data.view(np.uint16)[:] = bf16_bits(array)
        return tensor

    @staticmethod
    def _array(tensor: ov.Tensor) -> np.ndarray:
        return widen_bf16(tensor.data) if tensor.element_type == ov.Type.bf16 else tensor.data.copy()
