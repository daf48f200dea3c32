# SPDX-License-Identifier: Apache-2.0
"""Reads and checks experiments/NAME/config.json and records.jsonl: what an experiment runs, and what it recorded."""

import dataclasses
import fcntl
import itertools
import json
import os
import pathlib
import re
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
NAME = re.compile(r"[a-z0-9][a-z0-9_.-]*")
# Options of `headgate train` and of programs that run.py sets itself.
RESERVED = {"data", "json", "log-every", "out", "resume", "seed", "stop-at", "threads"}
CONFIG_KEYS = {"about", "program", "train", "eval", "blocks", "tables"}
BLOCK_KEYS = {"name", "about", "seeds", "train", "eval", "sweep", "curve", "variants"}
VARIANT_KEYS = {"name", "label", "note", "train", "paper"}
RECORD_KEYS = {"run", "train", "seed", "status"}  # what every record has


class ExperimentError(Exception):
    """An error, in one line for the user."""


@dataclasses.dataclass(frozen=True)
class Variant:
    name: str
    label: str
    train: dict
    note: str = ""
    paper: dict = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Block:
    """Variants that share seeds and options. A sweep multiplies them by the values of one option."""

    name: str
    seeds: list
    variants: list
    train: dict
    eval: dict
    sweep: dict  # {option: [value, …]} with one option, or {}
    curve: bool  # whether evaluations over training are recorded

    @property
    def swept(self):
        return next(iter(self.sweep), None)


@dataclasses.dataclass(frozen=True)
class Run:
    """One training and its evaluation."""

    name: str
    block: Block
    variant: Variant
    seed: int
    point: dict  # the sweep's option and value, or {}
    train: dict
    eval: dict

    def identity(self, data_sha256):
        """Two runs with equal identities compute the same, up to the program and the number of threads."""
        return {"train": self.train, "eval_options": self.eval, "seed": self.seed, "data_sha256": data_sha256}

    @property
    def size(self):
        """Estimates the time of the run, to a factor that is the same for models of about the same size."""
        size = 1.0
        for option in ("steps", "batch", "accumulate", "seq-len"):
            size *= self.train.get(option, 1)
        return size


@dataclasses.dataclass(frozen=True)
class Experiment:
    name: str
    directory: pathlib.Path
    blocks: list
    tables: list  # of tables and figures
    program: str | None = None  # a Python program, relative to the repository, in place of `headgate train` and `eval`

    @property
    def records(self):
        return self.directory / "records.jsonl"

    def runs(self):
        """All runs, with variants in the innermost loop, so that all variants are run early."""
        return [run for block in self.blocks for run in block_runs(block)]

    def block(self, name):
        for block in self.blocks:
            if block.name == name:
                return block
        raise ExperimentError(f"{self.directory.name}/config.json: no block {name!r}")


def block_runs(block):
    for seed, point in itertools.product(block.seeds, points(block)):
        for variant in block.variants:
            train = {
                option: value
                for option, value in {**block.train, **variant.train, **point}.items()
                if value is not False
            }
            yield Run(run_name(block, variant, seed, point), block, variant, seed, point, train, block.eval)


def points(block):
    """The points of the sweep; one empty point if nothing is swept."""
    return [{block.swept: value} for value in block.sweep[block.swept]] if block.sweep else [{}]


def run_name(block, variant, seed, point):
    prefix = "" if block.name == "main" else block.name + "-"
    swept = "".join(f"-{option}{value:g}" for option, value in point.items())
    return f"{prefix}{variant.name}{swept}-seed{seed}"


def require(condition, where, message):
    if not condition:
        raise ExperimentError(f"{where}: {message}")


def check_keys(where, given, known):
    require(isinstance(given, dict), where, "must be an object")
    unknown = sorted(set(given) - known)
    require(not unknown, where, f"unknown key {', '.join(unknown)}")


def check_options(where, options):
    require(isinstance(options, dict), where, "options must be an object")
    for option, value in options.items():
        require(option not in RESERVED, where, f"option {option} is set by run.py")
        require(isinstance(value, (str, int, float)), where, f"option {option} must be text, a number, true or false")


def read_variant(where, raw):
    check_keys(where, raw, VARIANT_KEYS)
    name = raw.get("name", "")
    require(NAME.fullmatch(name), where, f"a variant's name must match {NAME.pattern}, got {name!r}")
    where = f"{where}: variant {name}"
    check_options(where, raw.get("train", {}))
    return Variant(name, raw.get("label", name), raw.get("train", {}), raw.get("note", ""), raw.get("paper", {}))


