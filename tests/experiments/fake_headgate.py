#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A stand-in for `headgate train` and `headgate eval`: the same files, statuses and signals, without the training.

It diverges at step 3 where --lr exceeds 1, refuses --gate broken, and fails with --gate odd. Every call is a line in
$FAKE_LOG. After step 2 it waits, for a signal, while the file $FAKE_HOLD is there. The loss after step n of seed s is
s + lr + 1/n; a spike begins at step 2.
"""

import json
import os
import pathlib
import signal
import struct
import sys
import time

stopped = False


def stop(_number, _frame):
    global stopped
    stopped = True


def options(arguments):
    found, key = {}, None
    for argument in arguments:
        if argument.startswith("--"):
            key = argument[2:]
            found[key] = True
        else:
            found[key] = argument
    return found


def save(directory, given, step):
    directory.mkdir(parents=True, exist_ok=True)
    header = json.dumps(
        {
            "__metadata__": {"format": "pt"},
            "a": {"dtype": "F32", "shape": [3, 5], "data_offsets": [0, 60]},
            "b": {"dtype": "F32", "shape": [7], "data_offsets": [60, 88]},
        }
    ).encode()
    (directory / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(88))
    (directory / "config.json").write_text(
        json.dumps(
            {
                "model_type": "headgate",
                "num_hidden_layers": 1,
                "hidden_size": 8,
                "num_attention_heads": 1,
                "num_key_value_heads": 1,
                "head_dim": 8,
                "intermediate_size": 24,
            }
        )
    )
    (directory / "trainer_state.json").write_text(
        json.dumps(
            {
                "task": "text",
                "schedule": "cosine",
                "batch": 2,
                "seq_len": 16,
                "accumulate": 1,
                "steps": int(given["steps"]),
                "lr": float(given["lr"]),
                "lr_floor": 0.1,
                "warmup": 1,
                "weight_decay": 0.1,
                "beta2": 0.95,
                "clip": float(os.environ.get("FAKE_CLIP", "1")),
                "step": step,
                "seed": 1,
                "recent_losses": [],
            }
        )
    )


def metrics(given, step):
    line = {
        "step": step,
        "loss": int(given["seed"]) + float(given["lr"]) + 1 / step,
        "tokens": 32 * step,
        "seconds": 0.5,
    }
    if step == 2:
        line["spike"] = True
    if step % 2 == 0:
        line["eval"] = {"loss_nats": 1 / step, "layers": [{}]}
    return json.dumps(line, separators=(",", ":")) + "\n"


def train(given):
    if given.get("gate") == "broken":
        print("a warning\nheadgate train: --gate is 'broken'", file=sys.stderr)
        return 2
    if given.get("gate") == "odd":
        print("headgate train: something else", file=sys.stderr)
        return 1
    out = pathlib.Path(given["out"])
    checkpoint, log = out / "checkpoint", out / "metrics.jsonl"
    step = 0
    if given.get("resume"):
        step = json.loads((checkpoint / "trainer_state.json").read_text())["step"]
    else:
        log.unlink(missing_ok=True)
        save(checkpoint, given, 0)
    while step < int(given["steps"]):
        step += 1
        if float(given["lr"]) > 1 and step == 3:
            print("headgate train: step 3: the loss is nan; stopped after 1 loss spikes", file=sys.stderr)
            return 1
        with open(log, "a", encoding="utf-8") as file:
            file.write(metrics(given, step))
        while step == 2 and not stopped and os.path.exists(os.environ.get("FAKE_HOLD", "")):
            time.sleep(0.01)
        if stopped:
            break
    save(checkpoint, given, step)
    return 128 + signal.SIGINT if stopped else 0


def evaluate(directory, given):
    state = json.loads((pathlib.Path(directory) / "checkpoint" / "trainer_state.json").read_text())
    assert state["step"] == state["steps"] and given["held-out"] and given["json"]
    print(
        json.dumps({"loss_nats": 1.23456789 + state["lr"], "gate_below_0.1": 0.25, "gate_mean": None, "layers": [{}]})
    )
    return 0


def main(arguments):
    if arguments == ["--version"]:
        print("headgate 9.9.9")
        return 0
    signal.signal(signal.SIGINT, stop)
    with open(os.environ["FAKE_LOG"], "a", encoding="utf-8") as log:
        log.write(" ".join(arguments) + "\n")
    if arguments[0] == "train":
        return train(options(arguments[1:]))
    return evaluate(arguments[1], options(arguments[2:]))


sys.exit(main(sys.argv[1:]))
