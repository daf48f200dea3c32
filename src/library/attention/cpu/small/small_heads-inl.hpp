// SPDX-License-Identifier: Apache-2.0
// Code common to the forward and the backward pass of heads with few queries and few keys; once per Highway target.
//
// All scores of a panel of queries are computed at once, transposed: queries lie along the lanes, keys along the rows.
// Softmax maxima and sums are then whole-vector operations. K is read by broadcasts from rows, without a transposition.
// No running maximum is carried from block to block.
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

#include "library/attention/cpu/common/head_tasks.hpp"
#include "library/attention/cpu/common/multiply-inl.hpp"
#include "library/attention/cpu/common/packed_heads.hpp"
#include "library/attention/cpu/common/rows-inl.hpp"
#include "library/attention/cpu/common/visibility.hpp"
#include "library/attention/cpu/common/work_list.hpp"
#include "library/attention/cpu/small/score_terms-inl.hpp"
#include "library/attention/cpu/small/small_heads.hpp"
#include "library/core/cancellation.hpp"
#include "library/core/team.hpp"
#include "library/core/workspace.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::HWY_NAMESPACE {

/// Row stride of operands, in elements. Rows are padded by one cache line (two for f64), so that they map to different
/// cache sets.
/// The stride is the same for all D, because products need a compile-time constant.
inline constexpr std::int64_t kRowStride = kSmallHeadDim + 16;

/// Number of rows in a unit. The height of a register tile is 1 to 4 units, and kMR is 3 units.
inline constexpr std::int64_t kRowUnit = kMR / 3;

