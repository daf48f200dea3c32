# SPDX-License-Identifier: Apache-2.0
"""Runs ONNX Runtime on the CPU: each of its attention operators, times a sigmoid."""

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

from .cases import Case, Refused, Way, bf16_bits, widen_bf16


class OnnxRuntime:
    def __init__(self, threads: int):
        self.threads = threads
        self.version = onnxruntime.__version__
        onnxruntime.set_default_logger_severity(4)  # errors are raised as exceptions, too

    def ways(self, case: Case, inputs: dict) -> dict[str, Way]:
        if case.op != "forward":
            raise Refused("no backward pass" if "backward" in case.op else "for attention alone")
        builders = {"Attention": self._attention, "MultiHeadAttention": self._multi_head}
        if case.Hq != case.Hkv:
            del builders["MultiHeadAttention"]  # needs as many query heads as key/value heads
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
        node = helper.make_node("Attention", ["q", "k", "v"], ["o"], is_causal=int(case.causal))
        arrays = {name: inputs[name] for name in "qkvz"}
        return self._way(case, node, arrays, lambda y: y)

    def _multi_head(self, case: Case, inputs: dict) -> Way:
        """Returns ONNX Runtime's own operator, on (B,T,H*D). Without a mask, its kernel only holds tiles of the scores,
        not all of them."""
        node = helper.make_node(
            "MultiHeadAttention",
            ["q", "k", "v"],
            ["o"],
            domain="com.microsoft",
            num_heads=case.Hq,
            unidirectional=int(case.causal),
        )
        arrays = {name: inputs[name].swapaxes(1, 2).reshape(case.B, inputs[name].shape[2], -1) for name in "qkvz"}
        return self._way(case, node, arrays, lambda y: y.reshape(case.B, case.T, case.Hq, case.D).swapaxes(1, 2))

    def _way(self, case: Case, node: onnx.NodeProto, arrays: dict, order) -> Way:
        bf16 = case.dtype == "bfloat16"
        kind = TensorProto.BFLOAT16 if bf16 else TensorProto.FLOAT
        values = [helper.make_tensor_value_info(name, kind, array.shape) for name, array in arrays.items()]
        gate = [helper.make_node("Sigmoid", ["z"], ["g"]), helper.make_node("Mul", ["o", "g"], ["y"])]
        graph = helper.make_graph(
            [node, *gate], "gated_attention", values, [helper.make_tensor_value_info("y", kind, arrays["q"].shape)]
        )
        model = helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", 23), helper.make_opsetid("com.microsoft", 1)]
        )
        model.ir_version = 10
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = self.threads, 1
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
        binding = session.io_binding()
        held = {}
        for name, array in arrays.items():
            array = np.ascontiguousarray(array)
            held[name] = (
                onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(bf16_bits(array), kind)
                if bf16
                else onnxruntime.OrtValue.ortvalue_from_numpy(array)
            )
            binding.bind_ortvalue_input(name, held[name])
        binding.bind_output("y")

        def run():
            session.run_with_iobinding(binding)
            return binding.get_outputs()[0]

        def read(value):
            y = value.numpy()
            return [order(widen_bf16(y) if bf16 else y)]

        return Way(run, read)