def read_block(where, raw, train, evaluate):
    check_keys(where, raw, BLOCK_KEYS)
    name = raw.get("name", "")
    require(NAME.fullmatch(name), where, f"a block's name must match {NAME.pattern}, got {name!r}")
    where = f"{where}: block {name}"
    seeds, sweep = raw.get("seeds", []), raw.get("sweep", {})
    require(seeds and all(type(seed) is int for seed in seeds), where, "seeds must be a list of whole numbers")
    require(len(sweep) <= 1, where, f"sweep must have one option, got {', '.join(sweep)}")
    for values in sweep.values():
        require(
            values and all(type(value) in (int, float) for value in values), where, "sweep must be a list of numbers"
        )
    check_options(where, raw.get("train", {}))
    check_options(where, sweep and {option: values[0] for option, values in sweep.items()})
    variants = [read_variant(where, variant) for variant in raw.get("variants", [])]
    require(variants, where, "a block must have variants")
    return Block(
        name,
        seeds,
        variants,
        {**train, **raw.get("train", {})},
        {**evaluate, **raw.get("eval", {})},
        sweep,
        raw.get("curve", False),
    )


def read_tables(where, raw):
    for spec in raw:
        require(
            isinstance(spec, dict) and NAME.fullmatch(spec.get("name", "")) and "kind" in spec,
            where,
            f"a table must have a name and a kind, got {json.dumps(spec)}",
        )
    names = [spec["name"] for spec in raw]
    require(len(set(names)) == len(names), where, "two tables have the same name")
    return raw


def read_experiment(directory):
    directory = pathlib.Path(directory)
    path = directory / "config.json"
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ExperimentError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise ExperimentError(f"{path}: {error}") from error
    check_keys(path, raw, CONFIG_KEYS)
    train, evaluate = raw.get("train", {}), raw.get("eval", {})
    check_options(path, train)
    program = raw.get("program")
    require(program is None or (ROOT / str(program)).is_file(), path, f"no program {program}")
    require(program is None or not evaluate, path, "eval must be empty beside program: programs evaluate by themselves")
    blocks = [read_block(path, block, train, evaluate) for block in raw.get("blocks", [])]
    experiment = Experiment(directory.name, directory, blocks, read_tables(path, raw.get("tables", [])), program)
    names = [run.name for run in experiment.runs()]
    twice = sorted({name for name in names if names.count(name) > 1})
    require(not twice, path, f"two runs are named {', '.join(twice)}")
    return experiment


def find_experiment(name):
    """Finds an experiment by the name of a folder beside this file, or by a path."""
    beside = ROOT / "experiments" / name
    return read_experiment(beside if beside.is_dir() else pathlib.Path(name).resolve())


def experiment_names():
    return sorted(path.parent.name for path in (ROOT / "experiments").glob("*/config.json"))


def as_arguments(options):
    """{"lr": 0.1, "match-params": True} as --lr 0.1 --match-params."""
    arguments = []
    for option, value in options.items():
        arguments += [f"--{option}"] if value is True else [f"--{option}", str(value)]
    return arguments


def write_whole(path, text):
    """Writes the file atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, staged = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        os.chmod(staged, 0o644)
        os.replace(staged, path)
    except BaseException:
        os.unlink(staged)
        raise


def read_records(path):
    """Reads a file of records, one a line, as {run name: record}; {} if there is no file. Raises ExperimentError, with
    the number of the line, for a line that is not a record."""
    records = {}
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return records
    for number, line in enumerate(lines, 1):
        where = f"{path}:{number}"
        try:
            record = json.loads(line)
        except ValueError as error:
            raise ExperimentError(f"{where}: {error}") from error
        require(isinstance(record, dict) and RECORD_KEYS <= set(record), where, "not a record of a run")
        require(record["run"] not in records, where, f"a second record of {record['run']}")
        records[record["run"]] = record
    return records


def put_record(path, record):
    """Adds a record to the file, or replaces that of the same run. Lines are sorted by the run's name and written
    atomically. The lock on the folder keeps two processes from losing each other's records."""
    path.parent.mkdir(parents=True, exist_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        records = {**read_records(path), record["run"]: record}
        lines = [json.dumps(records[name], sort_keys=True) + "\n" for name in sorted(records)]
        write_whole(path, "".join(lines))
    finally:
        os.close(folder)


def identity_of(record):
    return {
        "train": record["train"],
        "eval_options": record["eval_options"],
        "seed": record["seed"],
        "data_sha256": record["data"]["sha256"],
    }