/// Cuts rows [begin, end) into register tiles, and calls f.operator()<kRows>(r, rows) for each tile.
/// A tile has room for kRows rows, and holds the `rows` rows from row r on. kRows is kMR for most tiles. For the last
/// tiles, kRows is 1 to kMostUnits times kRowUnit, so that few rows are unused.
/// kMostUnits is 3 or 4.
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
    if (units == 2 || units == 4) {  // four remaining units give two tiles of two units
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

/// Returns the number of tiles into which for_row_tiles<3> cuts `rows` rows.
constexpr std::int64_t row_tiles_of(std::int64_t rows) { return divide_up(rows, kMR); }
/// Returns the number of register tiles in the product of `keys` keys and `queries` queries.
template <typename T>
std::int64_t score_tiles(std::int64_t queries, std::int64_t keys) {
  const bool one_vector = queries <= kLanes<T>, four_units = divide_up(keys, kRowUnit) % 3 == 1 && keys > kMR;
  return divide_up(queries, kNR<T>) * (row_tiles_of(keys) - (one_vector && four_units ? 1 : 0));
}

/// Computes tile += ab like multiply_add(), and prefetches the lines of `queue` meanwhile.
template <class Layout, std::int64_t kRows, std::int64_t kVecs, typename T>
HWY_INLINE void multiply_add_and_prefetch(hn::Vec<Tag<T>> (&tile)[kRows][kVecs], const T* HWY_RESTRICT a,
                                          const T* HWY_RESTRICT b, std::int64_t ldb, std::int64_t K,
                                          PrefetchQueue& queue) {
  PrefetchQueue in_registers = queue;
  multiply_add<Layout, kRows, kVecs>(tile, a, b, ldb, K, [&] { in_registers.prefetch(); });
  queue = in_registers;
}

/// Computes the scores k qᵀ + terms, times log2(e), of keys j … j + kRows and a panel of queries.
/// `keys` has one key per row. `queries` (D, kVecs · lanes) has one query per column.
/// `terms` holds biases and masks (ScoreTerms), or is null.
/// Both passes call this function, so that their scores are bitwise identical.
template <std::int64_t kRows, std::int64_t kVecs, typename T>
HWY_INLINE void score_keys(hn::Vec<Tag<T>> (&x)[kRows][kVecs], const View<T, 2>& keys, std::int64_t j,
                           const T* HWY_RESTRICT queries, std::int64_t D, const T* HWY_RESTRICT terms,
                           PrefetchQueue& queue) {
  HWY_UNROLL(16) for (std::int64_t m = 0; m < kRows; ++m) {
    HWY_UNROLL(4) for (std::int64_t v = 0; v < kVecs; ++v) x[m][v] = hn::Zero(Tag<T>());
  }
  multiply_add_and_prefetch<LeftLayout<kRowStride, 1>>(x, static_cast<const T*>(keys.at(j)), queries, kVecs * kLanes<T>,
                                                       D, queue);
  if (terms != nullptr) add_terms(x, terms + j * kNR<T>);
}

/// Computes c = ab or c += ab, as kWrite selects, for `rows` ≤ kRows rows. Always reads kRows rows of a.
/// Layout, a and b are as in multiply_add(). Prefetches the lines of `queue` meanwhile.
template <std::int64_t kRows, std::int64_t kVecs, class Layout, ProductWrite kWrite, typename T>
HWY_NOINLINE void multiply_row_tile(const T* HWY_RESTRICT a, const T* HWY_RESTRICT b, std::int64_t ldb, std::int64_t K,
                                    T* HWY_RESTRICT c, std::int64_t ldc, std::int64_t rows, PrefetchQueue& queue) {
  static_assert(kWrite != ProductWrite::overwrite_from);
  const Tag<T> d;
  hn::Vec<Tag<T>> tile[kRows][kVecs];
  HWY_UNROLL(16) for (std::int64_t m = 0; m < kRows; ++m) {
    HWY_UNROLL(4) for (std::int64_t n = 0; n < kVecs; ++n) tile[m][n] = hn::Zero(d);
  }
  multiply_add_and_prefetch<Layout>(tile, a, b, ldb, K, queue);
  HWY_UNROLL(16) for (std::int64_t m = 0; m < kRows; ++m) {
    if (m >= rows) break;
    HWY_UNROLL(4) for (std::int64_t n = 0; n < kVecs; ++n) {
      T* to = c + m * ldc + n * kLanes<T>;
      hn::StoreU(kWrite == ProductWrite::accumulate ? hn::Add(tile[m][n], hn::LoadU(d, to)) : tile[m][n], d, to);
    }
  }
}

/// Computes c = ab or c += ab for all columns of c (rows, cols) and b (K, cols).
/// Requires that cols is a multiple of kLanes<T>.
template <std::int64_t kRows, class Layout, ProductWrite kWrite, typename T>
HWY_INLINE void multiply_row_tiles(const T* a, const T* b, std::int64_t ldb, std::int64_t K, T* c, std::int64_t ldc,
                                   std::int64_t rows, std::int64_t cols, PrefetchQueue& queue) {
  std::int64_t x = 0;
  for (; x + kNR<T> <= cols; x += kNR<T>)
    multiply_row_tile<kRows, kNV, Layout, kWrite>(a, b + x, ldb, K, c + x, ldc, rows, queue);
  if (x < cols) multiply_row_tile<kRows, 1, Layout, kWrite>(a, b + x, ldb, K, c + x, ldc, rows, queue);
}

/// Rows of a matrix that is an operand of a product. `stride` is the row stride in elements.
/// Products may read whole vectors from each row.
template <typename T>
struct OperandRows {
  const T* data = nullptr;
  std::int64_t stride = 0;
  const T* at(std::int64_t r) const { return data + r * stride; }
};

/// Returns the dense rows of a tensor as an operand, in place.
template <typename Stored>
OperandRows<Stored> rows_in_place(const HeadRows<const void>& rows) {
  return {static_cast<const Stored*>(rows.data) + rows.start, rows.row_stride};
}

/// Returns the rows of k or v of one sequence and head, in place.
/// Returns null if rows are not dense, are stored in pages, or have scales.
template <typename T, typename Stored = T>
OperandRows<Stored> dense_keys(const Problem& p, const KeyTensors& of, const Sequence& s, std::int64_t h) {
  if (p.page > 0 || of.scale.present()) return {};
  const HeadRows<const void> rows = key_rows(of.rows, s, h);
  return lie_dense<T, Stored>(rows) ? rows_in_place<Stored>(rows) : OperandRows<Stored>{};
}

/// Converts a row of n elements to T. Rounds n up to whole vectors.
template <typename T, typename Stored>
HWY_INLINE void widen_row(T* HWY_RESTRICT to, const Stored* HWY_RESTRICT from, std::int64_t n) {
  for (std::int64_t x = 0; x < n; x += kLanes<T>) hn::StoreU(load_as<T>(from + x), Tag<T>(), to + x);
}

/// Copies rows [begin, end) of `from` to the same rows of `to`, zero-padded to whole vectors.
/// Zeroes rows [end, filled). The row stride of `to` is kRowStride.
/// `dense` points to the rows in the tensor, or is null if they are not dense.
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

/// Copies rows of k or v of one sequence and head to the same rows of `to`. Pads them like copy_rows().
template <typename T>
void copy_key_rows(const View<T, 2>& to, const Problem& p, const KeyTensors& of, const Sequence& s, std::int64_t h,
                   const KeyRange& rows, std::int64_t filled) {
  const KeyRows from(p, of, s, h);
  if constexpr (std::is_same_v<T, float>) {
    const auto halves = dense_keys<T, BFloat16>(p, of, s, h);
    if (halves.data != nullptr) return copy_rows(to, halves, from, rows.begin, rows.end, filled);
  }
  copy_rows(to, dense_keys<T>(p, of, s, h), from, rows.begin, rows.end, filled);
}

/// Multiplies rows row_at(0) … row_at(n − 1) by `factor`, and stores them as columns of `to` (cols, kVecs · lanes).
/// Unused columns become zero.
template <std::int64_t kVecs, typename T, class RowAt>
void transpose_panel(T* HWY_RESTRICT to, const RowAt& row_at, std::int64_t n, std::int64_t cols, T factor) {
  constexpr std::int64_t kWidth = kVecs * kLanes<T>;
  const T* source[kWidth];
  for (std::int64_t r = 0; r < n; ++r) source[r] = row_at(r);
  if (n < kWidth) std::fill_n(to, kWidth * cols, T{0});
  interleave_rows<kWidth>(to, source, n, cols, factor);
}

/// Plans a pass over small heads. Each key/value head is one task.
/// If there are few heads, the forward pass cuts each head into several tasks.
/// The backward pass cannot do this, because it sums over queries.
/// Results are bitwise identical for any number of tasks.
template <class Problem>
struct SmallHeadsPlan {
  static constexpr bool kCutsHeads = std::is_same_v<Problem, ForwardProblem>;
  static constexpr std::int64_t kTasksPerThread = 3;

  // Members that HeadBatches reads from the plan.
  static constexpr std::int64_t tile_rows = kNarrowHeadRows, kBlock = kNarrowHeadRows, kPanel = kNarrowHeadRows;
  static constexpr bool whole_heads = true;
  static double head_bytes(const PackedHeads& /*part*/) { return 1.0; }

  SmallHeadsPlan(const Problem& problem, const WorkList& sequences)
      : p(problem), list(sequences), longest(longest_sequence(problem, sequences)), terms(p, p.gate_threshold == 0) {
    const HeadBatches batches(*this);
    max_batch_counts = batches.max_batch_counts();
    if (kCutsHeads && max_batch_counts.heads > 0) {
      const std::int64_t panels = p.group * divide_up(longest.T, kNR<float>);
      pieces = std::min(divide_up(std::int64_t{kTasksPerThread} * p.context.threads, max_batch_counts.heads), panels);
    }
    threads = static_cast<int>(std::clamp<std::int64_t>(max_batch_counts.heads * pieces, 1, p.context.threads));
  }

  const Problem& p;
  WorkList list;
  Sequence longest;  ///< T and S are the largest T and the largest S of the listed sequences
  ScoreTermsPlan terms;
  HeadCounts max_batch_counts;  ///< largest numbers of parts and heads of any batch
  std::int64_t pieces = 1;      ///< number of tasks per head
  int threads = 1;
};

/// Buffers shared by all threads. Scratch is the type of the scratch buffers of one thread.
template <class Plan, class Scratch>
struct SmallHeadsBuffers {
  using T = typename Scratch::Element;

  SmallHeadsBuffers(Workspace& ws, const Plan& plan) {
    parts = ws.take<PackedHeads>("parts", plan.max_batch_counts.parts);
    if (plan.terms.planes > 0) {
      terms = ws.take<T>("terms of scores", plan.terms.planes, divide_up(plan.longest.T, kNR<T>), plan.longest.S + kMR,
                         kNR<T>);
    }
    scratch = ws.take<std::byte>("threads", plan.threads, count_bytes<Scratch>(plan));
  }
  View<PackedHeads, 1> parts;  ///< parts of the current batch; each part holds heads of one sequence
  View<T, 4> terms;            ///< terms of scores (biases and masks) that several heads share
  View<std::byte, 2> scratch;  ///< memory of each thread's Scratch
};

/// Computes the terms that biases and masks add to scores and that several heads share (ScoreTermsPlan::planes).
template <class Worker, class Plan, class Buffers>
void pack_terms(const Team& team, const Worker& worker, const Plan& plan, const Buffers& shared) {
  if (plan.terms.planes == 0) return;
  team.in_turn(plan.terms.planes * shared.terms.shape[1], [&](std::int64_t n) { worker.terms().pack_plane(n); });
}

/// Runs a pass over small heads with one Worker(plan, shared, thread) per thread.
/// Worker::run_head(head, next) computes one task.
template <class Worker, class Plan, class Buffers>
void run_small_heads(const Plan& plan, const Buffers& shared) {
  PackedHeads* const parts = shared.parts.data;
  HeadBatch batch(plan, parts);
  Cancellation cancellation(plan.p.context);
  run_team(plan.threads, [&](const Team& team) {
    Worker worker(plan, shared, team.thread());
    pack_terms(team, worker, plan, shared);
    for_each_batch(
        team, batch, [&] { run_heads(team, worker, parts, batch, plan.threads, cancellation, plan.pieces); },
        [&] { batch.next_unless(cancellation); });
  });
  cancellation.throw_if_seen();
}

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HEADGATE_ATTENTION_SMALL_HEADS_INL_
