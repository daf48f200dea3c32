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
MARKED = re.compile(r"(<!-- table:([a-z0-9-]+) -->\n).*?(<!-- /table -->)", re.DOTALL)
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
    "svg.fonttype": "none",  # writes text as text, not as paths
    "svg.hashsalt": "headgate",  # makes the names of clip paths reproducible
}

KEYS = {  # the keys that objects in config.json may have
    "config": {"about", "program", "train", "eval", "blocks", "tables"},
    "block": {"name", "about", "seeds", "train", "sweep", "curve", "variants"},
    "variant": {"name", "label", "train", "paper"},
    "table": set("name kind title blocks columns digits most rows value variants within x x-title".split()),
    "column": {"title", "value", "digits", "minus", "spread", "paper"},
}


class ExperimentError(Exception):
    """An error whose message is one line for the user."""


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
    """Returns the points of the block's sweep, or one empty point if nothing is swept."""
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
        for name in names:
            require(names.count(name) == 1, path, f"two runs are named {name}")
        self.program = self.config.get("program")

    def check_keys(self, path):
        blocks, tables = self.config["blocks"], self.config.get("tables", [])
        variants = [variant for block in blocks for variant in block["variants"]]
        columns = [c for spec in tables if isinstance(spec.get("columns"), list) for c in spec["columns"]]
        for kind, parts in zip(KEYS, ([self.config], blocks, variants, tables, columns)):
            unknown = sorted(set().union(*parts) - KEYS[kind])
            require(not unknown, path, f"unknown key {', '.join(unknown)} of a {kind}")
        named = {block["name"] for block in blocks}
        listed = [spec["name"] for spec in tables if isinstance(spec.get("columns"), list)]
        for spec in tables:
            missing, shared = sorted(set(spec.get("blocks", ["main"])) - named), spec.get("columns")
            require(not missing, path, f"table {spec['name']}: no block {', '.join(missing)}")
            known = not isinstance(shared, str) or shared in listed
            require(known, path, f"table {spec['name']}: columns names {shared}, not a table with a list of columns")

    def blocks(self, spec):
        """Returns the blocks that a table names, by default `main`."""
        return [block for block in self.config["blocks"] if block["name"] in spec.get("blocks", ["main"])]

    def select(self, records, block, variant=None):
        """Returns the records of a block's runs, and how many runs there should be."""
        runs = [run for run in self.runs if run.block is block and variant in (None, run.variant)]
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
    """Reads a file with one record per line, as {run name: record}. Returns {} if there is no file."""
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


def version_of(record):
    return str(record["program"].get("version") or record["program"].get("headgate"))


def check_records(experiment, records):
    """Checks that all records fit the config and have the same text. Finished runs of a block must have the same
    version."""
    where, runs = f"{experiment.name}/records.jsonl", {run.name: run for run in experiment.runs}
    for name, record in records.items():
        require(name in runs, where, f"no run of config.json makes {name}")
        same = identity_of(record) == runs[name].identity(record["data"]["sha256"])
        require(same, where, f"the record of {name} has other options than config.json")
    require(len({record["data"]["sha256"] for record in records.values()}) <= 1, where, "records of different texts")
    for block in experiment.config["blocks"]:
        versions = {version_of(record) for record in finished(experiment.select(records, block)[0])}
        require(len(versions) <= 1, where, f"block {block['name']} has records of {' and '.join(sorted(versions))}")


def value_at(record, path):
    """Returns the number at a path such as eval.backcopy.gate_other, or None if a part is missing or null."""
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
    """Returns the differences from another variant's values at the same seed and point."""
    there = {(other["seed"], str(other["point"])): value_at(other, path) for other in finished(others)}
    pairs = [(value_at(each, path), there.get((each["seed"], str(each["point"])))) for each in finished(records)]
    return [here - other for here, other in pairs if here is not None and other is not None]


def variants_table(experiment, spec, records):
    """Makes a table with one row per variant and one column per figure. If `columns` names another table, uses the
    columns of that table."""
    rows, columns = [], spec["columns"]
    if isinstance(columns, str):
        columns = next(table["columns"] for table in experiment.config["tables"] if table["name"] == columns)
    for block in experiment.blocks(spec):
        named = {variant["name"]: variant for variant in block["variants"]}
        for name in [name for name in named if name in spec.get("variants", named)]:
            own, wanted = experiment.select(records, block, named[name])
            cells = []
            for column in columns:
                if "paper" in column:
                    cells.append(str(named[name].get("paper", {}).get(column["paper"], NOTHING)))
                    continue
                values = values_of(own, column["value"])
                if "minus" in column:
                    others = experiment.select(records, block, named[column["minus"]])[0]
                    values = differences(column["value"], own, others) if name != column["minus"] else []
                cells.append(cell(values, column.get("digits", 3), column.get("spread") != "none"))
            rows.append([label_of(named[name], own, wanted), *cells])
    return markdown([spec.get("title", "variant"), *(column["title"] for column in columns)], rows)


