#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""experiments/run.py on a stand-in for the program: records, skipping, resuming, divergence and failures."""

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
import types
import unittest

HERE = pathlib.Path(__file__).resolve().parent
RUN = HERE.parent.parent / "experiments" / "run.py"
sys.path.insert(0, str(RUN.parent))

import plan
import run

CONFIG = {
    "train": {"task": "text", "lr": 0.5, "steps": 6},
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
    "tables": [
        {"name": "t", "kind": "variants", "columns": [{"title": "loss", "value": "eval.loss_nats", "digits": 3}]}
    ],
}
PAGE = "# Page\n\n<!-- table:t -->\n<!-- /table -->\n\nProse.\n"
TIMEOUT = 60


class Bench(unittest.TestCase):
    """Holds an experiment of its own in a scratch folder."""

    def setUp(self):
        self.scratch = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.scratch)
        self.directory = self.scratch / "sample"
        self.directory.mkdir()
        self.data = self.scratch / "words.txt"
        self.data.write_text("some words\n")
        self.program = self.scratch / "headgate"
        shutil.copy(HERE / "fake_headgate.py", self.program)
        self.log = self.scratch / "log"
        self.log.touch()
        self.hold = self.scratch / "hold"
        self.hold.touch()
        self.configure(CONFIG)
        (self.directory / "README.md").write_text(PAGE)
        self.path = self.directory / "records.jsonl"

    def configure(self, config):
        (self.directory / "config.json").write_text(json.dumps(config))

    def start(self, *arguments, **environment):
        command = [
            sys.executable,
            RUN,
            self.directory,
            "--data",
            self.data,
            "--headgate",
            self.program,
            "--work",
            self.scratch / "work",
            "--jobs",
            "2",
            *arguments,
        ]
        return subprocess.Popen(
            command,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "FAKE_LOG": str(self.log), **environment},
        )

    def call(self, *arguments, **environment):
        process = self.start(*arguments, **environment)
        out, err = process.communicate(timeout=TIMEOUT)
        return process.returncode, out, err

    def succeed(self, *arguments, **environment):
        status, out, err = self.call(*arguments, **environment)
        self.assertEqual((status, err), (0, ""))
        return out

    def fail_with(self, words, *arguments):
        status, _, err = self.call(*arguments)
        self.assertEqual(status, 1)
        self.assertEqual(err.count("\n"), 1, err)
        for word in words:
            self.assertIn(word, err)

    def calls(self, verb=""):
        return [line for line in self.log.read_text().splitlines() if line.startswith(verb)]

    def record(self, name):
        return plan.read_records(self.path)[name]

    def recorded(self):
        """Returns the names of the runs, in the order of their lines."""
        return list(plan.read_records(self.path))

    def start_and_hold(self):
        """Starts a call whose first two trainings wait after their second step."""
        process = self.start(FAKE_HOLD=str(self.hold))
        deadline = time.monotonic() + TIMEOUT
        steps = []
        while steps != [2, 2] and time.monotonic() < deadline:
            time.sleep(0.01)
            steps = [
                path.read_text().count("\n") for path in (self.scratch / "work" / "sample").glob("*/metrics.jsonl")
            ]
        self.assertEqual(steps, [2, 2])
        return process

    def interrupt_under_way(self):
        """Interrupts a call in the middle of its first two trainings."""
        process = self.start_and_hold()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=TIMEOUT)
        self.assertEqual(process.returncode, 130, err)
        self.assertIn("the same command continues", err)


