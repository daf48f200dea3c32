# SPDX-License-Identifier: Apache-2.0
"""Adds gates to models of transformers that have none. At first, the gates do not change the output."""

import copy
import os
import re
from typing import Any

import torch
from torch import nn

from .gates import GATE_FUNCTIONS
from .pending_gate import MATRIX, OLD_MATRIX, PARAMETER
from .variant import KEYS, GateVariant, parse_gate

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj")


def _require_identity(variant: GateVariant) -> None:
    if not variant.has_gate:
        raise ValueError(f"retrofit: '{variant.name}' has no gate")
    if variant.attention_sinks != "none":
        raise ValueError(f"retrofit: {variant.attention_sinks} would change the model from the start")
    start = GATE_FUNCTIONS[variant.gate_fn].compute(torch.zeros((), device="cpu")).item()
    if start != (0.0 if variant.gate_op == "add" else 1.0):
        raise ValueError(
            f"retrofit: {variant.name} does not start as the identity: g(0) is {start:.3g}; sigmoid2-mul, silu-add and "
            "identity-add do"
        )


GATE_NAMES = (MATRIX, PARAMETER, OLD_MATRIX, "g_proj")
"""Attributes that only an attention module with a gate has."""


def _require_known(name: str, attention: nn.Module) -> None:
    """Raises ValueError if an attention module does not have the sizes of Llama's attention, or already has a gate.

    The module must have q_proj, k_proj, v_proj and o_proj.
    """
    what, config = f"{name} ({type(attention).__name__})", getattr(attention, "config", None)
    head_dim = getattr(attention, "head_dim", None)
    sizes = [getattr(config, key, None) for key in ("num_attention_heads", "num_key_value_heads")]
    if not all(isinstance(size, int) for size in (head_dim, *sizes)):
        raise ValueError(f"retrofit: {what} does not say how many heads it has, and of how many features")
    q, kv = (count * head_dim for count in sizes)
    found = [*(getattr(attention, p).out_features for p in PROJECTIONS[:3]), attention.o_proj.in_features]
    gated = found[0] in (2 * q, q + sizes[0]) or any(hasattr(attention, n) for n in GATE_NAMES)
    if gated:
        raise ValueError(f"retrofit: {what} has a gate already")
    if found != [q, kv, kv, q]:
        raise ValueError(
            f"retrofit: {what} is not known: q_proj, k_proj and v_proj have {found[0]}, {found[1]} and {found[2]} "
            f"outputs and o_proj {found[3]} inputs, not {q}, {kv}, {kv} and {q}"
        )


def _give_own_config(model: nn.Module) -> None:
    """Replaces a model's config, including nested configs, by a copy in every module. Other models may share the
    original.
    """
    from transformers import PretrainedConfig

    copies: dict[int, Any] = {}
    copy.deepcopy(model.config, copies)
    for module in model.modules():
        for name, value in list(vars(module).items()):
            if isinstance(value, PretrainedConfig) and id(value) in copies:
                setattr(module, name, copies[id(value)])


