# SPDX-License-Identifier: Apache-2.0
"""Which modules of the package import which."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "python" / "headgate"


def imports_of(file):
    """The modules of its folder that a module imports, also within functions."""
    nodes = ast.walk(ast.parse(file.read_text()))
    return {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.level == 1 and node.module}


@pytest.mark.parametrize("folder", (PACKAGE, PACKAGE / "torch"), ids=lambda folder: folder.name)
def test_imports_modules_of_a_folder_form_no_circle(folder):
    imported = {file.stem: imports_of(file) for file in folder.glob("*.py")}
    assert len(imported) > 4

    def visit(module, path):
        assert module not in path, " -> ".join([*path, module])
        for other in imported.get(module, ()):
            visit(other, [*path, module])

    for module in imported:
        visit(module, [])
