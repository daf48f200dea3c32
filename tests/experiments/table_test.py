#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""experiments/table.py: statistics against numbers worked by hand, and pages against records."""

import contextlib
import io
import json
import pathlib
import re
import shutil
import sys
import tempfile
import unittest
import unittest.mock

import matplotlib.figure

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent.parent / "experiments"))

import run
import table

LOSS = {"title": "loss", "value": "eval.loss_nats", "digits": 1}
PAIR = {"seeds": [1, 2], "variants": [{"name": "a", "label": "A"}, {"name": "b", "paper": {"ppl": "5.9"}}]}
SWEEP = {"seeds": [1, 2], "sweep": {"lr": [0.1, 0.2, 0.4, 0.8]}, "variants": [{"name": "a"}]}
SWEPT = [0.9, 1.0, 1.2, None, 1.1, 1.1, 1.2, 1.0]  # losses; None diverged


class Cells(unittest.TestCase):
    def test_cell_values_by_hand_mean_and_sample_deviation(self):
        self.assertEqual(table.cell([1.0, 2.0, 3.0], 2), "2.00 ± 1.00")  # √((1 + 0 + 1)/2)
        self.assertEqual(table.cell([2.0, 4.0], 1), "3.0 ± 1.4")  # √(2/1)
        self.assertEqual(table.cell([1.0, 2.0], 1, False), "1.5")
        self.assertEqual(table.cell([70464.0], 0), "70 464")
        self.assertEqual(table.cell([], 3), table.NOTHING)

    def test_value_at_path_with_dots_in_keys_is_found(self):
        found = {"eval": {"gate_below_0.1": 0.5, "task": {"gate": 0.25}, "mean": None}, "status": "finished"}
        self.assertEqual(table.value_at(found, "eval.gate_below_0.1"), 0.5)
        self.assertEqual(table.value_at(found, "eval.task.gate"), 0.25)
        for path in ("eval.mean", "eval.task.nowhere", "nowhere.at.all", "eval.task", "status", "eval.mean.at"):
            self.assertIsNone(table.value_at(found, path), path)

    def test_rounded_has_six_digits_and_null_for_nan(self):
        given = {"a": [1.23456789, float("nan")], "b": 12345678, "c": 1234567.8}
        self.assertEqual(run.rounded(given), {"a": [1.23457, None], "b": 12345678, "c": 1234570.0})


class Bench(unittest.TestCase):
    def setUp(self):
        self.directory = pathlib.Path(tempfile.mkdtemp()) / "sample"
        self.addCleanup(shutil.rmtree, self.directory.parent)
        self.directory.mkdir()
        self.path = self.directory / "records.jsonl"

    def make(self, block, losses, *specs):
        """Writes the config, and a record of each run with its loss; None: it diverged at step 7."""
        tables = [{"name": f"t{index}", **spec} for index, spec in enumerate(specs)]
        config = {"blocks": [{"name": "main", **block}], "tables": tables}
        (self.directory / "config.json").write_text(json.dumps(config))
        self.experiment = table.Experiment(self.directory)
        self.put([self.record(run, loss) for run, loss in zip(self.experiment.runs, losses)])

    def record(self, run, loss):
        outcome = {"status": "finished", "diverged": None, "eval": {"loss_nats": loss}}
        if loss is None:
            outcome = {"status": "diverged", "diverged": {"step": 7}, "eval": None}
        name = {"run": run.name, "seed": run.seed, "point": run.point, "train": run.train, "eval_options": run.eval}
        rest = {"data": {"sha256": "0" * 64}, "program": {"version": "1"}}
        return {**name, **rest, **outcome}

    def put(self, records):
        self.path.write_text("".join(json.dumps(record) + "\n" for record in records))

    def rows(self):
        texts, _ = table.render(self.experiment, table.read_records(self.path))
        return [text.splitlines()[2:] for text in texts.values()]


