// SPDX-License-Identifier: Apache-2.0
// Multiplies a few rows by stored rows of k and v; included once per Highway target.
#if defined(HEADGATE_ATTENTION_STORED_ROWS_INL_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADGATE_ATTENTION_STORED_ROWS_INL_
#undef HEADGATE_ATTENTION_STORED_ROWS_INL_
#else
#define HEADGATE_ATTENTION_STORED_ROWS_INL_
#endif

#include <algorithm>
#include <cassert>
#include <type_traits>

#include "library/attention/cpu/common/multiply-inl.hpp"
#include "library/attention/cpu/common/rows-inl.hpp"
#include "library/core/view.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::HWY_NAMESPACE {

/// Addresses of rows with elements E, in the order of their use.
/// Each row is dense, and its length is a multiple of kLanes<T>.
/// Code that uses rows n … n + kTileKeys prefetches the rows that come prefetch_distance entries later.
/// The array therefore has prefetch_distance more entries. They may be invalid addresses.
/// prefetch_distance = 0 disables prefetching.
template <typename E>
struct StoredRows {
  const E* const* rows = nullptr;
  std::int64_t prefetch_distance = 0;
  /// target of prefetches: the first-level cache if true, otherwise the second-level cache
  bool into_first_level = false;

  StoredRows from(std::int64_t first) const { return {rows + first, prefetch_distance, into_first_level}; }
};

/// Calls visit.operator()<E>() with the element type E of k and v, for products in T.
/// `stored` is the dtype of k and v. It is the dtype of the queries, or i8 if kMayBeBytes is true.
template <typename T, bool kMayBeBytes, class Visit>
void with_stored_type(DType stored, const Visit& visit) {
  if constexpr (kMayBeBytes) {
    if (stored == DType::i8) return visit.template operator()<std::int8_t>();
  }
  if constexpr (std::is_same_v<T, double>) {
    visit.template operator()<double>();
  } else {
    switch (stored) {
      case DType::bf16: return visit.template operator()<BFloat16>();
      case DType::f16: return visit.template operator()<Float16>();
      default: return visit.template operator()<float>();
    }
  }
}

/// Returns true if load_stored has vector code for E.
template <typename T, typename E>
constexpr bool loads_stored() {
  if constexpr (std::is_same_v<T, E>) return true;
  if constexpr (std::is_same_v<T, float> && (std::is_same_v<E, BFloat16> || std::is_same_v<E, std::int8_t>)) {
    return HWY_TARGET != HWY_SCALAR;
  }
  return std::is_same_v<T, float> && std::is_same_v<E, Float16> && kWidensHalves;
}

/// Loads kLanes<T> elements of type E, and converts them to T.
template <typename T, typename E>
HWY_INLINE hn::Vec<Tag<T>> load_stored(const E* HWY_RESTRICT from) {
  static_assert(loads_stored<T, E>());
  const Tag<T> d;
  if constexpr (std::is_same_v<T, E>) {
    return hn::LoadU(d, from);
  } else if constexpr (std::is_same_v<E, BFloat16>) {
    return load_bf16(from);
  } else if constexpr (std::is_same_v<E, std::int8_t>) {
    const hn::RebindToSigned<Tag<T>> wide;
    const hn::Rebind<std::int8_t, Tag<T>> byte;
    return hn::ConvertTo(d, hn::PromoteTo(wide, hn::LoadU(byte, from)));
  } else {
    const hn::Rebind<hwy::float16_t, Tag<T>> half;
    return hn::PromoteTo(d, hn::LoadU(half, reinterpret_cast<const hwy::float16_t*>(from)));
  }
}

/// Keeps x in a register. Compilers would otherwise load x again for every product, and these loads would limit the
/// speed.
template <class V>
HWY_INLINE V in_register(V x) {
#if HWY_ARCH_X86 && HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128 && (HWY_COMPILER_GCC || HWY_COMPILER_CLANG)
  asm("" : "+v"(x.raw));
#endif
  return x;
}

/// Hides the value of x, an address or a distance, from the optimizer.
/// Compilers would otherwise compute addresses that depend on x before a loop, in registers that the loop needs.
template <class X>
HWY_INLINE X opaque_to_optimizer(X x) {
#if HWY_COMPILER_GCC || HWY_COMPILER_CLANG
  asm("" : "+r"(x));
#endif
  return x;
}

