# SPDX-License-Identifier: Apache-2.0
"""Generates the reference of the Python package: a page for each public module. mkdocstrings reads the docstrings from
the package in build/python and from its stub."""

import ast
import re
from pathlib import Path

import griffe

PACKAGE = Path(__file__).resolve().parents[2] / "build" / "python" / "headgate"
MODULES = (
    "headgate",
    "headgate.jax",
    "headgate.plot",
    "headgate.torch",
    "headgate.torch.fold",
    "headgate.torch.layouts",
    "headgate.torch.transformers",
)


class Docstrings(griffe.Extension):
    """Converts docstrings to Markdown. Removes a class's list of attributes, since the page shows each attribute with
    its own docstring. Indented lines after a colon, such as formulas, become a block of code."""

    def on_instance(self, *, obj, **kwargs):
        if obj.docstring:
            text = re.sub(r"(?m)^Attributes, ([^\n:]+):(?:\n +.*)+", r"Attributes are \1.", obj.docstring.value)
            obj.docstring.value = re.sub(r"(?m)^(\S+ .*:)\n(?=    \S)", r"\1\n\n", text)


def file_of(module):
    path = PACKAGE.parent.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def defined(path):
    """Returns the public functions and classes that a file defines, in its order."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = [node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))]
    return list(dict.fromkeys(name for name in found if not name.startswith("_")))


def names_of(module):
    """Returns the public names of a module: its __all__, or else the names that it defines. The names of headgate are
    those of its extension module and of headgate.models."""
    if module == "headgate":
        models = defined(PACKAGE / "models.py")
        return defined(PACKAGE / "_headgate.pyi") + models
    for node in ast.parse(file_of(module).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            return ast.literal_eval(node.value)
    return defined(file_of(module))


def page(module):
    out = [f"# {module}", f"::: {module}\n    options:\n      members: false\n      show_root_heading: false"]
    for name in names_of(module):
        out.append(f"::: {module}.{name}")
    return "\n\n".join(out) + "\n"


def pages():
    """Returns (name, Markdown) for every module."""
    if not (PACKAGE / "_headgate.pyi").exists():
        raise SystemExit(f"docs: {PACKAGE} has no package; `make docs` builds it")
    return [(module, page(module)) for module in MODULES]
