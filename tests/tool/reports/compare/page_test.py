#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Uses a page of `headgate compare` in Chromium as a reader does: pointer, keyboard, both themes.

    page_test.py --headgate TOOL [--screenshots DIR]
    page_test.py [--screenshots DIR] REPORT.html

Without a report TOOL trains runs and compares them. Exit status: 0 all checks hold, 1 some do not (a line each), 77 there is no
Chromium or no chromedriver.
"""

import json
import random
import string
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "page"))

import browser as in_browser


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
        self.hold(
            "what is left out of a run is said", notes == [note for run in self.runs for note in run["notes"]], notes
        )
        panels = value(
            "$$('#charts .panel').map((panel) => [panel.dataset.key, panel.querySelector('.sentence').textContent,"
            " panel.querySelectorAll('svg > path.curve').length])"
        )
        wanted = [[key, self.sentences[key], sum(key in run["curves"] for run in self.runs)] for key in self.sentences]
        self.hold(
            "there is a chart for each figure, with its sentence and a line for each run that has it",
            panels == wanted,
            panels,
        )

    def scales(self):
        self.charts_of_shares("#charts .panel")

    def table(self):
        rows = self.browser.value(
            "$$('#last tbody tr').map((row) => [row.querySelector('.sentence').textContent,"
            " [...row.querySelectorAll('td')].map((cell) => cell.firstChild.textContent)])"
        )
        self.hold(
            "the table has each figure's sentence", [row[0] for row in rows] == list(self.sentences.values()), rows
        )
        lacking = [[run["last"].get(key) is None for run in self.runs] for key in self.sentences]
        self.hold(
            "a figure that a run lacks is shown as –",
            [[cell == "–" for cell in row[1]] for row in rows] == lacking,
            rows,
        )
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
        self.hold(
            "and the run's value there", abs(shown - loss["values"][-1]) <= 1e-3 * shown, [shown, loss["values"][-1]]
        )
        ended = [line for line, run in zip(tip[1:], self.runs) if run["curves"]["loss"]["steps"][-1] < last]
        self.hold(
            "of a run that ended before, the last value with its step",
            ended and all("(step " in line for line in ended),
            tip,
        )

    def keys(self):
        self.browser.focus("#charts .panel svg.chart")
        self.browser.press("End", "Home")
        first = self.browser.value("$('#charts svg').getAttribute('aria-valuetext')")
        self.browser.press("Right")
        now, text = self.browser.value(
            "['aria-valuenow', 'aria-valuetext'].map((name) => $('#charts svg').getAttribute(name))"
        )
        self.hold(
            "arrow keys move along a chart", now == "1" and first.startswith("step 1;") and text != first, [now, text]
        )
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


def train(tool, run, text, gate, steps, every):
    """Trains a small model, for a second at most."""
    subprocess.run(
        [
            tool,
            "train",
            "--data",
            text,
            "--out",
            run,
            "--gate",
            gate,
            "--steps",
            str(steps),
            "--eval-every",
            str(every),
            "--eval-tokens",
            "256",
            "--layers",
            "1",
            "--dim",
            "16",
            "--heads",
            "2",
            "--seq-len",
            "32",
            "--batch",
            "2",
            "--threads",
            "1",
        ],
        check=True,
        stdout=subprocess.DEVNULL,
    )


def write_text(path):
    """Writes the same words repeatedly, which a model soon learns; random letters among them make its loss jump."""
    rng = random.Random(7)
    words = ["What the gate lets through is for the next layer to read.\n"] * 2000
    words[1000] = "".join(rng.choices(string.printable, k=200))
    path.write_text("".join(words), encoding="utf-8")
    return path


def write_extremes(run):
    """Writes a run whose numbers exceed what charts can hold; no trainer writes them."""
    run.mkdir()
    lines = [
        {"step": step, "loss": value, "grad_norm": value and abs(value), "eval": {"perplexity": value}}
        for step, value in ((1, 1.7e308), (2, -1.7e308), (3, None), (4, 5e-324))
    ]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return run


def pages_of(folder, tool):
    """Makes a page of runs that differ in length, in figures and in how they ended, and one with extreme numbers."""
    if not tool:
        raise SystemExit("page_test: needs --headgate TOOL or a report")
    folder = Path(folder)
    text = write_text(folder / "text")
    runs = [folder / name for name in ("plain", "gated", "<b>short & cut")]
    for run, shape in zip(runs, (("none", 3000, 100), ("headwise", 3000, 100), ("headwise", 900, 150))):
        train(tool, run, text, *shape)
    cut = runs[-1] / "metrics.jsonl"  # as a run that is killed leaves it
    cut.write_bytes(cut.read_bytes()[:-30])
    pages = {"compare": runs, "extremes": [*runs, write_extremes(folder / "extremes")]}
    for name, of_page in pages.items():
        subprocess.run([tool, "compare", *of_page, "--out", folder / f"{name}.html", "--points", "300"], check=True)
    return [folder / f"{name}.html" for name in pages]


if __name__ == "__main__":
    in_browser.run(__doc__, CompareChecks, pages_of)
