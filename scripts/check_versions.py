#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_versions.py [NAME …]: headgate.torch and headgate.jax with other versions of PyTorch, transformers and JAX than those
that they are pinned to.

Each row of VERSIONS but `pinned` gets an environment of its own in build/versions, from PyPI, where quick tests of
tests/python/torch, the tests of tests/python/jax and check_attention_families.py run against the package in build/python,
whose handlers for JAX are compiled with the pinned jaxlib. Prints a table, and the end of what failed. NAME:
only these rows. An environment takes a few minutes and, where PyPI's PyTorch brings CUDA's libraries along, 6 GB.
"""

import argparse
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "python" / "headgate"))

from extras import FLOORS


class Versions(NamedTuple):
    torch: str
    transformers: str
    jax: str


def pinned(*names):
    """Returns the requirements for these packages in the group `test` of pyproject.toml."""
    with open(ROOT / "pyproject.toml", "rb") as file:
        rows = tomllib.load(file)["dependency-groups"]["test"]
    return [row for row in rows if isinstance(row, str) and row.partition("==")[0] in names]


PINNED = "pinned"  # the environment of the build
VERSIONS = {
    "oldest": Versions(**FLOORS),
    PINNED: Versions(**dict(row.split("==") for row in pinned(*Versions._fields))),
    "newest": Versions(torch="2.15.0", transformers="5.24.0", jax="0.10.2"),
}
# Further packages of an environment, in the versions that pyproject.toml pins.
BESIDE = pinned("numpy", "ml_dtypes", "pytest", "equinox", "dm-haiku")
TESTS = (
    "arguments",
    "chosen_keys",
    "dropout",
    "eager",
    "flex",
    "foreign_arguments",
    "gated_attention",
    "gated_norm",
    "hub_functions",
    "linear_attention",
    "module",
    "retrofit",
    "scaled_dot_product",
    "short_convolution",
    "transformers",
    "transformers_features",
    "transforms",
    "use_everywhere",
    "varlen",
)


def environment_of(name, versions):
    """Returns the interpreter of an environment with these versions. Creates the environment if necessary."""
    if name == PINNED:
        return ROOT / "build" / "python-venv" / "bin" / "python"
    folder = ROOT / "build" / "versions" / name
    python, stamp = folder / "bin" / "python", folder / "installed.txt"
    wanted = [f"{package}=={version}" for package, version in versions._asdict().items()]
    packages = [*wanted, *BESIDE]
    if not stamp.exists() or stamp.read_text().split() != packages:
        print(f"== headgate: an environment in {folder}, for {', '.join(wanted)}", file=sys.stderr, flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        # The machine's constraints must not override the versions of this row.
        environment = os.environ | {"PIP_CONSTRAINT": os.devnull, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        subprocess.run([python, "-m", "pip", "install", "-q", *packages], check=True, env=environment)
        stamp.write_text("\n".join(packages))
    return python


def run(python, folder, *command):
    """Runs a command in a folder of tests/python. Returns its exit status and its output."""
    environment = os.environ | {
        "PYTHONPATH": str(ROOT / "build" / "python"),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    found = subprocess.run(
        [python, *command],
        cwd=ROOT / "tests" / "python" / folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return found.returncode, found.stdout


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"rows: {', '.join(VERSIONS)}; default: all")
    names = parser.parse_args().names or list(VERSIONS)
    if unknown := [name for name in names if name not in VERSIONS]:
        parser.error(f"'{unknown[0]}' is none of {', '.join(VERSIONS)}")
    rows, failures = [], []
    for name in names:
        versions = VERSIONS[name]
        python = environment_of(name, versions)
        pytest = ("-m", "pytest", "-q", "-p", "no:cacheprovider")
        runs = [
            run(python, "torch", *pytest, *(f"test_{test}.py" for test in TESTS)),
            run(python, "jax", *pytest),
            run(python, "torch", ROOT / "scripts" / "check_attention_families.py"),
        ]
        ends = [re.sub(r" in .*", "", output.splitlines()[-1].strip("= ")) for _, output in runs]
        rows.append((name, versions.torch, versions.transformers, ends[0], ends[2], versions.jax, ends[1]))
        failures += [(name, output) for status, output in runs if status != 0]
    head = ("", "PyTorch", "transformers", "tests", "families", "JAX", "its tests")
    print("\n".join("| " + " | ".join(row) + " |" for row in (head, ("---",) * len(head), *rows)))
    for name, output in failures:
        print(f"\n{name} failed:\n" + "\n".join(output.splitlines()[-40:]))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
