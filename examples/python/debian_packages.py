# SPDX-License-Identifier: Apache-2.0
"""Reads the package list of Debian 12: name, section, description and dependencies of some 63,000 packages.

Every Debian machine has it, since apt keeps the list of main, amd64, in /var/lib/apt/lists. Debian's signed release
file has its SHA-256, so that results can name the list that they used.

    python3 debian_packages.py [FILE]       prints which list is there, as JSON
"""

import dataclasses
import hashlib
import json
import pathlib
import re
import subprocess
import sys

LISTS = pathlib.Path("/var/lib/apt/lists")
NAME = "*_dists_bookworm_main_binary-amd64_Packages"
HELPER = "/usr/lib/apt/apt-helper"  # reads the lists, whichever compression apt has used
FIELD = re.compile(r"^(Package|Section|Description|Depends): (.*)$", re.MULTILINE)


class DataError(Exception):
    """An error in the list, whose message is one line for the user."""


@dataclasses.dataclass(frozen=True)
class Package:
    name: str
    section: str
    description: str  # one line
    depends: tuple[str, ...]  # names, including all alternatives

    @property
    def split(self) -> str:
        """Returns train (80%), valid or test (10% each). A hash of the name decides, so the split never changes."""
        first = hashlib.sha256(self.name.encode()).digest()[0]
        return "test" if first < 26 else "valid" if first < 52 else "train"


@dataclasses.dataclass(frozen=True)
class PackageList:
    packages: list[Package]
    facts: dict  # file, bytes, sha256 and date, for records

    def of(self, split: str) -> list[Package]:
        return [package for package in self.packages if package.split == split]

    def sections(self) -> list[str]:
        return sorted({package.section for package in self.packages})


def find_list() -> pathlib.Path:
    found = sorted(path for suffix in ("", ".*") for path in LISTS.glob(NAME + suffix))
    if not found:
        raise DataError(f"no package list of Debian 12 (bookworm, main, amd64) in {LISTS}: apt-get update fetches it")
    return found[0]


def read_bytes(path: pathlib.Path) -> bytes:
    if path.name.endswith("Packages"):
        try:
            return path.read_bytes()
        except OSError as error:
            raise DataError(f"{path}: {error.strerror}") from error
    try:
        return subprocess.run([HELPER, "cat-file", path], check=True, capture_output=True).stdout
    except OSError as error:
        raise DataError(f"{path}: needs {HELPER} to be read: {error.strerror}") from error
    except subprocess.CalledProcessError as error:
        said = error.stderr.decode(errors="replace").strip().splitlines() or ["no message"]
        raise DataError(f"{path}: {HELPER} cannot read it: {said[0]}") from error


def release_date(path: pathlib.Path) -> str | None:
    """Returns the date in the release file that apt keeps beside the list, or None if there is none."""
    release = path.with_name(path.name.split("_main_")[0] + "_InRelease")
    match = re.search(r"^Date: (.*)$", release.read_text(errors="replace"), re.MULTILINE) if release.exists() else None
    return match and match[1]


def package_of(stanza: str, number: int, path: pathlib.Path) -> Package:
    fields = dict(FIELD.findall(stanza))
    for name in ("Package", "Section", "Description"):
        if name not in fields:
            raise DataError(f"{path}: package {number} has no {name}")
    depends = (part.split("(")[0].split(":")[0].strip() for part in re.split(r"[,|]", fields.get("Depends", "")))
    return Package(fields["Package"], fields["Section"], fields["Description"], tuple(filter(None, depends)))


def read_list(path: str | pathlib.Path | None = None, most: int = 0) -> PackageList:
    """Reads the list in the file, by default apt's, in its alphabetical order. Keeps the first package of each name. If
    `most` is given and the list is longer, reads only every n-th package. Raises DataError."""
    path = pathlib.Path(path) if path else find_list()
    raw = read_bytes(path)
    try:
        stanzas = raw.decode().split("\n\n")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 at byte {error.start}") from error
    stanzas = [stanza for stanza in stanzas if stanza.strip()]
    every = -(-len(stanzas) // most) if most else 1
    packages = {}
    for number, stanza in enumerate(stanzas[:: max(every, 1)], 1):
        package = package_of(stanza, number, path)
        packages.setdefault(package.name, package)
    if not packages:
        raise DataError(f"{path}: no packages in it")
    name = path.name.rpartition("_dists_")[2]  # drops the server from which the list came
    facts = {"file": name, "bytes": len(raw), "sha256": hashlib.sha256(raw).hexdigest(), "date": release_date(path)}
    return PackageList(list(packages.values()), facts)


if __name__ == "__main__":
    try:
        print(json.dumps(read_list(*sys.argv[1:2]).facts))
    except DataError as error:
        sys.exit(f"debian_packages.py: {error}")
