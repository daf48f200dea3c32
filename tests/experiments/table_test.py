#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""experiments/table.py: statistics against numbers worked by hand, and pages against records."""

import contextlib
import io
import json
import pathlib
import shutil
import sys
import tempfile
import unittest
import xml.etree.ElementTree

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent.parent / "experiments"))

import plan  # noqa: E402
import plot  # noqa: E402
import record  # noqa: E402
import table  # noqa: E402
import tables  # noqa: E402

SETTINGS = {"steps": 10, "lr": 0.1, "clip": 1.0}


class Cells(unittest.TestCase):
    def test_mean_and_sample_standard_deviation(self):
        self.assertEqual(tables.cell([1.0, 2.0, 3.0], 2), "2.00 ± 1.00")  # √((1 + 0 + 1)/2)
        self.assertEqual(tables.cell([2.0, 4.0], 1), "3.0 ± 1.4")  # √(2/1)
        self.assertEqual(tables.cell([1.0, 4.0, None], 0, "range"), "2 (1 to 4)")
        self.assertEqual(tables.cell([1.0, 2.0], 1, "none"), "1.5")
        self.assertEqual(tables.cell([0.25], 3), "0.250")
        self.assertEqual(tables.cell([None], 3), tables.NOTHING)
        self.assertEqual(tables.cell([70464.0], 0), "70 464")

    def test_values_by_path(self):
        found = {
            "eval": {"gate_below_0.1": 0.5, "backcopy": {"gate_other": 0.25}, "gate_mean": None},
            "status": "finished",
        }
        self.assertEqual(tables.value_at(found, "eval.gate_below_0.1"), 0.5)
        self.assertEqual(tables.value_at(found, "eval.backcopy.gate_other"), 0.25)
        for path in ("eval.gate_mean", "eval.backcopy.nowhere", "nowhere.at.all", "eval.backcopy", "status"):
            self.assertIsNone(tables.value_at(found, path), path)


class Thinning(unittest.TestCase):
    def test_even_and_with_the_last(self):
        self.assertEqual(record.thinned(list(range(1, 11)), 4), [1, 4, 7, 10])
        self.assertEqual(record.thinned(list(range(1, 10)), 4), [3, 6, 9])
        self.assertEqual(record.thinned([1, 2], 4), [1, 2])
        self.assertEqual(record.thinned([], 4), [])

    def test_rounding_keeps_six_digits_and_no_infinities(self):
        self.assertEqual(
            record.rounded({"a": [1.23456789, float("nan")], "b": 12345678, "c": 1234567.8}),
            {"a": [1.23457, None], "b": 12345678, "c": 1234570.0},
        )


class Figures(unittest.TestCase):
    def test_ticks_are_round_and_cover_the_range(self):
        self.assertEqual(plot.ticks(0.0, 10.0), [0, 2, 4, 6, 8, 10])
        self.assertEqual(
            [round(tick, 9) for tick in plot.ticks(1.51, 1.562)], [1.51, 1.52, 1.53, 1.54, 1.55, 1.56, 1.57]
        )
        self.assertEqual(plot.ticks(-3.0, 900.0), [-200, 0, 200, 400, 600, 800, 1000])

    def test_a_line_runs_from_corner_to_corner(self):
        drawn = plot.lines(
            "t",
            "x & y",
            "y",
            [("a <b>", [(1, 0.0, 0.0, 0.0), (8, 10.0, 10.0, 10.0)])],
            log_x=True,
            x_ticks=[1, 2, 4, 8],
            crosses=[(0, 2)],
        )
        self.assertIn('points="64.0,312.0 530.0,16.0"', drawn)  # 720 × 360 without the margins
        self.assertIn('d="M215.3 18.0l', drawn)  # a third of the way along: 64 + 466/3, less half a cross
        words = [node.text for node in xml.etree.ElementTree.fromstring(drawn).iter("{http://www.w3.org/2000/svg}text")]
        self.assertIn("a <b>", words)
        self.assertIn("x & y", words)

    def test_bars_begin_at_nought_and_reach_their_figure(self):
        drawn = plot.bars("t", "x", [("a", [(0.5, 0.25, 1.0)])], most=1.0)
        rectangle = [
            node.attrib for node in xml.etree.ElementTree.fromstring(drawn).iter("{http://www.w3.org/2000/svg}rect")
        ][1]
        self.assertEqual((rectangle["x"], rectangle["width"]), ("210", "243.0"))  # half of 720 − 210 − 24

    def test_nothing_to_draw_draws_nothing(self):
        self.assertIsNone(plot.lines("t", "x", "y", [("a", [])]))
        self.assertIsNone(plot.bars("t", "x", []))


