// SPDX-License-Identifier: Apache-2.0
// Decides which kernel computes a sequence. Each pass has one table of kernels, best first: the first row that does not
// decline a sequence computes it.
// Rows decide by the problem's sizes and options and by the sequence's own lengths. Other sequences of a packed batch
// and the number of threads have no influence: kernels differ in their last bits, and results must be bitwise identical
// to separate calls.
// A call's sequences are sorted into one work list for each row. The kernels plan their work on their lists. Then all
// of it runs in one block of memory. If an allocation fails, nothing has been written.

#include <algorithm>
#include <array>
#include <cstddef>
#include <iterator>
#include <new>
#include <optional>
#include <string>
#include <type_traits>

#include "library/attention/backend.hpp"
#include "library/attention/call_report.hpp"
#include "library/attention/cpu/common/head_tasks.hpp"
#include "library/attention/cpu/common/work_list.hpp"
#include "library/attention/cpu/dense_bias.hpp"
#include "library/attention/cpu/kernels.hpp"
#include "library/attention/cpu/prefix_mask.hpp"
#include "library/attention/cpu/small/small_heads.hpp"
#include "library/call/live_threads.hpp"
#include "library/call/native16.hpp"
#include "library/core/arena.hpp"
#include "library/core/element.hpp"
#include "library/core/sum_blocks.hpp"
#include "library/core/view.hpp"
#include "library/core/workspace.hpp"

