// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace headgate::cli {

/// Lets OpenMP's threads sleep soon when they wait for each other, so that other programs have the cores: starts this
/// program again with GOMP_SPINCOUNT=10000, because libgomp reads its variables before main. Returns where the user has
/// decided how threads wait, by GOMP_SPINCOUNT or OMP_WAIT_POLICY, and where the program cannot be started again.
void spin_less(char** argv);

}  // namespace headgate::cli
