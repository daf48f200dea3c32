# SPDX-License-Identifier: Apache-2.0
"""Runs Headgate's Python package with the precisions exact and native16."""

import torch

import headgate

from .cases import LAYER_WEIGHTS, LINEAR_INPUTS, NORM_EPS, ROPE_BASE, Case, Refused, Way
from .torch_common import arrays, attention_way, head_first, layer_ways, linear_tensors, tensors_of


class Exact:
    precision = "exact"
    linear = True
    pair = True
    listed = True

    def __init__(self, threads: int):
        self.threads = threads
        self.version = f"{headgate.__version__} ({headgate.active_target()})"
        torch.set_num_threads(threads)

    def ways(self, case: Case, inputs: dict) -> dict[str, Way]:
        if case.C:
            return self._layer(case, inputs)
        if case.is_linear:
            return self._linear(case, inputs)
        tensors = tensors_of(case, inputs)
        if case.is_pair:
            return self._pair(case, tensors)
        qkvz = [tensors[name] for name in "qkvz"]
        options = {
            "causality": "causal" if case.causal else "none",
            "threads": self.threads,
            "precision": self.precision,
        }

        def forward():
            return [headgate.attention(*qkvz, **options)]

        def training():
            out = headgate.attention_forward(*qkvz, **options)
            found = headgate.attention_backward(tensors["dy"], *qkvz, y=out.y, lse=out.lse, **options)
            return [out.y, found.dq, found.dk, found.dv, found.dgate]

        def statistics():
            out = headgate.attention_forward(*qkvz, **options)
            found = headgate.attention_statistics(
                out.lse, *qkvz, **options, outputs=["row_max", "entropy", "first", "key_mass"]
            )
            return [out.y, found.row_max, found.entropy, found.first, found.key_mass]

        if case.op == "statistics":
            return {"": Way(statistics, arrays)}
        run = training if case.op.endswith("+backward") else forward
        if case.is_listed:
            options["key_indices"] = tensors["lists"][None, None]
        return {"": Way(run, arrays)}

    def _pair(self, case: Case, tensors: dict) -> dict[str, Way]:
        """Returns attention with a bias, computed through autograd like that of the peers."""
        from headgate.torch import gated_attention

        def attention(q, k, v, z, bias):
            return gated_attention(q, k, v, gate=z, bias=bias, causality="none", precision=self.precision)

        return {"": attention_way(case, tensors, attention)}

    def _linear(self, case: Case, inputs: dict) -> dict[str, Way]:
        tensors = linear_tensors(case, inputs)
        given = {name: tensors[name] for name in LINEAR_INPUTS} | {"state": tensors.get("state")}
        given |= {name: given[name].unsqueeze(-1) for name in ("decay", "beta")}
        options = {"layout": "bthd", "l2_norm": NORM_EPS, "threads": self.threads, "precision": self.precision}
        step = (
            headgate.LinearAttentionOutputs(state=given["state"].clone()) if case.T == 1 else None
        )  # updated in place

        def forward():
            return [headgate.linear_attention(**given, **options)]

        def decode():
            return [headgate.linear_attention_forward(**{**given, "state": step.state}, out=step, **options).y]

        def first_decode():
            step.state.copy_(given["state"])
            return head_first(decode())

        def training():
            y = headgate.linear_attention(**given, **options)
            found = headgate.linear_attention_backward(tensors["dy"], **given, **options)
            return [y, found.dq, found.dk, found.dv, found.ddecay.squeeze(-1), found.dbeta.squeeze(-1)]

        if case.T == 1:
            return {"": Way(decode, lambda _: first_decode())}
        return {"": Way(forward if case.op == "linear" else training, head_first)}

    def _layer(self, case: Case, inputs: dict) -> dict[str, Way]:
        from headgate.torch import GatedAttention

        layer = GatedAttention(
            case.C, case.Hq, case.Hkv, case.D, rope_theta=ROPE_BASE, rms_norm_eps=NORM_EPS, precision=self.precision
        )
        return layer_ways(case, inputs, layer, LAYER_WEIGHTS)


class Native16(Exact):
    precision = "native16"

    def __init__(self, threads: int):
        super().__init__(threads)
        if not headgate.native16_products() and headgate.supported_native16_products():
            headgate.set_native16_products(headgate.supported_native16_products()[0])
        self.version += f", {headgate.native16_products() or 'no products of 16-bit numbers'}"

    def ways(self, case: Case, inputs: dict) -> dict[str, Way]:
        if case.dtype != "bfloat16":
            raise Refused("native16 is for bf16")
        if not headgate.native16_products():
            raise Refused("the CPU has no products of bf16 that headgate uses")
        return super().ways(case, inputs)
