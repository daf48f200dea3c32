#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# exported_symbols.sh NM LIBRARY: the shared library exports its two APIs and nothing else.
set -euo pipefail
nm=$1 library=$2

symbols=$("$nm" -D -C --defined-only "$library" | sed 's/^[0-9a-f ]* [A-Za-z] //')
grep -q '^headgate::attention_forward(' <<<"$symbols"
grep -q '^headgate_' <<<"$symbols"
if grep -vE '^(headgate_|headgate::|(typeinfo|typeinfo name|vtable) for headgate::)' <<<"$symbols"; then
  echo "exported_symbols: $library exports the symbols above" >&2
  exit 1
fi
