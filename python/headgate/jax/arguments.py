# SPDX-License-Identifier: Apache-2.0
"""Sorts the arguments of a call into arrays and options, and checks both against the operation's tables."""

import inspect
import operator
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

import headgate
from headgate import _headgate

from ..operations import OPTION_TYPES, OPTION_WORDS, Operation, Option
from .call import SEED, Arrays, Call, describe, varying_like


class Arguments(NamedTuple):
    """Arrays and options of a call by name. `options` contains only values that differ from the defaults."""

    arrays: Arrays
    options: dict[str, Any]


def take(what: str, operation: Operation, given: dict[str, Any], keywords: dict[str, Any]) -> Arguments:
    """Sorts the arguments of the function `what` into arrays and options. Raises TypeError for unknown arguments, and
    ValueError for values that are never valid.
    """
    known = [*operation.tensors, *operation.options]
    for name in keywords:
        if name not in known:
            meant = _headgate._meant_instead_of(name, known)
            raise TypeError(f"{what}() got an unexpected keyword argument '{name}'{meant}")
    arrays, options = {}, {}
    for name, value in {**given, **keywords}.items():
        if name in operation.tensors:
            if value is None and name in operation.required:
                raise TypeError(f"{what}: {name} is required but None")
            if value is not None:
                arrays[name] = _array(what, name, value)
        elif name == SEED and _is_array(value):
            arrays[SEED] = _seed(what, value)
        else:
            options[name] = _option(what, name, operation.options[name], value)
    return Arguments(arrays, operation.changed(options))


def _is_array(value: Any) -> bool:
    return isinstance(value, jax.Array | np.ndarray)


def _array(what: str, name: str, value: Any) -> Array:
    if not isinstance(value, jax.Array | np.ndarray | np.generic):
        found = f"a {type(value).__name__}"
        raise TypeError(f"{what}: {name} is {found} but must be an array of JAX or NumPy")
    return to_jax(what, name, value)


def to_jax(what: str, name: str, value: Any) -> Array:
    """Converts an array to a JAX array.

    Raises ValueError if an integer does not fit into the JAX array's dtype. Unless jax_enable_x64 is set, JAX would
    silently truncate 64-bit integers to 32 bits.
    """
    if not isinstance(value, jax.Array) and value.dtype.kind in "iu" and value.size > 0:
        kept = np.iinfo(jax.dtypes.canonicalize_dtype(value.dtype))
        for number in (int(value.min()), int(value.max())):
            if not kept.min <= number <= kept.max:
                raise ValueError(
                    f"{what}: {name} contains {number}, which {kept.dtype} cannot hold: enable jax_enable_x64"
                )
    if not isinstance(value, jax.Array) and not value.dtype.isnative:
        raise TypeError(f"{what}: {name} has dtype {value.dtype.str} but must be in this machine's byte order")
    try:
        return jnp.asarray(value)
    except TypeError:
        raise TypeError(f"{what}: {name} has dtype {value.dtype}, which JAX does not have") from None
    except ValueError as error:
        raise ValueError(f"{what}: {name} is {_shown(value)}, which JAX does not take: {error}") from None


def _seed(what: str, value: Any) -> Array:
    seed = to_jax(what, SEED, value)
    if seed.shape != () or seed.dtype.name not in ("int32", "int64", "uint32", "uint64"):
        raise ValueError(
            f"{what}: {SEED} has shape {seed.shape} and dtype {seed.dtype} but must be one integer of int32, int64, "
            "uint32 or uint64, as of jax.random.bits(key)"
        )
    return lax.bitcast_convert_type(seed, jnp.int64) if seed.dtype == jnp.uint64 else seed


def flag(what: str, name: str, value: Any) -> bool:
    """Returns a boolean argument as a bool. Raises ValueError for other values."""
    if not isinstance(value, bool | np.bool_):
        raise ValueError(f"{what}: {name} is {_shown(value)} but must be True or False")
    return bool(value)


def _shown(value: Any) -> str:
    """Formats a value for a message, in one line."""
    if isinstance(value, jax.core.Tracer):
        return "traced"
    if _is_array(value):
        return f"an array of {value.dtype}"
    text = repr(value)
    return text if text.isprintable() and len(text) <= 100 else f"a {type(value).__name__}"


def _option(what: str, name: str, row: Option, value: Any) -> Any:
    """Converts an option to the type that `row`, its table entry, gives. Raises ValueError for invalid values."""
    kind = row.type
    if isinstance(value, jax.core.Tracer):
        raise ValueError(
            f"{what}: {name} is traced but must be known when JAX traces the call: declare it in static_argnames of jit"
        )
    if value is None and (kind == "float?" or name in ("threads", "target", "backend", SEED)):
        return row.default
    try:
        if kind == "str":
            if not isinstance(value, str):
                raise TypeError
            return value
        if isinstance(value, bool | np.bool_):
            raise TypeError
        if kind != "int":
            if isinstance(value, str | bytes):
                raise TypeError
            return float(value)
        number = operator.index(value)
        if not -(2**63) <= number < 2**63:
            raise OverflowError
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{what}: {name} is {_shown(value)} but must be {OPTION_WORDS[kind]}") from None
    if name == "threads" and number == 0:
        raise ValueError(
            f"{what}: threads is 0 but must be 1 to {headgate.max_threads()}, or None for headgate.default_threads()"
        )
    return number


def checked(call: Call, arrays: Arrays) -> Arrays:
    """Checks the shapes, dtypes and options of a call. Elements are not checked.

    Within shard_map, returns arrays that all vary over the same mesh axes, so that gradients of shared arrays are
    summed.
    """
    describe(call, arrays, check=True)
    return varying_like(arrays, arrays)


Function = TypeVar("Function", bound=Callable[..., Any])


def takes(operation: Operation) -> Callable[[Function], Function]:
    """Returns a decorator for a function whose last parameter is **arguments. help() then lists the operation's
    remaining arguments by name.
    """

    def decorate(function: Function) -> Function:
        parameters = list(inspect.signature(function).parameters.values())[:-1]
        named = {parameter.name for parameter in parameters}
        kind = inspect.Parameter.KEYWORD_ONLY
        for name in operation.tensors:
            if name not in named:
                parameters.append(inspect.Parameter(name, kind, default=None, annotation=Array | None))
        for name, option in operation.options.items():
            default = None if name == "threads" else option.default
            annotation = int | None if name == "threads" else OPTION_TYPES[option.type]
            parameters.append(inspect.Parameter(name, kind, default=default, annotation=annotation))
        signature = inspect.signature(function).replace(parameters=parameters)
        function.__signature__ = signature  # type: ignore[attr-defined]
        return function

    return decorate
