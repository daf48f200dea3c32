// SPDX-License-Identifier: Apache-2.0
#ifndef HEADGATE_RUNTIME_HPP_
#define HEADGATE_RUNTIME_HPP_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "headgate/cxx20.hpp"
#include "headgate/export.h"

/// @file
/// Vector targets, backends and threads of calls. The vector targets are "avx3" (AVX-512), "avx2", "sse4", "neon", and
/// the portable "emu128" and "scalar". The first call selects the target that the environment variable HEADGATE_ISA
/// names. Without HEADGATE_ISA, it selects the best target that the CPU can run.

namespace headgate {

/// Returns the version of the loaded library, "MAJOR.MINOR.PATCH". HEADGATE_VERSION is the version of the header.
HEADGATE_API const char* version();

/// Returns the vector targets in this build, best first.
HEADGATE_API std::vector<std::string> compiled_targets();

/// Returns the vector targets in this build that this CPU can run, best first.
HEADGATE_API std::vector<std::string> supported_targets();

/// Returns the current vector target. Throws headgate::Error if HEADGATE_ISA names a target that cannot run here.
HEADGATE_API std::string active_target();

/// Returns Highway's bit of the current vector target (HWY_AVX3, HWY_AVX2, …). With it, programs can run their own
/// Highway code on the same target. Throws like active_target().
HEADGATE_API std::int64_t active_target_bit();

/// Selects the vector target of all later calls in this process; "" restores the default. Throws headgate::Error if
/// `name` is not in supported_targets(). Must not be called while a kernel runs.
HEADGATE_API void set_target(const std::string& name);

/// Returns the bit of a vector target, for ExecutionContext. Throws headgate::Error if `name` is not in
/// supported_targets().
HEADGATE_API std::int64_t find_target(const std::string& name);

/// Returns the instruction sets that Precision::native16 can use on this CPU in this build, best first: "amx_bf16" and
/// "avx512_bf16". Both need the vector target "avx3".
HEADGATE_API std::vector<std::string> supported_native16_products();

/// Returns the instruction set that Precision::native16 uses on the current target. This is the first that exists of:
///
///   1. the choice of set_native16_products()
///   2. amx_bf16, if available
///   3. avx512_bf16, if available on an AMD CPU (Zen 4 or later)
///
/// Returns "" if none exists: native16 then computes like `exact`. Throws like active_target().
HEADGATE_API std::string native16_products();

/// Selects the instruction set that Precision::native16 uses in all later calls of this process; "" restores the
/// default. If `name` is avx512_bf16, calls with Precision::exact use these instructions too where that loses no
/// precision (docs/reference/numerics.md). Throws headgate::Error if `name` is not in supported_native16_products().
/// Must not be called while a kernel runs.
HEADGATE_API void set_native16_products(const std::string& name);

/// Returns the backends for attention in this build, best first: "cpu". A call uses the first backend that can compute
/// it.
HEADGATE_API std::vector<std::string> supported_backends();

/// Makes all later calls of this process use the backend `name`; "" restores the choice for each call. Calls that the
/// backend cannot compute throw headgate::Error with the reason. Throws headgate::Error if `name` is not in
/// supported_backends(). Must not be called while a kernel runs.
HEADGATE_API void set_backend(const std::string& name);

/// An implementation of attention.
struct Backend;

/// Returns a backend, for ExecutionContext. Throws headgate::Error if `name` is not in supported_backends().
HEADGATE_API const Backend& find_backend(const std::string& name);

/// Settings for running one call. Members left at their defaults use the settings of the process.
struct ExecutionContext {
  /// Number of threads, limited to max_threads(). 0 means default_threads(), or one thread for calls that one thread
  /// computes faster. If the system cannot start as many threads, the call uses fewer. Results do not depend on the
  /// number.
  int threads = 0;
  std::int64_t target = 0;  ///< vector target from find_target(); 0 means active_target_bit()
  /// Backend that computes the call, from find_backend(). Null means the backend that set_backend() selected, or the
  /// first backend that can compute the call if set_backend() selected none.
  const Backend* backend = nullptr;
  /// Callback that can cancel the call. If it returns true, the call throws Cancelled, and outputs are unspecified. The
  /// callback runs before the work and between parts of the work, in the calling thread. In a forked child, it runs in
  /// the thread that computes. It must not throw and must outlive the context. A null or empty callback never cancels.
  const std::function<bool()>* cancelled = nullptr;
};

/// Returns the maximum number of threads per call: four for each processor available to the process, and at least 16.
/// More threads would only wait for each other.
HEADGATE_API int max_threads();

/// Returns the maximum number of threads of a call with threads = 0: OpenMP's default, at most max_threads().
HEADGATE_API int default_threads();

/// Returns whether the calling thread is the thread that fork() left in a child process. The parent's OpenMP threads do
/// not exist in the child. GCC's runtime would wait for them forever in the next parallel region. Functions of this
/// library work in such a thread: they compute on a new thread, or serially, with bitwise identical results. Programs
/// can ask this function before they start parallel regions of their own.
HEADGATE_API bool forked_thread();

/// Returns `context` with defaults replaced: threads is from 1 to max_threads(), and target is a supported target. The
/// backend is not changed. Throws headgate::Error for negative threads and for a target that cannot run here.
HEADGATE_API ExecutionContext resolved(const ExecutionContext& context);

/// Frees the scratch memory, at most 32 MiB, that the calling thread keeps between calls.
HEADGATE_API void release_workspace();

}  // namespace headgate

#endif  // HEADGATE_RUNTIME_HPP_
