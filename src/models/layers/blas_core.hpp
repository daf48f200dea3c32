// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <string_view>

// OpenBLAS has kernels for each kind of CPU and chooses among them by the CPU's model number when it is loaded. A CPU
// that is newer than the OpenBLAS gets kernels for the oldest: products are then several times slower than need be.
// The environment variable OPENBLAS_CORETYPE, read at that moment, makes another choice.

namespace headgate::layers {

/// The name of the kernels that suit a CPU with these vector targets (headgate::supported_targets()) better than the
/// `chosen` ones: "SkylakeX" with avx3 and "Haswell" with avx2, where `chosen` are for CPUs without; else empty.
std::string_view better_blas_core(std::string_view chosen, std::span<const std::string> targets);

/// The name of the kernels that OpenBLAS runs in this process: "SkylakeX", "Zen", "Prescott", …. Loads OpenBLAS.
std::string blas_core();

}  // namespace headgate::layers
