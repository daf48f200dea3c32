// SPDX-License-Identifier: Apache-2.0
// Processes one token of gated linear attention directly on the state's tensor; included once per Highway target.
#if defined(HEADGATE_LINEAR_DECODE_STEP_INL_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADGATE_LINEAR_DECODE_STEP_INL_
#undef HEADGATE_LINEAR_DECODE_STEP_INL_
#else
#define HEADGATE_LINEAR_DECODE_STEP_INL_
#endif

#include <algorithm>
#include <cstdint>

#include "library/linear_attention/cpu/state_tasks-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::HWY_NAMESPACE {

/// Operands of one token.
template <typename T>
struct DecodeToken {
  const T* read;     ///< (D) k times the decay
  const T* key;      ///< (D)
  const T* query;    ///< (D) q times scale
  const T* factors;  ///< the decay e^g: one number, or D numbers if by_feature; null means 1
  bool by_feature;   ///< whether the decay has one number per feature
  const T* value;    ///< (Dv) v
  T beta;
  bool has_delta;
};

/// Computes S = F ∘ S_0 + k uᵀ and y = Sᵀ q for some columns of a state with dense rows. F is the decay, and u = v or,
/// with the delta rule, u = β (v − (F ∘ S_0)ᵀ k). Unlike a scan, does not copy the state into column blocks, because
/// the copy pays only for many tokens. Reads S_0 in memory order. With the delta rule, reads S_0 twice; the second read
/// mostly hits the L2 cache.
template <typename T>
class DecodeStep {
 public:
  static constexpr std::int64_t kVectors =
      4;  ///< vectors per row of a tile: rows of the state, u and y fit 16 registers
  static constexpr std::int64_t kWidth = kVectors * kLanes<T>;

  /// Returns whether DecodeStep supports a state `from` with `cols` columns. The answer does not depend on the outputs
  /// or the number of threads, so neither of them changes results.
  static bool takes(std::int64_t cols, const HeadRows<const void>& from) {
    return cols % kLanes<T> == 0 && (!from.present() || is_dense(from));
  }

  template <typename Void>
  static bool is_dense(const HeadRows<Void>& rows) {
    return rows.present() && rows.dtype == dtype_of<T>() && rows.stride == 1;
  }

  /// `outputs` and `x` have Dv elements each. run() writes y to `outputs`, and uses `x` for u.
  DecodeStep(const DecodeToken<T>& token, const StateColumns& columns, T* outputs, T* x)
      : token_(token), columns_(columns), outputs_(outputs), x_(x) {}

  /// Reads the state S_0 from `from`; an absent `from` stands for zeros. Writes S to `to`, unless `to` is null.
  void run(const HeadRows<const void>& from, std::int64_t rows, T* to, std::int64_t row_stride) const {
    std::fill_n(outputs_ + columns_.first, columns_.count, T{0});
    std::fill_n(x_ + columns_.first, columns_.count, T{0});
    if (token_.has_delta && from.present()) {
      for_tiles(rows,
                [&](const auto& tile, std::int64_t first, std::int64_t end) HWY_ATTR { tile.read(from, first, end); });
    }
    const Tag<T> d;
    for (std::int64_t c = columns_.first; c < columns_.first + columns_.count; c += kLanes<T>) {
      const auto difference = hn::Sub(hn::LoadU(d, token_.value + c), hn::LoadU(d, x_ + c));
      hn::StoreU(hn::Mul(difference, hn::Set(d, token_.beta)), d, x_ + c);
    }
    for_tiles(rows, [&](const auto& tile, std::int64_t first, std::int64_t end)
                        HWY_ATTR { tile.update(from, to, row_stride, first, end); });
  }

 private:
  /// The columns of the state that kTile vectors hold, beginning with column `at`. read() and update() process some of
  /// the state's rows.
  template <std::int64_t kTile>
  struct Tile {
    using Row = BlockRow<T, kTile>;
    const DecodeStep& step;
    std::int64_t at;

    static Row load(const HeadRows<const void>& rows, std::int64_t i, std::int64_t at) {
      return Row::load(rows.template at<T>(i, at, kTile * kLanes<T>));
    }

    /// Adds Σ_d F_d S_0(d, x) k_d over rows d = first … end to the tile's elements of x. Over all rows, this is (F ∘
    /// S_0)ᵀ k.
    HWY_INLINE void read(const HeadRows<const void>& from, std::int64_t first, std::int64_t end) const {
      const Tag<T> d;
      Row sum = Row::load(step.x_ + at);
      for (std::int64_t i = first; i < end; ++i) sum.add_product(load(from, i, at), hn::Set(d, step.token_.read[i]));
      sum.store(step.x_ + at);
    }

    HWY_INLINE void update(const HeadRows<const void>& from, T* to, std::int64_t row_stride, std::int64_t first,
                           std::int64_t end) const {
      const Tag<T> d;
      const DecodeToken<T>& token = step.token_;
      const Row x = Row::load(step.x_ + at);
      Row out = Row::load(step.outputs_ + at);
      for (std::int64_t i = first; i < end; ++i) {
        Row s = from.present() ? load(from, i, at) : Row::zero();
        if (token.factors != nullptr) s.multiply(hn::Set(d, token.factors[token.by_feature ? i : 0]));
        s.add_product(x, hn::Set(d, token.key[i]));
        if (to != nullptr) s.store(to + i * row_stride + at);
        out.add_product(s, hn::Set(d, token.query[i]));
      }
      out.store(step.outputs_ + at);
    }
  };

  /// Calls visit(tile, first row, end row) for all tiles in memory order: all columns of 16 rows, then the next 16
  /// rows.
  template <class Visit>
  HWY_INLINE void for_tiles(std::int64_t rows, const Visit& visit) const {
    constexpr std::int64_t kRows = 16;
    const std::int64_t end = columns_.first + columns_.count;
    for (std::int64_t i = 0; i < rows; i += kRows) {
      const std::int64_t last = std::min(i + kRows, rows);
      std::int64_t c = columns_.first;
      for (; c + kWidth <= end; c += kWidth) visit(Tile<kVectors>{*this, c}, i, last);
      for (; c < end; c += kLanes<T>) visit(Tile<1>{*this, c}, i, last);
    }
  }

  const DecodeToken<T>& token_;
  StateColumns columns_;
  T* outputs_;
  T* x_;
};

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HEADGATE_LINEAR_DECODE_STEP_INL_
