# SPDX-License-Identifier: Apache-2.0
"""Which modules of the package import which, and what importing the package does to OpenMP."""

import ast
import os
import subprocess
import sys
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


@pytest.mark.parametrize(("given", "wanted"), ((None, "'10000'"), ("77", "'77'")))
def test_import_lets_threads_of_openmp_sleep_soon_and_keeps_the_environment(given, wanted):
    deciding = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
    environment = {name: value for name, value in os.environ.items() if name not in deciding}
    environment |= {"OMP_DISPLAY_ENV": "VERBOSE", **({"GOMP_SPINCOUNT": given} if given else {})}
    command = [sys.executable, "-c", "import headgate, os; print(os.environ.get('GOMP_SPINCOUNT'))"]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    shown = [line.split("=")[1].strip() for line in result.stderr.splitlines() if "GOMP_SPINCOUNT" in line]
    if not shown:
        pytest.skip("OpenMP here is not GCC's")
    assert shown == [wanted]
    assert result.stdout == f"{given}\n"


def test_import_of_headgate_torch_does_not_import_the_compiler():
    pytest.importorskip("torch")
    code = "import headgate.torch, sys; print('torch._dynamo' in sys.modules, 'triton' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "False False\n"
