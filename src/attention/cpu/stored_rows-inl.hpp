// SPDX-License-Identifier: Apache-2.0
// Products with rows of k and v where they lie, in their storage type; included once per Highway target.
#if defined(HEADGATE_ATTENTION_STORED_ROWS_INL_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADGATE_ATTENTION_STORED_ROWS_INL_
#undef HEADGATE_ATTENTION_STORED_ROWS_INL_
#else
#define HEADGATE_ATTENTION_STORED_ROWS_INL_
#endif

#include <algorithm>
#include <type_traits>

#include "attention/cpu/rows-inl.hpp"
#include "attention/cpu/vec-inl.hpp"
#include "core/view.hpp"
#include "headgate/tensor.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::HWY_NAMESPACE {

/// Rows of E, dense in themselves, of one (b,h) of a tensor.
template <typename E>
struct StoredRows {
  StoredRows(const ConstTensorView& view, std::int64_t b, std::int64_t h)
      : data(static_cast<const E*>(view.data) + b * view.strides[0] + h * view.strides[1]), stride(view.strides[2]) {}
  const E* row(std::int64_t j) const { return data + j * stride; }
  const E* data;
  std::int64_t stride;
};

/// kLanes<T> elements of E.
template <typename T, typename E>
HWY_INLINE hn::Vec<Tag<T>> load_stored(const E* from) {
  const Tag<T> d;
  if constexpr (std::is_same_v<T, E>) {
    return hn::LoadU(d, from);
  } else if constexpr (std::is_same_v<E, BFloat16>) {
    const hn::RebindToUnsigned<Tag<T>> du;
    const hn::Rebind<std::uint16_t, Tag<T>> dh;
    const auto bits = hn::PromoteTo(du, hn::LoadU(dh, reinterpret_cast<const std::uint16_t*>(from)));
    return hn::BitCast(d, hn::ShiftLeft<16>(bits));
  } else {
    HWY_ALIGN T lane[kLanes<T>];
    load_strided(from, 1, kLanes<T>, lane);
    return hn::Load(d, lane);
  }
}

/// The first n < kLanes<T> elements, zeros after them; reads no others.
template <typename T, typename E>
HWY_INLINE hn::Vec<Tag<T>> load_stored_tail(const E* from, std::int64_t n) {
  HWY_ALIGN T lane[kLanes<T>] = {};
  load_strided(from, 1, static_cast<std::size_t>(n), lane);
  return hn::Load(Tag<T>(), lane);
}

/// Asks for the cache lines of n elements.
template <typename E>
HWY_INLINE void prefetch_row(const E* row, std::int64_t n) {
  constexpr std::int64_t kLine_bytes = 64;
  const char* at = reinterpret_cast<const char*>(row);
  for (std::int64_t x = 0; x < n * static_cast<std::int64_t>(sizeof(E)); x += kLine_bytes) {
    __builtin_prefetch(at + x, 0, 2);
  }
}

/// Keys whose scores with a row are summed up side by side.
inline constexpr std::int64_t kKeysAtOnce = 4;

/// sums[0 .. 4) of four vectors.
template <typename T>
HWY_INLINE void store_four_sums(const hn::Vec<Tag<T>> (&v)[kKeysAtOnce], T* HWY_RESTRICT to) {
  const Tag<T> d;
#if HWY_TARGET != HWY_SCALAR
  if constexpr (sizeof(T) == 4 && kLanes<T> >= 4) {
    // In every block of four lanes: sums over pairs of lanes, then over the pairs of pairs.
    const hn::Repartition<double, Tag<T>> wide;
    const auto pairs = [&](auto a, auto b) HWY_ATTR {
      return hn::Add(hn::InterleaveLower(d, a, b), hn::InterleaveUpper(d, a, b));
    };
    const auto low = hn::BitCast(wide, pairs(v[0], v[1]));
    const auto high = hn::BitCast(wide, pairs(v[2], v[3]));
    auto sums = hn::Add(hn::BitCast(d, hn::InterleaveLower(wide, low, high)),
                        hn::BitCast(d, hn::InterleaveUpper(wide, low, high)));
    const hn::FixedTag<T, 4> quad;
    if constexpr (kLanes<T> == 4) {
      hn::StoreU(sums, d, to);
    } else if constexpr (kLanes<T> == 8) {
      const hn::Half<Tag<T>> half;
      hn::StoreU(hn::Add(hn::LowerHalf(half, sums), hn::UpperHalf(half, sums)), quad, to);
    } else {
      const hn::Half<Tag<T>> half;
      const hn::Half<decltype(half)> quarter;
      const auto eight = hn::Add(hn::LowerHalf(half, sums), hn::UpperHalf(half, sums));
      hn::StoreU(hn::Add(hn::LowerHalf(quarter, eight), hn::UpperHalf(quarter, eight)), quad, to);
    }
    return;
  }
#endif
  for (std::int64_t k = 0; k < kKeysAtOnce; ++k) to[k] = hn::GetLane(hn::SumOfLanes(d, v[k]));
}

