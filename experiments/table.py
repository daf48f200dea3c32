#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the tables and figures of an experiment's page from its records.

    experiments/table.py [NAME …]            rewrite experiments/NAME/README.md between <!-- table:T --> and its end
    experiments/table.py --check [NAME …]    change nothing; fail if a page differs from what the records give

Without names, all experiments. A cell is the mean over seeds ± their sample standard deviation. Runs that diverged are
counted beside the variant's name and are in no mean.
"""

import argparse
import difflib
import re
import sys

import plan
from figures import FIGURES
from tables import TABLES

# {key of config.json: (the option that sets it, what it means where the key is missing)}
MODEL_OPTIONS = {
    "num_hidden_layers": ("layers", None),
    "hidden_size": ("dim", None),
    "num_attention_heads": ("heads", None),
    "num_key_value_heads": ("kv-heads", None),
    "head_dim": ("head-dim", None),
    "vocab_size": ("vocab", None),
    "rope_theta": ("rope-base", None),
    "partial_rotary_factor": ("rope-fraction", 1.0),
    "tie_word_embeddings": ("embeddings", None),
    "initializer_range": ("init-std", 0.02),
    "norm_kind": ("norm", "plain"),
    "qk_norm": ("qk-norm", "per_head"),
}
MARKED = re.compile(r"(<!-- table:([a-z0-9-]+) -->\n).*?(<!-- /table -->)", re.DOTALL)


def check_records(experiment, records):
    """Records must belong to runs of the config and have the same settings, so that their means are meaningful."""
    where = f"{experiment.name}/{experiment.records.name}"
    runs = {run.name: run for run in experiment.runs()}
    strangers = sorted(set(records) - set(runs))
    plan.require(not strangers, where, f"no run of config.json makes {', '.join(strangers)}")
    for name, record in records.items():
        same = plan.identity_of(record) == runs[name].identity(record["data"]["sha256"])
        plan.require(same, where, f"the record of {name} has other options than config.json")
    plan.require(
        len({record["data"]["sha256"] for record in records.values()}) <= 1, where, "records of different texts"
    )
    for block in experiment.blocks:
        check_settings(where, [records[run.name] for run in plan.block_runs(block) if run.name in records])


def check_settings(where, records):
    """A setting that no option of a run names is a default of the program, and must be the same in all records."""
    seen = {}
    for record in records:
        model = {key: record["model"].get(key, default) for key, (_, default) in MODEL_OPTIONS.items()}
        named = {key: option for key, (option, _) in MODEL_OPTIONS.items()}
        for key, value in {**record["settings"], **model}.items():
            if named.get(key, key.replace("_", "-")) not in record["train"]:
                first = seen.setdefault(key, (value, record["run"]))
                both = f"{first[1]} and {record['run']}"
                plan.require(first[0] == value, where, f"{both} differ in {key}, which no option sets")


def render(experiment, path, checked=True):
    """({table name: text}, {file name: SVG}); a figure's text is the image that shows the file."""
    records = plan.read_records(path)
    if checked:
        check_records(experiment, records)
    texts, drawn = {}, {}
    for spec in experiment.tables:
        name, kind = spec["name"], spec["kind"]
        where = f"{experiment.name}/config.json: table {name}"
        plan.require(
            kind in TABLES or kind in FIGURES, where, f"kind {kind!r} is none of {', '.join([*TABLES, *FIGURES])}"
        )
        try:
            if kind in TABLES:
                texts[name] = TABLES[kind](experiment, spec, records)
            else:
                figure = FIGURES[kind](experiment, spec, records)
                drawn.update({f"{name}.svg": figure} if figure else {})
                texts[name] = f"![{spec['title']}]({name}.svg)\n" if figure else "No run is recorded yet.\n"
        except KeyError as error:
            raise plan.ExperimentError(f"{where}: no key {error}") from error
    return texts, drawn


def all_tables(experiment, path):
    """All tables as text, without check_records."""
    return "\n".join(f"{name}\n{text}" for name, text in render(experiment, path, checked=False)[0].items())


def page_with(experiment, page, given):
    """The page with the given tables at their marks."""
    marked = [match[1] for match in MARKED.findall(page)]
    where = f"{experiment.name}/README.md"
    plan.require(len(set(marked)) == len(marked), where, "a table is there twice")
    strange, missing = sorted(set(marked) - set(given)), sorted(set(given) - set(marked))
    plan.require(not strange, where, f"config.json has no table {', '.join(strange)}")
    plan.require(
        not missing, where, f"no place for table {', '.join(missing)}: <!-- table:NAME --> and <!-- /table --> mark it"
    )
    return MARKED.sub(lambda match: f"{match[1]}\n{given[match[2]]}\n{match[3]}", page)


def read_or_nothing(path):
    return path.read_text(encoding="utf-8") if path.exists() else ""


def expected_files(experiment):
    """{file name: text} of the page and the figures, as the records give them."""
    page = read_or_nothing(experiment.directory / "README.md")
    plan.require(page, experiment.name, "no README.md to write tables into")
    texts, figures = render(experiment, experiment.records)
    return {"README.md": page_with(experiment, page, texts), **figures}


def rewrite(experiment):
    files = expected_files(experiment)
    for name, content in files.items():
        if read_or_nothing(experiment.directory / name) != content:
            plan.write_whole(experiment.directory / name, content)


def drawn_by(text):
    """The version of Matplotlib that drew a figure; None for a page."""
    found = re.search(r"Matplotlib v[\d.]+", text)
    return found and found[0]


def check(experiment):
    """Raises ExperimentError with the first line that differs. Returns the figures that another version of Matplotlib
    drew, which are not compared: its curves and texts have other digits."""
    files = expected_files(experiment)
    others = []
    for name, content in files.items():
        there = read_or_nothing(experiment.directory / name)
        if name.endswith(".svg") and drawn_by(there) and drawn_by(there) != drawn_by(content):
            others.append(name)
            continue
        differing = [line for line in difflib.ndiff(there.splitlines(), content.splitlines()) if line[0] in "-+"]
        plan.require(
            there == content,
            f"{experiment.name}/{name}",
            "not what the records give; experiments/table.py "
            f"{experiment.name} writes it. First: {(differing or ['the end of a line'])[0]}",
        )
    return others


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="folders of experiments/ (default: all)")
    parser.add_argument("--check", action="store_true", help="change nothing; status 1 where a page is out of date")
    args = parser.parse_args(arguments)
    try:
        for name in args.names or plan.experiment_names():
            experiment = plan.find_experiment(name)
            others = check(experiment) if args.check else rewrite(experiment)
            print(f"{experiment.name}: tables are " + ("what the records give" if args.check else "written"))
            if others:
                note = f"table.py: {experiment.name}: not compared, drawn by another Matplotlib: {', '.join(others)}"
                print(note, file=sys.stderr)
    except plan.ExperimentError as error:
        print(f"table.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
