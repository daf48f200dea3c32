# SPDX-License-Identifier: Apache-2.0
"""Runs ggml's flash_attn_ext times a sigmoid, and its gated_delta_net, from the libraries of the package
llama-cpp-python."""

import ctypes
import importlib.metadata
import importlib.util
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np

from .cases import NORM_EPS, Case, Refused, Way, bf16_bits

F32, F16, BF16 = 0, 1, 30  # ggml_type
STATUS_SUCCESS = 0


class InitParams(ctypes.Structure):
    """The struct ggml_init_params of ggml.h."""

    _fields_ = [("mem_size", ctypes.c_size_t), ("mem_buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool)]


POINTER, INT, LONG, FLOAT = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_float
FUNCTIONS = {
    "ggml_init": (POINTER, InitParams),
    "ggml_free": (None, POINTER),
    "ggml_new_tensor_4d": (POINTER, POINTER, INT, LONG, LONG, LONG, LONG),
    "ggml_get_data": (POINTER, POINTER),
    "ggml_flash_attn_ext": (POINTER, POINTER, POINTER, POINTER, POINTER, POINTER, FLOAT, FLOAT, FLOAT),
    "ggml_sigmoid": (POINTER, POINTER, POINTER),
    "ggml_mul": (POINTER, POINTER, POINTER, POINTER),
    "ggml_l2_norm": (POINTER, POINTER, POINTER, FLOAT),
    "ggml_gated_delta_net": (POINTER, *[POINTER] * 7, LONG),  # older versions lack the last and ignore it
    "ggml_new_graph": (POINTER, POINTER),
    "ggml_build_forward_expand": (None, POINTER, POINTER),
    "ggml_backend_graph_compute": (INT, POINTER, POINTER),
    "ggml_backend_cpu_init": (POINTER,),
    "ggml_backend_cpu_set_n_threads": (None, POINTER, INT),
}
"""Types of the result and of the arguments of functions in ggml.h, ggml-backend.h and ggml-cpu.h."""


class Ggml:
    linear = True

    def __init__(self, threads: int):
        spec = importlib.util.find_spec("llama_cpp")  # importing it would also load llama.cpp
        if spec is None:
            raise ImportError("No module named 'llama_cpp'")
        folder = Path(spec.origin).parent / "lib"
        libraries = [
            ctypes.CDLL(str(folder / name), mode=ctypes.RTLD_GLOBAL) for name in ("libggml-base.so", "libggml-cpu.so")
        ]
        for name, (result, *arguments) in FUNCTIONS.items():
            function = getattr(libraries[0] if hasattr(libraries[0], name) else libraries[1], name)
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)
        self.version = f"of llama-cpp-python {importlib.metadata.version('llama-cpp-python')}"
        self.backend = self.ggml_backend_cpu_init()
        self.ggml_backend_cpu_set_n_threads(self.backend, threads)
        self.context = None

    def ways(self, case: Case, inputs: dict) -> dict[str, Way]:
        """Returns the ways of a case. K and V have its dtype. Queries and results are f32, as the kernel requires."""
        if case.op not in ("forward", "linear"):
            raise Refused("no backward pass" if "backward" in case.op else "for attention alone")
        if self.context:
            self.ggml_free(self.context)
        size = 64 * 2**20 + 4 * case.T * case.S + 16 * sum(array.nbytes for array in inputs.values())
        self.context = self.ggml_init(InitParams(size, None, False))
        if case.is_linear:
            return {"": self._delta_rule(case, inputs)}
        stored = BF16 if case.dtype == "bfloat16" else F32
        q = self._tensor(inputs["q"], F32)
        k, v = self._tensor(inputs["k"], stored), self._tensor(inputs["v"], stored)
        z = self._tensor(inputs["z"].swapaxes(1, 2), F32)  # (B,T,H,D), like the results of attention
        mask = self._tensor(self._causal_mask(case), F16) if case.causal else None
        y = self.ggml_flash_attn_ext(self.context, q, k, v, mask, 1 / math.sqrt(case.D), 0.0, 0.0)
        y = self.ggml_mul(self.context, y, self.ggml_sigmoid(self.context, z))
        run = self._computes(y)

        def read(y):
            shape = (case.B, case.T, case.Hq, case.D)
            return [self._view(y, np.float32, shape).swapaxes(1, 2).copy()]

        return {"": Way(run, read)}

    def _computes(self, y: int) -> Callable[[], int]:
        graph = self.ggml_new_graph(self.context)
        self.ggml_build_forward_expand(graph, y)

        def run():
            status = self.ggml_backend_graph_compute(self.backend, graph)
            if status != STATUS_SUCCESS:
                raise Refused(f"ggml_backend_graph_compute returned {status}")
            return y

        return run

    def _delta_rule(self, case: Case, inputs: dict) -> Way:
        """Returns the delta rule in f32, the only type of the kernel. Its states are transposed, and follow y in the
        result."""
        rows = {name: array.swapaxes(1, 2) for name, array in inputs.items() if name not in ("dy", "state")}
        q, k, v = (self._tensor(rows[name], F32) for name in "qkv")
        decay, beta = (self._tensor(rows[name][..., None], F32) for name in ("decay", "beta"))
        state = inputs.get("state", np.zeros((case.B, case.Hq, case.D, case.D), np.float32)).swapaxes(2, 3)
        q, k = (self.ggml_l2_norm(self.context, x, NORM_EPS) for x in (q, k))
        y = self.ggml_gated_delta_net(self.context, q, k, v, decay, beta, self._tensor(state, F32), 1)

        def read(y):
            shape = (case.B, case.T, case.Hq, case.D)
            return [self._view(y, np.float32, shape).swapaxes(1, 2).copy()]

        return Way(self._computes(y), read)

    @staticmethod
    def _causal_mask(case: Case) -> np.ndarray:
        """Returns a causal mask (1,1,T,S) to add to the scores."""
        hidden = np.triu(np.ones((case.T, case.S), dtype=bool), 1 + case.S - case.T)
        return np.where(hidden, -np.inf, 0).astype(np.float16)[None, None]

    def _view(self, tensor: int, dtype: type, shape: tuple[int, ...]) -> np.ndarray:
        bytes_ = math.prod(shape) * np.dtype(dtype).itemsize
        return np.frombuffer((ctypes.c_char * bytes_).from_address(self.ggml_get_data(tensor)), dtype).reshape(shape)

    def _tensor(self, array: np.ndarray, kind: int) -> int:
        """Copies an array to a new tensor of ggml, whose dimensions have the reverse order."""
        tensor = self.ggml_new_tensor_4d(self.context, kind, *reversed(array.shape))
        stored = {F32: lambda: array, F16: lambda: array, BF16: lambda: bf16_bits(array)}[kind]()
        self._view(tensor, stored.dtype.type, array.shape)[:] = stored
        return tensor
