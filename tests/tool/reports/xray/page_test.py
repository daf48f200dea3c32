#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Uses a report of `headgate xray` in Chromium as a reader does: pointer, keyboard, both themes.

    page_test.py --headgate TOOL [--screenshots DIR]
    page_test.py [--screenshots DIR] REPORT.html

Without a report TOOL makes two, of models that it trains. Exit status: 0 all checks hold, 1 some do not (a line each), 77
there is no Chromium or no chromedriver.
"""

import base64
import copy
import json
import re
import shutil
import struct
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "page"))

import browser as in_browser

# Moves over the layers of each chart with the keyboard. Returns what it says there, and how many markers it draws.
WALK = """
return [...document.querySelectorAll("#layer-charts .panel")].map((panel) => {
  const chart = panel.querySelector("svg.chart");
  const press = (key) => {
    chart.dispatchEvent(new KeyboardEvent("keydown", {key}));
    return [chart.getAttribute("aria-valuetext"), chart.querySelectorAll("g path[transform]").length];
  };
  const said = Array.from({length: arguments[0]}, (_, layer) => press(layer ? "ArrowRight" : "Home"));
  return [panel.dataset.key, said, press("End")];
});"""
LONG = 200_000  # tokens of a text that has its own checks

MARGIN = 58  # of the attention map, in page.js
BARS = "first_token_attention", "first_token_attention_gated"
UNIFORM = "first_token_attention_uniform"
SPECIAL = "<b>", "</b>", "<script>", "</script>", " is", "\r\n"  # tokens of more than a byte


class XrayChecks(in_browser.Checks):
    def __init__(self, browser, report):
        super().__init__(browser, report)
        self.models = report["models"]

    def steps(self):
        return (
            self.opened,
            self.verdicts,
            self.bars,
            self.scales,
            self.charts,
            self.every_layer,
            self.kinds,
            self.maps,
            self.worth,
            self.pattern,
            self.one_head,
            self.text,
        )

    def head(self):
        """Returns model, layer and head that the page shows, from its selects."""
        return [int(value) for value in self.browser.value("$$('#head select').map((select) => select.value)")]

    def open(self, model, layer, head):
        self.browser.value(f"location.hash = '#model={model}&layer={layer}&head={head}'")
        time.sleep(0.2)

    def shading(self):
        return self.browser.value("$$('#tokens span').map((span) => span.style.backgroundColor).join()")

    def choose_map(self, key):
        self.browser.value(
            "($('#map-key').value = arguments[0], $('#map-key').dispatchEvent(new Event('change')))", key
        )

    def opened(self):
        value = self.browser.value
        columns = value("$$('#headline thead th').length - 1")
        self.hold("the headline has a column for each model", columns == len(self.models), columns)
        rows = value(
            "$$('#headline tbody tr').map((row) => "
            "[row.querySelector('.sentence').textContent, row.querySelectorAll('td').length])"
        )
        given = set(self.sentences.values())
        self.hold(
            "each row of the headline has the report's sentence", rows and all(row[0] in given for row in rows), rows
        )
        self.hold("each row has a value for each model", all(row[1] == len(self.models) for row in rows), rows)
        dashes = value("$$('#headline td[title]').map((cell) => cell.textContent)")
        none = any(
            model["figures"].get(key) is None and any(other["figures"].get(key) is not None for other in self.models)
            for model in self.models
            for key in self.sentences
        )
        self.hold("a figure that a model lacks is shown as –", set(dashes) == ({"–"} if none else set()), dashes)
        heads = [sum(len(row) for row in model["heads"]) for model in self.models]
        cells = value("$$('#maps .panel').map((panel) => panel.querySelectorAll('[role=gridcell]').length)")
        self.hold(
            "there is a map for each model, and a cell for each head",
            len(cells) == len(heads) and any(cells) and all(a in (b, 0) for a, b in zip(cells, heads)),
            cells,
        )

    def verdicts(self):
        """Checks that each model's verdict stands first, and the map of heads before all charts and tables."""
        shown = self.browser.value("$$('#cards .verdict').map((verdict) => verdict.textContent)")
        self.hold("each card has the verdict", shown == [model["verdict"] for model in self.models], shown)
        facts = self.browser.value("$$('#cards .facts').map((facts) => facts.textContent)")
        for model, text in zip(self.models, facts):
            for kind in set(model["layer_types"]):
                rows = [row for row, one in zip(model["heads"], model["layer_types"]) if one == kind]
                heads = "/".join(dict.fromkeys(str(len(row)) for row in rows))
                words = "value heads" if kind == "linear_attention" else "heads"
                self.hold("a card names each number of heads", f" × {heads} {words}" in text, text)
                self.hold(
                    "and heads of keys and values where there is one number",
                    len(set(map(len, rows))) == 1 or "of keys and values" not in text,
                    text,
                )
        order = self.browser.value("$$('main > section').map((section) => section.id)")
        self.hold("the map of heads follows the verdicts", order[:2] == ["summary", "heads"], order)

    def bars(self):
        """Checks that shares are drawn from 0 to 1, however large the largest is, with the uniform value in them."""
        drawn = self.browser.value(
            "$$('#cards .card').map((card) => [...card.querySelectorAll('.track')].map((track) =>"
            " [...track.children].map((part) => (part.className === 'uniform' ? part.offsetLeft : part.offsetWidth)"
            " / track.clientWidth)))"
        )
        wanted = [
            [
                [model["figures"][key], model["figures"][UNIFORM]]
                for key in BARS
                if model["figures"].get(key) is not None
            ]
            for model in self.models
        ]
        near = [
            abs(part - share) < 0.02
            for bars, shares in zip(drawn, wanted)
            for parts, pair in zip(bars, shares)
            for part, share in zip(parts, pair)
        ]
        self.hold(
            "a bar is as long as its share of attention",
            [len(bars) for bars in drawn] == [len(bars) for bars in wanted] and near and all(near),
            [drawn, wanted],
        )
        note = self.browser.value("$('#bars-note').textContent")
        self.hold("the note names the scale of the bars", note.startswith("Bars go from 0 to 1."), note)
        charts = self.browser.value(
            "$$('#layer-charts .panel').map((panel) => [panel.dataset.key, panel.querySelectorAll('.reference').length])"
        )
        dashed = [key for key, lines in charts if lines]
        self.hold(
            "uniform attention is a line in the chart of the first token's, and no chart",
            dashed == list(BARS[:1]) and UNIFORM not in dict(charts),
            charts,
        )
        keys = self.browser.value(
            "$$('#top-keys button').map((key) => [parseFloat(key.style.getPropertyValue('--share')),"
            " Number(key.lastChild.textContent.replace('<', ''))])"
        )
        self.hold(
            "the bar of a key that receives most is as long as its weight",
            keys and all(abs(bar / 100 - share) < 0.01 for bar, share in keys),
            keys,
        )

    def scales(self):
        """Checks that charts by layer and maps of heads end at 1 for shares, and only for those."""
        self.charts_of_shares("#layer-charts .panel")
        keys = self.browser.value("[...$('#map-key').options].map((option) => option.value)")
        scales = {}
        for key in keys:
            self.choose_map(key)
            scales[key] = self.browser.value("$$('#map-legend span').map((label) => label.textContent)")
        shares = [key for key in keys if key in self.shares]
        self.hold(
            "maps of shares are coloured from 0 to 1",
            shares and all(scales[key] == ["0", "0.5", "1"] for key in shares),
            scales,
        )
        others = [key for key in keys if key not in self.shares]
        self.hold(
            "maps of other figures have scales of their own",
            others
            and all(len(scales[key]) == 3 for key in others)
            and any(scales[key] != ["0", "0.5", "1"] for key in others),
            scales,
        )
        self.choose_map(keys[0])

    def charts(self):
        self.browser.hover("#layer-charts svg", 0.5, 0.4)
        tip = self.tip()
        self.hold("hover over a layer chart shows a layer and its values", tip.startswith("layer ") and ":" in tip, tip)
        self.browser.focus("#layer-charts svg")
        self.browser.press("Home", "Right")
        now, text = self.browser.value(
            "['aria-valuenow', 'aria-valuetext'].map((name) => $('#layer-charts svg').getAttribute(name))"
        )
        self.hold(
            "arrow keys move along a layer chart", now == "1" and text.startswith(self.layer_name(1) + ";"), [now, text]
        )
        self.hold("the focused chart shows its values", self.tip().startswith(self.layer_name(1) + "\n"), self.tip())

    def every_layer(self):
        """Checks that each chart shows the report's number at every layer, and none where a model has none."""
        most = max(model["layers"] for model in self.models)

        def wanted(key):
            columns = [[row.get(key) for row in model["layer_figures"]] for model in self.models]
            columns = [column for column in columns if any(value is not None for value in column)]
            return [[(column + [None] * most)[layer] for column in columns] for layer in range(most)]

        def agrees(text, value):
            if value is None or not re.fullmatch(r"[-−0-9.,e]+( tokens)?", text):
                return value is None and text == "–"
            return abs(in_browser.parsed(text.removesuffix(" tokens")) - value) <= 0.06 * abs(value)

        for key, said, end in self.browser.script(WALK, most):
            for layer, ((text, markers), values) in enumerate(zip(said, wanted(key))):
                place, *shown = text.split("; ")
                self.hold(
                    "a chart shows each layer's own numbers",
                    place == self.layer_name(layer)
                    and len(shown) == len(values)
                    and all(map(agrees, (line.rpartition(": ")[2] for line in shown), values))
                    and markers == sum(value is not None for value in values),
                    [key, text, markers, values],
                )
            self.hold("a chart ends at the last layer of the deepest model", end == said[-1], [key, end])
        self.browser.value("document.activeElement.blur()")

    def layer_name(self, layer):
        """Returns how charts name a layer: with its type in models whose layers differ."""
        types = [
            f"{model['layer_types'][layer].replace('_', ' ')} in {name}"
            for model, name in zip(self.models, self.browser.value("$$('#cards h2').map((card) => card.textContent)"))
            if len(set(model["layer_types"])) > 1
        ]
        return f"layer {layer} ({', '.join(types)})" if types else f"layer {layer}"

    def kinds(self):
        """Checks the list of layers of models whose layers differ, and the chart of how far they look."""
        drawn = self.browser.value("$$('#layer-lists li').map((layer) => layer.className.replace('kind ', ''))")
        mixed = [model["layer_types"] for model in self.models if len(set(model["layer_types"])) > 1]
        self.hold("layers that differ are listed in order with their types", drawn == sum(mixed, []), drawn)
        title = self.browser.value("$('#layer-charts h3').textContent")
        self.hold("the first chart shows how far layers look", title == "How far each layer looks", title)
        points = self.browser.value("$$('#layer-charts .far svg > path[transform]').length")
        layers = sum(len(model["layer_types"]) for model in self.models)
        self.hold("it has a point for each layer of each model", points == layers, points)
        for index, model in enumerate(self.models):
            for layer in (kind for kind in range(len(model["layer_types"])) if mixed):
                self.open(index, layer, 0)
                linear = model["layer_types"][layer] == "linear_attention"
                text = self.browser.value("$('#pattern-sentence').textContent")
                self.hold("the map says which weights it shows", ("softmax" in text) != linear, text)

    def maps(self):
        last = len(self.models) - 1
        heads = self.models[last]["heads"]
        layer = min(1, len(heads) - 1)
        head = len(heads[layer]) - 1
        panel = f"#maps .panel[data-model='{last}']"
        cell = f"{panel} [data-layer='{layer}'][data-head='{head}']"
        self.browser.hover(cell)
        tip = self.tip()
        self.hold(
            "hover over a cell shows its layer, head and value", tip.startswith(f"layer {layer}, head {head}\n"), tip
        )
        self.browser.click(cell)
        self.hold("a click on a cell opens its head", self.head() == [last, layer, head], self.head())
        time.sleep(1)
        top = self.browser.value("$('#head').getBoundingClientRect().top")
        self.hold("the opened head scrolls into view", abs(top) < 400, top)
        address = self.browser.value("location.hash")
        self.hold("the address keeps the head", address == f"#model={last}&layer={layer}&head={head}", address)
        self.browser.focus(f"{panel} [aria-selected='true']")
        self.browser.press("Right", "Up")
        self.browser.press("Enter")
        wanted = [last, min(layer + 1, len(heads) - 1), max(head - 1, 0)]
        self.hold("arrow keys and Enter open a head", self.head() == wanted, self.head())
        time.sleep(1)

        keys = self.browser.value("[...$('#map-key').options].map((option) => option.value)")
        shown = {}
        for key in keys:
            self.choose_map(key)
            shown[key] = self.browser.value("$('#map-sentence').textContent")
        self.hold(
            "the select shows each figure's maps with its sentence",
            keys and all(sentence == self.sentences.get(key, "") for key, sentence in shown.items()),
            shown,
        )
        self.choose_map(keys[0])

    def worth(self):
        """Checks the maps of what heads are worth, if the report has them."""
        kinds = next((model["overrides"]["kinds"] for model in self.models if model.get("overrides")), [])
        drawn = [
            kind
            for kind in kinds
            if any(
                row.get(kind["figure"]) is not None
                for model in self.models
                for layer in model["head_figures"]
                for row in layer
            )
        ]
        words = self.browser.value("$('#worth').hidden ? [] : $$('#worth button').map((button) => button.textContent)")
        self.hold("there is a button for each override of heads", words == [kind["word"] for kind in drawn], words)
        for kind in drawn:
            key = kind["figure"]
            self.browser.click(f"#worth button[data-key='{key}']")
            shown = self.browser.value(
                "[$('#map-key').value, $('#map-sentence').textContent, $('#worth [aria-pressed=true]')?.dataset.key]"
            )
            self.hold("a button draws its maps, with the sentence", shown == [key, self.sentences[key], key], shown)
            for index, model in enumerate(self.models):
                self.worth_of(index, model, kind)

    def worth_of(self, index, model, kind):
        panel = f"#maps .panel[data-model='{index}']"
        note = self.browser.value("$(arguments[0])?.textContent ?? ''", f"{panel} .override")
        mine = next(one for one in model["overrides"]["kinds"] if one["word"] == kind["word"])
        if mine["left_out"]:
            cells = self.browser.value("$$(arguments[0]).length", f"{panel} [role=gridcell]")
            self.hold("a model without the override says why", mine["left_out"] in note and not cells, [note, cells])
            return
        self.hold("a map says on how many tokens", f" {model['overrides']['tokens']} tokens" in note, note)
        rises = [
            (row[kind["figure"]], layer, head)
            for layer, rows in enumerate(model["head_figures"])
            for head, row in enumerate(rows)
            if row[kind["figure"]] is not None
        ]
        colours = {}
        for rise, layer, head in (max(rises), min(rises)):
            cell = f"{panel} [data-layer='{layer}'][data-head='{head}']"
            colours[rise] = self.browser.value("$(arguments[0]).style.backgroundColor.match(/\\d+/g).map(Number)", cell)
        for rise, (red, _, blue) in colours.items():
            stays = rise == 0 or min(rises)[0] >= 0
            self.hold(
                "a rise of the loss is blue and a fall is orange",
                stays or (blue >= red) == (rise > 0) or abs(rise) < 0.5 * max(map(abs, colours)),
                [rise, colours],
            )
        _, layer, head = max(rises)
        self.browser.click(f"{panel} [data-layer='{layer}'][data-head='{head}']")
        self.hold("a click on the head that is needed most opens it", self.head() == [index, layer, head], self.head())
        figures = self.browser.value("$('#head-figures').textContent")
        self.hold("the head's figures have it", self.sentences[kind["figure"]] in figures)
        time.sleep(1)

    def pattern(self):
        model, layer, head = self.head()
        one = self.models[model]
        size, count, text = one["map_size"], one["tokens"], one["text"]
        width = self.browser.value("$('#pattern').clientWidth")

        def share(cell):
            return (MARGIN + (cell + 0.5) * (width - MARGIN) / size) / width

        row, column = size // 2, min(3, size // 4)
        self.browser.hover("#pattern", share(column), share(row))
        tip = self.tip()
        query, key = row * count // size, column * count // size
        self.hold(
            "hover over the map shows the query's and the key's token",
            all(str(token) in tip and text[token].strip() in tip for token in (query, key)),
            tip,
        )
        shown = next((line.split()[-1] for line in tip.splitlines() if "eight " in line), "nan").replace("e−", "e-")
        weight = (base64.b64decode(one["heads"][layer][head]["map"])[row * (row + 1) // 2 + column] / 255) ** 2
        self.hold("hover over the map shows the weight", abs(float(shown) - weight) <= 0.06 * weight, [shown, weight])
        self.browser.hover("#pattern", share(size - 1), share(0))
        self.hold("hover over a later key says that it is not seen", "Not seen" in self.tip(), self.tip())
        self.browser.hover("#head-title")
        time.sleep(0.2)

        last = base64.b64decode(one["heads"][layer][head]["map"])[-size:-1]  # the last row, but for the diagonal
        cells = [(size - 1, last.index(min(last))), (size - 1, last.index(max(last)))]
        cells += [(row, column) for row in range(0, size, 5) for column in range(row + 1, size, 7)]
        least, most, *later = self.browser.script(
            """
            const {width, height} = document.getElementById('pattern');
            const pixels = document.getElementById('pattern').getContext('2d').getImageData(0, 0, width, height).data;
            return arguments[0].map(([x, y]) => 4 * (Math.floor(y * height) * width + Math.floor(x * width)))
              .map((at) => pixels[at] + pixels[at + 1] + pixels[at + 2]);""",
            [(share(column), share(row)) for row, column in cells],
        )
        self.hold("larger weights are darker on the light page", least > most, [least, most])
        self.hold("the map is empty where keys come after the query", len(set(later)) == 1, set(later))

        image = "$('#pattern').toDataURL()"
        self.browser.value("document.activeElement.blur()")
        self.browser.hover("#pattern")
        whole = self.browser.value(image)
        self.browser.wheel("#pattern", -100)
        time.sleep(0.2)
        self.browser.hover("#pattern")
        self.hold("the wheel does not zoom a map without focus", self.browser.value(image) == whole)
        self.browser.click("#pattern")
        self.browser.wheel("#pattern", -300)
        time.sleep(0.2)
        self.hold("the wheel zooms the focused map", self.browser.value(image) != whole)
        self.browser.hover("#pattern", 0.5, 0.6)
        before = self.browser.value("$('#pattern-cell').textContent")
        self.browser.drag(60, 40)
        self.browser.hover("#pattern", 0.5, 0.6)
        after = self.browser.value("$('#pattern-cell').textContent")
        self.hold("dragging moves the zoomed map", after != before, after)
        self.browser.click("#zoom-all")
        self.browser.focus("#pattern")
        self.browser.press("Home", "Down", "Down", "Right")
        readout = self.browser.value("$('#pattern-cell').textContent")
        query, key = 2 * count // size, count // size
        self.hold(
            "arrow keys move over the map's cells",
            all(word in readout for word in ("eight ", f" {query}", f" {key}")),
            readout,
        )
        time.sleep(0.2)
        whole = self.browser.value(image)
        self.browser.press("+", "+")
        time.sleep(0.2)
        self.hold("the key + zooms the map", self.browser.value(image) != whole)
        self.browser.press("0")
        time.sleep(0.2)
        self.hold("the key 0 shows all of it", self.browser.value(image) == whole)

    def one_head(self):
        start = self.head()
        self.browser.click("#head-next")
        self.hold("Next opens the next head", self.head() != start, self.head())
        self.browser.click("#head-previous")
        self.hold("Previous goes back", self.head() == start, self.head())
        for index, one in enumerate(self.models):
            self.open(index, 0, 0)
            self.hold("an address opens its head", self.head() == [index, 0, 0], self.head())
            drawn = self.browser.value("['#gate-tokens svg', '#gate-histogram svg'].map((chart) => $$(chart).length)")
            wanted = [int(one["heads"][0][0][part] is not None) for part in ("gate", "gate_histogram")]
            self.hold(f"model {index}: the gate is drawn if there is one", drawn == wanted, drawn)
        self.browser.click("#top-keys button")
        marked = self.browser.value(
            "[$('#tokens [aria-selected=true]'), $('#top-keys button')].map((node) => node?.dataset.token)"
        )
        self.hold("a key of the list is marked in the text", marked[0] == marked[1], marked)

    def text(self):
        model = self.models[self.head()[0]]
        shown = self.browser.value("$$('#tokens span').map((span) => span.textContent)")
        self.hold("the text has a span for each token", len(shown) == model["tokens"], len(shown))
        self.hold(
            "the tokens are shown as they are",
            all(
                piece == "" or span.replace("↵", "") == piece.replace("↵", "")
                for span, piece in zip(shown, model["text"])
            ),
        )
        inside = self.browser.value("$$('#tokens span *, #top-keys code *').length")
        self.hold("no token becomes markup", inside == 0, inside)

        shades = {}
        for kind in ("received", "gate", "loss"):
            if not self.browser.value("$(`[data-shade=${arguments[0]}]`).disabled", kind):
                self.browser.click(f"[data-shade='{kind}']")
                shades[kind] = self.shading()
        self.hold(
            "each button shades the text in its own way", len(set(shades.values())) == len(shades) >= 2, list(shades)
        )
        self.browser.click("[data-shade='received']")
        self.colours_of_text(model)
        scopes = set()
        for scope in ("head", "layer", "all"):
            self.browser.click(f"[data-scope='{scope}']")
            scopes.add(self.shading())
        self.hold("head, layer and model shade the text in their own ways", len(scopes) == 3, len(scopes))
        self.browser.hover("#tokens span:nth-child(6)")
        tip = self.tip()
        self.hold(
            "hover over a token shows its number and figures", tip.startswith("token 5 ") and "received" in tip, tip
        )
        self.browser.focus("#tokens span[tabindex='0']")
        self.browser.press("Home", "Right", "Right", "Enter")
        marked = self.browser.value("$('#tokens [aria-selected=true]')?.dataset.token")
        self.hold("arrow keys and Enter mark a token", marked == "2", marked)
        self.browser.press("Enter")
        marked = self.browser.value("$$('#tokens [aria-selected=true]').length")
        self.hold("Enter takes the mark away again", marked == 0, marked)

    def colours_of_text(self, model):
        """Checks that a colour means the same in every text: it follows the weight, not its share of the largest."""
        self.browser.click("[data-scope='head']")
        _, layer, head = self.head()
        received = base64.b64decode(model["heads"][layer][head]["received"])
        labels = self.browser.value("$$('#text-legend span').map((label) => label.textContent)")
        self.hold("the text's colours go from 0 to 1", labels == ["0", "0.25", "1"], labels)
        drawn = self.browser.script(
            "return [...document.querySelectorAll('#tokens span')].map((span) => span.style.backgroundColor)"
        )
        scale = self.browser.script(
            "const style = getComputedStyle(document.querySelector('#text-legend i')).backgroundImage;"
            "return style.match(/rgb\\([^)]*\\)/g)"
        )

        def rgb(text):
            return [int(part) for part in text[4:-1].split(",")]

        def far(byte, colour):
            at = byte / 255 * (len(scale) - 1)
            low = min(int(at), len(scale) - 2)
            wanted = [a + (b - a) * (at - low) for a, b in zip(rgb(scale[low]), rgb(scale[low + 1]))]
            return max(abs(a - b) for a, b in zip(wanted, rgb(colour)))

        most = max(map(far, received, drawn))
        self.hold("a token has the colour of its weight on that scale", most <= 12, most)


class LongChecks(XrayChecks):
    """Checks of a text that is too long for the others' time."""

    def run(self, screenshots):
        shown = self.browser.value("$$('#tokens span').length")
        self.hold("a long text has a span for each token", shown == LONG, shown)
        self.open(0, 0, 0)
        self.hold("its head is open", self.head() == [0, 0, 0], self.head())


def checks_of(browser, report):
    return (LongChecks if report["models"][0]["tokens"] == LONG else XrayChecks)(browser, report)


def write_text(folder):
    """Writes line breaks, quotes, tags, letters of several bytes."""
    text = folder / "text"
    text.write_text(
        "What the gate lets through, Stra\u00dfe, \u732b\u306f and </script> among it, is 1 < 2 & more.\r\n"
        "\u201cWho\t<b>is</b> it?\u201d <script>alert('no')</script> is text\n" * 60,
        encoding="utf-8",
    )
    return text


def train(headgate, run, text):
    """Trains a run of a few steps with the gate that `run` is named after. Its vocabulary has room for SPECIAL."""
    subprocess.run(
        [
            headgate,
            "train",
            "--data",
            text,
            "--out",
            run,
            "--gate",
            run.name,
            "--layers",
            "2",
            "--dim",
            "16",
            "--heads",
            "2",
            "--seq-len",
            "64",
            "--vocab",
            str(256 + len(SPECIAL)),
            "--batch",
            "2",
            "--steps",
            "20",
            "--eval-tokens",
            "64",
        ],
        check=True,
        stdout=subprocess.DEVNULL,
    )


def with_tokenizer(run, model):
    """Adds a tokenizer to the run's model, which reads the bytes of a text except SPECIAL."""
    shutil.copytree(run / "checkpoint", model, ignore=shutil.ignore_patterns("trainer*"))
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]  # the letters of byte-level BPE, GPT-2's
    letters = visible + [256 + n for n in range(256 - len(visible))]
    tokenizer = {
        "model": {"type": "BPE", "vocab": {chr(letter): id for id, letter in enumerate(letters)}, "merges": []},
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
        "added_tokens": [{"id": 256 + n, "content": content, "normalized": False} for n, content in enumerate(SPECIAL)],
    }
    (model / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    return model


def numbers_of(shape):
    """Returns small numbers in f32, which differ."""
    count = 1
    for size in shape:
        count *= size
    return struct.pack(f"<{count}f", *((i * 37 % 101 - 50) / 200 for i in range(count)))


def made_hybrid(model):
    """Puts Gated DeltaNet in place of attention in a model's first layer."""
    prefix = "model.layers.0."
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    dim, heads, features, taps = config["hidden_size"], 3, 4, 2
    channels = (2 + heads) * features  # one head of q and k
    config |= {
        "layer_types": ["linear_attention", "full_attention"],
        "linear_num_key_heads": 1,
        "linear_num_value_heads": heads,
        "linear_key_head_dim": features,
        "linear_value_head_dim": features,
        "linear_conv_kernel_dim": taps,
    }
    data = (model / "model.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header, data = json.loads(data[8 : 8 + length]), data[8 + length :]
    tensors = {
        name: (entry["shape"], data[slice(*entry["data_offsets"])])
        for name, entry in header.items()
        if name != "__metadata__" and not name.startswith(prefix + "self_attn.")
    }
    for name, shape in {
        "in_proj_qkv.weight": [channels, dim],
        "in_proj_z.weight": [heads * features, dim],
        "in_proj_b.weight": [heads, dim],
        "in_proj_a.weight": [heads, dim],
        "conv1d.weight": [channels, taps],
        "A_log": [heads],
        "dt_bias": [heads],
        "norm.weight": [features],
        "out_proj.weight": [dim, heads * features],
    }.items():
        tensors[prefix + "linear_attn." + name] = (shape, numbers_of(shape))
    header, at = {}, 0
    for name, (shape, values) in tensors.items():
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + len(values)]}
        at += len(values)
    text = json.dumps(header).encode()
    (model / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (model / "model.safetensors").write_bytes(
        struct.pack("<Q", len(text)) + text + b"".join(values for _, values in tensors.values())
    )
    return model


def deeper(model):
    """Returns a copy of a report's model with three layers, which differ in heads, without attention to the first token."""
    out, heads = copy.deepcopy(model), (2, 1, 4)
    out |= {"name": "deeper", "layers": len(heads), "layer_types": ["full_attention"] * len(heads)}
    for key in ("heads", "head_figures"):
        out[key] = [copy.deepcopy((model[key][0] * 2)[:count]) for count in heads]
    out["layer_figures"] = [copy.deepcopy(model["layer_figures"][layer % 2]) for layer in range(len(heads))]
    out["layer_text"]["received"] = model["layer_text"]["received"][:1] * len(heads)
    for row in (out["figures"], *out["layer_figures"], *sum(out["head_figures"], [])):
        row |= dict.fromkeys(row.keys() & set(BARS))
    return out


def longer(model):
    """Returns a copy of a report's model with one head and LONG tokens."""
    out, bytes_of = copy.deepcopy(model), lambda count: base64.b64encode(bytes(count)).decode()
    head = model["heads"][0][0] | {"map": bytes_of(1), "received": bytes_of(LONG), "gate": None}
    out |= {"layers": 1, "map_size": 1, "tokens": LONG, "text": ["a"] * LONG, "token_losses": [1.0] * LONG}
    out |= {"heads": [[head]], "head_figures": [model["head_figures"][0][:1]]}
    out |= {key: model[key][:1] for key in ("layer_types", "layer_figures")}
    out["layer_text"] = {"gate": None, "received": [head["received"]]}
    return out


def saved_pages(folder, tool, run, text):
    """Makes pages of saved reports: a run beside a deeper model, and a model of a long text."""
    made = folder / "made.json"
    subprocess.run([tool, "xray", run, "--text", text, "--json-out", made], check=True, stdout=subprocess.DEVNULL)
    report = json.loads(made.read_text(encoding="utf-8"))
    (model,) = report["models"]
    for name, models in (("deeper", [deeper(model), model]), ("longer", [longer(model)])):
        made.write_text(json.dumps(report | {"models": models}), encoding="utf-8")
        page = folder / f"{name}.html"
        subprocess.run([tool, "xray", "--from", made, "--out", page], check=True, stdout=subprocess.DEVNULL)
        yield page


def pages_of(folder, tool):
    """Makes a page of two runs with overrides, one of a model with a tokenizer whose maps are coarser than its text, and
    one of a model whose layers differ beside a run. Adds the pages of saved reports.
    """
    if not tool:
        raise SystemExit("page_test: needs --headgate TOOL or a report")
    folder = Path(folder)
    text, runs, pages = write_text(folder), [folder / gate for gate in ("none", "headwise")], []
    for run in runs:
        train(tool, run, text)
    of_tokens = [with_tokenizer(runs[1], folder / "<b>headwise & tokens")]
    mixed = [*of_tokens, made_hybrid(with_tokenizer(runs[1], folder / "hybrid"))]
    for name, models, more in (
        ("runs", runs, ["--override", "heads"]),
        ("tokens", of_tokens, ["--map", "32"]),
        ("mixed", mixed, ["--override", "heads"]),
    ):
        pages.append(folder / f"{name}.html")
        subprocess.run([tool, "xray", *models, "--text", text, "--out", pages[-1], *more], check=True)
    return [*pages, *saved_pages(folder, tool, runs[0], text)]


if __name__ == "__main__":
    in_browser.run(__doc__, checks_of, pages_of)
