#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# english_text.sh [FILE]: writes 40 MB of English text to FILE (build/text/gcide.txt) unless it is there, and prints its
# path. The text is the GNU Collaborative International Dictionary of English, from Debian's package dict-gcide.
set -euo pipefail
cd "$(dirname "$0")/.."

text=${1:-build/text/gcide.txt}
source=/usr/share/dictd/gcide.dict.dz # dictzip: a gzip file that can be read from the middle

if [[ ! -s "$text" ]]; then
  [[ -r "$source" ]] || {
    echo "english_text: $source is missing: make setup installs the package dict-gcide" >&2
    exit 1
  }
  mkdir -p "$(dirname "$text")"
  part=$(mktemp "$text.XXXXXX")
  trap 'rm -f "$part"' EXIT
  gzip -dc <"$source" >"$part"
  chmod 644 "$part"
  mv "$part" "$text"
fi
echo "$text"