/// Sizes of register tiles, in queries by keys or by vectors of columns:
///   Score tiles have kHighRows queries by kHighKeys keys if there are enough queries.
///   Other score tiles have up to kTileRows queries by kTileKeys keys.
///   Value tiles have as many queries as score tiles, by value_vectors() vectors of columns.
inline constexpr std::int64_t kHighRows = kHas32Registers ? 8 : 4;
inline constexpr std::int64_t kHighKeys = 2;
inline constexpr std::int64_t kTileRows = kHas32Registers ? 4 : 2;
inline constexpr std::int64_t kTileKeys = 4;
inline constexpr std::int64_t kTileVectors = 4;
static_assert(kHighRows == 2 * kTileRows);

/// Returns how many rows of `cols` elements E fit into `bytes`.
/// The result is a multiple of kTileKeys, and is clamped to [kTileKeys, most].
/// A row counts as at least one byte, because v has no columns if y is not requested.
template <typename E>
std::int64_t rows_in_bytes(std::int64_t bytes, std::int64_t cols, std::int64_t most) {
  const std::int64_t rows = bytes / std::max<std::int64_t>(cols * std::int64_t{sizeof(E)}, 1);
  return std::clamp(rows / kTileKeys * kTileKeys, kTileKeys, most);
}

inline constexpr std::int64_t kLine_bytes = 64;

/// Prefetches cache line number `line` of each of kTileKeys rows.
/// `rows` holds the rows' addresses, which may be invalid.
/// Alternating between the rows is faster than prefetching one row after another (docs/design/decoding.md).
template <typename E>
HWY_INLINE void prefetch_interleaved(const E* const* rows, std::int64_t line, bool into_first_level) {
  constexpr int kReads = 0, kFirstLevel = 3, kSecondLevel = 2;
  const auto at = [&](std::int64_t k) HWY_ATTR { return reinterpret_cast<const char*>(rows[k]) + line * kLine_bytes; };
  if (into_first_level) {
    HWY_UNROLL(4) for (std::int64_t k = 0; k < kTileKeys; ++k) __builtin_prefetch(at(k), kReads, kFirstLevel);
  } else {
    HWY_UNROLL(4) for (std::int64_t k = 0; k < kTileKeys; ++k) __builtin_prefetch(at(k), kReads, kSecondLevel);
  }
}

/// Prefetches cache lines as fast as a register tile reads them. Step n of the tile reads one line of each of kKeys
/// keys.
/// Every kTileKeys / kKeys steps, prefetches one line of each of kTileKeys rows.
template <std::int64_t kKeys, typename E>
HWY_INLINE void prefetch_in_step(const E* const* rows, std::int64_t n, bool into_first_level) {
  constexpr std::int64_t kSteps = kTileKeys / kKeys;
  if (n % kSteps == 0) prefetch_interleaved(rows, n / kSteps, into_first_level);
}

/// Prefetches `count` rows, kTileKeys rows at a time.
/// Each call of prefetch_lines() prefetches one cache line of each of these kTileKeys rows.
template <typename E>
class PrefetchedRows {
 public:
  PrefetchedRows(const E* const* rows, std::int64_t count, std::int64_t columns, bool into_first_level)
      : rows_(rows),
        into_first_level_(into_first_level),
        lines_(divide_up(columns * std::int64_t{sizeof(E)}, kLine_bytes)),
        left_(divide_up(count, kTileKeys) * lines_) {}

  std::int64_t lines_a_row() const { return lines_; }

  /// Prefetches the next cache line of each of kTileKeys rows. After the last line, goes on to the next kTileKeys rows.
  /// Does nothing if no line is left.
  HWY_INLINE void prefetch_lines() {
    if (--left_ < 0) return;
    prefetch_interleaved(rows_, line_, into_first_level_);
    if (++line_ < lines_) return;
    line_ = 0;
    rows_ += kTileKeys;
  }

 private:
  const E* const* rows_;
  bool into_first_level_;
  std::int64_t lines_, left_, line_ = 0;
};

