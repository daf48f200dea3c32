// SPDX-License-Identifier: Apache-2.0
// Sums up dbias over tiles of queries and keys; included once per Highway target.
#if defined(HEADGATE_ATTENTION_BIAS_GRADIENT_INL_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADGATE_ATTENTION_BIAS_GRADIENT_INL_
#undef HEADGATE_ATTENTION_BIAS_GRADIENT_INL_
#else
#define HEADGATE_ATTENTION_BIAS_GRADIENT_INL_
#endif

#include <algorithm>
#include <cstdint>

#include "library/attention/cpu/common/packed_heads.hpp"
#include "library/attention/cpu/common/rows-inl.hpp"
#include "library/attention/problem.hpp"
#include "library/core/turnstile.hpp"
#include "library/core/view.hpp"
#include "library/core/workspace.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::HWY_NAMESPACE {

/// Describes how the terms of dbias are summed.
class BiasGradientPlan {
 public:
  /// `compute` is the dtype in which dbias is summed.
  BiasGradientPlan(const BackwardProblem& p, DType compute) {
    const TensorView& dbias = p.gradients.dbias;
    if (!dbias.present()) return;
    wanted_ = true;
    over_sequences_ = dbias.shape[0] == 1 && !p.packed();
    over_queries_ = dbias.shape[2] == 1 && p.T != 1;
    over_heads_ = dbias.shape[1] == 1;
    sequences_ = over_sequences_ ? std::max<std::int64_t>(p.B, 1) : 1;
    has_one_term_ = dbias.shape[0] == p.B && dbias.shape[1] == p.Hq && !over_queries_;
    is_copied_ = dbias.dtype != compute && !has_one_term_;
  }

  bool wanted() const { return wanted_; }
  bool over_sequences() const { return over_sequences_; }  ///< true if all sequences add to one batch element of dbias
  bool over_heads() const { return over_heads_; }          ///< true if all query heads add to one head of dbias
  bool over_queries() const { return over_queries_; }      ///< true if all queries add to one row of dbias
  bool has_one_term() const { return has_one_term_; }      ///< true if each element of dbias is a single term
  /// Returns true if dbias is summed in a copy of a wider dtype, because its own dtype would round each partial sum.
  bool is_copied() const { return is_copied_; }

  /// Sets parts(). `tile_blocks` is the number of (query tile, key block) pairs of one head in all sequences.
  void set_parts(std::int64_t tile_blocks) { parts_ = tile_blocks / sequences_; }
  /// Returns the number of (query tile, key block) pairs of one head that add to different elements of dbias.
  /// Each of these pairs has a Turnstile, which orders its additions.
  std::int64_t parts() const { return parts_; }

 private:
  bool wanted_ = false, over_sequences_ = false, over_heads_ = false, over_queries_ = false;
  bool has_one_term_ = false, is_copied_ = false;
  std::int64_t sequences_ = 1, parts_ = 0;
};

/// Buffers in which threads sum dbias.
template <typename T>
struct BiasGradientBuffers {
  BiasGradientBuffers() = default;
  BiasGradientBuffers(Workspace& ws, const BackwardProblem& p, const BiasGradientPlan& plan) : sums(p.gradients.dbias) {
    if (!plan.wanted()) return;
    const Shape& shape = sums.shape;
    if (plan.is_copied()) {
      const auto copy = ws.take<T>("dbias", shape[0], shape[1], shape[2], shape[3]);
      sums = {copy.data, dtype_of<T>(), copy.shape, copy.strides};
    }
    turns = ws.take<std::int64_t>("turns of dbias", shape[1], plan.parts());
  }

  /// Returns the number of rows of dbias, 0 without dbias.
  std::int64_t rows() const { return sums.shape[0] * sums.shape[1] * sums.shape[2]; }
  void clear_turns() const { std::fill_n(turns.data, turns.count(), 0); }

  TensorView sums;              ///< sums of dbias: the caller's tensor, or a copy of type T
  View<std::int64_t, 2> turns;  ///< (Hq or 1, parts): number of the turn that may add next (Turnstile)
};

/// Scratch buffers of one thread. `block` is the number of keys per block.
template <typename T>
struct BiasGradientScratch {
  BiasGradientScratch() = default;
  BiasGradientScratch(Workspace& ws, const BiasGradientPlan& plan, std::int64_t block) {
    if (!plan.wanted()) return;
    row = ws.take<T>("dbias row", block);
    if (plan.over_queries()) sum = ws.take<T>("dbias sum", block);
  }

