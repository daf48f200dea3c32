# SPDX-License-Identifier: Apache-2.0
"""Defines use_in(), which makes Headgate compute the attention of packages that fold proteins."""

import functools
import importlib
import importlib.metadata
import inspect
import sys
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

from ..precision import Precision, require_precision
from ..switches import Handle, Switch, unsupported
from .packages import PACKAGES, Package, Replaced

_WHAT = "fold.use_in"


class _Replacement:
    """Replaces a function of a package by a function that computes the calls with Headgate."""

    def __init__(self, package: Package, replaced: Replaced, switch: Switch) -> None:
        self._replaced, self._switch = replaced, switch
        self.owner, self.original = _find(package, replaced)
        parameters = inspect.signature(self.original).parameters
        self._names = tuple(parameters)
        self._defaults = {name: p.default for name, p in parameters.items() if p.default is not p.empty}
        self._used = tuple(name for name in inspect.signature(replaced.adapter).parameters if name != "precision")
        self._require_signature(package)

        @functools.wraps(self.original)
        def replacement(*given: Any, **named: Any) -> Any:
            return switch.call_or_fall_back(self._compute, self.original, given, named)

        self.replacement = replacement

    def _require_signature(self, package: Package) -> None:
        """Raises RuntimeError if the function lacks an argument that the adapter uses, or requires an argument that the
        adapter does not know.
        """
        known = (*self._used, *self._replaced.harmless)
        needed = [name for name in self._names if name not in self._defaults]
        if set(known) <= set(self._names) and set(needed) <= set(known):
            return
        raise RuntimeError(
            f"{_WHAT}: {self._replaced.path} takes ({', '.join(self._names)}) but must take ({', '.join(known)}): "
            f"{_versions(package)}"
        )

    def _compute(self, *given: Any, **named: Any) -> tuple[Any, str | None]:
        """Computes a call and returns (result, None). If the package must compute the call, returns (None, reason)."""
        arguments = {**self._defaults, **dict(zip(self._names, given)), **named}
        by_name = self._names[len(given) :]
        if len(given) > len(self._names) or len(arguments) != len(self._names) or not set(named) <= set(by_name):
            return None, "arguments that do not fit the function"
        if "self" in arguments and type(arguments["self"]) is not self.owner:
            return None, f"a subclass of {self.owner.__name__}"
        for name, value in arguments.items():
            if name in self._used or name in self._replaced.harmless:
                continue
            default = self._defaults.get(name)
            if isinstance(value, Tensor) or value != default:
                shown = f" is {value!r}" if isinstance(value, (bool, int, float, str)) else ""
                return None, f"argument '{name}'{shown}"
        reason = unsupported(_tensors(arguments.values()))
        if reason is not None:
            return None, reason
        used = {name: arguments[name] for name in self._used}
        return self._replaced.adapter(**used, precision=self._switch.precision), None

    def install(self) -> None:
        self._exchange(self.original, self.replacement)

    def restore(self) -> None:
        """Restores the package's function. Leaves it unchanged if other code has replaced it since install()."""
        self._exchange(self.replacement, self.original)

    def _exchange(self, old: Any, new: Any) -> None:
        """Replaces `old` in its class, or in every module of the package that contains it."""
        owners = [self.owner]
        if inspect.ismodule(self.owner):
            top = self.owner.__name__.partition(".")[0]
            owners = [
                module
                for name, module in list(sys.modules.items())
                if inspect.ismodule(module) and name.partition(".")[0] == top
            ]
        for owner in owners:
            for name, value in list(vars(owner).items()):
                if value is old:
                    setattr(owner, name, new)


def _tensors(values: Any) -> Iterator[Any]:
    """Yields the tensors among the arguments. Also yields the elements of lists and tuples."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from value


def _versions(package: Package) -> str:
    """Returns text for messages: the supported and the installed version of a package."""
    try:
        installed = importlib.metadata.version(package.distribution)
    except importlib.metadata.PackageNotFoundError:
        installed = "an unknown version"
    return f"{package.distribution} {package.version} is supported, {installed} is installed"


def _find(package: Package, replaced: Replaced) -> tuple[Any, Callable[..., Any]]:
    """Finds a function of a package. Returns the class or module that contains the function, and the function."""
    module, _, path = replaced.path.partition(":")
    *classes, name = path.split(".")
    top = module.partition(".")[0]
    try:
        importlib.import_module(top)
    except Exception as error:
        raise ImportError(
            f"{_WHAT}: {top} cannot be imported ({_line(error)}): pip install {package.distribution}"
        ) from error
    try:
        owner: Any = importlib.import_module(module)
        for each in classes:
            owner = getattr(owner, each)
        return owner, vars(owner)[name]
    except Exception as error:
        raise ImportError(
            f"{_WHAT}: {replaced.path} cannot be imported ({_line(error)}): {_versions(package)}"
        ) from error


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".split("\n")[0]


class _Use:
    """Installs and removes the replacements of a package's attention functions."""

    def __init__(self, name: str, package: Package) -> None:
        self.switch = Switch(f"fold.use_in({name!r})", name, self._install, self._restore)
        self._package = package
        self._installed: list[_Replacement] = []

    def _install(self) -> None:
        self._installed = [_Replacement(self._package, each, self.switch) for each in self._package.replaced]
        for each in self._installed:
            each.install()

    def _restore(self) -> None:
        for each in self._installed:
            each.restore()


_uses = {name: _Use(name, package) for name, package in PACKAGES.items()}


def use_in(package: str, on: bool = True, *, precision: Precision = "exact") -> Handle | None:
    """Makes Headgate compute the attention of a package that folds proteins, for all models and threads of the process.

        with fold.use_in("boltz") as served:
            model(**batch)
        print(served.calls, served.declined)

    package: "boltz", "openfold3", "protenix", or "esmfold" (EsmForProteinFolding of transformers).

    The replacement lasts until the end of `with`, or until off() of the returned object. Uses may nest. The package's
    functions are restored when the last use ends. use_in(package, False) ends all uses and returns None. In the
    returned object, `calls` is the number of attention calls that Headgate computed. `declined` maps each reason to the
    number of calls that the package computed for that reason.

    precision is passed to attention() and affects calls in bfloat16. If uses nest, the precision of the newest use
    applies.

    If the package uses activation checkpointing, keep the replacement on until backward() has run.

    The gate is fused, and no tensor of scores is stored. The package still computes calls that Headgate does not
    support: tensors on other devices, subclasses of the package's modules, forward-mode derivatives, and arguments that
    select another kernel.

    Raises ValueError for an unknown package. Raises ImportError if the package is not installed or lacks a function.
    Raises RuntimeError, which names the supported version, if a function has unexpected parameters.
    """
    if package not in _uses:
        raise ValueError(f"{_WHAT}: package is {package!r} but must be one of {', '.join(map(repr, _uses))}")
    require_precision(_WHAT, precision)
    switch = _uses[package].switch
    if on:
        return switch.begin(precision)
    switch.end_all()
    return None
