#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the tables and figures of an experiment's page from its records.

    experiments/table.py [NAME …]            rewrite experiments/NAME/README.md between <!-- table:T --> and its end
    experiments/table.py --check [NAME …]    change nothing; fail if a page differs from what the records give

Without names, all experiments. A cell is the mean over seeds ± their sample standard deviation. Means leave out runs
that diverged; the variant's label counts them.
"""

import argparse
import dataclasses
import io
import itertools
import json
import math
import os
import pathlib
import re
import statistics
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
NOTHING = "–"
NAME = re.compile(r"[a-z0-9][a-z0-9_.-]*")
MARKED = re.compile(r"(<!-- table:([a-z0-9-]+) -->\n).*?(<!-- /table -->)", re.DOTALL)
KEYS = {  # of the objects in config.json
    "config": {"about", "program", "train", "eval", "blocks", "tables"},
    "block": {"name", "about", "seeds", "train", "sweep", "curve", "variants"},
    "variant": {"name", "label", "train", "paper"},
    "table": set("name kind title block blocks columns digits most rows value variants within x x-title".split()),
    "column": {"title", "value", "digits", "minus", "spread", "paper"},
}
RESERVED = {"data", "json", "log-every", "out", "resume", "seed", "stop-at", "threads"}  # options that run.py sets
MODEL_OPTIONS = {  # {key of a model's config.json: the option that sets it}
    "num_hidden_layers": "layers",
    "hidden_size": "dim",
    "num_attention_heads": "heads",
    "num_key_value_heads": "kv-heads",
    "vocab_size": "vocab",
    "rope_theta": "rope-base",
    "partial_rotary_factor": "rope-fraction",
    "tie_word_embeddings": "embeddings",
    "initializer_range": "init-std",
    "norm_kind": "norm",
}
MODEL_DEFAULTS = {"partial_rotary_factor": 1.0, "initializer_range": 0.02, "norm_kind": "plain", "qk_norm": "per_head"}
# Okabe and Ito's colours, which colour-blind readers can distinguish, with grey for the baseline.
COLOURS = ("#4d4d4d", "#d55e00", "#0072b2", "#cc79a7", "#009e73", "#e69f00")
STYLE = {
    "axes.edgecolor": "#888888",
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.constrained_layout.use": True,
    "font.family": "sans-serif",
    "font.size": 9,
    "grid.color": "#dddddd",
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "lines.markersize": 4,
    "svg.fonttype": "none",  # writes text as text
    "svg.hashsalt": "headgate",  # makes the names of clip paths reproducible
}


class ExperimentError(Exception):
    """An error, in one line for the user."""


def require(condition, where, message):
    if not condition:
        raise ExperimentError(f"{where}: {message}")


@dataclasses.dataclass(frozen=True)
class Run:
    """One training and its evaluation."""

    name: str
    block: dict
    variant: dict
    seed: int
    point: dict  # the swept option and its value, or {}
    train: dict
    eval: dict

    def identity(self, data_sha256):
        """Returns what determines the results, except the program."""
        return {"train": self.train, "eval_options": self.eval, "seed": self.seed, "data_sha256": data_sha256}


def identity_of(record):
    return {key: record[key] for key in ("train", "eval_options", "seed")} | {"data_sha256": record["data"]["sha256"]}


def points(block):
    """Returns the points of the block's sweep; one empty point if nothing is swept."""
    return [dict(zip(block.get("sweep", {}), values)) for values in itertools.product(*block.get("sweep", {}).values())]


def all_runs(config):
    """Yields all runs, with variants in the innermost loop, so that all variants are run early."""
    for block in config["blocks"]:
        for seed, point, variant in itertools.product(block["seeds"], points(block), block["variants"]):
            swept = "".join(f"-{option}{value:g}" for option, value in point.items())
            name = f"{'' if block['name'] == 'main' else block['name'] + '-'}{variant['name']}{swept}-seed{seed}"
            options = [part.get("train", {}) for part in (config, block, variant)]
            train = {option: value for part in (*options, point) for option, value in part.items()}
            yield Run(name, block, variant, seed, point, train, config.get("eval", {}))


