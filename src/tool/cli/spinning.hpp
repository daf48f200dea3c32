// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace headgate::cli {

/// Shortens the time for which waiting OpenMP threads spin, so that other programs get the cores. Restarts this program
/// with GOMP_SPINCOUNT=10000, because libgomp reads its variables before main(). Returns if GOMP_SPINCOUNT or
/// OMP_WAIT_POLICY is already set, or if the program cannot be restarted.
void spin_less(char** argv);

}  // namespace headgate::cli
