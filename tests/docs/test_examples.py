# SPDX-License-Identifier: Apache-2.0
"""Every example of the documents works. The blocks of a page run one after the other, from top to bottom, in a folder that
looks like the repository's root: shell, Python, C++, C, CMake and JSON (blocks.py). What takes long or needs a network has
a stand-in (stand_ins/), so that pages show the commands that people give."""

import json
import os
import re
import signal
import subprocess
from pathlib import Path

import matplotlib
import matplotlib.pyplot
import pytest

from blocks import CODE, OTHER, ROOT, blocks_of, pages, runs

BUILD = ROOT / "build"
STAND_INS = Path(__file__).resolve().parent / "stand_ins"
MODEL = "build/models/SmolLM2-135M-Instruct.Q4_1.gguf"

# Models and texts that pages name without making them: the small model, and a text.
MODELS = ("MODEL", "DIR", "hybrid", "plain", "run", "run-plain", "run-gated", "SmolLM2-135M.gguf", Path(MODEL).name)
TEXTS = ("book.txt", "prompt.txt", "text.txt")

# What must hold of the names that a page's Python leaves.
RESULTS = {
    "README.md": lambda n: n["y"].shape == n["q"].shape and n["out"].shape == (2, 256, 512),
    "docs/reference/conventions.md": lambda n: n["y"].shape[-1] == 64,
    "docs/reference/pytorch.md": lambda n: (
        n["y"].is_nested
        and len(n["gate_parameters"](n["model"])) == 2
        and n["mixed"].shape == (2, 1, 4, 32)
        and n["state"].shape == (2, 4, 32, 32)
        and n["c"].shape == (2, 1, 96)
        and n["rows"].shape == (2, 3, 96)
        and n["z"].grad is not None
    ),
}


def link_all(source, target, leave_out=()):
    target.mkdir(parents=True, exist_ok=True)
    for path in source.iterdir():
        if path.name not in leave_out:
            (target / path.name).symlink_to(path)


@pytest.fixture(scope="module")
def tool():
    return os.environ["HEADGATE_TOOL"]


@pytest.fixture(scope="module")
def model(tool, tmp_path_factory):
    """A small model with a tokenizer, in place of the one that scripts/real_model.sh fetches."""
    folder = tmp_path_factory.mktemp("model")
    text = str(ROOT / "LICENSE")
    sizes = "--layers 2 --dim 32 --heads 2 --seq-len 256 --batch 2 --steps 2 --eval-every 0 --log-every 1".split()
    for command in (
        ["tokenize", "--train", "300", "--text", text, "--out", "tokenizer.json"],
        ["train", "--data", text, "--tokenizer", "tokenizer.json", "--out", "run", *sizes],
    ):
        subprocess.run([tool, *command], cwd=folder, check=True, capture_output=True)
    return folder / "run"


@pytest.fixture
def root(tool, model, tmp_path, monkeypatch):
    """A folder like the repository's root, as the current one."""
    root = tmp_path / "headgate"
    link_all(ROOT, root, {".git", "build", "scripts"} | {p.name for p in ROOT.glob("build-*")})
    link_all(BUILD, root / "build", {"headgate", "models", "text"})
    link_all(ROOT / "scripts", root / "scripts", {"real_model.sh", "english_text.sh"})
    (root / "build/headgate").symlink_to(STAND_INS / "headgate")
    for name in ("real_model.sh", "english_text.sh"):
        (root / "scripts" / name).symlink_to(STAND_INS / name)
    (root / MODEL).parent.mkdir()
    (root / MODEL).symlink_to(model)
    matplotlib.use("Agg")
    monkeypatch.chdir(root)
    yield root
    matplotlib.pyplot.close("all")


