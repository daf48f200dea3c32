# SPDX-License-Identifier: Apache-2.0
"""Runs headgate.jax on the CPU, as one jitted function with its gradients."""

import jax.numpy as jnp

import headgate
from headgate.jax import gated_attention, linear_attention

from .cases import LINEAR_INPUTS, NORM_EPS, Case, Refused, Way
from .jax_xla import Jax, jitted


class HeadgateJax(Jax):
    """Runs headgate.jax, on the threads of libheadgate."""

    linear = True
    pair = True
    listed = True

    def __init__(self, threads: int):
        super().__init__(threads)
        self.threads = threads
        self.version = f"{headgate.__version__} ({headgate.active_target()}), JAX {self.version}"

    def ways(self, case: Case, inputs: dict) -> dict[str, Way]:
        if case.C:
            raise Refused("layers are compared with PyTorch")
        if case.op == "statistics":
            raise Refused("headgate.jax has no statistics")
        return {"": self._linear(case, inputs) if case.is_linear else self._attention(case, inputs)}

    def _attention(self, case: Case, inputs: dict) -> Way:
        options = {"causality": "causal" if case.causal else "none", "threads": self.threads}
        lists = {"key_indices": jnp.asarray(inputs["lists"])[None, None]} if case.is_listed else {}

        def attention(q, k, v, z, bias=None):
            return gated_attention(q, k, v, z, bias=bias, **lists, **options)

        names = ["q", "k", "v", "z", *["bias"] * case.is_pair]
        return jitted(case, attention, _with_dy(case, inputs, names))

    def _linear(self, case: Case, inputs: dict) -> Way:
        options = {"l2_norm": NORM_EPS, "threads": self.threads}

        def prompt(q, k, v, decay, beta):
            return linear_attention(q, k, v, decay[..., None], beta[..., None], **options)

        def token(q, k, v, decay, beta, state):
            return list(
                linear_attention(q, k, v, decay[..., None], beta[..., None], state=state, return_state=True, **options)
            )

        kept = ("decay", "state")  # f32 in models of any dtype
        if case.T > 1:
            return jitted(case, prompt, _with_dy(case, inputs, [*LINEAR_INPUTS]), kept=kept)
        way = jitted(case, token, {name: inputs[name] for name in (*LINEAR_INPUTS, "state")}, kept=kept)
        return Way(way.run, lambda found: way.read(found[:1]))


def _with_dy(case: Case, inputs: dict, names: list[str]) -> dict:
    """Returns the arrays of these names, and dy if the case has gradients."""
    return {name: inputs[name] for name in [*names, *["dy"] * case.op.endswith("+backward")]}
