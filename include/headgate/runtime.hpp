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
/// Vector targets: "avx3" (AVX-512), "avx2", "sse4", "neon", and "emu128" or "scalar" (portable). The best that the CPU
/// can run is chosen at the first call; the environment variable HEADGATE_ISA forces one.

namespace headgate {

/// Returns HEADGATE_VERSION (headgate/version.h) of the library that is loaded, "MAJOR.MINOR.PATCH".
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

/// The bit of a target by its name, for ExecutionContext. Throws headgate::Error if it is not in supported_targets().
HEADGATE_API std::int64_t find_target(const std::string& name);

/// What this CPU and build have for Precision::native16, best first, beside the vector target "avx3" alone: "amx_bf16",
/// "avx512_bf16", or nothing.
HEADGATE_API std::vector<std::string> supported_native16_products();

/// The one that native16 uses now on the active target: amx_bf16 where the CPU has it, avx512_bf16 on AMD's CPUs since
/// Zen 4, or what set_native16_products chose; "" where there is none, and native16 computes as exact does. Throws as
/// active_target does.
HEADGATE_API std::string native16_products();

/// Makes native16 use `name` in every later call of this process, and exact calls avx512_bf16 alone, where nothing is
/// lost by it (docs/reference/numerics.md); "" returns to the default choice. Throws headgate::Error if it is not in
/// supported_native16_products(). Not to be called while a kernel runs.
HEADGATE_API void set_native16_products(const std::string& name);

/// Implementations of the operation in this build, best first: "cpu". A call runs on the first that can compute it.
HEADGATE_API std::vector<std::string> supported_backends();

/// Makes `name` the only backend of every later call in this process; "" returns to the choice by call. A call that the
/// backend cannot compute then throws headgate::Error with the reason. Throws it, too, if `name` is not in
/// supported_backends(). Not to be called while a kernel runs.
HEADGATE_API void set_backend(const std::string& name);

/// An implementation of the operation.
struct Backend;

/// A backend by its name, for ExecutionContext. Throws headgate::Error if it is not in supported_backends().
HEADGATE_API const Backend& find_backend(const std::string& name);

/// How one call runs. What is left at its default follows the process.
struct ExecutionContext {
  /// 0: default_threads(), or one where two take longer; at most max_threads(). Where the system has no more threads to
  /// give, the call runs on fewer, with the same bits.
  int threads = 0;
  std::int64_t target = 0;  ///< a vector target that this CPU can run, of find_target(); 0: active_target_bit()
  /// Of find_backend(). Null: the one that set_backend() forces, else the first that can compute the call.
  const Backend* backend = nullptr;
  /// Null: the call runs to its end. Otherwise the thread that made the call calls this function before the work and
  /// between parts of it; in a child of fork() the thread that computes does. If it returns true, the call throws
  /// Cancelled, and its outputs are unspecified. The function must not throw, and must exist for as long as the context
  /// is used.
  const std::function<bool()>* cancelled = nullptr;
};

/// The most threads that a call uses, whatever its context says: four for each processor that the process may run on,
/// and 16 at least. More would only wait for each other.
HEADGATE_API int max_threads();

/// The most threads that a call uses when its context says 0: what OpenMP offers, at most max_threads().
HEADGATE_API int default_threads();

/// Whether the calling thread is the one that fork() has left of a process: the threads of OpenMP that it had stayed
/// behind, and GCC's runtime would wait for them for ever in the next parallel region of several threads. Functions of
/// this library work there: they compute on a new thread, or in turn on this one, with the same bits. A program with
/// parallel regions of its own may ask.
HEADGATE_API bool forked_thread();

/// `context` with every choice made: threads from 1 to max_threads(), a target that runs here; the backend as given.
/// Throws headgate::Error on negative threads and on a target that cannot run here.
HEADGATE_API ExecutionContext resolved(const ExecutionContext& context);

/// Frees the scratch memory, at most 32 MiB, that the calling thread keeps from its last call for its next one.
HEADGATE_API void release_workspace();

}  // namespace headgate

#endif  // HEADGATE_RUNTIME_HPP_