class Bench(unittest.TestCase):
    def setUp(self):
        self.directory = pathlib.Path(tempfile.mkdtemp()) / "sample"
        self.addCleanup(shutil.rmtree, self.directory.parent)
        self.directory.mkdir()

    def make(self, block, tables):
        (self.directory / "config.json").write_text(
            json.dumps({"blocks": [{"name": "main", **block}], "tables": tables})
        )
        return plan.read_experiment(self.directory)

    def put(self, run, loss, **fields):
        """A record of the run; loss None: it diverged at step 7."""
        evaluation = None if loss is None else {"loss_nats": loss}
        content = {
            "run": run.name,
            "variant": run.variant.name,
            "seed": run.seed,
            "point": run.point,
            "train": run.train,
            "eval_options": run.eval,
            "data": {"sha256": "0" * 64},
            "settings": SETTINGS,
            "model": {},
            "spikes": 1,
            "eval": evaluation,
            "status": "diverged" if loss is None else "finished",
            "diverged": loss is None and {"step": 7} or None,
            **fields,
        }
        plan.write_whole(self.directory / "results" / f"{run.name}.json", json.dumps(content))

    def put_all(self, experiment, losses):
        runs = list(experiment.runs())
        self.assertEqual(sorted(losses), sorted(run.name for run in runs))
        for run in runs:
            self.put(run, losses[run.name])

    def rows(self, experiment):
        (text,), _ = (part.values() for part in table.render(experiment, experiment.results))
        return text.splitlines()[2:]


