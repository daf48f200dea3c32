#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Lists the versions of the site. Each has its own folder: DIR/0.2.0/, DIR/0.3.0/. The version selector of every page
reads DIR/versions.json. DIR/index.html redirects to the newest version.

    versions.py           print the version of include/headgate/version.h
    versions.py DIR       write versions.json and index.html for the versions in DIR
"""

import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def current():
    text = (ROOT / "include/headgate/version.h").read_text(encoding="utf-8")
    return ".".join(re.search(rf"VERSION_{part}\s+(\d+)", text)[1] for part in ("MAJOR", "MINOR", "PATCH"))


def write_list(folder):
    found = [path.parent.name for path in folder.glob("*/index.html")]
    versions = [name for name in found if re.fullmatch(r"\d+\.\d+\.\d+", name)]
    versions.sort(key=lambda name: [int(part) for part in name.split(".")], reverse=True)
    if not versions:
        sys.exit(f"versions.py: {folder} has no folder of a version, such as {current()}, with an index.html")
    listed = [{"version": v, "title": v, "aliases": ["latest"] if v == versions[0] else []} for v in versions]
    (folder / "versions.json").write_text(json.dumps(listed, indent=2) + "\n", encoding="utf-8")
    newest = f'<!doctype html>\n<meta http-equiv="refresh" content="0; url={versions[0]}/index.html">\n'
    links = "".join(f'<p><a href="{v}/index.html">Headgate {v}</a></p>\n' for v in versions)
    (folder / "index.html").write_text(newest + links, encoding="utf-8")
    return versions


if __name__ == "__main__":
    print(*(write_list(Path(sys.argv[1])) if len(sys.argv) > 1 else [current()]), sep="\n")
