# SPDX-License-Identifier: Apache-2.0
"""Assembles the report of a live model, with the keys of `headgate xray --json`."""

import contextlib
import inspect
import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

import headgate
from headgate.models import Xray, _xray_of

from ..checks import is_whole
from ..watch.gates import READERS
from ..watch.handle import _is_within
from . import ranks
from .collector import Collector, GateRecord, LayerRecord
from .figures import WATCHED, Row, rows_for
from .maps import as_bytes, as_roots, top_keys
from .text import ids_of, pieces_of
from .verdict import verdict

VERSION = 1
"""Version of the JSON format of reports."""
LOSS_ROWS = 128
MOST_CELLS = 1024

Values = dict[str, Any]


def _whole(name: str, value: Any, least: int, most: int | None = None) -> int:
    if not is_whole(value):
        raise TypeError(f"xray: {name} is {value!r} but must be a whole number")
    if value < least or (most is not None and value > most):
        raise ValueError(
            f"xray: {name} is {value} but must be at least {least}" + (f" and at most {most}" if most else "")
        )
    return value


def _number(value: Any) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)


def _rounded(values: Iterable[float]) -> list[float | None]:
    """Rounds numbers to five digits. Replaces numbers that are not finite by None."""
    return [float(f"{value:.5g}") if math.isfinite(value) else None for value in values]


def report_of(
    model: Any, tokenizer: Any, text: Any, name: str | None, tokens: int, cells: int, gates: Any, blocks: Any
) -> Xray:
    """Returns the X-ray of a live model. headgate.torch.xray describes the arguments."""
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"xray: model is a {type(model).__name__} but must be a torch.nn.Module; headgate.load reads files"
        )
    model = getattr(model, "_orig_mod", model)  # of torch.compile
    config = getattr(model, "config", None)
    if getattr(config, "is_encoder_decoder", False):
        raise ValueError(
            "xray: model is an encoder-decoder but must be a causal model: its decoder reads other tokens than the text"
        )
    positions = getattr(config, "max_position_embeddings", None)
    _whole("tokens", tokens, 2)
    _whole("map_cells", cells, 1, MOST_CELLS)
    tokens = min(tokens, positions) if isinstance(positions, int) and positions > 1 else tokens
    ids, source = ids_of(tokenizer, text, tokens)
    if len(ids) < 3:
        raise ValueError(f"xray: the text is {len(ids)} tokens but must be at least 3: two, and the last one's target")
    size = _vocabulary(model)
    if size is not None and not 0 <= min(ids) <= max(ids) < size:
        raise ValueError(f"xray: text has token ids {min(ids)} to {max(ids)} but the model has {size} tokens")
    T = len(ids) - 1
    seen = Collector(model, WATCHED, T, cells, gates, blocks)
    logits = _run(seen, model, ids[:-1])
    if not seen.records:
        why = next(
            iter({**seen.not_seen, **seen.unshown}.values()), "the model has no module that looks like attention"
        )
        raise ValueError(f"xray: no causal attention of {type(model).__name__} is seen: {why}")
    name = name or getattr(config, "_name_or_path", "") or type(model).__name__
    report = _Report(seen, seen_layers(seen), logits is not None)
    found = report.model(str(name), _losses(logits, ids[1:]), pieces_of(tokenizer, ids), tokenizer is not None)
    rows = [row.report_entry() for row in report.rows]
    return _xray_of(
        {"headgate": headgate.__version__, "version": VERSION, "text": source, "figures": rows, "models": [found]}
    )


def _embedding_sizes(model: nn.Module) -> list[int]:
    return [part.num_embeddings for part in model.modules() if isinstance(part, nn.Embedding)]


def _vocabulary(model: nn.Module) -> int | None:
    """Returns the size of a model's vocabulary. Returns None if the model has no embeddings.

    Prefers the embeddings that get_input_embeddings() returns. Otherwise, takes the largest nn.Embedding.
    """
    embeddings = None
    with contextlib.suppress(AttributeError, NotImplementedError):
        embeddings = model.get_input_embeddings()  # of transformers
    return getattr(embeddings, "num_embeddings", None) or max(_embedding_sizes(model), default=None)


