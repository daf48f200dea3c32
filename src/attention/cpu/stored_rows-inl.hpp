// SPDX-License-Identifier: Apache-2.0
// Products of a few rows with rows of k and v as they are stored; included once per Highway target.
#if defined(HEADGATE_ATTENTION_STORED_ROWS_INL_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADGATE_ATTENTION_STORED_ROWS_INL_
#undef HEADGATE_ATTENTION_STORED_ROWS_INL_
#else
#define HEADGATE_ATTENTION_STORED_ROWS_INL_
#endif

#include <algorithm>
#include <type_traits>

#include "attention/cpu/prefetch.hpp"
#include "attention/cpu/rows-inl.hpp"
#include "attention/cpu/vec-inl.hpp"
#include "core/view.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::HWY_NAMESPACE {

/// Rows of E, each dense in itself and a whole number of vectors of T long.
template <typename E>
struct StoredRows {
  const E* data = nullptr;
  std::int64_t stride = 0;
  const E* row(std::int64_t j) const { return data + j * stride; }
};

/// Whether load_stored has vector code for E.
template <typename T, typename E>
constexpr bool loads_stored() {
  if constexpr (std::is_same_v<T, E>) return true;
  if constexpr (std::is_same_v<T, float> && std::is_same_v<E, BFloat16>) return HWY_TARGET != HWY_SCALAR;
  return std::is_same_v<T, float> && std::is_same_v<E, Float16> && kWidensHalves;
}

/// kLanes<T> elements of E.
template <typename T, typename E>
HWY_INLINE hn::Vec<Tag<T>> load_stored(const E* HWY_RESTRICT from) {
  static_assert(loads_stored<T, E>());
  const Tag<T> d;
  if constexpr (std::is_same_v<T, E>) {
    return hn::LoadU(d, from);
  } else if constexpr (std::is_same_v<E, BFloat16>) {
    const hn::RebindToUnsigned<Tag<T>> wide;
    const hn::Rebind<std::uint16_t, Tag<T>> half;
    const auto bits = hn::PromoteTo(wide, hn::LoadU(half, reinterpret_cast<const std::uint16_t*>(from)));
    return hn::BitCast(d, hn::ShiftLeft<16>(bits));
  } else {
    const hn::Rebind<hwy::float16_t, Tag<T>> half;
    return hn::PromoteTo(d, hn::LoadU(half, reinterpret_cast<const hwy::float16_t*>(from)));
  }
}

/// Register tiles: kTileRows rows by kTileKeys keys for scores; for values kTileRows rows, or one, by as many vectors
/// as leave registers for operands.
inline constexpr std::int64_t kTileRows = kHas32Registers ? 4 : 2;
inline constexpr std::int64_t kTileKeys = 4;
inline constexpr std::int64_t kTileVectors = 4;

/// to[k] = sum of the lanes of v[k].
template <typename T>
HWY_INLINE void store_sums(const hn::Vec<Tag<T>> (&v)[kTileKeys], T* HWY_RESTRICT to) {
  const Tag<T> d;
#if HWY_TARGET != HWY_SCALAR
  if constexpr (sizeof(T) == 4) {
    // In every block of four lanes: sums of lanes two apart, then of neighbours, which leaves one lane for each v[k].
    const hn::Repartition<double, Tag<T>> pair;
    const auto halved = [&](auto a, auto b) HWY_ATTR {
      return hn::BitCast(pair, hn::Add(hn::InterleaveLower(d, a, b), hn::InterleaveUpper(d, a, b)));
    };
    const auto low = halved(v[0], v[1]);
    const auto high = halved(v[2], v[3]);
    const auto blocks = hn::Add(hn::BitCast(d, hn::InterleaveLower(pair, low, high)),
                                hn::BitCast(d, hn::InterleaveUpper(pair, low, high)));
    const hn::FixedTag<T, 4> four;
    if constexpr (kLanes<T> == 4) {
      hn::StoreU(blocks, d, to);
    } else {
      const hn::Half<Tag<T>> half;
      const auto folded = hn::Add(hn::LowerHalf(half, blocks), hn::UpperHalf(half, blocks));
      if constexpr (kLanes<T> == 8) {
        hn::StoreU(folded, four, to);
      } else {
        hn::StoreU(hn::Add(hn::LowerHalf(four, folded), hn::UpperHalf(four, folded)), four, to);
      }
    }
    return;
  }
#endif
  for (std::int64_t k = 0; k < kTileKeys; ++k) to[k] = hn::GetLane(hn::SumOfLanes(d, v[k]));
}

