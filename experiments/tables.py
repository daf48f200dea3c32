# SPDX-License-Identifier: Apache-2.0
"""The kinds of tables that a config may ask for, each of the records of a block's runs."""

import math
import statistics

import plan

NOTHING = "–"


def value_at(record, path):
    """eval.backcopy.gate_other of a record; None where any part is missing or null."""
    value = record
    keys = path.split(".")
    while keys and isinstance(value, dict):
        # Keys of an evaluation may hold dots themselves: gate_below_0.1.
        whole = ".".join(keys)
        key, keys = (whole, []) if whole in value else (keys[0], keys[1:])
        value = value.get(key)
    return value if not keys and isinstance(value, (int, float)) else None


def number(value, digits):
    """With separators of thousands."""
    return f"{value:,.{digits}f}".replace(",", " ")


def cell(values, digits, spread="sd"):
    values = [value for value in values if value is not None]
    if not values:
        return NOTHING
    mean = statistics.fmean(values)
    if len(values) == 1 or spread == "none":
        return number(mean, digits)
    if spread == "range":
        return f"{number(mean, digits)} ({number(min(values), digits)} to {number(max(values), digits)})"
    return f"{number(mean, digits)} ± {number(statistics.stdev(values), digits)}"


def markdown(header, rows):
    """Text on the left, figures on the right."""
    rule = ["---"] + ["---:"] * (len(header) - 1)
    return "".join("| " + " | ".join(line) + " |\n" for line in [header, rule, *rows])


def finished(records):
    return [record for record in records if record["status"] == "finished"]


def label_of(variant, records, wanted):
    notes = []
    diverged = len(records) - len(finished(records))
    if diverged:
        notes.append(f"{diverged} of {len(records)} diverged")
    if len(records) < wanted:
        notes.append(f"{len(records)} of {wanted} runs")
    return variant.label + (f" ({', '.join(notes)})" if notes else "")


def runs_of(block, records, **wanted):
    """Records of the block's runs with this variant (and point), and how many there should be."""
    runs = [run for run in plan.block_runs(block) if all(getattr(run, key) == value for key, value in wanted.items())]
    return [records[run.name] for run in runs if run.name in records], len(runs)


def paper_cell(variant, key):
    value = variant.paper.get(key)
    return NOTHING if value is None else str(value)


def differences(path, records, others):
    """Differences of a figure to that of the other variant at the same seed and sweep point."""
    there = {(other["seed"], str(other["point"])): value_at(other, path) for other in finished(others)}
    pairs = [
        (value_at(record, path), there.get((record["seed"], str(record["point"])))) for record in finished(records)
    ]
    return [here - other for here, other in pairs if here is not None and other is not None]


def column_cell(column, block, variant, records):
    """A figure of the paper, a figure, or its difference to another variant's."""
    if "paper" in column:
        return paper_cell(variant, column["paper"])
    own, _ = runs_of(block, records, variant=variant)
    values = [value_at(record, column["value"]) for record in finished(own)]
    if "minus" in column:
        others = [other for other in block.variants if other.name == column["minus"] != variant.name]
        values = differences(column["value"], own, runs_of(block, records, variant=others[0])[0]) if others else []
    return cell(values, column.get("digits", 3), column.get("spread", "sd"))


def variants_table(experiment, spec, records):
    """A row for each variant, a column for each figure."""
    rows = []
    for name in spec.get("blocks", ["main"]):
        block = experiment.block(name)
        for variant in block.variants:
            if "variants" in spec and variant.name not in spec["variants"]:
                continue
            own, wanted = runs_of(block, records, variant=variant)
            cells = [column_cell(column, block, variant, records) for column in spec["columns"]]
            rows.append([label_of(variant, own, wanted), *cells])
    return markdown([spec.get("title", "variant"), *(column["title"] for column in spec["columns"])], rows)


def sweep_cell(spec, records):
    parts = []
    if finished(records):
        parts.append(cell([value_at(record, spec["value"]) for record in finished(records)], spec.get("digits", 3)))
    broken = [record["diverged"]["step"] for record in records if record["status"] == "diverged"]
    if broken and spec.get("broken", True):
        parts.append("diverged at " + ", ".join(str(step) for step in broken))
    return "; ".join(parts) or NOTHING


