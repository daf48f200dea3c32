# SPDX-License-Identifier: Apache-2.0
"""The reference of the Python package: a page for each public module, whose docstrings mkdocstrings reads from the package
of build/python and its stub."""

import ast
import re
from pathlib import Path

import griffe

PACKAGE = Path(__file__).resolve().parents[2] / "build" / "python" / "headgate"
MODULES = (
    "headgate",
    "headgate.plot",
    "headgate.torch",
    "headgate.torch.fold",
    "headgate.torch.layouts",
    "headgate.torch.transformers",
)


class Docstrings(griffe.Extension):
    """Makes Markdown of docstrings. A class's list of attributes is left out, since its page has each with its own
    docstring. Indented lines below a sentence, such as formulas, are a block of code."""

    def on_instance(self, *, obj, **kwargs):
        if obj.docstring:
            text = re.sub(r"(?m)^Attributes, ([^\n:]+):(?:\n +.*)+", r"Attributes are \1.", obj.docstring.value)
            obj.docstring.value = re.sub(r"(?m)^(\S+ .*:)\n(?=    \S)", r"\1\n\n", text)


def file_of(module):
    path = PACKAGE.parent.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def defined(path):
    """The public functions and classes that a file defines, in its order."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = [node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))]
    return list(dict.fromkeys(name for name in found if not name.startswith("_")))


def names_of(module):
    """The public names of a module: those of its __all__ where that is a list, of headgate those of its extension module
    and of headgate.models, else what it defines."""
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
    """(name, Markdown) of every module."""
    if not (PACKAGE / "_headgate.pyi").exists():
        raise SystemExit(f"docs: {PACKAGE} has no package; `make docs` builds it")
    return [(module, page(module)) for module in MODULES]