/// s[r · s_stride + k] = query r · key k for kRows rows and kTileKeys keys of `vectors` vectors.
template <std::int64_t kRows, typename T, typename E>
HWY_INLINE void score_tile(const T* HWY_RESTRICT q, std::int64_t q_stride, const E* const (&keys)[kTileKeys],
                           std::int64_t vectors, T* HWY_RESTRICT s, std::int64_t s_stride) {
  const Tag<T> d;
  constexpr std::int64_t kN = kLanes<T>;
  using V = hn::Vec<Tag<T>>;
  V acc[kRows][kTileKeys];
  HWY_UNROLL(8) for (std::int64_t r = 0; r < kRows; ++r) {
    HWY_UNROLL(4) for (std::int64_t k = 0; k < kTileKeys; ++k) acc[r][k] = hn::Zero(d);
  }
  for (std::int64_t x = 0; x < vectors * kN; x += kN) {
    V key[kTileKeys];
    HWY_UNROLL(4) for (std::int64_t k = 0; k < kTileKeys; ++k) key[k] = load_stored<T>(keys[k] + x);
    HWY_UNROLL(8) for (std::int64_t r = 0; r < kRows; ++r) {
      const V query = hn::Load(d, q + r * q_stride + x);
      HWY_UNROLL(4) for (std::int64_t k = 0; k < kTileKeys; ++k) acc[r][k] = hn::MulAdd(query, key[k], acc[r][k]);
    }
  }
  HWY_UNROLL(8) for (std::int64_t r = 0; r < kRows; ++r) store_sums<T>(acc[r], s + r * s_stride);
}

/// scores(r, j) = row r of `queries` · row j of `keys`, j < n; n rounded up to kTileKeys columns are written.
template <typename T, typename E>
HWY_NOINLINE void score_rows(const View<T, 2>& scores, const View<T, 2>& queries, const StoredRows<E>& keys,
                             std::int64_t n, Prefetch prefetch) {
  const std::int64_t rows = queries.shape[0], stride = queries.strides[0], s_stride = scores.strides[0];
  const std::int64_t vectors = queries.shape[1] / kLanes<T>;
  for (std::int64_t j = 0; j < n; j += kTileKeys) {
    const E* key[kTileKeys];
    for (std::int64_t k = 0; k < kTileKeys; ++k) key[k] = keys.row(std::min(j + k, n - 1));
    std::int64_t r = 0;
    for (; r + kTileRows <= rows; r += kTileRows) {
      prefetch.step();
      score_tile<kTileRows>(queries.data + r * stride, stride, key, vectors, scores.data + r * s_stride + j, s_stride);
    }
    for (; r < rows; ++r) {
      prefetch.step();
      score_tile<1>(queries.data + r * stride, stride, key, vectors, scores.data + r * s_stride + j, s_stride);
    }
  }
}

/// Calls of Prefetch::step() in score_rows.
constexpr std::int64_t score_steps(std::int64_t rows, std::int64_t n) {
  return (n + kTileKeys - 1) / kTileKeys * (rows / kTileRows + rows % kTileRows);
}

