# SPDX-License-Identifier: Apache-2.0
"""Collects the data of each layer for an X-ray while the model runs, in addition to the metrics of watch().

Letters: H heads, T tokens, D features of a head, C channels.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

import headgate

from ..watch.call import AttentionCall, Geometry, scores
from ..watch.figures import Figure
from ..watch.handle import Layer, Watch, _is_within
from ..watch.linear import arguments_of, hidden_weights
from . import ranks
from .maps import HeadMaps, histogram

BLOCK_ELEMENTS = 1 << 23
"""Limit on the number of softmax weights in a block of queries: 32 MiB in float32."""
MOST_QUERIES = 128


@dataclass
class LayerRecord:
    """Holds the data of one layer of attention or of linear attention that an X-ray shows."""

    type: str
    heads: int
    kv_heads: int
    features: int  # number of features of a head's output
    maps: HeadMaps
    sinks: bool = False
    value_matrices: Tensor | None = None  # (Hkv,D,C): W_v
    projections: dict[nn.Module, int] = field(default_factory=dict)
    """Maps each linear map that ran before the attention call to the number of its input channels."""
    written: dict[nn.Module, tuple[Tensor, Tensor]] = field(default_factory=dict)
    """Maps each linear map that may be W_o to its matrix (C,H·D) and the Gram matrix of each head's inputs (H,D,D)."""
    state_rank: Tensor | None = None  # (H)


@dataclass
class GateRecord:
    """Holds the gate of a module's outputs."""

    means: Tensor  # (H,T): mean gate of each head and token over the features
    histogram: Tensor  # (H,20)
    features: int


