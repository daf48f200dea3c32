#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""experiments/run.py where the config names a Python program, on a stand-in for it; its tables and figures."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

HERE = pathlib.Path(__file__).resolve().parent
EXPERIMENTS = HERE.parent.parent / "experiments"
sys.path.insert(0, str(EXPERIMENTS))

import plan
import table

CONFIG = {
    "program": str(HERE / "fake_program.py"),
    "train": {"lr": 0.5, "steps": 6},
    "blocks": [
        {
            "name": "main",
            "seeds": [1, 2],
            "variants": [
                {"name": "none", "label": "no gate", "train": {"gate": "none"}},
                {"name": "headwise", "train": {"gate": "headwise"}},
            ],
        }
    ],
    "tables": [
        {"name": "settings", "kind": "program-settings"},
        {
            "name": "at",
            "kind": "values",
            "title": "length",
            "x": [8, 16],
            "value": "eval.at.{x}.loss_nats",
            "digits": 1,
        },
        {
            "name": "f",
            "kind": "values-figure",
            "title": "loss",
            "x-title": "length",
            "x": [8, 16],
            "value": "eval.at.{x}.loss_nats",
        },
        {"name": "r", "kind": "reliability-figure", "title": "reliability"},
    ],
}
PAGE = "".join(f"<!-- table:{name} -->\n<!-- /table -->\n" for name in ("settings", "at", "f", "r"))
STANZA = "Package: a\nSection: libs\nDescription: one\n"
TIMEOUT = 60


