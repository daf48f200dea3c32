// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace headgate::bench {

struct MemoryResult {
  double peak_bytes = 0.0;  ///< peak resident set size of the child process (VmHWM)
  double forward_seconds = 0.0, backward_seconds = 0.0;
};

/// Measures one forward and one backward call of memory_spec() in a child process.
/// The child runs this program as "headgate bench --memory-probe --threads N".
/// Throws std::runtime_error if the child fails.
MemoryResult measure_memory(int threads);

/// Runs in the child process of measure_memory(). Makes the forward and the backward call.
/// Prints one line: "peak_bytes forward_seconds backward_seconds".
void run_memory_probe(int threads);

}  // namespace headgate::bench
