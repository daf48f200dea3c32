#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# wheels.sh [RELEASE …]: builds the source distribution in build/wheels, and from it a wheel with the Python of each
# Debian release (bookworm, trixie), in bare roots. Then runs each wheel in another bare root, which has only Python.
# Python 3.12 and newer share a wheel. Takes as long as two cold builds. Later calls use the caches in
# build/roots/cache-RELEASE.
set -euo pipefail
cd "$(dirname "$0")/.."

releases=("$@")
((${#releases[@]} > 0)) || releases=(bookworm trixie)
wheels=build/wheels
rm -rf "$wheels" && mkdir -p "$wheels"
for release in "${releases[@]}"; do
  scripts/bare_root.sh --cache "build/roots/cache-$release" "$release" \
    'scripts/setup.sh build tool python && scripts/wheel.sh --sdist'
  built=build/roots/$release/headgate/$wheels
  wheel=$(cd "$built" && echo *.whl)
  cp "$built"/*.whl "$built"/*.tar.gz "$wheels"
  scripts/bare_root.sh --with "$wheels/$wheel" "$release" "apt-get -qq update &&
    apt-get -qq install -y --no-install-recommends python3-venv >/dev/null && tests/package/wheel.sh $wheels/$wheel"
done
ls -l "$wheels"
