#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Uses a report of `headgate xray` in Chromium as a reader does: pointer, keyboard, both themes.

    page_test.py [--screenshots DIR] [REPORT.html]

Without a report it makes one with page_fixture.py. Speaks the WebDriver protocol to chromedriver, headless. Exit status: 0
all checks hold, 1 some do not (a line each), 77 there is no Chromium or no chromedriver.
"""

import argparse
import base64
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

KEYS = {"Tab": "\ue004", "Enter": "\ue007", "Left": "\ue012", "Up": "\ue013", "Right": "\ue014", "Down": "\ue015", "Home": "\ue011"}
NO_BROWSER = 77
MARGIN = 58  # of the attention map, in page.js
NARROW = {"width": 420, "height": 900, "deviceScaleFactor": 1, "mobile": False}


class Browser:
    """A session of chromedriver."""

    def __init__(self, driver, chromium, profile):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.driver = subprocess.Popen([driver, f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.base = f"http://127.0.0.1:{port}"
        self.session = None
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
                 "--force-device-scale-factor=1", "--window-size=1280,900", f"--user-data-dir={profile}"]
        wanted = {"goog:chromeOptions": {"binary": chromium, "args": flags}, "goog:loggingPrefs": {"browser": "ALL"}}
        try:
            self._wait_for_driver()
            answer = self._call("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
            self.session = f"/session/{answer['sessionId']}"
        except (OSError, RuntimeError):
            self.close()
            raise

    def _wait_for_driver(self):
        deadline = time.monotonic() + 30
        while True:
            try:
                if self._call("GET", "/status")["ready"]:
                    return
            except OSError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.05)

    def _call(self, method, path, body=None):
        data = json.dumps(body or {}).encode() if method == "POST" else None
        request = urllib.request.Request(self.base + path, method=method, data=data,
                                         headers={"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise RuntimeError(f"{path}: {json.load(error)['value']['message'].splitlines()[0]}") from None

    def post(self, path, body=None):
        return self._call("POST", self.session + path, body)

    def script(self, code, *arguments):
        return self.post("/execute/sync", {"script": code, "args": list(arguments)})

    def value(self, expression, *arguments):
        """Of an expression, in which $ and $$ find one element or all."""
        return self.script("const $ = (s) => document.querySelector(s), $$ = (s) => [...document.querySelectorAll(s)];"
                           f"return {expression}", *arguments)

    def devtools(self, command, **parameters):
        return self.post("/goog/cdp/execute", {"cmd": command, "params": parameters})

    def show(self, selector):
        """Scrolls it to the middle of the window, at once."""
        self.value("$(arguments[0]).scrollIntoView({block: 'center', behavior: 'instant'})", selector)
        time.sleep(0.1)

    def _act(self, kind, actions, **more):
        self.post("/actions", {"actions": [{"type": kind, "id": kind, "actions": actions, **more}]})

    def hover(self, selector, share_x=0.5, share_y=0.5):
        """Moves the pointer onto an element, to these shares of its width and height."""
        self.show(selector)
        left, top, width, height = self.value(
            "(({left, top, width, height}) => [left, top, width, height])($(arguments[0]).getBoundingClientRect())", selector)
        self._act("pointer", [
            {"type": "pointerMove", "duration": 0, "x": 1, "y": 1},
            {"type": "pointerMove", "duration": 0, "x": round(left + width * share_x), "y": round(top + height * share_y)}])

    def click(self, selector, share_x=0.5, share_y=0.5):
        self.hover(selector, share_x, share_y)
        self._act("pointer", [{"type": "pointerDown", "button": 0}, {"type": "pointerUp", "button": 0}])

    def drag(self, by_x, by_y):
        self._act("pointer", [{"type": "pointerDown", "button": 0},
                              {"type": "pointerMove", "duration": 50, "origin": "pointer", "x": by_x, "y": by_y},
                              {"type": "pointerUp", "button": 0}])

    def wheel(self, selector, down):
        element = self.post("/element", {"using": "css selector", "value": selector})
        self._act("wheel", [{"type": "scroll", "duration": 0, "origin": element, "x": 0, "y": 0, "deltaX": 0, "deltaY": down}])

    def press(self, *keys):
        self._act("key", [{"type": kind, "value": KEYS.get(key, key)} for key in keys for kind in ("keyDown", "keyUp")])

    def focus(self, selector):
        """As the Tab key would: with a visible focus."""
        self.show(selector)
        self.value("$(arguments[0]).focus({focusVisible: true})", selector)

    def screenshot(self, path):
        size = self.devtools("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        image = self.devtools("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(image["data"]))

    def complaints(self):
        log = self.post("/se/log", {"type": "browser"})
        return [entry["message"] for entry in log if entry["level"] in ("SEVERE", "WARNING")]

    def close(self):
        if self.session:
            self._call("DELETE", self.session)
        self.driver.terminate()
        self.driver.wait()


class Checks:
    def __init__(self, browser, report):
        self.browser = browser
        self.models = report["models"]
        self.sentences = {figure["key"]: figure["sentence"] for figure in report["figures"]}
        self.failed = 0
        self.held = 0

    def hold(self, what, holds, seen=""):
        if holds:
            self.held += 1
        else:
            self.failed += 1
            print(f"page_test: {what}: no" + (f"; the page has {seen!r}" if seen != "" else ""), file=sys.stderr)

    def head(self):
        """Model, layer and head that the page shows, by its selects."""
        return [int(value) for value in self.browser.value("$$('#head select').map((select) => select.value)")]

    def open(self, model, layer, head):
        self.browser.value(f"location.hash = '#model={model}&layer={layer}&head={head}'")
        time.sleep(0.2)

    def tip(self):
        return self.browser.value("$('#tip').hidden ? '' : $('#tip').innerText")

    def background(self):
        return self.browser.value("getComputedStyle(document.body).backgroundColor")

    def shading(self):
        return self.browser.value("$$('#tokens span').map((span) => span.style.backgroundColor).join()")

    def choose_map(self, key):
        self.browser.value("($('#map-key').value = arguments[0], $('#map-key').dispatchEvent(new Event('change')))", key)

    def opened(self):
        value = self.browser.value
        columns = value("$$('#headline thead th').length - 1")
        self.hold("the headline has a column for each model", columns == len(self.models), columns)
        rows = value("$$('#headline tbody tr').map((row) => "
                     "[row.querySelector('.sentence').textContent, row.querySelectorAll('td').length])")
        given = set(self.sentences.values())
        self.hold("each row of the headline has the report's sentence", rows and all(row[0] in given for row in rows), rows)
        self.hold("each row has a value for each model", all(row[1] == len(self.models) for row in rows), rows)
        dashes = value("$$('#headline td[title]').map((cell) => cell.textContent)")
        none = any(model["figures"].get(key) is None and any(other["figures"].get(key) is not None for other in self.models)
                   for model in self.models for key in self.sentences)
        self.hold("a figure that a model lacks is shown as –", set(dashes) == ({"–"} if none else set()), dashes)
        heads = [sum(len(row) for row in model["heads"]) for model in self.models]
        cells = value("$$('#maps .panel').map((panel) => panel.querySelectorAll('[role=gridcell]').length)")
        self.hold("there is a map for each model, and a cell for each head",
                  len(cells) == len(heads) and any(cells) and all(a in (b, 0) for a, b in zip(cells, heads)), cells)
        nameless = value("$$('button, select, canvas, svg.chart, input').filter((node) => !node.closest('[aria-hidden=true], label')"
                         " && !node.ariaLabel && !node.textContent.trim()).map((node) => node.outerHTML.slice(0, 90))")
        self.hold("every control has a name for screen readers", nameless == [], nameless)
        loads = value("performance.getEntriesByType('resource').map((entry) => entry.name).filter((name) => !/^data:/.test(name))")
        self.hold("the page loads nothing else", loads == [], loads)

    def tab(self):
        self.browser.value("(document.activeElement.blur(), scrollTo(0, 0))")
        hidden, stops = [], set()
        for _ in range(25):
            self.browser.press("Tab")
            name, width = self.browser.script(
                "const node = document.activeElement, style = getComputedStyle(node);"
                "return [`${node.tagName} ${node.id} ${node.textContent.slice(0, 20)}`,"
                " style.outlineStyle === 'none' ? 0 : parseFloat(style.outlineWidth)]")
            stops.add(name)
            if not width and not name.startswith("BODY"):
                hidden.append(name)
        self.hold("every stop of the Tab key shows its focus", hidden == [], hidden)
        self.hold("the Tab key goes through the page", len(stops) > 15, stops)

    def charts(self):
        self.browser.hover("#layer-charts svg", 0.5, 0.4)
        tip = self.tip()
        self.hold("hover over a layer chart shows a layer and its values", tip.startswith("layer ") and ":" in tip, tip)
        self.browser.focus("#layer-charts svg")
        self.browser.press("Home", "Right")
        now, text = self.browser.value("['aria-valuenow', 'aria-valuetext'].map((name) => $('#layer-charts svg').getAttribute(name))")
        self.hold("arrow keys move along a layer chart", now == "1" and text.startswith("layer 1;"), [now, text])
        self.hold("the focused chart shows its values", self.tip().startswith("layer 1\n"), self.tip())

    def maps(self):
        last = len(self.models) - 1
        heads = self.models[last]["heads"]
        layer = min(1, len(heads) - 1)
        head = len(heads[layer]) - 1
        panel = f"#maps .panel[data-model='{last}']"
        cell = f"{panel} [data-layer='{layer}'][data-head='{head}']"
        self.browser.hover(cell)
        tip = self.tip()
        self.hold("hover over a cell shows its layer, head and value", tip.startswith(f"layer {layer}, head {head}\n"), tip)
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
        self.hold("the select shows each figure's maps with its sentence",
                  keys and all(sentence == self.sentences.get(key, "") for key, sentence in shown.items()), shown)
        self.choose_map(keys[0])

    def worth(self):
        """What heads are worth, where the report has it."""
        kinds = next((model["overrides"]["kinds"] for model in self.models if model.get("overrides")), [])
        drawn = [kind for kind in kinds if any(
            row.get(kind["figure"]) is not None for model in self.models for layer in model["head_figures"] for row in layer)]
        words = self.browser.value("$('#worth').hidden ? [] : $$('#worth button').map((button) => button.textContent)")
        self.hold("there is a button for each override of heads", words == [kind["word"] for kind in drawn], words)
        for kind in drawn:
            key = kind["figure"]
            self.browser.click(f"#worth button[data-key='{key}']")
            shown = self.browser.value("[$('#map-key').value, $('#map-sentence').textContent,"
                                       " $('#worth [aria-pressed=true]')?.dataset.key]")
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
        rises = [(row[kind["figure"]], layer, head) for layer, rows in enumerate(model["head_figures"])
                 for head, row in enumerate(rows)]
        colours = {}
        for rise, layer, head in (max(rises), min(rises)):
            cell = f"{panel} [data-layer='{layer}'][data-head='{head}']"
            colours[rise] = self.browser.value("$(arguments[0]).style.backgroundColor.match(/\\d+/g).map(Number)", cell)
        for rise, (red, _, blue) in colours.items():
            stays = rise == 0 or min(rises)[0] >= 0
            self.hold("a rise of the loss is blue and a fall is orange", stays or (blue >= red) == (rise > 0) or
                      abs(rise) < 0.5 * max(map(abs, colours)), [rise, colours])
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
        self.hold("hover over the map shows the query's and the key's token", all(
            str(token) in tip and text[token].strip() in tip for token in (query, key)), tip)
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
        least, most, *later = self.browser.script("""
            const {width, height} = document.getElementById('pattern');
            const pixels = document.getElementById('pattern').getContext('2d').getImageData(0, 0, width, height).data;
            return arguments[0].map(([x, y]) => 4 * (Math.floor(y * height) * width + Math.floor(x * width)))
              .map((at) => pixels[at] + pixels[at + 1] + pixels[at + 2]);""", [(share(column), share(row)) for row, column in cells])
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
        self.hold("arrow keys move over the map's cells",
                  all(word in readout for word in ("eight ", f" {query}", f" {key}")), readout)
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
        marked = self.browser.value("[$('#tokens [aria-selected=true]'), $('#top-keys button')].map((node) => node?.dataset.token)")
        self.hold("a key of the list is marked in the text", marked[0] == marked[1], marked)

    def text(self):
        model = self.models[self.head()[0]]
        shown = self.browser.value("$$('#tokens span').map((span) => span.textContent)")
        self.hold("the text has a span for each token", len(shown) == model["tokens"], len(shown))
        self.hold("the tokens are shown as they are",
                  all(piece == "" or span.replace("↵", "") == piece.replace("↵", "") for span, piece in zip(shown, model["text"])))
        inside = self.browser.value("$$('#tokens span *, #top-keys code *').length")
        self.hold("no token becomes markup", inside == 0, inside)

        shades = {}
        for kind in ("received", "gate", "loss"):
            if not self.browser.value("$(`[data-shade=${arguments[0]}]`).disabled", kind):
                self.browser.click(f"[data-shade='{kind}']")
                shades[kind] = self.shading()
        self.hold("each button shades the text in its own way", len(set(shades.values())) == len(shades) >= 2, list(shades))
        self.browser.click("[data-shade='received']")
        scopes = set()
        for scope in ("head", "layer", "all"):
            self.browser.click(f"[data-scope='{scope}']")
            scopes.add(self.shading())
        self.hold("head, layer and model shade the text in their own ways", len(scopes) == 3, len(scopes))
        self.browser.hover("#tokens span:nth-child(6)")
        tip = self.tip()
        self.hold("hover over a token shows its number and figures", tip.startswith("token 5 ") and "received" in tip, tip)
        self.browser.focus("#tokens span[tabindex='0']")
        self.browser.press("Home", "Right", "Right", "Enter")
        marked = self.browser.value("$('#tokens [aria-selected=true]')?.dataset.token")
        self.hold("arrow keys and Enter mark a token", marked == "2", marked)
        self.browser.press("Enter")
        marked = self.browser.value("$$('#tokens [aria-selected=true]').length")
        self.hold("Enter takes the mark away again", marked == 0, marked)

    def narrow(self):
        self.browser.devtools("Emulation.setDeviceMetricsOverride", **NARROW)
        time.sleep(0.4)
        width = self.browser.value("document.documentElement.scrollWidth")
        self.hold("a narrow window needs no sideways scrolling of the page", width <= NARROW["width"], width)
        self.browser.devtools("Emulation.clearDeviceMetricsOverride")
        time.sleep(0.3)

    def themes(self, screenshots):
        seen, shading = {}, {}
        for theme in ("light", "dark"):
            self.browser.devtools("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])
            time.sleep(0.3)
            seen[theme], shading[theme] = self.background(), self.shading()
        self.hold("the page follows the system's theme", seen["light"] != seen["dark"], seen)
        self.hold("so do the colours of the text", shading["light"] != shading["dark"])
        for theme in ("light", "dark"):
            self.browser.click("#theme")
            self.hold(f"the button switches to the {theme} theme",
                      self.background() == seen[theme] and self.shading() == shading[theme], self.background())
        if not screenshots:
            return
        for theme in ("dark", "light"):
            if self.background() != seen[theme]:
                self.browser.click("#theme")
            self.browser.value("(document.activeElement.blur(), scrollTo(0, 0))")
            time.sleep(0.3)
            self.browser.screenshot(screenshots / f"{theme}.png")
        self.browser.devtools("Emulation.setDeviceMetricsOverride", **NARROW)
        time.sleep(0.5)
        self.browser.screenshot(screenshots / "narrow.png")


def report_of(page):
    text = page.read_text(encoding="utf-8")
    start = text.index("\n", text.index('<script id="report" type="application/json">'))
    return json.loads(text[start:text.index("</script>", start)])


def made_up_report(folder):
    page = Path(folder) / "made_up.html"
    subprocess.run([sys.executable, Path(__file__).parent / "page_fixture.py", page], check=True)
    return page


def real_report(folder, headgate):
    """A page of two models that train for a few steps."""
    text, page = Path(folder) / "text", Path(folder) / "real.html"
    text.write_text("What the gate lets through, \u00e9 and </script> among it, is 1 < 2 & more.\n" * 100, encoding="utf-8")
    runs = [Path(folder) / gate for gate in ("none", "headwise")]
    for run in runs:
        subprocess.run([headgate, "train", "--data", text, "--out", run, "--gate", run.name, "--layers", "2", "--dim", "16",
                        "--heads", "2", "--seq-len", "64", "--batch", "2", "--steps", "20", "--eval-tokens", "64"],
                       check=True, stdout=subprocess.DEVNULL)
    subprocess.run([headgate, "xray", *runs, "--text", text, "--override", "heads", "--out", page], check=True)
    return page


def check_page(browser, page, screenshots):
    """How many checks fail."""
    size, report = page.stat().st_size, report_of(page)
    browser.devtools("Emulation.clearDeviceMetricsOverride")
    browser.devtools("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "light"}])
    browser.post("/url", {"url": page.resolve().as_uri()})
    start = browser.value("Math.round(performance.timing.loadEventEnd - performance.timing.navigationStart)")
    checks = Checks(browser, report)
    for check in (checks.opened, checks.tab, checks.charts, checks.maps, checks.worth, checks.pattern, checks.one_head, checks.text,
                  checks.narrow):
        check()
    checks.themes(screenshots)
    complaints = browser.complaints()
    checks.hold("the browser's console has no errors and no warnings", complaints == [], complaints)
    print(f"page_test: {page.name}: {checks.held} checks hold, {checks.failed} do not; opened in {start} ms, {size:,} bytes")
    return checks.failed


def holds(browser, page, screenshots):
    """Whether all checks hold. Hovering and scrolling take time, on a busy machine more than the checks wait: only what
    fails three times in a row is wrong with the page."""
    return any(check_page(browser, page, screenshots) == 0 for _ in range(3))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report", metavar="REPORT.html", type=Path, nargs="?")
    parser.add_argument("--headgate", metavar="TOOL", type=Path, help="also a report of two models that TOOL trains")
    parser.add_argument("--screenshots", metavar="DIR", type=Path, help="also write pictures of the page, light, dark and narrow")
    arguments = parser.parse_args()
    driver, chromium = shutil.which("chromedriver"), shutil.which("chromium")
    if not driver or not chromium:
        print("page_test: skipped: needs chromium and chromedriver (scripts/setup.sh browser)")
        sys.exit(NO_BROWSER)
    if arguments.screenshots:
        arguments.screenshots.mkdir(parents=True, exist_ok=True)

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        pages = [arguments.report] if arguments.report else [made_up_report(folder)]
        if arguments.headgate:
            pages.append(real_report(folder, arguments.headgate.resolve()))
        try:
            browser = Browser(driver, chromium, os.path.join(folder, "profile"))
        except (OSError, RuntimeError) as error:
            print(f"page_test: skipped: the browser does not start: {error}")
            sys.exit(NO_BROWSER)
        try:
            failed = [page for page in pages if not holds(browser, page, arguments.screenshots)]
        except RuntimeError as error:
            sys.exit(f"page_test: the page could not be used: {error}")
        finally:
            browser.close()
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
