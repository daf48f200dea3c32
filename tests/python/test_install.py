# SPDX-License-Identifier: Apache-2.0
"""Checks an installation: the first program of a document without extras, errors that name missing extras, ccache."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
import types
from pathlib import Path

import pytest

import headgate
from headgate import extras

ROOT = Path(__file__).resolve().parents[2]
WITHOUT = """
import sys
for name in {names}:
    sys.modules[name] = None
"""


def run_without(names, code, **options):
    """Runs Python without these packages."""
    return subprocess.run([sys.executable, "-c", WITHOUT.format(names=list(names)) + code], capture_output=True,
                          text=True, **options)  # fmt: skip


def test_program_of_the_document_without_extras_runs(tmp_path):
    text = (ROOT / "docs" / "reference" / "python.md").read_text()
    section = text[text.index("## Install") : text.index("## Attention")]
    shell, program = (re.search(rf"```{kind}\n(.*?)```", section, re.DOTALL)[1] for kind in ("sh", "python"))
    install, train = shell.splitlines()
    assert install.startswith("pip install . ")
    shutil.copy(ROOT / "LICENSE", tmp_path)
    name, *arguments = train.split()
    assert name == "headgate"
    subprocess.run([os.environ["HEADGATE_TOOL"], *arguments], cwd=tmp_path, check=True, capture_output=True)
    found = run_without(extras.EXTRAS, program, cwd=tmp_path)
    assert found.returncode == 0, found.stderr
    assert "Evaluation(" in found.stdout and "Head(" in found.stdout
    for named in re.findall(r"pip install '\.\[(.*?)\]'", section):
        assert set(named.split(",")) == set(extras.EXTRAS.values())


def test_extras_are_those_of_the_project():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(project) == set(extras.EXTRAS.values())
    for package, extra in extras.EXTRAS.items():
        assert any(re.split("[<>=]", requirement)[0] == package for requirement in project[extra])


def test_floors_of_the_project_are_those_that_imports_check():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for package, floor in extras.FLOORS.items():
        assert f"{package}>={floor}" in project[extras.EXTRAS[package]]


@pytest.mark.parametrize(
    "found, fits",
    [
        ("2.9.0", False),
        ("2.8.1+cu128", False),
        ("1.13", False),
        ("2.9.1", True),
        ("2.10.0a0", True),
        ("2.13.0+cpu", True),
    ],
)
def test_package_older_than_its_floor_is_named(found, fits, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(__version__=found))
    if fits:
        assert extras.require("torch", "headgate.torch").__version__ == found
        return
    with pytest.raises(ImportError, match=f"^{re.escape(f'headgate.torch needs torch >= 2.9.1, found {found}')}$"):
        extras.require("torch", "headgate.torch")


@pytest.mark.parametrize(
    "package, code, message",
    (
        ("pandas", "headgate.Evaluation({}, [], [], 1, 1).frame()", "frame() needs pandas"),
        ("pandas", "headgate.Run('r', [], None, [], {}).frame()", "frame() needs pandas"),
        ("matplotlib", "headgate.plot.curves()", "headgate.plot needs matplotlib"),
        ("jax", "import headgate.jax", "headgate.jax needs jax"),
        ("torch", "import headgate.torch", "headgate.torch needs torch"),
        ("transformers", "import headgate.torch.transformers", "headgate.torch.transformers needs transformers"),
    ),
)
def test_missing_extra_is_named(package, code, message):
    # An entry of None in sys.modules raises the error of a package that is not installed.
    found = run_without([package], f"import headgate\n{code}")
    extra = extras.EXTRAS[package]
    last = found.stderr.splitlines()[-1]
    assert last == f"ModuleNotFoundError: {message}, which is not installed: pip install 'headgate-attention[{extra}]'"


def test_plot_is_imported_when_it_is_used():
    code = "import headgate, sys; assert 'headgate.plot' not in sys.modules; headgate.plot.layer_figure; "
    code += "assert 'plot' in dir(headgate) and 'matplotlib' not in sys.modules and not hasattr(headgate, 'plots')"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr


def configured(tmp_path, *definitions):
    """Configures a wheel's build with a ccache in PATH; returns its build files and the path of ccache."""
    fake = tmp_path / "bin" / "ccache"
    fake.parent.mkdir(exist_ok=True)
    fake.write_text('#!/bin/sh\nexec "$@"\n')
    fake.chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_COMPILER_LAUNCHER")}
    environment["PATH"] = f"{fake.parent}:{environment['PATH']}"
    build = tmp_path / ("build" + "".join(definitions))
    command = ["cmake", "-S", ROOT, "-B", build, "-G", "Ninja", "-DSKBUILD=2", "-DHEADGATE_PYTHON=ON",
               "-DHEADGATE_TESTS=OFF", "-DHEADGATE_INSTALL=OFF", f"-DPython_EXECUTABLE={sys.executable}", *definitions]  # fmt: skip
    subprocess.run(command, env=environment, check=True, capture_output=True)
    return "".join(file.read_text() for file in (build / "build.ninja", *build.glob("CMakeFiles/rules.ninja"))), str(
        fake
    )


def test_wheel_is_compiled_through_ccache(tmp_path):
    ninja, ccache = configured(tmp_path)
    assert f"LAUNCHER = {ccache}" in ninja or f"{ccache} " in ninja
    ninja, ccache = configured(tmp_path, "-DHEADGATE_CCACHE=OFF")
    assert ccache not in ninja


def test_version():
    header = (ROOT / "include/headgate/version.h").read_text()
    assert headgate.__version__ == ".".join(re.findall(r"define HEADGATE_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", header))
