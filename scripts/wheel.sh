#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# wheel.sh [--check] [BUILD]: builds the wheel of the Python package, with all libraries but those of the C and C++
# runtime in it, into BUILD/wheels (default: build), by the virtual environment of python_venv.sh. --check: installs it
# into a fresh environment and runs it where none of the system's other libraries is taken; where NumPy cannot be fetched
# it says so in one line and exits with 77, with CI=true with 1.
set -euo pipefail
cd "$(dirname "$0")/.."

check=false
if [[ "${1:-}" == --check ]]; then
  check=true
  shift
fi
build=${1:-build}
python=$build/python-venv/bin/python
[[ -f $build/python-venv/installed.txt ]] || {
  echo "wheel: no $build/python-venv; scripts/python_venv.sh makes it" >&2
  exit 1
}
export CC=${CC:-cc} CXX=${CXX:-c++} # by the names of the other builds, so that ccache knows what they compiled
export PATH="$PWD/$build/python-venv/bin:$PATH"

rm -rf "$build/wheels" && mkdir -p "$build/wheels/plain"
"$python" -m build --wheel --no-isolation --outdir "$build/wheels/plain" . >"$build/wheels/build.log" 2>&1 ||
  { tail -n 30 "$build/wheels/build.log" >&2 && exit 1; }
"$python" -m auditwheel repair --wheel-dir "$build/wheels" "$build"/wheels/plain/*.whl >"$build/wheels/repair.log" 2>&1 ||
  { tail -n 30 "$build/wheels/repair.log" >&2 && exit 1; }
wheel=$(echo "$build"/wheels/*.whl)
echo "wheel: $wheel, $(du -m "$wheel" | cut -f1) MB"
$check || exit 0

fresh=$(mktemp -d)
trap 'rm -rf "$fresh"' EXIT
"$python" -m venv "$fresh/venv"
if ! "$fresh/venv/bin/python" -m pip install --quiet --disable-pip-version-check --timeout 20 --retries 2 "$wheel" \
  >"$build/wheels/install.log" 2>&1; then
  echo "wheel: built but not tried out, for want of NumPy: $(grep -m1 '^ERROR' "$build/wheels/install.log")" >&2
  [[ "${CI:-}" != true ]] || exit 1
  exit 77
fi
package=$(cd "$fresh" && env -u LD_LIBRARY_PATH venv/bin/python -c 'import headgate; print(headgate.__path__[0])')
[[ "$package" == "$fresh"/* ]] || { echo "wheel: imported $package" >&2 && exit 1; }

# What may come from the system: the C and C++ runtime, as PEP 600 has it.
system='linux-vdso|ld-linux[^/]*|lib(c|m|dl|rt|pthread|util|gcc_s|stdc\+\+)'
outside=$(find "$package" "$package.libs" -type f \( -name '*.so*' -o -path '*/bin/*' \) -exec env -u LD_LIBRARY_PATH ldd {} + |
  grep -E '=>|not found' | grep -vE "^\s*($system)\.so" | grep -v "=> $fresh/" || true)
[[ -z "$outside" ]] || { printf 'wheel: a library is not in the wheel:\n%s\n' "$outside" >&2 && exit 1; }

cd "$fresh"
printf 'A text of a few words, again and again. %.0s' {1..60} >text
export -n LD_LIBRARY_PATH
venv/bin/headgate train --data text --out run --layers 1 --dim 16 --heads 2 --seq-len 16 --batch 2 --steps 2 >/dev/null
venv/bin/headgate explain "$package/share/headgate/examples/gated_two_tokens.json" >/dev/null
venv/bin/python - <<'PYTHON'
import numpy as np, headgate
x = np.ones((1, 2, 3, 4), np.float32)
assert np.allclose(headgate.attention(x, x, x, x, threads=2), 1 / (1 + np.exp(-1.0)), rtol=1e-6)
print("wheel:", headgate.load("run"), "loss", round(headgate.load("run").eval("A text of a few words. " * 9).figures["loss_nats"], 3))
PYTHON