/// out[r][x …] += Σ_j weights[r][j] · v[j][x …] for kRows rows and kVecs vectors.
template <std::int64_t kRows, std::int64_t kVecs, typename T, typename E>
HWY_INLINE void value_tile(T* HWY_RESTRICT out, std::int64_t out_stride, const T* HWY_RESTRICT weights,
                           std::int64_t weights_stride, const E* HWY_RESTRICT v, std::int64_t v_stride, std::int64_t n,
                           Prefetch& prefetch) {
  const Tag<T> d;
  constexpr std::int64_t kN = kLanes<T>;
  using V = hn::Vec<Tag<T>>;
  V acc[kRows][kVecs];
  HWY_UNROLL(8) for (std::int64_t r = 0; r < kRows; ++r) {
    HWY_UNROLL(8) for (std::int64_t x = 0; x < kVecs; ++x) acc[r][x] = hn::Load(d, out + r * out_stride + x * kN);
  }
  for (std::int64_t j = 0; j < n; ++j) {
    prefetch.step();
    V value[kVecs];
    HWY_UNROLL(8) for (std::int64_t x = 0; x < kVecs; ++x) value[x] = load_stored<T>(v + x * kN);
    HWY_UNROLL(8) for (std::int64_t r = 0; r < kRows; ++r) {
      const V weight = hn::Set(d, weights[r * weights_stride + j]);
      HWY_UNROLL(8) for (std::int64_t x = 0; x < kVecs; ++x) acc[r][x] = hn::MulAdd(weight, value[x], acc[r][x]);
    }
    v += v_stride;
  }
  HWY_UNROLL(8) for (std::int64_t r = 0; r < kRows; ++r) {
    HWY_UNROLL(8) for (std::int64_t x = 0; x < kVecs; ++x) hn::Store(acc[r][x], d, out + r * out_stride + x * kN);
  }
}

template <std::int64_t kRows, typename T, typename E>
HWY_INLINE void value_rows(T* HWY_RESTRICT out, const View<T, 2>& all, const T* HWY_RESTRICT weights,
                           std::int64_t weights_stride, const StoredRows<E>& values, std::int64_t n,
                           Prefetch& prefetch) {
  constexpr std::int64_t kN = kLanes<T>;
  constexpr std::int64_t kVecs = kRows == 1 ? 2 * kTileVectors : kTileVectors;
  const std::int64_t columns = all.shape[1], stride = all.strides[0];
  std::int64_t x = 0;
  for (; x + kVecs * kN <= columns; x += kVecs * kN) {
    value_tile<kRows, kVecs>(out + x, stride, weights, weights_stride, values.data + x, values.stride, n, prefetch);
  }
  for (; x < columns; x += kN) {
    value_tile<kRows, 1>(out + x, stride, weights, weights_stride, values.data + x, values.stride, n, prefetch);
  }
}

/// out(r, x) += Σ_j weights(r, j) · row j of `values`, j < n.
template <typename T, typename E>
HWY_NOINLINE void add_weighted_rows(const View<T, 2>& out, const View<T, 2>& weights, const StoredRows<E>& values,
                                    std::int64_t n, Prefetch prefetch) {
  const std::int64_t rows = weights.shape[0], stride = weights.strides[0];
  std::int64_t r = 0;
  for (; r + kTileRows <= rows; r += kTileRows) {
    value_rows<kTileRows>(out.at(r), out, weights.at(r), stride, values, n, prefetch);
  }
  for (; r < rows; ++r) value_rows<1>(out.at(r), out, weights.at(r), stride, values, n, prefetch);
}

/// Calls of Prefetch::step() in add_weighted_rows, for outputs of `vectors` vectors.
constexpr std::int64_t value_steps(std::int64_t rows, std::int64_t vectors, std::int64_t n) {
  const auto tiles = [vectors](std::int64_t width) { return vectors / width + vectors % width; };
  return n * (rows / kTileRows * tiles(kTileVectors) + rows % kTileRows * tiles(2 * kTileVectors));
}

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HEADGATE_ATTENTION_STORED_ROWS_INL_
