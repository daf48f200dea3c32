# SPDX-License-Identifier: Apache-2.0
"""Packages that headgate needs for some of what it does, and the extras that install them."""

import importlib
from types import ModuleType

EXTRAS = {"matplotlib": "plot", "pandas": "frames", "torch": "torch", "transformers": "transformers"}
"""The extra of pyproject.toml by the package that it adds."""


def require(name: str, for_what: str) -> ModuleType:
    """The module `name`. Raises ModuleNotFoundError, in one line that says how to install it, where its package is
    missing; what the package itself lacks is its own error."""
    package = name.partition(".")[0]
    try:
        importlib.import_module(package)
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        raise ModuleNotFoundError(
            f"{for_what} needs {package}, which is not installed: pip install 'headgate[{EXTRAS[package]}]'", name=package
        ) from None
