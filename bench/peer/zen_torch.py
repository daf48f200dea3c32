# SPDX-License-Identifier: Apache-2.0
"""Runs the gated delta rule with the operators of zentorch, AMD's plugin of PyTorch for EPYC.

A release of zentorch works with one release of PyTorch. 2.14.0.1 needs torch 2.14, which Headgate works with, too."""

import os

import torch

from .cases import NORM_EPS, Case, Refused, Way
from .torch_common import arrays, head_first, linear_tensors

CHUNK = 64


class Zentorch:
    linear = True

    def __init__(self, threads: int):
        os.environ.setdefault("ZENTORCH_LOG_LEVEL", "0")
        import zentorch

        torch.set_num_threads(threads)
        self.version = f"{zentorch.__version__}, torch {torch.__version__}"

    def ways(self, case: Case, inputs: dict) -> dict[str, Way]:
        """Returns the rule as vLLM's plugin calls it: in chunks for prompts, and a step on states in place for one
        token."""
        if not case.is_linear or case.op != "linear":
            raise Refused("the gated delta rule alone, without gradients")
        tensors = linear_tensors(case, inputs)
        return {"": self._token(case, tensors) if case.T == 1 else self._prompt(case, tensors)}

    def _prompt(self, case: Case, tensors: dict) -> Way:
        q, k, v, g, beta = (tensors[name].flatten(0, 1)[None] for name in ("q", "k", "v", "decay", "beta"))
        chunks = -(-case.T // CHUNK)
        begins = torch.arange(case.B + 1, dtype=torch.int32) * case.T
        offsets = torch.arange(case.B + 1, dtype=torch.int32) * chunks
        numbers = torch.arange(case.B * chunks, dtype=torch.int32)
        indices = torch.stack((numbers // chunks, numbers % chunks), dim=1)
        state = torch.zeros(case.B, case.Hq, case.D, case.D)
        scale = case.D**-0.5

        def run():
            normalized = (torch.ops.zentorch.gdn_l2norm_fwd(x, NORM_EPS) for x in (q, k))
            return torch.ops.zentorch.gdn_chunk_gated_delta_rule_fwd(
                *normalized, v, g, beta, scale, state, True, CHUNK, begins, indices, offsets
            )[0]

        return Way(run, lambda y: head_first([y.view(case.B, case.T, case.Hq, case.D)]))

    def _token(self, case: Case, tensors: dict) -> Way:
        """The operator takes logits: decay is -softplus(a), with A_log and dt_bias of 0, and beta is sigmoid(b). A row
        of `qkv` has all heads of q, then those of k and v. States are (B + 1,H,Dv,D), as the first one means none."""
        qkv = torch.cat([tensors[name][:, 0].flatten(1) for name in ("q", "k", "v")], dim=1)
        a = torch.expm1(-tensors["decay"][:, 0]).log().to(qkv.dtype)
        b = torch.logit(tensors["beta"][:, 0].float()).to(qkv.dtype)
        zeros, indices = torch.zeros(case.Hq), torch.arange(1, case.B + 1, dtype=torch.int32)
        first_state = torch.cat((torch.zeros_like(tensors["state"][:1]), tensors["state"].mT))
        state, y = first_state.clone(), tensors["v"].new_empty(case.B, 1, case.Hq, case.D)

        def run():
            torch.ops.zentorch.gdn_fused_recurrent_gated_delta_rule_packed_decode(
                qkv, a, b, zeros, zeros.to(qkv.dtype), case.D**-0.5, state, y, indices, True
            )
            return y

        def first(_):
            state.copy_(first_state)
            return arrays([run().transpose(1, 2)])

        return Way(run, first)
