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

KEYS = {"Tab": "\ue004", "Enter": "\ue007", "Escape": "\ue00c", "Left": "\ue012", "Up": "\ue013", "Right": "\ue014", "Down": "\ue015",
        "Home": "\ue011", "Control": "\ue009"}
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
NO_BROWSER = 77


class Browser:
    """A session of chromedriver."""

    def __init__(self, driver, chromium, profile):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.driver = subprocess.Popen([driver, f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.base = f"http://127.0.0.1:{port}"
        self.session = None
        deadline = time.monotonic() + 30
        while True:
            try:
                if self._call("GET", "/status")["ready"]:
                    break
            except OSError:
                if time.monotonic() > deadline:
                    self.close()
                    raise
            time.sleep(0.05)
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
                 "--force-device-scale-factor=1", "--window-size=1280,900", f"--user-data-dir={profile}"]
        answer = self._call("POST", "/session", {"capabilities": {"alwaysMatch": {
            "goog:chromeOptions": {"binary": chromium, "args": flags}, "goog:loggingPrefs": {"browser": "ALL"}}}})
        self.session = f"/session/{answer['sessionId']}"

    def _call(self, method, path, body=None):
        request = urllib.request.Request(self.base + path, method=method, data=json.dumps(body or {}).encode() if method == "POST" else None,
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

    def devtools(self, command, **parameters):
        return self.post("/goog/cdp/execute", {"cmd": command, "params": parameters})

    def find(self, selector):
        return self.post("/element", {"using": "css selector", "value": selector})

    def text(self, selector):
        return self.script("return document.querySelector(arguments[0]).textContent", selector)

    def show(self, selector):
        """Scrolls it to the middle of the window, at once."""
        self.script("document.querySelector(arguments[0]).scrollIntoView({block: 'center', behavior: 'instant'})", selector)
        time.sleep(0.1)

    def _pointer(self, actions):
        self.post("/actions", {"actions": [{"type": "pointer", "id": "mouse", "parameters": {"pointerType": "mouse"}, "actions": actions}]})

    def hover(self, selector, share_x=0.5, share_y=0.5):
        """Moves the pointer onto an element, to these shares of its width and height."""
        self.show(selector)
        x, y = self.script("const b = document.querySelector(arguments[0]).getBoundingClientRect();"
                           "return [b.left + b.width * arguments[1], b.top + b.height * arguments[2]]", selector, share_x, share_y)
        self._pointer([{"type": "pointerMove", "duration": 0, "x": 1, "y": 1},
                       {"type": "pointerMove", "duration": 0, "x": round(x), "y": round(y)}])

    def click(self, selector, share_x=0.5, share_y=0.5):
        self.hover(selector, share_x, share_y)
        self._pointer([{"type": "pointerDown", "button": 0}, {"type": "pointerUp", "button": 0}])

    def drag(self, by_x, by_y):
        self._pointer([{"type": "pointerDown", "button": 0},
                       {"type": "pointerMove", "duration": 50, "origin": "pointer", "x": by_x, "y": by_y},
                       {"type": "pointerUp", "button": 0}])

    def wheel(self, selector, down):
        self.post("/actions", {"actions": [{"type": "wheel", "id": "wheel", "actions": [
            {"type": "scroll", "duration": 0, "origin": self.find(selector), "x": 0, "y": 0, "deltaX": 0, "deltaY": down}]}]})

    def press(self, *keys):
        strokes = [{"type": kind, "value": KEYS.get(key, key)} for key in keys for kind in ("keyDown", "keyUp")]
        self.post("/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": strokes}]})

    def focus(self, selector):
        """As the Tab key would: with a visible focus."""
        self.show(selector)
        self.script("document.querySelector(arguments[0]).focus({focusVisible: true})", selector)

    def screenshot(self, path):
        size = self.devtools("Page.getLayoutMetrics")["cssContentSize"]
        image = self.devtools("Page.captureScreenshot", captureBeyondViewport=True,
                              clip={"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1})
        path.write_bytes(base64.b64decode(image["data"]))

    def errors(self):
        return [entry["message"] for entry in self.post("/se/log", {"type": "browser"}) if entry["level"] in ("SEVERE", "WARNING")]

    def close(self):
        if self.session:
            self._call("DELETE", self.session)
        self.driver.terminate()
        self.driver.wait()


class Checks:
    def __init__(self, browser, report):
        self.browser = browser
        self.report = report
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
        return [int(value) for value in self.browser.script(
            "return ['model', 'layer', 'head'].map((name) => document.getElementById('head-' + name).value)")]

    def tip(self):
        return self.browser.script("const tip = document.getElementById('tip'); return tip.hidden ? '' : tip.innerText")

    def background(self):
        return self.browser.script("return getComputedStyle(document.body).backgroundColor")

    def opened(self):
        models, table = self.report["models"], "#headline thead th"
        columns = self.browser.script("return document.querySelectorAll(arguments[0]).length - 1", table)
        self.hold("the headline has a column for each model", columns == len(models), columns)
        rows = self.browser.script("return [...document.querySelectorAll('#headline tbody tr')].map((row) => "
                                   "[row.querySelector('.sentence').textContent, row.querySelectorAll('td').length])")
        sentences = {figure["sentence"] for figure in self.report["figures"]}
        self.hold("each row of the headline has the report's sentence", rows and all(row[0] in sentences for row in rows), rows)
        self.hold("each row has a value for each model", all(row[1] == len(models) for row in rows), rows)
        none = any(value is None for model in models for value in model["figures"].values())
        dashes = self.browser.script("return [...document.querySelectorAll('#headline td[title]')].map((cell) => cell.textContent[0])")
        self.hold("a figure that a model lacks is shown as –", not none or (dashes and set(dashes) == {"–"}), dashes)
        maps = self.browser.script("return document.querySelectorAll('#maps .panel').length")
        self.hold("there is a map for each model", maps == len(models), maps)
        cells = self.browser.script("return [...document.querySelectorAll('#maps .panel')].map((p) => p.querySelectorAll('[role=gridcell]').length)")
        wanted = [sum(len(row) for row in model["heads"]) for model in models]
        self.hold("each head has a cell", all(c in (w, 0) for c, w in zip(cells, wanted)) and any(cells), cells)
        names = self.browser.script("return [...document.querySelectorAll('button, select, canvas, svg.chart, input')].filter((node) => "
                                    "!node.closest('[aria-hidden=true]') && node.getAttribute('aria-hidden') !== 'true' && "
                                    "!node.getAttribute('aria-label') && !node.textContent.trim() && !node.closest('label')).map((node) => node.outerHTML.slice(0, 90))")
        self.hold("every control has a name for screen readers", names == [], names)
        loads = self.browser.script("return performance.getEntriesByType('resource').map((entry) => entry.name)")
        self.hold("the page loads nothing else", [name for name in loads if not name.startswith("data:")] == [], loads)

    def charts(self):
        self.browser.hover("#layer-charts svg", 0.5, 0.4)
        tip = self.tip()
        self.hold("hover over a layer chart shows a layer and a value for each model",
                  tip.startswith("layer ") and len(tip.splitlines()) >= 2, tip)
        self.browser.focus("#layer-charts svg")
        self.browser.press("Home", "Right")
        now, text = self.browser.script("const chart = document.querySelector('#layer-charts svg');"
                                        "return [chart.getAttribute('aria-valuenow'), chart.getAttribute('aria-valuetext')]")
        self.hold("arrow keys move along a layer chart", now == "1" and text.startswith("layer 1;"), [now, text])
        self.hold("the focused chart shows its values", self.tip().startswith("layer 1"), self.tip())

    def maps(self):
        last = len(self.report["models"]) - 1
        panel = f"#maps .panel[data-model='{last}']"
        self.browser.hover(f"{panel} [data-layer='1'][data-head='2']")
        self.hold("hover over a cell shows its layer, head and value", self.tip().startswith("layer 1, head 2\n"), self.tip())
        self.browser.click(f"{panel} [data-layer='1'][data-head='2']")
        self.hold("a click on a cell opens its head", self.head() == [last, 1, 2], self.head())
        time.sleep(1)
        top = self.browser.script("return document.getElementById('head').getBoundingClientRect().top")
        self.hold("the opened head scrolls into view", abs(top) < 400, top)
        self.hold("the address keeps the head", self.browser.script("return location.hash") == f"#model={last}&layer=1&head=2")

        self.browser.focus(f"{panel} [aria-selected='true']")
        self.browser.press("Right", "Up")
        self.browser.press("Enter")
        self.hold("arrow keys and Enter open a head", self.head() == [last, 2, 1], self.head())
        time.sleep(1)

        keys = self.browser.script("return [...document.getElementById('map-key').options].map((option) => option.value)")
        names = {figure["key"]: figure["sentence"] for figure in self.report["figures"]}
        shown = []
        for key in keys:
            self.browser.script("const s = document.getElementById('map-key'); s.value = arguments[0]; s.dispatchEvent(new Event('change'))", key)
            shown.append(self.browser.text("#map-sentence") == names.get(key, ""))
        self.hold("the select shows each figure's maps with its sentence", shown and all(shown), keys)
        self.browser.script("const s = document.getElementById('map-key'); s.value = arguments[0]; s.dispatchEvent(new Event('change'))", keys[0])

    def pattern(self):
        model, layer, head = self.head()
        one = self.report["models"][model]
        size, text = one["map_size"], one["text"]
        canvas = self.browser.script("return document.getElementById('pattern').clientWidth")
        margin = 58

        def share(cell):
            return (margin + (cell + 0.5) * (canvas - margin) / size) / canvas

        row, column = size // 2, 3
        self.browser.hover("#pattern", share(column), share(row))
        byte = base64.b64decode(one["heads"][layer][head]["map"])[row * (row + 1) // 2 + column]
        tip = self.tip()
        query, key = (cell * one["tokens"] // size for cell in (row, column))
        self.hold("hover over the map shows the query's and the key's token",
                  f"{query}" in tip and f"{key}" in tip and text[query].strip() in tip and text[key].strip() in tip, tip)
        shown = next((line.split()[-1] for line in tip.splitlines() if "eight" in line), "").replace("e−", "e-")
        weight = (byte / 255) ** 2
        self.hold("hover over the map shows the weight", shown != "" and abs(float(shown) - weight) <= 0.06 * weight, [shown, weight])
        self.browser.hover("#pattern", share(size - 3), share(2))
        self.hold("hover over a later key says that it is not seen", "Not seen" in self.tip(), self.tip())

        image = "return document.getElementById('pattern').toDataURL().length"
        self.browser.click("#pattern", 0.5, 0.5)
        whole = self.browser.script(image)
        self.browser.wheel("#pattern", -300)
        time.sleep(0.2)
        near = self.browser.script(image)
        self.hold("the wheel zooms the focused map", near != whole)
        self.browser.hover("#pattern", 0.5, 0.6)
        before = self.browser.text("#pattern-cell")
        self.browser.drag(60, 40)
        self.browser.hover("#pattern", 0.5, 0.6)
        self.hold("dragging moves the zoomed map", self.browser.text("#pattern-cell") != before, before)
        self.browser.click("#zoom-all")
        self.browser.focus("#pattern")
        self.browser.press("Home", "Down", "Down", "Right")
        readout = self.browser.text("#pattern-cell")
        self.hold("arrow keys move over the map's cells", "eight" in readout and "query token 2 " in readout and "key token 1 " in readout, readout)
        self.browser.press("+", "+")
        time.sleep(0.2)
        self.hold("the key + zooms the map", self.browser.script(image) != whole)
        self.browser.press("0")
        for button in ("#zoom-in", "#zoom-out"):
            self.browser.click(button)

        self.browser.click("#head-next")
        self.hold("Next opens the next head", self.head() != [model, layer, head], self.head())
        self.browser.click("#head-previous")
        self.hold("Previous goes back", self.head() == [model, layer, head], self.head())
        self.browser.script("location.hash = '#model=0&layer=0&head=1'")
        time.sleep(0.2)
        self.hold("an address opens its head", self.head() == [0, 0, 1], self.head())
        for index, one in enumerate(self.report["models"]):
            self.browser.script(f"location.hash = '#model={index}&layer=0&head=0'")
            time.sleep(0.2)
            drawn = self.browser.script("return ['gate-tokens', 'gate-histogram'].map((id) => document.querySelectorAll(`#${id} svg`).length)")
            wanted = 1 if one["heads"][0][0]["gate"] else 0
            self.hold(f"model {index}: the gate is drawn if there is one", drawn == [wanted, wanted], drawn)
        self.browser.click("#top-keys button")
        self.hold("a key of the list is marked in the text", self.browser.script(
            "return document.querySelector('#tokens [aria-selected=true]')?.dataset.token === document.querySelector('#top-keys button').dataset.token"))

    def text(self):
        spans = self.browser.script("return document.querySelectorAll('#tokens span').length")
        model = self.report["models"][self.head()[0]]
        self.hold("the text has a span for each token", spans == model["tokens"], spans)
        joined = self.browser.script("return [...document.querySelectorAll('#tokens span')].map((span) => span.textContent)")
        self.hold("the tokens are shown as text", all(piece == "" or shown.replace("↵", "") == piece.replace("\r\n", "\n").replace("↵", "") or
                                                     shown.replace("↵", "") == piece for shown, piece in zip(joined, model["text"])))
        shades = {}
        for kind in ("received", "gate", "loss"):
            button = f"#shades [data-shade='{kind}']"
            if self.browser.script("return document.querySelector(arguments[0]).disabled", button):
                continue
            self.browser.click(button)
            shades[kind] = self.browser.script("return [...document.querySelectorAll('#tokens span')].map((span) => span.style.backgroundColor).join()")
        self.hold("each button shades the text in its own way", len(shades) >= 2 and len(set(shades.values())) == len(shades), list(shades))
        self.browser.click("#shades [data-shade='received']")
        scopes = set()
        for scope in ("head", "layer", "all"):
            self.browser.click(f"#scopes [data-scope='{scope}']")
            scopes.add(self.browser.script("return [...document.querySelectorAll('#tokens span')].map((span) => span.style.backgroundColor).join()"))
        self.hold("head, layer and model shade the text in their own ways", len(scopes) == 3, len(scopes))
        self.browser.hover("#tokens span:nth-child(6)")
        self.hold("hover over a token shows its number and figures", self.tip().startswith("token 5 ") and "attention received" in self.tip(), self.tip())
        self.browser.focus("#tokens span[tabindex='0']")
        self.browser.press("Home", "Right", "Right", "Enter")
        marked = self.browser.script("return document.querySelector('#tokens [aria-selected=true]')?.dataset.token")
        self.hold("arrow keys and Enter mark a token", marked == "2", marked)

    def themes(self, screenshots):
        seen = {}
        for theme in ("light", "dark"):
            self.browser.devtools("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])
            time.sleep(0.3)
            seen[theme] = self.background()
        self.hold("the page follows the system's theme", seen["light"] != seen["dark"], seen)
        self.browser.click("#theme")
        self.hold("the button switches from dark to light", self.background() == seen["light"], self.background())
        self.browser.click("#theme")
        self.hold("and back", self.background() == seen["dark"], self.background())
        for theme in ("dark", "light") if screenshots else ():
            if self.background() != seen[theme]:
                self.browser.click("#theme")
            self.browser.script("document.activeElement.blur(); scrollTo(0, 0)")
            time.sleep(0.3)
            self.browser.screenshot(screenshots / f"{theme}.png")
        if screenshots:
            self.browser.devtools("Emulation.setDeviceMetricsOverride", width=420, height=900, deviceScaleFactor=1, mobile=False)
            time.sleep(0.5)
            self.browser.screenshot(screenshots / "narrow.png")
            self.browser.devtools("Emulation.clearDeviceMetricsOverride")

    def narrow(self):
        self.browser.devtools("Emulation.setDeviceMetricsOverride", width=420, height=900, deviceScaleFactor=1, mobile=False)
        time.sleep(0.4)
        wide = self.browser.script("return document.documentElement.scrollWidth")
        self.hold("a narrow window needs no sideways scrolling of the page", wide <= 420, wide)
        self.browser.devtools("Emulation.clearDeviceMetricsOverride")
        time.sleep(0.3)

    def tab(self):
        """Every stop of the Tab key shows where it is."""
        self.browser.script("document.activeElement.blur(); scrollTo(0, 0)")
        hidden = []
        for _ in range(25):
            self.browser.press("Tab")
            name, outlined = self.browser.script(
                "const node = document.activeElement, style = getComputedStyle(node);"
                "return [`${node.tagName} ${node.id} ${node.textContent.slice(0, 20)}`, style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) > 0]")
            if not outlined and not name.startswith("BODY"):
                hidden.append(name)
        self.hold("every stop of the Tab key shows its focus", hidden == [], hidden)


def report_of(page):
    text = page.read_text(encoding="utf-8")
    start = text.index("\n", text.index('<script id="report" type="application/json">'))
    return json.loads(text[start:text.index("</script>", start)])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report", metavar="REPORT.html", type=Path, nargs="?")
    parser.add_argument("--screenshots", metavar="DIR", type=Path, help="also write pictures of the page, light, dark and narrow")
    arguments = parser.parse_args()
    driver, chromium = shutil.which("chromedriver"), shutil.which("chromium")
    if not driver or not chromium:
        print("page_test: skipped: needs chromium and chromedriver (scripts/setup.sh browser)")
        sys.exit(NO_BROWSER)
    if arguments.screenshots:
        arguments.screenshots.mkdir(parents=True, exist_ok=True)

    with tempfile.TemporaryDirectory() as folder:
        page = arguments.report
        if not page:
            page = Path(folder) / "report.html"
            subprocess.run([sys.executable, str(Path(__file__).parent / "page_fixture.py"), str(page)], check=True)
        size = page.stat().st_size
        browser = Browser(driver, chromium, os.path.join(folder, "profile"))
        checks = Checks(browser, report_of(page))
        try:
            browser.post("/url", {"url": page.resolve().as_uri()})
            start = browser.script("return Math.round(performance.timing.loadEventEnd - performance.timing.navigationStart)")
            checks.opened()
            checks.tab()
            checks.charts()
            checks.maps()
            checks.pattern()
            checks.text()
            checks.narrow()
            checks.themes(arguments.screenshots)
            errors = browser.errors()
            checks.hold("the browser's console has no errors", errors == [], errors)
        finally:
            browser.close()
    print(f"page_test: {checks.held} checks hold, {checks.failed} do not; opened in {start} ms, {size:,} bytes")
    sys.exit(1 if checks.failed else 0)


if __name__ == "__main__":
    main()
