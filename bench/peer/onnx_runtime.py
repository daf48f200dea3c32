# SPDX-License-Identifier: Apache-2.0
"""Runs ONNX Runtime on the CPU: each of its attention operators, times a sigmoid, and of its gated delta rules."""

import math
from collections.abc import Callable

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

from .cases import LINEAR_INPUTS, NORM_EPS, Case, Refused, Way, bf16_bits, widen_bf16


class OnnxRuntime:
    linear = True
    pair = True

    def __init__(self, threads: int):
        self.threads = threads
        self.version = onnxruntime.__version__
        onnxruntime.set_default_logger_severity(4)  # errors are raised as exceptions, too

    def ways(self, case: Case, inputs: dict) -> dict[str, Way]:
        if case.op not in ("forward", "pair", "linear"):
            raise Refused("no backward pass" if "backward" in case.op else "for attention alone")
        if case.is_linear:
            builders = {"LinearAttention": self._linear_attention, "GatedDeltaNet": self._gated_delta_net}
        else:
            builders = {"Attention": self._attention}
            if case.Hq == case.Hkv:  # MultiHeadAttention needs as many query heads as key/value heads
                builders["MultiHeadAttention"] = self._multi_head
        ways, failures = {}, []
        for name, build in builders.items():
            try:
                ways[name] = build(case, inputs)
            except Exception as error:  # ONNX Runtime has a separate exception for each error code
                failures.append(f"{name}: {' '.join(str(error).split())}")
        if not ways:
            raise Refused("; ".join(failure[:120] for failure in failures))
        return ways

    def _attention(self, case: Case, inputs: dict) -> Way:
        """Returns the operator of ONNX 1.18 and later, on (B,H,T,D)."""
        bias = ["bias"] if case.is_pair else []
        node = helper.make_node("Attention", ["q", "k", "v", *bias], ["o"], is_causal=int(case.causal))
        return self._gated(case, node, {name: inputs[name] for name in "qkvz"}, inputs, lambda y: y)

    def _multi_head(self, case: Case, inputs: dict) -> Way:
        """Returns ONNX Runtime's own operator, on (B,T,H*D). Without a mask or bias, its kernel only holds tiles of the
        scores, not all of them."""
        bias = ["", "", "bias"] if case.is_pair else []
        node = helper.make_node(
            "MultiHeadAttention",
            ["q", "k", "v", *bias],
            ["o"],
            domain="com.microsoft",
            num_heads=case.Hq,
            unidirectional=int(case.causal),
        )
        arrays = {name: inputs[name].swapaxes(1, 2).reshape(case.B, inputs[name].shape[2], -1) for name in "qkvz"}
        return self._gated(case, node, arrays, inputs, lambda y: _head_first(case, y))

    def _gated(self, case: Case, node: onnx.NodeProto, arrays: dict, inputs: dict, order: Callable) -> Way:
        """Returns a Way that multiplies the output o of `node` by sigmoid(z). A bias comes as (1,T,S,H), as a linear
        layer of pairs stores it, and is transposed in the graph."""
        nodes = [node, helper.make_node("Sigmoid", ["z"], ["g"]), helper.make_node("Mul", ["o", "g"], ["y"])]
        if case.is_pair:
            arrays = {**arrays, "pairs": inputs["bias"].transpose(0, 2, 3, 1)}
            nodes.insert(0, helper.make_node("Transpose", ["pairs"], ["bias"], perm=[0, 3, 1, 2]))
        return self._way(case, nodes, arrays, {"y": arrays["q"].shape}, order)

    def _linear_attention(self, case: Case, inputs: dict) -> Way:
        """Returns the operator that follows ONNX's, on (B,T,H*D). Its kernel for CPUs has f32 alone. RMSNormalization
        normalises q and k, as it is faster than LpNormalization and has an epsilon."""
        packed = (case.B, case.T, case.Hq * case.D)
        arrays = _linear_arrays(inputs)
        arrays["v"] = arrays["v"].reshape(packed)
        constants = [
            helper.make_tensor("packed", TensorProto.INT64, [3], packed),
            helper.make_tensor("scale", TensorProto.FLOAT, [case.D], [1 / math.sqrt(case.D)] * case.D),
        ]
        nodes = []
        for name in "qk":
            eps = {"axis": -1, "epsilon": NORM_EPS / case.D}
            nodes += [
                helper.make_node("RMSNormalization", [name, "scale"], [f"normal_{name}"], **eps),
                helper.make_node("Reshape", [f"normal_{name}", "packed"], [f"packed_{name}"]),
            ]
        nodes.append(
            helper.make_node(
                "LinearAttention",
                ["packed_q", "packed_k", "v", "state", "decay", "beta"],
                ["y", "new_state"],
                domain="com.microsoft",
                q_num_heads=case.Hq,
                kv_num_heads=case.Hq,
            )
        )
        outputs = {"y": packed, "new_state": arrays["state"].shape}
        return self._way(case, nodes, arrays, outputs, lambda y: _head_first(case, y), constants)

    def _gated_delta_net(self, case: Case, inputs: dict) -> Way:
        """Returns ONNX Runtime's own operator, on (B,T,H,D) and transposed states, with kernels for bf16 too. It
        normalises q and k itself."""
        arrays = _linear_arrays(inputs)
        arrays["state"] = arrays["state"].swapaxes(2, 3)
        node = helper.make_node(
            "GatedDeltaNet",
            ["q", "k", "v", "", "decay", "beta", "state"],
            ["y", "new_state"],
            domain="com.microsoft",
            qk_l2_norm=1,
        )
        outputs = {"y": arrays["q"].shape, "new_state": arrays["state"].shape}
        return self._way(case, [node], arrays, outputs, lambda y: _head_first(case, y))

    def _way(self, case: Case, nodes: list, arrays: dict, outputs: dict, order: Callable, constants=()) -> Way:
        """Returns a Way that runs `nodes` on `arrays`. `outputs` maps names to shapes. `order` converts y to
        (B,H,T,D)."""
        bf16 = case.dtype == "bfloat16"

        def kind_of(name: str) -> int:
            wide = name in ("decay", "beta", "state", "new_state")  # f32 in every kernel
            return TensorProto.BFLOAT16 if bf16 and not wide else TensorProto.FLOAT

        def value_of(name: str, array: np.ndarray) -> onnxruntime.OrtValue:
            return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(array, kind_of(name))

        def stored(name: str, array: np.ndarray) -> np.ndarray:
            return np.ascontiguousarray(array) if kind_of(name) == TensorProto.FLOAT else bf16_bits(array)

        shapes = {name: array.shape for name, array in arrays.items()}
        infos = [
            [helper.make_tensor_value_info(name, kind_of(name), shape) for name, shape in named.items()]
            for named in (shapes, outputs)
        ]
        model = helper.make_model(
            helper.make_graph(nodes, "case", *infos, constants),
            opset_imports=[helper.make_opsetid("", 23), helper.make_opsetid("com.microsoft", 1)],
        )
        model.ir_version = 10
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = self.threads, 1
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
        binding = session.io_binding()
        # Values share the memory of arrays, which `held` keeps. ONNX Runtime makes no arrays of its own bf16 outputs.
        held = {name: stored(name, array) for name, array in arrays.items()}
        held |= {name: stored(name, np.zeros(shape, np.float32)) for name, shape in outputs.items()}
        for name, array in held.items():
            bind = binding.bind_ortvalue_output if name in outputs else binding.bind_ortvalue_input
            bind(name, value_of(name, array))

        def run():
            session.run_with_iobinding(binding)
            return held["y"]

        return Way(run, lambda y: [order(widen_bf16(y) if bf16 else y.copy())])


def _linear_arrays(inputs: dict) -> dict[str, np.ndarray]:
    """Returns the inputs of the delta rule as (B,T,H,…), with a state (B,H,D,D), which is zero before a prompt."""
    arrays = {name: inputs[name].swapaxes(1, 2) for name in LINEAR_INPUTS}
    B, _, H, D = arrays["q"].shape
    return {**arrays, "state": inputs.get("state", np.zeros((B, H, D, D), np.float32))}


def _head_first(case: Case, y: np.ndarray) -> np.ndarray:
    """Converts y (B,T,H,D), or with heads and features in one axis, to (B,H,T,D)."""
    return y.reshape(case.B, case.T, case.Hq, case.D).swapaxes(1, 2)