def sweep_table(experiment, spec, records):
    """A row for each value of the option that the block sweeps, a column for each variant."""
    block = experiment.block(spec.get("block", "main"))
    rows = []
    for point in plan.points(block):
        cells = [
            sweep_cell(spec, runs_of(block, records, variant=variant, point=point)[0]) for variant in block.variants
        ]
        rows.append([f"{point[block.swept]:g}", *cells])
    return markdown([spec.get("title", block.swept), *(variant.label for variant in block.variants)], rows)


def sums_table(experiment, spec, records):
    """As sweep_table, but sums over seeds, of diverged runs too: for counts."""
    block = experiment.block(spec.get("block", "main"))
    rows = []
    for point in plan.points(block):
        cells = []
        for variant in block.variants:
            own = runs_of(block, records, variant=variant, point=point)[0]
            cells.append(str(sum(record[spec["value"]] for record in own)) if own else NOTHING)
        rows.append([f"{point[block.swept]:g}", *cells])
    return markdown([spec.get("title", block.swept), *(variant.label for variant in block.variants)], rows)


def mean_at(block, records, spec, variant, point):
    """Mean figure of a sweep point; None where a run diverged, gave no figure or is missing."""
    own, wanted = runs_of(block, records, variant=variant, point=point)
    values = [value_at(record, spec["value"]) for record in finished(own)]
    return statistics.fmean(values) if len(values) == wanted and None not in values else None


def highest(block, records, spec, variant):
    """(largest swept value whose figure exceeds the best by at most `within` of it, its figure, best's value, best)."""
    figures = {point[block.swept]: mean_at(block, records, spec, variant, point) for point in plan.points(block)}
    known = {value: figure for value, figure in figures.items() if figure is not None}
    if not known:
        return None
    best = min(known, key=known.get)
    trains = max(value for value, figure in known.items() if figure <= known[best] * (1 + spec["within"]))
    return trains, known[trains], best, known[best]


def highest_table(experiment, spec, records):
    """A row for each variant: the largest swept value that trains, and the best one."""
    rows = []
    for name in spec.get("blocks", ["main"]):
        block = experiment.block(name)
        for variant in block.variants:
            own, wanted = runs_of(block, records, variant=variant)
            found = highest(block, records, spec, variant)
            cells = [NOTHING] * 4
            if found:
                cells = [
                    f"{found[0]:g}",
                    number(found[1], spec["digits"]),
                    f"{found[2]:g}",
                    number(found[3], spec["digits"]),
                ]
            label = variant.label + (f" ({len(own)} of {wanted} runs)" if len(own) < wanted else "")
            diverged = len(own) - len(finished(own))
            rows.append([label, *cells, str(diverged) if own else NOTHING])
    return markdown(
        [
            "variant",
            f"highest {block.swept} that trains",
            "its loss",
            f"best {block.swept}",
            "its loss",
            "runs that diverged",
        ],
        rows,
    )


def curve_table(experiment, spec, records):
    """A row for each step that was evaluated, a column for each variant."""
    block = experiment.block(spec.get("block", "main"))
    columns = [runs_of(block, records, variant=variant)[0] for variant in block.variants]
    points = [[{point["step"]: point for point in record["curve"]} for record in column] for column in columns]
    steps = sorted({step for column in points for curve in column for step in curve})
    every = max(1, math.ceil(len(steps) / spec.get("rows", 10)))
    rows = []
    for step in steps[(len(steps) - 1) % every :: every]:
        cells = [
            cell([value_at(curve.get(step, {}), spec["value"]) for curve in column], spec.get("digits", 3))
            for column in points
        ]
        rows.append([str(step), *cells])
    return markdown(["step", *(variant.label for variant in block.variants)], rows)


def span(values, digits=None):
    """One value, or the smallest and the largest."""
    least, most = (f"{value:g}" if digits is None else number(value, digits) for value in (min(values), max(values)))
    return least if least == most else f"{least} to {most}"


