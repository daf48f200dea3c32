// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "headgate/tensor.hpp"

// What this machine can do, measured by the program itself: the yardsticks that bench and demo hold kernels against.

namespace headgate::cli {

/// "AMD EPYC 7763 64-Core Processor"; the architecture where the system gives no name.
std::string cpu_name();

/// OpenBLAS's own description of its version and kernels.
std::string blas_description();

/// FMA peak in GFLOP/s (a fused multiply-add counts 2) of `threads` threads at once, in the vector width of the
/// kernels' target `isa` (headgate::active_target()); dtype f32 or f64. The best of `windows` windows of about a
/// millisecond: noise only ever slows a window down. On targets without FMA it is the rate of a multiplication and an
/// addition.
double fma_peak_gflops(const std::string& isa, DType dtype, int threads, int windows = 24);

/// Best rate of a few 2048³ matrix products by OpenBLAS on `threads` threads.
double sgemm_gflops(int threads);

/// Best streaming read rate, in 1e9 bytes a second, over a buffer far larger than the caches, shared by `threads`
/// threads.
double read_gbps(const std::string& isa, int threads);

}  // namespace headgate::cli
