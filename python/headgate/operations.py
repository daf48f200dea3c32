# SPDX-License-Identifier: Apache-2.0
"""Lists the arguments of the operations. They are read from tables of libheadgate's core: attention_tensors.hpp,
attention_options.hpp, linear_attention_rows.hpp, short_convolution_rows.hpp and gated_norm_rows.hpp.

headgate.torch and headgate.jax use these lists to tell tensors from options. A new argument needs only a new row in a
table of the core.
"""

from typing import Any, NamedTuple

from . import _headgate


class Option(NamedTuple):
    """Describes an option of an operation.

    - type, default: as in the schema of the PyTorch operator
    - part: the part of the operation that the option changes, such as "scores"
    - forward_only: whether only forward passes support the option
    - annotation: the type for type checkers
    """

    type: str
    default: Any
    part: str
    forward_only: bool
    annotation: str


class Operation:
    """Describes the arguments of an operation: names of tensors, and options by name."""

    def __init__(self, rows: dict[str, Any]):
        inputs = rows["inputs"]
        self.required = tuple(name for name, required, _ in inputs if required)
        self.optional = tuple(name for name, required, _ in inputs if not required)
        self.tensors = self.required + self.optional
        self.forward_only = tuple(name for name, _, forward_only in inputs if forward_only)
        """Inputs that only forward passes support. A call with one of them has no gradients."""
        self.differentiable = tuple(rows["gradients"])
        """Inputs with a gradient, in the order in which the backward pass returns the gradients."""
        self.options = {"layout": Option("str", "bhtd", "layout", False, rows["layout"])} if rows["layout"] else {}
        self.options |= {name: Option(*option) for name, *option in rows["options"]}

    def schema_of_tensors(self) -> str:
        """Returns the inputs as text of a PyTorch operator schema."""
        return ", ".join(
            [f"Tensor {name}" for name in self.required] + [f"Tensor? {name}=None" for name in self.optional]
        )

    def schema_of_options(self) -> str:
        """Returns the options as text of a PyTorch operator schema. Compiled programs are specialized on the values of
        an "int", but not of a "SymInt", so that a new dropout_seed does not compile them again."""
        types = {name: "SymInt" if option.type == "int" else option.type for name, option in self.options.items()}
        return ", ".join(f"{types[name]} {name}={_literal(option.default)}" for name, option in self.options.items())

    def changed(self, options: dict[str, Any]) -> dict[str, Any]:
        """Returns the options that differ from their defaults."""
        return {name: value for name, value in options.items() if value != self.options[name].default}

    def defaults(self) -> dict[str, Any]:
        """Returns the default of each option."""
        return {name: option.default for name, option in self.options.items()}


OPTION_TYPES = {"str": str, "int": int, "float": float, "float?": float | None}
"""Maps the types of options in a schema to Python types."""
OPTION_WORDS = {"str": "a word", "int": "a whole number of 64 bits", "float": "a number", "float?": "a number or None"}
"""Describes the types of options in error messages."""


def _literal(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)


ATTENTION = Operation(_headgate._rows)
LINEAR_ATTENTION = Operation(_headgate._linear_rows)
SHORT_CONVOLUTION = Operation(_headgate._convolution_rows)
GATED_NORM = Operation(_headgate._norm_rows)

_HAS_ZERO = dict(_headgate._rows["gate_functions"])


def keeps_output(gate_fn: str, gate_op: str, is_f16: bool = False) -> bool:
    """Returns whether the forward pass must save the output before the gate for the backward pass.

    - If gate_fn can be 0, that output cannot be computed from y.
    - If the gate is added, y minus the gate would suffer from cancellation.
    - In f16, y loses digits behind nearly closed gates, since numbers below 2⁻¹⁴ are subnormal.
    """
    return gate_fn in _HAS_ZERO and (gate_op == "add" or _HAS_ZERO[gate_fn] or is_f16)
