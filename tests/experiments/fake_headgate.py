#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A stand-in for `headgate train` and `headgate eval`: the same files, statuses and signals, without the training.

It diverges at step 3 if --lr exceeds 1, and fails with --gate broken. Every call is a line in $FAKE_LOG. After step 2 it
waits for a signal while the file $FAKE_HOLD exists. The loss after step n of seed s is s + lr + 1/n.
"""

import json
import os
import pathlib
import signal
import struct
import sys
import time

MODEL = {"num_hidden_layers": 1, "hidden_size": 8, "model_type": "headgate"}
received = []


def options(arguments):
    """Reads --option value and --flag."""
    found = {}
    for argument, following in zip(arguments, [*arguments[1:], "--"]):
        if argument.startswith("--"):
            found[argument[2:]] = True if following.startswith("--") else following
    return found


def save(directory, given, step):
    directory.mkdir(parents=True, exist_ok=True)
    header = json.dumps({"__metadata__": {"format": "pt"}, "a": {"shape": [3, 5]}, "b": {"shape": [7]}}).encode()
    (directory / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(88))
    (directory / "config.json").write_text(json.dumps(MODEL))
    state = {"steps": int(given["steps"]), "lr": float(given["lr"]), "clip": 1.0, "step": step, "seed": 1}
    (directory / "trainer_state.json").write_text(json.dumps(state))


def train(given):
    if given["gate"] == "broken":
        sys.exit("a warning\nheadgate train: --gate is 'broken'")
    checkpoint, log = pathlib.Path(given["out"], "checkpoint"), pathlib.Path(given["out"], "metrics.jsonl")
    step, loss = 0, int(given["seed"]) + float(given["lr"])
    if given.get("resume"):
        step = json.loads((checkpoint / "trainer_state.json").read_text())["step"]
    else:
        save(checkpoint, given, 0)
    while step < int(given["steps"]) and not received:
        step += 1
        if float(given["lr"]) > 1 and step == 3:
            sys.exit("headgate train: step 3: the loss is nan; stopped after 1 loss spikes")
        line = {"step": step, "loss": loss + 1 / step, "tokens": 32 * step, "seconds": 0.5, "spike": step == 2}
        if step % 2 == 0:
            line["eval"] = {"loss_nats": 1 / step, "layers": [{}]}
        with open(log, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        while step == 2 and not received and os.path.exists(os.environ.get("FAKE_HOLD", "")):
            time.sleep(0.01)
    save(checkpoint, given, step)
    sys.exit(128 + signal.SIGINT if received else 0)


def evaluate(directory, given):
    state = json.loads(pathlib.Path(directory, "checkpoint", "trainer_state.json").read_text())
    assert state["step"] == state["steps"] and given["held-out"] and given["json"]
    print(json.dumps({"loss_nats": 1.23456789 + state["lr"], "gate_mean": None}))


if sys.argv[1:] == ["--version"]:
    sys.exit(print("headgate 9.9.9"))
signal.signal(signal.SIGINT, lambda number, frame: received.append(number))
with open(os.environ["FAKE_LOG"], "a", encoding="utf-8") as calls:
    calls.write(" ".join(sys.argv[1:]) + "\n")
train(options(sys.argv[2:])) if sys.argv[1] == "train" else evaluate(sys.argv[2], options(sys.argv[3:]))
