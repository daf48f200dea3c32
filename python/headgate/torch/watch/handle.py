# SPDX-License-Identifier: Apache-2.0
"""Defines Watch, the handle that watch() returns."""

import contextlib
import inspect
import os
import re
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ...extras import require
from . import gates as gate_readers
from . import headgate_ops, linear, mha, sdpa, transformers
from .call import AttentionCall, Geometry, geometry_of, scores
from .figures import FIGURES, Figure, select_figures, size_of
from .log import RunLog, evaluation_of
from .masks import MaskCache
from .sample import AttentionSample, TokenVectors
from .statistics import STATISTICS, statistics_of
from .sums import LayerSums
from .wrapping import Wrapped

INTEGRATIONS = (transformers, sdpa, mha, headgate_ops, linear)
"""Modules whose install() makes a watch observe the attention calls of one library."""
LOOKS_LIKE_ATTENTION = re.compile(r"att(entio)?n|deltanet", re.IGNORECASE)
LOOKS_LIKE_CROSS_ATTENTION = re.compile(r"cross|encoder_attn|encdec|multihead_attn", re.IGNORECASE)
CROSS_ARGUMENTS = ("key_value_states", "encoder_hidden_states", "cross_attention_states")
READ_ERRORS = (ValueError, TypeError, RuntimeError, NotImplementedError, AttributeError, KeyError, IndexError)
"""Errors that unexpected calls may raise while they are read. The handle then records why it does not measure the
call."""
PLACE = ("sequence", "token", "channel")
"""Names of the three indices that locate a maximum."""


@dataclass
class Layer:
    """Holds the module that makes an attention call, and the module's name in the model."""

    name: str
    module: nn.Module