  View<T, 1> row;  ///< a row of dbias, for the keys of one block
  View<T, 1> sum;  ///< dbias of the thread's key block, summed over queries
};

/// Adds ds to dbias. Query heads and sequences that share elements of dbias add in a fixed order (Turnstile).
/// A thread makes these calls for each query head of a key block:
///   begin_block()
///     enter_tile(), add() or writes to destination(), leave_tile()      for each query tile
///   end_block()
/// Without dbias, when wanted() is false, these functions do nothing.
template <typename T>
class BiasGradient {
 public:
  BiasGradient(const BackwardProblem& p, const BiasGradientPlan& plan, const BiasGradientBuffers<T>& shared,
               const BiasGradientScratch<T>& own)
      : p_(p), plan_(plan), shared_(shared), own_(own) {}

  bool wanted() const { return plan_.wanted(); }

  void begin_block() const {
    if (plan_.over_queries()) std::fill_n(own_.sum.data, own_.sum.count(), T{0});
  }
  void enter_tile(const PackedHeads& part, std::int64_t h, std::int64_t tile, std::int64_t block) const {
    if (adds_by_tile()) turnstile(part, h, tile, block).enter(turn(part, h));
  }
  void leave_tile(const PackedHeads& part, std::int64_t h, std::int64_t tile, std::int64_t block) const {
    if (adds_by_tile()) turnstile(part, h, tile, block).leave(turn(part, h));
  }

  /// Adds ds[0 .. n) for query i of head h to columns c … c + n of the block that begins at key j0.
  void add(const Sequence& s, std::int64_t h, std::int64_t i, std::int64_t j0, std::int64_t c, std::int64_t n,
           const T* ds) const {
    if (!plan_.over_queries()) return add_row(s, h, i, j0 + c, n, ds);
    T* HWY_RESTRICT sum = own_.sum.at(c);
    for (std::int64_t j = 0; j < n; ++j) sum[j] += ds[j];
  }

  /// Returns the rows of dbias (T,S) for head h of a sequence. They are absent if there is no dbias, or if all queries
  /// share one row.
  HeadRows<const void> rows_of_terms(const Sequence& s, std::int64_t h) const {
    return adds_by_tile() ? rows_of_head(s, h) : HeadRows<void>(TensorView{}, 0, 0);
  }

  /// Memory to which a kernel may write ds of consecutive queries itself, instead of calling add().
  /// Keys are adjacent in memory. Either `sums` or `terms` is set. If both are null, the kernel must call add().
  struct Destination {
    T* sums = nullptr;          ///< sums to which the kernel adds ds
    BFloat16* terms = nullptr;  ///< elements that the kernel overwrites with rounded ds
    std::int64_t row_stride = 0;
    bool present() const { return sums != nullptr || terms != nullptr; }
  };
  /// Returns the destination of query i of head h and column c of the block that begins at key j0.
  Destination destination(const Sequence& s, std::int64_t h, std::int64_t i, std::int64_t j0, std::int64_t c) const {
    if (!plan_.wanted()) return {};
    if (plan_.over_queries()) return {.sums = own_.sum.at(c)};
    const HeadRows<void> to = rows_of_head(s, h);
    if (to.stride != 1) return {};
    if (to.dtype == dtype_of<T>()) return {.sums = to.template at<T>(i, j0 + c, 1), .row_stride = to.row_stride};
    if (to.dtype != DType::bf16 || !plan_.has_one_term()) return {};
    return {.terms = to.template at<BFloat16>(i, j0 + c, 1), .row_stride = to.row_stride};
  }

  /// If all queries share a row of dbias, adds the sum over the block's queries to dbias.
  /// The block has `keys` keys from j0 on.
  void end_block(const PackedHeads& part, std::int64_t h, std::int64_t block, std::int64_t j0,
                 std::int64_t keys) const {
    if (!plan_.over_queries() || part.tiles == 0) return;
    const Turnstile first = turnstile(part, h, 0, block);
    first.enter(turn(part, h));
    add_row(part.sequence, h, 0, j0, keys, own_.sum.data);
    first.leave(turn(part, h));
  }

  // Rows are numbered by batch, then head, then query.

