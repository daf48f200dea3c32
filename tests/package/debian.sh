#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# debian.sh DEB …: installs the Debian packages of scripts/deb.sh on this machine and uses them: the command line, its
# manual page and completions, the Python module, and programs in C and C++ that are compiled with libheadgate-dev.
# For a bare root (scripts/bare_root.sh); scripts/deb.sh --check calls it there.
set -euo pipefail
here=$(realpath "$(dirname "$0")")
export DEBIAN_FRONTEND=noninteractive OMP_WAIT_POLICY=PASSIVE
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
  echo "debian: $*" >&2
  exit 1
}
install() { apt-get install -qq -y --no-install-recommends "$@" >"$work/apt.log" 2>&1 || { cat "$work/apt.log" >&2 && fail "cannot install $*"; }; }

packages=()
for package in "$@"; do packages+=("$(realpath "$package")"); done
apt-get update -qq
mapfile -t plain < <(printf '%s\n' "${packages[@]}" | grep -v -- '-dev_')
install "${plain[@]}"
echo "debian: installed ${plain[*]##*/}"
! command -v gcc c++ >/dev/null || fail "the packages bring a compiler"

cd "$work"
headgate --version
headgate info
headgate demo
headgate explain /usr/share/headgate/examples/gated_two_tokens.json >/dev/null

python3 - <<'PYTHON'
import importlib.metadata, math, pathlib, subprocess, tempfile
import headgate, numpy as np
x = np.ones((1, 2, 3, 4), np.float32)
assert np.allclose(headgate.attention(x, x, x, x, threads=2), 1 / (1 + math.exp(-1.0)), rtol=1e-6)
text = "A text of a few words, again and again. " * 60
pathlib.Path("text").write_text(text)
subprocess.run("headgate train --data text --out run --layers 1 --dim 16 --heads 2 --seq-len 16 --batch 2 --steps 2",
               shell=True, check=True, stdout=subprocess.DEVNULL)
print("debian: Python:", importlib.metadata.version("headgate-attention"), headgate.load("run"), headgate.load("run").eval(text).figures["loss_nats"])
PYTHON

install man-db bash-completion
man headgate | grep -q 'headgate - ' || fail "man headgate has no name"
man headgate-train | grep -q -- --seq-len || fail "man headgate-train does not name --seq-len"
bash -c '. /usr/share/bash-completion/bash_completion && _completion_loader headgate; complete -p headgate' ||
  fail "bash does not complete headgate"

install "${packages[@]}" gcc g++ pkg-config cmake ninja-build
cc -std=c99 "$here/c/main.c" $(pkg-config --cflags --libs headgate) -o consumer_c
./consumer_c
c++ -std=c++20 "$here/cxx/main.cc" $(pkg-config --cflags --libs headgate) -o consumer_cxx
./consumer_cxx
for language in c cxx; do
  cmake -S "$here/$language" -B "$language" -G Ninja -DCMAKE_BUILD_TYPE=Release --log-level=WARNING
  cmake --build "$language" -- --quiet
  "$language/consumer_$language"
done
echo "debian: programs in C and C++ compile, link and run by pkg-config and by CMake"
