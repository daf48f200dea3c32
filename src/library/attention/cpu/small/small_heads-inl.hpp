// SPDX-License-Identifier: Apache-2.0
// Heads with few queries and few keys: what the forward and the backward pass of those share; once per Highway target.
//
// All scores of a panel of queries are made at once, transposed: queries lie along the lanes, keys down the rows.
// Maxima and sums of the softmax are then operations of whole vectors, K is read by broadcasts from rows and needs no
// transposition, and no running maximum follows from block to block.
#if defined(HEADGATE_ATTENTION_SMALL_HEADS_INL_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADGATE_ATTENTION_SMALL_HEADS_INL_
#undef HEADGATE_ATTENTION_SMALL_HEADS_INL_
#else
#define HEADGATE_ATTENTION_SMALL_HEADS_INL_
#endif

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "library/attention/cpu/common/batch_loops.hpp"
#include "library/attention/cpu/common/head_tasks.hpp"
#include "library/attention/cpu/common/multiply-inl.hpp"
#include "library/attention/cpu/common/packed_heads.hpp"
#include "library/attention/cpu/common/planned_work.hpp"
#include "library/attention/cpu/common/rows-inl.hpp"
#include "library/attention/cpu/common/visibility.hpp"
#include "library/attention/cpu/common/work_list.hpp"
#include "library/attention/cpu/small/small_heads.hpp"
#include "library/core/cancellation.hpp"
#include "library/core/team.hpp"
#include "library/core/workspace.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::HWY_NAMESPACE {

/// Elements from one row of an operand to the next: a cache line (f64: two) more than the longest, so that rows lie in
/// different sets. One for all D, as broadcasts ask for strides that are known when this is compiled.
inline constexpr std::int64_t kRowStride = kSmallHeadDim + 16;

/// Rows by which register tiles grow: three make kMR.
inline constexpr std::int64_t kRowUnit = kMR / 3;

/// Calls f.operator()<kRows>(r, rows) for tiles of up to kRows rows that cover [begin, end), with few rows left over:
/// kMR rows, or 1 to kMostUnits (3 or 4) units at the end.
template <std::int64_t kMostUnits, typename F>
HWY_INLINE void for_row_tiles(std::int64_t begin, std::int64_t end, const F& f) {
  constexpr std::int64_t kUnit = kRowUnit;
  for (std::int64_t r = begin; r < end;) {
    const std::int64_t left = end - r;
    const std::int64_t units = divide_up(left, kUnit);
    if (units == 1) {
      f.template operator()<kUnit>(r, left);
      return;
    }
    if (kMostUnits == 4 && units == 4) {
      f.template operator()<4 * kUnit>(r, left);
      return;
    }
    if (units == 2 || units == 4) {  // four as two and two
      const std::int64_t rows = std::min(left, 2 * kUnit);
      f.template operator()<2 * kUnit>(r, rows);
      r += rows;
      continue;
    }
    const std::int64_t rows = std::min(left, kMR);
    f.template operator()<kMR>(r, rows);
    r += rows;
  }
}

/// How many tiles for_row_tiles<3> makes of `rows` rows.
constexpr std::int64_t row_tiles_of(std::int64_t rows) { return divide_up(rows, kMR); }
/// How many of the scores of `keys`, for all panels of `queries`.
template <typename T>
std::int64_t score_tiles(std::int64_t queries, std::int64_t keys) {
  const bool one_vector = queries <= kLanes<T>, four_units = divide_up(keys, kRowUnit) % 3 == 1 && keys > kMR;
  return divide_up(queries, kNR<T>) * (row_tiles_of(keys) - (one_vector && four_units ? 1 : 0));
}

/// Rows m < rows ≤ kRows of c = ab, or c += ab. Layout, a and b as for multiply_add; kRows rows of a are read.
/// Meanwhile asks for lines of `ahead`.
template <std::int64_t kRows, std::int64_t kVecs, class Layout, ProductWrite kWrite, typename T>
HWY_NOINLINE void multiply_row_tile(const T* HWY_RESTRICT a, const T* HWY_RESTRICT b, std::int64_t ldb, std::int64_t K,
                                    T* HWY_RESTRICT c, std::int64_t ldc, std::int64_t rows, PrefetchQueue& ahead) {
  static_assert(kWrite != ProductWrite::overwrite_from);
  const Tag<T> d;
  hn::Vec<Tag<T>> tile[kRows][kVecs];
  HWY_UNROLL(16) for (std::int64_t m = 0; m < kRows; ++m) {
    HWY_UNROLL(4) for (std::int64_t n = 0; n < kVecs; ++n) tile[m][n] = hn::Zero(d);
  }
  PrefetchQueue in_registers = ahead;
  multiply_add<Layout, kRows, kVecs>(tile, a, b, ldb, K, [&] { in_registers.ask(); });
  ahead = in_registers;
  HWY_UNROLL(16) for (std::int64_t m = 0; m < kRows; ++m) {
    if (m >= rows) break;
    HWY_UNROLL(4) for (std::int64_t n = 0; n < kVecs; ++n) {
      T* to = c + m * ldc + n * kLanes<T>;
      hn::StoreU(kWrite == ProductWrite::accumulate ? hn::Add(tile[m][n], hn::LoadU(d, to)) : tile[m][n], d, to);
    }
  }
}

