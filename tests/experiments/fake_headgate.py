#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A stand-in for `headgate train` and `headgate eval`: the same files, statuses and signals, without the training.

It diverges at step 3 if --lr exceeds 1, and fails with --gate broken. Every call is a line in $FAKE_LOG. After step 2 it
waits for a signal while the file $FAKE_HOLD exists.
"""

import json
import os
import pathlib
import signal
import struct
import sys
import time

received = []


def options(arguments):
    """Reads --option value and --flag."""
    pairs = zip(arguments, [*arguments[1:], "--"])
    return {option[2:]: not value.startswith("--") and value for option, value in pairs if option.startswith("--")}


def train(given):
    if given["gate"] == "broken":
        sys.exit("a warning\nheadgate train: --gate is 'broken'")
    checkpoint, log = pathlib.Path(given["out"], "checkpoint"), pathlib.Path(given["out"], "metrics.jsonl")
    state, step, steps = checkpoint / "trainer_state.json", 0, int(given["steps"])
    if "resume" in given:
        step = json.loads(state.read_text())["step"]
    checkpoint.mkdir(parents=True, exist_ok=True)
    header = json.dumps({"__metadata__": {"format": "pt"}, "a": {"shape": [3, 5]}, "b": {"shape": [7]}}).encode()
    (checkpoint / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(88))
    (checkpoint / "config.json").write_text(json.dumps({"hidden_size": 8}))
    state.write_text(json.dumps({"steps": steps, "lr": 0.5, "step": step, "seed": 1}))
    while step < steps and not received:
        step += 1
        if float(given["lr"]) > 1 and step == 3:
            sys.exit("headgate train: step 3: the loss is nan; stopped after 1 loss spikes")
        line = {"step": step, "seconds": 0.5, "spike": step == 2}
        if step % 2 == 0:
            line["eval"] = {"loss_nats": 1 / step, "layers": [{}]}
        with open(log, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        while step == 2 and not received and os.path.exists(os.environ["FAKE_HOLD"]):
            time.sleep(0.01)
    state.write_text(json.dumps({"steps": steps, "lr": 0.5, "step": step, "seed": 1}))
    sys.exit(128 + signal.SIGINT if received else 0)


if sys.argv[1:] == ["--version"]:
    sys.exit(print("headgate 9.9.9"))
signal.signal(signal.SIGINT, lambda number, frame: received.append(number))
with open(os.environ["FAKE_LOG"], "a", encoding="utf-8") as calls:
    calls.write(" ".join(sys.argv[1:]) + "\n")
if sys.argv[1] == "train":
    train(options(sys.argv[2:]))
print(json.dumps({"loss_nats": 1.23456789, "gate_mean": None}))
