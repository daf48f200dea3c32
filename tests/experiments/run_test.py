#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""experiments/run.py on stand-ins for the programs: records, skipping, resuming, divergence and failures."""

import fcntl
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
RUN = HERE.parent.parent / "experiments" / "run.py"
TIMEOUT = 60
CONFIG = {
    "train": {"lr": 0.5, "steps": 6},
    "eval": {"tokens": 100},
    "blocks": [
        {
            "name": "main",
            "seeds": [1, 2],
            "curve": True,
            "variants": [
                {"name": "none", "label": "no gate", "train": {"gate": "none"}},
                {"name": "headwise", "train": {"gate": "headwise", "match-params": True}},
            ],
        }
    ],
    "tables": [{"name": "t", "kind": "variants", "columns": [{"title": "loss", "value": "eval.loss_nats"}]}],
}
PAGE = "# Page\n\n<!-- table:t -->\n<!-- /table -->\n\nProse.\n"


def with_block(**change):
    return {**CONFIG, "blocks": [{**CONFIG["blocks"][0], **change}]}


class Bench(unittest.TestCase):
    """Holds an experiment of its own in a scratch folder."""

    config, text = CONFIG, "some words\n"

    def setUp(self):
        self.scratch = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.scratch)
        self.directory, self.work = self.scratch / "sample", self.scratch / "work" / "sample"
        self.directory.mkdir()
        self.data, self.program = self.scratch / "words.txt", self.scratch / "headgate"
        self.data.write_text(self.text)
        shutil.copy(HERE / "fake_headgate.py", self.program)
        self.log, self.hold = self.scratch / "log", self.scratch / "hold"
        self.log.touch()
        self.page, self.path = self.directory / "README.md", self.directory / "records.jsonl"
        self.page.write_text(PAGE)
        self.configure(self.config)

    def configure(self, config):
        (self.directory / "config.json").write_text(json.dumps(config))

    def start(self, *arguments):
        command = [sys.executable, RUN, self.directory, "--data", self.data, "--work", self.scratch / "work"]
        command += ["--headgate", self.program, "--python", sys.executable, "--jobs", "2", *arguments]
        environment = {**os.environ, "FAKE_LOG": str(self.log), "FAKE_HOLD": str(self.hold)}
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen(command, env=environment, start_new_session=True, **streams)

    def succeed(self, *arguments):
        process = self.start(*arguments)
        out, err = process.communicate(timeout=TIMEOUT)
        self.assertEqual((process.returncode, err), (0, ""))
        return out

    def fail_with(self, words, *arguments):
        process = self.start(*arguments)
        _, err = process.communicate(timeout=TIMEOUT)
        self.assertEqual((process.returncode, err.count("\n")), (1, 1), err)
        for word in words:
            self.assertIn(word, err)

    def calls(self, verb=""):
        return [line for line in self.log.read_text().splitlines() if line.startswith(verb)]

    def records(self):
        return {record["run"]: record for record in map(json.loads, self.path.read_text().splitlines())}

    def waiting(self):
        return sum(path.read_text().count("\n") == 2 for path in self.work.glob("*/metrics.jsonl"))

    def start_and_hold(self):
        """Starts a call and returns it when its first two trainings wait."""
        self.hold.touch()
        process, deadline = self.start(), time.monotonic() + TIMEOUT
        while self.waiting() != 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        self.assertEqual(self.waiting(), 2)
        return process

    def interrupt_under_way(self):
        """Interrupts a call under way, as a terminal does."""
        process = self.start_and_hold()
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=TIMEOUT)
        self.assertEqual((process.returncode, err), (130, "run.py: interrupted; the same command continues\n"))
        self.assertFalse(self.path.exists())
        self.hold.unlink()