class Watch:
    """Measures a model between start() and stop(), or in a `with` block. Entering a block clears earlier results."""

    def __init__(
        self, model: nn.Module, figures: Any = None, *, rows: Any = None, gates: Any = None, blocks: Any = None
    ) -> None:
        model = getattr(model, "_orig_mod", model)  # of torch.compile
        self.model = model
        self.figures: tuple[Figure, ...] = select_figures(figures)
        self._keys = {figure.key for figure in self.figures}
        self._keys |= {figure.derived_from for figure in self.figures if figure.derived_from}
        self._needs = {need for figure in self.figures for need in figure.needs}
        self._queries = None if rows is None else _positions_of(rows)
        self._names: dict[nn.Module, str] = {}
        for name, module in model.named_modules():
            self._names.setdefault(module, name)
        self._given_gates = dict(gates or {})
        self._blocks = _blocks_of(model) if blocks is None else {name: model.get_submodule(name) for name in blocks}
        for name in self._given_gates:
            model.get_submodule(name)
        self.on = False
        self._steps = 0
        self._inside = 0
        self._thread = 0
        self._wrapped, self._undo = Wrapped(), contextlib.ExitStack()
        self._warned: set[str] = set()
        self.masks = MaskCache()
        self.reset()

    def reset(self) -> None:
        """Clears all measurements."""
        self._sums: dict[str, LayerSums] = {}
        self._ran: set[str] = set()
        self._elsewhere: set[str] = set()
        self._missed: dict[str, str] = {}
        self.rows: dict[str, Tensor] = {}
        self._stack: list[tuple[nn.Module, bool]] = []
        self._gates: dict[nn.Module, Tensor] = {}
        self._geometries: dict[Any, tuple[Any, Geometry]] = {}
        self._last: Geometry | None = None
        self._padding: Tensor | None = None
        self.linear_heads: dict[str, tuple[int, int, int]] = {}
        self.seen_calls = 0

    # -- start and stop

    def start(self) -> None:
        """Starts to watch: installs the hooks and observers. stop() removes them."""
        if self.on:
            return
        self.on = True
        self._thread = threading.get_ident()
        try:
            self._install()
        except BaseException:
            self._remove()
            raise

    def _install(self) -> None:
        for integration in INTEGRATIONS:
            self._undo.callback(integration.install(self))
        for module, name in self._names.items():
            if type(module).__module__.startswith("torch.nn.modules"):
                continue
            parts = any(True for _ in module.children()) or any(True for _ in module.parameters(recurse=False))
            if name in self._blocks or not name or parts:
                self._wrapped.wrap(module, self._around(module, name))
        gate_readers.install(self, self._wrapped, self._given_gates)

    def _remove(self) -> None:
        self.on = False
        self._wrapped.undo()
        self._undo.close()
        self._forget_pass()

    def stop(self) -> None:
        """Removes the hooks. Warns of modules in which no attention call was observed."""
        if not self.on:
            return
        wrapped = bool(self._wrapped)
        self._remove()
        if wrapped and not (self._ran or self._elsewhere or self._sums):
            warnings.warn(
                "watch: no module of the model ran in Python: a compiled model, or a copy, is not seen; "
                "probe() runs the model uncompiled",
                stacklevel=3,
            )
        unseen = {name: why for name, why in self.not_seen.items() if name not in self._warned}
        if unseen:
            self._warned |= set(unseen)
            name, why = next(iter(unseen.items()))
            more = f", and {len(unseen) - 1} more modules (see not_seen)" if len(unseen) > 1 else ""
            warnings.warn(f"watch: attention of '{name}' is not seen: {why}{more}", stacklevel=3)

    def __enter__(self) -> "Watch":
        self.reset()
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @contextlib.contextmanager
    def every(self, n: int) -> Iterator[bool]:
        """Watches every n-th `with` block, starting with the first. Yields True in a watched block, otherwise False."""
        if n < 1:
            raise ValueError(f"watch: every({n}): must be at least 1")
        on = self._steps % n == 0
        self._steps += 1
        if not on:
            yield False
            return
        with self:
            yield True

    def probe(self, **batch: Any) -> "Watch":
        """Watches the uncompiled model on a batch of its arguments, without gradients and in evaluation mode.
        Afterwards, restores the training modes of its modules.
        """
        modes = [(module, module.training) for module in self._names]
        self.model.eval()
        try:
            with self, torch.no_grad(), torch.compiler.set_stance("force_eager"):
                self.model(**batch)
        finally:
            for module, training in modes:
                module.training = training
        return self

    # -- while the model runs

    def _forget_pass(self) -> None:
        """Clears the masks, geometries and gates that are cached for one forward pass."""
        self.masks.clear()
        self._geometries.clear()
        self._gates.clear()

    def _around(self, module: nn.Module, name: str) -> Callable[..., Any]:
        block = name in self._blocks

        def around(forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if torch.compiler.is_compiling() or in_backward():
                return forward(*args, **kwargs)
            if threading.get_ident() != self._thread:
                self._elsewhere.add(name)
                return forward(*args, **kwargs)
            self._ran.add(name)
            is_outermost = not self._stack
            crosses = any(kwargs.get(key) is not None for key in CROSS_ARGUMENTS)
            before = self._padding
            # Uses the decoder's own mask if it reads an encoder's tokens: the model's mask then belongs to the encoder.
            if is_outermost or (crosses and not any(outer for _, outer in self._stack)):
                self._padding = _padding_of(forward, args, kwargs)
            self._stack.append((module, crosses))
            if block:
                self._last = None
            try:
                out = forward(*args, **kwargs)
            finally:
                self._stack.pop()
                self._padding = before
                if is_outermost:
                    self._forget_pass()
            if block:
                self.observe_block(name, out)
            return out

        return around

    def is_measuring(self) -> bool:
        """Returns whether attention calls are measured now. They are not measured in these cases:

        - while the watch is off
        - within another observed call
        - in compiled programs
        - in other threads than that of start()
        - in a backward pass, where checkpointing computes layers again
        """
        return (
            self.on
            and not self._inside
            and not torch.compiler.is_compiling()
            and not in_backward()
            and threading.get_ident() == self._thread
        )

    @contextlib.contextmanager
    def observed(self, module: nn.Module | None = None) -> Iterator[Layer | None]:
        """Yields the layer of an attention call. Yields None if the call is not measured.

        Calls within the context are not measured.
        """
        layer = None
        if self.is_measuring():
            if module not in self._names:
                module = self._stack[-1][0] if self._stack else None
            layer = None if module is None else Layer(self._names[module], module)
        if torch.compiler.is_compiling() or threading.get_ident() != self._thread:
            yield None
            return
        self._inside += 1
        try:
            with sdpa.paused(self):
                yield layer
        finally:
            self._inside -= 1

    def is_cross(self, module: nn.Module) -> bool:
        """Returns whether a module's keys belong to another sequence than its queries. The module's arguments or name
        tell this.
        """
        for running, cross in reversed(self._stack):
            if running is module:
                if cross:
                    return True
                break
        return LOOKS_LIKE_CROSS_ATTENTION.search(self._names[module].rpartition(".")[2]) is not None

    def miss(self, layer: Layer, why: object) -> None:
        """Records the reason why a call of a layer is not measured."""
        self._missed.setdefault(layer.name, str(why).strip().partition("\n")[0] or type(why).__name__)

    def _geometry(self, call: AttentionCall) -> Geometry:
        T, S = call.q.shape[2], call.k.shape[2]
        parts = (call.mask, call.listed, call.cu_seqlens, call.positions, call.real)
        key = (*map(id, parts), call.q.shape[0], T, S, call.causal, call.window, call.cross)
        if key not in self._geometries:
            self._geometries[key] = parts, geometry_of(call)
        return self._geometries[key][1]

    def ran(self, name: str) -> None:
        """Records that a module ran."""
        self._ran.add(name)

    @torch.no_grad()
    def try_describe(self, layer: Layer, describe: Callable[[], Any]) -> Any:
        """Returns the result of `describe` for an attention call. If it raises one of READ_ERRORS, records the reason
        and returns None.
        """
        self.seen_calls += 1
        self.ran(layer.name)
        try:
            with torch._C.DisableTorchFunction():
                return describe()
        except READ_ERRORS as error:
            self.miss(layer, error)
            return None

    @torch.no_grad()
    def record_attention(
        self, layer: Layer, described: tuple[AttentionCall, Tensor | None] | None, own_lse: Tensor | None = None
    ) -> None:
        """Measures a softmax attention call. own_lse is its log-sum-exp if Headgate's kernels have computed it."""
        if described is None:
            return
        try:
            with _plain_tensor_operations(described[0].q.device.type):
                self._add_attention(layer, *described, own_lse)
        except READ_ERRORS as error:
            self.miss(layer, error)

    def observe_attention(self, layer: Layer, describe: Callable[[], tuple[AttentionCall, Tensor | None]]) -> None:
        """Measures a softmax attention call of a layer. `describe` returns the AttentionCall and the gate."""
        self.record_attention(layer, self.try_describe(layer, describe))

    def _add_attention(self, layer: Layer, call: AttentionCall, gate: Tensor | None, own_lse: Tensor | None) -> None:
        if call.q.numel() == 0 or call.k.numel() == 0:
            return
        geometry = self._geometry(call)
        if not call.cross:
            self._last = geometry
        statistics = statistics_of(call, geometry, self._needs & STATISTICS, own_lse)
        if gate is None:
            gate = self._gates.pop(layer.module, None)
        sample = AttentionSample(call, geometry, statistics, gate)
        wanted = [x for x in FIGURES if x.source == "attention" and x.read is not None and x.key in self._keys]
        # Computes all figures before it adds the first: a call that raises an error counts in none.
        values = [(figure, figure.read(sample)) for figure in wanted]
        sums = self._sums.setdefault(layer.name, LayerSums(call.kind))
        for figure, found in values:
            if found is None:
                continue
            if figure.is_maximum:
                sums.add_maximum(figure.key, *(found if isinstance(found, tuple) else (found,)))
            elif isinstance(found, tuple):
                sums.add(figure.key, *found)
            else:
                sums.add_queries(figure.key, found, geometry.after_first)
        sums.add_hidden((geometry.after_first & ~geometry.sees_first).sum())
        if gate is not None:
            self.add_gate(layer.name, "gate", gate)
        if self._queries is not None:
            self._add_rows(layer, call, geometry, statistics["lse"])

    def _add_rows(self, layer: Layer, call: AttentionCall, geometry: Geometry, lse: Tensor) -> None:
        T, S = call.q.shape[2], call.k.shape[2]
        at = self._queries.to(call.q.device) - (0 if call.cross else S - T)
        at = at[(at >= 0) & (at < T)]
        # Keeps the rows of an earlier call, such as that of the prompt, if this call has none of the chosen queries.
        if len(at) == 0 and layer.name in self.rows:
            return
        lse = lse[:, :, at, None]
        found = scores(call, geometry, at).double() - lse.masked_fill(lse.isinf(), 0.0)
        self.rows[layer.name] = found.exp().float()

    @torch.no_grad()
    def observe_linear(self, layer: Layer, describe: Callable[[], dict[str, Any]]) -> None:
        """Adds the figures of a linear attention call. `describe` returns the call as arguments of linear_attention."""
        call = self.try_describe(layer, describe)
        if call is None:
            return
        try:
            with _plain_tensor_operations(call["q"].device.type):
                self._add_linear(layer, call)
        except READ_ERRORS as error:
            self.miss(layer, error)

    def _add_linear(self, layer: Layer, call: dict[str, Any]) -> None:
        B, T = call["q"].shape[:2]
        if call["q"].numel() == 0:
            return
        sample = linear.sample_of(call, self.padding_for(B, T), sorted(self._needs & {"first_share", "reach"}))
        self.linear_heads[layer.name] = B, T, call["v"].shape[2]
        sums = self._sums.setdefault(layer.name, LayerSums("linear"))
        for figure in self.figures:
            if figure.source == "linear" and figure.read is not None and sample.statistics.keys() >= set(figure.needs):
                counted = sample.after_first if figure.needs else sample.not_padding
                sums.add_queries(figure.key, figure.read(sample), counted)
        if self._queries is not None and not linear.continues(call):
            at = self._queries[self._queries < T].to(call["q"].device)
            if len(at) > 0 or layer.name not in self.rows:
                self.rows[layer.name] = linear.hidden_weights(call, at).float()

    def padding_for(self, B: int, T: int | None = None) -> Tensor | None:
        """Returns the padding mask (B,T) of the last T tokens, true for real tokens. Without a mask, returns None. If T
        is None, returns the mask of all tokens.

        The model's mask begins with the tokens that are already in a cache. These are cut off.
        """
        padding = self._padding
        if padding is None or padding.shape[0] != B or (T is not None and padding.shape[1] < T):
            return None
        return padding if T is None else padding[:, -T:]

    def store_gate(self, attention: nn.Module, gate: Tensor) -> None:
        """Stores the gate (B,H,T,·) for the next call of an attention module."""
        self._gates[attention] = gate

    def modules(self) -> Iterator[tuple[nn.Module, str]]:
        """Returns the model's modules with their names."""
        return iter(self._names.items())

    def add_gate(self, name: str, source: str, gate: Tensor) -> None:
        """Measures a gate (B,H,T,·) of module `name`. `source` is the metrics' source, such as "gate"."""
        sums = self._sums.setdefault(name, LayerSums("gate"))
        gate = gate.detach()
        if gate.numel() == 0:
            return
        real = self.padding_for(gate.shape[0], gate.shape[2])
        real = None if real is None else real[:, None, :, None]
        count = gate.new_tensor(gate[:, 0].numel(), dtype=torch.float64) if real is None else real.sum() * gate.shape[3]
        if source == "gate" and "gate_histogram" in self._keys:
            kept = torch.ones_like(gate) if real is None else real.expand_as(gate)
            bins = gate_readers.bins_of(gate).transpose(0, 1).flatten(1)
            counts = torch.zeros(gate.shape[1], gate_readers.BINS, dtype=torch.float64, device=gate.device)
            sums.add_histogram(counts.scatter_add(1, bins, kept.double().transpose(0, 1).flatten(1)))
        for figure in self.figures:
            if figure.source == source and figure.read is not None:
                values = figure.read(gate)
                values = values if real is None else torch.where(real, values, 0)
                sums.add(figure.key, values.sum((0, 2, 3), dtype=torch.float64), count)

    @torch.no_grad()
    def observe_block(self, name: str, out: Any) -> None:
        """Measures the output of a block."""
        if not self.is_measuring():
            return
        x = out[0] if isinstance(out, (tuple, list)) and out else getattr(out, "last_hidden_state", out)
        wanted = [figure for figure in self.figures if figure.source == "block"]
        if not wanted or not isinstance(x, Tensor) or x.dim() != 3 or x.numel() == 0:
            return
        try:
            with _plain_tensor_operations(x.device.type):
                self._add_block(name, x.detach(), wanted)
        except READ_ERRORS as error:
            self.miss(Layer(name, self._blocks[name]), error)

    def _add_block(self, name: str, x: Tensor, wanted: list[Figure]) -> None:
        real = first = None
        if x.is_nested:  # nn.TransformerEncoder converts padded sequences to a nested tensor
            lengths = torch.tensor([len(part) for part in x.unbind()], device=x.device)
            x = x.to_padded_tensor(0.0)
            real = torch.arange(x.shape[1], device=x.device) < lengths[:, None]
        geometry = self._last
        if real is None and geometry is not None and geometry.not_padding.shape[1] == x.shape[1]:
            real, first = geometry.not_padding, geometry.own_key == geometry.first
        elif real is None and (padding := self.padding_for(*x.shape[:2])) is not None:
            real = padding
            first = real & (real.cumsum(-1) == 1)
        if real is None:
            real = torch.ones(1, x.shape[1], dtype=torch.bool, device=x.device)
        after_first = real & ~(torch.arange(x.shape[1], device=x.device) == 0 if first is None else first)
        sample = TokenVectors(x[:, None], real, after_first)
        sums = self._sums.setdefault(name, LayerSums("block"))
        for figure in wanted:
            (sums.add_maximum if figure.is_maximum else sums.add)(figure.key, *figure.read(sample))

    # -- results

    @property
    def not_seen(self) -> dict[str, str]:
        """Maps names of attention modules that were not measured to the reason."""
        found = dict(self._missed)
        called = [name for name, sums in self._sums.items() if sums.kind not in ("block", "gate")] + list(found)
        looks = [
            name for module, name in self._names.items() if LOOKS_LIKE_ATTENTION.search(type(module).__name__) and name
        ]
        compiled = [name for module, name in self._names.items() if _is_compiled(module)] if self._ran else []
        for name in looks:
            inner = any(other.startswith(name + ".") for other in looks)
            related = any(_is_within(name, other) or _is_within(other, name) for other in called)
            if inner or name in called:
                continue
            if name in self._elsewhere:
                found[name] = "it ran in another thread than start()"
            elif name not in self._ran and any(_is_within(name, other) for other in compiled):
                found[name] = "it is compiled: probe() runs the model uncompiled"
            elif name in self._ran and not related:
                found[name] = "it made no call of attention that PyTorch or transformers makes known"
        return found

    def _values(self, name: str, figure: Figure) -> tuple[Tensor | None, float | None]:
        """Returns a metric of one module: of its heads, and of the whole layer. Either is None if it is undefined.

        A metric that was measured and is not finite is NaN or infinity. NaN in heads may also be undefined.
        """
        sums = self._sums[name]
        key = figure.derived_from or figure.key
        if figure.is_maximum:
            heads = sums.maxima.get(key)
            return (None, None) if heads is None else (heads.cpu(), heads.max().item())
        if key not in sums.sums:
            return None, None
        if figure.of_first_token and sums.hidden is not None and sums.hidden.item() > 0:
            return None, None
        total, count = sums.sums[key].cpu(), sums.counts[key].cpu()
        if count.sum() == 0:
            return None, None
        finish = figure.finish or (lambda means: means)
        heads = finish(total / count)
        if figure.of_powers:
            heads, layer = None, heads
        elif figure.derived_from:
            layer = None if heads is None else heads[count > 0].mean()
        else:
            layer = finish(total.sum() / count.sum())
        return heads, None if layer is None else layer.item()

    def _modules(self) -> list[str]:
        order = {name: i for i, name in enumerate(self._names.values())}
        return sorted(self._sums, key=order.__getitem__)

    @property
    def layers(self) -> list[dict[str, Any]]:
        """Holds a dict for each module with an attention call or a gate: "module", "kind" and the metrics.

        "kind" is causal, bidirectional, cross, linear or gate. The metrics of a block's output are in the dict of the
        block's first module with an attention call or a gate. Without such a module, the block has its own dict, of
        kind "block".
        """
        found: list[dict[str, Any]] = []
        blocks = [name for name in self._modules() if self._sums[name].kind == "block"]
        others = [name for name in self._modules() if self._sums[name].kind != "block"]
        for name in others:
            row: dict[str, Any] = {"module": name, "kind": self._sums[name].kind}
            block = next((block for block in blocks if _is_within(name, block)), None)
            for figure in self.figures:
                of = block if figure.source == "block" else name
                if of is not None:
                    self._add_figure(row, figure, of)
            if block is not None:
                blocks.remove(block)
            found.append(row)
        for block in blocks:
            row = {"module": block, "kind": "block"}
            for figure in self.figures:
                self._add_figure(row, figure, block)
            found.append(row)
        return found

    def _add_figure(self, row: dict[str, Any], figure: Figure, name: str) -> None:
        sums = self._sums[name]
        if (figure.derived_from or figure.key) not in sums.sums and figure.key not in sums.maxima:
            return
        row[figure.key] = self._values(name, figure)[1]
        if figure.key in sums.places:
            head = int(sums.maxima[figure.key].argmax())
            if figure.of_heads:
                row[f"{figure.key}_head"] = head
            row |= {f"{figure.key}_{what}": at for what, at in zip(PLACE, sums.places[figure.key][head].tolist())}

    def scalars(self, *, by_layer: bool = True) -> dict[str, float]:
        """Returns {key: value} of the model. With by_layer, adds {"key/module": value} of its layers.

        The value of the model is the mean over its layers, or their maximum if the metric is a maximum. Layers of
        cross-attention are not included. Metrics without a value are omitted. If the model's numbers are not finite,
        the metrics that depend on them are NaN or infinity.
        """
        found: dict[str, float] = {}
        layers = self.layers
        for figure in self.figures:
            rows = [row for row in layers if row.get(figure.key) is not None]
            own = [row[figure.key] for row in rows if row["kind"] != "cross"]
            if own:
                found[figure.key] = max(own, key=size_of) if figure.is_maximum else sum(own) / len(own)
            if by_layer:
                found |= {f"{figure.key}/{row['module']}": row[figure.key] for row in rows}
        return found

    def log(self, directory: str | os.PathLike[str], step: int, **figures: Any) -> None:
        """Appends a record to metrics.jsonl in a directory, which `headgate compare` and headgate.runs read.

        The record holds the metrics of this handle. It also holds the given values of the step, such as loss=, lr=,
        grad_norm= and tokens=. With several ranks, only one rank may call this.

        The first step is 1. If a step is recorded twice, as in a resumed run, readers use the later record. Raises
        ValueError for unknown names of values.
        """
        RunLog(directory).add(step, figures, evaluation_of(self))

    def head_frame(self) -> Any:
        """Returns a pandas.DataFrame with a row for each head, indexed by module and head."""
        pandas = require("pandas", "head_frame()")
        rows = []
        for name in self._modules():
            columns = {}
            for figure in self.figures:
                heads = self._values(name, figure)[0] if figure.of_heads else None
                if heads is not None:
                    columns[figure.key] = heads.tolist()
                if figure.of_heads and figure.key in self._sums[name].places:
                    columns |= zip(
                        [f"{figure.key}_{what}" for what in PLACE], self._sums[name].places[figure.key].T.tolist()
                    )
            most = max(map(len, columns.values()), default=0)
            for h in range(most):
                row = {key: of[h * len(of) // most] for key, of in columns.items()}
                rows.append({"module": name, "head": h, **row})
        return pandas.DataFrame(rows, columns=None if rows else ["module", "head"]).set_index(["module", "head"])

    @property
    def gate_histograms(self) -> dict[str, Tensor]:
        """Counts (H,20) of each module's gates in 20 equal bins of [0, 1]. Requires the metric "gate_histogram".

        Gates outside of [0, 1] count in the nearest bin.
        """
        return {name: self._sums[name].histogram for name in self._modules() if self._sums[name].histogram is not None}

    def pool_ranks(self, group: Any = None) -> "Watch":
        """Combines the metrics of all ranks of a torch.distributed group.

        Every rank must call this once, and gets the combined metrics. Means are weighted with the numbers of their
        terms. A maximum becomes the largest maximum of any rank.
        """
        import torch.distributed as dist

        own = {name: sums.on_cpu() for name, sums in self._sums.items()}
        of_ranks: list[Any] = [None] * dist.get_world_size(group)
        dist.all_gather_object(of_ranks, own, group=group)
        self._sums = {}
        for of_rank in of_ranks:
            for name, sums in of_rank.items():
                self._sums.setdefault(name, LayerSums(sums.kind)).merge(sums)
        return self

    def __repr__(self) -> str:
        return f"<watch of {type(self.model).__name__}: {len(self._sums)} modules seen, {len(self.not_seen)} not seen>"


def _positions_of(rows: Any) -> Tensor:
    """Converts the argument `rows` of watch() to int64. Raises ValueError for a value that is not a position."""
    given = torch.as_tensor(rows, device="cpu").flatten()
    positions = given.to(torch.int64)
    wrong = given[(positions != given) | (positions < 0) | (given.dtype == torch.bool)].tolist()
    if wrong:
        raise ValueError(f"watch: rows contains {wrong[0]} but must hold positions: whole numbers from 0 on")
    return positions


def _is_within(name: str, other: str) -> bool:
    return name == other or other == "" or name.startswith(other + ".")


def _is_compiled(module: nn.Module) -> bool:
    return hasattr(module, "_orig_mod") or module._compiled_call_impl is not None


def in_backward() -> bool:
    """Returns whether a backward pass runs in this thread. During it, activation checkpointing computes layers again."""
    return torch._C._current_graph_task_id() != -1


@contextlib.contextmanager
def _plain_tensor_operations(device_type: str) -> Iterator[None]:
    """Turns off autocast, function modes and __torch_function__ of tensor subclasses within a `with` block."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch._C.DisableTorchFunction())
        if torch.amp.autocast_mode.is_autocast_available(device_type):
            stack.enter_context(torch.autocast(device_type, enabled=False))
        yield


def _padding_of(forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """Returns the padding mask (B,T) among a model's arguments, true for real tokens. Without a mask, returns None."""
    mask = kwargs.get("attention_mask")
    if mask is None and len(args) > 1:
        with contextlib.suppress(TypeError, ValueError):
            mask = inspect.signature(forward).bind_partial(*args).arguments.get("attention_mask")
    return mask.detach().bool() if isinstance(mask, Tensor) and mask.dim() == 2 else None


def _blocks_of(model: nn.Module) -> dict[str, nn.Module]:
    """Returns a model's blocks by name: the children of each ModuleList or Sequential that contains attention.

    Lists inside a block are not searched.
    """
    found: dict[str, nn.Module] = {}
    for name, module in model.named_modules():
        if not isinstance(module, (nn.ModuleList, nn.Sequential)) or any(_is_within(name, block) for block in found):
            continue
        if any(LOOKS_LIKE_ATTENTION.search(type(part).__name__) for part in module.modules()):
            found |= {f"{name}.{key}" if name else key: block for key, block in module.named_children()}
    return found
