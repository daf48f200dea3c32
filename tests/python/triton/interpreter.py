# SPDX-License-Identifier: Apache-2.0
"""Triton's interpreter, which runs kernels on CPUs: to be imported before Triton.

Corrects two defects of Triton 3.7 and 3.9 there (issue 11584): tl.dot of bf16 multiplies bit patterns, and f32 is truncated
to bf16. GPUs multiply bf16 exactly in f32 and round to nearest even.

Has a kernel replace the functions of triton.language once. Triton does it anew for every call of a device function in
the kernel, which takes more time than the function.
"""

import os
import sys
import types

assert "triton" not in sys.modules or os.environ.get("TRITON_INTERPRET") == "1", (
    "Triton was imported before its interpreter was chosen: run these tests in a process of their own"
)
os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import triton.language as tl
from triton.runtime import interpreter


def _widened(x):
    if x.dtype.scalar != tl.bfloat16:
        return x.data
    return (x.data.astype(np.uint32) << 16).view(np.float32)


def _rounded(x):
    bits = np.ascontiguousarray(x).view(np.uint32)
    nearest = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(x), (bits >> 16).astype(np.uint16) | 0x40, nearest)


def _corrected_dot(self, a, b, d, *rest):
    if a.dtype.scalar != tl.bfloat16:
        return _dot(self, a, b, d, *rest)
    product = np.matmul(_widened(a), _widened(b), dtype=d.data.dtype)
    return interpreter.TensorHandle(product + d.data, d.dtype.scalar)


def _corrected_cast(self, source, target):
    if source.dtype.scalar == tl.float32 and target.scalar == tl.bfloat16:
        return interpreter.TensorHandle(_rounded(source.data), target.scalar)
    return _cast(self, source, target)


LANGUAGE = types.SimpleNamespace(__globals__={"tl": tl, "core": tl.core})  # the modules that any function uses
_scopes = []  # what is replaced while a kernel runs


def _patch_once(function):
    if _scopes:
        return interpreter._LangPatchScope()  # for a device function: nothing is left to replace
    scope = _patch_lang(LANGUAGE)
    restore = scope.restore

    def restore_and_forget():
        _scopes.clear()
        restore()

    scope.restore = restore_and_forget
    _scopes.append(scope)
    return scope


_dot, _cast = interpreter.InterpreterBuilder.create_dot, interpreter.InterpreterBuilder.cast_impl
interpreter.InterpreterBuilder.create_dot = _corrected_dot
interpreter.InterpreterBuilder.cast_impl = _corrected_cast
_patch_lang = interpreter._patch_lang
interpreter._patch_lang = _patch_once
