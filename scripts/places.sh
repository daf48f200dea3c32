#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# places.sh: shows which files change for a new gate function, option of attention and metric. Adds a made-up one of
# each to a copy of the tree (scripts/places/additions.py), and builds it. Then looks for them in the tool's help, in
# `eval --json`, in `verify`, in the C API, in Python and PyTorch, and in the tests of gradients and metrics. Prints the
# files that each one changes. Needs build/python-venv, which scripts/python_venv.sh makes.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tree=$work/tree
mkdir "$tree"
git ls-files -z | xargs -0 cp --parents -t "$tree" # includes uncommitted changes

fail() {
  echo "places: $*" >&2
  exit 1
}

python=$root/build/python-venv/bin/python
[[ -x $python ]] || fail "no build/python-venv: scripts/python_venv.sh makes it"

scripts/places/additions.py "$tree" >"$work/files" || exit

quiet() { "$@" >"$work/log" 2>&1 || { tail -n 40 "$work/log" >&2 && fail "failed: $*"; }; }

# Builds quickly, for one vector target and with little optimisation.
build=$work/build
export CCACHE_BASEDIR=$work CCACHE_NOHASHDIR=1 # ignores the folder, whose name changes each time
launcher=()
if command -v ccache >/dev/null; then
  launcher=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache -DCMAKE_C_COMPILER_LAUNCHER=ccache)
fi
quiet cmake -S "$tree" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_FLAGS_RELEASE=-O1 \
  -DHEADGATE_VECTOR_TARGETS=avx2 -DHEADGATE_INSTALL=OFF -DHEADGATE_PYTHON=ON -DPython_EXECUTABLE="$python" "${launcher[@]}"
quiet cmake --build "$build" --target headgate_tool headgate_python headgate_python_models \
  core_test capi_test capi_c99_test metrics_test models_gradients_test models_config_keys_test

headgate=$build/headgate
says() { # says TEXT COMMAND...: the command succeeds and prints the text
  local text=$1
  shift
  "$@" >"$work/out" 2>"$work/err" || fail "$* fails: $(cat "$work/err")"
  grep -q -- "$text" "$work/out" || fail "$* does not say '$text'"
  echo "found '$text' in: ${*//$work\//}"
}

export OMP_NUM_THREADS=1
for verb in attend explain train; do says wide_sigmoid "$headgate" "$verb" --help; done
says gate_largest "$headgate" eval --help
quiet "$headgate" train --data "$root/README.md" --out "$work/run" --gate g1-headwise-wide_sigmoid --steps 2 --layers 1 \
  --dim 16 --heads 2 --seq-len 32 --batch 2 --eval-every 0 --threads 1
says '"gate_largest": 0\.' "$headgate" eval "$work/run" --text "$root/README.md" --tokens 640 --json
says wide_sigmoid "$build/tests/models/decoder/models_gradients_test" --gtest_list_tests
quiet "$build/tests/models/decoder/models_gradients_test" --gtest_filter='*wide_sigmoid*'
quiet "$build/tests/library/core/core_test"
quiet "$build/tests/library/capi/capi_test" # its random problems have the option, as those of `verify` do
quiet "$build/tests/library/capi/capi_c99_test"
quiet "$build/tests/models/evaluate/metrics_test"
quiet "$build/tests/models/decoder/models_config_keys_test"
quiet "$headgate" verify --problems 50

export PYTHONPATH=$build/python PYTHONDONTWRITEBYTECODE=1
says '--sharpness X' "$headgate" attend --help
says 'attention(…, sharpness)' "$python" scripts/places/option.py
says 'torch.ops.headgate.gated_attention(…, sharpness)' "$python" scripts/places/option.py
says 'wide_sigmoid' "$python" -c 'import headgate.torch; print(*headgate.torch.GATE_FUNCTIONS)'

# Checks that `verify` detects errors: first without the option's formula, then with the wrong sign of the gate's
# derivative. It must fail in a problem with the option or the gate.
notices() { # notices TEXT: `verify` of the changed tree fails and names a problem with TEXT
  quiet cmake --build "$build" --target headgate_tool
  if "$headgate" verify --problems 50 >"$work/out" 2>"$work/err"; then fail "verify does not notice a wrong $1"; fi
  grep -q "$1" "$work/err" || fail "verify fails elsewhere: $(cat "$work/err")"
  echo "found '$1' in: headgate verify, which refuses a wrong one"
}
problem=$tree/src/library/attention/problem.cc
cp "$problem" "$work/problem.cc"
sed -i '/p.scale \*= 1.0 + options.sharpness;/d' "$problem"
notices sharpness
cp "$work/problem.cc" "$problem"
sed -i '/struct Gate<GateFn::wide_sigmoid>/,/^};/s/return half(d, SigmoidGate::derivative/return hn::Neg(half(d, SigmoidGate::derivative/;
        /struct Gate<GateFn::wide_sigmoid>/,/^};/s/derivative(d, half(d, z)));/derivative(d, half(d, z))));/' \
  "$tree/src/library/core/gate_functions-inl.hpp"
notices wide_sigmoid

cat "$work/files"
