# SPDX-License-Identifier: Apache-2.0
"""Reading the package list: fields, splits, facts for records, and errors of one line."""

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

import debian_packages
from debian_packages import DataError, read_list


def test_read_stanza_fields(packages_file):
    found = read_list(packages_file)
    assert len(found.packages) == 400 and found.sections() == ["doc", "games", "libdevel", "libs"]
    library, development, document, game = found.packages[:4]
    word = library.name.removeprefix("lib").removesuffix("1")
    assert library.depends == ("libc6",) and library.description == f"shared library for {word} data"
    assert library.section == "libs" and document.depends == ()
    assert development.depends[0].endswith("1") and development.depends[1:] == ("libc6-dev", "libc-dev")
    assert game.depends[1] == game.name.removesuffix("-game") + "-doc"
    raw = packages_file.read_bytes()
    assert found.facts == {
        "file": "excerpt_Packages",
        "bytes": len(raw),
        "sha256": hashlib.sha256(raw).hexdigest(),
        "date": None,
    }


def test_list_path_with_server_names_the_file_alone(packages_file, tmp_path):
    path = tmp_path / "deb.example.org_debian_dists_bookworm_main_binary-amd64_Packages"
    path.write_bytes(packages_file.read_bytes())
    assert read_list(path).facts["file"] == "bookworm_main_binary-amd64_Packages"


def test_splits_are_disjoint_and_of_about_the_sizes(packages_file):
    found = read_list(packages_file)
    parts = [found.of(split) for split in ("train", "valid", "test")]
    assert sum(map(len, parts)) == 400
    assert 280 < len(parts[0]) < 350 and all(20 < len(part) < 70 for part in parts[1:])
    assert [package.split for package in found.packages] == [
        package.split for package in read_list(packages_file).packages
    ]


def test_list_repeated_names_are_read_once(packages_file, tmp_path):
    assert [p.name for p in read_list(packages_file, 100).packages] == [
        p.name for p in read_list(packages_file).packages[::4]
    ]
    twice = tmp_path / "twice_Packages"
    twice.write_text("Package: a\nSection: libs\nDescription: one\n\nPackage: a\nSection: doc\nDescription: two\n")
    assert [package.description for package in read_list(twice).packages] == ["one"]


def test_release_file_beside_list_gives_the_date(tmp_path):
    path = tmp_path / "host_dists_bookworm_main_binary-amd64_Packages"
    path.write_text("Package: a\nSection: libs\nDescription: one\n")
    (tmp_path / "host_dists_bookworm_InRelease").write_text("Suite: x\nDate: Sat, 11 Jul 2026 10:16:37 UTC\nX: y\n")
    assert read_list(path).facts["date"] == "Sat, 11 Jul 2026 10:16:37 UTC"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no packages in it"),
        (b"Package: a\nDescription: one\n", "package 1 has no Section"),
        (b"Package: a\nSection: b\nDescription: c\n\nSection: b\n", "package 2 has no Package"),
        (b"Package: \xff\n", "not UTF-8 at byte 9"),
    ],
)
def test_list_malformed_is_refused(tmp_path, content, message):
    path = tmp_path / "bad_Packages"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message) as error:
        read_list(path)
    assert "\n" not in str(error.value)


def test_list_missing_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(debian_packages, "LISTS", tmp_path)
    with pytest.raises(DataError, match="no package list of Debian 12 .* apt-get update fetches it"):
        read_list()
    with pytest.raises(DataError, match="No such file"):
        read_list(tmp_path / "none_Packages")
    monkeypatch.setattr(debian_packages, "HELPER", "/nowhere/apt-helper")
    with pytest.raises(DataError, match="needs /nowhere/apt-helper"):
        read_list(tmp_path / "none_Packages.lz4")


def test_command_prints_facts_as_json(packages_file, tmp_path):
    def call(path):
        return subprocess.run([sys.executable, debian_packages.__file__, path], capture_output=True, text=True)

    assert '"file": "excerpt_Packages"' in call(packages_file).stdout
    refused = call(tmp_path / "none_Packages")
    assert refused.returncode == 1 and refused.stderr.startswith("debian_packages.py: ")
    assert refused.stderr.count("\n") == 1


@pytest.mark.skipif(
    not list(Path("/var/lib/apt/lists").glob(debian_packages.NAME + "*")), reason="no list of apt's here"
)
def test_list_of_this_machine_is_read():
    found = read_list()
    assert len(found.packages) > 60000 and 50 <= len(found.sections()) <= 70
    assert found.facts["date"] and len({package.name for package in found.packages}) == len(found.packages)