class Program(unittest.TestCase):
    def setUp(self):
        self.scratch = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.scratch)
        self.directory = self.scratch / "sample"
        self.directory.mkdir()
        self.data = self.scratch / "some_Packages"
        self.data.write_text(STANZA)
        self.log = self.scratch / "log"
        self.log.touch()
        (self.directory / "README.md").write_text(PAGE)
        self.path = self.directory / "records.jsonl"
        self.configure()

    def configure(self, **change):
        (self.directory / "config.json").write_text(json.dumps({**CONFIG, **change}))

    def start(self, *arguments, **environment):
        command = [
            sys.executable,
            EXPERIMENTS / "run.py",
            self.directory,
            "--data",
            self.data,
            "--python",
            sys.executable,
            "--work",
            self.scratch / "work",
            "--jobs",
            "2",
            *arguments,
        ]
        environment = {**os.environ, "FAKE_LOG": str(self.log), **environment}
        return subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)

    def call(self, *arguments, **environment):
        process = self.start(*arguments, **environment)
        out, err = process.communicate(timeout=TIMEOUT)
        return process.returncode, out, err

    def succeed(self, *arguments):
        status, out, err = self.call(*arguments)
        self.assertEqual((status, err), (0, ""))
        return out

    def fail_with(self, words, *arguments):
        status, _, err = self.call(*arguments)
        self.assertEqual((status, err.count("\n")), (1, 1), err)
        for word in words:
            self.assertIn(word, err)

    def record(self, name):
        return plan.read_records(self.path)[name]

    def test_record_finished_run_holds_options_and_results(self):
        self.succeed()
        record = self.record("headwise-seed2")
        self.assertEqual(
            record["command"],
            "python fake_program.py --data some_Packages --threads 1 --seed 2 --json result.json "
            "--lr 0.5 --steps 6 --gate headwise",
        )
        self.assertEqual(record["train"], {"lr": 0.5, "steps": 6, "gate": "headwise"})
        self.assertEqual(record["settings"], {"gate": "headwise", "lr": 0.5, "steps": 6, "packages": None})
        self.assertEqual((record["parameters"], record["steps"], record["train_loss"]), (12, 6, 0.123457))
        self.assertEqual((record["eval"]["loss_nats"], record["status"]), (2.5, "finished"))
        self.assertEqual((record["data"]["file"], record["data"]["bytes"]), ("some_Packages", len(STANZA)))
        self.assertEqual((record["program"]["headgate"], record["program"]["torch"]), ("9.9", "8.8"))
        self.assertIn("commit", record["program"])
        self.assertTrue(all(line.endswith("; threads 1") for line in self.log.read_text().splitlines()))

    def test_run_recorded_runs_again_only_on_other_data(self):
        self.succeed()
        self.assertIn("4 runs, 4 recorded already", self.succeed())
        self.assertEqual(len(self.log.read_text().splitlines()), 4)
        self.data.write_text(STANZA.replace("one", "two"))
        self.assertIn("4 runs, 0 recorded already", self.succeed())

    def test_trial_is_small_and_leaves_no_record(self):
        self.succeed("--trial")
        self.assertFalse(self.path.exists())
        self.assertTrue(
            all("--steps 4" in line and "--packages 2000" in line for line in self.log.read_text().splitlines())
        )

    def test_run_diverged_is_recorded_and_failed_is_not(self):
        self.configure(train={"lr": 2, "steps": 6})
        self.assertIn("diverged at step 3", self.succeed())
        record = self.record("none-seed1")
        self.assertEqual((record["status"], record["eval"], record["diverged"]["step"]), ("diverged", None, 3))
        self.configure(
            train={"lr": 0.5, "steps": 6, "gate": "none"},
            blocks=[{**CONFIG["blocks"][0], "variants": [{"name": "b", "train": {"gate": "broken"}}]}],
        )
        self.fail_with(["b-seed", "status 1", "gate broken is broken"])

    def test_run_interrupted_starts_again(self):
        hold = self.scratch / "hold"
        hold.touch()
        process = self.start(FAKE_HOLD=str(hold))
        deadline = time.monotonic() + TIMEOUT
        work = self.scratch / "work" / "sample"
        while sum(p.read_text().count("step 2/") for p in work.glob("*/train.out")) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=TIMEOUT)
        self.assertEqual(process.returncode, 130, err)
        self.succeed()
        self.assertEqual(len(self.log.read_text().splitlines()), 6)
        self.assertEqual(self.record("none-seed1")["eval"]["loss_nats"], 1.5)

    def test_check_edited_record_is_refused(self):
        self.succeed()
        page = (self.directory / "README.md").read_text()
        self.assertIn("| data | 1 packages; some_Packages; SHA-256 `", page)
        self.assertIn("| options of all | lr 0.5, steps 6 |", page)
        self.assertIn("| 8 | 1.5 ± 0.7 | 1.5 ± 0.7 |\n| 16 | 3.0 ± 1.4 | 3.0 ± 1.4 |\n", page)
        self.assertIn("![loss](f.svg)", page)
        self.assertIn("as sure as right", (self.directory / "r.svg").read_text())
        table.check(plan.read_experiment(self.directory))
        record = self.record("none-seed1")
        record["eval"]["at"]["8"]["loss_nats"] = 7.0
        plan.put_record(self.path, record)
        with self.assertRaisesRegex(plan.ExperimentError, "not what the records give"):
            table.check(plan.read_experiment(self.directory))

    def test_check_default_that_differs_is_refused(self):
        self.succeed()
        record = self.record("none-seed1")
        record["settings"]["packages"] = 5
        plan.put_record(self.path, record)
        with self.assertRaisesRegex(plan.ExperimentError, "differ in packages, which no option sets"):
            table.check(plan.read_experiment(self.directory))

    def test_run_missing_file_is_named(self):
        self.fail_with(["no Python", "nowhere"], "--python", "/nowhere/python")
        self.data.write_text("nothing\n")
        self.fail_with(["some_Packages: package 1 has no Package"])
        self.configure(program="examples/python/nowhere.py")
        self.fail_with(["no program examples/python/nowhere.py"])
        self.configure(eval={"tokens": 1})
        self.fail_with(["programs evaluate by themselves"])
        self.configure(train={"json": "x"})
        self.fail_with(["option json is set by run.py"])


if __name__ == "__main__":
    unittest.main()
