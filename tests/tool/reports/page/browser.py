# SPDX-License-Identifier: Apache-2.0
"""Uses a page of headgate in Chromium as a reader does: pointer, keyboard, both themes.

A page's own test derives Checks and calls run().
"""

import argparse
import base64
import json
import math
import os
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

from selenium import webdriver
from selenium.common.exceptions import WebDriverException
from selenium.webdriver.common.actions.action_builder import ActionBuilder
from selenium.webdriver.common.actions.wheel_input import ScrollOrigin
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

NOT_TESTED = 1 if os.environ.get("CI") == "true" else 77  # the status where there is no browser
NARROW = {"width": 400, "height": 900, "deviceScaleFactor": 1, "mobile": False}


# Draws a line from `low` at x = `from` to `high` at x = `to`. Returns its ends, the lines of the grid, and all labels.
# Follows draw.js, whose names a page's module hides.
DRAW = """
const names = [""];
return arguments[0].map(([low, high, from, to]) => {
  const drawn = chart({label: "", unit: "", axis: "at", place: String, count: 2, xs: [from, to],
    series: [{index: 0, values: [low, high]}]});
  const numbers = (node, name) => node.getAttribute(name).match(/-?[0-9.]+(e-?[0-9]+)?/g).map(Number);
  const texts = (anchor) => [...drawn.querySelectorAll(`text[text-anchor=${anchor}]`)].map((text) => text.textContent);
  return [[...drawn.querySelectorAll(":scope > path[transform]")].map((end) => numbers(end, "transform")[1]),
    [...drawn.querySelectorAll(".grid")].map((line) => numbers(line, "d")[1]), texts("end"), texts("middle")];
});"""


def parsed(label):
    """Returns the number that a label of a chart shows."""
    return float(label.replace(",", "").replace("−", "-"))


def ranges():
    """Returns the ends of lines of every size and steepness, and of the steps below them."""
    rng = random.Random(5)
    for _ in range(400):
        low = rng.uniform(1, 10) * 10.0 ** rng.randint(-12, 14)
        high = low * (1 + rng.uniform(1, 10) * 10.0 ** rng.randint(-9, 3))
        start = rng.randint(1, 10 ** rng.randint(1, 13))
        steps = start, start + rng.randint(1, 10 ** rng.randint(1, 6))
        yield *rng.choice(((low, high), (-high, -low), (-low, high))), *steps


class Browser:
    """Headless Chromium, driven by Selenium."""

    def __init__(self, chromedriver, chromium, profile):
        options = webdriver.ChromeOptions()
        options.binary_location = chromium
        for flag in (
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--hide-scrollbars",
            "--force-device-scale-factor=1",
            "--window-size=1280,900",
            f"--user-data-dir={profile}",
        ):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        # Selenium downloads a driver unless it is told where one is.
        self.driver = webdriver.Chrome(options, webdriver.ChromeService(chromedriver))
        self.script = self.driver.execute_script

    def value(self, expression, *arguments):
        """Returns the value of an expression, in which $ and $$ find one element or all."""
        return self.script(
            "const $ = (s) => document.querySelector(s), $$ = (s) => [...document.querySelectorAll(s)];"
            f"return {expression}",
            *arguments,
        )

    def devtools(self, command, **parameters):
        return self.driver.execute_cdp_cmd(command, parameters)

    def show(self, selector):
        """Scrolls it to the middle of the window, without animation."""
        self.value("$(arguments[0]).scrollIntoView({block: 'center', behavior: 'instant'})", selector)
        time.sleep(0.1)

    def hover(self, selector, share_x=0.5, share_y=0.5):
        """Moves the pointer onto an element, to these shares of its width and height."""
        self.show(selector)
        left, top, width, height = self.value(
            "(({left, top, width, height}) => [left, top, width, height])($(arguments[0]).getBoundingClientRect())",
            selector,
        )
        actions = ActionBuilder(self.driver, duration=0)
        actions.pointer_action.move_to_location(1, 1)
        actions.pointer_action.move_to_location(round(left + width * share_x), round(top + height * share_y))
        actions.perform()

    def click(self, selector, share_x=0.5, share_y=0.5):
        self.hover(selector, share_x, share_y)
        webdriver.ActionChains(self.driver).click().perform()

    def drag(self, by_x, by_y):
        webdriver.ActionChains(self.driver, duration=50).click_and_hold().move_by_offset(by_x, by_y).release().perform()

    def wheel(self, selector, down):
        origin = ScrollOrigin.from_element(self.driver.find_element(By.CSS_SELECTOR, selector))
        webdriver.ActionChains(self.driver).scroll_from_origin(origin, 0, down).perform()

    def press(self, *keys):
        """Presses keys by the names of selenium's Keys (Tab, Left, End, ...), or by the letter."""
        webdriver.ActionChains(self.driver).send_keys(*(getattr(Keys, key.upper(), key) for key in keys)).perform()

    def focus(self, selector):
        """Focuses as the Tab key would: visibly."""
        self.show(selector)
        self.value("$(arguments[0]).focus({focusVisible: true})", selector)

    def screenshot(self, path):
        size = self.devtools("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        image = self.devtools("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(image["data"]))

    def complaints(self):
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]


