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
#include <type_traits>

#include "library/linear_attention/cpu/state_tasks-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::HWY_NAMESPACE {

/// Operands of one token.
template <typename T>
struct DecodeToken {
  const T* decayed_key;  ///< (D) k times the decay
  const T* key;          ///< (D)
  const T* query;        ///< (D) q times scale
  const T* factors;      ///< the decay e^g: one number, or D numbers if by_feature; null means 1
  bool by_feature;       ///< whether the decay has one number per feature
  const T* value;        ///< (Dv) v
  T beta;
  bool has_delta;
};

/// Computes one token, in some columns of a state with dense rows: S = F ∘ S_0 + k uᵀ and y = Sᵀ q. F is the decay. u
/// is v or, with the delta rule, β (v − (F ∘ S_0)ᵀ k).
/// Reads S_0 in memory order, without the copy to column blocks that a scan makes: the copy pays off only for many
/// tokens. With the delta rule, reads S_0 twice; the second read mostly hits the L2 cache.
template <typename T>
class DecodeStep {
 public:
  static constexpr std::int64_t kVectors =
      4;  ///< number of vectors in a row of a tile: a row of the state, u and y then fit in 16 registers
  static constexpr std::int64_t kWidth = kVectors * kLanes<T>;

  /// Returns whether DecodeStep supports a state `from` with `cols` columns. The answer is the same for any outputs and
  /// any number of threads, so that these do not change results.
  static bool supports(std::int64_t cols, const HeadRows<const void>& from) {
    return cols % kLanes<T> == 0 && (!from.present() || is_dense(from));
  }

  template <typename Void>
  static bool is_dense(const HeadRows<Void>& rows) {
    return rows.present() && rows.dtype == dtype_of<T>() && rows.stride == 1;
  }

  /// run() writes y to `outputs`. `u` is scratch: it first holds (F ∘ S_0)ᵀ k, and then u = β (v − (F ∘ S_0)ᵀ k). Both
  /// have Dv elements.
  DecodeStep(const DecodeToken<T>& token, const StateColumns& columns, T* outputs, T* u)
      : token_(token), columns_(columns), outputs_(outputs), u_(u) {}

  /// Reads the state S_0 from `from`; an absent `from` stands for zeros. Writes S to `to`, unless `to` is null.
  void run(const HeadRows<const void>& from, std::int64_t rows, T* to, std::int64_t row_stride) const {
    std::fill_n(outputs_ + columns_.first, columns_.count, T{0});
    std::fill_n(u_ + columns_.first, columns_.count, T{0});
    const DenseRows<const T> old_state = from.present()
                                             ? DenseRows<const T>{from.template at<T>(0, 0, 0), from.row_stride}
                                             : DenseRows<const T>{nullptr, 0};
    if (token_.has_delta && from.present()) retrieve(old_state, rows);
    const Tag<T> d;
    for (std::int64_t c = columns_.first; c < columns_.first + columns_.count; c += kLanes<T>) {
      const auto difference = hn::Sub(hn::LoadU(d, token_.value + c), hn::LoadU(d, u_ + c));
      hn::StoreU(hn::Mul(difference, hn::Set(d, token_.beta)), d, u_ + c);
    }
    const DenseRows<T> new_state{to, row_stride};
    if (!from.present()) return update<State::zero>(old_state, new_state, rows);
    if (token_.factors == nullptr) return update<State::kept>(old_state, new_state, rows);
    token_.by_feature ? update<State::decayed_by_feature>(old_state, new_state, rows)
                      : update<State::decayed>(old_state, new_state, rows);
  }

 private:
  /// Form of F ∘ S_0: zeros, S_0 itself, S_0 times one factor, or S_0 with each row times its own factor.
  enum class State { zero, kept, decayed, decayed_by_feature };

  /// Dense rows of a state, `stride` elements apart. Null `data` means that there is no input state, or that the output
  /// state is not requested.
  template <typename Element>
  struct DenseRows {
    Element* data;
    std::int64_t stride;
  };

  /// Sets the buffer `u` to (F ∘ S_0)ᵀ k.
  HWY_NOINLINE void retrieve(const DenseRows<const T>& from, std::int64_t rows) const {
    const T* const key = token_.decayed_key;
    for_tiles(rows, [&](auto vectors, std::int64_t at, std::int64_t first, std::int64_t end) HWY_ATTR {
      using Row = BlockRow<T, decltype(vectors)::value>;
      const Tag<T> d;
      Row sum = Row::load(u_ + at);
      const T* row = from.data + first * from.stride + at;
      for (std::int64_t i = first; i < end; ++i, row += from.stride)
        sum.add_product(Row::load(row), hn::Set(d, key[i]));
      sum.store(u_ + at);
    });
  }

  /// Writes S to `to`, unless `to` is null. Adds Sᵀ q to the outputs.
  template <State kState>
  HWY_NOINLINE void update(const DenseRows<const T>& from, const DenseRows<T>& to, std::int64_t rows) const {
    to.data != nullptr ? update_tiles<kState, true>(from, to, rows) : update_tiles<kState, false>(from, to, rows);
  }

  template <State kState, bool kStores>
  HWY_INLINE void update_tiles(const DenseRows<const T>& from, const DenseRows<T>& to, std::int64_t rows) const {
    const T *const key = token_.key, *const query = token_.query, *const factors = token_.factors;
    const Tag<T> d;
    const auto factor = hn::Set(d, kState == State::decayed ? factors[0] : T{1});
    for_tiles(rows, [&](auto vectors, std::int64_t at, std::int64_t first, std::int64_t end) HWY_ATTR {
      using Row = BlockRow<T, decltype(vectors)::value>;
      const Row u = Row::load(u_ + at);
      Row out = Row::load(outputs_ + at);
      const T* old_row = from.data + (kState == State::zero ? 0 : first * from.stride + at);
      T* new_row = to.data + (kStores ? first * to.stride + at : 0);
      for (std::int64_t i = first; i < end; ++i) {
        Row s = Row::zero();
        if constexpr (kState != State::zero) s = Row::load(old_row);
        if constexpr (kState == State::decayed) s.multiply(factor);
        if constexpr (kState == State::decayed_by_feature) s.multiply(hn::Set(d, factors[i]));
        s.add_product(u, hn::Set(d, key[i]));
        if constexpr (kStores) s.store(new_row);
        out.add_product(s, hn::Set(d, query[i]));
        old_row += from.stride;
        new_row += to.stride;
      }
      out.store(outputs_ + at);
    });
  }

  /// Calls visit(vectors, first column, first row, end row) for all tiles in memory order. All tiles of the first 16
  /// rows precede those of the next 16 rows. `vectors`, a std::integral_constant, is the number of vectors in a row of
  /// the tile.
  template <class Visit>
  HWY_INLINE void for_tiles(std::int64_t rows, const Visit& visit) const {
    constexpr std::int64_t kRows = 16;
    const std::int64_t end = columns_.first + columns_.count;
    for (std::int64_t i = 0; i < rows; i += kRows) {
      const std::int64_t last = std::min(i + kRows, rows);
      std::int64_t c = columns_.first;
      for (; c + kWidth <= end; c += kWidth) visit(std::integral_constant<std::int64_t, kVectors>(), c, i, last);
      for (; c < end; c += kLanes<T>) visit(std::integral_constant<std::int64_t, 1>(), c, i, last);
    }
  }

  const DecodeToken<T>& token_;
  StateColumns columns_;
  T* outputs_;
  T* u_;
};

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HEADGATE_LINEAR_DECODE_STEP_INL_
