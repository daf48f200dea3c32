# SPDX-License-Identifier: Apache-2.0
"""Runs OpenVINO's ScaledDotProductAttention times a sigmoid, and its GatedDeltaNet, on its CPU plugin."""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import openvino as ov
from openvino import opset13 as ops
from openvino.utils.node_factory import NodeFactory

from .cases import LINEAR_INPUTS, NORM_EPS, Case, Refused, Way, bf16_bits, widen_bf16


class OpenVino:
    linear = True
    pair = True

    def __init__(self, threads: int):
        self.core = ov.Core()
        self.threads = threads
        self.version = ov.get_version().split("-")[0]

    def ways(self, case: Case, inputs: dict) -> dict[str, Way]:
        if case.op not in ("forward", "pair", "linear"):
            raise Refused("no backward pass" if "backward" in case.op else "for attention alone")
        kind = ov.Type.bf16 if case.dtype == "bfloat16" else ov.Type.f32
        if case.is_linear:
            return self._delta_rule(case, inputs, kind)
        # ScaledDotProductAttention has no groups of query heads. A single new token sees every key, so its queries of a
        # group can be rows of one head.
        rows = (case.B, case.Hkv, case.Hq // case.Hkv * case.T, case.D)
        if case.Hq != case.Hkv and case.T != 1:
            raise Refused("its operation has no groups of query heads")
        arrays = {name: inputs[name].reshape(rows) if name in "qz" else inputs[name] for name in "qkvz"}
        if case.is_pair:
            arrays["pairs"] = inputs["bias"].transpose(0, 2, 3, 1)  # (1,T,S,H), as a linear layer of pairs stores it
        attentions = {"ScaledDotProductAttention": self._fused}
        if not case.causal:
            attentions["MatMul and Softmax"] = self._composed

        def gated(attention: Callable) -> Callable:
            def build(nodes: dict) -> tuple[ov.Node, list[ov.Node]]:
                bias = ops.transpose(nodes["pairs"], [0, 3, 1, 2]) if case.is_pair else None
                y = attention(case, kind, nodes["q"], nodes["k"], nodes["v"], bias)
                return ops.multiply(y, ops.sigmoid(nodes["z"])), []

            return build

        def order(y: np.ndarray) -> np.ndarray:
            return y.reshape(case.B, case.Hq, case.T, case.D)

        kinds = dict.fromkeys(arrays, kind)
        return {name: self._way(case, arrays, kinds, gated(build), order) for name, build in attentions.items()}

    @staticmethod
    def _fused(case: Case, kind: ov.Type, q: ov.Node, k: ov.Node, v: ov.Node, bias: ov.Node | None) -> ov.Node:
        return ops.scaled_dot_product_attention(q, k, v, bias, causal=case.causal)

    @staticmethod
    def _composed(case: Case, kind: ov.Type, q: ov.Node, k: ov.Node, v: ov.Node, bias: ov.Node | None) -> ov.Node:
        scale = ops.constant(1 / math.sqrt(case.D), kind)
        scores = ops.matmul(ops.multiply(q, scale), k, False, True)
        scores = scores if bias is None else ops.add(scores, bias)
        return ops.matmul(ops.softmax(scores, -1), v, False, False)

    def _delta_rule(self, case: Case, inputs: dict, kind: ov.Type) -> dict[str, Way]:
        """Returns the rule on (B,T,H,D), where the operation or NormalizeL2 normalises q and k. For one token, the
        state is a variable of the model, which every call updates. Decay and state are f32."""
        factory = NodeFactory()  # opsets do not have the operation; the library of the plugin has
        factory.add_extension(str(Path(ov.__file__).parent / "libs" / "libopenvino_intel_cpu_plugin.so"))
        arrays = {name: inputs[name].swapaxes(1, 2) for name in LINEAR_INPUTS}
        kinds = {name: ov.Type.f32 if name == "decay" else kind for name in LINEAR_INPUTS}
        state = inputs.get("state", np.zeros((case.B, case.Hq, case.D, case.D), np.float32))

        def rule(fused: bool) -> Callable:
            def build(nodes: dict) -> tuple[ov.Output, list[ov.Node]]:
                q, k = nodes["q"], nodes["k"]
                if not fused:
                    q, k = (ops.normalize_l2(x, np.array([3]), NORM_EPS, "add") for x in (q, k))
                old = ops.constant(state)
                if case.T == 1:
                    old = ops.read_value(old, "state", np.float32, list(state.shape))
                given = [x.output(0) for x in (q, k, nodes["v"], old, nodes["decay"], nodes["beta"])]
                norm = {"fuse_qk_l2norm": fused, "q_l2_norm_eps": NORM_EPS, "k_l2_norm_eps": NORM_EPS}
                node = factory.create("GatedDeltaNet", given, norm)
                if case.T > 1:
                    return node.output(0), []
                new = ops.reshape(node.output(1), state.shape, False)  # assign takes nodes, but no outputs of nodes
                return node.output(0), [ops.assign(new, "state")]

            return build

        def order(y: np.ndarray) -> np.ndarray:
            return y.swapaxes(1, 2)

        return {
            "GatedDeltaNet": self._way(case, arrays, kinds, rule(True), order),
            "NormalizeL2 and GatedDeltaNet": self._way(case, arrays, kinds, rule(False), order),
        }

    def _way(self, case: Case, arrays: dict, kinds: dict, build: Callable, order: Callable) -> Way:
        """Returns a Way that computes y of the nodes that build(parameters) returns. They are y and assignments of
        variables. `order` converts y to (B,H,T,D)."""
        nodes = {name: ops.parameter(array.shape, kinds[name], name=name) for name, array in arrays.items()}
        y, assignments = build(nodes)
        compiled = self.core.compile_model(
            ov.Model([ops.result(y)], assignments, list(nodes.values()), "case"),
            "CPU",
            {
                "INFERENCE_NUM_THREADS": self.threads,
                "PERFORMANCE_HINT": "LATENCY",
                "INFERENCE_PRECISION_HINT": "bf16" if case.dtype == "bfloat16" else "f32",
            },
        )
        request = compiled.create_infer_request()
        for i, name in enumerate(nodes):
            request.set_input_tensor(i, self._tensor(arrays[name], kinds[name]))

        def run():
            request.infer()
            return request.get_output_tensor()

        def read(_):
            request.reset_state()
            return [order(self._array(run()))]

        return Way(run, read)

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
