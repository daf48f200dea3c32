// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace headgate::bench {

struct MemoryResult {
  double peak_bytes = 0.0;  ///< peak resident size of the process (VmHWM)
  double forward_seconds = 0.0, backward_seconds = 0.0;
};

/// Runs memory_spec() forward and backward once in a child process, which runs this program as "headgate bench
/// --memory-probe --threads N". Throws std::runtime_error if that fails.
MemoryResult measure_memory(int threads);

/// Runs in the child process of measure_memory(): makes the calls, then prints one line "peak_bytes forward_seconds
/// backward_seconds".
void run_memory_probe(int threads);

}  // namespace headgate::bench