def retrofit(model: nn.Module, gate: str | GateVariant = "g1-elementwise-sigmoid2") -> nn.Module:
    """Adds a gate to every attention module of a transformers model, in place, and returns the model.

    A new matrix `attention_gate` of zeros computes the gate from the layer's input. If the gate does not depend on the
    input, it is a parameter `gate` of zeros. A gate with logits 0 must have no effect: allowed are multiplied sigmoid2,
    and added silu or identity. The model's output is then unchanged until the gates are trained.

    Sets the attention implementation to "headgate", which applies a gate at g1 in its kernel. Gives the model a
    separate copy of the config, with the keys of the gate. Load a saved model with load_retrofit. from_pretrained would
    drop the gates.

    Raises ValueError, before any change, unless the model's attention is like Llama's: it needs q_proj, k_proj, v_proj
    and o_proj, with heads of equal size.
    """
    from transformers import PreTrainedModel

    from .added_gate import AddedGate
    from .transformers import register

    variant = gate if isinstance(gate, GateVariant) else parse_gate(gate)
    _require_identity(variant)
    kind = type(model).__name__
    if not isinstance(model, PreTrainedModel):
        raise ValueError(f"retrofit: {kind} is no model of transformers")
    found = {
        name: module
        for name, module in model.named_modules()
        if all(isinstance(getattr(module, p, None), nn.Linear) for p in PROJECTIONS)
    }
    if not found or not model._can_set_attn_implementation():
        raise ValueError(f"retrofit: {kind} has no attention that is known: one with {', '.join(PROJECTIONS)}")
    for name, attention in found.items():
        _require_known(name, attention)
    _give_own_config(model)
    model.set_attn_implementation(register())
    for attention in found.values():
        AddedGate(attention, variant)
    for key in KEYS:
        setattr(model.config, key, getattr(variant, key))
    return model


def gate_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Returns a dict of the gates' parameters by their names in the model. Use it to train or save only the gates.

    If an adapter such as LoRA changes a gate, the dict includes the adapter's parameters.
    """
    from .added_gate import AddedGate

    attentions = [
        f"{name}." if name else ""
        for name, module in model.named_modules()
        if any(isinstance(getattr(hook, "__self__", None), AddedGate) for hook in module._forward_pre_hooks.values())
    ]
    own = {attention + PARAMETER for attention in attentions}
    matrices = tuple(f"{attention}{MATRIX}." for attention in attentions)
    return {name: p for name, p in model.named_parameters() if name in own or name.startswith(matrices)}


_HUB = ("cache_dir", "force_download", "local_files_only", "revision", "subfolder", "token")
"""Options of from_pretrained that locate the files. load_retrofit passes them on when it reads the config."""


def load_retrofit(directory: str | os.PathLike[str], **options: Any) -> nn.Module:
    """Loads a retrofitted model, with its gates, from the files that save_pretrained wrote.

    The model has the class that config.json names, and the attention implementation "headgate". `directory` and
    `options` are the arguments of from_pretrained, such as dtype. Raises ValueError if the files contain no gates.
    """
    import transformers

    config = transformers.AutoConfig.from_pretrained(directory, **{k: options[k] for k in _HUB if k in options})
    keys = {key: getattr(config, key) for key in KEYS if hasattr(config, key)}
    if keys.get("gate_site", "none") == "none":
        raise ValueError(f"load_retrofit: '{directory}' is no retrofitted model: its config.json has no gate_site")
    variant = GateVariant(**keys)
    name = (config.architectures or ["none"])[0]
    kind = getattr(transformers, name, None)
    if kind is None:
        raise ValueError(f"load_retrofit: '{directory}' has architecture {name}, which is no class of transformers")

    def init(self: nn.Module, *args: Any, **kwargs: Any) -> None:
        kind.__init__(self, *args, **kwargs)
        retrofit(self, variant)

    # The constructor of a temporary subclass adds the gates, so that from_pretrained also loads their parameters.
    gated: Any = type(name, (kind,), {"__init__": init, "__module__": kind.__module__})
    old_matrix = {rf"(\w*att\w*)\.{re.escape(OLD_MATRIX)}\.": rf"\1.{MATRIX}."}
    model, found = gated.from_pretrained(directory, key_mapping=old_matrix, output_loading_info=True, **options)
    model.__class__ = kind
    # Removes the rule that renames OLD_MATRIX to MATRIX. save_pretrained would apply it in reverse.
    kept = [c for c in model._weight_conversions if not any(MATRIX in target for target in c.target_patterns)]
    model._weight_conversions = kept
    missing = sorted(set(gate_parameters(model)) & set(found["missing_keys"]))
    if missing:
        raise ValueError(f"load_retrofit: '{directory}' has no {missing[0]}: its files have no gates")
    return model