class Runs(Bench):
    def test_run_finished_is_recorded_and_skipped(self):
        self.succeed()
        self.assertEqual(list(self.records()), ["headwise-seed1", "headwise-seed2", "none-seed1", "none-seed2"])
        record = self.records()["headwise-seed2"]
        expected = {
            "train": {"lr": 0.5, "steps": 6, "gate": "headwise", "match-params": True},
            "command": "headgate train --data words.txt --out headwise-seed2 --threads 1 --seed 2 "
            "--lr 0.5 --steps 6 --gate headwise --match-params",
            "eval_options": {"tokens": 100},
            "parameters": 3 * 5 + 7,
            "model": {"hidden_size": 8},
            "settings": {"steps": 6, "lr": 0.5},
            "seconds": 3.0,
            "spikes": 1,
            "curve": [{"step": step, "loss_nats": loss} for step, loss in ((2, 0.5), (4, 0.25), (6, 0.166667))],
            "eval": {"loss_nats": 1.23457, "gate_mean": None},
            "status": "finished",
        }
        self.assertEqual({key: record[key] for key in expected}, expected)
        self.assertEqual((record["program"]["version"], record["data"]["bytes"]), ("9.9.9", 11))
        self.assertIn("--tokens 100", self.calls("eval")[0])
        self.assertIn("| no gate | 1.235 ± 0.000 |", self.page.read_text())
        self.assertTrue(self.page.read_text().endswith("<!-- /table -->\n\nProse.\n"))
        self.assertIn("4 runs, 4 recorded already", self.succeed())
        self.assertEqual(len(self.calls("train")), 4)
        self.succeed("--force", "--only", "none-seed1")
        self.assertEqual(len(self.calls("train")), 5)

    def test_run_of_other_options_or_data_runs_again(self):
        self.succeed("--only", "seed1")
        self.configure(with_block(train={"dim": 32}))
        self.assertIn("2 runs, 0 recorded already", self.succeed("--only", "seed1"))
        self.data.write_text("other words\n")
        self.assertIn("2 runs, 0 recorded already", self.succeed("--only", "seed1"))

    def test_run_diverged_is_recorded(self):
        self.configure(with_block(seeds=[1], sweep={"lr": [0.25, 2]}))
        self.assertIn("diverged at step 3", self.succeed())
        self.assertEqual(list(self.records())[2:], ["none-lr0.25-seed1", "none-lr2-seed1"])
        record = self.records()["none-lr2-seed1"]
        self.assertEqual((record["status"], record["eval"], record["steps"]), ("diverged", None, 2))
        self.assertEqual(record["diverged"], {"step": 3, "message": "headgate train: step 3: the loss is nan"})
        self.assertIn("| no gate (1 of 2 diverged) | 1.235 |", self.page.read_text())

    def test_trial_and_dry_run_leave_no_record(self):
        self.assertEqual(self.succeed("--dry-run").count("headgate train"), 4)
        self.assertEqual(self.calls(), [])
        self.assertIn("headwise (1 of 2 runs)", self.succeed("--trial"))
        self.assertEqual((self.path.exists(), self.page.read_text()), (False, PAGE))
        self.assertTrue(all("--seed 1" in call and "--steps 4" in call for call in self.calls("train")))

    def test_run_interrupted_resumes(self):
        self.interrupt_under_way()
        self.assertEqual(len(self.calls("train")), 2)
        self.succeed()
        self.assertEqual([call.endswith("--resume") for call in self.calls("train")].count(True), 2)
        cut, whole = self.records()["none-seed1"], self.records()["none-seed2"]
        self.assertEqual((cut["steps"], cut["curve"], cut["eval"]), (whole["steps"], whole["curve"], whole["eval"]))

    def test_run_interrupted_of_another_program_or_options_starts_again(self):
        def change_program():
            self.program.write_text(self.program.read_text() + "# changed\n")

        for change in (change_program, lambda: self.configure({**CONFIG, "train": {"lr": 0.5, "steps": 5}})):
            self.interrupt_under_way()
            change()
            self.succeed()
            self.assertFalse([call for call in self.calls() if call.endswith("--resume")])
            self.path.unlink()

    def test_call_beside_trainers_of_a_killed_call_is_refused(self):
        process = self.start_and_hold()
        self.fail_with(["in use"])
        process.kill()
        process.communicate(timeout=TIMEOUT)
        self.fail_with(["in use"])
        self.assertEqual(self.succeed("--dry-run").count("headgate train"), 4)
        self.assertEqual(len(self.calls("train")), 2)
        self.hold.unlink()
        lock = os.open(self.directory, os.O_RDONLY)
        fcntl.flock(lock, fcntl.LOCK_EX)  # waits until the last trainer has ended
        os.close(lock)
        self.succeed()
        self.assertEqual(len(self.records()), 4)

    def test_run_failed_is_named_with_the_reason(self):
        self.configure(with_block(variants=[{"name": "odd", "train": {"gate": "broken"}}]))
        self.fail_with(["odd-seed", "headgate train ended with status 1", "--gate is 'broken'"])
        self.assertFalse(self.path.exists())

    def test_bad_input_is_named(self):
        self.fail_with(["no program", "nowhere"], "--headgate", "nowhere")
        self.fail_with(["--data", "not a file"], "--data", self.scratch)
        self.fail_with(["--only xyz"], "--only", "xyz")
        self.path.write_text('{"run": "a"}\n{"run": "a"}\n')
        self.fail_with(["records.jsonl:2: a second record of a"])
        self.path.write_text('{"run": "a"}\n{"ru')
        self.fail_with(["records.jsonl:2: not a record"])
        self.configure(with_block(variants=[{"name": "a"}, {"name": "a"}]))
        self.fail_with(["two runs are named a-seed1"])
        self.configure({"train": {}})
        self.fail_with(["config.json: no key 'blocks'"])