class Experiment:
    """A folder with config.json, records.jsonl, and a page."""

    def __init__(self, name):
        beside = ROOT / "experiments" / name
        self.directory = beside if beside.is_dir() else pathlib.Path(name).resolve()
        self.name, self.records = self.directory.name, self.directory / "records.jsonl"
        path = self.directory / "config.json"
        try:
            self.config = json.loads(path.read_text(encoding="utf-8"))
            self.check_keys(path)
            self.runs = list(all_runs(self.config))
        except KeyError as error:
            raise ExperimentError(f"{path}: no key {error}") from error
        except (OSError, ValueError) as error:
            raise ExperimentError(f"{path}: {error}") from error
        names = [run.name for run in self.runs]
        for run in self.runs:
            require(NAME.fullmatch(run.name), path, f"a run's name must match {NAME.pattern}, got {run.name!r}")
            require(names.count(run.name) == 1, path, f"two runs are named {run.name}")
            require(not RESERVED & set(run.train), path, f"run.py sets {', '.join(RESERVED & set(run.train))} itself")
        self.program = self.config.get("program")
        require(self.program is None or (ROOT / self.program).is_file(), path, f"no program {self.program}")

    def check_keys(self, path):
        blocks, tables = self.config["blocks"], self.config.get("tables", [])
        variants = [variant for block in blocks for variant in block["variants"]]
        columns = [column for spec in tables for column in spec.get("columns", [])]
        for kind, parts in zip(KEYS, ([self.config], blocks, variants, tables, columns)):
            unknown = sorted(set().union(*parts) - KEYS[kind])
            require(not unknown, path, f"unknown key {', '.join(unknown)} of a {kind}")

    def blocks(self, spec):
        """Returns the blocks that a table names, by default `main`."""
        named = {block["name"]: block for block in self.config["blocks"]}
        return [named[name] for name in spec.get("blocks", [spec.get("block", "main")])]

    def select(self, records, block, variant=None, point=None):
        """Returns the records of a block's runs, and how many runs there should be."""
        runs = [run for run in self.runs if run.block is block and variant in (None, run.variant)]
        runs = [run for run in runs if point in (None, run.point)]
        return [records[run.name] for run in runs if run.name in records], len(runs)

    def columns(self, records, spec):
        """Returns the labels of a block's variants and the records of each."""
        (block,) = self.blocks(spec)
        return [(label_of(variant), self.select(records, block, variant)[0]) for variant in block["variants"]]


