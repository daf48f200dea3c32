# SPDX-License-Identifier: Apache-2.0
"""Results and gradients of every argument: bitwise those of the NumPy package on CPUs, and those of jax.numpy on other
platforms within rounding."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.interpreters import mlir

import headgate
import headgate.jax
from cases import ALL, CASES, IN_ELSEWHERE, Case
from headgate.jax import fallback, fallback_attention, fallback_recurrent, gated_norm, linear_attention, passes
from headgate.jax.differentiable import OPERATIONS
from headgate.operations import keeps_output

OUTPUTS = {
    "gated_attention": {"return_lse": True, "return_max_logit": True},
    "linear_attention": {"return_state": True},
    "short_convolution": {"return_state": True},
    "gated_norm": {},
}
BACKWARD = {"gated_attention": "attention_backward"}


def numpy_outputs(operation: str, case: Case) -> tuple[list[np.ndarray], dict[str, np.ndarray]]:
    """Returns the outputs of the NumPy package, and what its backward pass needs of them."""
    if operation == "gated_norm":
        return [headgate.gated_norm(**case.arrays, **case.options)], {}
    if operation == "gated_attention":
        gating = (case.options.get("gate_fn", "sigmoid"), case.options.get("gate_op", "mul"))
        keeps_attn = "gate" in case.arrays and keeps_output(*gating, is_f16=case.arrays["q"].dtype == np.float16)
        names = ["y", "lse", "max_logit", *["attn"] * keeps_attn]
        found = headgate.attention_forward(outputs=names, **case.arrays, **case.options)
        return [found.y, found.lse, found.max_logit], {"y": found.y, "lse": found.lse, "attn": found.attn}
    found = getattr(headgate, operation + "_forward")(**case.arrays, **case.options)
    outputs = [found.y, found.state]
    return outputs + [found.snapshots] * (found.snapshots is not None), {}


def has_gradients(operation: str, case: Case) -> bool:
    forward_only = OPERATIONS[operation].forward_only
    return not any(name in case.arrays for name in forward_only) and "gate_threshold" not in case.options


def differentiated(operation: str, case: Case) -> list[str]:
    return [name for name in OPERATIONS[operation].differentiable if name in case.arrays]


def jax_results(operation: str, case: Case, incoming: list[np.ndarray] | None):
    """Returns outputs and gradients by headgate.jax, in one compiled program."""
    function = getattr(headgate.jax, operation)
    names = differentiated(operation, case)

    def compute(some, others):
        results = function(**some, **others, **case.options, **OUTPUTS[operation])
        return results if isinstance(results, tuple) else (results,)

    def both(some, others):
        if incoming is None or not has_gradients(operation, case):
            return compute(some, others), {}
        results, pull_back = jax.vjp(lambda x: compute(x, others), some)
        return results, pull_back(tuple(jnp.asarray(dy, y.dtype) for dy, y in zip(incoming, results)))[0]

    some = {name: jnp.asarray(case.arrays[name]) for name in names}
    others = {name: jnp.asarray(x) for name, x in case.arrays.items() if name not in names}
    return jax.jit(both)(some, others)


def incoming_of(outputs: list[np.ndarray]) -> list[np.ndarray]:
    random = np.random.default_rng(3)
    found = [random.normal(size=y.shape).astype(y.dtype) for y in outputs]
    return [*found[:2], *(np.zeros_like(y) for y in outputs[2:])]


def numpy_gradients(operation: str, case: Case, outputs, saved, incoming) -> dict[str, np.ndarray]:
    compute = getattr(headgate, BACKWARD.get(operation, operation + "_backward"))
    second = {"gated_attention": "dlse", "linear_attention": "dstate", "short_convolution": "dstate"}.get(operation)
    names = differentiated(operation, case)
    if case.options.get("gate_fn") == "none":
        names.remove("gate")
    others = {}
    if second is not None:
        # headgate.jax gives callers the log-sum-exp in f32 unless y is f64.
        dtype = np.float32 if operation == "gated_attention" and outputs[0].dtype != np.float64 else outputs[1].dtype
        others = {second: incoming[1].astype(dtype)}
    found = compute(
        incoming[0], gradients=["d" + name for name in names], **saved, **others, **case.arrays, **case.options
    )
    return {name: getattr(found, "d" + name) for name in names}


def as_f64(x) -> np.ndarray:
    return np.asarray(x).astype(np.float64)


@pytest.mark.parametrize(("operation", "case"), ALL, ids=[f"{operation}, {case}" for operation, case in ALL])
def test_every_case_has_the_bits_of_the_numpy_package(operation, case):
    expected, saved = numpy_outputs(operation, case)
    incoming = incoming_of(expected)
    results, gradients = jax_results(operation, case, incoming)
    assert len(results) == len(expected)
    for y, wanted in zip(results, expected):
        assert y.shape == wanted.shape
        np.testing.assert_array_equal(np.asarray(y), wanted.astype(y.dtype))
    if not has_gradients(operation, case):
        return
    wanted = numpy_gradients(operation, case, expected, saved, incoming)
    for name, found in gradients.items():
        assert found.dtype == case.arrays[name].dtype
        other = wanted.get(name, np.zeros(found.shape))
        np.testing.assert_array_equal(as_f64(found), as_f64(other), err_msg=name)


@pytest.fixture
def on_other_platforms():
    """Makes CPUs compute what other platforms compute."""
    mlir.register_lowering(passes._pass, passes._lower_elsewhere, platform="cpu")
    yield
    mlir.register_lowering(passes._pass, passes._lower_on_cpu, platform="cpu")


@pytest.mark.parametrize(
    ("operation", "case", "with_gradients"), IN_ELSEWHERE, ids=[f"{name}, {case}" for name, case, _ in IN_ELSEWHERE]
)
def test_other_platforms_compute_the_same(operation, case, with_gradients, on_other_platforms, monkeypatch):
    if with_gradients:  # several blocks
        monkeypatch.setattr(fallback_attention, "BLOCK", 4)
        monkeypatch.setattr(fallback_recurrent, "BLOCK", 4)
    expected, saved = numpy_outputs(operation, case)
    incoming = incoming_of(expected)
    if "dropout" in case.options:
        with pytest.raises(NotImplementedError, match=f"^{operation}: dropout is computed on CPUs only"):
            jax_results(operation, case, incoming)
        return
    results, gradients = jax_results(operation, case, incoming if with_gradients else None)
    dtype = next(iter(case.arrays.values())).dtype
    tolerance = {"float64": 1e-9, "float32": 2e-5}.get(dtype.name, 2e-2)
    for y, wanted in zip(results, expected):
        assert y.shape == wanted.shape
        np.testing.assert_allclose(as_f64(y), as_f64(wanted), rtol=tolerance, atol=tolerance)
    if not with_gradients:
        return
    wanted = numpy_gradients(operation, case, expected, saved, incoming)
    for name, found in gradients.items():
        other = wanted.get(name, np.zeros(found.shape))
        np.testing.assert_allclose(as_f64(found), as_f64(other), rtol=tolerance, atol=tolerance, err_msg=name)


@pytest.mark.parametrize("size", [1e-25, 1e25])
def test_rows_of_any_size_are_normalized_on_other_platforms(size, on_other_platforms):
    random = np.random.default_rng(3)
    x, v = random.normal(size=(2, 1, 2, 5, 8)).astype(np.float32)
    x *= np.float32(size)
    y = headgate.gated_norm(x, eps=0.0)
    np.testing.assert_allclose(gated_norm(x, eps=0.0), y, rtol=2e-6)
    z = headgate.linear_attention(x, x, v, l2_norm=0.0)
    np.testing.assert_allclose(linear_attention(x, x, v, l2_norm=0.0), z, rtol=1e-5, atol=1e-5)


def test_gate_functions_of_other_platforms_are_those_of_the_library():
    z = np.linspace(-20, 20, 41).reshape(1, 1, 41, 1)
    ones = np.ones((1, 1, 41, 1))
    words = [word for word, _ in headgate._headgate._rows["gate_functions"]]
    assert {*words} == {*fallback_attention.GATES}
    for word in words:
        expected = headgate.attention(ones, ones, ones, z, gate_fn=word)
        np.testing.assert_allclose(fallback_attention.GATES[word](z), expected, rtol=1e-12, err_msg=word)


@pytest.mark.parametrize("operation", CASES)
def test_other_platforms_compute_every_argument(operation):
    rows = OPERATIONS[operation]
    given = {name for what, case, _ in IN_ELSEWHERE if what == operation for name in (*case.arrays, *case.options)}
    of_cpus = {"precision"} | {name for name, option in rows.options.items() if option.part == "execution"}
    assert {*rows.tensors, *rows.options} - given - of_cpus == set()


@pytest.mark.parametrize("operation", CASES)
def test_every_argument_has_a_case(operation):
    rows = OPERATIONS[operation]
    given = {name for case in CASES[operation] for name in (*case.arrays, *case.options)}
    assert given == {*rows.tensors, *rows.options}


@pytest.mark.parametrize("operation", CASES)
def test_signature_has_every_argument(operation):
    rows = OPERATIONS[operation]
    parameters = inspect.signature(getattr(headgate.jax, operation)).parameters
    assert parameters.keys() == {*rows.tensors, *rows.options, *OUTPUTS[operation]}


@pytest.mark.parametrize("operation", CASES)
def test_programs_for_other_platforms_are_made(operation):
    case = CASES[operation][1]
    function = getattr(headgate.jax, operation)
    arrays = {name: jnp.asarray(x) for name, x in case.arrays.items()}

    def loss(arrays):
        return (function(**arrays, **case.options) ** 2).sum()

    exported = jax.export.export(jax.jit(jax.grad(loss)), platforms=["tpu"])(arrays)
    assert f"@headgate_{operation}" not in exported.mlir_module()
    exported = jax.export.export(
        jax.jit(jax.grad(loss)),
        platforms=["cpu"],
        disabled_checks=[
            jax.export.DisabledSafetyCheck.custom_call(f"headgate_{operation}_{d}") for d in ("forward", "backward")
        ],
    )(arrays)
    assert f"@headgate_{operation}_backward" in exported.mlir_module()
    if operation != "gated_attention":
        return
    found = exported.call(arrays)
    for name, x in jax.grad(loss)(arrays).items():
        np.testing.assert_array_equal(found[name], x)


@pytest.mark.parametrize("lacking", ["dropout", "mask", "softcap"])
def test_what_only_cpus_compute_is_refused_for_other_platforms(lacking, monkeypatch):
    computed = {name: names - {lacking} for name, names in fallback.COMPUTED.items()}
    monkeypatch.setattr(fallback, "COMPUTED", computed)
    case = next(case for case in CASES["gated_attention"] if lacking in case.arrays or lacking in case.options)
    arrays = {name: jnp.asarray(x) for name, x in case.arrays.items()}
    function = jax.jit(lambda arrays: headgate.jax.gated_attention(**arrays, **case.options))
    with pytest.raises(NotImplementedError, match=f"^gated_attention: {lacking} is computed on CPUs only"):
        jax.export.export(function, platforms=["cuda"])(arrays)


def jax_gradient_of_gate(dy, *tensors):
    return jax.vjp(headgate.jax.gated_attention, *tensors)[1](dy)[3]


def numpy_gradient_of_gate(dy, *tensors):
    saved = headgate.attention_forward(*tensors)
    return headgate.attention_backward(dy, *tensors, y=saved.y, lse=saved.lse, attn=saved.attn).dgate


@pytest.mark.parametrize("gradient", [jax_gradient_of_gate, numpy_gradient_of_gate])
def test_gradient_of_nearly_closed_gate_in_float16_is_accurate(gradient):
    rng = np.random.default_rng(1)
    tensors = [rng.standard_normal((1, 2, 48, 32)).astype(np.float16) for _ in range(3)]
    tensors.append((rng.standard_normal((1, 2, 48, 1)) / 2 - 15).astype(np.float16))
    dy = (1000 * rng.standard_normal((1, 2, 48, 32))).astype(np.float16)
    found = np.asarray(gradient(dy, *tensors)).astype(np.float64)
    right = numpy_gradient_of_gate(*(x.astype(np.float64) for x in (dy, *tensors)))
    assert np.linalg.norm(found - right) <= 2e-3 * np.linalg.norm(right)
