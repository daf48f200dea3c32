#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""experiments/table.py: statistics against numbers worked by hand, and pages against records."""

import contextlib
import io
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

EXPERIMENTS = pathlib.Path(__file__).resolve().parent.parent.parent / "experiments"
sys.path.insert(0, str(EXPERIMENTS))

import plan
import plot
import record
import table
import tables

SETTINGS = {"steps": 10, "lr": 0.1, "clip": 1.0}


class Cells(unittest.TestCase):
    def test_cell_values_by_hand_mean_and_sample_deviation(self):
        self.assertEqual(tables.cell([1.0, 2.0, 3.0], 2), "2.00 ± 1.00")  # √((1 + 0 + 1)/2)
        self.assertEqual(tables.cell([2.0, 4.0], 1), "3.0 ± 1.4")  # √(2/1)
        self.assertEqual(tables.cell([1.0, 4.0, None], 0, "range"), "2 (1 to 4)")
        self.assertEqual(tables.cell([1.0, 2.0], 1, "none"), "1.5")
        self.assertEqual(tables.cell([0.25], 3), "0.250")
        self.assertEqual(tables.cell([None], 3), tables.NOTHING)
        self.assertEqual(tables.cell([70464.0], 0), "70 464")

    def test_value_at_path_with_dots_in_keys_is_found(self):
        found = {
            "eval": {"gate_below_0.1": 0.5, "backcopy": {"gate_other": 0.25}, "gate_mean": None},
            "status": "finished",
        }
        self.assertEqual(tables.value_at(found, "eval.gate_below_0.1"), 0.5)
        self.assertEqual(tables.value_at(found, "eval.backcopy.gate_other"), 0.25)
        for path in ("eval.gate_mean", "eval.backcopy.nowhere", "nowhere.at.all", "eval.backcopy", "status"):
            self.assertIsNone(tables.value_at(found, path), path)


class Thinning(unittest.TestCase):
    def test_thinned_points_are_even_and_keep_the_last(self):
        self.assertEqual(record.thinned(list(range(1, 11)), 4), [1, 4, 7, 10])
        self.assertEqual(record.thinned(list(range(1, 10)), 4), [3, 6, 9])
        self.assertEqual(record.thinned([1, 2], 4), [1, 2])
        self.assertEqual(record.thinned([], 4), [])

    def test_rounded_has_six_digits_and_null_for_nan(self):
        self.assertEqual(
            record.rounded({"a": [1.23456789, float("nan")], "b": 12345678, "c": 1234567.8}),
            {"a": [1.23457, None], "b": 12345678, "c": 1234570.0},
        )