namespace headgate {
namespace {

/// One row of a route table: a kernel, and the condition for the sequences that it computes.
/// `Shared` are the types of further arguments, which plan() receives after the problem.
template <class Problem, class... Shared>
struct RouteRow {
  const char* name;
  /// Returns null if the kernel computes the sequence.
  /// Otherwise returns the reason. Reports print the reason after "NAME: ".
  const char* (*declines)(const Problem& problem, const Sequence& sequence);
  /// Function that plans the kernel's work on the sequences of `list`. Null if these sequences need no computation.
  void (*plan)(const Problem& problem, const Shared&... shared, const WorkList& list, WorkSlot& slot);
};

// The next functions are conditions that several rows of the route tables share.

/// Returns the largest number of queries and keys at which the small-heads kernels are faster than other kernels.
std::int64_t most_small_rows(const Problem& p) {
  const AttentionInputs& in = p.inputs;
  const std::int64_t bytes = in.q.dtype == DType::f64 ? sizeof(double) : sizeof(float);
  const bool has_terms = in.bias.present() || in.key_bias.present() || in.mask.present();
  return has_terms && std::max(p.D, p.Dv) * bytes <= kNarrowHead_bytes ? kNarrowHeadRows : kSmallHeadRows;
}

/// Returns null if the small-heads kernels of both passes can compute the sequence. Otherwise returns the reason.
const char* not_small(const Problem& p, const Sequence& s) {
  if (p.softcap != 0.0 || p.inputs.alibi_slopes.present()) return "softcap or ALiBi change its scores";
  if (p.inputs.key_indices.present()) return "lists of keys";
  if (p.dropout > 0.0) return "dropout";
  if (p.D > kSmallHeadDim || p.Dv > kSmallHeadDim) return "heads of more than 256 features";
  const std::int64_t most = most_small_rows(p);
  if (std::max(s.T, s.S) > most) {
    return most == kSmallHeadRows ? "more than 256 queries or keys" : "more than 512 queries or keys";
  }
  return s.T == 0 || s.S == 0 || p.D == 0 || p.Dv == 0 ? "nothing to multiply" : nullptr;
}

/// Largest number of queries and keys at which f32 products are at least as fast as bf16 products
/// (docs/design/bf16.md).
///   dots: the limit where Headgate itself has chosen AVX-512 BF16.
///   tiles: the limit for AMX, and for the instructions that the program has chosen.
struct MostExactRows {
  std::int64_t dots, tiles;
};

/// Returns null if bf16 products can compute the sequence and are faster. Otherwise returns the reason.
const char* not_bf16(const Problem& p, const Sequence& s, const MostExactRows& most) {
  if (p.precision != Precision::native16) return "precision is exact";
  if (p.dropout > 0.0) return "dropout";
  if (p.inputs.q.dtype != DType::bf16 || p.inputs.k.dtype != DType::bf16) return "q or k is not bf16";
  const Native16Unit unit = native16_unit(p.context.target);
  if (unit == Native16Unit::none) return "no fast bf16 products on this CPU and target";
  const std::int64_t rows = unit == Native16Unit::tiles || native16_unit_is_selected() ? most.tiles : most.dots;
  return std::max(s.T, s.S) <= rows ? "too few queries and keys" : nullptr;
}

/// Returns true if there are many heads, and one head's packed k and v fit in the second-level cache of a thread.
bool packed_heads_stay_in_cache(const Problem& p, const Sequence& s) {
  constexpr std::int64_t kManyHeads = 32;
  const double bytes = sizeof(float) * static_cast<double>(s.S) * static_cast<double>(p.D + p.Dv);
  return p.B * p.Hkv >= kManyHeads && bytes <= kOwnHead_bytes;
}

/// Reason for declining that reports omit: the kernel is for a feature that the call does not use.
constexpr char kNotReported[] = "";

template <class Problem>
const char* listed_declines(const Problem& p, const Sequence& /*s*/) {
  return p.inputs.key_indices.present() ? nullptr : kNotReported;
}

// The next functions are conditions of the route table of the forward pass.
// Each function returns null if the kernel should compute the sequence. Otherwise it returns the reason.

constexpr MostExactRows kMostExactForward{.dots = 127, .tiles = 16};

const char* empty_declines(const ForwardProblem& /*p*/, const Sequence& s) {
  return s.T == 0 ? nullptr : "has queries";
}

const char* native16_declines(const ForwardProblem& p, const Sequence& s) {
  if (const char* reason = not_bf16(p, s, kMostExactForward)) return reason;
  if (p.gate_threshold != 0.0) return "a gate threshold closes rows";
  return p.outputs.weights.present() ? "weights are asked for" : nullptr;
}

/// Returns null if few_queries, which does not pack K and V, should compute the sequence. Otherwise returns the reason.
/// Kernels that pack K and V are faster for:
///   many query rows per key (docs/design/decoding.md);
///   heads whose packed K and V fit in the cache (docs/design/forward.md);
///   small heads (docs/design/small-sequences.md).
/// few_queries also declines several queries with few keys each, because weights near 1 are then common.
/// Such weights need scores that are bitwise identical in both passes (docs/reference/numerics.md).
/// few_queries does not compute such scores.
const char* few_queries_declines(const ForwardProblem& p, const Sequence& s) {
  constexpr std::int64_t kMostSharedRows = 64, kMostQueriesBesidesOthers = 8, kFewKeysEach = 4;
  // Accepts more rows per key if a head has at most kFewOfHead queries.
  // For such heads, other kernels leave most of a register tile unused.
  // The number of rows is still limited, because partial softmaxes need rows / 1024 times as much memory as V.
  constexpr std::int64_t kFewOfHead = 4, kMostSharedRowsOfFew = 256;
  if (p.outputs.weights.present()) return "weights are asked for";
  if (p.dropout > 0.0) return "dropout";
  if (s.T > kFewOfHead && s.T * p.group > kMostSharedRows) return "more than 64 queries share a key";
  if (s.T * p.group > kMostSharedRowsOfFew) return "more than 256 queries share a key";
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
    {"listed", listed_declines<ForwardProblem>, listed_forward},
    {"few_queries", few_queries_declines, few_queries_forward},
    {"native16", native16_declines, native16_forward},
    {"small_heads", small_heads_declines, small_heads_forward},
    {"tiles", tiles_decline<ForwardProblem>, tiles_forward},
};

// The next functions are conditions of the route table of the backward pass.
// They return null if the kernel should compute the sequence. Otherwise they return the reason.
// Kernels also compute sequences without queries, because dk and dv of these sequences must become 0.

constexpr MostExactRows kMostExactBackward{.dots = 63, .tiles = 32};

const char* native16_declines(const BackwardProblem& p, const Sequence& s) {
  // With dbias, one kernel must compute all sequences of a packed batch: the kernel that sums dbias also clears it.
  // native16 therefore accepts short sequences too.
  // It also accepts them in a batch of one, which must be bitwise identical to a packed batch.
  constexpr MostExactRows kNone{.dots = -1, .tiles = -1};
  return not_bf16(p, s, p.gradients.dbias.present() && p.B == 1 ? kNone : kMostExactBackward);
}

const char* small_heads_declines(const BackwardProblem& p, const Sequence& s) {
  // With more than kBackwardKeys keys, the tiles kernel divides its key blocks among threads. This is faster if heads
  // are few.
  constexpr std::int64_t kManyHeads = 8;
  if (const char* reason = not_small(p, s)) return reason;
  if (p.inputs.sinks.present()) return "there are sinks";
  const TensorView& dbias = p.gradients.dbias;
  // Declines dbias of a batch of one, as for a packed batch. Both use the same kernel and are bitwise identical.
  if (dbias.present() && (p.B == 1 || dbias.shape[1] != p.Hq || dbias.shape[2] != p.T)) {
    return "dbias of one batch element, or dbias that is a sum over heads or queries";
  }
  return s.S > kBackwardKeys && p.B * p.Hkv < kManyHeads ? "more than 192 keys of fewer than 8 heads" : nullptr;
}

constexpr RouteRow<BackwardProblem, View<double, 2>> kBackwardRoutes[] = {
    {"listed", listed_declines<BackwardProblem>, listed_backward},
    {"native16", native16_declines, native16_backward},
    {"small_heads", small_heads_declines, small_heads_backward},
    {"tiles", tiles_decline<BackwardProblem>, tiles_backward},
};

/// Returns the index of the first row of the route table whose kernel accepts the sequence.
template <class Row, std::size_t kRows, class Problem>
std::size_t row_of(const Row (&rows)[kRows], const Problem& problem, const Sequence& sequence) {
  std::size_t row = 0;
  while (rows[row].declines(problem, sequence) != nullptr) ++row;
  return row;
}

/// Memory for the entries of all work lists of a call, one list after another.
struct WorkEntries {
  WorkEntries(Workspace& ws, std::int64_t sequences) : entries(ws.take<ListedSequence>("work lists", sequences)) {}
  View<ListedSequence, 1> entries;
};

/// The work lists of a call, one per row of the route table.
template <std::size_t kRows>
class WorkLists {
 public:
  template <class Row, class Problem>
  WorkLists(const Row (&rows)[kRows], const Problem& problem) {
    const std::int64_t sequences = problem.sequences();
    if (sequences == 0) return;
    // without packing, all sequences have the same length and use the same row of the table
    if (!problem.packed()) {
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
  std::optional<Placed<WorkEntries>> sorted_;  // entries of all lists; used only for a packed batch
  std::array<WorkList, kRows> lists_;
};

/// Plans the kernel of each row of the route table that has sequences.
/// Plans row number `always` even without sequences.
/// Allocates one block of memory for all planned kernels, and runs them in the order of the table.
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
  run_on_live_threads(problem.context.threads, [&] {
    std::byte* memory = arena.data();
    for (const WorkSlot& each : work) {
      if (!each) continue;
      each->run(memory);
      memory += each->bytes();
    }
  });
}

/// Adds the routes of a call to its report.
/// Sequences are reported together if they have the same route and the same reasons for declining.
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
      if (row.plan == nullptr || reason == kNotReported) continue;
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

/// Memory for contributions to dsinks, one per query tile. Used if all queries of a head share a sink.
struct SinkParts {
  SinkParts(Workspace& ws, std::int64_t tiles, std::int64_t Hq) : parts(ws.take<double>("dsinks by tile", tiles, Hq)) {}
  View<double, 2> parts;  ///< contribution of each query tile to dsinks, (query tiles of all sequences, Hq)
};

/// Computes dsinks[h] as the sum over query tiles, in the order of sequences and tiles.
void write_dsinks(const TensorView& dsinks, const View<double, 2>& parts) {
  for (std::int64_t h = 0; h < parts.shape[1]; ++h) {
    double sum = 0;
    for (std::int64_t tile = 0; tile < parts.shape[0]; ++tile) sum += parts(tile, h);
    store(dsinks, 0, 0, 0, h, sum);
  }
}

/// Memory for contributions to dsinks, one per batch element.
/// Used if each query has its own sinks, and all batch elements share them.
struct QuerySinkTerms {
  QuerySinkTerms(Workspace& ws, const Problem& p) : terms(ws.take<double>("dsinks by batch", p.B, p.Hq, p.T)) {}
  /// Returns the contributions to dsinks as a tensor (B,Hq,T,1).
  TensorView view() const {
    const Shape shape{terms.shape[0], terms.shape[1], terms.shape[2], 1};
    return {terms.data, DType::f64, shape, contiguous_strides(shape)};
  }
  View<double, 3> terms;
};

/// Computes dsinks (1,Hq,T,1) as the sum over batch elements, in ascending order.
void write_dsinks_of_queries(const TensorView& dsinks, const View<double, 3>& terms) {
  for (std::int64_t h = 0; h < dsinks.shape[1]; ++h) {
    for (std::int64_t i = 0; i < dsinks.shape[2]; ++i) {
      double sum = 0;
      for (std::int64_t b = 0; b < terms.shape[0]; ++b) sum += terms(b, h, i);
      store(dsinks, 0, h, i, 0, sum);
    }
  }
}

constexpr std::size_t kNoRow = static_cast<std::size_t>(-1);

/// Holds a problem whose mask, bias and dbias are replaced by equivalent tensors that kernels read or write faster,
/// where possible. After the computation, write_dbias() must be called.
template <class Problem>
class FasterTensors {
 public:
  explicit FasterTensors(const Problem& given) : given_(given), problem_(&given) {
    replace_mask();
    replace_bias();
    if constexpr (kIsBackward) replace_dbias();
  }
  FasterTensors(const FasterTensors&) = delete;
  FasterTensors& operator=(const FasterTensors&) = delete;

