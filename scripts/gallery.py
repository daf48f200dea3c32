#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Renews the pictures of docs/gallery. Runs the commands that its page shows, opens the reports that they write in
Chromium, and takes a picture of a part of each. int8_chart.py draws int8.svg.

    gallery.py [PICTURE.png …]   needs build/headgate, Chromium with its driver and the test group of pyproject.toml
    gallery.py --check           compares the page, the pictures and SHOTS; needs nothing
"""

import base64
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
GALLERY = ROOT / "docs/gallery"
PAGE = GALLERY / "README.md"
MOST_BYTES, MOST_BYTES_OF_ALL = 150_000, 800_000
WIDTH = 960  # of the browser window


@dataclass
class Shot:
    """A part of a report, from the top left corner of one element to the bottom right corner of another. `first` and
    `last` are their CSS selectors. `place` is the URL fragment that opens an attention head."""

    report: str
    first: str
    last: str
    place: str = ""


HEAD_MAP = ("#head figure.panel", "#pattern")
LAYERS = ("#layer-lists", "#layers .far")
SHOTS = {
    "smollm2-heads.png": Shot("smollm2.html", "#heads", "#maps"),
    "smollm2-head.png": Shot("smollm2.html", *HEAD_MAP, "model=0&layer=18&head=8"),
    "live-heads.png": Shot("live.html", "#heads", "#maps"),
    "twins.png": Shot("twins.html", "#cards", "#cards"),
    "twins-gate.png": Shot("twins.html", "#head .gates", "#head .gates", "model=1&layer=0&head=0"),
    "hybrid-layers.png": Shot("hybrid.html", *LAYERS),
    "hybrid-head.png": Shot("hybrid.html", *HEAD_MAP, "model=0&layer=2&head=0"),
    "gemma3-layers.png": Shot("gemma3.html", *LAYERS),
    "gemma3-window.png": Shot("gemma3.html", *HEAD_MAP, "model=0&layer=4&head=0"),
}


def sections():
    """Yields (commands, names of the pictures) for each section of the page."""
    for section in re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        commands = re.findall(r"^```sh\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
        yield "".join(commands), re.findall(r"^!\[[^\]]+\]\(([^)]+\.png)\)", section, re.MULTILINE)


def problems():
    found, shown = [], [name for _, names in sections() for name in names]
    there = {path.name: path.stat().st_size for path in GALLERY.glob("*.png")}
    for name in sorted({*shown, *SHOTS, *there}):
        for where, names in (("the page", shown), ("SHOTS", SHOTS), ("docs/gallery", there)):
            if name not in names:
                found.append(f"{name} is not in {where}")
    for commands, names in sections():
        for name in names:
            if name in SHOTS and f"--out {SHOTS[name].report}" not in commands:
                found.append(f"{name} is of {SHOTS[name].report}, which no command of its section writes")
    found += [f"{name} has {size} bytes, more than {MOST_BYTES}" for name, size in there.items() if size > MOST_BYTES]
    if sum(there.values()) > MOST_BYTES_OF_ALL:
        found.append(f"all pictures have {sum(there.values())} bytes, more than {MOST_BYTES_OF_ALL}")
    return found


def take(browser, report, shot):
    """Returns the picture as PNG."""
    browser.driver.get(f"{report.resolve().as_uri()}#{shot.place}")
    time.sleep(1)
    browser.value("document.activeElement.blur()")
    boxes = "[arguments[0], arguments[1]].map((part) => $(part).getBoundingClientRect())"
    left, top, right, bottom = browser.value(
        f"(([first, last]) => [first.left, first.top + scrollY, last.right, last.bottom + scrollY])({boxes})",
        shot.first,
        shot.last,
    )
    clip = {"x": left - 8, "y": top - 8, "width": right - left + 24, "height": bottom - top + 16, "scale": 1}
    image = browser.devtools("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
    return base64.b64decode(image["data"])


def make(wanted):
    sys.path.insert(0, str(ROOT / "tests/tool/reports/page"))
    from browser import Browser

    chromedriver, chromium = shutil.which("chromedriver"), shutil.which("chromium")
    if not chromedriver or not chromium:
        sys.exit("gallery.py: needs chromium and chromedriver; scripts/setup.sh browser installs them")
    with tempfile.TemporaryDirectory() as scratch, tempfile.TemporaryDirectory() as profile:
        for path in ROOT.iterdir():
            os.symlink(path, Path(scratch) / path.name)
        for commands, names in sections():
            if wanted.intersection(names):
                subprocess.run(["bash", "-eu", "-o", "pipefail", "-c", commands], cwd=scratch, check=True)
        browser = Browser(chromedriver, chromium, profile)
        try:
            browser.devtools(
                "Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "light"}]
            )
            size = {"width": WIDTH, "height": 900, "deviceScaleFactor": 1, "mobile": False}
            browser.devtools("Emulation.setDeviceMetricsOverride", **size)
            for name in sorted(wanted):
                shot = SHOTS[name]
                (GALLERY / name).write_bytes(take(browser, Path(scratch) / shot.report, shot))
                print(f"{name}: {(GALLERY / name).stat().st_size} bytes")
        finally:
            browser.driver.quit()


def main():
    arguments = sys.argv[1:]
    if arguments != ["--check"]:
        unknown = set(arguments) - set(SHOTS)
        if unknown:
            sys.exit(f"gallery.py: there is no picture {', '.join(sorted(unknown))}; there are {', '.join(SHOTS)}")
        make(set(arguments or SHOTS))
    found = problems()
    print(
        "\n".join(found) if found else f"{len(SHOTS)} pictures: each on the page, below a command that makes its report"
    )
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
