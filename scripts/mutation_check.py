#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Shows that the tests would notice a wrong sign in the backward pass.

Flips one sign at a time in a copy of the source tree, in each formula of the backward code, builds backward_test and
demands that it fails. A pattern that is not found exactly once, a mutant that does not build, or one that passes is an
error: exit status 1. Takes some minutes; one portable vector target is compiled, for the formulas are written once.

  scripts/mutation_check.py [--only REGEX] [--keep] [--jobs N]
  scripts/mutation_check.py --patterns      only whether the table fits the code, at once
"""

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
COPIED = ("CMakeLists.txt", "README.md", "cmake", "examples", "include", "src", "tests")

ROWS = "src/attention/backward_rows-inl.hpp"
GATE = "src/attention/gate-inl.hpp"
SCORES = "src/attention/scores-inl.hpp"
KERNEL = "src/attention/backward_kernel.cc"

# (name, file, text that occurs exactly once there, the same with one sign flipped)
MUTATIONS = (
    ("delta, no gate", ROWS, "hn::MulAdd(dy, hn::LoadU(d, row.y + x), delta)",
     "hn::NegMulAdd(dy, hn::LoadU(d, row.y + x), delta)"),
    ("o = y - g, added gate", ROWS, "hn::Sub(y, g)", "hn::Add(y, g)"),
    ("delta, added gate", ROWS, "hn::MulAdd(dy, o, delta)", "hn::NegMulAdd(dy, o, delta)"),
    ("dz, added gate", ROWS, "hn::StoreU(hn::Mul(dy, gate.derivative(d, z)), d, row.dz + x)",
     "hn::StoreU(hn::Neg(hn::Mul(dy, gate.derivative(d, z))), d, row.dz + x)"),
    ("do, multiplied gate", ROWS, "hn::StoreU(hn::Mul(dy, g), d, row.d_o + x)",
     "hn::StoreU(hn::Neg(hn::Mul(dy, g)), d, row.d_o + x)"),
    ("delta, multiplied gate", ROWS, "hn::Add(delta, dy_y)", "hn::Sub(delta, dy_y)"),
    ("dz from y", ROWS, "hn::Mul(dy_y, gate.ratio(d, z))", "hn::Neg(hn::Mul(dy_y, gate.ratio(d, z)))"),
    ("dz from o", ROWS, "hn::Mul(dy, hn::LoadU(d, row.o + x))", "hn::Neg(hn::Mul(dy, hn::LoadU(d, row.o + x)))"),

    ("sigmoid'", GATE, "hn::Mul(s.sigma, s.complement)", "hn::Neg(hn::Mul(s.sigma, s.complement))"),
    ("1 - sigmoid", GATE, "return SigmoidPair<D>(d, z).complement;",
     "return hn::Neg(SigmoidPair<D>(d, z).complement);"),
    ("sigmoid2'/sigmoid2", GATE, "return SigmoidGate::ratio(d, z);", "return hn::Neg(SigmoidGate::ratio(d, z));"),
    ("sigmoid2'", GATE, "const V s = SigmoidGate::derivative(d, z);",
     "const V s = hn::Neg(SigmoidGate::derivative(d, z));"),
    ("ns_sigmoid'", GATE, "hn::Mul(hn::Set(d, static_cast<hn::TFromD<D>>(0.5)), SigmoidGate::derivative(d, z))",
     "hn::Mul(hn::Set(d, static_cast<hn::TFromD<D>>(-0.5)), SigmoidGate::derivative(d, z))"),
    ("ns_sigmoid'/ns_sigmoid", GATE, "hn::Div(derivative(d, z), value(d, z))",
     "hn::Neg(hn::Div(derivative(d, z), value(d, z)))"),
    ("silu'", GATE, "hn::MulAdd(hn::Mul(z, s.sigma), s.complement, s.sigma)",
     "hn::NegMulAdd(hn::Mul(z, s.sigma), s.complement, s.sigma)"),
    ("softplus'", GATE, "return SigmoidGate::value(d, z);", "return hn::Neg(SigmoidGate::value(d, z));"),
    ("softplus'/softplus", GATE, "hn::Div(derivative(d, z), g)", "hn::Neg(hn::Div(derivative(d, z), g))"),
    ("identity'", GATE, "return hn::Set(d, hn::TFromD<D>{1});", "return hn::Set(d, hn::TFromD<D>{-1});"),

    ("1 - tanh^2", SCORES, "hn::NegMulAdd(t, t, one)", "hn::MulAdd(t, t, one)"),
    ("alibi", SCORES, "s[j] -= weight *", "s[j] += weight *"),
    ("bias", SCORES, "s[j] += buffer[j]", "s[j] -= buffer[j]"),

    ("delta - dlse", KERNEL, "*delta -= dlse;", "*delta += dlse;"),
    ("dsink", KERNEL, "*sink_part -= std::exp(", "*sink_part += std::exp("),
    ("sink - lse", KERNEL, "std::exp(p_.sink(h) - lse_natural)", "std::exp(p_.sink(h) + lse_natural)"),
    ("row that sees nothing", KERNEL, "lse_natural == -std::numeric_limits<double>::infinity()",
     "lse_natural == +std::numeric_limits<double>::infinity()"),
    ("lse of a row that sees nothing", KERNEL, "nothing_seen ? std::numeric_limits<T>::infinity()",
     "nothing_seen ? -std::numeric_limits<T>::infinity()"),
    ("P = exp(s - lse)", KERNEL, "hn::Sub(hn::Load(d, s + j), lse)", "hn::Add(hn::Load(d, s + j), lse)"),
    ("dP - delta", KERNEL, "hn::Sub(hn::Load(d, ds + j), delta)", "hn::Add(hn::Load(d, ds + j), delta)"),
    ("ds = P (dP - delta)", KERNEL, "hn::Mul(hn::Load(d, probability + j), hn::Sub(",
     "hn::Mul(hn::Neg(hn::Load(d, probability + j)), hn::Sub("),
    ("softcap's slope on ds", KERNEL, "ds[j] *= slope[j];", "ds[j] *= -slope[j];"),
    ("dk's scale", KERNEL, "plan_.D_padded, static_cast<T>(p_.scale), block)",
     "plan_.D_padded, -static_cast<T>(p_.scale), block)"),
    ("dv", KERNEL, "plan_.Dv_padded, T{1}, block)", "plan_.Dv_padded, T{-1}, block)"),
    ("dq's scale", KERNEL, "const T factor = static_cast<T>(p_.scale);", "const T factor = -static_cast<T>(p_.scale);"),
    ("dbias sum over queries", KERNEL, "sum[j] += ds[j];", "sum[j] -= ds[j];"),
    ("dbias sum over heads and batches", KERNEL, "sum[j] += from[j];", "sum[j] -= from[j];"),
    ("headwise dz", KERNEL, "sum += static_cast<double>(dz[x]);", "sum -= static_cast<double>(dz[x]);"),
    ("dsinks sum", KERNEL, "sum += parts[", "sum -= parts["),
)


def run(command, **options):
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)


def configure(tree, build):
    """One target without vector instructions and little optimisation: mutants build fast."""
    command = ["cmake", "-S", tree, "-B", build, "-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_CXX_FLAGS_RELEASE=-O1",
               "-DCMAKE_CXX_FLAGS=-DHWY_COMPILE_ONLY_STATIC", "-DHEADGATE_TOOLS=OFF", "-DHEADGATE_INSTALL=OFF",
               "-DHEADGATE_WERROR=OFF"]
    if shutil.which("ninja"):
        command += ["-G", "Ninja"]
    if shutil.which("ccache"):
        command += ["-DCMAKE_CXX_COMPILER_LAUNCHER=ccache", "-DCMAKE_C_COMPILER_LAUNCHER=ccache"]
    result = run(command)
    if result.returncode != 0:
        sys.exit("mutation_check: the tree does not configure:\n" + result.stdout)


def build_and_test(build, jobs):
    """None if the test program cannot be built, else whether it passes, and its output."""
    built = run(["cmake", "--build", build, "--target", "backward_test", "--parallel", str(jobs)])
    if built.returncode != 0:
        return None, built.stdout
    test = build / "tests" / "attention" / "backward_test"
    environment = dict(os.environ, HEADGATE_TEST_RUNS="10")
    tested = run([test, "--gtest_fail_fast", "--gtest_brief=1"], env=environment, timeout=900)
    return tested.returncode == 0, tested.stdout


def check_patterns():
    wrong = []
    for name, file, pattern, flipped in MUTATIONS:
        count = (ROOT / file).read_text(encoding="utf-8").count(pattern)
        if count != 1:
            wrong.append(f"{name}: found {count} times in {file}: {pattern}")
        if pattern == flipped:
            wrong.append(f"{name}: changes nothing")
    if wrong:
        sys.exit("mutation_check: the table no longer fits the code:\n  " + "\n  ".join(wrong))


def mutate(tree, build, mutation, jobs):
    """A complaint, or None when the mutant was caught."""
    name, file, pattern, flipped = mutation
    path = tree / file
    original = path.read_text(encoding="utf-8")
    path.write_text(original.replace(pattern, flipped), encoding="utf-8")
    try:
        passed, output = build_and_test(build, jobs)
    except subprocess.TimeoutExpired:
        return f"{name}: the tests did not end"
    finally:
        path.write_text(original, encoding="utf-8")
    if passed is None:
        return f"{name}: the mutant does not build:\n{output}"
    return f"{name}: SURVIVED ({pattern} -> {flipped})" if passed else None


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", default="", help="regular expression on the mutation's name")
    parser.add_argument("--keep", action="store_true", help="keep the mutated tree's copy and its build")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="parallel compilations")
    parser.add_argument("--patterns", action="store_true", help="only check that every pattern occurs once")
    arguments = parser.parse_args()
    check_patterns()
    if arguments.patterns:
        return 0
    chosen = [m for m in MUTATIONS if re.search(arguments.only, m[0])]
    work = pathlib.Path(tempfile.mkdtemp(prefix="headgate-mutation-"))
    try:
        tree, build = work / "tree", work / "build"
        tree.mkdir()
        for name in COPIED:
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
            copy(ROOT / name, tree / name)
        configure(tree, build)
        passed, output = build_and_test(build, arguments.jobs)
        if not passed:
            sys.exit("mutation_check: the tests fail on the unchanged tree:\n" + output)
        complaints = []
        for number, mutation in enumerate(chosen, 1):
            complaint = mutate(tree, build, mutation, arguments.jobs)
            print(f"[{number}/{len(chosen)}] {complaint or 'caught: ' + mutation[0]}", flush=True)
            if complaint:
                complaints.append(complaint)
    finally:
        if arguments.keep:
            print(f"kept: {work}")
        else:
            shutil.rmtree(work)
    print(f"{len(chosen) - len(complaints)} of {len(chosen)} flipped signs caught")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