def write_whole(path, text):
    """Replaces the file atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    staged = path.with_name(f".{path.name}.{os.getpid()}")
    with open(staged, "w", encoding="utf-8") as out:
        out.write(text)
        out.flush()
        os.fsync(out.fileno())
    os.replace(staged, path)


def read_records(path):
    """Reads a file of records, one a line, as {run name: record}; {} if there is no file."""
    records = {}
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
            require(record["run"] not in records, f"{path}:{number}", f"a second record of {record['run']}")
            records[record["run"]] = record
        except (ValueError, KeyError, TypeError) as error:
            raise ExperimentError(f"{path}:{number}: not a record: {error}") from error
    return records


def check_records(experiment, records):
    """Checks that records belong to runs of the config and have the same settings, so that their means are meaningful."""
    where = f"{experiment.name}/records.jsonl"
    runs = {run.name: run for run in experiment.runs}
    for name, record in records.items():
        require(name in runs, where, f"no run of config.json makes {name}")
        same = identity_of(record) == runs[name].identity(record["data"]["sha256"])
        require(same, where, f"the record of {name} has other options than config.json")
    require(len({record["data"]["sha256"] for record in records.values()}) <= 1, where, "records of different texts")
    for block in experiment.config["blocks"]:
        seen = {}
        for record in experiment.select(records, block)[0]:
            model = {**MODEL_DEFAULTS, **record["model"]}
            kept = {key: model[key] for key in (*MODEL_OPTIONS, "head_dim", "qk_norm") if key in model}
            for key, value in {**record["settings"], **kept}.items():
                if MODEL_OPTIONS.get(key, key.replace("_", "-")) not in record["train"]:
                    first = seen.setdefault(key, (value, record["run"]))
                    both = f"{first[1]} and {record['run']}"
                    require(first[0] == value, where, f"{both} differ in {key}, which no option sets")


def value_at(record, path):
    """Returns the number at a path such as eval.backcopy.gate_other; None if a part is missing or null."""
    if isinstance(record, dict) and path not in record:
        first, _, rest = path.partition(".")
        return value_at(record.get(first), rest) if rest else None
    value = record[path] if isinstance(record, dict) else None  # keys may contain dots: gate_below_0.1
    return value if isinstance(value, (int, float)) else None


def finished(records):
    return [record for record in records if record["status"] == "finished"]


def values_of(records, path):
    found = [value_at(record, path) for record in finished(records)]
    return [value for value in found if value is not None]


def number(value, digits):
    return f"{value:,.{digits}f}".replace(",", " ")


def span(values, digits=None):
    """Returns one value, or the smallest and the largest."""
    least, most = (f"{value:g}" if digits is None else number(value, digits) for value in (min(values), max(values)))
    return least if least == most else f"{least} to {most}"


def counted(count, noun):
    return f"{count} {noun}" + ("" if str(count) == "1" else "s")


def cell(values, digits=3, spread=True):
    if not values:
        return NOTHING
    mean = number(statistics.fmean(values), digits)
    return f"{mean} ± {number(statistics.stdev(values), digits)}" if spread and len(values) > 1 else mean


def markdown(header, rows, rule="---:"):
    lines = [header, ["---"] + [rule] * (len(header) - 1), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def label_of(variant, records=(), wanted=0):
    label, diverged = variant.get("label", variant["name"]), len(records) - len(finished(records))
    notes = [f"{diverged} of {len(records)} diverged"] if diverged else []
    notes += [f"{len(records)} of {wanted} runs"] if len(records) < wanted else []
    return label + (f" ({', '.join(notes)})" if notes else "")


def differences(path, records, others):
    """Returns differences to another variant at the same seed and point."""
    there = {(other["seed"], str(other["point"])): value_at(other, path) for other in finished(others)}
    pairs = [(value_at(each, path), there.get((each["seed"], str(each["point"])))) for each in finished(records)]
    return [here - other for here, other in pairs if here is not None and other is not None]


def variants_table(experiment, spec, records):
    """Makes a row for each variant, a column for each figure."""
    rows = []
    for block in experiment.blocks(spec):
        named = {variant["name"]: variant for variant in block["variants"]}
        for name in [name for name in named if name in spec.get("variants", named)]:
            own, wanted = experiment.select(records, block, named[name])
            cells = []
            for column in spec["columns"]:
                if "paper" in column:
                    cells.append(str(named[name].get("paper", {}).get(column["paper"], NOTHING)))
                    continue
                values = values_of(own, column["value"])
                if "minus" in column:
                    others = experiment.select(records, block, named[column["minus"]])[0]
                    values = differences(column["value"], own, others) if name != column["minus"] else []
                cells.append(cell(values, column.get("digits", 3), column.get("spread") != "none"))
            rows.append([label_of(named[name], own, wanted), *cells])
    return markdown([spec.get("title", "variant"), *(column["title"] for column in spec["columns"])], rows)


def by_x(experiment, spec, records):
    """Returns (label, {x: values}, {x: steps at which runs diverged}) of each variant. x is the step of a curve, the
    swept value, or one of spec["x"], which is put into the path of the value."""
    (block,), path, kind, found = experiment.blocks(spec), spec["value"], spec["kind"].removesuffix("-figure"), []
    for label, own in experiment.columns(records, spec):
        values, diverged = {}, {}
        if kind == "values":
            values = {x: values_of(own, path.format(x=x)) for x in spec["x"]}
        elif kind == "curve":
            for point in sorted((point for record in own for point in record["curve"]), key=lambda at: at["step"]):
                value = value_at(point, path)
                values.setdefault(point["step"], []).extend([] if value is None else [value])
        for point in points(block) if block.get("sweep") else []:
            (x,), at = point.values(), [record for record in own if record["point"] == point]
            values[x] = [sum(record[path] for record in at)] if kind == "sums" and at else values_of(at, path)
            diverged[x] = [record["diverged"]["step"] for record in at if record["diverged"]]
        found.append((label, values, diverged))
    return found


def grid_table(experiment, spec, records):
    """Makes a row for each x, a column for each variant. A curve has at most `rows` rows. `sums` adds counts over seeds,
    of diverged runs too."""
    columns, kind, rows = by_x(experiment, spec, records), spec["kind"], []
    xs = sorted({x for _, values, _ in columns for x in values})
    every = max(1, math.ceil(len(xs) / spec.get("rows", 10))) if kind == "curve" else 1
    for x in xs[(len(xs) - 1) % every :: every]:
        rows.append([f"{x:.10g}"])
        for _, values, diverged in columns:
            parts = [cell(values[x], spec.get("digits", 0 if kind == "sums" else 3))] if values.get(x) else []
            if kind == "sweep" and diverged[x]:
                parts.append(f"diverged at {', '.join(map(str, diverged[x]))}")
            rows[-1].append("; ".join(parts) or NOTHING)
    title = "step" if kind == "curve" else spec.get("title", "x")
    return markdown([title, *(label for label, _, _ in columns)], rows)


def highest_table(experiment, spec, records):
    """Makes a row for each variant: the largest swept value whose mean is within a share `within` of the best one."""
    rows, (block,) = [], experiment.blocks(spec)
    (swept,) = block["sweep"]
    for variant, (_, values, diverged) in zip(block["variants"], by_x(experiment, spec, records)):
        means = {x: statistics.fmean(found) for x, found in values.items() if len(found) == len(block["seeds"])}
        cells = [NOTHING] * 4
        if means:
            best = min(means, key=means.get)
            highest = max(x for x, mean in means.items() if mean <= means[best] * (1 + spec["within"]))
            cells = [text for x in (highest, best) for text in (f"{x:g}", number(means[x], spec["digits"]))]
        label = label_of(variant, *experiment.select(records, block, variant))
        rows.append([label, *cells, str(sum(map(len, diverged.values())))])
    header = ["variant", f"highest {swept} that trains", "its loss", f"best {swept}", "its loss", "runs that diverged"]
    return markdown(header, rows)


def recorded(records, count, wanted):
    """Returns how many runs are recorded, and the time that `records` trained."""
    seconds = [record["seconds"] for record in records]
    taken = f"{number(seconds[0], 0)} s on 1 thread"
    if len(seconds) > 1:
        each = f"{number(min(seconds), 0)} to {number(max(seconds), 0)} s each on 1 thread"
        taken = f"{each}, {number(sum(seconds) / 3600, 1)} h in all"
    return f"{count} of {counted(wanted, 'run')}; {taken}"


def settings_table(experiment, spec, records):
    """Lists the settings of a block's runs, with the trainer's defaults."""
    (block,) = experiment.blocks(spec)
    own, wanted = experiment.select(records, block)
    if not own:
        return None
    first, data = own[0]["settings"], own[0]["data"]
    setting = {key: span([record["settings"][key] for record in own]) for key in ("steps", "seq_len", "lr", "warmup")}
    shape = ("num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim")
    layers, width, heads, kv, dim = (span([record["model"][key] for record in own]) for key in shape)
    mlp, parameters = span([record["model"]["intermediate_size"] for record in own]), [r["parameters"] for r in own]
    turned = span([record["model"].get("partial_rotary_factor", 1.0) for record in own])
    batch = span([record["settings"]["batch"] * record["settings"]["accumulate"] for record in own])
    model = (
        f"{counted(layers, 'layer')} of width {width}, {counted(heads, 'query head')} on {kv} of {dim} features"
        f"{'' if turned == '1' else f', RoPE on a share of {turned}'}, MLP {mlp}: {span(parameters, 0)} parameters"
    )
    clip = f"clipped at norm {first['clip']:g}" if first["clip"] else "not clipped"
    decay = f"then {first['schedule']} to {first['lr_floor']:g} of it"
    optimizer = f"weight decay {first['weight_decay']:g}, β₂ {first['beta2']:g}; gradient {clip}"
    rows = [
        ["model", model],
        ["data", f"{first['task']}; {data['file']}, {number(data['bytes'], 0)} bytes"],
        ["steps", f"{setting['steps']} of {batch} × {setting['seq_len']} tokens"],
        ["learning rate", f"{setting['lr']} after {setting['warmup']} steps of warm-up, {decay}"],
        ["optimizer", f"AdamW, {optimizer}"],
        ["seeds", ", ".join(str(seed) for seed in block["seeds"])],
        ["recorded", recorded(own, len(own), wanted)],
    ]
    return markdown(["", ""], rows, "---")


def program_settings_table(experiment, spec, records):
    """Lists the options that all runs of a program share, and what they ran on."""
    own = finished(records.values())
    if not own:
        return None
    data, program, settings = own[0]["data"], own[0]["program"], own[0]["settings"]
    same = {key: all(record["settings"][key] == settings[key] for record in own) for key in settings}
    shared = [f"{key.replace('_', '-')} {settings[key]}" for key in settings if same[key] and key != "packages"]
    date = f", of {data['date']}" if data.get("date") else ""
    rows = [
        ["data", f"{number(data['packages'], 0)} packages; {data['file']}{date}; SHA-256 `{data['sha256'][:16]}…`"],
        ["options of all", ", ".join(shared)],
        ["seeds", ", ".join(str(seed) for seed in sorted({record["seed"] for record in own}))],
        ["program", f"{experiment.program}; headgate {program['headgate']}, PyTorch {program['torch']}"],
        ["recorded", recorded(own, len(records), len(experiment.runs))],
    ]
    return markdown(["", ""], rows, "---")


def draw(spec, paint, height=3.6, **axis_titles):
    """Returns the SVG of what `paint` draws, in matplotlib's defaults and STYLE. Equal figures give equal bytes."""
    try:
        import matplotlib.figure
        import matplotlib.style
    except ImportError as error:
        raise ExperimentError("figures need matplotlib (Debian: python3-matplotlib)") from error
    buffer = io.StringIO()
    with matplotlib.style.context(["default", STYLE], after_reset=True):
        figure = matplotlib.figure.Figure(figsize=(7.5, height))
        paint(figure.add_subplot(**axis_titles))
        figure.savefig(buffer, format="svg", metadata={"Title": spec["title"], "Date": None})
    return "".join(f"{line.rstrip()}\n" for line in buffer.getvalue().splitlines())


