# SPDX-License-Identifier: Apache-2.0
"""Helpers that the peers with PyTorch tensors share."""

from collections.abc import Callable, Iterable

import numpy as np
import torch
from torch import Tensor, nn

from .cases import Case, Way


def tensors_of(case: Case, inputs: dict[str, np.ndarray]) -> dict[str, Tensor]:
    """Converts inputs to contiguous tensors of the case's dtype. A bias keeps its strides, and lists of keys stay
    integers."""

    def dtype_of(name: str) -> torch.dtype:
        return torch.int32 if name == "lists" else getattr(torch, case.dtype)

    def contiguous(name: str, array: np.ndarray) -> np.ndarray:
        return array if name == "bias" else np.ascontiguousarray(array)

    return {name: torch.from_numpy(contiguous(name, array)).to(dtype_of(name)) for name, array in inputs.items()}


def attention_inputs(case: Case) -> list[str]:
    """Returns the names of attention's inputs."""
    return [*"qkvz", "bias"] if case.is_pair else [*"qkvz"]


def mask_of_lists(lists: Tensor, S: int) -> Tensor:
    """Converts lists of keys (T,K) to a mask (1,1,T,S), which is true at listed keys."""
    return torch.zeros(lists.shape[0], S, dtype=torch.bool).scatter_(1, lists.long(), True)[None, None]


def arrays(tensors: Iterable[Tensor]) -> list[np.ndarray]:
    return [tensor.detach().float().numpy() for tensor in tensors]


def gradients(y: Tensor, dy: Tensor, inputs: list[Tensor]) -> list[Tensor]:
    """Returns y and the gradients of the leaf tensors `inputs`. Resets these gradients, so that they do not
    accumulate."""
    y.backward(dy)
    found = [y, *(tensor.grad for tensor in inputs)]
    for tensor in inputs:
        tensor.grad = None
    return found


def attention_way(case: Case, tensors: dict[str, Tensor], attention: Callable[..., Tensor]) -> Way:
    """Returns a Way that calls attention(q, k, v, z) or attention(q, k, v, z, bias), with gradients by autograd if the
    case has them."""
    inputs = [tensors[name] for name in attention_inputs(case)]

    def forward():
        with torch.no_grad():
            return [attention(*inputs)]

    def training():
        return gradients(attention(*leaves), tensors["dy"], leaves)

    leaves = [tensor.detach().requires_grad_() for tensor in inputs]
    return Way(training if case.op.endswith("+backward") else forward, arrays)


def linear_tensors(case: Case, inputs: dict[str, np.ndarray]) -> dict[str, Tensor]:
    """Returns the inputs of the delta rule with the layout (B,T,H,D) of projections. As in models, decay and state are
    f32, and all others have the model's dtype."""
    tensors = tensors_of(case, {name: array for name, array in inputs.items() if name not in ("decay", "state")})
    rows = {name: tensor.transpose(1, 2).contiguous() for name, tensor in tensors.items()}
    rows["decay"] = torch.from_numpy(inputs["decay"]).transpose(1, 2).contiguous()
    return rows if "state" not in inputs else {**rows, "state": torch.from_numpy(inputs["state"])}


def head_first(tensors: Iterable[Tensor]) -> list[np.ndarray]:
    """Converts tensors (B,T,H,…) to arrays (B,H,T,…)."""
    return arrays(tensor.transpose(1, 2) for tensor in tensors)


def layer_ways(case: Case, inputs: dict[str, np.ndarray], layer: nn.Module, weights: tuple[str, ...]) -> dict[str, Way]:
    """Returns Ways that run a layer from h (B,T,C) to (B,T,C), eager and compiled. `weights` names the submodules to
    load from the case's inputs."""
    tensors = tensors_of(case, inputs)
    layer = layer.to(getattr(torch, case.dtype))
    layer.load_state_dict({f"{name}.weight": tensors[name] for name in weights})
    h = tensors["h"].requires_grad_()
    leaves = [h, *(layer.get_submodule(name).weight for name in weights)]

    def way(call: Callable[[Tensor], Tensor]) -> Way:
        def forward():
            with torch.no_grad():
                return [call(h)]

        def training():
            return gradients(call(h), tensors["dy"], leaves)

        return Way(forward if case.op == "layer" else training, arrays)

    torch._dynamo.reset()
    return {"eager": way(layer), "compiled": way(torch.compile(layer, dynamic=False))}
