// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <string_view>

// OpenBLAS has kernels for each kind of CPU and chooses among them by the CPU's model number when it is loaded. On a
// CPU newer than itself, OpenBLAS falls back to its oldest kernels, and products become several times slower. The
// environment variable OPENBLAS_CORETYPE, read when it is loaded, overrides the choice.

namespace headgate::layers {

/// Returns the name of kernels that suit a CPU with these vector targets (headgate::supported_targets()) better than
/// the `chosen` ones: "SkylakeX" with avx3 and "Haswell" with avx2, if the `chosen` kernels are for CPUs without AVX2.
/// Returns an empty string otherwise.
std::string_view better_blas_core(std::string_view chosen, std::span<const std::string> targets);

/// Returns the name of the kernels that OpenBLAS runs in this process, such as "SkylakeX", "Zen" or "Prescott". Loads
/// OpenBLAS.
std::string blas_core();

}  // namespace headgate::layers
