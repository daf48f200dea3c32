# SPDX-License-Identifier: Apache-2.0
"""Adds a gate to an attention module of transformers: parameters and hooks.

Import this module only where a gate is added. It imports torch's compiler, which takes two seconds.
"""

import sys
import threading
from typing import Any

import torch
from torch import Tensor, nn

from .pending_gate import MATRIX, OLD_MATRIX, current_call, store_pending_gate, take_pending_gate
from .precision import IMPLEMENTATIONS
from .variant import GateVariant

# Maps the site of a gate to the projection whose output it multiplies. The attention kernel applies gates at g1.
PROJECTION_OF_SITE = {"g2": "v_proj", "g3": "k_proj", "g4": "q_proj", "g5": "o_proj"}
_moving = threading.Lock()


def _rename_old_matrix(_: nn.Module, state: dict[str, Any], prefix: str, *__: Any) -> None:
    """Renames the gate's tensors in `state`, a state dict of an older release. Called before an attention module loads
    `state`. A tensor whose new name is in `state` too keeps its old name, which load_state_dict reports as unexpected.
    """
    for part in ("weight", "bias"):
        old, new = f"{prefix}{OLD_MATRIX}.{part}", f"{prefix}{MATRIX}.{part}"
        if old in state and new not in state:
            state[new] = state.pop(old)


def _shard_as(weight: Tensor, gate: nn.Linear) -> None:
    """Shards the gate's heads over processes in the same way as `weight`. Does nothing if `weight` is not sharded."""
    loaded = sys.modules.get("torch.distributed.tensor")
    if loaded is not None and isinstance(weight, loaded.DTensor) and weight.placements[0].is_shard(0):
        from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

        parallelize_module(gate, weight.device_mesh, ColwiseParallel())


class AddedGate:
    """Adds hooks to an attention module. The hooks compute the gate's logits before the module runs, and apply the
    gate.

    The attention module owns the parameters of the gate, `attention_gate` or `gate`. The hooks are methods of this
    object. Copying the model also copies this object.
    """

    _projection: nn.Module | None = None
    """The projection that has the hook on_projection. Pickles of older releases lack this attribute."""

    def __init__(self, attention: nn.Module, variant: GateVariant):
        self.attention, self.variant = attention, variant
        q, config = attention.q_proj, attention.config
        self.head_dim = attention.head_dim
        self.heads, self.features = variant.logits(
            q.in_features, config.num_attention_heads, config.num_key_value_heads, self.head_dim
        )
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
        self._follow_projection(attention)

    def _follow_projection(self, attention: nn.Module) -> None:
        """Makes sure that the module's current projection has the hook on_projection.

        LoRA replaces a projection by a module that adds a product to the old projection's output. With this method, the
        gate acts on the sum.
        """
        name = PROJECTION_OF_SITE.get(self.variant.gate_site)
        if name is not None and getattr(attention, name) is not self._projection:
            self._move_hook(attention, name)

    @torch.compiler.disable
    def _move_hook(self, attention: nn.Module, name: str) -> None:
        with _moving:
            projection = getattr(attention, name)
            if projection is self._projection:  # another thread has already moved the hook
                return
            for module in attention.modules():
                for key, hook in list(module._forward_hooks.items()):
                    if hook == self.on_projection:
                        del module._forward_hooks[key]
            projection.register_forward_hook(self.on_projection)
            self._projection = projection

    def before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._follow_projection(module)
        h = args[0] if args else kwargs["hidden_states"]
        if self.variant.gate_source == "parameter":
            z = module.gate.expand(*h.shape[:-1], -1, -1)
        else:
            # A tensor-parallel process may have fewer heads than self.heads, so -1 infers their number.
            z = module.attention_gate(h).unflatten(-1, (-1, self.features))
        if self.variant.gate_site == "g1":
            store_pending_gate(module, self.variant.kernel_arguments(z))
            current_call.gated_module = module
        else:
            current_call.gate_logits = z

    def on_projection(self, _: nn.Module, __: Any, output: Tensor) -> Tensor:
        logits = current_call.gate_logits
        heads = output.unflatten(-1, (logits.shape[-2], -1))
        return self.variant.applied(heads, logits).flatten(-2)

    def after(self, module: nn.Module, _: Any, output: Any) -> None:
        current_call.gate_logits = current_call.gated_module = None
        if take_pending_gate(module) and output is not None:
            raise RuntimeError(
                f"retrofit: the gate of {type(module).__name__} was not applied: attn_implementation is "
                f"'{module.config._attn_implementation}' but must be {' or '.join(map(repr, IMPLEMENTATIONS))}"
            )
