// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace headgate::bench {

struct MemoryResult {
  double peak_bytes = 0.0;  ///< largest resident size of the whole process (VmHWM)
  double forward_seconds = 0.0, backward_seconds = 0.0;
};

/// Runs memory_spec() forward and backward once in a process of its own, which runs this program as "headgate bench
/// --memory-probe --threads N". Throws std::runtime_error if that fails.
MemoryResult measure_memory(int threads);

/// What that process does: the call, then one line "peak_bytes forward_seconds backward_seconds" on stdout.
void run_memory_probe(int threads);

}  // namespace headgate::bench