def draw_lines(spec, series, x_title, y_title, ticks=None):
    """Draws a line through the means of each x, a band from the least to the largest values, and a cross on the top edge
    where a run diverged. Without ticks the scale is linear."""
    if not any(values for _, points, _ in series for values in points.values()):
        return None

    def paint(axes):
        axes.grid(axis="x", visible=False)
        if ticks:
            axes.set_xscale("log")
        for index, (label, points, diverged) in enumerate(series):
            colour, marker = COLOURS[index % len(COLOURS)], "os^DvP"[index % 6]
            points = {x: values for x, values in points.items() if values}
            least, most = [min(values) for values in points.values()], [max(values) for values in points.values()]
            if least != most:
                axes.fill_between(list(points), least, most, color=colour, alpha=0.15, linewidth=0)
            if points or any(diverged.values()):
                means = [statistics.fmean(values) for values in points.values()]
                axes.plot(list(points), means, color=colour, marker=marker, label=label)
            for x in [x for x, steps in diverged.items() if steps]:
                at = {"transform": axes.get_xaxis_transform(), "clip_on": False}  # y is a fraction of the axis
                axes.plot([x], [1 - 0.03 * index], "x", color=colour, markersize=7, **at)
        if ticks:
            axes.set_xticks(ticks, [f"{tick:.10g}" for tick in ticks])
            axes.minorticks_off()
        axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), borderaxespad=0.0)

    return draw(spec, paint, xlabel=x_title, ylabel=y_title)


