#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# missing.sh SOURCE CMAKE WORK: a project that embeds headgate where Highway and fmt are missing fails with one message that
# names both and their Debian packages, which are those of the group `build` of packages.txt.
set -euo pipefail
source=$1 cmake=$2 work=$3
here=$(dirname "$0")

fail() {
  echo "missing: $*" >&2
  exit 1
}

! "$cmake" -S "$here/embed" -B "$work" --fresh -G Ninja -DHEADGATE_SOURCE="$source" -DCMAKE_DISABLE_FIND_PACKAGE_hwy=ON \
  -DCMAKE_DISABLE_FIND_PACKAGE_fmt=ON >"$work.log" 2>&1 || fail "a project without Highway and fmt was configured"
said=$(tr -s '[:space:]' ' ' <"$work.log")
wanted="headgate needs Highway, fmt, which CMake does not find. On Debian: apt-get install libhwy-dev libfmt-dev"
[[ "$said" == *"$wanted"* ]] || fail "the message names neither all packages nor how to install them: $said"
listed=$("$source/scripts/setup.sh" --list build)
for package in libhwy-dev libfmt-dev; do
  grep -qx "$package" <<<"$listed" || fail "the group build of packages.txt has no $package"
done
