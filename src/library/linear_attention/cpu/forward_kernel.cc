// SPDX-License-Identifier: Apache-2.0
// Computes the forward pass of gated linear attention. Each task scans the tokens with some columns of one state.

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "library/core/cancellation.hpp"
#include "library/core/dispatch.hpp"
#include "library/core/team.hpp"
#include "library/core/workspace.hpp"
#include "library/linear_attention/cpu/kernels.hpp"
#include "library/linear_attention/problem.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "library/linear_attention/cpu/forward_kernel.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

// The headers below are compiled once per target, so foreach_target.h must come first.
#include "library/linear_attention/cpu/forward_scan-inl.hpp"
#include "library/linear_attention/cpu/state_tasks-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::HWY_NAMESPACE {

struct LinearForwardMemory {
  LinearForwardMemory(Workspace& ws, int threads, std::size_t bytes)
      : scratch(ws.take<std::byte>("threads", threads, bytes)) {}
  View<std::byte, 2> scratch;  ///< (threads, bytes) memory for the LinearForwardBuffers of each thread
};

template <typename T>
void linear_forward_typed(const LinearForwardProblem& p) {
  const StateTasks tasks(p, ColumnBlocks<T>(p.Dv).count());
  const int threads = tasks.threads();
  const Placed<LinearForwardMemory> memory(
      threads, count_bytes<LinearForwardBuffers<T>>(static_cast<const LinearProblem&>(p), tasks.together()));
  Cancellation cancellation(p.context);
  run_team(threads, [&](const Team& team) {
    LinearForwardWorker<T> worker(p, tasks.together(), memory->scratch.at(team.thread()));
    const auto run = [&](std::int64_t n) {
      if (!cancellation.requested()) worker.run(tasks(n), cancellation);
    };
    tasks.static_schedule() ? team.in_parts_nowait(tasks.count(), run) : team.in_turn_nowait(tasks.count(), run);
  });
  cancellation.throw_if_seen();
}

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headgate {

HEADGATE_TARGET_TABLE(linear_forward_typed);

void cpu_linear_forward(const LinearForwardProblem& problem) {
  if (declines_native16(problem) == nullptr) return native16_linear_forward(problem);
  HEADGATE_FOR_DTYPE(linear_forward_typed, problem.inputs.q.dtype, problem.context.target)(problem);
}

}  // namespace headgate
#endif  // HWY_ONCE
