#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Shows that the tests would notice a wrong formula in attention, a layer, the decoder, AdamW or metrics.

Changes one formula at a time in a copy of the source tree (mutations.py: mostly a flipped sign), builds the test that
covers it and demands that it fails. A text that is not found exactly once, a mutant that does not build, or one that
passes is an error: exit status 1. A mutant takes some 10 to 30 s; one portable target is compiled, for the formulas
are written once, and one of short vectors for those that vectors alone have.

  scripts/mutation_check.py [--only REGEX] [--sample N [--seed S]] [--keep] [--jobs N]
  scripts/mutation_check.py --patterns      only whether the table fits the code, at once
"""

import argparse
import collections
import os
import pathlib
import platform
import random
import re
import shutil
import subprocess
import sys
import tempfile

from mutations import GROUPS, VECTOR_GROUPS

ROOT = pathlib.Path(__file__).resolve().parent.parent
COPIED = ("CMakeLists.txt", "README.md", "cmake", "docs", "examples", "include", "python", "src", "tests")

Mutation = collections.namedtuple("Mutation", "target test file name text changed")
MUTATIONS = [
    Mutation(target, test, file, *row)
    for target, groups in (("portable", GROUPS), ("vectors", VECTOR_GROUPS))
    for test, file, rows in groups
    for row in rows
]
# Highway then compiles for one target, the best that the flags allow.
TARGET_FLAGS = {
    "portable": "-DHWY_COMPILE_ONLY_STATIC",
    "vectors": "-DHWY_COMPILE_ONLY_STATIC" + (" -msse4.2 -maes -mpclmul" if platform.machine() == "x86_64" else ""),
}


def title(mutation):
    return f"{mutation.file}: {mutation.name}"


def run(command, **options):
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)


def configure(tree, build, target):
    """One target and little optimisation: mutants build fast."""
    command = [
        "cmake",
        "-S",
        tree,
        "-B",
        build,
        "-DCMAKE_BUILD_TYPE=Release",
        "-DCMAKE_CXX_FLAGS_RELEASE=-O1",
        "-DCMAKE_CXX_FLAGS=" + TARGET_FLAGS[target],
        "-DHEADGATE_TOOLS=ON",
        "-DHEADGATE_INSTALL=OFF",
        "-DHEADGATE_WERROR=OFF",
        "-DHEADGATE_MPI=ON",
    ]
    if shutil.which("ninja"):
        command += ["-G", "Ninja"]
    if shutil.which("ccache"):
        command += ["-DCMAKE_CXX_COMPILER_LAUNCHER=ccache", "-DCMAKE_C_COMPILER_LAUNCHER=ccache"]
    result = run(command)
    if result.returncode != 0:
        sys.exit("mutation_check: the tree does not configure:\n" + result.stdout)


def build_and_test(build, test, jobs):
    """None if the test program cannot be built, else whether it passes, and its output."""
    built = run(["cmake", "--build", build, "--target", pathlib.Path(test).name, "--parallel", str(jobs)])
    if built.returncode != 0:
        return None, built.stdout
    # Threads that do not spin for each other; few random problems of attention, but every gate variant of models.
    environment = dict(os.environ, OMP_WAIT_POLICY="PASSIVE")
    if test.startswith("attention/"):
        environment["HEADGATE_TEST_RUNS"] = "10"
    tested = run([build / "tests" / test, "--gtest_fail_fast", "--gtest_brief=1"], env=environment, timeout=900)
    return tested.returncode == 0, tested.stdout


def check_table():
    wrong = []
    for mutation in MUTATIONS:
        count = (ROOT / mutation.file).read_text(encoding="utf-8").count(mutation.text)
        if count != 1:
            wrong.append(f"{title(mutation)}: found {count} times: {mutation.text}")
        if mutation.text == mutation.changed:
            wrong.append(f"{title(mutation)}: changes nothing")
    for name, count in collections.Counter(title(m) for m in MUTATIONS).items():
        if count > 1:
            wrong.append(f"{name}: {count} rows of that name")
    if wrong:
        sys.exit("mutation_check: the table no longer fits the code:\n  " + "\n  ".join(wrong))


def chosen_mutations(arguments):
    found = [m for m in MUTATIONS if re.search(arguments.only, title(m))]
    if not found:
        sys.exit(f"mutation_check: --only '{arguments.only}' matches none of {len(MUTATIONS)} mutations")
    if arguments.sample is None or arguments.sample >= len(found):
        return found
    places = random.Random(arguments.seed).sample(range(len(found)), arguments.sample)
    return [found[place] for place in sorted(places)]


def mutate(tree, build, mutation, jobs):
    """A complaint, or None when the mutant was caught."""
    path = tree / mutation.file
    original = path.read_text(encoding="utf-8")
    path.write_text(original.replace(mutation.text, mutation.changed), encoding="utf-8")
    try:
        passed, output = build_and_test(build, mutation.test, jobs)
    except subprocess.TimeoutExpired:
        return f"{title(mutation)}: the tests did not end"
    finally:
        path.write_text(original, encoding="utf-8")
    if passed is None:
        return f"{title(mutation)}: the mutant does not build:\n{output}"
    return f"{title(mutation)}: SURVIVED ({mutation.text} -> {mutation.changed})" if passed else None


def check_mutants(work, chosen, jobs):
    """Complaints about the mutants that were not caught, in a copy of the tree below `work`."""
    tree = work / "tree"
    tree.mkdir()
    for name in COPIED:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, tree / name)
    for target in sorted({m.target for m in chosen}):
        configure(tree, work / target, target)
    for target, test in sorted({(m.target, m.test) for m in chosen}):
        passed, output = build_and_test(work / target, test, jobs)
        if not passed:
            sys.exit(f"mutation_check: {test} fails on the unchanged tree:\n{output}")
    complaints = []
    for number, mutation in enumerate(chosen, 1):
        complaint = mutate(tree, work / mutation.target, mutation, jobs)
        print(f"[{number}/{len(chosen)}] {complaint or 'caught: ' + title(mutation)}", flush=True)
        if complaint:
            complaints.append(complaint)
    return complaints


def count_of(text):
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not at least 1")
    return value


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--only", default="", metavar="REGEX", help="mutations whose 'file: name' it matches")
    parser.add_argument("--sample", type=count_of, metavar="N", help="N of them, the same ones for the same --seed")
    parser.add_argument("--seed", type=int, default=1, metavar="S", help="which sample (default 1)")
    parser.add_argument("--keep", action="store_true", help="keep the mutated tree's copy and its build")
    parser.add_argument("--jobs", type=count_of, default=os.cpu_count(), help="parallel compilations")
    parser.add_argument("--patterns", action="store_true", help="only check that every text occurs once")
    arguments = parser.parse_args()
    check_table()
    if arguments.patterns:
        return 0
    chosen = chosen_mutations(arguments)
    work = pathlib.Path(tempfile.mkdtemp(prefix="headgate-mutation-"))
    try:
        complaints = check_mutants(work, chosen, arguments.jobs)
    finally:
        if arguments.keep:
            print(f"kept: {work}")
        else:
            shutil.rmtree(work)
    print(f"{len(chosen) - len(complaints)} of {len(chosen)} wrong formulas caught")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
