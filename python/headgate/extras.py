# SPDX-License-Identifier: Apache-2.0
"""Imports optional packages. Errors name the pip extra that installs a missing package."""

import importlib
import re
from types import ModuleType

DISTRIBUTION = "headgate-attention"
"""Distribution name of this package on PyPI. The name `headgate` belongs to another project there."""

EXTRAS = {
    "jax": "jax",
    "matplotlib": "plot",
    "pandas": "frames",
    "torch": "torch",
    "transformers": "transformers",
    "triton": "triton",
}
"""Maps each optional package to the pip extra in pyproject.toml that installs it."""
FLOORS = {"jax": "0.10.0", "torch": "2.9.1", "transformers": "5.18.0"}
"""Oldest supported versions, which scripts/check_versions.py tests."""


def _numbers(version: str) -> tuple[int, ...]:
    """Returns the release part of a version, for example (2, 13, 0) for "2.13.0+cpu"."""
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, found[0].split("."))) if found else ()


def require(name: str, for_what: str) -> ModuleType:
    """Imports the module `name`.

    - If its package is missing, raises ModuleNotFoundError with the command that installs the package.
    - If the package is older than FLOORS allows, raises ImportError.
    - Errors from within the package are raised unchanged.
    """
    package = name.partition(".")[0]
    try:
        found, floor = importlib.import_module(package), FLOORS.get(package)
        if floor is not None and _numbers(found.__version__) < _numbers(floor):
            raise ImportError(f"{for_what} needs {package} >= {floor}, found {found.__version__}", name=package)
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        raise ModuleNotFoundError(
            f"{for_what} needs {package}, which is not installed: pip install '{DISTRIBUTION}[{EXTRAS[package]}]'",
            name=package,
        ) from None
