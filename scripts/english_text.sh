#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# english_text.sh [FILE]: writes 40 MB of English text to FILE (build/text/gcide.txt) unless it is there, and prints its
# path. The text is the GNU Collaborative International Dictionary of English. Its Debian package is unpacked, not
# installed, since installing it would also install a dictionary server.
set -euo pipefail
cd "$(dirname "$0")/.."

text=${1:-build/text/gcide.txt}
member=usr/share/dictd/gcide.dict.dz # dictzip: a gzip file that can be read from the middle
package=$(scripts/setup.sh --list text)

fail() {
  echo "english_text: $*" >&2
  exit 1
}

if [[ ! -s "$text" ]]; then
  mkdir -p "$(dirname "$text")"
  work=$(mktemp -d "$text.XXXXXX")
  trap 'rm -rf "$work"' EXIT
  if [[ -r "/$member" ]]; then
    gzip -dc <"/$member" >"$work/text"
  else
    (cd "$work" && apt-get download -qq "$package" >log 2>&1) ||
      fail "cannot download the Debian package $package ($(grep -m1 '^E:' "$work/log" || echo "no apt-get?")); apt-get update may help"
    dpkg-deb --fsys-tarfile "$work"/*.deb | tar -xO "./$member" | gzip -dc >"$work/text"
  fi
  mv "$work/text" "$text"
fi
echo "$text"