class Tables(Bench):
    VARIANTS = {
        "seeds": [1, 2],
        "variants": [{"name": "a", "label": "A"}, {"name": "b", "train": {"gate": "x"}, "paper": {"ppl": "5.9"}}],
    }
    SWEEP = {"seeds": [1, 2], "sweep": {"lr": [0.1, 0.2, 0.4, 0.8]}, "variants": [{"name": "a"}]}

    def test_variants(self):
        columns = [
            {"title": "loss", "value": "eval.loss_nats", "digits": 1},
            {"title": "to A", "value": "eval.loss_nats", "digits": 1, "minus": "a"},
            {"title": "paper", "paper": "ppl"},
        ]
        experiment = self.make(self.VARIANTS, [{"name": "t", "kind": "variants", "columns": columns}])
        self.put_all(experiment, {"a-seed1": 1.0, "a-seed2": 3.0, "b-seed1": 1.5, "b-seed2": 4.5})
        # Differences by seed: 0.5 and 1.5, of mean 1 and deviation √0.5.
        self.assertEqual(self.rows(experiment), ["| A | 2.0 ± 1.4 | – | – |", "| b | 3.0 ± 2.1 | 1.0 ± 0.7 | 5.9 |"])

    def test_diverged_and_missing_runs_are_counted(self):
        experiment = self.make(
            self.VARIANTS,
            [{"name": "t", "kind": "variants", "columns": [{"title": "loss", "value": "eval.loss_nats", "digits": 1}]}],
        )
        runs = {run.name: run for run in experiment.runs()}
        self.put(runs["a-seed1"], None)
        self.put(runs["a-seed2"], 3.0)
        self.put(runs["b-seed2"], 2.0)
        self.assertEqual(self.rows(experiment), ["| A (1 of 2 diverged) | 3.0 |", "| b (1 of 2 runs) | 2.0 |"])

    def test_sweep_sums_and_highest(self):
        losses = {
            "a-lr0.1-seed1": 0.9,
            "a-lr0.1-seed2": 1.1,
            "a-lr0.2-seed1": 1.0,
            "a-lr0.2-seed2": 1.1,
            "a-lr0.4-seed1": 1.2,
            "a-lr0.4-seed2": 1.2,
            "a-lr0.8-seed1": None,
            "a-lr0.8-seed2": 1.0,
        }
        for kind, expected in (
            (
                {"kind": "sweep", "value": "eval.loss_nats", "digits": 2},
                [
                    "| 0.1 | 1.00 ± 0.14 |",
                    "| 0.2 | 1.05 ± 0.07 |",
                    "| 0.4 | 1.20 ± 0.00 |",
                    "| 0.8 | 1.00; diverged at 7 |",
                ],
            ),
            ({"kind": "sums", "value": "spikes"}, ["| 0.1 | 2 |", "| 0.2 | 2 |", "| 0.4 | 2 |", "| 0.8 | 2 |"]),
            # 0.4 is 20% above the best, and a point where one run diverged does not train.
            (
                {"kind": "highest", "value": "eval.loss_nats", "within": 0.1, "digits": 2},
                ["| a | 0.2 | 1.05 | 0.1 | 1.00 | 1 |"],
            ),
        ):
            experiment = self.make(self.SWEEP, [{"name": "t", **kind}])
            self.put_all(experiment, losses)
            self.assertEqual(self.rows(experiment), expected)

    def test_curve(self):
        experiment = self.make(
            {"seeds": [1, 2], "curve": True, "variants": [{"name": "a"}]},
            [{"name": "t", "kind": "curve", "value": "loss", "digits": 1, "rows": 2}],
        )
        for run, losses in zip(experiment.runs(), ((5.0, 4.0, 3.0, 2.0), (5.0, 6.0, 3.0, 4.0))):
            self.put(run, 1.0, curve=[{"step": 10 * (i + 1), "loss": loss} for i, loss in enumerate(losses)])
        self.assertEqual(self.rows(experiment), ["| 20 | 5.0 ± 1.4 |", "| 40 | 3.0 ± 1.4 |"])

    def test_settings(self):
        experiment = self.make(
            {"seeds": [1], "sweep": {"lr": [0.1, 0.2]}, "variants": [{"name": "a"}]},
            [{"name": "t", "kind": "settings"}],
        )
        model = {
            "num_hidden_layers": 1,
            "hidden_size": 64,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "head_dim": 32,
            "intermediate_size": 192,
            "partial_rotary_factor": 0.25,
        }
        settings = {
            "task": "text",
            "schedule": "cosine",
            "steps": 10,
            "batch": 4,
            "seq_len": 16,
            "accumulate": 2,
            "lr_floor": 0.1,
            "warmup": 3,
            "weight_decay": 0.1,
            "beta2": 0.95,
            "clip": 0.0,
        }
        for run, seconds in zip(experiment.runs(), (1200.0, 2400.0)):
            self.put(
                run,
                1.0,
                model=model,
                settings={**settings, "lr": run.point["lr"]},
                parameters=70464,
                threads=1,
                seconds=seconds,
                data={"sha256": "0" * 64, "file": "words.txt", "bytes": 1234567},
            )
        self.assertEqual(
            self.rows(experiment),
            [
                "| model | 1 layer of width 64, 2 query heads on 1 of 32 features, RoPE on a share of 0.25, MLP 192: "
                "70 464 parameters |",
                "| data | text; words.txt, 1 234 567 bytes |",
                "| steps | 10 of 2 passes of 4 × 16 tokens |",
                "| learning rate | 0.1 to 0.2 after 3 steps of warm-up, then cosine to 0.1 of it |",
                "| optimizer | AdamW, weight decay 0.1, β₂ 0.95; gradient not clipped |",
                "| seeds | 1 |",
                "| recorded | 2 of 2 runs; 1 200 to 2 400 s each on 1 thread, 1.0 h in all |",
            ],
        )