/// s[r · stride + k] = q row r · key k for kRows rows and four keys.
template <std::int64_t kRows, typename T, typename E>
HWY_INLINE void score_tile(const T* HWY_RESTRICT q, std::int64_t q_stride, const E* const (&keys)[kKeysAtOnce],
                           std::int64_t D, T* HWY_RESTRICT s, std::int64_t s_stride) {
  const Tag<T> d;
  constexpr auto kN = static_cast<std::int64_t>(kLanes<T>);
  using V = hn::Vec<Tag<T>>;
  V acc[kRows][kKeysAtOnce];
  HWY_UNROLL(8) for (std::int64_t r = 0; r < kRows; ++r) {
    HWY_UNROLL(4) for (std::int64_t k = 0; k < kKeysAtOnce; ++k) acc[r][k] = hn::Zero(d);
  }
  const auto add = [&](std::int64_t x, const V(&key)[kKeysAtOnce]) HWY_ATTR {
    HWY_UNROLL(8) for (std::int64_t r = 0; r < kRows; ++r) {
      const V query = hn::Load(d, q + r * q_stride + x);
      HWY_UNROLL(4) for (std::int64_t k = 0; k < kKeysAtOnce; ++k) acc[r][k] = hn::MulAdd(query, key[k], acc[r][k]);
    }
  };
  std::int64_t x = 0;
  V key[kKeysAtOnce];
  for (; x + kN <= D; x += kN) {
    HWY_UNROLL(4) for (std::int64_t k = 0; k < kKeysAtOnce; ++k) key[k] = load_stored<T>(keys[k] + x);
    add(x, key);
  }
  if (x < D) {
    for (std::int64_t k = 0; k < kKeysAtOnce; ++k) key[k] = load_stored_tail<T>(keys[k] + x, D - x);
    add(x, key);
  }
  HWY_UNROLL(8) for (std::int64_t r = 0; r < kRows; ++r) store_four_sums<T>(acc[r], s + r * s_stride);
}

/// Register tile: rows by four keys, or rows by vectors of v.
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_NEON
inline constexpr std::int64_t kStoredRows = 4;
inline constexpr std::int64_t kStoredAccumulators = 16;
#else
inline constexpr std::int64_t kStoredRows = 2;
inline constexpr std::int64_t kStoredAccumulators = 8;
#endif

/// Scores of every row of `queries` with keys j … j + n, n ≤ 4: columns of `s`, of which all four are written.
template <typename T, typename E>
HWY_INLINE void score_keys(const View<T, 2>& queries, const StoredRows<E>& keys, std::int64_t j, std::int64_t n,
                           std::int64_t D, T* HWY_RESTRICT s, std::int64_t s_stride) {
  const E* key[kKeysAtOnce];
  for (std::int64_t k = 0; k < kKeysAtOnce; ++k) key[k] = keys.row(j + std::min(k, n - 1));
  const std::int64_t rows = queries.shape[0], stride = queries.strides[0];
  std::int64_t r = 0;
  for (; r + kStoredRows <= rows; r += kStoredRows) {
    score_tile<kStoredRows>(queries.data + r * stride, stride, key, D, s + r * s_stride, s_stride);
  }
  for (; r < rows; ++r) score_tile<1>(queries.data + r * stride, stride, key, D, s + r * s_stride, s_stride);
}