#if HWY_TARGET != HWY_SCALAR
/// Returns the sums of the lanes of the arguments: lane n is the sum of the lanes of vn. Elements have 4 bytes.
template <typename T, class V = hn::Vec<Tag<T>>>
HWY_INLINE hn::Vec<hn::FixedTag<T, 4>> four_sums(V v0, V v1, V v2, V v3) {
  // Adds lanes that are two apart, and then neighbouring lanes, in each block of four lanes.
  // This leaves one lane per argument in each block.
  const Tag<T> d;
  const hn::Repartition<double, Tag<T>> pair;
  const auto halved = [&](auto a, auto b) HWY_ATTR {
    return hn::BitCast(pair, hn::Add(hn::InterleaveLower(d, a, b), hn::InterleaveUpper(d, a, b)));
  };
  const auto low = halved(v0, v1);
  const auto high = halved(v2, v3);
  const auto blocks = hn::Add(hn::BitCast(d, hn::InterleaveLower(pair, low, high)),
                              hn::BitCast(d, hn::InterleaveUpper(pair, low, high)));
  if constexpr (kLanes<T> == 4) {
    return blocks;
  } else {
    const hn::FixedTag<T, 4> four;
    const hn::Half<Tag<T>> half;
    const auto folded = hn::Add(hn::LowerHalf(half, blocks), hn::UpperHalf(half, blocks));
    if constexpr (kLanes<T> == 8) {
      return folded;
    } else {
      return hn::Add(hn::LowerHalf(four, folded), hn::UpperHalf(four, folded));
    }
  }
}
#endif

/// Stores the sum of the lanes of v[r][k] in to[r · stride + k].
template <typename T, std::int64_t kRows, std::int64_t kKeys>
HWY_INLINE void store_sums(const hn::Vec<Tag<T>> (&v)[kRows][kKeys], T* HWY_RESTRICT to, std::int64_t stride) {
  const Tag<T> d;
#if HWY_TARGET != HWY_SCALAR
  if constexpr (sizeof(T) == 4 && kKeys == 4) {
    const hn::FixedTag<T, 4> four;
    HWY_UNROLL(8) for (std::int64_t r = 0; r < kRows; ++r) {
      hn::StoreU(four_sums<T>(v[r][0], v[r][1], v[r][2], v[r][3]), four, to + r * stride);
    }
    return;
  }
  if constexpr (sizeof(T) == 4 && kKeys == 2) {
    const hn::FixedTag<T, 2> two;
    HWY_UNROLL(8) for (std::int64_t r = 0; r < kRows; r += 2) {
      const auto sums = four_sums<T>(v[r][0], v[r][1], v[r + 1][0], v[r + 1][1]);
      hn::StoreU(hn::LowerHalf(two, sums), two, to + r * stride);
      hn::StoreU(hn::UpperHalf(two, sums), two, to + (r + 1) * stride);
    }
    return;
  }
#endif
  for (std::int64_t r = 0; r < kRows; ++r) {
    for (std::int64_t k = 0; k < kKeys; ++k) to[r * stride + k] = hn::GetLane(hn::SumOfLanes(d, v[r][k]));
  }
}

/// Cuts `rows` rows into register tiles, and calls visit(count, first) for each tile.
/// `count` is the number of rows of the tile, as an integral_constant, and `first` is its first row.
template <class Visit>
HWY_INLINE void for_register_tiles(std::int64_t rows, const Visit& visit) {
  std::int64_t r = 0;
  for (; r + kHighRows <= rows; r += kHighRows) visit(std::integral_constant<std::int64_t, kHighRows>{}, r);
  for (; r + kTileRows <= rows; r += kTileRows) visit(std::integral_constant<std::int64_t, kTileRows>{}, r);
  if constexpr (kTileRows > 2) {
    if (rows - r == 3) return visit(std::integral_constant<std::int64_t, 3>{}, r);
    if (rows - r == 2) return visit(std::integral_constant<std::int64_t, 2>{}, r);
  }
  if (rows - r == 1) visit(std::integral_constant<std::int64_t, 1>{}, r);
}

/// Returns true if for_register_tiles() covers `rows` rows with one tile.
constexpr bool is_row_tile(std::int64_t rows) { return rows == kHighRows || (rows > 0 && rows <= kTileRows); }

