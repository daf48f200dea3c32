#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# setup.sh [--list] GROUP …: installs the packages of these groups of scripts/packages.txt that this Debian machine
# lacks, or lists the groups' packages. Needs no network if no package is missing.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() {
  echo "setup: $*" >&2
  exit 1
}

native=$(dpkg --print-architecture 2>/dev/null || true)
release=$(sed -n 's/^VERSION_CODENAME=//p' "${OS_RELEASE:-/etc/os-release}" 2>/dev/null || true)

# Tests whether all conditions in the brackets of a line hold for this machine.
applies() {
  local word
  for word in "$@"; do
    case $word in
      "$native" | "$release") ;;
      "!$native" | "!$release") return 1 ;;
      "!"*) ;;
      *) return 1 ;;
    esac
  done
}

packages_of() {
  local group package conditions
  for group in "$@"; do
    grep -q "^\[$group\]" scripts/packages.txt ||
      fail "no group '$group' in scripts/packages.txt; there are: $(sed -n 's/^\[\(.*\)\].*/\1/p' scripts/packages.txt | paste -sd' ')"
    sed -n "/^\[$group\]/,/^\[/{/^\[/d;s/#.*//;/[^[:space:]]/p}" scripts/packages.txt |
      while read -r package conditions; do
        # shellcheck disable=SC2086 # words
        ! applies ${conditions//[][]/} || echo "$package"
      done
  done | sort -u
}

# Prints the packages that are not installed. NAME:ARCHITECTURE must be installed for that architecture, and NAME for
# this machine's.
missing_of() {
  local package architecture
  for package in "$@"; do
    architecture=$native
    [[ "$package" != *:* ]] || architecture=${package#*:}
    dpkg-query -W -f '${Architecture} ${db:Status-Status}\n' "${package%:*}" 2>/dev/null |
      grep -qxE "($architecture|all) installed" || echo "$package"
  done
}

list_only=false
if [[ "${1:-}" == --list ]]; then
  list_only=true
  shift
fi
(($# > 0)) || fail "usage: scripts/setup.sh [--list] GROUP … of scripts/packages.txt"
names=$(packages_of "$@")
if $list_only; then
  echo "$names"
  exit 0
fi
mapfile -t packages <<<"$names"

command -v dpkg-query >/dev/null && command -v apt-get >/dev/null ||
  fail "this is not a Debian system; install the equivalents of scripts/packages.txt and call cmake --preset release"

mapfile -t missing < <(missing_of "${packages[@]}")
if ((${#missing[@]} == 0)); then
  echo "setup: all ${#packages[@]} Debian packages for $* are installed"
  exit 0
fi

as_root=(env DEBIAN_FRONTEND=noninteractive)
if (($(id -u) != 0)); then
  command -v sudo >/dev/null || fail "cannot install ${missing[*]}: not root, and there is no sudo"
  as_root=(sudo "${as_root[@]}")
  [[ -t 0 ]] || sudo -n true 2>/dev/null || fail "cannot install ${missing[*]}: sudo wants a password and there is no terminal"
fi

# Finishes an installation that was killed, since apt refuses to work until then. Otherwise does nothing. Fails while
# another dpkg works; apt-get below waits for that one.
"${as_root[@]}" dpkg --configure -a </dev/null >/dev/null 2>&1 || true

# Adds other architectures to dpkg, which is necessary once.
for architecture in $(printf '%s\n' "${missing[@]}" | sed -n 's/.*://p' | sort -u); do
  if ! { dpkg --print-architecture && dpkg --print-foreign-architectures; } | grep -qx "$architecture"; then
    echo "setup: adding the architecture $architecture to this machine's packages (dpkg --add-architecture)"
    "${as_root[@]}" dpkg --add-architecture "$architecture"
  fi
done

echo "setup: installing ${missing[*]}"
log=$(mktemp)

# Old lists may name files that the mirror no longer has. Without a network they may still work, so this only warns.
"${as_root[@]}" apt-get update -qq >"$log" 2>&1 || echo "setup: apt-get update failed: $(grep -m1 '^[EW]:' "$log")" >&2

unknown=()
for package in "${missing[@]}"; do
  [[ "$(apt-cache policy "$package" | sed -n 's/^ *Candidate: //p')" =~ ^(\(none\))?$ ]] && unknown+=("$package")
done
((${#unknown[@]} == 0)) ||
  fail "cannot be had: ${unknown[*]} (no package of that name in apt's lists; is this Debian 12 or 13 with network?)"

if ! "${as_root[@]}" apt-get install -qq -y --no-install-recommends -o Acquire::Retries=3 -o DPkg::Lock::Timeout=300 "${missing[@]}" >"$log" 2>&1; then
  mapfile -t missing < <(missing_of "${missing[@]}")
  fail "cannot be had: ${missing[*]} ($(grep -m1 '^E:' "$log" || echo "apt-get install failed"); log: $log)"
fi
rm -f "$log"
echo "setup: installed ${#missing[@]} of ${#packages[@]} Debian packages for $*"
