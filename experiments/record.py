# SPDX-License-Identifier: Apache-2.0
"""Makes the record of a run, from the directory of `headgate train` and the output of `headgate eval`, or from the
result of a Python program."""

import json
import math
import statistics

CURVE_POINTS = 40  # evaluations over training that a record keeps, at most
LAST_STEPS = 20  # whose mean loss is recorded
DIGITS = 6  # significant, of recorded figures


def rounded(value):
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [rounded(item) for item in value]
    return value


def read_metrics(path):
    """The steps of metrics.jsonl, up to a line that was cut off."""
    steps = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return steps
    for line in lines:
        try:
            steps.append(json.loads(line))
        except ValueError:
            break
    return steps


def thinned(points, most=CURVE_POINTS):
    """At most `most` of the points, evenly spaced, the last one included."""
    every = max(1, math.ceil(len(points) / most))
    return points[(len(points) - 1) % every :: every] if points else []


def curve(steps):
    """Evaluations over training, without the figures of single layers."""
    points = [{"step": step["step"], **step["eval"]} for step in steps if "eval" in step]
    return [{key: value for key, value in point.items() if key != "layers"} for point in thinned(points)]


def parameter_count(path):
    """From the shapes in the header of a safetensors file."""
    with open(path, "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    return sum(math.prod(tensor["shape"]) for name, tensor in header.items() if name != "__metadata__")


def settings(checkpoint):
    """The settings of the run, defaults included."""
    state = json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8"))
    dropped = {
        "data",
        "data_fingerprint",
        "format",
        "inside_spike",
        "recent_losses",
        "save_every",
        "seed",
        "spikes",
        "step",
        "threads",
    }
    return {key: value for key, value in state.items() if key not in dropped}


def model(checkpoint):
    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    dropped = {"architectures", "attention_bias", "hidden_act", "model_type", "torch_dtype"}
    return {key: value for key, value in config.items() if key not in dropped}


def summarise(work, with_curve):
    """The part of a record that comes from the run's directory."""
    checkpoint = work / "checkpoint"
    steps = read_metrics(work / "metrics.jsonl")
    seconds = sum(step["seconds"] for step in steps)
    tokens = steps[-1]["tokens"] if steps else 0
    last = [step["loss"] for step in steps[-LAST_STEPS:]]
    summary = {
        "parameters": parameter_count(checkpoint / "model.safetensors"),
        "model": model(checkpoint),
        "settings": settings(checkpoint),
        "steps": len(steps),
        "tokens": tokens,
        "seconds": seconds,
        "tokens_per_second": tokens / seconds if seconds > 0 else None,
        "spikes": sum(1 for step in steps if step.get("spike")),
        "spike_steps": [step["step"] for step in steps if step.get("spike")],
        "train_loss": statistics.fmean(last) if last else None,
    }
    if with_curve:
        summary["curve"] = curve(steps)
    return rounded(summary)


def of_program(result, program):
    """The part of a record that comes from a program's result, but for its metrics."""
    kept = ("parameters", "steps", "seconds", "train_loss")
    settings = {key: value for key, value in result["options"].items() if key not in ("seed", "threads")}
    return rounded(
        {
            "data": result["data"],
            "program": {**program, **result["versions"]},
            "model": {},
            "settings": settings,
            **{key: result[key] for key in kept},
        }
    )
