#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Shows that the tests notice a wrong formula. PyPI's universalmutator changes one sign, operator or comparison of a
listed file by the rules of mutants.rules; the tests that cover the file must then fail.

  caught         a test fails, crashes or does not end
  SURVIVED       all pass: a test is missing, or the change has no effect on results
  equivalent     the compiler generates the same object files
  not compiled   the changed file is not C++

Exits with 1 if more than half of the caught and surviving mutants survive. About one in six does, but samples are
small. Mutants are built in a copy of the tree, for one vector target and with little optimisation. The tests of a
mutant are built and run one after another, until one fails.

  scripts/mutation_check.py [--only REGEX] [--sample N [--seed TEXT]] [--keep] [--jobs N]
  scripts/mutation_check.py --list     list the mutants
  scripts/mutation_check.py --table    only check that the table fits the tree, without universalmutator
"""

import argparse
import collections
import contextlib
import fnmatch
import hashlib
import io
import os
import pathlib
import random
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
COPIED = ("CMakeLists.txt", "README.md", "cmake", "docs", "examples", "include", "python", "src", "tests")
RULES = ROOT / "scripts" / "mutants.rules"
MOST_SURVIVORS = 1 / 2
MOST_MEMORY_bytes = 8 << 30  # a wrong formula may allocate without bound
LONGEST_s = 300

# Rows of (files, test programs below build/tests that cover them, the cheapest first). A file belongs to the first row
# that it matches.
CPU, ATTENTION = "src/library/attention/cpu", "library/attention"
LINEAR = "src/library/linear_attention"
TABLE = (
    (f"{CPU}/dense/forward*", (f"{ATTENTION}/forward_test", f"{ATTENTION}/packed_test")),
    (f"{CPU}/dense/backward*", (f"{ATTENTION}/backward_test", f"{ATTENTION}/packed_test")),
    (f"{CPU}/small/small_backward*", (f"{ATTENTION}/small_heads_test", f"{ATTENTION}/backward_test")),
    (f"{CPU}/small/*", (f"{ATTENTION}/small_heads_test", f"{ATTENTION}/forward_test")),
    (f"{CPU}/decode/*_kernel.cc", (f"{ATTENTION}/forward_test", f"{ATTENTION}/packed_test")),
    (f"{CPU}/decode/*-inl.hpp", (f"{ATTENTION}/forward_test",)),
    (f"{CPU}/listed/*", (f"{ATTENTION}/key_lists_test", f"{ATTENTION}/forward_test", f"{ATTENTION}/backward_test")),
    (f"{CPU}/statistics/*", (f"{ATTENTION}/key_lists_test", f"{ATTENTION}/statistics_test")),
    (f"{CPU}/merge_kernel.cc", (f"{ATTENTION}/merge_test",)),
    (f"{CPU}/common/backward*", (f"{ATTENTION}/backward_test", f"{ATTENTION}/packed_test")),
    (f"{CPU}/common/gate_rows-inl.hpp", (f"{ATTENTION}/backward_test", f"{ATTENTION}/small_heads_test")),
    (f"{CPU}/common/dropout-inl.hpp", (f"{ATTENTION}/dropout_test",)),
    (f"{CPU}/common/open_rows-inl.hpp", (f"{ATTENTION}/gate_threshold_test", f"{ATTENTION}/small_heads_test")),
    (
        f"{CPU}/common/*-inl.hpp",
        (f"{ATTENTION}/forward_test", f"{ATTENTION}/backward_test", f"{ATTENTION}/packed_test"),
    ),
    (f"{CPU}/common/visibility.hpp", (f"{ATTENTION}/problem_test", f"{ATTENTION}/forward_test")),
    (f"{LINEAR}/cpu/gated_norm*", ("library/linear_attention/gated_norm_test",)),
    (f"{LINEAR}/cpu/*convolution*", ("library/linear_attention/short_convolution_test",)),
    *(
        (f"{LINEAR}/{name}", ("library/linear_attention/linear_statistics_test",))
        for name in ("cpu/linear_statistics*", "cpu/query_walk-inl.hpp", "cpu/state_statistics-inl.hpp")
    ),
    (f"{LINEAR}/cpu/*", ("library/linear_attention/linear_attention_test",)),
    ("src/library/core/gate_functions-inl.hpp", (f"{ATTENTION}/backward_test",)),
    ("src/library/core/vec-inl.hpp", (f"{ATTENTION}/elementary_test", f"{ATTENTION}/forward_test")),
    ("src/library/core/view.hpp", ("library/core/core_test",)),
    (
        "src/models/layers/gated_attention.cc",
        ("models/decoder/models_gradients_test", "models/decoder/models_head_override_test"),
    ),
    ("src/models/layers/attention_cache.cc", ("models/generate/models_cached_decoder_test",)),
    *(
        (f"src/models/layers/{name}.cc", ("models/layers/layers_test",))
        for name in (
            "adamw",
            "cross_entropy",
            "elementwise",
            "embedding",
            "skinny_gemm",
            "gate_apply",
            "linear",
            "rmsnorm",
            "rope",
            "swiglu",
        )
    ),
    ("src/models/decoder/decoder*.cc", ("models/decoder/models_gradients_test", "models/decoder/models_decoder_test")),
    ("src/models/data/token_source.cc", ("models/data/data_test",)),
    ("src/models/evaluate/*.hpp", ("models/evaluate/metrics_test",)),
    ("src/models/evaluate/evaluat*.cc", ("models/evaluate/metrics_test",)),
    ("src/models/generate/sampler.cc", ("models/generate/generate_test",)),
    ("src/models/generate/cached_decoder.cc", ("models/generate/models_cached_decoder_test",)),
    ("src/models/io/gguf_formats.cc", ("models/io/io_test",)),
    ("src/models/train/schedule.cc", ("models/train/train_test",)),
    ("src/tool/reports/compare/thinned.cc", ("tool/reports/compare/compare_test",)),
    ("src/tool/reports/xray/ranks.cc", ("tool/reports/xray/xray_test",)),
    ("src/tool/reports/xray/head_map.cc", ("tool/reports/xray/xray_test",)),
)

Mutant = collections.namedtuple("Mutant", "file line old new tests")


def title(mutant):
    return f"{mutant.file}:{mutant.line}: {mutant.old.strip()}  ->  {mutant.new.strip()}"


def covered_files():
    """Maps each file that TABLE covers to its tests."""
    files = {}
    for path in sorted((ROOT / "src").rglob("*")):
        name = path.relative_to(ROOT).as_posix()
        tests = next((tests for pattern, tests in TABLE if fnmatch.fnmatch(name, pattern)), None)
        if tests and path.suffix in (".cc", ".hpp"):
            files[name] = tests
    return files


def check_table(files):
    wrong = [f"no file is {pattern}" for pattern, _ in TABLE if not any(fnmatch.fnmatch(f, pattern) for f in files)]
    folders = {test.rsplit("/", 1)[0] for _, tests in TABLE for test in tests}
    wrong += [
        f"no folder tests/{folder}" for folder in folders if not (ROOT / "tests" / folder / "CMakeLists.txt").exists()
    ]
    if wrong:
        sys.exit("mutation_check: the table no longer fits the tree:\n  " + "\n  ".join(wrong))


def mutants_of(file, tests):
    from universalmutator import mutator  # installed by scripts/python_venv.sh build mutants

    lines = (ROOT / file).read_text(encoding="utf-8").splitlines(keepends=True)
    with contextlib.redirect_stdout(io.StringIO()):  # universalmutator prints the rules that it reads
        found = mutator.mutants_regexp(lines, ruleFiles=[str(RULES)], ignorePatterns=[], ignoreStringOnly=True)
    return [Mutant(file, number, lines[number - 1], new, tests) for number, new, *_ in found]


def run(command, **options):
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)


def configure(tree, build):
    command = [
        "cmake",
        "-S",
        tree,
        "-B",
        build,
        "-G",
        "Ninja",
        "-DCMAKE_BUILD_TYPE=Release",
        "-DCMAKE_CXX_FLAGS_RELEASE=-O1",
        "-DHEADGATE_VECTOR_TARGETS=avx2",
        "-DHEADGATE_INSTALL=OFF",
        "-DHEADGATE_WERROR=OFF",
    ]
    if shutil.which("ccache"):
        command += ["-DCMAKE_CXX_COMPILER_LAUNCHER=ccache", "-DCMAKE_C_COMPILER_LAUNCHER=ccache"]
    result = run(command)
    if result.returncode != 0:
        sys.exit("mutation_check: the tree does not configure:\n" + result.stdout)


def built(build, test, jobs):
    return run(["cmake", "--build", build, "--target", pathlib.Path(test).name, "--parallel", str(jobs)])


def limit_memory():
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY_bytes, MOST_MEMORY_bytes))


def passes(build, test, seconds):
    """Runs a test. Returns the finished process, or None if it did not end within `seconds`."""
    # PASSIVE: waiting threads do not spin. Tests of the library check few random problems.
    environment = dict(os.environ, OMP_WAIT_POLICY="PASSIVE")
    if test.startswith(("library/attention/", "library/linear_attention/")):
        environment["HEADGATE_TEST_RUNS"] = "10"
    try:
        return run(
            [build / "tests" / test, "--gtest_fail_fast", "--gtest_brief=1"],
            env=environment,
            timeout=seconds,
            preexec_fn=limit_memory,
        )
    except subprocess.TimeoutExpired:
        return None


def object_files(build):
    return {path: hashlib.sha256(path.read_bytes()).digest() for path in build.rglob("*.o")}


def verdict(tree, build, mutant, objects, seconds, jobs):
    path = tree / mutant.file
    original = path.read_text(encoding="utf-8")
    lines = original.splitlines(keepends=True)
    lines[mutant.line - 1] = mutant.new
    path.write_text("".join(lines), encoding="utf-8")
    try:
        for number, test in enumerate(mutant.tests):
            if built(build, test, jobs).returncode != 0:
                return "not compiled"
            if number == 0 and object_files(build).items() <= objects.items():
                return "equivalent"
            result = passes(build, test, seconds[test])
            if result is None or result.returncode != 0:
                return "caught"
        return "SURVIVED"
    finally:
        path.write_text(original, encoding="utf-8")


def check_mutants(work, mutants, wanted, jobs):
    """Tries mutants until `wanted` of them were caught or survived. Returns the number of mutants by verdict."""
    tree, build = work / "tree", work / "build"
    tree.mkdir()
    for name in COPIED:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, tree / name)
    configure(tree, build)
    seconds, counts = {}, collections.Counter()  # seconds: time limit of each test, from its time without mutants
    for mutant in mutants:
        for test in mutant.tests:
            result = built(build, test, jobs)  # builds the unchanged sources again after each mutant
            if result.returncode == 0 and test not in seconds:
                start = time.monotonic()
                result = passes(build, test, LONGEST_s)
                seconds[test] = min(LONGEST_s, 20 + 10 * (time.monotonic() - start))
            if result is None or result.returncode != 0:
                sys.exit(
                    f"mutation_check: {test} fails on the unchanged tree:\n{result.stdout if result else 'no end'}"
                )
        word = verdict(tree, build, mutant, object_files(build), seconds, jobs)
        counts[word] += 1
        print(f"{word:<12} {title(mutant)}", flush=True)
        if counts["caught"] + counts["SURVIVED"] == wanted:
            break
    return counts


def count_of(text):
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not at least 1")
    return value


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--only", default="", metavar="REGEX", help="mutants whose 'file:line: old -> new' it matches")
    parser.add_argument("--sample", type=count_of, metavar="N", help="N that compile, the same for the same --seed")
    parser.add_argument("--seed", default="1", metavar="TEXT", help="which sample (default 1)")
    parser.add_argument("--keep", action="store_true", help="keep the mutated tree's copy and its build")
    parser.add_argument("--jobs", type=count_of, default=os.cpu_count(), help="parallel compilations")
    parser.add_argument("--table", action="store_true", help="only check the table of files and tests")
    parser.add_argument("--list", action="store_true", help="only print the mutants")
    arguments = parser.parse_args()
    files = covered_files()
    check_table(files)
    if arguments.table:
        return 0
    mutants = [
        m for file, tests in files.items() for m in mutants_of(file, tests) if re.search(arguments.only, title(m))
    ]
    if not mutants:
        sys.exit(f"mutation_check: --only '{arguments.only}' matches no mutant")
    if arguments.list:
        print("\n".join(map(title, mutants)))
        print(f"{len(mutants)} mutants of {len(files)} files")
        return 0
    if arguments.sample:
        random.Random(arguments.seed).shuffle(mutants)
    work = pathlib.Path(tempfile.mkdtemp(prefix="headgate-mutants-"))
    try:
        counts = check_mutants(work, mutants, arguments.sample, arguments.jobs)
    finally:
        if arguments.keep:
            print(f"kept: {work}")
        else:
            shutil.rmtree(work)
    print(", ".join(f"{count} {word}" for word, count in counts.items()))
    return 1 if counts["SURVIVED"] > MOST_SURVIVORS * (counts["caught"] + counts["SURVIVED"]) else 0


if __name__ == "__main__":
    sys.exit(main())
