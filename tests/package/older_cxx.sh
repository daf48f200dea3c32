#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# older_cxx.sh CXX INCLUDE: each public header of C++ says first, in C++17, that it needs C++20. The headers of C compile in
# C++11, also in a block extern "C", and their _INIT macros are constants. This holds for CXX, and for clang++ if it is
# installed.
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

# Prints a program that includes all headers of C and initialises every struct.
all_structs() {
  echo 'extern "C" {'
  for header in "$include"/headgate/*.h; do echo "#include \"headgate/${header##*/}\""; done
  echo '}'
  local name
  grep -ohE '#define HEADGATE_[A-Z0-9_]+_INIT HEADGATE_INIT\([a-z0-9_]+\)' "$include"/headgate/*.h |
    while read -r _ name struct; do
      struct=${struct#HEADGATE_INIT(}
      echo "static constexpr ${struct%)} ${name,,} = $name;"
      echo "static_assert(${name,,}.struct_size == sizeof(${struct%)}), \"\");"
    done
}
program=$(all_structs)
[[ $(grep -c static_assert <<<"$program") -gt 10 ]] || fail "finds no _INIT macros in $include"
for compiler in "$cxx" clang++; do
  command -v "$compiler" >/dev/null || continue
  "$compiler" -std=c++11 -I"$include" -fsyntax-only -Wall -Wextra -Wpedantic -Wno-unused-const-variable -Werror -x c++ - <<<"$program" ||
    fail "the headers of C do not compile in C++11 with $compiler"
done
