#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Uses a page of `headgate compare` in Chromium as a reader does: pointer, keyboard, both themes.

    page_test.py --headgate TOOL [--screenshots DIR]
    page_test.py [--screenshots DIR] REPORT.html

Without a report TOOL makes one of made-up runs. Exit status: 0 all checks hold, 1 some do not (a line each), 77 there is no
Chromium or no chromedriver.
"""

import json
import math
import random
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "page"))

import browser as in_browser

SHOWN = "$$('#charts .panel').filter((panel) => panel.querySelector('svg'))"


class CompareChecks(in_browser.Checks):
    def __init__(self, browser, report):
        super().__init__(browser, report)
        self.runs = report["runs"]

    def steps(self):
        return self.opened, self.scales, self.table, self.hover, self.keys, self.legend

    def shading(self):
        return self.browser.value("$$('svg .curve').map((curve) => getComputedStyle(curve).stroke).join()")

    def opened(self):
        value = self.browser.value
        names = value("$$('#cards h2').map((name) => name.textContent)")
        given = [run["name"].split("/")[-1] for run in self.runs]
        self.hold("there is a card for each run, with its name as it is", names == given, names)
        inside = value("$$('#cards b, #cards script, th b, button b, .legend-lines b').length")
        self.hold("no name becomes markup", inside == 0, inside)
        notes = value("$$('#cards .notes').map((note) => note.textContent)")
        self.hold("what is left out of a run is said", notes == [note for run in self.runs for note in run["notes"]], notes)
        panels = value("$$('#charts .panel').map((panel) => [panel.dataset.key, panel.querySelector('.sentence').textContent,"
                       " panel.querySelectorAll('svg > path.curve').length])")
        wanted = [[key, self.sentences[key], sum(key in run["curves"] for run in self.runs)] for key in self.sentences]
        self.hold("there is a chart for each figure, with its sentence and a line for each run that has it",
                  panels == wanted, panels)

    def scales(self):
        self.charts_of_shares("#charts .panel")

    def table(self):
        rows = self.browser.value("$$('#last tbody tr').map((row) => [row.querySelector('.sentence').textContent,"
                                  " [...row.querySelectorAll('td')].map((cell) => cell.firstChild.textContent)])")
        self.hold("the table has each figure's sentence", [row[0] for row in rows] == list(self.sentences.values()), rows)
        lacking = [[run["last"].get(key) is None for run in self.runs] for key in self.sentences]
        self.hold("a figure that a run lacks is shown as –", [[cell == "–" for cell in row[1]] for row in rows] == lacking, rows)
        shown = float(rows[0][1][0])
        last = self.runs[0]["last"][next(iter(self.sentences))]
        self.hold("the table has the last value", abs(shown - last) <= 1e-3 * abs(last), [shown, last])

    def hover(self):
        chart = "#charts .panel svg.chart"
        self.browser.hover(chart, 0.97, 0.4)
        tip = self.browser.value("$('#tip').innerText").split("\n")
        last = max(run["curves"]["loss"]["steps"][-1] for run in self.runs)
        self.hold("hover at a chart's right end shows the last step", tip[0] == f"step {last:,}", tip)
        self.hold("with a line for each run", len(tip) == 1 + len(self.runs), tip)
        loss = self.runs[0]["curves"]["loss"]
        shown = float(tip[1].split(": ")[1].split(" ")[0])
        self.hold("and the run's value there", abs(shown - loss["values"][-1]) <= 1e-3 * shown, [shown, loss["values"][-1]])
        ended = [line for line, run in zip(tip[1:], self.runs) if run["curves"]["loss"]["steps"][-1] < last]
        self.hold("of a run that ended before, the last value with its step", ended and all("(step " in line for line in ended),
                  tip)

    def keys(self):
        self.browser.focus("#charts .panel svg.chart")
        self.browser.press("End", "Home")
        first = self.browser.value("$('#charts svg').getAttribute('aria-valuetext')")
        self.browser.press("Right")
        now, text = self.browser.value(
            "['aria-valuenow', 'aria-valuetext'].map((name) => $('#charts svg').getAttribute(name))")
        self.hold("arrow keys move along a chart", now == "1" and first.startswith("step 1;") and text != first, [now, text])
        self.hold("the focused chart shows its values", self.tip().startswith("step "), self.tip())

    def legend(self):
        def lines():
            return self.browser.value("$$('#charts svg > path.curve').length")

        every, of_first = lines(), len(self.runs[0]["curves"])
        samples = self.browser.value("$$('#runs-legend .curve').map((line) => line.getAttribute('style'))")
        self.hold("every run has a line of its own", len(set(samples)) == len(self.runs), samples)
        self.browser.click("#runs-legend button")
        self.hold("a run's button hides its lines", lines() == every - of_first, [every, lines()])
        pressed = self.browser.value("$('#runs-legend button').getAttribute('aria-pressed')")
        self.hold("and says so", pressed == "false", pressed)
        self.browser.focus("#runs-legend button")
        self.browser.press("Enter")
        self.hold("the Enter key shows them again", lines() == every, lines())


def records(rng, steps, every, gated, sink):
    """Lines of metrics.jsonl: the loss falls, a sink and massive activations grow without a gate."""
    for step in range(1, steps + 1):
        grown = step / steps
        record = {"step": step, "loss": 5.5 * math.exp(-3 * grown) + 1.2 + rng.gauss(0, 0.05), "grad_norm": rng.uniform(0.2, 1.5),
                  "lr": 1e-3 * (1 - grown), "tokens": 1024 * step, "seconds": 0.01, "tokens_per_second": rng.uniform(9e4, 1e5)}
        if step == steps // 2 and sink:
            record.update(loss=9.0, spike=True)
        if step % every == 0:
            record["eval"] = {
                "loss_nats": 5.4 * math.exp(-3 * grown) + 1.25, "first_token_attention": 0.05 + sink * grown,
                "first_token_attention_gated": 0.01 if gated else None, "massive_activation": 3 + 900 * sink * grown ** 3,
                "gate_mean": 0.5 - 0.3 * grown if gated else None, "layers": []}
        yield json.dumps(record) + "\n"


def pages_of(folder, tool):
    """A page of runs that differ in length, in figures and in how they ended, and one with numbers that charts cannot hold."""
    if not tool:
        raise SystemExit("page_test: needs --headgate TOOL or a report")
    rng = random.Random(7)
    made = {"plain": (3000, 100, False, 0.6), "gated": (3000, 100, True, 0.02), "<b>short & cut": (900, 150, True, 0.1)}
    texts = {name: "".join(records(rng, *shape))[:-30 if "cut" in name else None] for name, shape in made.items()}
    extremes = "".join(
        json.dumps({"step": step, "loss": value, "grad_norm": value and abs(value), "eval": {"perplexity": value}}) + "\n"
        for step, value in ((1, 1.7e308), (2, -1.7e308), (3, None), (4, 5e-324)))
    return [page_of_runs(folder, tool, "compare", texts),
            page_of_runs(folder, tool, "extremes", {**texts, "extremes": extremes})]


def page_of_runs(folder, tool, name, texts):
    runs = [Path(folder) / name / run for run in texts]
    for run, text in zip(runs, texts.values()):
        run.mkdir(parents=True)
        (run / "metrics.jsonl").write_text(text, encoding="utf-8")
    page = Path(folder) / f"{name}.html"
    subprocess.run([tool, "compare", *runs, "--out", page, "--points", "300"], check=True)
    return page


if __name__ == "__main__":
    in_browser.run(__doc__, CompareChecks, pages_of)