class Figures(unittest.TestCase):
    SERIES = [
        ("a <b>", [(1, 2.0, 1.0, 3.0), (8, 10.0, 10.0, 10.0)]),
        ("empty", []),
        ("c & d", [(2, 5.0, 5.0, 5.0)]),
        ("diverged", []),
    ]
    OPTIONS = {"log_x": True, "x_ticks": [1, 2, 4, 8], "crosses": [(0, 2), (3, 4)]}

    def words(self, drawn):
        return [node.text for node in xml.etree.ElementTree.fromstring(drawn).iter("{http://www.w3.org/2000/svg}text")]

    def test_lines_series_go_through_the_means(self):
        (axes,) = plot.lines_figure("x", "y", self.SERIES, **self.OPTIONS).axes
        first, third, diverged, *crosses = axes.lines
        self.assertEqual(first.get_xydata().tolist(), [[1, 2], [8, 10]])
        self.assertEqual(third.get_xydata().tolist(), [[2, 5]])
        self.assertEqual(diverged.get_xydata().tolist(), [])
        self.assertEqual([cross.get_xdata()[0] for cross in crosses], [2, 4])
        self.assertEqual([cross.get_marker() for cross in crosses], ["x", "x"])
        (band,) = axes.collections  # of the one series with a spread
        corners = {tuple(corner) for corner in band.get_paths()[0].vertices.tolist()}
        self.assertEqual(corners, {(1, 1), (1, 3), (8, 10)})
        self.assertEqual(axes.get_xscale(), "log")
        self.assertEqual([tick.get_text() for tick in axes.get_xticklabels()], ["1", "2", "4", "8"])

    def test_lines_series_beside_empty_ones_keep_their_colours(self):
        (axes,) = plot.lines_figure("x", "y", self.SERIES, **self.OPTIONS).axes
        colours = [line.get_color() for line in axes.lines]
        self.assertEqual(colours, [plot.COLOURS[index] for index in (0, 2, 3, 0, 3)])
        labels = [label.get_text() for label in axes.get_legend().get_texts()]
        self.assertEqual(labels, ["a <b>", "c & d", "diverged"])

    def test_bars_reach_from_zero_to_the_mean(self):
        (axes,) = plot.bars_figure("x", [("a", 0.5, 0.25, 1.0), ("b", 0.0, 0.0, 0.0)], most=1.0).axes
        bars = [(bar.get_x(), bar.get_width()) for bar in axes.patches]
        self.assertEqual(bars, [(0, 0.5), (0, 0.0)])
        whiskers = [segment[:, 0].tolist() for segment in axes.collections[0].get_segments()]
        self.assertEqual(whiskers, [[0.25, 1.0], [0.0, 0.0]])
        self.assertEqual([tick.get_text() for tick in axes.get_yticklabels()], ["a", "b"])
        self.assertEqual(axes.get_xlim(), (0, 1))
        low, high = axes.get_ylim()
        self.assertGreater(low, high, "the first row is on top")

    def test_lines_same_input_in_another_process_same_bytes(self):
        drawn = plot.lines("t", "x & y", "y", self.SERIES, **self.OPTIONS)
        with tempfile.TemporaryDirectory() as elsewhere:  # another process, another day, another user's settings
            pathlib.Path(elsewhere, "matplotlibrc").write_text("font.size: 20\nlines.linewidth: 9\n")
            draw = f"print(plot.lines('t', 'x & y', 'y', {self.SERIES!r}, **{self.OPTIONS!r}), end='')"
            again = subprocess.run(
                [sys.executable, "-c", f"import plot; {draw}"],
                env={"PYTHONPATH": str(EXPERIMENTS), "MATPLOTLIBRC": elsewhere, "MPLCONFIGDIR": elsewhere},
                capture_output=True,
                text=True,
            )
        self.assertEqual(again.stderr, "")
        self.assertEqual(again.stdout, drawn)
        self.assertNotIn("<dc:date>", drawn)
        for word in ("a <b>", "c & d", "x & y"):
            self.assertIn(word, self.words(drawn))

    def test_lines_without_points_draw_nothing(self):
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
        """Puts a record of the run; loss None: it diverged at step 7."""
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
        plan.put_record(self.directory / "records.jsonl", content)

    def put_all(self, experiment, losses):
        runs = list(experiment.runs())
        self.assertEqual(sorted(losses), sorted(run.name for run in runs))
        for run in runs:
            self.put(run, losses[run.name])

    def rows(self, experiment):
        (text,), _ = (part.values() for part in table.render(experiment, experiment.records))
        return text.splitlines()[2:]


