#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# older_cxx.sh CXX INCLUDE: each public header of C++ says first, in C++17, that it needs C++20. The headers of C compile in
# C++11.
set -euo pipefail
cxx=$1 include=$2

fail() {
  echo "older_cxx: $*" >&2
  exit 1
}

for header in "$include"/headgate/*.hpp; do
  said=$(echo "#include \"headgate/${header##*/}\"" | "$cxx" -std=c++17 -I"$include" -fsyntax-only -x c++ - 2>&1 || true)
  first=$(grep -m 1 ' error: ' <<<"$said" || true)
  [[ "$first" == *'Headgate needs C++20'* ]] || fail "${header##*/} in C++17: ${first:-no error}"
done
for header in "$include"/headgate/*.h; do
  echo "#include \"headgate/${header##*/}\"" | "$cxx" -std=c++11 -I"$include" -fsyntax-only -Wall -Werror -x c++ - ||
    fail "${header##*/} does not compile in C++11"
done