/// c (rows, cols) = ab, or c += ab, with all cols, a multiple of the lanes, of b (K, cols).
template <std::int64_t kRows, class Layout, ProductWrite kWrite, typename T>
HWY_INLINE void multiply_row_tiles(const T* a, const T* b, std::int64_t ldb, std::int64_t K, T* c, std::int64_t ldc,
                                   std::int64_t rows, std::int64_t cols, PrefetchQueue& ahead) {
  std::int64_t x = 0;
  for (; x + kNR<T> <= cols; x += kNR<T>)
    multiply_row_tile<kRows, kNV, Layout, kWrite>(a, b + x, ldb, K, c + x, ldc, rows, ahead);
  if (x < cols) multiply_row_tile<kRows, 1, Layout, kWrite>(a, b + x, ldb, K, c + x, ldc, rows, ahead);
}

/// Rows as an operand of products, `stride` apart; whole vectors may be read of each.
template <typename T>
struct OperandRows {
  const T* data = nullptr;
  std::int64_t stride = 0;
  const T* at(std::int64_t r) const { return data + r * stride; }
};

/// Where rows lie dense, they themselves.
template <typename Stored>
OperandRows<Stored> rows_in_place(const HeadRows<const void>& rows) {
  return {static_cast<const Stored*>(rows.data) + rows.start, rows.row_stride};
}

/// The rows of k or v of a sequence's head, if they lie dense, not in pages and without scales; else null.
template <typename T, typename Stored = T>
OperandRows<Stored> dense_keys(const Problem& p, const ConstTensorView& tensor, const ConstTensorView& scale,
                               const Sequence& s, std::int64_t h) {
  if (p.page > 0 || scale.present()) return {};
  const HeadRows<const void> rows = key_rows(tensor, s, h);
  return lie_dense<T, Stored>(rows) ? rows_in_place<Stored>(rows) : OperandRows<Stored>{};
}

/// to[0 .. n) = a row of whole vectors.
template <typename T, typename Stored>
HWY_INLINE void widen_row(T* HWY_RESTRICT to, const Stored* HWY_RESTRICT from, std::int64_t n) {
  for (std::int64_t x = 0; x < n; x += kLanes<T>) hn::StoreU(load_as<T>(from + x), Tag<T>(), to + x);
}

/// Rows [begin, end) of `from` at the same places of `to`, kRowStride apart, with zeros up to whole vectors; then rows
/// of zeros up to `filled`. dense: the same rows where they lie dense, or null.
template <typename T, typename Stored, class Rows>
void copy_rows(const View<T, 2>& to, const OperandRows<Stored>& dense, const Rows& from, std::int64_t begin,
               std::int64_t end, std::int64_t filled) {
  const Tag<T> d;
  const std::int64_t padded = round_up(from.cols, kLanes<T>);
  for (std::int64_t r = begin; r < end; ++r) {
    T* HWY_RESTRICT row = to.at(r);
    if (dense.data != nullptr) {
      widen_row(row, dense.at(r), padded);
      continue;
    }
    const T* HWY_RESTRICT source = padded_row(from, r, row);
    if (source == row) continue;
    for (std::int64_t x = 0; x < padded; x += kLanes<T>) hn::StoreU(hn::LoadU(d, source + x), d, row + x);
  }
  for (std::int64_t r = end; r < filled; ++r) {
    for (std::int64_t x = 0; x < padded; x += kLanes<T>) hn::StoreU(hn::Zero(d), d, to.at(r) + x);
  }
}