class Tables(Bench):
    VARIANTS = {
        "seeds": [1, 2],
        "variants": [{"name": "a", "label": "A"}, {"name": "b", "train": {"gate": "x"}, "paper": {"ppl": "5.9"}}],
    }
    SWEEP = {"seeds": [1, 2], "sweep": {"lr": [0.1, 0.2, 0.4, 0.8]}, "variants": [{"name": "a"}]}

    def test_variants_table_values_by_hand(self):
        columns = [
            {"title": "loss", "value": "eval.loss_nats", "digits": 1},
            {"title": "to A", "value": "eval.loss_nats", "digits": 1, "minus": "a"},
            {"title": "paper", "paper": "ppl"},
        ]
        experiment = self.make(self.VARIANTS, [{"name": "t", "kind": "variants", "columns": columns}])
        self.put_all(experiment, {"a-seed1": 1.0, "a-seed2": 3.0, "b-seed1": 1.5, "b-seed2": 4.5})
        # Differences by seed: 0.5 and 1.5, of mean 1 and deviation √0.5.
        self.assertEqual(self.rows(experiment), ["| A | 2.0 ± 1.4 | – | – |", "| b | 3.0 ± 2.1 | 1.0 ± 0.7 | 5.9 |"])

    def test_variants_table_diverged_and_missing_runs_are_counted(self):
        experiment = self.make(
            self.VARIANTS,
            [{"name": "t", "kind": "variants", "columns": [{"title": "loss", "value": "eval.loss_nats", "digits": 1}]}],
        )
        runs = {run.name: run for run in experiment.runs()}
        self.put(runs["a-seed1"], None)
        self.put(runs["a-seed2"], 3.0)
        self.put(runs["b-seed2"], 2.0)
        self.assertEqual(self.rows(experiment), ["| A (1 of 2 diverged) | 3.0 |", "| b (1 of 2 runs) | 2.0 |"])

    def test_sweep_tables_values_by_hand(self):
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

    def test_curve_table_values_by_hand(self):
        experiment = self.make(
            {"seeds": [1, 2], "curve": True, "variants": [{"name": "a"}]},
            [{"name": "t", "kind": "curve", "value": "loss", "digits": 1, "rows": 2}],
        )
        for run, losses in zip(experiment.runs(), ((5.0, 4.0, 3.0, 2.0), (5.0, 6.0, 3.0, 4.0))):
            self.put(run, 1.0, curve=[{"step": 10 * (i + 1), "loss": loss} for i, loss in enumerate(losses)])
        self.assertEqual(self.rows(experiment), ["| 20 | 5.0 ± 1.4 |", "| 40 | 3.0 ± 1.4 |"])

    def test_settings_table_values_by_hand(self):
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

    def test_check_page_without_tables_is_refused(self):
        self.assert_refused("not what the records give", "--check")
        self.assertEqual(self.call(), (0, ""))
        self.assertEqual(self.call("--check"), (0, ""))
        self.assertIn("| a | 1.000 |\n| b | 2.000 |\n", self.page.read_text())

    def test_check_edited_page_or_record_is_refused(self):
        self.call()
        written = self.page.read_text()
        self.page.write_text(written.replace("1.000", "0.900"))
        self.assert_refused("0.900", "--check")
        self.page.write_text(written)
        self.put(self.a, 1.5)
        self.assert_refused("not what the records give", "--check")

    def drawn_figure(self):
        """The file of a page's figure."""
        self.make(
            {"seeds": [1], "variants": [{"name": "a", "train": {"lr": 0.1}}, {"name": "b"}]},
            [{"name": "t", "kind": "bars-figure", "title": "loss", "value": "eval.loss_nats"}],
        )
        self.call()
        self.assertIn("![loss](t.svg)", self.page.read_text())
        self.assertEqual(self.call("--check"), (0, ""))
        return self.directory / "t.svg"

    def test_check_edited_figure_file_is_refused(self):
        figure = self.drawn_figure()
        figure.write_text(figure.read_text().replace(plot.BAR_COLOUR, "#56b4ea"))
        self.assert_refused("t.svg: not what the records give", "--check")

    def test_check_figure_of_another_matplotlib_is_named_and_not_compared(self):
        figure = self.drawn_figure()
        figure.write_text(re.sub(r"Matplotlib v[\d.]+", "Matplotlib v0.1", figure.read_text()) + "<!-- edited -->\n")
        status, err = self.call("--check")
        self.assertEqual(status, 0)
        self.assertRegex(err, r"not compared, drawn by another Matplotlib: t\.svg\n$")

    def test_check_page_without_place_for_a_table_is_refused(self):
        self.page.write_text("nothing\n")
        self.assert_refused("no place for table t")
        self.page.write_text("<!-- table:t -->\n<!-- /table --><!-- table:u -->\n<!-- /table -->")
        self.assert_refused("no table u")

    def test_check_record_of_other_options_is_refused(self):
        self.put(self.a, 1.0, train={"lr": 0.2})
        self.assert_refused("the record of a-seed1 has other options than config.json")
        self.put(self.a, 1.0)
        plan.put_record(
            self.directory / "records.jsonl", {"run": "c-seed1", "train": {}, "seed": 1, "status": "finished"}
        )
        self.assert_refused("no run of config.json makes c-seed1")

    def test_check_records_of_other_defaults_are_refused(self):
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
