// SPDX-License-Identifier: Apache-2.0
#include "library/attention/cpu/route.hpp"

#include <algorithm>
#include <array>
#include <iterator>
#include <string>

#include "library/attention/call_report.hpp"
#include "library/attention/cpu/bf16/native16.hpp"
#include "library/attention/cpu/common/head_tasks.hpp"
#include "library/attention/cpu/kernels.hpp"
#include "library/attention/cpu/small/small_heads.hpp"
#include "library/core/element.hpp"
#include "library/core/sum_blocks.hpp"
#include "library/core/view.hpp"
#include "library/core/workspace.hpp"

namespace headgate {
namespace {

/// A row of a table. Shared: what the kernels of a pass share beside the problem.
template <class Problem, class... Shared>
struct RouteRow {
  const char* name;
  /// Null where the kernel computes the sequence; else why not, to follow "NAME: ".
  const char* (*declines)(const Problem& problem, const Sequence& sequence);
  /// Computes the sequences that take this row. Null where there is nothing to compute.
  void (*run)(const Problem& problem, const Shared&... shared, const RunRest& run_rest);
};

// What the rows ask about a sequence.

/// Why the kernels of small heads cannot compute the sequence in either pass, or null.
const char* not_small(const Problem& p, const Sequence& s) {
  const AttentionInputs& in = p.inputs;
  if (p.softcap != 0.0 || in.alibi_slopes.present() || in.bias.present() || in.mask.present()) {
    return "softcap, ALiBi, bias or mask change its scores";
  }
  if (p.dropout > 0.0) return "dropout";
  if (s.T > kSmallHeadRows || s.S > kSmallHeadRows) return "more than 256 queries or keys";
  if (p.D > kSmallHeadDim || p.Dv > kSmallHeadDim) return "heads of more than 256 features";
  return s.T == 0 || s.S == 0 || p.D == 0 || p.Dv == 0 ? "nothing to multiply" : nullptr;
}

/// Sequences with no more queries and no more keys than this are faster with f32 products than with the CPU's bf16 dot
/// products, or than with its tiles (docs/design/bf16.md). Products that a program has asked for by name
/// take all but those of `tiles`.
struct MostExactRows {
  std::int64_t dots, tiles;
};

/// Why products of bf16 numbers cannot, or should not, compute the sequence, or null.
const char* not_bf16(const Problem& p, const Sequence& s, const MostExactRows& most) {
  if (p.precision != Precision::native16) return "precision is exact";
  if (p.dropout > 0.0) return "dropout";
  if (p.inputs.q.dtype != DType::bf16 || p.inputs.k.dtype != DType::bf16) return "q or k is not bf16";
  const Native16Unit unit = native16_unit(p.context.target);
  if (unit == Native16Unit::none) return "no fast bf16 products on this CPU and target";
  const std::int64_t rows = unit == Native16Unit::tiles || native16_is_by_name() ? most.tiles : most.dots;
  return std::max(s.T, s.S) <= rows ? "too few queries and keys" : nullptr;
}

/// Whether the packed keys and values of the problem's many heads each stay in the second-level cache of a thread.
bool packed_heads_stay_in_cache(const Problem& p, const Sequence& s) {
  constexpr std::int64_t kManyHeads = 32;
  const double bytes = sizeof(float) * static_cast<double>(s.S) * static_cast<double>(p.D + p.Dv);
  return p.B * p.Hkv >= kManyHeads && bytes <= kOwnHead_bytes;
}

// Rows of the forward pass.

constexpr MostExactRows kMostExactForward{.dots = 127, .tiles = 16};

const char* empty_declines(const ForwardProblem& /*p*/, const Sequence& s) {
  return s.T == 0 ? nullptr : "has queries";
}

const char* native16_declines(const ForwardProblem& p, const Sequence& s) {
  if (const char* reason = not_bf16(p, s, kMostExactForward)) return reason;
  if (p.gate_threshold != 0.0) return "a gate threshold closes rows";
  return p.outputs.weights.present() ? "weights are asked for" : nullptr;
}

/// With more rows packing K and V pays (docs/design/decoding.md), and earlier where what is packed stays
/// in cache (docs/design/forward.md), or where the heads are small
/// (docs/design/small-sequences.md). With few keys, on which a weight near 1 is common, sequences get one of the other
/// kernels: the backward pass makes the same products as those, bit for bit (docs/reference/numerics.md).
const char* few_queries_declines(const ForwardProblem& p, const Sequence& s) {
  constexpr std::int64_t kMostSharedRows = 64, kMostQueriesBesidesOthers = 8, kFewKeysEach = 4;
  if (p.outputs.weights.present()) return "weights are asked for";
  if (p.dropout > 0.0) return "dropout";
  if (s.T * p.group > kMostSharedRows) return "more than 64 queries share a key";
  if (s.T > 1 && s.S <= kFewKeysEach * s.T) return "several queries, and at most 4 keys for each";
  if (s.T <= kMostQueriesBesidesOthers) return nullptr;
  if (packed_heads_stay_in_cache(p, s)) return "more than 8 queries, and packed heads that stay in cache";
  const bool is_small = not_small(p, s) == nullptr, has_bf16 = native16_declines(p, s) == nullptr;
  return is_small && !has_bf16 ? "more than 8 queries of a small head" : nullptr;
}

const char* small_heads_declines(const ForwardProblem& p, const Sequence& s) {
  if (const char* reason = not_small(p, s)) return reason;
  return p.outputs.weights.present() ? "weights are asked for" : nullptr;
}

template <class Problem>
const char* tiles_decline(const Problem& /*p*/, const Sequence& /*s*/) {
  return nullptr;
}

constexpr RouteRow<ForwardProblem> kForwardRoutes[] = {
    {"empty", empty_declines, nullptr},
    {"few_queries", few_queries_declines, few_queries_forward},
    {"native16", native16_declines, native16_forward},
    {"small_heads", small_heads_declines, small_heads_forward},
    {"tiles", tiles_decline<ForwardProblem>, tiles_forward},
};
static_assert(std::size(kForwardRoutes) == static_cast<std::size_t>(ForwardRoute::tiles) + 1);

// Rows of the backward pass. A sequence without queries has gradients too: those of its keys are 0.

constexpr MostExactRows kMostExactBackward{.dots = 63, .tiles = 32};

const char* native16_declines(const BackwardProblem& p, const Sequence& s) {
  if (const char* reason = not_bf16(p, s, kMostExactBackward)) return reason;
  return p.gradients.dbias.present() ? "dbias is asked for" : nullptr;
}

const char* small_heads_declines(const BackwardProblem& p, const Sequence& s) {
  // More keys are several blocks, which the tiles share out among threads where heads are few.
  constexpr std::int64_t kManyHeads = 8;
  if (const char* reason = not_small(p, s)) return reason;
  if (p.inputs.sinks.present()) return "there are sinks";
  return s.S > kBackwardKeys && p.B * p.Hkv < kManyHeads ? "more than 192 keys of fewer than 8 heads" : nullptr;
}

constexpr RouteRow<BackwardProblem, View<double, 2>> kBackwardRoutes[] = {
    {"native16", native16_declines, native16_backward},
    {"small_heads", small_heads_declines, small_heads_backward},
    {"tiles", tiles_decline<BackwardProblem>, tiles_backward},
};
static_assert(std::size(kBackwardRoutes) == static_cast<std::size_t>(BackwardRoute::tiles) + 1);

/// The first row that does not decline.
template <class Row, std::size_t kRows, class Problem>
std::size_t row_of(const Row (&rows)[kRows], const Problem& problem, const Sequence& sequence) {
  std::size_t row = 0;
  while (rows[row].declines(problem, sequence) != nullptr) ++row;
  return row;
}

/// Which rows have sequences.
template <class Row, std::size_t kRows, class Problem>
std::array<bool, kRows> taken_rows(const Row (&rows)[kRows], const Problem& problem) {
  std::array<bool, kRows> taken{};
  for (std::int64_t n = 0; n < problem.sequences(); ++n) taken[row_of(rows, problem, problem.sequence(n))] = true;
  return taken;
}

/// Runs the kernels of the taken rows before `end`, the last one outermost: each takes its memory, then runs those
/// before it, then computes.
template <class Row, std::size_t kRows, class Problem, class... Shared>
void run_rows(const Row (&rows)[kRows], const std::array<bool, kRows>& taken, std::size_t end, const Problem& problem,
              const Shared&... shared) {
  while (end > 0 && (!taken[end - 1] || rows[end - 1].run == nullptr)) --end;
  if (end == 0) return;
  const auto run_rest = [&](std::size_t bytes) {
    if (problem.report != nullptr) problem.report->memory_bytes += bytes;
    run_rows(rows, taken, end - 1, problem, shared...);
  };
  rows[end - 1].run(problem, shared..., std::cref(run_rest));
}

/// Groups the sequences of a call by their routes and by the reasons for them.
template <class Row, std::size_t kRows, class Problem>
void report_routes(const Row (&rows)[kRows], const Problem& problem) {
  if (problem.report == nullptr) return;
  CallReport& report = *problem.report;
  report.backend = "cpu";
  for (std::int64_t n = 0; n < problem.sequences(); ++n) {
    const Sequence sequence = problem.sequence(n);
    CallReport::Group group{"", 1, ""};
    for (const Row& row : rows) {
      const char* const reason = row.declines(problem, sequence);
      group.route = row.name;
      if (reason == nullptr) break;
      if (row.run == nullptr) continue;
      if (!group.declined.empty()) group.declined += "; ";
      group.declined += std::string("not ") + row.name + ": " + reason;
    }
    const auto same = std::find_if(report.groups.begin(), report.groups.end(), [&](const CallReport::Group& other) {
      return other.route == group.route && other.declined == group.declined;
    });
    if (same != report.groups.end()) {
      ++same->sequences;
    } else {
      report.groups.push_back(group);
    }
  }
}

/// Terms of dsinks.
struct SinkParts {
  SinkParts(Workspace& ws, std::int64_t tiles, std::int64_t Hq) : parts(ws.take<double>("dsinks by tile", tiles, Hq)) {}
  View<double, 2> parts;  ///< (query tiles of all sequences, Hq)
};

/// dsinks[h] = sum of the tiles' parts over sequences and tiles, in that order.
void write_dsinks(const TensorView& dsinks, const View<double, 2>& parts) {
  for (std::int64_t h = 0; h < parts.shape[1]; ++h) {
    double sum = 0;
    for (std::int64_t tile = 0; tile < parts.shape[0]; ++tile) sum += parts(tile, h);
    store(dsinks, 0, 0, 0, h, sum);
  }
}

}  // namespace

ForwardRoute route_of(const ForwardProblem& problem, const Sequence& sequence) {
  return static_cast<ForwardRoute>(row_of(kForwardRoutes, problem, sequence));
}

BackwardRoute route_of(const BackwardProblem& problem, const Sequence& sequence) {
  return static_cast<BackwardRoute>(row_of(kBackwardRoutes, problem, sequence));
}

void cpu_forward(const ForwardProblem& problem) {
  report_routes(kForwardRoutes, problem);
  run_rows(kForwardRoutes, taken_rows(kForwardRoutes, problem), std::size(kForwardRoutes), problem);
}

void cpu_backward(const BackwardProblem& problem) {
  report_routes(kBackwardRoutes, problem);
  auto taken = taken_rows(kBackwardRoutes, problem);
  // dbias of no sequence is 0 too.
  if (problem.gradients.dbias.present()) taken.back() = true;
  const auto run = [&](const View<double, 2>& sink_parts) {
    run_rows(kBackwardRoutes, taken, std::size(kBackwardRoutes), problem, sink_parts);
  };
  if (!problem.gradients.dsinks.present()) return run({});
  std::int64_t tiles = 0;
  for (std::int64_t n = 0; n < problem.sequences(); ++n) {
    tiles += (problem.sequence(n).T + kQueryTile - 1) / kQueryTile;
  }
  const Placed<SinkParts> sinks(tiles, problem.Hq);
  run(sinks->parts);
  write_dsinks(problem.gradients.dsinks, sinks->parts);
}

}  // namespace headgate
