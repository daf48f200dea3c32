#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Walks through a release.

    scripts/release.py check             do all places name the same version?
    scripts/release.py prepare           date the version: CHANGELOG.md and CITATION.cff
    scripts/release.py tag [--dry-run]   check everything, run the tests, make the tag
    scripts/release.py next VERSION      name the version that comes next

include/headgate/version.h holds the version. CMake, the Python package and the tool read it there; CHANGELOG.md and
CITATION.cff repeat it, and `check`, which is a test, compares them. Nothing is pushed. CONTRIBUTING.md has the steps.
"""

import argparse
import datetime
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HEADER, CHANGELOG, CITATION = ROOT / "include/headgate/version.h", ROOT / "CHANGELOG.md", ROOT / "CITATION.cff"
PARTS = ("MAJOR", "MINOR", "PATCH")
SECTION = re.compile(
    r"^## \[(?P<name>[^]]+)\](?P<date> - \d{4}-\d\d-\d\d)?\n(?P<text>.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL
)
ENTRY = re.compile(r"^- ", re.MULTILINE)
TESTS = (["make", "test"], ["make", "check"])


class ReleaseError(Exception):
    """An error whose message is one line for the user."""


def version():
    numbers = dict(re.findall(r"define HEADGATE_VERSION_(\w+) (\d+)$", HEADER.read_text(), re.MULTILINE))
    return ".".join(numbers[part] for part in PARTS)


def ordered(name):
    """Returns a version as a tuple of numbers, to compare versions."""
    return tuple(int(part) for part in name.removeprefix("v").split("."))


def sections():
    """Returns the sections of CHANGELOG.md by name, newest first."""
    return {match["name"]: match for match in SECTION.finditer(CHANGELOG.read_text(encoding="utf-8"))}


def git(*arguments):
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        raise ReleaseError(f"git {arguments[0]}: {done.stderr.strip()}")
    return done.stdout.rstrip()


def disagreements():
    """Yields a line for each place that contradicts version.h."""
    now, found = version(), sections()
    cited = re.search(r"^version: (.*)$", CITATION.read_text(encoding="utf-8"), re.MULTILINE)
    if not cited or cited[1] != now:
        yield f"CITATION.cff has version {cited[1] if cited else 'none'}, version.h {now}"
    unreleased = found["Unreleased"]["text"] if "Unreleased" in found else ""
    if now not in found and f"To become {now}." not in unreleased:
        yield f"CHANGELOG.md has neither a section {now} nor 'To become {now}.' below Unreleased"
    names = [name for name in found if name != "Unreleased"]
    if names != sorted(names, key=ordered, reverse=True):
        yield f"CHANGELOG.md: versions are not in order: {', '.join(names)}"
    yield from (f"CHANGELOG.md: section {name} has no date" for name in names if not found[name]["date"])
    if "version" not in tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dynamic"]:
        yield "pyproject.toml has a version of its own"
    for path in sorted(HEADER.parent.glob("*.h*")):
        for number in re.findall(r'"\d+\.\d+\.\d+"', path.read_text(encoding="utf-8")):
            yield f"{path.relative_to(ROOT)} names the version {number}"


def check(_arguments):
    found = list(disagreements())
    if found:
        raise ReleaseError("; ".join(found))
    print(f"release: all places name {version()}")


def replace_in(path, pattern, text):
    changed, count = re.subn(pattern, text, path.read_text(encoding="utf-8"), count=1, flags=re.MULTILINE)
    if count != 1:
        raise ReleaseError(f"{path.relative_to(ROOT)} has no place for '{text.strip()}'")
    path.write_text(changed, encoding="utf-8")


def prepare(_arguments):
    now, today = version(), datetime.date.today().isoformat()
    if now in sections():
        raise ReleaseError(f"CHANGELOG.md has a section {now} already")
    replace_in(
        CHANGELOG,
        rf"^## \[Unreleased\]\n\nTo become {re.escape(now)}\.\n",
        f"## [Unreleased]\n\n## [{now}] - {today}\n",
    )
    text = re.sub(r"^date-released: .*\n", "", CITATION.read_text(encoding="utf-8"), flags=re.MULTILINE)
    CITATION.write_text(text, encoding="utf-8")
    replace_in(CITATION, r"^version: .*\n", f"version: {now}\ndate-released: {today}\n")
    print(f"release: {now} is dated {today}; commit CHANGELOG.md and CITATION.cff, then: scripts/release.py tag")


def obstacles():
    """Yields a line for each reason why this commit cannot be released."""
    now, found = version(), sections()
    yield from disagreements()
    if changed := git("status", "--porcelain"):
        yield f"the tree is not clean: {', '.join(line[3:] for line in changed.splitlines()[:3])}"
    if (branch := git("rev-parse", "--abbrev-ref", "HEAD")) != "main":
        yield f"the branch is {branch}, not main"
    if now not in found or not ENTRY.search(found[now]["text"]):
        yield f"CHANGELOG.md has no entries below {now}: scripts/release.py prepare"
    if "Unreleased" in found and ENTRY.search(found["Unreleased"]["text"]):
        yield "CHANGELOG.md has entries below Unreleased"
    tags = [tag for tag in git("tag", "--list", "v*").split() if re.fullmatch(r"v\d+\.\d+\.\d+", tag)]
    if f"v{now}" in tags:
        yield f"the tag v{now} exists"
    elif later := [tag for tag in tags if ordered(tag) > ordered(now)]:
        yield f"the tag {later[0]} is of a later version than {now}"


def tag(arguments):
    now = version()
    if found := list(obstacles()):
        raise ReleaseError("; ".join(found))
    print(f"release: {now}: tree, branch, versions, CHANGELOG and tag are ready")
    notes = sections()[now]["text"].strip()
    if arguments.dry_run:
        commands = [" ".join(command) for command in TESTS]
        print(f"release: would run: {', '.join(commands)}; then tag v{now} with:\n\n{notes}")
        return
    for command in TESTS:
        print(f"release: {' '.join(command)}", flush=True)
        if subprocess.run(command, cwd=ROOT).returncode != 0:
            raise ReleaseError(f"{' '.join(command)} failed; nothing is tagged")
    git("tag", "--annotate", "--cleanup=verbatim", "--message", f"Headgate {now}\n\n{notes}", f"v{now}")
    print(
        f"release: tagged v{now}; publish it with: git push origin main v{now}; then: scripts/release.py next VERSION"
    )


def next_version(arguments):
    if not re.fullmatch(r"\d+\.\d+\.\d+", arguments.version):
        raise ReleaseError(f"VERSION must be MAJOR.MINOR.PATCH, got {arguments.version}")
    if ordered(arguments.version) <= ordered(version()):
        raise ReleaseError(f"VERSION must be greater than {version()}, got {arguments.version}")
    if version() not in sections():
        raise ReleaseError(f"{version()} is not released yet: CHANGELOG.md has no section of it")
    for part, number in zip(PARTS, arguments.version.split("."), strict=True):
        replace_in(HEADER, rf"^#define HEADGATE_VERSION_{part} \d+$", f"#define HEADGATE_VERSION_{part} {number}")
    replace_in(CITATION, r"^version: .*\n(?:date-released: .*\n)?", f"version: {arguments.version}\n")
    replace_in(CHANGELOG, r"^## \[Unreleased\]\n", f"## [Unreleased]\n\nTo become {arguments.version}.\n")
    print(f"release: the next version is {arguments.version}; commit version.h, CHANGELOG.md and CITATION.cff")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    steps = parser.add_subparsers(required=True, metavar="STEP")
    for name, step in (("check", check), ("prepare", prepare), ("tag", tag), ("next", next_version)):
        steps.add_parser(name).set_defaults(step=step)
    steps.choices["tag"].add_argument("--dry-run", action="store_true", help="check, but run no test and make no tag")
    steps.choices["next"].add_argument("version", metavar="VERSION")
    arguments = parser.parse_args()
    try:
        arguments.step(arguments)
    except ReleaseError as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
