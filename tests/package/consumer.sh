#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# consumer.sh SOURCE BUILD PROGRAM cmake-arguments…: configures and builds a consumer, then runs its PROGRAM.
# `ctest --build-and-test` sets LC_ALL, with which ccache finds nothing that was compiled without it.
set -euo pipefail
source=$1 build=$2 program=$3
shift 3
cmake -S "$source" -B "$build" --fresh "$@"
cmake --build "$build"
"$build/$program"