class Records(Bench):
    def test_record_finished_run_holds_options_and_results(self):
        self.succeed()
        self.assertEqual(self.recorded(), ["headwise-seed1", "headwise-seed2", "none-seed1", "none-seed2"])
        record = self.record("headwise-seed2")
        self.assertEqual(
            record["train"], {"task": "text", "lr": 0.5, "steps": 6, "gate": "headwise", "match-params": True}
        )
        self.assertEqual(
            record["command"],
            "headgate train --data words.txt --out headwise-seed2 --threads 1 --seed 2 "
            "--task text --lr 0.5 --steps 6 --gate headwise --match-params",
        )
        self.assertEqual((record["seed"], record["variant"], record["status"]), (2, "headwise", "finished"))
        self.assertEqual(record["parameters"], 3 * 5 + 7)
        self.assertEqual((record["steps"], record["tokens"], record["seconds"]), (6, 192, 3.0))
        self.assertEqual(record["tokens_per_second"], 64)
        self.assertEqual((record["spikes"], record["spike_steps"]), (1, [2]))
        self.assertEqual(record["train_loss"], 2.90833)  # 2 + 0.5 + (1 + 1/2 + … + 1/6)/6
        self.assertEqual(
            record["curve"],
            [{"step": 2, "loss_nats": 0.5}, {"step": 4, "loss_nats": 0.25}, {"step": 6, "loss_nats": 0.166667}],
        )
        self.assertEqual(record["eval"]["loss_nats"], 1.73457)
        self.assertEqual(record["eval_options"], {"tokens": 100})
        self.assertEqual(record["program"]["version"], "9.9.9")
        self.assertEqual(record["data"]["bytes"], 11)
        self.assertEqual(record["settings"]["clip"], 1.0)
        self.assertIn("--tokens 100", self.calls("eval")[0])

    def test_page_after_runs_has_tables_and_the_same_prose(self):
        self.succeed()
        page = (self.directory / "README.md").read_text()
        self.assertIn("| no gate | 1.735 ± 0.000 |", page)
        self.assertTrue(page.startswith("# Page\n") and page.endswith("<!-- /table -->\n\nProse.\n"))

    def test_run_recorded_is_skipped(self):
        self.succeed()
        before = len(self.calls())
        self.assertIn("4 runs, 4 recorded already", self.succeed())
        self.assertEqual(len(self.calls()), before)
        self.succeed("--force", "--only", "none-seed1")
        self.assertEqual(len(self.calls()), before + 2)

    def test_run_with_other_options_or_data_runs_again(self):
        self.succeed("--only", "seed1")
        changed = json.loads(json.dumps(CONFIG))
        changed["blocks"][0]["variants"][1]["train"]["dim"] = 32
        self.configure(changed)
        self.assertIn("2 runs, 1 recorded already", self.succeed("--only", "seed1"))
        self.assertEqual(self.record("headwise-seed1")["train"]["dim"], 32)
        self.data.write_text("other words\n")
        self.assertIn("2 runs, 0 recorded already", self.succeed("--only", "seed1"))

    def test_sweep_two_values_doubles_the_runs(self):
        swept = json.loads(json.dumps(CONFIG))
        swept["blocks"][0].update(name="hot", seeds=[1], sweep={"lr": [0.002, 0.25]})
        swept["tables"] = [{"name": "t", "kind": "sweep", "block": "hot", "value": "eval.loss_nats"}]
        self.configure(swept)
        self.succeed()
        self.assertEqual(
            self.recorded(),
            [f"hot-{variant}-lr{lr}-seed1" for variant in ("headwise", "none") for lr in ("0.002", "0.25")],
        )
        self.assertEqual(self.record("hot-none-lr0.25-seed1")["settings"]["lr"], 0.25)

    def test_run_diverged_is_recorded(self):
        hot = json.loads(json.dumps(CONFIG))
        hot["blocks"][0]["variants"][0]["train"]["lr"] = 2
        self.configure(hot)
        self.assertIn("diverged at step 3", self.succeed())
        record = self.record("none-seed1")
        self.assertEqual((record["status"], record["eval"], record["diverged"]["step"]), ("diverged", None, 3))
        self.assertIn("the loss is nan", record["diverged"]["message"])
        self.assertEqual((record["steps"], record["spikes"]), (2, 1))
        self.assertIn("| no gate (2 of 2 diverged) | – |", (self.directory / "README.md").read_text())

    def test_trial_leaves_no_record(self):
        out = self.succeed("--trial")
        self.assertIn("headwise (1 of 2 runs)", out)
        self.assertFalse(self.path.exists())
        self.assertEqual((self.directory / "README.md").read_text(), PAGE)
        self.assertTrue(all("--steps 4" in call and "--seed 1" in call for call in self.calls("train")))

    def test_dry_run_prints_commands_and_runs_nothing(self):
        out = self.succeed("--dry-run")
        self.assertEqual(out.count("headgate train"), 4)
        self.assertEqual(self.calls(), [])


class Signals(unittest.TestCase):
    def test_interrupt_repeated_within_a_second_is_forwarded_once(self):
        passed = []
        scheduler = run.Scheduler(None, [], 1, None)
        scheduler.jobs = [types.SimpleNamespace(forward=passed.append)]
        scheduler.interrupt(signal.SIGTERM)
        scheduler.interrupt(signal.SIGTERM)
        self.assertEqual(passed, [signal.SIGINT])
        scheduler.signalled -= 2  # seconds
        scheduler.interrupt(signal.SIGTERM)
        self.assertEqual(passed, [signal.SIGINT] * 2)


