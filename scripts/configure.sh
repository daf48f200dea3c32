#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# configure.sh PRESET [cmake arguments]: configures a preset of CMakePresets.json, with ccache if it is installed.
set -euo pipefail
cd "$(dirname "$0")/.."

if launcher=$(command -v ccache); then
  export CMAKE_C_COMPILER_LAUNCHER=$launcher CMAKE_CXX_COMPILER_LAUNCHER=$launcher
fi
cmake --preset "$@" --log-level=NOTICE
