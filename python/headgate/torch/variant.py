# SPDX-License-Identifier: Apache-2.0
"""Describes where and how a layer is gated. The words are those of config.json and `headgate train`.

docs/reference/training.md defines them.
"""

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

from torch import Tensor

from .checks import require_word
from .layer import GATE_FUNCTIONS, apply_gate, gate_values, logits_of_gate

if TYPE_CHECKING:
    from headgate._arguments import GateFunction

# Allowed values of the keys of a GateVariant.
Site = Literal["none", "g1", "g2", "g3", "g4", "g5"]
Grain = Literal["elementwise", "headwise", "head_shared"]
Source = Literal["input", "parameter"]
Operation = Literal["mul", "add"]
Bias = Literal["none", "bias"]
Control = Literal["none", "head_rmsnorm", "output_silu"]
Sinks = Literal["none", "learned_sinks", "off_by_one"]
SITES, GRAINS, SOURCES, OPERATIONS = map(get_args, (Site, Grain, Source, Operation))
BIASES, CONTROLS, SINKS = map(get_args, (Bias, Control, Sinks))
FUNCTIONS = tuple(GATE_FUNCTIONS)


@dataclass(frozen=True)
class GateVariant:
    """Holds the keys of config.json that select a gate, a control of attention's output, or sinks."""

    gate_site: Site = "none"
    gate_grain: Grain = "elementwise"
    gate_source: Source = "input"
    gate_fn: "GateFunction" = "sigmoid"
    gate_op: Operation = "mul"
    gate_bias: Bias = "none"
    attention_output_control: Control = "none"
    attention_sinks: Sinks = "none"

    def __post_init__(self) -> None:
        for key, words in WORDS.items():
            require_word(key, getattr(self, key), words)
        if not self.has_gate:
            if self.gate_bias != "none":
                raise ValueError("gate_bias: a bias needs a gate")
            return
        if self.attention_output_control != "none":
            raise ValueError(
                f"attention_output_control: {self.attention_output_control} is a control for a layer without a gate, "
                f"not with {self.gate_site}"
            )
        if self.gate_site == "g5" and self.gate_grain == "head_shared":
            raise ValueError("gate_grain: the output of W_o (g5) has no heads to share a gate")
        if self.gate_source == "parameter" and self.gate_bias != "none":
            raise ValueError("gate_bias: an input-independent gate is a bias already")

    @property
    def has_gate(self) -> bool:
        return self.gate_site != "none"

    @property
    def name(self) -> str:
        """Returns the variant's name as Headgate's programs spell it."""
        gate = (self.gate_site, self.gate_grain, self.gate_fn, self.gate_op, self.gate_source, self.gate_bias)
        parts: list[str] = [word for word in gate if word not in ("input", "none")] if self.has_gate else []
        parts += [word for word in (self.attention_output_control, self.attention_sinks) if word != "none"]
        return "-".join(parts) or "none"

    def logits(self, hidden_size: int, heads: int, kv_heads: int, head_dim: int) -> tuple[int, int]:
        """Returns (heads, features) of the gate's logits for one token. Returns (0, 0) without a gate."""
        return logits_of_gate(self, hidden_size, heads, kv_heads, head_dim)

    def values(self, gate: Tensor) -> Tensor:
        """Computes g(z) for the logits `gate` (B,T,heads,features). If all heads share one gate, returns the mean over
        the heads, (B,T,1,features).
        """
        return gate_values(self, gate)

    def applied(self, y: Tensor, gate: Tensor) -> Tensor:
        """Applies the gate with logits `gate` to y (B,T,heads,features)."""
        return apply_gate(self, y, gate)

    def kernel_arguments(self, gate: Tensor) -> dict[str, Any]:
        """Returns the arguments of gated_attention for a gate at g1 with logits `gate`.

        If all heads share one gate, computes g here. The result is then passed as logits of the identity function.
        """
        if self.gate_grain != "head_shared":
            return {"gate": gate, "gate_fn": self.gate_fn, "gate_op": self.gate_op}
        return {"gate": self.values(gate).expand_as(gate), "gate_fn": "identity", "gate_op": self.gate_op}


WORDS = {
    "gate_site": SITES,
    "gate_grain": GRAINS,
    "gate_source": SOURCES,
    "gate_fn": FUNCTIONS,
    "gate_op": OPERATIONS,
    "gate_bias": BIASES,
    "attention_output_control": CONTROLS,
    "attention_sinks": SINKS,
}
KEYS = tuple(field.name for field in fields(GateVariant))


def _leading_word(text: str, taken: dict[str, str]) -> tuple[str, str] | None:
    """Returns the key and the value that `text` begins with. WORDS lists the values of each key.

    Prefers the longest value. Skips keys in `taken`. Returns None if `text` begins with no value.
    """
    found = [
        (key, word)
        for key, words in WORDS.items()
        for word in words
        if word != "none" and key not in taken and (text == word or text.startswith(word + "_"))
    ]
    return max(found, key=lambda pair: len(pair[1]), default=None)


def parse_gate(name: str) -> GateVariant:
    """Parses a name in the form of GateVariant.name: words in any order, joined by '-'.

    If a word describes a gate, missing words default to g1, elementwise, sigmoid, mul and input. For example,
    "headwise" is a headwise sigmoid gate at g1.
    """
    if not isinstance(name, str):
        raise ValueError(f"gate {name!r} is not understood: it must be a name such as 'g1-headwise'")
    rest = name.replace("-", "_")
    if rest == "none":
        return GateVariant()
    taken: dict[str, Any] = {}
    while rest:
        found = _leading_word(rest, taken)
        if found is None:
            break
        taken[found[0]] = found[1]
        rest = rest[len(found[1]) + 1 :]
    if rest or not taken:
        known = "; ".join(" ".join(word for word in words if word != "none") for words in WORDS.values())
        raise ValueError(f"gate '{name}': '{rest}' is not understood there; none, or words of: {known}")
    gated = any(key.startswith("gate_") for key in taken)
    return replace(GateVariant(gate_site="g1") if gated else GateVariant(), **taken)