/// The rows of k or v of a sequence's head at the same places of `to`, as copy_rows has them.
template <typename T>
void place_rows(const View<T, 2>& to, const Problem& p, const ConstTensorView& tensor, const ConstTensorView& scale,
                const Sequence& s, std::int64_t h, const KeyRange& rows, std::int64_t filled) {
  const KeyRows from(p, tensor, scale, s, h);
  if constexpr (std::is_same_v<T, float>) {
    const auto halves = dense_keys<T, BFloat16>(p, tensor, scale, s, h);
    if (halves.data != nullptr) return copy_rows(to, halves, from, rows.begin, rows.end, filled);
  }
  copy_rows(to, dense_keys<T>(p, tensor, scale, s, h), from, rows.begin, rows.end, filled);
}

/// Rows row_at(0) … row_at(n − 1) as the columns of `to` (cols, kVecs · lanes), times `factor`; zeros in the others.
template <std::int64_t kVecs, typename T, class RowAt>
void transpose_panel(T* HWY_RESTRICT to, const RowAt& row_at, std::int64_t n, std::int64_t cols, T factor) {
  constexpr std::int64_t kWidth = kVecs * kLanes<T>;
  const T* source[kWidth];
  for (std::int64_t r = 0; r < n; ++r) source[r] = row_at(r);
  if (n < kWidth) std::fill_n(to, kWidth * cols, T{0});
  interleave_rows<kWidth>(to, source, n, cols, factor);
}

/// What a pass over small heads is cut into: one task a key/value head, or several where heads are few and the pass
/// sums nothing over queries. The bits of a query do not depend on it.
template <class Problem>
struct SmallHeadsPlan {
  static constexpr bool kCutsHeads = std::is_same_v<Problem, ForwardProblem>;
  static constexpr std::int64_t kTasksPerThread = 3;

  // For HeadBatches.
  static constexpr std::int64_t tile_rows = kSmallHeadRows, kBlock = kSmallHeadRows, kPanel = kSmallHeadRows;
  static constexpr bool whole_heads = true;
  static double head_bytes(const PackedHeads& /*part*/) { return 1.0; }

  SmallHeadsPlan(const Problem& problem, const WorkList& sequences)
      : p(problem), list(sequences), longest(longest_sequence(problem, sequences)) {
    const HeadBatches batches(*this);
    HeadCursor end;
    most = batches.most(end);
    if (kCutsHeads && most.heads > 0) {
      const std::int64_t panels = p.group * divide_up(longest.T, kNR<float>);
      pieces = std::min(divide_up(std::int64_t{kTasksPerThread} * p.context.threads, most.heads), panels);
    }
    threads = static_cast<int>(std::clamp<std::int64_t>(most.heads * pieces, 1, p.context.threads));
  }

  const Problem& p;
  WorkList list;
  Sequence longest;  ///< the largest T and S of a listed sequence
  HeadTotals most;
  std::int64_t pieces = 1;  ///< of a head
  int threads = 1;
};

/// What threads share: the parts of a batch, and the memory of each thread's Scratch.
template <class Plan, class Scratch>
struct SmallHeadsBuffers {
  SmallHeadsBuffers(Workspace& ws, const Plan& plan) {
    parts = ws.take<PackedHeads>("parts", plan.most.parts);
    scratch = ws.take<std::byte>("threads", plan.threads, count_bytes<Scratch>(plan));
  }
  View<PackedHeads, 1> parts;
  View<std::byte, 2> scratch;
};

/// A pass over small heads whose workers, one a thread, compute heads: Worker(plan, scratch memory), run_head(head,
/// next). Scratch: what a worker works in.
template <class Worker, class Plan, class Scratch>
void run_small_heads(const Plan& plan, const SmallHeadsBuffers<Plan, Scratch>& shared) {
  PackedHeads* const parts = shared.parts.data;
  HeadBatch batch(plan, parts);
  Cancellation cancellation(plan.p.context);
  run_team(plan.threads, [&](const Team& team) {
    Worker worker(plan, shared.scratch.at(team.thread()));
    for_each_batch(
        team, batch, [&] { run_heads(team, worker, parts, batch, plan.threads, cancellation, plan.pieces); },
        [&] { batch.next_unless(cancellation); });
  });
  cancellation.throw_if_seen();
}

/// Plans a pass over the small heads of the sequences of a list, for run_small_heads.
template <class Worker, class Plan, class Scratch, class ProblemT>
void plan_small_heads(const ProblemT& problem, const WorkList& list, WorkSlot& slot) {
  using Buffers = SmallHeadsBuffers<Plan, Scratch>;
  slot.emplace<PlannedKernel<Plan, Buffers, run_small_heads<Worker, Plan, Scratch>>>(problem, list);
}

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HEADGATE_ATTENTION_SMALL_HEADS_INL_