class Page:
    """Runs the blocks of a page."""

    def __init__(self, root, tool):
        self.root, self.names, self.fragments = root, {}, {"c": [], "cpp": []}
        self.environment = os.environ | {
            "PATH": f"{STAND_INS}:{os.environ['PATH']}",
            "HOME": str(root),
            "HEADGATE_TOOL": tool,
            "PYTHONPATH": str(BUILD / "python"),
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        }

    def check(self, command, block):
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "errors": "replace"}
        running = subprocess.Popen(command, **pipes, cwd=self.root, env=self.environment, start_new_session=True)
        try:
            out, err = running.communicate(timeout=300)
        except subprocess.TimeoutExpired:
            os.killpg(running.pid, signal.SIGKILL)  # what the command has started, too
            raise
        assert running.returncode == 0, f"{block}: {err[-2000:] or out[-2000:]}"
        return out

    def sh(self, block):
        """Variables are known to the page's next blocks."""
        state = self.root / ".environment"
        self.check(["bash", "-euo", "pipefail", "-c", f"set -a\n{block.text}\nenv -0 >{state}"], block)
        entries = (entry.partition("=") for entry in state.read_text().split("\0") if entry)
        self.environment |= {name: value for name, _, value in entries}

    def python(self, block):
        exec(compile("\n" * block.line + block.text, str(block), "exec"), self.names)

    def program(self, block, compiler, suffix, header):
        """Blocks without a main are the statements of one."""
        text = block.text
        if not re.search(r"\bmain\s*\(", text):
            self.fragments[block.language].append(text)
            lines = "\n".join(self.fragments[block.language]).split("\n")
            includes = [line for line in lines if line.startswith("#include")]
            rest = "\n".join(line for line in lines if not line.startswith("#include"))
            text = f"#include <{header}>\n" + "\n".join(includes) + f"\nint main(void) {{\n{rest}\nreturn 0;\n}}\n"
        source = self.root / f"example{suffix}"
        source.write_text(text)
        libraries = [f"-L{BUILD / 'src/library'}", "-lheadgate", f"-Wl,-rpath,{BUILD / 'src/library'}", "-lm"]
        self.check([*compiler, "-I", str(ROOT / "include"), str(source), "-o", "example", *libraries], block)
        self.check(["./example"], block)

    def cpp(self, block):
        self.program(block, ["g++", "-std=c++20"], ".cc", "headgate/headgate.hpp")

    def c(self, block):
        self.program(block, ["gcc", "-std=c99"], ".c", "headgate/headgate.h")

    def cmake(self, block):
        """Configures a project with the block; tests/package builds real ones."""
        folder = self.root / "example_cmake"
        folder.mkdir(exist_ok=True)
        (folder / "CMakeLists.txt").write_text(
            "cmake_minimum_required(VERSION 3.25)\nproject(example NONE)\nadd_library(your_target INTERFACE)\n"
            "add_library(headgate::headgate INTERFACE IMPORTED)\nmacro(find_package)\nendmacro()\n"
            "include(FetchContent)\nmacro(FetchContent_MakeAvailable)\nendmacro()\n"
            + block.text.replace("your_target PRIVATE", "your_target INTERFACE")
        )
        self.check(["cmake", "-S", folder, "-B", folder / "build"], block)

    def json(self, block):
        json.loads(block.text)


@pytest.mark.parametrize("page", [page for page in pages() if any(map(runs, blocks_of(page)))])
def test_examples_run(page, root, tool, model):
    state = Page(root, tool)
    text = (ROOT / page).read_text()
    for name in (*MODELS, *TEXTS):
        if not re.search(rf"(--out|>) {re.escape(name)}\b", text):
            (root / name).symlink_to(model if name in MODELS else ROOT / "LICENSE")
    for block in blocks_of(page):
        if runs(block):
            getattr(state, block.language)(block)
    assert RESULTS.get(page, lambda names: True)(state.names)


@pytest.mark.parametrize("page", pages())
def test_every_block_names_its_language(page):
    unknown = [f"{block}: '{block.language}'" for block in blocks_of(page) if block.language not in CODE + OTHER]
    assert unknown == []


def test_pages_with_results_exist():
    assert set(RESULTS) <= set(pages())
