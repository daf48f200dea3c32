// SPDX-License-Identifier: Apache-2.0
// Decides who computes a sequence. Each pass has one table of kernels, best first: the first row that does not decline
// a sequence computes it. Rows decide by the problem's sizes and options and by the sequence's own lengths, never by
// the other sequences of a packed batch nor by the number of threads: kernels differ in their last bits, and results
// must be bitwise identical to separate calls. A call's sequences are sorted into a work list for each row, the kernels
// plan their work on their lists, and all of it runs in one block of memory. If an allocation fails, nothing has been
// written.

#include <algorithm>
#include <array>
#include <cstddef>
#include <iterator>
#include <new>
#include <optional>
#include <string>

#include "library/attention/call_report.hpp"
#include "library/attention/cpu/bf16/native16.hpp"
#include "library/attention/cpu/common/head_tasks.hpp"
#include "library/attention/cpu/common/planned_work.hpp"
#include "library/attention/cpu/common/work_list.hpp"
#include "library/attention/cpu/kernels.hpp"
#include "library/attention/cpu/small/small_heads.hpp"
#include "library/core/arena.hpp"
#include "library/core/element.hpp"
#include "library/core/sum_blocks.hpp"
#include "library/core/view.hpp"
#include "library/core/workspace.hpp"

namespace headgate {
namespace {

/// A row of a table. Shared: the arguments of the pass's kernels beside the problem.
template <class Problem, class... Shared>
struct RouteRow {
  const char* name;
  /// Null where the kernel computes the sequence; else why not, to follow "NAME: ".
  const char* (*declines)(const Problem& problem, const Sequence& sequence);
  /// Plans the work on the sequences that take this row. Null where there is nothing to compute.
  void (*plan)(const Problem& problem, const Shared&... shared, const WorkList& list, WorkSlot& slot);
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

/// Returns the first row that does not decline the sequence.
template <class Row, std::size_t kRows, class Problem>
std::size_t row_of(const Row (&rows)[kRows], const Problem& problem, const Sequence& sequence) {
  std::size_t row = 0;
  while (rows[row].declines(problem, sequence) != nullptr) ++row;
  return row;
}

/// The entries of all work lists of a call, one list after another.
struct WorkEntries {
  WorkEntries(Workspace& ws, std::int64_t sequences) : entries(ws.take<ListedSequence>("work lists", sequences)) {}
  View<ListedSequence, 1> entries;
};

/// The work lists of a call, one for each row of its table.
template <std::size_t kRows>
class WorkLists {
 public:
  template <class Row, class Problem>
  WorkLists(const Row (&rows)[kRows], const Problem& problem) {
    const std::int64_t sequences = problem.sequences();
    if (sequences == 0) return;
    if (!problem.packed()) {  // all have the same lengths
      lists_[row_of(rows, problem, problem.sequence(0))] = WorkList(problem);
      return;
    }
    std::array<std::int64_t, kRows> sizes{};
    for (std::int64_t n = 0; n < sequences; ++n) ++sizes[row_of(rows, problem, problem.sequence(n))];
    std::array<ListedSequence*, kRows> next{};
    ListedSequence* begin = sorted_.emplace(sequences)->entries.data;
    for (std::size_t row = 0; row < kRows; ++row) {
      next[row] = begin;
      lists_[row] = WorkList(begin, sizes[row]);
      begin += sizes[row];
    }
    std::int64_t tiles_before = 0;
    for (std::int64_t n = 0; n < sequences; ++n) {
      const Sequence sequence = problem.sequence(n);
      *next[row_of(rows, problem, sequence)]++ = {n, tiles_before};
      tiles_before += query_tiles(sequence.T);
    }
  }

  const WorkList& operator[](std::size_t row) const { return lists_[row]; }

 private:
  std::optional<Placed<WorkEntries>> sorted_;  // of a packed batch
  std::array<WorkList, kRows> lists_;
};

/// Plans the work of every row that has sequences, and of row `always`, takes the memory of all, then runs one after
/// another in the order of the table.
template <class Row, std::size_t kRows, class Problem, class... Shared>
void run_rows(const Row (&rows)[kRows], std::size_t always, const Problem& problem, const Shared&... shared) {
  const WorkLists<kRows> lists(rows, problem);
  std::array<WorkSlot, kRows> work;
  std::size_t bytes = 0;
  for (std::size_t row = 0; row < kRows; ++row) {
    if (rows[row].plan == nullptr || (lists[row].size() == 0 && row != always)) continue;
    rows[row].plan(problem, shared..., lists[row], work[row]);
    if (__builtin_add_overflow(bytes, work[row]->bytes(), &bytes)) throw std::bad_alloc();
  }
  if (problem.report != nullptr) problem.report->memory_bytes += bytes;
  const Arena arena(bytes);
  std::byte* memory = arena.data();
  for (const WorkSlot& each : work) {
    if (!each) continue;
    each->run(memory);
    memory += each->bytes();
  }
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
      if (row.plan == nullptr) continue;
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

constexpr std::size_t kNoRow = static_cast<std::size_t>(-1);

}  // namespace

void cpu_forward(const ForwardProblem& problem) {
  report_routes(kForwardRoutes, problem);
  run_rows(kForwardRoutes, kNoRow, problem);
}

void cpu_backward(const BackwardProblem& problem) {
  report_routes(kBackwardRoutes, problem);
  // The tiles write dbias, which is 0 without sequences.
  const std::size_t always = problem.gradients.dbias.present() ? std::size(kBackwardRoutes) - 1 : kNoRow;
  if (!problem.gradients.dsinks.present()) return run_rows(kBackwardRoutes, always, problem, View<double, 2>{});
  std::int64_t tiles = 0;
  for (std::int64_t n = 0; n < problem.sequences(); ++n) tiles += query_tiles(problem.sequence(n).T);
  const Placed<SinkParts> sinks(tiles, problem.Hq);
  run_rows(kBackwardRoutes, always, problem, sinks->parts);
  write_dsinks(problem.gradients.dsinks, sinks->parts);
}

}  // namespace headgate
