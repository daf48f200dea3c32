# SPDX-License-Identifier: Apache-2.0
"""A stand-in for a Python program of an experiment: options, result and statuses, without the training.

It diverges at step 3 if --lr exceeds 1, and fails with --gate broken. The loss of seed s is s + lr. It waits for a signal
while the file $FAKE_HOLD exists.
"""

import argparse
import json
import os
import pathlib
import sys
import time

parser = argparse.ArgumentParser()
for name, kind in {"gate": str, "lr": float, "steps": int, "seed": int, "threads": int, "packages": int}.items():
    parser.add_argument(f"--{name}", type=kind)
parser.add_argument("--data", type=pathlib.Path)
parser.add_argument("--json", type=pathlib.Path)
options = vars(parser.parse_args())
data, path = options.pop("data"), options.pop("json")
with open(os.environ["FAKE_LOG"], "a", encoding="utf-8") as log:
    log.write(f"program {' '.join(sys.argv[1:])}; threads {os.environ['OMP_NUM_THREADS']}\n")
if options["gate"] == "broken":
    sys.exit("fake_program.py: gate broken is broken")
if options["lr"] > 1:
    sys.exit("fake_program.py: step 3: the loss is nan")
while os.path.exists(os.environ["FAKE_HOLD"]):
    time.sleep(0.01)
result = {
    "options": options,
    "parameters": 12,
    "steps": options["steps"],
    "seconds": 2.0,
    "versions": {"headgate": "9.9", "torch": "8.8"},
    "metrics": {"loss_nats": options["seed"] + options["lr"]},
}
path.write_text(json.dumps(result))
