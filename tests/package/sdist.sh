#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# sdist.sh SOURCE PYTHON CMAKE WORK: a source distribution has all sources and nothing that a build left behind, can be
# configured, and names the extras.
set -euo pipefail
source=$1 python=$2 cmake=$3 work=$4

fail() {
  echo "sdist: $*" >&2
  exit 1
}

rm -rf "$work" && mkdir -p "$work/tree"
"$python" -m build --sdist --no-isolation --outdir "$work" "$source" >"$work/log" 2>&1 || { cat "$work/log" >&2 && exit 1; }
tar -xf "$work"/headgate_attention-*.tar.gz -C "$work/tree" --strip-components=1
cd "$work/tree"

known=$(git -C "$source" ls-files && echo PKG-INFO)
found=$(find . -type f -printf '%P\n')
unknown=$(grep -vxF "$known" <<<"$found" || true)
[[ -z "$unknown" ]] || fail "has files that git does not know: $unknown"
missing=$(git -C "$source" ls-files cmake include python src | grep -vxF "$found" || true)
[[ -z "$missing" ]] || fail "lacks $missing"
grep -qx "Name: headgate-attention" PKG-INFO || fail "PKG-INFO names $(grep ^Name: PKG-INFO)"
for extra in torch plot frames; do
  grep -qx "Provides-Extra: $extra" PKG-INFO || fail "PKG-INFO does not name the extra '$extra'"
done

"$cmake" -G Ninja -S . -B build -DSKBUILD=1 -DCMAKE_BUILD_TYPE=Release -DHEADGATE_PYTHON=ON -DHEADGATE_TESTS=OFF \
  -DHEADGATE_INSTALL=OFF -DPython_EXECUTABLE="$python" --log-level=WARNING >/dev/null