/// Cuts n keys into ranges, and calls visit(first, count) for each range.
/// If several register tiles cover `rows` rows, ranges are short, so that they stay in the first-level cache while all
/// tiles read them.
/// If one tile covers the rows, there is one range of n keys.
template <class Visit>
HWY_INLINE void for_shared_keys(std::int64_t rows, std::int64_t n, const Visit& visit) {
  constexpr std::int64_t kSharedKeys = 32;
  const std::int64_t count = is_row_tile(rows) ? n : kSharedKeys;
  for (std::int64_t j = 0; j < n; j += count) visit(j, std::min(count, n - j));
}

/// Calls visit() with `value` as a bool_constant.
template <class Visit>
HWY_INLINE void with_bool(bool value, const Visit& visit) {
  value ? visit(std::true_type{}) : visit(std::false_type{});
}

/// Packs queries in the layout that score_rows() reads. load(r, to) writes query row r to `to`.
/// Interleaves the rows of a register tile in vectors of kN elements, so that one pointer reaches all rows.
/// `buffer` is scratch for one row, with packed.shape[1] elements.
template <std::int64_t kN, typename T, class Load>
void pack_queries(const View<T, 2>& packed, T* HWY_RESTRICT buffer, const Load& load) {
  for_register_tiles(packed.shape[0], [&](auto tile, std::int64_t first) {
    for (std::int64_t r = 0; r < tile; ++r) {
      load(first + r, buffer);
      for (std::int64_t x = 0; x < packed.shape[1]; x += kN) {
        std::copy(buffer + x, buffer + x + kN, packed.at(first) + x * tile + r * kN);
      }
    }
  });
}

/// Computes s[r · s_stride + k] = query r · key (first + k) for kRows queries and kKeys keys.
/// Rows have `columns` elements. `q` is packed by pack_queries().
/// With kPrefetch, prefetches one cache line of a later row for each line that it reads.
/// The later row comes `keys.prefetch_distance` entries later in `keys.rows`.
template <std::int64_t kRows, std::int64_t kKeys, bool kPrefetch, std::int64_t s_stride, typename T, typename E>
HWY_INLINE void score_tile(const T* HWY_RESTRICT q, const StoredRows<E>& keys, std::int64_t first, std::int64_t columns,
                           T* HWY_RESTRICT s) {
  const Tag<T> d;
  constexpr std::int64_t kN = kLanes<T>;
  constexpr std::int64_t kLine = std::max(kLine_bytes / std::int64_t{sizeof(E)}, kN);
  using V = hn::Vec<Tag<T>>;
  V acc[kRows][kKeys];
  HWY_UNROLL(8) for (std::int64_t r = 0; r < kRows; ++r) {
    HWY_UNROLL(4) for (std::int64_t k = 0; k < kKeys; ++k) acc[r][k] = hn::Zero(d);
  }
  const E* row[kKeys];
  HWY_UNROLL(4) for (std::int64_t k = 0; k < kKeys; ++k) row[k] = keys.rows[first + k];
  const E* const* later_rows = keys.rows + keys.prefetch_distance;
  std::int64_t t = first / kKeys * divide_up(columns, kLine);
  const auto multiply = [&](std::int64_t x) HWY_ATTR {
    V key[kKeys];
    HWY_UNROLL(4) for (std::int64_t k = 0; k < kKeys; ++k) key[k] = load_stored<T>(row[k] + x);
    HWY_UNROLL(8) for (std::int64_t r = 0; r < kRows; ++r) {
      const V query = in_register(hn::Load(d, q + r * kN));
      HWY_UNROLL(4) for (std::int64_t k = 0; k < kKeys; ++k) acc[r][k] = hn::MulAdd(query, key[k], acc[r][k]);
    }
    q += kRows * kN;
  };
  const auto prefetch = [&]() HWY_ATTR {
    if constexpr (kPrefetch) prefetch_in_step<kKeys>(later_rows, t++, keys.into_first_level);
  };
  std::int64_t x = 0;
  for (; x + kLine <= columns; x += kLine) {
    prefetch();
    HWY_UNROLL(4) for (std::int64_t in_line = 0; in_line < kLine; in_line += kN) multiply(x + in_line);
  }
  if (x < columns) {
    prefetch();
    for (; x < columns; x += kN) multiply(x);
  }
  store_sums<T>(acc, s, s_stride);
}

