#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# wheel.sh WHEEL [PYTHON]: installs a wheel into a fresh environment of PYTHON (python3) and runs it: it brings all
# libraries but those of the C and C++ runtime. Where NumPy cannot be fetched it says so in one line and exits with 77,
# with CI=true with 1.
set -euo pipefail
wheel=$(realpath "$1") python=${2:-python3}

fresh=$(mktemp -d)
trap 'rm -rf "$fresh"' EXIT
"$python" -m venv "$fresh/venv"
install=("$fresh/venv/bin/python" -m pip install --quiet --disable-pip-version-check)
"${install[@]}" --no-index --no-deps "$wheel"
if ! "${install[@]}" --timeout 20 --retries 2 "$wheel" >"$fresh/install.log" 2>&1; then
  echo "wheel: built but not tried out, for want of NumPy: $(grep -m1 '^ERROR' "$fresh/install.log")" >&2
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
import importlib.metadata, importlib.util, sys
import headgate, numpy as np
x = np.ones((1, 2, 3, 4), np.float32)
assert np.allclose(headgate.attention(x, x, x, x, threads=2), 1 / (1 + np.exp(-1.0)), rtol=1e-6)
extras = importlib.metadata.metadata("headgate-attention").get_all("Provides-Extra")
assert {"jax", "torch", "plot", "frames"} <= set(extras), extras
assert importlib.util.find_spec("headgate._jax"), "the wheel has no handlers for JAX"
run = headgate.load("run")
print("wheel: Python", sys.version.split()[0], run, "loss", round(run.eval("A text of a few words. " * 9).figures["loss_nats"], 3))
PYTHON