  /// Clears row n of dbias, or of the copy of dbias.
  void clear_row(std::int64_t n) const {
    const std::int64_t block = own_.row.count();
    const HeadRows<void> to = rows_of(shared_.sums, n);
    std::fill_n(own_.row.data, block, T{0});
    for (std::int64_t j0 = 0; j0 < to.cols; j0 += block)
      store_row(to, own_.row.data, n % shared_.sums.shape[2], j0, std::min(block, to.cols - j0));
  }

  /// Rounds row n of the copy of dbias, and writes it to the caller's dbias.
  void write_row(std::int64_t n) const {
    const std::int64_t block = own_.row.count(), i = n % shared_.sums.shape[2];
    const HeadRows<void> to = rows_of(p_.gradients.dbias, n), from = rows_of(shared_.sums, n);
    for (std::int64_t j0 = 0; j0 < to.cols; j0 += block) {
      const std::int64_t count = std::min(block, to.cols - j0);
      load_row(own_.row.data, from, i, j0, count);
      store_row(to, own_.row.data, i, j0, count);
    }
  }

 private:
  bool adds_by_tile() const { return plan_.wanted() && !plan_.over_queries(); }

  /// Returns the head of `tensor` to which row n belongs.
  static HeadRows<void> rows_of(const TensorView& tensor, std::int64_t n) {
    const Shape& shape = tensor.shape;
    return {tensor, n / (shape[1] * shape[2]), n / shape[2] % shape[1]};
  }

  Turnstile turnstile(const PackedHeads& part, std::int64_t h, std::int64_t tile, std::int64_t block) const {
    const std::int64_t first = plan_.over_sequences() ? 0 : part.tile_blocks_before;
    return Turnstile(shared_.turns(plan_.over_heads() ? 0 : h, first + tile * part.blocks + block));
  }

  /// Returns the number of the turn in which head h of the part's sequence adds to dbias (Turnstile).
  /// Heads and sequences that add to the same elements have consecutive turns, from 0 on.
  std::int64_t turn(const PackedHeads& part, std::int64_t h) const {
    const std::int64_t shared_heads = plan_.over_heads() ? p_.Hq : 1;
    return (plan_.over_sequences() ? part.n * shared_heads : 0) + (plan_.over_heads() ? h : 0);
  }

  /// Returns the rows and columns of dbias (or of its copy) to which head h of a sequence adds.
  HeadRows<void> rows_of_head(const Sequence& s, std::int64_t h) const {
    const TensorView& sums = shared_.sums;
    const HeadRows<void> head(sums, sums.shape[0] == 1 ? 0 : s.b, plan_.over_heads() ? 0 : h);
    const HeadRows<void> columns = head.columns(s.k0, s.S);
    return plan_.over_queries() ? columns : columns.range(s.q0, s.T);
  }

  /// Adds from[0 .. n) to columns first … first + n of dbias for query i.
  void add_row(const Sequence& s, std::int64_t h, std::int64_t i, std::int64_t first, std::int64_t n,
               const T* from) const {
    const HeadRows<void> to = rows_of_head(s, h);
    const std::int64_t row = plan_.over_queries() ? 0 : i;
    if (plan_.has_one_term()) {
      // Elements of dbias are 0 here. Does not read them, because reads wait for memory. A term of -0 becomes 0, as in
      // a sum.
      return write(to, row, first, n, from, [](auto, auto ds) HWY_ATTR { return hn::Add(ds, hn::Zero(Tag<T>())); });
    }
    if (!is_own(to)) load_row(own_.row.data, to, row, first, n);
    write(to, row, first, n, from, [](auto sum, auto ds) HWY_ATTR { return hn::Add(sum, ds); });
  }

  /// Returns whether the kernel can sum up in dbias itself, without a row of scratch.
  static bool is_own(const HeadRows<void>& to) { return to.dtype == dtype_of<T>() && to.stride == 1; }

  /// Sets elements of a row of dbias to op(sum, ds). The argument `sum` is the element itself if is_own(to), and
  /// otherwise the element of the scratch row.
  template <class Op>
  void write(const HeadRows<void>& to, std::int64_t row, std::int64_t first, std::int64_t n, const T* from,
             const Op& op) const {
    if (is_own(to)) return update_row(to.template at<T>(row, first, n), n, op, from);
    update_row(own_.row.data, n, op, from);
    store_row(to, own_.row.data, row, first, n);
  }

  const BackwardProblem& p_;
  const BiasGradientPlan& plan_;
  const BiasGradientBuffers<T>& shared_;
  const BiasGradientScratch<T>& own_;
};

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HEADGATE_ATTENTION_BIAS_GRADIENT_INL_