class PythonProgram(Bench):
    text = "Package: a\nSection: libs\nDescription: one\n"
    config = {**with_block(variants=[{"name": "a", "train": {"gate": "x"}}]), "program": str(HERE / "fake_program.py")}

    def waiting(self):
        return len(self.calls("program"))

    def test_run_finished_is_recorded_and_skipped(self):
        self.succeed()
        record = self.records()["a-seed2"]
        command = "python fake_program.py --data words.txt --threads 1 --seed 2 --json result.json"
        self.assertEqual(record["command"], command + " --lr 0.5 --steps 6 --gate x")
        self.assertEqual(record["settings"]["gate"], "x")
        self.assertEqual(record["eval"], {"loss_nats": 2.5})
        self.assertEqual((record["data"]["file"], record["program"]["torch"]), ("words.txt", "8.8"))
        self.assertTrue(all(call.endswith("; threads 1") for call in self.calls()))
        self.assertIn("2 runs, 2 recorded already", self.succeed())

    def test_run_diverged_is_recorded_and_failed_is_not(self):
        self.configure({**self.config, "train": {"lr": 2, "steps": 6}})
        self.assertIn("diverged at step 3", self.succeed())
        self.assertEqual(self.records()["a-seed1"]["diverged"]["step"], 3)
        broken = with_block(variants=[{"name": "b", "train": {"gate": "broken"}}])["blocks"]
        self.configure({**self.config, "blocks": broken})
        self.fail_with(["b-seed", "fake_program.py ended with status 1", "gate broken is broken"])

    def test_run_interrupted_starts_again(self):
        self.interrupt_under_way()
        self.succeed()
        self.assertEqual(len(self.calls()), 4)
        self.assertEqual(self.records()["a-seed1"]["eval"], {"loss_nats": 1.5})

    def test_trial_has_few_packages(self):
        self.succeed("--trial")
        self.assertTrue(all("--steps 4 --gate x --packages 2000" in call for call in self.calls()))


if __name__ == "__main__":
    unittest.main()