  const Problem& problem() const { return *problem_; }

  /// Copies dbias to the caller's tensor if it was replaced.
  void write_dbias() const {
    if (dbias_.has_value()) copy(given_.gradients.dbias, (*dbias_)->copy);
  }

 private:
  static constexpr bool kIsBackward = std::is_same_v<Problem, BackwardProblem>;

  /// Replaces the mask by key lengths if it only hides the last keys of each sequence.
  void replace_mask() {
    if (!PrefixMask::may_suit(*problem_)) return;
    const Placed<PrefixMask>& prefix = prefix_.emplace(*problem_);
    report(prefix.bytes());
    if (!prefix->fill(*problem_)) return;
    const std::int64_t B = problem_->B;
    AttentionInputs& inputs = changed().inputs;
    inputs.mask = {};
    inputs.key_lengths = {prefix->keys.data, DType::i64, {1, 1, 1, B}, {0, 0, 0, 1}};
  }

  /// Replaces the bias by a dense copy if its keys are not adjacent in memory.
  void replace_bias() {
    const ConstTensorView& bias = given_.inputs.bias;
    if (!DenseBias::pays(given_, bias)) return;
    const Placed<DenseBias>& dense = bias_.emplace(bias);
    report(dense.bytes());
    copy(dense->copy, bias);
    changed().inputs.bias = dense->copy;
  }