class Pages(Bench):
    def setUp(self):
        super().setUp()
        self.experiment = self.make(
            {"seeds": [1], "variants": [{"name": "a", "train": {"lr": 0.1}}, {"name": "b"}]},
            [{"name": "t", "kind": "variants", "columns": [{"title": "loss", "value": "eval.loss_nats"}]}],
        )
        self.a, self.b = self.experiment.runs()
        self.put(self.a, 1.0)
        self.put(self.b, 2.0)
        self.page = self.directory / "README.md"
        self.page.write_text("before\n<!-- table:t -->\n<!-- /table -->\nafter\n")

    def call(self, *arguments):
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = table.main([*arguments, str(self.directory)])
        return status, err.getvalue()

    def assert_refused(self, words, *arguments):
        status, err = self.call(*arguments)
        self.assertEqual(status, 1)
        self.assertIn(words, err)
        self.assertEqual(err.count("\n"), 1)

    def test_check_fails_until_the_page_is_written(self):
        self.assert_refused("not what the records give", "--check")
        self.assertEqual(self.call(), (0, ""))
        self.assertEqual(self.call("--check"), (0, ""))
        self.assertIn("| a | 1.000 |\n| b | 2.000 |\n", self.page.read_text())

    def test_check_fails_on_an_edited_figure_or_record(self):
        self.call()
        written = self.page.read_text()
        self.page.write_text(written.replace("1.000", "0.900"))
        self.assert_refused("0.900", "--check")
        self.page.write_text(written)
        self.put(self.a, 1.5)
        self.assert_refused("not what the records give", "--check")

    def test_check_fails_on_an_edited_figure_file(self):
        self.make(
            {"seeds": [1], "variants": [{"name": "a", "train": {"lr": 0.1}}, {"name": "b"}]},
            [{"name": "t", "kind": "bars-figure", "title": "loss", "value": "eval.loss_nats"}],
        )
        self.call()
        self.assertIn("![loss](t.svg)", self.page.read_text())
        self.assertEqual(self.call("--check"), (0, ""))
        figure = self.directory / "t.svg"
        figure.write_text(figure.read_text().replace("#d95f02", "#d95f03"))
        self.assert_refused("t.svg: not what the records give", "--check")

    def test_places_and_tables_must_match(self):
        self.page.write_text("nothing\n")
        self.assert_refused("no place for table t")
        self.page.write_text("<!-- table:t -->\n<!-- /table --><!-- table:u -->\n<!-- /table -->")
        self.assert_refused("no table u")

    def test_records_must_be_of_the_config(self):
        self.put(self.a, 1.0, train={"lr": 0.2})
        self.assert_refused("a-seed1.json is of other options")
        self.put(self.a, 1.0)
        plan.write_whole(self.directory / "results" / "c-seed1.json", "{}")
        self.assert_refused("no run of config.json makes c-seed1")

    def test_records_must_be_of_one_recipe(self):
        self.put(self.a, 1.0, settings={**SETTINGS, "lr": 0.3})  # an option of this run
        self.call()
        self.assertEqual(self.call("--check"), (0, ""))
        self.put(self.a, 1.0, settings={**SETTINGS, "steps": 20})  # a default that has changed
        self.assert_refused("differ in steps", "--check")
        self.put(self.a, 1.0, model={"partial_rotary_factor": 0.25})
        self.assert_refused("differ in partial_rotary_factor", "--check")
        self.put(self.a, 1.0, model={"partial_rotary_factor": 1.0})  # what a missing key means
        self.assertEqual(self.call("--check"), (0, ""))
        self.put(self.a, 1.0, data={"sha256": "1" * 64})
        self.assert_refused("different texts", "--check")


if __name__ == "__main__":
    unittest.main()
