# SPDX-License-Identifier: Apache-2.0
"""The keyword arguments that models of transformers give to a function, read from their code.

A call's own keywords count, and those that come through **kwargs from the calls of the module that makes it, and from the
modules around it.
"""

import ast
import functools
import gc
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import transformers

MODELS = Path(transformers.__file__).parent / "models"


class Call(NamedTuple):
    node: ast.Call
    caller: str  # the class

    @property
    def keywords(self) -> set[str]:
        return {keyword.arg for keyword in self.node.keywords if keyword.arg is not None}

    @property
    def passes_on(self) -> bool:
        return any(keyword.arg is None for keyword in self.node.keywords)


@functools.lru_cache(maxsize=256)  # more than the classes of a file
def nodes_in(node: ast.AST) -> tuple[ast.AST, ...]:
    """The node and all below it, walked once for the searches that follow each other."""
    return tuple(ast.walk(node))


def names_in(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}


def attributes_in(node: ast.AST) -> set[str]:
    return {n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)}


def calls_in(node: ast.AST) -> Iterator[ast.Call]:
    return (n for n in nodes_in(node) if isinstance(n, ast.Call))


class Code:
    """The classes of a file of models: what their forward takes, and which of them each calls."""

    def __init__(self, path: Path):
        tree = ast.parse(path.read_text())
        self.classes = {n.name: n for n in tree.body if isinstance(n, ast.ClassDef)}
        self.tables = {  # names of the module, to the classes that they stand for
            target.id: names_in(n.value) & self.classes.keys()
            for n in tree.body
            if isinstance(n, ast.Assign)
            for target in n.targets
            if isinstance(target, ast.Name)
        }
        self.made = {name: self._made_by(node) for name, node in self.classes.items()}
        self.calls = [  # of modules
            (Call(call, name), callee)
            for name, node in self.classes.items()
            for call, attributes in self._module_calls(node)
            for callee in self._modules(name, attributes)
        ]

    def _made_by(self, node: ast.ClassDef) -> dict[str, set[str]]:
        """The attributes of a class, to the classes of the modules in them."""
        found = defaultdict(set)
        for n in nodes_in(node):
            targets = n.targets if isinstance(n, ast.Assign) else ()
            for target in targets:
                if isinstance(target, ast.Attribute):
                    used = names_in(n.value)
                    found[target.attr] |= (used & self.classes.keys()).union(*(self.tables.get(u, ()) for u in used))
        return found

    def _modules(self, name: str, attributes: set[str]) -> set[str]:
        """The classes of the modules in attributes of a class, or of those that it is made of."""
        if name not in self.classes:
            return set()
        found = set().union(*(self.made[name].get(attribute, ()) for attribute in attributes))
        bases = set().union(*map(names_in, self.classes[name].bases))
        return found.union(*(self._modules(base, attributes) for base in bases - {name}))

    def _module_calls(self, node: ast.ClassDef) -> Iterator[tuple[ast.Call, set[str]]]:
        loops = defaultdict(set)  # variables, to the attributes whose elements they are
        for n in nodes_in(node):
            if isinstance(n, ast.For):
                for name in names_in(n.target):
                    loops[name] |= attributes_in(n.iter)
        for call in calls_in(node):
            if isinstance(call.func, ast.Attribute):
                yield call, {call.func.attr}
            elif isinstance(call.func, ast.Name) and call.func.id in loops:
                yield call, loops[call.func.id]

    def parameters(self, name: str) -> set[str]:
        for n in self.classes[name].body:
            if isinstance(n, ast.FunctionDef) and n.name == "forward":
                return {a.arg for a in (*n.args.args, *n.args.kwonlyargs)}
        return set()

    def passed_on(self) -> dict[str, set[str]]:
        """The names in the **kwargs of each class's forward."""
        found = defaultdict(set)
        changed = True
        while changed:
            changed = False
            for call, callee in self.calls:
                names = call.keywords | (found[call.caller] if call.passes_on else set())
                names -= self.parameters(callee)
                if not names <= found[callee]:
                    found[callee] |= names
                    changed = True
        return found

    def keywords_of(self, names_of: Callable[[ast.ClassDef], set[str]]) -> set[str]:
        """The names that calls of functions get, of those whose names in a class `names_of` says."""
        passed_on = self.passed_on()
        found = set()
        for name, node in self.classes.items():
            functions = names_of(node)
            for call in calls_in(node):
                if isinstance(call.func, ast.Name) and call.func.id in functions:
                    call = Call(call, name)
                    found |= call.keywords | (passed_on[name] if call.passes_on else set())
        return found


def files_of(*models: str) -> list[Path]:
    """The code of these models, by default of all."""
    return sorted(p for p in MODELS.glob("*/modeling_*.py") if not models or p.parent.name in models)


def files_with_attention() -> list[Path]:
    """The code of the models in which `attention_in` can name a function that is called."""
    return [p for p in files_of() if re.search("attention_interface|ALL_ATTENTION_FUNCTIONS", p.read_text())]


def attention_in(node: ast.ClassDef) -> set[str]:
    """The names that a class has for functions of the AttentionInterface."""
    return {"attention_interface"} | {
        target.id
        for n in nodes_in(node)
        if isinstance(n, ast.Assign) and "ALL_ATTENTION_FUNCTIONS" in names_in(n.value)
        for target in n.targets
        if isinstance(target, ast.Name)
    }


def keywords_given(files: list[Path], names_of: Callable[[ast.ClassDef], set[str]]) -> dict[str, set[str]]:
    """The names that models give to functions, with the models that do."""
    found = defaultdict(set)
    collects = gc.isenabled()
    gc.disable()  # collections, which trees without cycles do not need, would take most of the time
    try:
        for file in files:
            for name in Code(file).keywords_of(names_of):
                found[name].add(file.parent.name)
    finally:
        if collects:
            gc.enable()
    return found


def keywords_of_calls(source: str, function: str) -> set[str]:
    """The names that calls of a function give in a file."""
    calls = (call for call in calls_in(ast.parse(source)) if isinstance(call.func, ast.Name))
    return set().union(*(Call(call, "").keywords for call in calls if call.func.id == function))
