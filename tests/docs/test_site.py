# SPDX-License-Identifier: Apache-2.0
"""The site builds without a warning, its links lead somewhere, it needs no other host, and its reference has every public
name. On a phone no page is wider than the screen, formulas are typeset and search finds."""

import json
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts" / "site"))
import modules
import versions

PHONE = 390  # pixels
PAGES_ON_A_PHONE = (
    "index.html",
    "docs/index.html",
    "docs/reference/math.html",
    "docs/reference/training.html",
    "docs/design/performance.html",
    "docs/reference/commands/train.html",
    "docs/reference/modules/headgate.torch.html",
    "include/headgate/attention.hpp.html",
    "include/headgate/headgate.h.html",
)


class Links(HTMLParser):
    """What a page refers to: links, and what a browser loads to show it; and its anchors."""

    def __init__(self, path):
        super().__init__()
        self.links, self.loads, self.anchors = [], [], set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        if "id" in found:
            self.anchors.add(found["id"])
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        if "src" in found or (tag == "link" and found.get("rel") in ("stylesheet", "icon", "preload", "preconnect")):
            self.loads.append(found.get("src") or found["href"])


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    environment = os.environ | {"HEADGATE_NOTEBOOK_SMALL": "1"}
    command = [ROOT / "scripts/docs.sh", "build", "--site-dir", folder]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site):
    return {path: Links(path) for path in site.rglob("*.html") if path.name != "404.html"}


def target_of(site, path, link):
    """The file and the anchor that a link leads to; None where it leaves the site."""
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return None
    file = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    return (file / "index.html" if file.is_dir() else file), unquote(parts.fragment)


def test_links_lead_somewhere(site, pages):
    lost = []
    for path, page in pages.items():
        for link in page.links + page.loads:
            target = target_of(site, path, link)
            if target is None:
                continue
            file, anchor = target
            if not file.is_file() or (anchor and file in pages and anchor not in pages[file].anchors):
                lost.append(f"{path.relative_to(site)}: {link}")
    assert len(pages) > 60 and lost == []


def test_pages_load_nothing_from_other_hosts(site, pages):
    loads = [f"{path.relative_to(site)}: {load}" for path, page in pages.items() for load in page.loads]
    styles = [
        f"{path.relative_to(site)}: {url}"
        for path in site.rglob("*.css")
        for url in re.findall(r"""(?:url\(|@import )['"]?([^'")]+)""", path.read_text(encoding="utf-8"))
    ]
    assert len(loads) > 60 and len(styles) > 5
    assert [load for load in loads + styles if re.search(r": (https?:)?//", load)] == []


def test_reference_has_every_function_of_the_headers(site, pages):
    missing = []
    for header in sorted((ROOT / "include/headgate").glob("*.h*")):
        text = re.sub(r"/\*.*?\*/|//[^\n]*", "", header.read_text(encoding="utf-8"), flags=re.DOTALL)
        anchors = pages[site / f"include/headgate/{header.name}.html"].anchors
        classes = re.findall(r"^(?:struct|class HEADGATE_API|class) (\w+)[^;{]*\{", text, re.MULTILINE)
        functions = re.findall(r"^HEADGATE_API [^;(]*?\b(\w+)\(", text, re.MULTILINE)
        shown = anchors | set(re.findall(r"\w+", (site / f"include/headgate/{header.name}.html").read_text("utf-8")))
        missing += [f"{header.name}: {name}" for name in classes if name not in anchors]
        missing += [f"{header.name}: {name}" for name in functions if name not in shown]
    assert missing == []


def test_reference_has_every_python_name(site, pages):
    for module in modules.MODULES:
        anchors = pages[site / f"docs/reference/modules/{module}.html"].anchors
        names = modules.names_of(module)
        assert names and [name for name in names if f"{module}.{name}" not in anchors] == []
        text = (site / f"docs/reference/modules/{module}.html").read_text(encoding="utf-8")
        assert re.findall(r"<p>Attributes,.*", text) == []  # a list run into a paragraph


def test_reference_has_every_verb(pages, site):
    listed = subprocess.run([os.environ["HEADGATE_TOOL"], "man", "--list"], capture_output=True, text=True, check=True)
    for name in listed.stdout.split()[1:]:
        assert site / f"docs/reference/commands/{name.removeprefix('headgate-')}.html" in pages, name


def test_versions_are_listed_newest_first(site, tmp_path):
    with pytest.raises(SystemExit, match="has no folder of a version"):
        versions.write_list(tmp_path)
    for name in ("0.9.0", "0.10.0", "assets"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "index.html").touch()
    assert versions.write_list(tmp_path) == ["0.10.0", "0.9.0"]
    listed = json.loads((tmp_path / "versions.json").read_text())
    assert [(entry["version"], entry["aliases"]) for entry in listed] == [("0.10.0", ["latest"]), ("0.9.0", [])]
    assert 'url=0.10.0/index.html"' in (tmp_path / "index.html").read_text()
    assert f"Headgate {versions.current()}" in (site / "index.html").read_text()


@pytest.fixture(scope="module")
def phone():
    if not shutil.which("chromium") or not shutil.which("chromedriver"):
        pytest.skip("needs chromium and chromedriver (scripts/setup.sh browser)")
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options, webdriver.ChromeService(shutil.which("chromedriver")))
    size = {"width": PHONE, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    yield driver
    driver.quit()


def wait_for(driver, script):
    """The value of the script, once it is true."""
    from selenium.webdriver.support.ui import WebDriverWait

    return WebDriverWait(driver, 60).until(lambda d: d.execute_script(f"return {script}"))


def test_pages_fit_a_phone(site, phone):
    wide = []
    for name in PAGES_ON_A_PHONE:
        phone.get((site / name).as_uri())
        wait_for(phone, "document.readyState == 'complete'")
        width = phone.execute_script("return document.documentElement.scrollWidth")
        wide += [f"{name}: {width}"] if width > PHONE else []
    assert wide == []
    assert [entry for entry in phone.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")] == []


def test_formulas_are_typeset(site, phone):
    phone.get((site / "docs/reference/math.html").as_uri())
    count = wait_for(phone, "document.querySelectorAll('.arithmatex .katex').length")
    assert count == phone.execute_script("return document.querySelectorAll('.arithmatex').length") > 50
    assert phone.execute_script("return document.querySelectorAll('.katex-error').length") == 0


def test_search_finds_from_files(site, phone):
    phone.get((site / "index.html").as_uri() + "?q=gate_threshold")
    assert "gate" in wait_for(phone, "document.querySelector('.md-search-result__item')?.textContent").lower()