/// Computes scores(r, j) = query r · row j of `keys` for j < n. `queries` is packed by pack_queries().
/// May read up to kTileKeys rows of `keys` beyond n, and write as many columns of `scores`.
/// Rows of `scores` are s_stride elements apart.
template <std::int64_t s_stride, typename T, typename E>
HWY_NOINLINE void score_rows(const View<T, 2>& scores, const View<T, 2>& queries, const StoredRows<E>& keys,
                             std::int64_t n) {
  assert(scores.strides[0] == s_stride);
  const std::int64_t columns = queries.shape[1];
  for (std::int64_t j = 0; j < n; j += kTileKeys) {
    const StoredRows<E> rows = keys.from(j);
    for_register_tiles(queries.shape[0], [&](auto tile, std::int64_t r) HWY_ATTR {
      constexpr std::int64_t kKeys = tile == kHighRows ? kHighKeys : kTileKeys;
      with_bool(r == 0 && keys.prefetch_distance > 0, [&](auto prefetch) HWY_ATTR {
        HWY_UNROLL(2) for (std::int64_t k = 0; k < kTileKeys; k += kKeys) {
          score_tile<tile, kKeys, prefetch, s_stride>(queries.at(r), rows, k, columns, scores.at(r) + j + k);
        }
      });
    });
  }
}

/// Prefetches nothing. Takes the place of PrefetchedRows in register tiles without prefetches.
template <typename E>
struct NoPrefetchedRows {
  NoPrefetchedRows(const E* const* /*rows*/, std::int64_t /*count*/, std::int64_t /*columns*/,
                   bool /*into_first_level*/) {}
  HWY_INLINE void prefetch_lines() {}
};

/// Rate at which a value tile prefetches, so that it prefetches as fast as it reads.
/// The tile calls prefetch_lines() `times` times per `rows` rows. It reads `read_bytes` bytes of each row.
struct PrefetchRate {
  constexpr explicit PrefetchRate(std::int64_t read_bytes)
      : rows(std::max(kTileKeys * kLine_bytes / read_bytes, std::int64_t{1})),
        times(std::max(read_bytes / (kTileKeys * kLine_bytes), std::int64_t{1})) {}
  std::int64_t rows, times;
};

/// Computes out[r][x] += Σ_j weights[r][j] · values[j][x] over j < n, for kRows rows and kVecs vectors of columns x.
/// The first column is `first`. For each cache line of values that it reads, prefetches one line with `prefetcher`.
/// Prefetcher is PrefetchedRows, or NoPrefetchedRows to prefetch nothing.
template <std::int64_t kRows, std::int64_t kVecs, std::int64_t weights_stride, typename T, typename E, class Prefetcher>
HWY_INLINE void value_tile(T* HWY_RESTRICT out, std::int64_t out_stride, const T* HWY_RESTRICT weights,
                           const E* const* HWY_RESTRICT values, std::int64_t first, std::int64_t n,
                           Prefetcher& prefetcher) {
  const Tag<T> d;
  constexpr std::int64_t kN = kLanes<T>;
  constexpr PrefetchRate kRate(kVecs * kN * std::int64_t{sizeof(E)});
  using V = hn::Vec<Tag<T>>;
  V acc[kRows][kVecs];
  out += first;
  // Computes each row's address from the previous address.
  // Compilers would otherwise keep all offsets in registers that the products need.
  T* to = out;
  HWY_UNROLL(8) for (std::int64_t r = 0; r < kRows; ++r, to = opaque_to_optimizer(to + out_stride)) {
    HWY_UNROLL(8) for (std::int64_t x = 0; x < kVecs; ++x) acc[r][x] = hn::Load(d, to + x * kN);
  }
  Prefetcher local = prefetcher;
  const auto prefetch = [&]() HWY_ATTR {
    HWY_UNROLL(2) for (std::int64_t i = 0; i < kRate.times; ++i) local.prefetch_lines();
  };
  const auto add = [&](std::int64_t j) HWY_ATTR {
    const E* v = opaque_to_optimizer(values[j] + first);
    V value[kVecs];
    HWY_UNROLL(8) for (std::int64_t x = 0; x < kVecs; ++x) value[x] = load_stored<T>(v + x * kN);
    HWY_UNROLL(8) for (std::int64_t r = 0; r < kRows; ++r) {
      const V in_lanes = in_register(hn::Set(d, weights[r * weights_stride + j]));
      HWY_UNROLL(8) for (std::int64_t x = 0; x < kVecs; ++x) acc[r][x] = hn::MulAdd(in_lanes, value[x], acc[r][x]);
    }
  };
  // Unrolls the loop by kRate.rows. The loop then has few iterations, so that branch predictors predict its exit.
  const std::int64_t whole = n - n % kRate.rows;
  for (std::int64_t j = 0; j < whole; j += kRate.rows) {
    prefetch();
    HWY_UNROLL(8) for (std::int64_t i = 0; i < kRate.rows; ++i) add(j + i);
  }
  if (whole < n) prefetch();
  for (std::int64_t j = whole; j < n; ++j) add(j);
  to = opaque_to_optimizer(out);
  HWY_UNROLL(8) for (std::int64_t r = 0; r < kRows; ++r, to = opaque_to_optimizer(to + out_stride)) {
    HWY_UNROLL(8) for (std::int64_t x = 0; x < kVecs; ++x) hn::Store(acc[r][x], d, to + x * kN);
  }
  prefetcher = local;
}