def by_x(experiment, spec, records):
    """Returns (label, {x: values}, {x: steps at which runs diverged}) for each variant. x is the step of a curve, the
    swept value, or one of spec["x"], which is inserted into the path of the value."""
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
            values[x] = values_of(at, path)
            diverged[x] = [record["diverged"]["step"] for record in at if record["diverged"]]
        found.append((label, values, diverged))
    return found


def grid_table(experiment, spec, records):
    """Makes a table with one row per x and one column per variant. A curve has at most `rows` rows."""
    columns, kind, rows = by_x(experiment, spec, records), spec["kind"], []
    xs = sorted({x for _, values, _ in columns for x in values})
    every = max(1, math.ceil(len(xs) / spec.get("rows", 10))) if kind == "curve" else 1
    for x in xs[(len(xs) - 1) % every :: every]:
        rows.append([f"{x:.10g}"])
        for _, values, diverged in columns:
            parts = [cell(values[x], spec.get("digits", 3))] if values.get(x) else []
            if kind == "sweep" and diverged[x]:
                parts.append(f"diverged at {', '.join(map(str, diverged[x]))}")
            rows[-1].append("; ".join(parts) or NOTHING)
    title = "step" if kind == "curve" else spec.get("title", "x")
    return markdown([title, *(label for label, _, _ in columns)], rows)


def highest_table(experiment, spec, records):
    """Makes a table with one row per variant. It has the largest swept value whose mean is at most 1 + `within` times
    the best one."""
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


def settings_table(experiment, spec, records):
    """Lists the options that all runs of a block share, including defaults, and the data and program of the runs."""
    (block,) = experiment.blocks(spec)
    own, wanted = experiment.select(records, block)
    if not finished(own):
        return None
    given = [{**record["settings"], **record["train"]} for record in finished(own)]
    given = [{key.replace("_", "-"): value for key, value in options.items()} for options in given]
    same = [key for key, value in sorted(given[0].items()) if all(options.get(key) == value for options in given)]
    shared = [
        key if given[0][key] is True else f"{key} {given[0][key]}" for key in same if given[0][key] not in ([], None)
    ]
    data, program = finished(own)[0]["data"], finished(own)[0]["program"]
    date = f" of {data['date']}" if data.get("date") else ""
    versions = ", ".join(f"{name} {version}" for name, version in program.items() if name != "commit")
    hours = number(sum(record["seconds"] for record in finished(own)) / 3600, 1)
    rows = [
        ["data", f"{data['file']}{date}, {number(data['bytes'], 0)} bytes; SHA-256 `{data['sha256'][:16]}…`"],
        ["options of all", ", ".join(shared)],
        ["seeds", ", ".join(str(seed) for seed in block["seeds"])],
        ["program", f"{experiment.program or 'headgate train'}; {versions}"],
        ["runs recorded", f"{len(own)} of {wanted}; {hours} h on 1 thread"],
    ]
    return markdown(["", ""], rows, "---")


def draw(spec, paint, height=3.6, **axis_titles):
    """Returns what `paint` draws as SVG, with matplotlib's defaults and STYLE. Equal figures give equal bytes."""
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


def lines_figure(experiment, spec, records):
    """Draws a line for each variant through the means at each x, and a band from the smallest to the largest values. A
    cross on the top edge marks a run that diverged. x is linear for steps of training, and logarithmic otherwise."""
    series = by_x(experiment, spec, records)
    ticks = None if spec["kind"] == "curve-figure" else list(series[0][1])
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

    return draw(spec, paint, xlabel=spec.get("x-title", "step"), ylabel=spec["title"])


def bars_figure(experiment, spec, records):
    """Draws a bar for each variant, from 0 to the mean, and a whisker from the smallest to the largest value."""
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
        axes.set_ylim(len(values) - 0.4, -0.6)  # puts the first row on top
        axes.set_xlim(0, spec.get("most"))

    return draw(spec, paint, 0.7 + 0.25 * len(values), xlabel=spec["title"]) if values else None


KINDS = {
    "variants": variants_table,
    "sweep": grid_table,
    "curve": grid_table,
    "values": grid_table,
    "highest": highest_table,
    "settings": settings_table,
    "curve-figure": lines_figure,
    "sweep-figure": lines_figure,
    "values-figure": lines_figure,
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