class Tables(Bench):
    def test_variants_table_values_by_hand(self):
        columns = [LOSS, {**LOSS, "minus": "a"}, {"title": "paper", "paper": "ppl"}]
        self.make(PAIR, [1.0, 1.5, 3.0, 4.5], {"kind": "variants", "columns": columns})
        # Differences by seed: 0.5 and 1.5, of mean 1 and deviation √0.5.
        self.assertEqual(self.rows(), [["| A | 2.0 ± 1.4 | – | – |", "| b | 3.0 ± 2.1 | 1.0 ± 0.7 | 5.9 |"]])

    def test_variants_table_diverged_and_missing_runs_are_counted(self):
        self.make(PAIR, [None, 2.0, 3.0], *({"kind": "variants", "columns": columns} for columns in ([LOSS], "t0")))
        self.assertEqual(self.rows(), [["| A (1 of 2 diverged) | 3.0 |", "| b (1 of 2 runs) | 2.0 |"]] * 2)

    def test_sweep_tables_values_by_hand(self):
        self.make(SWEEP, SWEPT, *({"kind": kind, **LOSS, "within": 0.1, "digits": 2} for kind in ("sweep", "highest")))
        swept, highest = self.rows()
        self.assertEqual(swept[:2], ["| 0.1 | 1.00 ± 0.14 |", "| 0.2 | 1.05 ± 0.07 |"])
        self.assertEqual(swept[2:], ["| 0.4 | 1.20 ± 0.00 |", "| 0.8 | 1.00; diverged at 7 |"])
        # 0.4 is 20% above the best, and a point where one run diverged does not train.
        self.assertEqual(highest, ["| a (1 of 8 diverged) | 0.2 | 1.05 | 0.1 | 1.00 | 1 |"])

    def test_settings_table_lists_shared_options_and_time(self):
        self.make({**PAIR, "seeds": [1]}, [1.0, 2.0], {"kind": "settings"})
        data = {"file": "a.txt", "bytes": 1234, "sha256": "0123456789abcdef" * 4, "date": "today"}
        for record, lr in zip(records := list(table.read_records(self.path).values()), (0.1, 0.2)):
            record |= {"data": data, "seconds": 900.0, "program": {"commit": "c", "version": "9"}}
            record |= {"settings": {"seq_len": 8, "lr": lr, "include": []}, "train": {"match-params": True}}
        self.put(records)
        shown = [row.split(" | ")[1].removesuffix(" |") for row in self.rows()[0]]
        self.assertEqual(shown[0], "a.txt of today, 1 234 bytes; SHA-256 `0123456789abcdef…`")
        self.assertEqual(
            shown[1:], ["match-params, seq-len 8", "1", "headgate train; version 9", "2 of 2; 0.5 h on 1 thread"]
        )

    def test_curve_and_values_tables_by_hand(self):
        specs = [{"kind": "curve", "value": "loss", "rows": 2}, {"kind": "values", "value": "at.{x}.y", "x": [8, 16]}]
        self.make({"seeds": [1, 2], "variants": [{"name": "a"}]}, [1.0, 1.0], *(spec | {"digits": 1} for spec in specs))
        for record, losses in zip(
            records := list(table.read_records(self.path).values()), ([5, 4, 3, 2], [5, 6, 3, 4])
        ):
            record["curve"] = [{"step": 10 * (i + 1), "loss": loss} for i, loss in enumerate(losses)]
            record["at"] = {"8": {"y": losses[1]}, "16": {"y": losses[3]}}
        self.put(records)
        curve, values = self.rows()
        self.assertEqual(curve, ["| 20 | 5.0 ± 1.4 |", "| 40 | 3.0 ± 1.4 |"])
        self.assertEqual(values, ["| 8 | 5.0 ± 1.4 |", "| 16 | 3.0 ± 1.4 |"])


class Figures(Bench):
    def axes(self, block, losses, spec):
        """Returns the axes that a figure of these losses draws on."""
        drawn = matplotlib.figure.Figure().add_subplot()
        self.make(block, losses, {"title": "loss", "value": "eval.loss_nats", **spec})
        with unittest.mock.patch.object(table, "draw", lambda spec, paint, *_, **__: paint(drawn) or "svg"):
            table.render(self.experiment, table.read_records(self.path))
        return drawn

    def test_lines_go_through_the_means_and_crosses_mark_divergence(self):
        axes = self.axes(SWEEP, SWEPT, {"kind": "sweep-figure"})
        line, cross = axes.lines
        self.assertEqual(line.get_xydata().tolist(), [[0.1, 1.0], [0.2, 1.05], [0.4, 1.2], [0.8, 1.0]])
        self.assertEqual((cross.get_xdata().tolist(), cross.get_marker()), ([0.8], "x"))
        corners = {tuple(corner) for corner in axes.collections[0].get_paths()[0].vertices.tolist()}
        self.assertLessEqual({(0.1, 0.9), (0.1, 1.1), (0.2, 1.0), (0.2, 1.1)}, corners)

    def test_bars_reach_from_zero_to_the_mean(self):
        axes = self.axes(PAIR, [1.0, 0.0, 3.0, 0.0], {"kind": "bars-figure", "most": 4})
        self.assertEqual([(bar.get_x(), bar.get_width()) for bar in axes.patches], [(0, 2.0), (0, 0.0)])
        whiskers = [segment[:, 0].tolist() for segment in axes.collections[0].get_segments()]
        self.assertEqual((whiskers, axes.get_xlim()), ([[1.0, 3.0], [0.0, 0.0]], (0, 4)))

    def test_figure_without_records_is_not_drawn(self):
        for kind in ("bars-figure", "curve-figure", "sweep-figure"):
            self.make(SWEEP, [], {"kind": kind, "title": "loss", "value": "eval.loss_nats"})
            self.assertEqual(table.render(self.experiment, {}), ({"t0": "No run is recorded yet.\n"}, {}))