/// Returns the number of vectors of columns in a value tile of `rows` rows.
constexpr std::int64_t value_vectors(std::int64_t rows) {
  return rows == 1 ? 2 * kTileVectors : rows == kHighRows ? kTileVectors / 2 : kTileVectors;
}

/// Computes out[r][x] += Σ_j weights[r][j] · values[j][x] over j < n, for kRows rows and all columns x < columns.
/// Adds `chunk` values at a time. Prefetches the rows that come values.prefetch_distance entries later, unless
/// Prefetcher is NoPrefetchedRows.
/// Not inlined: the caller's variables would take registers that the products need.
template <std::int64_t kRows, class Prefetcher, std::int64_t weights_stride, typename T, typename E>
HWY_NOINLINE void add_weighted_tile(T* HWY_RESTRICT out, std::int64_t out_stride, const T* HWY_RESTRICT weights,
                                    const StoredRows<E>& values, std::int64_t columns, std::int64_t n,
                                    std::int64_t chunk) {
  constexpr std::int64_t kN = kLanes<T>, kVecs = value_vectors(kRows);
  const E* const* rows = values.rows;
  for (std::int64_t j = 0; j < n; j += chunk, rows += chunk, weights += chunk) {
    const std::int64_t count = std::min(chunk, n - j);
    Prefetcher prefetcher(rows + values.prefetch_distance, count, columns, values.into_first_level);
    std::int64_t x = 0;
    for (; x + kVecs * kN <= columns; x += kVecs * kN) {
      value_tile<kRows, kVecs, weights_stride>(out, out_stride, weights, rows, x, count, prefetcher);
    }
    for (; x < columns; x += kN) {
      value_tile<kRows, 1, weights_stride>(out, out_stride, weights, rows, x, count, prefetcher);
    }
  }
}

/// Computes out(r, x) += Σ_j weights(r, j) · values(j, x) over j < n. Takes `chunk` rows of `values` at a time.
/// Rows of `weights` are weights_stride elements apart.
template <std::int64_t weights_stride, typename T, typename E>
HWY_NOINLINE void add_weighted_rows(const View<T, 2>& out, const View<T, 2>& weights, const StoredRows<E>& values,
                                    std::int64_t n, std::int64_t chunk) {
  assert(weights.strides[0] == weights_stride);
  const std::int64_t columns = out.shape[1], out_stride = out.strides[0];
  const auto add = [&](std::int64_t j, std::int64_t count) HWY_ATTR {
    for_register_tiles(weights.shape[0], [&](auto tile, std::int64_t r) HWY_ATTR {
      with_bool(r == 0 && values.prefetch_distance > 0, [&](auto prefetch) HWY_ATTR {
        using Prefetcher = std::conditional_t<prefetch, PrefetchedRows<E>, NoPrefetchedRows<E>>;
        add_weighted_tile<tile, Prefetcher, weights_stride>(out.at(r), out_stride, weights.at(r) + j, values.from(j),
                                                            columns, count, chunk);
      });
    });
  };
  if (is_row_tile(weights.shape[0])) return add(0, n);
  for (std::int64_t j = 0; j < n; j += chunk) add(j, std::min(chunk, n - j));
}

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HEADGATE_ATTENTION_STORED_ROWS_INL_
