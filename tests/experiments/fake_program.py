# SPDX-License-Identifier: Apache-2.0
"""A stand-in for a Python program of an experiment: options, output, result and statuses, without the training.

It diverges at step 3 where --lr exceeds 1, and fails with --gate broken. The loss of seed s is s + lr. After step 2 it
waits, for a signal, while the file $FAKE_HOLD is there.
"""

import argparse
import hashlib
import json
import os
import pathlib
import sys
import time

parser = argparse.ArgumentParser()
for name, kind in (("gate", str), ("lr", float), ("steps", int), ("seed", int), ("threads", int), ("packages", int)):
    parser.add_argument(f"--{name}", type=kind)
parser.add_argument("--data")
parser.add_argument("--json")
options = vars(parser.parse_args())
data, path = pathlib.Path(options.pop("data")), pathlib.Path(options.pop("json"))
with open(os.environ["FAKE_LOG"], "a", encoding="utf-8") as log:
    log.write(f"program {' '.join(sys.argv[1:])}; threads {os.environ['OMP_NUM_THREADS']}\n")
if options["gate"] == "broken":
    sys.exit("fake_program.py: gate broken is broken")
for step in range(1, options["steps"] + 1):
    if step == 3 and options["lr"] > 1:
        sys.exit("fake_program.py: step 3: the loss is nan")
    print(f"step {step}/{options['steps']}: loss {1 / step}", flush=True)
    while step == 2 and os.path.exists(os.environ.get("FAKE_HOLD", "/nowhere")):
        time.sleep(0.01)
raw = data.read_bytes()
facts = {"file": data.name, "bytes": len(raw), "sha256": hashlib.sha256(raw).hexdigest(), "packages": 1}
reliability = [[0, 0.0, 0.0], [10 * options["seed"], 0.75, 0.5], [20, 1.0, 0.9]]
result = {
    "options": options,
    "seed": options["seed"],
    "parameters": 12,
    "steps": options["steps"],
    "seconds": 2.0,
    "train_loss": 0.123456789,
    "data": facts,
    "versions": {"headgate": "9.9", "torch": "8.8", "python": "3"},
    "metrics": {
        "loss_nats": options["seed"] + options["lr"],
        "reliability": reliability,
        "at": {"8": {"loss_nats": 1.0 * options["seed"]}, "16": {"loss_nats": 2.0 * options["seed"]}},
    },
}
path.write_text(json.dumps(result))