def lines_figure(experiment, spec, records):
    """Draws a line for each variant: over the steps of training, the swept values, or spec["x"]."""
    series = by_x(experiment, spec, records)
    ticks = None if spec["kind"] == "curve-figure" else list(series[0][1])
    return draw_lines(spec, series, spec.get("x-title", "step"), spec["title"], ticks)


def reliability_figure(experiment, spec, records):
    """Draws accuracy over confidence, in bins that join the predictions of all seeds, and the diagonal."""
    series = []
    for label, own in experiment.columns(records, spec):
        series.append((label, {}, {}))
        for bins in zip(*(record["eval"]["reliability"] for record in finished(own))):
            count = sum(row[0] for row in bins)
            if count:
                confidence, accuracy = (sum(row[0] * row[i] for row in bins) / count for i in (1, 2))
                series[-1][1][confidence] = [accuracy]
    diagonal = ("as sure as right", {0.0: [0.0], 1.0: [1.0]}, {})
    return draw_lines(spec, [diagonal, *series], "confidence", "accuracy") if series[0][1] else None


def bars_figure(experiment, spec, records):
    """Draws a bar for each variant, from 0 to the mean, and a whisker from the least to the largest value."""
    columns = [(label, values_of(own, spec["value"])) for label, own in experiment.columns(records, spec)]
    labels, values = [label for label, found in columns if found], [found for _, found in columns if found]
    means, places = [statistics.fmean(each) for each in values], range(len(values))

    def paint(axes):
        whiskers = [[mean - min(each), max(each) - mean] for mean, each in zip(means, values)]
        style = {"elinewidth": 1, "ecolor": "#333333", "capsize": 2}
        axes.grid(axis="y", visible=False)
        axes.barh(places, means, color="#56b4e9", xerr=list(zip(*whiskers)), error_kw=style)
        axes.set_yticks(places, labels)
        axes.tick_params(axis="y", length=0)
        axes.set_ylim(len(values) - 0.4, -0.6)  # the first row on top
        axes.set_xlim(0, spec.get("most"))

    return draw(spec, paint, 0.7 + 0.25 * len(values), xlabel=spec["title"]) if values else None