/// out row r += Σ_j p[r][j] · v row j over the columns of kVecs vectors, `tail` of the last of which exist.
template <std::int64_t kRows, std::int64_t kVecs, bool kTail, typename T, typename E>
HWY_INLINE void value_tile(const T* HWY_RESTRICT p, std::int64_t p_stride, const E* HWY_RESTRICT v,
                           std::int64_t v_stride, std::int64_t n, std::int64_t tail, T* HWY_RESTRICT out,
                           std::int64_t out_stride) {
  const Tag<T> d;
  constexpr auto kN = static_cast<std::int64_t>(kLanes<T>);
  using V = hn::Vec<Tag<T>>;
  V acc[kRows][kVecs];
  HWY_UNROLL(8) for (std::int64_t r = 0; r < kRows; ++r) {
    HWY_UNROLL(8) for (std::int64_t x = 0; x < kVecs; ++x) acc[r][x] = hn::LoadU(d, out + r * out_stride + x * kN);
  }
  for (std::int64_t j = 0; j < n; ++j) {
    V value[kVecs];
    HWY_UNROLL(8) for (std::int64_t x = 0; x < kVecs; ++x) {
      value[x] = kTail && x + 1 == kVecs ? load_stored_tail<T>(v + x * kN, tail) : load_stored<T>(v + x * kN);
    }
    HWY_UNROLL(8) for (std::int64_t r = 0; r < kRows; ++r) {
      const V weight = hn::Set(d, p[r * p_stride + j]);
      HWY_UNROLL(8) for (std::int64_t x = 0; x < kVecs; ++x) acc[r][x] = hn::MulAdd(weight, value[x], acc[r][x]);
    }
    v += v_stride;
  }
  HWY_UNROLL(8) for (std::int64_t r = 0; r < kRows; ++r) {
    HWY_UNROLL(8) for (std::int64_t x = 0; x < kVecs; ++x) hn::StoreU(acc[r][x], d, out + r * out_stride + x * kN);
  }
}

template <std::int64_t kRows, typename T, typename E>
HWY_INLINE void value_rows(const T* HWY_RESTRICT p, std::int64_t p_stride, const StoredRows<E>& values, std::int64_t j,
                           std::int64_t n, std::int64_t Dv, T* HWY_RESTRICT out, std::int64_t out_stride) {
  constexpr auto kN = static_cast<std::int64_t>(kLanes<T>);
  constexpr std::int64_t kVecs = kStoredAccumulators / kRows < 8 ? kStoredAccumulators / kRows : 8;
  const E* v = values.row(j);
  std::int64_t x = 0;
  for (; x + kVecs * kN <= Dv; x += kVecs * kN) {
    value_tile<kRows, kVecs, false>(p, p_stride, v + x, values.stride, n, kN, out + x, out_stride);
  }
  for (; x + kN <= Dv; x += kN) {
    value_tile<kRows, 1, false>(p, p_stride, v + x, values.stride, n, kN, out + x, out_stride);
  }
  if (x < Dv) value_tile<kRows, 1, true>(p, p_stride, v + x, values.stride, n, Dv - x, out + x, out_stride);
}

/// out += weights · rows j … j + n of v, n ≤ columns of weights.
template <typename T, typename E>
HWY_INLINE void add_weighted_values(const View<T, 2>& weights, const StoredRows<E>& values, std::int64_t j,
                                    std::int64_t n, std::int64_t Dv, const View<T, 2>& out) {
  const std::int64_t rows = weights.shape[0], p_stride = weights.strides[0], o_stride = out.strides[0];
  std::int64_t r = 0;
  for (; r + kStoredRows <= rows; r += kStoredRows) {
    value_rows<kStoredRows>(weights.at(r), p_stride, values, j, n, Dv, out.at(r), o_stride);
  }
  for (; r < rows; ++r) value_rows<1>(weights.at(r), p_stride, values, j, n, Dv, out.at(r), o_stride);
}

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HEADGATE_ATTENTION_STORED_ROWS_INL_
