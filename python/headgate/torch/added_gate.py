# SPDX-License-Identifier: Apache-2.0
"""The gate of an attention module of transformers: its parameters, its hooks, and how the module's kernel gets it."""

import sys
from typing import Any

import torch
from torch import Tensor, nn

from .variant import GateVariant

# The projection whose output a gate acts on; g1 is in the kernel.
PROJECTION_OF_SITE = {"g2": "v_proj", "g3": "k_proj", "g4": "q_proj", "g5": "o_proj"}
# The names of a gate's matrix, and of the parameter of a gate that does not depend on the input. No other module of a
# model has the matrix's name, so that a choice of modules by name, such as LoRA's, never includes gates by accident.
MATRIX, PARAMETER = "attention_gate", "gate"
# The matrix's name in older files. A matrix of the MLP has the same name.
OLD_MATRIX = "gate_proj"
# Where an attention module keeps, during a call, what its kernel is to apply.
_PENDING = "_headgate_gate"


def take_gate(module: nn.Module) -> dict[str, Any]:
    """The gate that a retrofitted attention module holds for its kernel, which then has it; empty for other modules."""
    found = getattr(module, _PENDING, None)
    if found is None:
        return {}
    setattr(module, _PENDING, None)
    return found


def require_gate(attention: nn.Module) -> None:
    """Raises ValueError if an attention module lacks the gate that its model's config names, as after from_pretrained
    of a retrofitted model."""
    site = getattr(getattr(attention, "config", None), "gate_site", "none")
    if site != "none" and not any(hasattr(attention, name) for name in (MATRIX, PARAMETER)):
        raise ValueError(
            f"headgate: {type(attention).__name__}: the config has a gate at {site} but the model has none: load it "
            "with headgate.torch.load_retrofit, or set the config's gate_site to 'none'"
        )


def _rename_old_matrix(_: nn.Module, state: dict[str, Any], prefix: str, *__: Any) -> None:
    """Renames a gate's tensors of older files in `state`, before an attention module loads them."""
    for part in ("weight", "bias"):
        if f"{prefix}{OLD_MATRIX}.{part}" in state:
            state[f"{prefix}{MATRIX}.{part}"] = state.pop(f"{prefix}{OLD_MATRIX}.{part}")


def _shard_as(weight: Tensor, gate: nn.Linear) -> None:
    """Gives each process the rows of the gate for its heads, where processes share the heads of `weight`."""
    loaded = sys.modules.get("torch.distributed.tensor")
    if loaded is not None and isinstance(weight, loaded.DTensor) and weight.placements[0].is_shard(0):
        from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

        parallelize_module(gate, weight.device_mesh, ColwiseParallel())


class AddedGate:
    """The gate of an attention module: computes its logits before the module runs, and sees that they are applied.

    The parameters are the module's own, `attention_gate` or `gate`. Methods of this object are the module's hooks;
    copies of the model have copies of it.
    """

    def __init__(self, attention: nn.Module, variant: GateVariant):
        self.attention, self.variant = attention, variant
        q, config = attention.q_proj, attention.config
        self.head_dim = attention.head_dim
        self.heads, self.features = variant.logits(
            q.in_features, config.num_attention_heads, config.num_key_value_heads, self.head_dim
        )
        self.logits: Tensor | None = None
        rows, like = self.heads * self.features, {"dtype": q.weight.dtype, "device": q.weight.device}
        if variant.gate_source == "parameter":
            attention.gate = nn.Parameter(torch.zeros(self.heads, self.features, **like))
        else:
            attention.attention_gate = nn.Linear(q.in_features, rows, bias=variant.gate_bias == "bias", **like)
            for parameter in attention.attention_gate.parameters():
                nn.init.zeros_(parameter)
            if variant.gate_site != "g5":
                _shard_as(q.weight, attention.attention_gate)
            attention.register_load_state_dict_pre_hook(_rename_old_matrix)
        attention.register_forward_pre_hook(self.before, with_kwargs=True)
        attention.register_forward_hook(self.after, always_call=True)
        if variant.gate_site in PROJECTION_OF_SITE:
            getattr(attention, PROJECTION_OF_SITE[variant.gate_site]).register_forward_hook(self.on_projection)

    def before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        h = args[0] if args else kwargs["hidden_states"]
        if self.variant.gate_source == "parameter":
            z = module.gate.expand(*h.shape[:-1], -1, -1)
        else:
            z = module.attention_gate(h).unflatten(-1, (-1, self.features))  # the heads of this process
        if self.variant.gate_site == "g1":
            setattr(module, _PENDING, self.variant.kernel_arguments(z))
        else:
            self.logits = z

    def on_projection(self, _: nn.Module, __: Any, output: Tensor) -> Tensor:
        heads = output.unflatten(-1, (self.logits.shape[-2], -1))
        return self.variant.applied(heads, self.logits).flatten(-2)

    def after(self, module: nn.Module, _: Any, output: Any) -> None:
        self.logits = None
        if take_gate(module) and output is not None:
            raise RuntimeError(
                f"retrofit: the gate of {type(module).__name__} was not applied: attn_implementation is "
                f"'{module.config._attn_implementation}' but must be 'headgate'"
            )