class Checks:
    """Checks what holds for every page. A page adds steps(), its own checks, and shading(), colours that the theme
    changes.
    """

    def __init__(self, browser, report):
        self.browser = browser
        self.report = report
        self.sentences = {figure["key"]: figure["sentence"] for figure in report["figures"]}
        self.shares = {figure["key"] for figure in report["figures"] if figure["share"]}
        self.failed = 0
        self.held = 0

    def hold(self, what, holds, seen=""):
        if holds:
            self.held += 1
        else:
            self.failed += 1
            print(f"page_test: {what}: no" + (f"; the page has {seen!r:.500}" if seen != "" else ""), file=sys.stderr)

    def tip(self):
        return self.browser.value("$('#tip').hidden ? '' : $('#tip').innerText")

    def background(self):
        return self.browser.value("getComputedStyle(document.body).backgroundColor")

    def controls(self):
        nameless = self.browser.value(
            "$$('button, select, canvas, svg.chart, input')"
            ".filter((node) => !node.closest('[aria-hidden=true], label') && !node.ariaLabel && !node.textContent.trim())"
            ".map((node) => node.outerHTML.slice(0, 90))"
        )
        self.hold("every control has a name for screen readers", nameless == [], nameless)
        loads = self.browser.value(
            "performance.getEntriesByType('resource').map((entry) => entry.name).filter((name) => !/^data:/.test(name))"
        )
        self.hold("the page loads nothing else", loads == [], loads)

    def charts_of_shares(self, charts):
        """Checks that scales of shares end at 1, however small the values are."""
        ends = dict(
            self.browser.value(
                "$$(arguments[0]).filter((panel) => panel.querySelector('svg')).map((panel) =>"
                " [panel.querySelector('.sentence').textContent, Math.max(...[...panel.querySelectorAll('svg text[text-anchor=end]')]"
                ".map((tick) => Number(tick.textContent)))])",
                charts,
            )
        )
        drawn = {key: ends[self.sentences[key]] for key in self.shares if self.sentences[key] in ends}
        self.hold("charts of shares end at 1", drawn and set(drawn.values()) == {1}, drawn)

    def ticks(self):
        """Checks that the labels of axes say where their lines are, however close the numbers of a chart are."""
        of_page = self.browser.value("$('script[type=module]').textContent")
        drawing, drawn = of_page[: of_page.index("let report;")], list(ranges())
        wrong, repeated, steps_wrong = [], [], []
        for (low, high, start, end), (ends, lines, labels, (*steps, axis)) in zip(
            drawn, self.browser.script(drawing + DRAW, drawn)
        ):
            scale = math.log if "logarithmic" in axis else float
            size = (scale(high) - scale(low)) / (ends[1] - ends[0])  # of a unit of the drawing
            at_lines = [scale(low) + (line - ends[0]) * size for line in lines]
            if any(abs(scale(parsed(label)) - at) > 0.01 * abs(size) for label, at in zip(labels, at_lines)):
                wrong.append([low, high, labels])
            if not len(set(labels)) == len(lines) >= 2:
                repeated.append([low, high, labels])
            counts = [parsed(step) for step in steps]
            gaps = {b - a for a, b in zip(counts, counts[1:])}
            whole = all(count.is_integer() and start <= count <= end for count in counts)
            if not whole or len(gaps) > 1 or min(gaps, default=1) <= 0:
                steps_wrong.append([start, end, steps])
        self.hold("the label of a line is its number", wrong == [], wrong)
        self.hold("each line has its own label", repeated == [], repeated)
        self.hold("labels of steps are whole, evenly apart and within the chart", steps_wrong == [], steps_wrong)

    def tab(self):
        self.browser.value("(document.activeElement.blur(), scrollTo(0, 0))")
        hidden, stops = [], set()
        for _ in range(25):
            self.browser.press("Tab")
            name, width = self.browser.script(
                "const node = document.activeElement, style = getComputedStyle(node);"
                "return [`${node.tagName} ${node.id} ${node.ariaLabel ?? node.textContent.slice(0, 20)}`,"
                " style.outlineStyle === 'none' ? 0 : parseFloat(style.outlineWidth)]"
            )
            stops.add(name)
            if not width and not name.startswith("BODY"):
                hidden.append(name)
        self.hold("every stop of the Tab key shows its focus", hidden == [], hidden)
        self.hold("the Tab key goes through the page", len(stops) > 15, stops)

    def narrow(self):
        for width in (360, NARROW["width"], 800):
            self.browser.devtools("Emulation.setDeviceMetricsOverride", **{**NARROW, "width": width})
            time.sleep(0.4)
            wide = self.browser.value("document.documentElement.scrollWidth")
            self.hold(f"a window of {width} px needs no sideways scrolling of the page", wide <= width, wide)
            if width <= NARROW["width"]:
                self.narrow_table(width)
                self.narrow_letters(width)
        self.browser.devtools("Emulation.clearDeviceMetricsOverride")
        time.sleep(0.3)

    def narrow_letters(self, width):
        """Checks that charts keep letters that can be read, and headings their words whole."""
        sizes = self.browser.value(
            "$$('svg.chart').filter((chart) => chart.clientWidth).map((chart) =>"
            " parseFloat(getComputedStyle(chart.querySelector('text')).fontSize)"
            " * chart.clientWidth / chart.viewBox.baseVal.width)"
        )
        self.hold(f"a window of {width} px has charts with letters of 9 px", sizes and min(sizes) >= 9, sizes)
        broken = self.browser.script(
            "const words = [];"
            "for (const heading of document.querySelectorAll('h1, h2, h3, tbody th')) {"
            "  const texts = document.createTreeWalker(heading, NodeFilter.SHOW_TEXT);"
            "  while (texts.nextNode()) for (const {0: word, index} of texts.currentNode.data.matchAll(/[^\\s-]+/g)) {"
            "    const range = new Range();"
            "    range.setStart(texts.currentNode, index);"
            "    range.setEnd(texts.currentNode, index + word.length);"
            "    const tops = new Set([...range.getClientRects()].map((box) => Math.round(box.top)));"
            "    if (tops.size > 1) words.push(word);"
            "  }"
            "}"
            "return words;"
        )
        self.hold(f"a window of {width} px breaks no word of a heading", broken == [], broken)

    def narrow_table(self, width):
        """Checks that every number of the table of figures is visible in the window, after the name of its column."""
        columns, cells = self.browser.script(
            "const table = document.querySelector('.scroll table'), {left, right} = table.parentNode.getBoundingClientRect();"
            "const inside = (box) => box.width > 0 && box.left >= Math.max(0, left) && box.right <= Math.min(innerWidth, right);"
            "const name = (cell) => JSON.parse(getComputedStyle(cell, '::before').content.replace(/^none$|^normal$/, 'null'));"
            "const boxOf = (node) => { const range = new Range(); range.selectNodeContents(node); return range.getBoundingClientRect(); };"
            "return [[...table.querySelectorAll('thead th')].slice(1).map((head) => head.textContent),"
            " [...table.querySelectorAll('tbody tr')].map((row) => [...row.querySelectorAll('td')].map((cell) =>"
            "  [cell.firstChild.textContent, inside(boxOf(cell)), name(cell)]))];"
        )
        hidden = [cell for row in cells for cell in row if not cell[1]]
        self.hold(f"a window of {width} px shows every number of the table", cells and hidden == [], hidden)
        named = [[cell[2] for cell in row] for row in cells]
        self.hold(
            f"a window of {width} px shows every number behind the name of its column",
            all(row == columns for row in named),
            [columns, named[:1]],
        )

    def run(self, screenshots):
        for check in (self.controls, self.ticks, self.tab, *self.steps(), self.narrow):
            check()
        self.themes(screenshots)

    def themes(self, screenshots):
        seen, shading = {}, {}
        for theme in ("light", "dark"):
            self.browser.devtools(
                "Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}]
            )
            time.sleep(0.3)
            seen[theme], shading[theme] = self.background(), self.shading()
        self.hold("the page follows the system's theme", seen["light"] != seen["dark"], seen)
        self.hold("so do the colours of what is drawn", shading["light"] != shading["dark"])
        for theme in ("light", "dark"):
            self.browser.click("#theme")
            self.hold(
                f"the button switches to the {theme} theme",
                self.background() == seen[theme] and self.shading() == shading[theme],
                self.background(),
            )
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
        self.browser.devtools("Emulation.clearDeviceMetricsOverride")


