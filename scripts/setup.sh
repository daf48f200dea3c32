#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs the packages of scripts/packages.txt that this Debian machine lacks, but for those marked unpack:. Needs no
# network when none is missing.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() {
  echo "setup: $*" >&2
  exit 1
}

mapfile -t packages < <(sed -e 's/#.*//' -e '/^unpack:/d' -e '/^[[:space:]]*$/d' scripts/packages.txt)

missing_of() {
  local package
  for package in "$@"; do
    [[ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" == installed ]] || echo "$package"
  done
}

command -v dpkg-query >/dev/null && command -v apt-get >/dev/null ||
  fail "this is no Debian system; install the equivalents of scripts/packages.txt and call cmake --preset release"

mapfile -t missing < <(missing_of "${packages[@]}")
if ((${#missing[@]} == 0)); then
  echo "setup: all ${#packages[@]} Debian packages are installed"
  exit 0
fi

as_root=(env DEBIAN_FRONTEND=noninteractive)
if (($(id -u) != 0)); then
  command -v sudo >/dev/null || fail "cannot install ${missing[*]}: not root, and there is no sudo"
  as_root=(sudo "${as_root[@]}")
  [[ -t 0 ]] || sudo -n true 2>/dev/null || fail "cannot install ${missing[*]}: sudo wants a password and there is no terminal"
fi

echo "setup: installing ${missing[*]}"
log=$(mktemp)

# Old lists may name files that the mirror no longer has; without a network they may still do, so go on with a warning.
"${as_root[@]}" apt-get update -qq >"$log" 2>&1 || echo "setup: apt-get update failed: $(grep -m1 '^[EW]:' "$log")" >&2

unknown=()
for package in "${missing[@]}"; do
  [[ "$(apt-cache policy "$package" | sed -n 's/^ *Candidate: //p')" =~ ^(\(none\))?$ ]] && unknown+=("$package")
done
((${#unknown[@]} == 0)) ||
  fail "cannot be had: ${unknown[*]} (no package of that name in apt's lists; is this Debian 12 with network?)"

if ! "${as_root[@]}" apt-get install -qq -y --no-install-recommends -o Acquire::Retries=3 "${missing[@]}" >"$log" 2>&1; then
  mapfile -t missing < <(missing_of "${missing[@]}")
  fail "cannot be had: ${missing[*]} ($(grep -m1 '^E:' "$log" || echo "apt-get install failed"); log: $log)"
fi
rm -f "$log"
echo "setup: installed ${#missing[@]} of ${#packages[@]} Debian packages"