class Collector(Watch):
    """A handle of watch() that also collects maps, gates and matrices. It watches one sequence."""

    def __init__(self, model: nn.Module, figures: list[str], tokens: int, cells: int, gates: Any, blocks: Any) -> None:
        super().__init__(model, figures, rows=[], gates=gates, blocks=blocks)
        self.tokens, self.cells = tokens, cells
        self.records: dict[str, LayerRecord] = {}
        self.gate_records: dict[str, GateRecord] = {}
        self.channels = 0
        self.unshown: dict[str, str] = {}
        self._projected: tuple[str, list[tuple[nn.Module, Tensor, Tensor]]] = "", []
        """Name of the running attention module, and its linear maps so far. Each map is stored with its input and
        output."""

    def gate_of(self, name: str) -> str:
        """Returns the name of the module from which the gate of attention module `name` was read.

        This is the attention module itself, a module within it, or a module in its block. Without a gate, returns
        `name`.
        """
        if name in self.gate_records:
            return name
        block = next((block for block in self._blocks if _is_within(name, block)), name)
        near = [each for around in (name, block) for each in self.gate_records if _is_within(each, around)]
        return next((each for each in near if each not in self.records), name)

    def hides_first(self, name: str) -> bool:
        """Returns whether a window hides the first token from some queries of a layer."""
        hidden = self._sums[name].hidden
        return hidden is not None and bool(hidden > 0)

    def blocks_without(self, names: Iterable[str]) -> list[str]:
        """Returns the blocks that ran and contain none of the named modules.

        A module that several blocks share is contained in all of them.
        """
        names = set(names)
        found = []
        for block, module in self._blocks.items():
            parts = {self._names[part] for part in module.modules()}
            if block in self._ran and not parts & names and not any(_is_within(block, name) for name in names):
                found.append(block)
        return found

    def of_heads(self, name: str, figure: Figure) -> Tensor | None:
        """Returns the values (H) of a metric for the heads of a module. Returns None if the metric is undefined."""
        return self._values(name, figure)[0] if figure.of_heads and name in self._sums else None

    def start(self) -> None:
        super().start()
        for module, name in self.modules():
            if ranks.matrix_of(module) is not None:
                self._wrapped.wrap(module, self._around_linear(module, name.rpartition(".")[0]))

    def _around_linear(self, module: nn.Module, parent: str) -> Callable[..., Any]:
        """Returns a function that observes the calls of a linear layer. `parent` names the module around the layer.

        In an attention module, a linear layer that runs before the attention call may compute the values. One that runs
        after the call may be W_o, which reads the outputs of the heads.
        """

        def around(forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            record = self.records.get(parent)
            x = next(iter((*args, *kwargs.values())), None) if self.is_measuring() else None
            out = forward(*args, **kwargs)
            if isinstance(x, Tensor) and isinstance(out, Tensor):
                with torch.no_grad():
                    self._add_map(record, parent, module, x, out.detach())
            return out

        return around

    def _add_map(self, record: LayerRecord | None, parent: str, module: nn.Module, x: Tensor, out: Tensor) -> None:
        """Records a call of a linear layer of the attention module `parent`.

        A layer that runs before the attention call is a projection. A layer that runs after the call is a candidate for
        W_o, unless it reads the same input as a projection.
        """
        if record is None:
            if self._projected[0] != parent:
                self._projected = parent, []
            if ranks.is_linear(module, x, out):
                self._projected[1].append((module, x, out))
            return
        reads = self._projected[1] if self._projected[0] == parent else ()
        if module in record.projections or any(read is x for _, read, _ in reads):
            return
        matrix = ranks.matrix_of(module)
        if matrix is None or matrix.shape[1] != record.heads * record.features or x.shape[-1] != matrix.shape[1]:
            return
        if not ranks.is_linear(module, x, out):
            return
        heads = x.reshape(-1, record.heads, record.features).double().transpose(0, 1)
        record.written[module] = matrix, heads.transpose(1, 2) @ heads

    def _record(self, layer: Layer, kind: str, heads: int, kv_heads: int, features: int, device: Any) -> LayerRecord:
        """Returns the record of a layer. All calls of the same module share one record."""
        if layer.name not in self.records:
            maps = HeadMaps(heads, self.tokens, self.cells, device)
            parent, outputs = self._projected
            before = {module: x.shape[-1] for module, x, _ in outputs if parent == layer.name}
            self.records[layer.name] = LayerRecord(kind, heads, kv_heads, features, maps, projections=before)
        return self.records[layer.name]

    def _query_blocks(self, heads: int, device: Any) -> list[Tensor]:
        rows = max(1, min(MOST_QUERIES, BLOCK_ELEMENTS // (heads * self.tokens)))
        return list(torch.arange(self.tokens, device=device).split(rows))

    def _add_rows(self, layer: Layer, call: AttentionCall, geometry: Geometry, lse: Tensor) -> None:
        (B, H, T, _), S = call.q.shape, call.k.shape[2]
        if call.cross or not (B == 1 and T == S == self.tokens):
            self.unshown[layer.name] = "its keys are not the tokens of the text"
            return
        kind = "sliding_attention" if call.slides or call.window is not None else "full_attention"
        features = call.q.shape[-1] if call.v is None else call.v.shape[-1]
        record = self._record(layer, kind, H, call.k.shape[1], features, call.q.device)
        record.sinks |= call.sinks is not None
        parent, outputs = self._projected
        for module, _, out in outputs if parent == layer.name and call.v is not None else ():
            if record.value_matrices is None:
                record.value_matrices = ranks.value_rows(module, out, call.v)
        each = slice(None) if call.mask is not None and call.mask.shape[1] > 1 else slice(1)
        plain = call.causal and call.mask is None and call.bias is None and geometry.sequence is None
        for at in self._query_blocks(H, call.q.device):
            seen = S if not plain else int(at[-1]) + 1  # number of keys that any query of the block may see
            part = replace(call, q=call.q[:, :, :seen], k=call.k[:, :, :seen]) if plain else call
            s = scores(part, geometry, at)[0]
            own = lse[0, :, at, None].to(s.dtype)
            weights = (s - own.masked_fill(own.isinf(), 0.0)).exp_()
            visible = s[each] != -torch.inf  # NaN scores count as visible
            if bool((visible & (torch.arange(seen, device=s.device) > at[:, None])).any()):
                del self.records[layer.name]
                self.unshown[layer.name] = "its queries see later tokens"
                return
            record.maps.add(at, weights, visible)

    def _add_linear(self, layer: Layer, call: dict[str, Any]) -> None:
        call = {key: x.cpu() if isinstance(x, Tensor) else x for key, x in call.items()}
        queries, self._queries = self._queries, None  # the loop below computes the weights in blocks of queries
        try:
            super()._add_linear(layer, call)
        finally:
            self._queries = queries
        (B, T), H, features = call["q"].shape[:2], call["v"].shape[2], call["v"].shape[3]
        if B != 1 or T != self.tokens or call["state"] is not None or call["cu_seqlens"] is not None:
            self.unshown[layer.name] = "its keys are not the tokens of the text"
            return
        record = self._record(layer, "linear_attention", H, call["k"].shape[2], features, torch.device("cpu"))
        tensors, options = arguments_of(call)
        found = headgate.linear_attention_statistics(**tensors, layout="bthd", outputs=["effective_rank"], **options)
        record.state_rank = torch.as_tensor(found.effective_rank)[0].double()
        key = torch.arange(T, device="cpu")
        for at in self._query_blocks(H, "cpu"):
            size = hidden_weights(call, at)[0].double().abs()
            total = size.sum(-1, keepdim=True)
            shares = torch.where(total == 0, 0.0, size / total)
            record.maps.add(at, shares, (key <= at[:, None])[None])

    def add_gate(self, name: str, source: str, gate: Tensor) -> None:
        super().add_gate(name, source, gate)
        if gate.shape[0] == 1 and gate.shape[2] == self.tokens:
            own = gate.detach()[0].double()
            self.gate_records[name] = GateRecord(own.mean(-1), histogram(own), own.shape[-1])

    def observe_block(self, name: str, out: Any) -> None:
        super().observe_block(name, out)
        x = out[0] if isinstance(out, (tuple, list)) and out else getattr(out, "last_hidden_state", out)
        if isinstance(x, Tensor) and x.dim() == 3:
            self.channels = x.shape[-1]