def report_of(page):
    text = page.read_text(encoding="utf-8")
    start = text.index("\n", text.index('<script id="report" type="application/json">'))
    return json.loads(text[start : text.index("</script>", start)])


def check_page(browser, page, screenshots, of_page):
    """Returns how many checks fail."""
    size, report = page.stat().st_size, report_of(page)
    browser.devtools("Emulation.clearDeviceMetricsOverride")
    browser.devtools("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "light"}])
    browser.driver.get(page.resolve().as_uri())
    start = browser.value("Math.round(performance.timing.loadEventEnd - performance.timing.navigationStart)")
    checks = of_page(browser, report)
    checks.run(screenshots)
    complaints = browser.complaints()
    checks.hold("the browser's console has no errors and no warnings", complaints == [], complaints)
    print(
        f"page_test: {page.name}: {checks.held} checks hold, {checks.failed} do not; opened in {start} ms, {size:,} bytes"
    )
    return checks.failed


def holds(browser, page, screenshots, of_page):
    """Returns whether all checks hold. Hovering and scrolling take time, on a busy machine more than the checks wait: a
    check fails only if it fails three times in a row.
    """
    return any(check_page(browser, page, screenshots, of_page) == 0 for _ in range(3))


def run(description, of_page, pages_of):
    """Runs the command line of a page's test. pages_of(folder, tool or None) makes the pages if none is given."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report", metavar="REPORT.html", type=Path, nargs="?")
    parser.add_argument("--headgate", metavar="TOOL", type=Path, help="makes pages with this tool too")
    parser.add_argument(
        "--screenshots", metavar="DIR", type=Path, help="also write pictures of the page, light, dark and narrow"
    )
    arguments = parser.parse_args()
    driver, chromium = shutil.which("chromedriver"), shutil.which("chromium")
    if not driver or not chromium:
        print("page_test: needs chromium and chromedriver (scripts/setup.sh browser)")
        sys.exit(NOT_TESTED)
    if arguments.screenshots:
        arguments.screenshots.mkdir(parents=True, exist_ok=True)

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        tool = arguments.headgate.resolve() if arguments.headgate else None
        pages = [arguments.report] if arguments.report else pages_of(folder, tool)
        try:
            browser = Browser(driver, chromium, os.path.join(folder, "profile"))
        except WebDriverException as error:
            print(f"page_test: the browser does not start: {error.msg}")
            sys.exit(NOT_TESTED)
        try:
            failed = [page for page in pages if not holds(browser, page, arguments.screenshots, of_page)]
        except WebDriverException as error:
            sys.exit(f"page_test: the page could not be used: {error.msg}")
        finally:
            browser.driver.quit()
    sys.exit(1 if failed else 0)
