// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace headgate::cli {

/// Makes idle OpenMP threads spin for a shorter time before they sleep, so that other programs get the cores.
/// Sets GOMP_SPINCOUNT=10000 and restarts the program, because libgomp reads the variable before main().
/// Returns without a restart if GOMP_SPINCOUNT or OMP_WAIT_POLICY is set, or if the restart fails.
void spin_less(char** argv);

}  // namespace headgate::cli