class Pages(Bench):
    def setUp(self):
        super().setUp()
        block = {"seeds": [1], "variants": [{"name": "a", "train": {"lr": 0.1}}, {"name": "b"}]}
        figure = {"kind": "bars-figure", "title": "loss", "value": "eval.loss_nats"}
        self.make(block, [1.0, 2.0], {"kind": "variants", "columns": [LOSS]}, figure)
        self.page, self.figure = self.directory / "README.md", self.directory / "t1.svg"
        self.page.write_text("".join(f"<!-- table:{name} -->\n<!-- /table -->\n" for name in ("t0", "t1")))

    def call(self, *arguments):
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = table.main([*arguments, str(self.directory)])
        return status, err.getvalue()

    def assert_refused(self, words, *arguments):
        status, err = self.call(*arguments)
        self.assertEqual((status, err.count("\n")), (1, 1), err)
        self.assertIn(words, err)

    def test_check_edited_page_or_figure_is_refused(self):
        self.assert_refused("not what the records give", "--check")
        self.assertEqual(self.call(), (0, ""))
        self.assertEqual(self.call("--check"), (0, ""))
        self.assertIn("| a | 1.0 |\n| b | 2.0 |\n", self.page.read_text())
        for path, old, new in ((self.page, "| 1.0", "| 0.9"), (self.figure, "#56b4e9", "#56b4ea")):
            written = path.read_text()
            path.write_text(written.replace(old, new))
            self.assert_refused(f"{path.name}: not what the records give", "--check")
            path.write_text(written)

    def test_check_figure_of_another_matplotlib_is_named_and_not_compared(self):
        self.call()
        self.figure.write_text(re.sub(r"Matplotlib v[\d.]+", "Matplotlib v0.1", self.figure.read_text()))
        status, err = self.call("--check")
        self.assertEqual(status, 0)
        self.assertRegex(err, r"t1\.svg: not compared, drawn by another Matplotlib\n$")

    def test_check_page_without_place_for_a_table_is_refused(self):
        whole = self.page.read_text()
        for text in (whole.replace("t1", "t2"), whole + whole):
            self.page.write_text(text)
            self.assert_refused("must be once in config.json and once in the page")

    def test_config_unknown_key_or_name_is_refused(self):
        path = self.directory / "config.json"
        config = json.loads(path.read_text())
        (block,) = config["blocks"]
        variant = {"name": "a", "lable": "A"}
        for change, words in (
            ({"trian": {}}, "unknown key trian of a config"),
            ({"blocks": [{**block, "seed": [1]}]}, "unknown key seed of a block"),
            ({"blocks": [{**block, "variants": [variant]}]}, "unknown key lable of a variant"),
            ({"tables": [{"name": "t", "kind": "sums", "digit": 1}]}, "unknown key digit of a table"),
            (
                {"tables": [{"name": "t", "kind": "variants", "columns": [{"titel": "T"}]}]},
                "unknown key titel of a column",
            ),
            ({"tables": [{"name": "t", "kind": "settings", "blocks": ["main", "hot"]}]}, "table t: no block hot"),
            ({"blocks": [{**block, "name": "hot"}]}, "table t0: no block main"),
            ({"tables": [{"name": "t", "kind": "variants", "columns": "t0"}]}, "table t: columns names t0, not a"),
            ({"tables": [{"name": "t", "kind": "variants", "columns": "t"}]}, "table t: columns names t, not a"),
        ):
            path.write_text(json.dumps({**config, **change}))
            with self.subTest(words), self.assertRaisesRegex(table.ExperimentError, words):
                table.Experiment(self.directory)

    def test_check_records_that_do_not_fit_are_refused(self):
        a, b = self.experiment.runs
        for change, words in (
            ({"train": {"lr": 0.2}}, "the record of a-seed1 has other options than config.json"),
            ({"run": "c-seed1"}, "no run of config.json makes c-seed1"),
            ({"program": {"version": "2"}}, "block main has records of 1 and 2"),
            ({"data": {"sha256": "1" * 64}}, "different texts"),
        ):
            self.put([{**self.record(a, 1.0), **change}, self.record(b, 2.0)])
            with self.subTest(change):
                self.assert_refused(words)

    def test_check_record_diverged_without_a_version_is_accepted(self):
        """The result of a Python program names the version, and a diverged program writes none."""
        a, b = self.experiment.runs
        self.put([{**self.record(a, None), "program": {"commit": "c"}}, self.record(b, 2.0)])
        self.assertEqual(self.call(), (0, ""))


if __name__ == "__main__":
    unittest.main()
