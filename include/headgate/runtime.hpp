// SPDX-License-Identifier: Apache-2.0
#ifndef HEADGATE_RUNTIME_HPP_
#define HEADGATE_RUNTIME_HPP_

#include <cstdint>
#include <string>
#include <vector>

#include "headgate/export.h"

// Vector targets: "avx3" (AVX-512), "avx2", "sse4", "neon", and "emu128" or "scalar" (portable). The best that the CPU
// can run is chosen at the first call; the environment variable HEADGATE_ISA forces one.

namespace headgate {

/// "0.1.0".
HEADGATE_API const char* version();

/// Targets in this build, best first.
HEADGATE_API std::vector<std::string> compiled_targets();

/// Those of them that this CPU can run, best first.
HEADGATE_API std::vector<std::string> supported_targets();

/// The target that kernels run on now. Throws headgate::Error if HEADGATE_ISA names one that cannot run here.
HEADGATE_API std::string active_target();

/// The same as the bit that Highway has for it (HWY_AVX3, HWY_AVX2, …), for code that has vector functions of its own
/// and wants them to run on the same target. Throws as active_target does.
HEADGATE_API std::int64_t active_target_bit();

/// Makes `name` the target of every later call in this process; "" returns to the default choice.
/// Throws headgate::Error if it is not in supported_targets(). Not to be called while a kernel runs.
HEADGATE_API void set_target(const std::string& name);

/// Implementations of the operation in this build, best first: "cpu". A call runs on the first that can compute it.
HEADGATE_API std::vector<std::string> supported_backends();

/// Makes `name` the only backend of every later call in this process; "" returns to the choice by call. A call that the
/// backend cannot compute then throws headgate::Error with the reason. Throws it, too, if `name` is not in
/// supported_backends(). Not to be called while a kernel runs.
HEADGATE_API void set_backend(const std::string& name);

/// The most threads that a call uses, whatever its options say: four for each processor that the process may run on,
/// and 16 at least. More would only wait for each other.
HEADGATE_API int max_threads();

/// Threads that a call uses when its options say 0: what OpenMP offers, at most max_threads().
HEADGATE_API int default_threads();

/// Frees the scratch memory, at most 32 MiB, that the calling thread keeps from its last call for its next one.
HEADGATE_API void release_workspace();

}  // namespace headgate

#endif  // HEADGATE_RUNTIME_HPP_
