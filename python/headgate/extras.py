# SPDX-License-Identifier: Apache-2.0
"""Optional packages, and the extras that install them."""

import importlib
from types import ModuleType

DISTRIBUTION = "headgate-attention"
"""What pip knows this package by. On PyPI the name of the module belongs to another project."""

EXTRAS = {
    "matplotlib": "plot",
    "pandas": "frames",
    "torch": "torch",
    "transformers": "transformers",
    "triton": "triton",
}
"""The extra of pyproject.toml by the package that it adds."""


def require(name: str, for_what: str) -> ModuleType:
    """Imports the module `name`. Raises ModuleNotFoundError, with the command that installs it, if its package is
    missing. Errors within the package are raised unchanged."""
    package = name.partition(".")[0]
    try:
        importlib.import_module(package)
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        raise ModuleNotFoundError(
            f"{for_what} needs {package}, which is not installed: pip install '{DISTRIBUTION}[{EXTRAS[package]}]'",
            name=package,
        ) from None
