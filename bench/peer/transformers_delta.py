# SPDX-License-Identifier: Apache-2.0
"""Runs the gated delta rule with the functions that models of transformers use on CPUs."""

import torch
import transformers
from transformers.models.qwen3_5.modeling_qwen3_5 import torch_chunk_gated_delta_rule, torch_recurrent_gated_delta_rule

from .cases import LINEAR_INPUTS, Case, Refused, Way
from .torch_common import gradients, head_first, linear_tensors


class Transformers:
    linear = True

    def __init__(self, threads: int):
        torch.set_num_threads(threads)
        self.version = f"{transformers.__version__}, torch {torch.__version__}"

    def ways(self, case: Case, inputs: dict) -> dict[str, Way]:
        """Returns the rule as models call it, eagerly: in chunks for prompts and training, or the recurrence for one
        token."""
        if not case.is_linear:
            raise Refused("for the gated delta rule alone")
        tensors = linear_tensors(case, inputs)
        leaves = [tensors[name] for name in LINEAR_INPUTS]
        rule = torch_recurrent_gated_delta_rule if case.T == 1 else torch_chunk_gated_delta_rule
        keeps = {"initial_state": tensors.get("state"), "output_final_state": case.T == 1}

        def forward():
            with torch.no_grad():
                return [rule(*leaves, **keeps, use_qk_l2norm_in_kernel=True)[0]]

        def training():
            y, _ = rule(*leaves, **keeps, use_qk_l2norm_in_kernel=True)
            return gradients(y, tensors["dy"], leaves)

        if case.op == "linear+backward":
            leaves = [tensor.requires_grad_() for tensor in leaves]
            return {"": Way(training, head_first)}
        return {"": Way(forward, head_first)}
