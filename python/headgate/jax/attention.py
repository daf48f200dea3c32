# SPDX-License-Identifier: Apache-2.0
"""Gated attention for JAX."""

from typing import Any, Literal

from jax import Array

from ..operations import ATTENTION, keeps_output
from .arguments import checked, flag, take, takes
from .call import SEED, Call
from .differentiable import compute

NAME = "gated_attention"


@takes(ATTENTION)
def gated_attention(
    q: Array,
    k: Array,
    v: Array,
    gate: Array | None = None,
    *,
    return_lse: bool = False,
    return_max_logit: bool | Literal["rows"] = False,
    **arguments: Any,
) -> Array | tuple[Array, ...]:
    """Computes y = g(gate) * softmax(scale q k^T + bias, mask) v, with gradients.

    The arguments are those of headgate.attention, as arrays of JAX or NumPy. `gate`, (B,H,T,1) or (B,H,T,Dv), holds the
    raw logits of the gate. Returns y (B,H,T,Dv) with q's dtype. With return_lse, also returns the log-sum-exp (B,H,T),
    which is differentiable. With return_max_logit, the last result holds the largest scores, which have no gradient.
    True returns one score per head: (B,H), or (N,H) for a packed batch. "rows" returns one score per row, (B,H,T).

    q, k, v, gate, bias and sinks have gradients. Calls with block_table, k_scale, v_scale, k_first, v_first or
    gate_threshold cannot be differentiated. dropout needs a dropout_seed, an integer or an array with one integer. All
    other options must be known when JAX traces the call.

    CPUs compute the call with libheadgate, other devices with jax.numpy (docs/reference/jax.md). Raises ValueError with
    a one-line message if shapes, dtypes or options are invalid. Invalid elements, such as a key length beyond the keys,
    raise jax.errors.JaxRuntimeError when the call runs.
    """
    if "gate_logits" in arguments:
        raise TypeError(f"{NAME}() got an unexpected keyword argument 'gate_logits'; it is called gate")
    arrays, options = take(NAME, ATTENTION, {"q": q, "k": k, "v": v, "gate": gate}, arguments)
    if options.get("dropout") and SEED not in arrays and arguments.get(SEED) is None:
        raise ValueError(
            f"{NAME}: dropout needs dropout_seed, such as jax.random.bits(key): JAX keeps no seed of its own"
        )
    of_rows = isinstance(return_max_logit, str) and return_max_logit == "rows"
    largest = of_rows or flag(NAME, "return_max_logit", return_max_logit)
    outputs = ("y", *["lse"] * flag(NAME, "return_lse", return_lse), *["max_logit"] * largest)
    call = Call(NAME, tuple(sorted(options.items())), outputs, rows_of_max_logit=of_rows)
    arrays = checked(call, arrays)
    if options.get("gate_fn") == "none":
        arrays.pop("gate", None)  # with gate_fn "none", the call ignores the gate
    fn, op = (call.option(name, ATTENTION.options[name].default) for name in ("gate_fn", "gate_op"))
    keeps = keeps_output(fn, op, is_f16=arrays["q"].dtype == "float16")
    found = compute(call, arrays, "gate" in arrays and keeps)
    results = [found[name] for name in outputs]
    if of_rows and q.ndim == 3:
        results[-1] = results[-1][0]
    return tuple(results) if len(results) > 1 else results[0]