class Interruptions(Bench):
    def test_run_interrupted_resumes(self):
        self.interrupt_under_way()
        self.assertEqual(len(self.calls("train")), 2)
        self.succeed()
        resumed = [call for call in self.calls("train") if call.endswith("--resume")]
        self.assertEqual(len(resumed), 2)
        self.assertEqual(len(self.calls("train")), 6)
        cut, whole = self.record("none-seed1"), self.record("none-seed2")
        self.assertEqual((cut["steps"], cut["curve"], cut["eval"]), (whole["steps"], whole["curve"], whole["eval"]))

    def test_run_interrupted_of_another_program_starts_again(self):
        self.interrupt_under_way()
        with open(self.program, "a", encoding="utf-8") as program:
            program.write("# changed\n")
        self.succeed()
        self.assertFalse([call for call in self.calls("train") if call.endswith("--resume")])

    def test_run_interrupted_of_other_options_starts_again(self):
        self.interrupt_under_way()
        self.configure({**CONFIG, "train": {**CONFIG["train"], "steps": 5}})
        self.succeed()
        self.assertFalse([call for call in self.calls("train") if call.endswith("--resume")])
        self.assertEqual(self.record("none-seed1")["steps"], 5)

    def test_run_whose_record_is_deleted_starts_again(self):
        self.succeed("--only", "none-seed1")
        self.path.unlink()
        self.succeed("--only", "none-seed1")
        self.assertFalse([call for call in self.calls("train") if call.endswith("--resume")])

    def test_call_beside_another_call_is_refused(self):
        work = self.scratch / "work" / "sample"
        work.mkdir(parents=True)
        with open(work / "lock", "w", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self.fail_with(["in use"])
        self.assertEqual(self.calls(), [])

    def test_call_beside_trainers_of_a_killed_call_is_refused(self):
        process = self.start_and_hold()
        process.kill()
        process.communicate(timeout=TIMEOUT)
        self.fail_with(["in use"])
        self.hold.unlink()
        with open(self.scratch / "work" / "sample" / "lock", "w", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # until the last trainer is gone


class RecordFiles(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name) / "records.jsonl"

    def put(self, name, **figures):
        plan.put_record(self.path, {"run": name, "train": {}, "seed": 1, "status": "finished", **figures})

    def test_put_record_any_order_gives_the_same_bytes(self):
        texts = set()
        for names in ("abc", "cab", "bca"):
            self.path.unlink(missing_ok=True)
            for name in names:
                self.put(name)
            texts.add(self.path.read_text())
        self.assertEqual(len(texts), 1)
        self.assertEqual(list(plan.read_records(self.path)), ["a", "b", "c"])

    def test_put_record_of_a_recorded_run_replaces_its_line(self):
        self.put("a", loss=1)
        self.put("b", loss=2)
        self.put("a", loss=3)
        self.assertEqual(
            {name: record["loss"] for name, record in plan.read_records(self.path).items()}, {"a": 3, "b": 2}
        )

    def test_put_record_two_processes_keep_each_others_records(self):
        put = "plan.put_record(pathlib.Path(sys.argv[1]), {'run': f'{sys.argv[2]}{n}', 'train': {}, 'seed': 1, 'status': ''})"
        code = f"import pathlib, plan, sys\nfor n in range(20): {put}"
        environment = {**os.environ, "PYTHONPATH": str(RUN.parent)}
        writers = [subprocess.Popen([sys.executable, "-c", code, self.path, name], env=environment) for name in "ab"]
        self.assertEqual([writer.wait(timeout=TIMEOUT) for writer in writers], [0, 0])
        self.assertEqual(len(plan.read_records(self.path)), 40)

    def test_put_record_into_a_cut_file_keeps_the_file(self):
        self.put("a")
        self.path.write_text(self.path.read_text()[:20])
        with self.assertRaises(plan.ExperimentError):
            self.put("b")
        self.assertEqual(len(self.path.read_text()), 20)


class Failures(Bench):
    def test_run_failed_is_named_with_the_reason(self):
        broken = json.loads(json.dumps(CONFIG))
        for gate, words in (("broken", ["status 2", "--gate is 'broken'"]), ("odd", ["status 1", "something else"])):
            broken["blocks"][0]["variants"][1]["train"]["gate"] = gate
            self.configure(broken)
            self.fail_with(["headwise-seed1", *words])
            self.assertNotIn("headwise-seed1", self.recorded())

    def test_records_cut_file_is_refused_with_its_line(self):
        self.succeed()
        self.path.write_text(self.path.read_text()[:-100])
        self.fail_with(["records.jsonl:4: "])

    def test_records_run_that_stands_twice_is_refused(self):
        self.succeed()
        lines = self.path.read_text().splitlines(keepends=True)
        self.path.write_text("".join([*lines, lines[0]]))
        self.fail_with(["records.jsonl:5: a second record of headwise-seed1"])

    def test_config_bad_value_is_named(self):
        def with_block(**change):
            return {**CONFIG, "blocks": [{**CONFIG["blocks"][0], **change}]}

        for config, words in (
            ({**CONFIG, "trian": {}}, ["unknown key trian"]),
            ({**CONFIG, "train": {"out": "/tmp"}}, ["out is set by run.py"]),
            ({**CONFIG, "train": {"lr": [1]}}, ["option lr"]),
            (with_block(seeds=[]), ["seeds"]),
            (with_block(sweep={"lr": ["x"]}), ["numbers"]),
            (with_block(variants=[{"name": "a"}, {"name": "a"}]), ["two runs are named a-seed1"]),
            (with_block(variants=[{"name": "../a"}]), ["name must match", "got '../a'"]),
        ):
            self.configure(config)
            with self.subTest(words):
                self.fail_with(words)
        (self.directory / "config.json").write_text("{")
        self.fail_with(["config.json"])

    def test_call_missing_program_or_text_is_named(self):
        self.fail_with(["no program", "nowhere"], "--headgate", "nowhere")
        self.fail_with(["--data", "not a file"], "--data", self.scratch)
        self.fail_with(["--only xyz"], "--only", "xyz")


if __name__ == "__main__":
    unittest.main()