def _run(seen: Collector, model: nn.Module, ids: list[int]) -> Tensor | None:
    """Runs the model on a sequence. Returns its logits (T,V). Returns None if the model returns no logits."""
    parameters = inspect.signature(model.forward).parameters
    variadic = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    key = "input_ids" if "input_ids" in parameters or variadic else next(iter(parameters), "input_ids")
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    batch = {key: torch.tensor([ids], device=device)} | ({"use_cache": False} if "use_cache" in parameters else {})
    kept: list[Any] = []
    hook = model.register_forward_hook(lambda _model, _given, out: kept.append(out))
    try:
        seen.probe(**batch)
    finally:
        hook.remove()
    out = kept[-1]
    logits = getattr(out, "logits", None)
    first = out[0] if isinstance(out, (tuple, list)) and out else out
    if logits is None and isinstance(first, Tensor) and first.shape[-1] in _embedding_sizes(model):
        logits = first  # logits are the first element of a tuple
    return logits[0] if isinstance(logits, Tensor) and logits.shape[:2] == (1, len(ids)) else None


def _losses(logits: Tensor | None, targets: list[int]) -> Tensor:
    """Returns the cross-entropy loss (T) of each target token, in nats. Without logits, all losses are NaN."""
    if logits is None:
        return torch.full((len(targets),), math.nan, device="cpu")
    of = torch.tensor(targets, device=logits.device).split(LOSS_ROWS)
    parts = zip(logits.split(LOSS_ROWS), of)
    return torch.cat([nn.functional.cross_entropy(z.float(), t, reduction="none").cpu() for z, t in parts])


def _grouped(reasons: Iterable[tuple[str, str]]) -> list[str]:
    """Groups pairs of a module's name and a reason by reason. Returns one text for each reason.

    The text names the first module with this reason, and the number of other modules.
    """
    found: dict[str, list[str]] = {}
    for name, reason in reasons:
        found.setdefault(reason, []).append(name)
    return [
        f"{names[0]}{f' and {len(names) - 1} more' * (len(names) > 1)}: {reason}" for reason, names in found.items()
    ]