  /// Replaces dbias by dense memory if its keys are not adjacent in memory.
  void replace_dbias() {
    const TensorView& dbias = given_.gradients.dbias;
    if (!DenseBias::pays(given_, dbias)) return;
    const Placed<DenseBias>& dense = dbias_.emplace(dbias);
    report(dense.bytes());
    changed().gradients.dbias = dense->copy;
  }

  void copy(const TensorView& to, const ConstTensorView& from) const {
    run_on_live_threads(given_.context.threads, [&] { copy_bias(given_, to, from); });
  }

  void report(std::size_t bytes) const {
    if (given_.report != nullptr) given_.report->memory_bytes += bytes;
  }
  /// Returns a modifiable copy of the given problem. The first call makes the copy, which problem() then returns.
  Problem& changed() {
    if (!copy_.has_value()) problem_ = &copy_.emplace(*problem_);
    return *copy_;
  }

  const Problem& given_;
  const Problem* problem_;
  std::optional<Problem> copy_;
  std::optional<Placed<PrefixMask>> prefix_;
  std::optional<Placed<DenseBias>> bias_, dbias_;
};

void forward(const ForwardProblem& given) {
  const FasterTensors tensors(given);
  const ForwardProblem& problem = tensors.problem();
  report_routes(kForwardRoutes, problem);
  run_rows(kForwardRoutes, kNoRow, problem);
}

void compute_gradients(const BackwardProblem& problem) {
  // If there are no sequences, tiles_backward must still set dbias to 0.
  const bool zeroes = problem.gradients.dbias.present() && problem.sequences() == 0;
  const std::size_t always = zeroes ? std::size(kBackwardRoutes) - 1 : kNoRow;
  const TensorView& dsinks = problem.gradients.dsinks;
  const auto run = [&](const BackwardProblem& p, const View<double, 2>& sink_parts) {
    run_rows(kBackwardRoutes, always, p, sink_parts);
  };
  if (!dsinks.present() || (problem.sinks_by_query && dsinks.shape[0] == problem.B)) return run(problem, {});
  if (problem.sinks_by_query) {
    const Placed<QuerySinkTerms> by_batch(problem);
    BackwardProblem with_terms = problem;
    with_terms.gradients.dsinks = by_batch->view();
    run(with_terms, {});
    return write_dsinks_of_queries(dsinks, by_batch->terms);
  }
  std::int64_t tiles = 0;
  for (std::int64_t n = 0; n < problem.sequences(); ++n) tiles += query_tiles(problem.sequence(n).T);
  const Placed<SinkParts> sinks(tiles, problem.Hq);
  run(problem, sinks->parts);
  write_dsinks(dsinks, sinks->parts);
}

void backward(const BackwardProblem& given) {
  const FasterTensors tensors(given);
  report_routes(kBackwardRoutes, tensors.problem());
  compute_gradients(tensors.problem());
  tensors.write_dbias();
}

void statistics(const StatisticsProblem& problem) {
  run_on_live_threads(problem.context.threads, [&problem] { cpu_statistics(problem); });
}

}  // namespace

const Backend kCpuBackend{"cpu", [](const Problem& /*problem*/) -> const char* { return nullptr; }, forward, backward,
                          statistics};

}  // namespace headgate
