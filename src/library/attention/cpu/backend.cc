// SPDX-License-Identifier: Apache-2.0
#include "library/attention/backend.hpp"

#include "library/attention/cpu/kernels.hpp"
#include "library/call/live_threads.hpp"

namespace headgate {
namespace {

template <class Problem, void kKernel(const Problem&)>
void run(const Problem& problem) {
  run_on_live_threads(problem.context.threads, [&problem] { kKernel(problem); });
}

}  // namespace

const Backend kCpuBackend{"cpu", [](const Problem& /*problem*/) -> const char* { return nullptr; },
                          run<ForwardProblem, cpu_forward>, run<BackwardProblem, cpu_backward>,
                          run<StatisticsProblem, cpu_statistics>};

}  // namespace headgate