class Layer:
    """Holds one layer of the report: the collected record, the gate, and the metrics that watch() measured."""

    def __init__(
        self, name: str, gate_name: str, record: LayerRecord, gate: GateRecord | None, figures: Values, channels: int
    ) -> None:
        self.name, self.gate_name, self.record, self.gate, self.watched = name, gate_name, record, gate, figures
        self.received = record.maps.received()
        self.singular = self.value_rank = self.written_rank = None
        self.channels = 0
        widths = {channels, *record.projections.values()} - {0}
        maps = [each for each in record.written.values() if not widths or len(each[0]) in widths]
        if len(maps) != 1:  # W_o is unknown unless exactly one linear layer fits
            return
        ((matrix, written),) = maps
        H, D, self.channels = record.heads, record.features, len(matrix)
        of_head = matrix.double().unflatten(1, (H, D)).transpose(0, 1)  # (H,C,D)
        outputs = of_head.transpose(1, 2) @ of_head
        self.written_rank = ranks.effective_rank(ranks.singular_values(written, outputs))
        if record.value_matrices is not None:
            values = record.value_matrices.double()
            of_values = (values @ values.transpose(1, 2)).repeat_interleave(H // len(values), 0)
            self.singular = ranks.singular_values(of_values, outputs)
            self.value_rank = ranks.effective_rank(self.singular)

    def own_gate(self, head: int) -> int | None:
        """Returns the index of the head's gate. Returns None if there is no gate, or if all heads share one gate."""
        if self.gate is None:
            return None
        owners, H = len(self.gate.means), self.record.heads
        return head * owners // H if H % owners == 0 and (owners > 1 or H == 1) else None

    def collected(self) -> dict[str, Tensor | None]:
        """Returns the metrics (H) of the heads that watch() does not measure."""
        return {
            "state_rank": self.record.state_rank,
            "value_output_rank": self.value_rank,
            "written_rank": self.written_rank,
        }

    def head(self, h: int, triangle: Tensor) -> Values:
        gate, at = self.gate, self.own_gate(h)
        return {
            "map": as_roots(triangle),
            "received": as_roots(self.received[h]),
            "gate": None if gate is None or at is None else as_bytes(gate.means[at]),
            "gate_histogram": None if gate is None or at is None else gate.histogram[at].tolist(),
            "top_keys": [[token, _rounded([weight])[0]] for token, weight in top_keys(self.received[h])],
            "singular_values": [] if self.singular is None else _rounded(self.singular[h].tolist()),
        }


def seen_layers(seen: Collector) -> list[Layer]:
    """Returns the layers of the report in the order of the model's modules."""
    rows = {row["module"]: row for row in seen.layers}
    found = []
    for name in (name for _, name in seen.modules() if name in seen.records):
        of = seen.gate_of(name)
        gates = {key: value for key, value in rows.get(of, {}).items() if key.startswith("gate_")}
        found.append(Layer(name, of, seen.records[name], seen.gate_records.get(of), gates | rows[name], seen.channels))
    return found


class _Report:
    """Builds the part of a report that describes one model."""

    def __init__(self, seen: Collector, layers: list[Layer], has_logits: bool) -> None:
        self.seen, self.layers, self.has_logits = seen, layers, has_logits
        kinds = [layer.record.type for layer in layers]
        softmax = [layer for layer in layers if layer.record.type != "linear_attention"]
        hides = bool(softmax) and all(seen.hides_first(layer.name) for layer in softmax)
        self.has_sinks = any(layer.record.sinks for layer in layers)
        self.rows: list[Row] = rows_for("linear_attention" in kinds, self.has_sinks, hides)

    def model(self, name: str, losses: Tensor, pieces: list[str], has_text: bool) -> Values:
        layers, seen = self.layers, self.seen
        kv_heads = next((x.record.kv_heads for x in layers if x.record.type != "linear_attention"), None)
        found: Values = {
            "name": name,
            "gate": self._gate_name(),
            "parameters": sum(parameter.numel() for parameter in seen.model.parameters()),
            "layers": len(layers),
            "layer_types": [layer.record.type for layer in layers],
            "layer_names": [layer.name for layer in layers],
            "kv_heads": layers[0].record.kv_heads if kv_heads is None else kv_heads,
            "dim": seen.channels or max(x.channels for x in layers),
            "tokens": len(pieces) - 1,
            "verdict": "",
            "largest_activation": self._largest(),
            "figures": self._model_figures(losses, "".join(pieces[1:]) if has_text else ""),
            "layer_figures": [self._layer_figures(layer) for layer in layers],
            "head_figures": [self._head_figures(layer) for layer in layers],
            "overrides": None,
            "not_shown": self._not_shown(),
            "text": pieces[:-1],
            "token_losses": _rounded(losses.tolist()),
            "map_size": layers[0].record.maps.size,
            "heads": [[x.head(h, of) for h, of in enumerate(x.record.maps.triangles())] for x in layers],
            "layer_text": self._layer_text(),
        }
        return found | {"verdict": verdict(found, has_stream=seen.channels > 0)}

    def _gate_name(self) -> str:
        words = []
        for layer in self.layers:
            if layer.gate is None or layer.record.type == "linear_attention":
                continue
            kind = type(self.seen.model.get_submodule(layer.name)).__name__
            grain = "elementwise" if layer.gate.features > 1 else "headwise"
            words = [f"g1-{grain}-sigmoid-mul" if any(each.classes.search(kind) for each in READERS) else f"g1-{grain}"]
        return "-".join(words + ["learned_sinks"] * self.has_sinks) or "none"

    def _largest(self) -> Values:
        """Returns the value, layer, token and channel of the largest activation in the residual stream.

        All are null if no residual stream was observed. If the activation's block contains no attention layer of the
        report, "layer" is null and "module" names the block.
        """
        names = [layer.name for layer in self.layers]
        largest: Values = dict.fromkeys(("value", "layer", "token", "channel"))
        best = -1.0
        for row in self.seen.layers:
            value = row.get("massive_activation", -1.0)
            size = math.inf if value is None or math.isnan(value) else value
            if size > best:
                block = row["module"]
                if row["kind"] != "block":
                    block = next(each for each in self.seen._blocks if _is_within(block, each))
                layer = next((n for n, name in enumerate(names) if _is_within(name, block)), None)
                place = {of: row[f"massive_activation_{of}"] for of in ("token", "channel")}
                largest = {"value": _number(value), "layer": layer, **place}
                if layer is None:
                    largest["module"] = block
                best = size
        return largest

    def _model_figures(self, losses: Tensor, text: str) -> Values:
        loss, bytes_ = losses.double().mean().item(), len(text.encode())
        largest = self._largest()
        own: Values = {
            **self._by_row(self.seen.scalars(by_layer=False)),
            "loss_nats": loss,
            "bits_per_byte": loss * len(losses) / math.log(2) / bytes_ if bytes_ else None,
            "perplexity": math.exp(loss) if loss < 700 else math.inf,
            "massive_activation_token": largest["token"],
            "massive_activation_channel": largest["channel"],
        }
        for key in ("mean_distance", *self.layers[0].collected()):  # averages over the heads that have a value
            values = [heads for layer in self.layers if (heads := self._heads(layer, key)) is not None]
            own[key] = torch.cat(values).mean().item() if values else None
        return self._values("model", own)

    def _heads(self, layer: Layer, key: str) -> Tensor | None:
        """Returns the values (H) of a metric for the heads of a layer. Returns None if the metric is undefined."""
        if key in layer.collected():
            return layer.collected()[key]
        row = next(row for row in self.rows if row.key == key)
        module = layer.gate_name if key.startswith("gate_") else layer.name
        of_figures = (
            self.seen.of_heads(module, figure) for figure in self.seen.figures if figure.key in row.watch_keys
        )
        return next((heads for heads in of_figures if heads is not None), None)

    def _by_row(self, watched: Values) -> Values:
        """Converts metrics with the keys of watch() to metrics with the keys of the report."""
        rows = (row for row in self.rows if row.watch_keys)
        return {
            row.key: next((watched[key] for key in row.watch_keys if watched.get(key) is not None), None)
            for row in rows
        }

    def _values(self, level: str, own: Values) -> Values:
        found = {row.key: _number(own.get(row.key)) for row in self.rows if level in row.levels}
        for key in ("massive_activation_token", "massive_activation_channel"):
            if found.get(key) is not None:
                found[key] = int(found[key])
        return found

    def _layer_figures(self, layer: Layer) -> Values:
        own = layer.watched | self._by_row(layer.watched)
        own |= {key: None if x is None else x.mean().item() for key, x in layer.collected().items()}
        return self._values("layer", own)

    def _head_figures(self, layer: Layer) -> list[Values]:
        H = layer.record.heads
        columns = {row.key: self._heads(layer, row.key) for row in self.rows if "head" in row.levels}
        rows = []
        for h in range(H):
            own = {}
            for key, heads in columns.items():
                shared = key.startswith("gate_") and layer.own_gate(h) is None
                own[key] = None if heads is None or shared else heads[h * len(heads) // H].item()
            rows.append(self._values("head", own))
        return rows

    def _layer_text(self) -> Values:
        gates = [None if x.gate is None else as_bytes(x.gate.means.mean(0)) for x in self.layers]
        received = [as_roots(layer.received.mean(0)) for layer in self.layers]
        return {"gate": gates if any(gates) else None, "received": received}

    def _not_shown(self) -> list[str]:
        seen = self.seen
        missing = list({**seen.not_seen, **seen.unshown}.items())
        for layer in self.layers:
            parts = [name for name, _ in seen.model.get_submodule(layer.name).named_modules() if "gate" in name]
            if layer.record.type == "linear_attention":
                wanted = {"written_rank": layer.written_rank}
            else:
                wanted = {"value_output_rank": layer.value_rank, "written_rank": layer.written_rank}
            lacking = [key for key, value in wanted.items() if value is None]
            if lacking:
                missing.append((layer.name, f"{' and '.join(lacking)}, as its matrices are not found"))
            if parts and layer.gate is None:
                missing.append((layer.name, f"the gate, if {parts[0]} is one (gates= reads it)"))
        known = [layer.name for layer in self.layers] + [name for name, _ in missing]
        missing += [(block, "no attention, and so no layer of the report") for block in seen.blocks_without(known)]
        found = _grouped(missing)
        if not seen.channels:
            found.append(
                "the residual stream: no member of a list of layers returns it, (1,T,C) (blocks= names modules)"
            )
        return found + ["losses: the model returns no logits"] * (not self.has_logits)
