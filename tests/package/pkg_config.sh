#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# pkg_config.sh PKG_CONFIG CC CXX PREFIX LIBDIR WORK: builds and runs the consumers with pkg-config's flags alone.
set -euo pipefail
pkg_config=$1 cc=$2 cxx=$3 prefix=$4 libdir=$5 work=$6
here=$(dirname "$0")
mkdir -p "$work"

export PKG_CONFIG_PATH=$prefix/$libdir/pkgconfig
read -ra cflags <<<"$("$pkg_config" --cflags headgate)"
read -ra libs <<<"$("$pkg_config" --libs headgate)"

# The only flag is where the headers are.
((${#cflags[@]} == 1)) && [[ "$(realpath "${cflags[0]#-I}")" == "$(realpath "$prefix/include")" ]] || {
  echo "pkg_config: unexpected cflags: ${cflags[*]}" >&2
  exit 1
}

"$cc" -std=c99 -Wall -Wextra -Wpedantic -Werror "${cflags[@]}" "$here/c/main.c" -o "$work/consumer_c" "${libs[@]}"
"$cxx" -std=c++20 -Wall -Wextra -Wpedantic -Werror "${cflags[@]}" "$here/cxx/main.cc" -o "$work/consumer_cxx" "${libs[@]}"
(export LD_LIBRARY_PATH=$prefix/$libdir && "$work/consumer_c" && "$work/consumer_cxx")

# An rpath finds a shared library below a prefix that the system does not know, as install.md says.
if [[ -e $prefix/$libdir/libheadgate.so ]]; then
  "$cc" -std=c99 "${cflags[@]}" "$here/c/main.c" -o "$work/consumer_rpath" "${libs[@]}" "-Wl,-rpath,$prefix/$libdir"
  env -u LD_LIBRARY_PATH "$work/consumer_rpath"
  ! env -u LD_LIBRARY_PATH "$work/consumer_c" 2>/dev/null || {
    echo "pkg_config: a program without an rpath finds the library, so that the above shows nothing" >&2
    exit 1
  }
fi