def settings_table(experiment, spec, records):
    """The settings of a block's runs, from their records: defaults of the trainer included."""
    block = experiment.block(spec.get("block", "main"))
    own = [records[run.name] for run in plan.block_runs(block) if run.name in records]
    if not own:
        return "No run is recorded yet.\n"

    def setting(key):
        return span([record["settings"][key] for record in own])

    def config(key):
        return span([record["model"][key] for record in own])

    first = own[0]
    passes = "" if setting("accumulate") == "1" else f"{setting('accumulate')} passes of "
    decay = first["settings"]["schedule"]
    after = "then constant" if decay == "constant" else f"then {decay} to {setting('lr_floor')} of it"
    clip = "not clipped" if setting("clip") == "0" else f"clipped at norm {setting('clip')}"
    parameters = [record["parameters"] for record in own]
    turned = {record["model"].get("partial_rotary_factor", 1.0) for record in own}
    model = (
        f"{counted(config('num_hidden_layers'), 'layer')} of width {config('hidden_size')}, "
        f"{counted(config('num_attention_heads'), 'query head')} on {config('num_key_value_heads')} of "
        f"{config('head_dim')} features{'' if turned == {1.0} else f', RoPE on a share of {span(turned)}'}, "
        f"MLP {config('intermediate_size')}: {span(parameters, 0)} parameters"
    )
    rows = [
        ["model", model],
        ["data", f"{first['settings']['task']}; {first['data']['file']}, {number(first['data']['bytes'], 0)} bytes"],
        ["steps", f"{setting('steps')} of {passes}{setting('batch')} × {setting('seq_len')} tokens"],
        ["learning rate", f"{setting('lr')} after {setting('warmup')} steps of warm-up, {after}"],
        ["optimizer", f"AdamW, weight decay {setting('weight_decay')}, β₂ {setting('beta2')}; gradient {clip}"],
        ["seeds", ", ".join(str(seed) for seed in block.seeds)],
        ["recorded", f"{len(own)} of {counted(str(len(list(plan.block_runs(block)))), 'run')}; {times(own)}"],
    ]
    return markdown(["", ""], rows).replace("| --- | ---: |", "| --- | --- |")


def program_settings_table(experiment, spec, records):
    """The options of an experiment's program, from the records, and what it ran on; those of variants are in `result`."""
    own = finished(records.values())
    if not own:
        return "No run is finished yet.\n"
    first = own[0]
    data, program = first["data"], first["program"]
    shared = [
        f"{key.replace('_', '-')} {value}"
        for key, value in first["settings"].items()
        if all(record["settings"][key] == value for record in own) and key != "packages"
    ]
    date = f", of {data['date']}" if data.get("date") else ""
    rows = [
        ["data", f"{number(data['packages'], 0)} packages; {data['file']}{date}; SHA-256 `{data['sha256'][:16]}…`"],
        ["options of all", ", ".join(shared)],
        ["seeds", ", ".join(str(seed) for seed in sorted({record["seed"] for record in own}))],
        ["program", f"{experiment.program}; headgate {program['headgate']}, PyTorch {program['torch']}"],
        ["recorded", f"{len(records)} of {counted(str(len(experiment.runs())), 'run')}; {times(own)}"],
    ]
    return markdown(["", ""], rows).replace("| --- | ---: |", "| --- | --- |")


def values_table(experiment, spec, records):
    """A row for each x of spec["x"], a column for each variant: the value at the path spec["value"] with x put into it."""
    block = experiment.block(spec.get("block", "main"))
    columns = [finished(runs_of(block, records, variant=variant)[0]) for variant in block.variants]
    rows = [
        [
            str(x),
            *(
                cell([value_at(record, spec["value"].format(x=x)) for record in own], spec.get("digits", 3))
                for own in columns
            ),
        ]
        for x in spec["x"]
    ]
    return markdown([spec.get("title", "x"), *(variant.label for variant in block.variants)], rows)


def counted(count, noun):
    return f"{count} {noun}" + ("" if count == "1" else "s")


def times(records):
    """Of the training only."""
    seconds = [record["seconds"] for record in records]
    threads = counted(span([record["threads"] for record in records]), "thread")
    if len(seconds) == 1:
        return f"{number(seconds[0], 0)} s on {threads}"
    each = f"{number(min(seconds), 0)} to {number(max(seconds), 0)} s each on {threads}"
    return f"{each}, {number(sum(seconds) / 3600, 1)} h in all"


TABLES = {
    "variants": variants_table,
    "sweep": sweep_table,
    "sums": sums_table,
    "highest": highest_table,
    "curve": curve_table,
    "settings": settings_table,
    "program-settings": program_settings_table,
    "values": values_table,
}