KINDS = {
    "variants": variants_table,
    "sweep": grid_table,
    "sums": grid_table,
    "curve": grid_table,
    "values": grid_table,
    "highest": highest_table,
    "settings": settings_table,
    "program-settings": program_settings_table,
    "curve-figure": lines_figure,
    "sweep-figure": lines_figure,
    "values-figure": lines_figure,
    "reliability-figure": reliability_figure,
    "bars-figure": bars_figure,
}


def render(experiment, records):
    """Returns {table: its text in the page} and {file: SVG}."""
    texts, drawn = {}, {}
    for spec in experiment.config.get("tables", []):
        where = f"{experiment.name}/config.json: table {spec['name']}"
        require(spec["kind"] in KINDS, where, f"no kind {spec['kind']}")
        try:
            text = KINDS[spec["kind"]](experiment, spec, records)
        except (KeyError, ValueError) as error:
            raise ExperimentError(f"{where}: {error!r}") from error
        if text and spec["kind"].endswith("-figure"):
            drawn[f"{spec['name']}.svg"], text = text, f"![{spec['title']}]({spec['name']}.svg)\n"
        texts[spec["name"]] = text or "No run is recorded yet.\n"
    return texts, drawn


def expected_files(experiment):
    """Returns {file: content} of the page and its figures, made from the records."""
    records = read_records(experiment.records)
    check_records(experiment, records)
    texts, drawn = render(experiment, records)
    path = experiment.directory / "README.md"
    require(path.is_file(), experiment.name, "no README.md to write tables into")
    page = path.read_text(encoding="utf-8")
    marked = [match[1] for match in MARKED.findall(page)]
    for name in {*marked, *texts}:
        known = marked.count(name) == 1 and name in texts
        require(known, path, f"table {name} must be once in config.json and once in the page, between marks")
    return {"README.md": MARKED.sub(lambda match: f"{match[1]}\n{texts[match[2]]}\n{match[3]}", page), **drawn}


def update(experiment, check=False):
    """Writes the page and figures, or raises an error if they differ from what the records give."""
    for name, content in expected_files(experiment).items():
        path = experiment.directory / name
        there = path.read_text(encoding="utf-8") if path.exists() else ""
        versions = [re.findall(r"Matplotlib v[\d.]+", text)[:1] for text in (there, content)]
        if check and name.endswith(".svg") and versions[0] and versions[0] != versions[1]:
            print(f"{experiment.name}/{name}: not compared, drawn by another Matplotlib", file=sys.stderr)
        elif there != content:
            message = f"not what the records give; experiments/table.py {experiment.name} writes it"
            require(not check, f"{experiment.name}/{name}", message)
            write_whole(path, content)


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="folders of experiments/ (default: all)")
    parser.add_argument("--check", action="store_true", help="change nothing; status 1 if a page is out of date")
    args = parser.parse_args(arguments)
    try:
        for name in args.names or sorted(path.parent.name for path in ROOT.glob("experiments/*/config.json")):
            update(Experiment(name), args.check)
            print(f"{name}: tables are " + ("what the records give" if args.check else "written"))
    except ExperimentError as error:
        print(f"table.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
