// SPDX-License-Identifier: Apache-2.0
// Products of a few rows with rows of k and v as they are stored; included once per Highway target.
#if defined(HEADGATE_ATTENTION_STORED_ROWS_INL_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADGATE_ATTENTION_STORED_ROWS_INL_
#undef HEADGATE_ATTENTION_STORED_ROWS_INL_
#else
#define HEADGATE_ATTENTION_STORED_ROWS_INL_
#endif

#include <algorithm>
#include <cassert>
#include <type_traits>

#include "library/attention/cpu/rows-inl.hpp"
#include "library/attention/cpu/vec-inl.hpp"
#include "library/core/view.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::HWY_NAMESPACE {

/// Rows of E in the order of their use, each dense in itself and a whole number of vectors of T long. While kTileKeys
/// rows are used, the cache lines of those that are `ahead` later are asked for, which may lie behind the rows that are
/// used now; 0: none are.
template <typename E>
struct StoredRows {
  const E* const* rows = nullptr;
  std::int64_t ahead = 0;
  bool into_first_level = false;  ///< of the cache; else into the second

  StoredRows from(std::int64_t first) const { return {rows + first, ahead, into_first_level}; }
};

/// Whether load_stored has vector code for E.
template <typename T, typename E>
constexpr bool loads_stored() {
  if constexpr (std::is_same_v<T, E>) return true;
  if constexpr (std::is_same_v<T, float> && (std::is_same_v<E, BFloat16> || std::is_same_v<E, std::int8_t>)) {
    return HWY_TARGET != HWY_SCALAR;
  }
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

/// x in a register: compilers repeat a load in every product that uses it, and loads then limit the rate.
template <class V>
HWY_INLINE V in_register(V x) {
#if HWY_ARCH_X86 && HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128 && (HWY_COMPILER_GCC || HWY_COMPILER_CLANG)
  asm("" : "+v"(x.raw));
#endif
  return x;
}

/// x, an address or a distance, of which compilers know nothing more: else they compute addresses that depend on it
/// before a loop, and keep them in registers that the loop needs.
template <class X>
HWY_INLINE X unforeseen(X x) {
#if HWY_COMPILER_GCC || HWY_COMPILER_CLANG
  asm("" : "+r"(x));
#endif
  return x;
}

/// Register tiles for scores: kHighRows rows by kHighKeys keys where there are so many rows, else kTileRows or fewer by
/// kTileKeys; for values the same rows by as many vectors as leave registers for operands.
inline constexpr std::int64_t kHighRows = kHas32Registers ? 8 : 4;
inline constexpr std::int64_t kHighKeys = 2;
inline constexpr std::int64_t kTileRows = kHas32Registers ? 4 : 2;
inline constexpr std::int64_t kTileKeys = 4;
inline constexpr std::int64_t kTileVectors = 4;
static_assert(kHighRows == 2 * kTileRows);

inline constexpr std::int64_t kLine_bytes = 64;

/// Asks for line `line` of each of the kTileKeys rows from `rows` on. What lies there need not be readable. Rows in
/// turn stream faster than row after row (docs/design/decoding.md), and faster than line by line
/// (docs/design/decoding.md).
template <typename E>
HWY_INLINE void ask_in_turn(const E* const* rows, std::int64_t line, bool into_first_level) {
  constexpr int kReads = 0, kFirstLevel = 3, kSecondLevel = 2;
  const auto at = [&](std::int64_t k) HWY_ATTR { return reinterpret_cast<const char*>(rows[k]) + line * kLine_bytes; };
  if (into_first_level) {
    HWY_UNROLL(4) for (std::int64_t k = 0; k < kTileKeys; ++k) __builtin_prefetch(at(k), kReads, kFirstLevel);
  } else {
    HWY_UNROLL(4) for (std::int64_t k = 0; k < kTileKeys; ++k) __builtin_prefetch(at(k), kReads, kSecondLevel);
  }
}

/// In the n-th step of a register tile that reads a line of each of kKeys keys: as many lines of the rows to come.
template <std::int64_t kKeys, typename E>
HWY_INLINE void ask_in_step(const E* const* rows, std::int64_t n, bool into_first_level) {
  constexpr std::int64_t kSteps = kTileKeys / kKeys;
  if (n % kSteps == 0) ask_in_turn(rows, n / kSteps, into_first_level);
}

/// The cache lines of `count` rows, asked for by ask_in_turn.
template <typename E>
class ComingRows {
 public:
  ComingRows(const E* const* rows, std::int64_t count, std::int64_t columns, bool into_first_level)
      : rows_(rows),
        into_first_level_(into_first_level),
        lines_(divide_up(columns * std::int64_t{sizeof(E)}, kLine_bytes)),
        left_(divide_up(count, kTileKeys) * lines_) {}

  std::int64_t lines_a_row() const { return lines_; }

  /// Asks for the next line of each of kTileKeys rows, if there is one.
  HWY_INLINE void ask_lines() {
    if (--left_ < 0) return;
    ask_in_turn(rows_, line_, into_first_level_);
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
/// Lane n: the sum of the lanes of argument n, of vectors of 4-byte elements.
template <typename T, class V = hn::Vec<Tag<T>>>
HWY_INLINE hn::Vec<hn::FixedTag<T, 4>> four_sums(V v0, V v1, V v2, V v3) {
  // In every block of four lanes: sums of lanes two apart, then of neighbours, which leaves one lane for each argument.
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

/// to[r · stride + k] = sum of the lanes of v[r][k].
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

/// Rows of the highest register tile of scores of rows of E. Where keys need no widening, two tiles of four rows by
/// four keys cost no more than one of eight by two, and read the keys in the order in which they are asked for.
template <typename T, typename E>
inline constexpr std::int64_t kScoreRows = std::is_same_v<T, E>&& kHas32Registers ? kTileRows : kHighRows;

/// The register tiles that `rows` rows are cut into, of kMost rows at most: visit(integral_constant of the tile's rows,
/// its first row).
template <std::int64_t kMost = kHighRows, class Visit>
HWY_INLINE void row_tiles(std::int64_t rows, const Visit& visit) {
  std::int64_t r = 0;
  if constexpr (kMost == kHighRows) {
    for (; r + kHighRows <= rows; r += kHighRows) visit(std::integral_constant<std::int64_t, kHighRows>{}, r);
  }
  for (; r + kTileRows <= rows; r += kTileRows) visit(std::integral_constant<std::int64_t, kTileRows>{}, r);
  if constexpr (kTileRows > 2) {
    if (rows - r == 3) return visit(std::integral_constant<std::int64_t, 3>{}, r);
    if (rows - r == 2) return visit(std::integral_constant<std::int64_t, 2>{}, r);
  }
  if (rows - r == 1) visit(std::integral_constant<std::int64_t, 1>{}, r);
}

/// Whether so many rows are one of row_tiles.
constexpr bool is_row_tile(std::int64_t rows) { return rows == kHighRows || (rows > 0 && rows <= kTileRows); }

/// The stretches of n keys that row_tiles of `rows` rows take in turn: visit(first, count). Several tiles use a stretch
/// while it is in the first level of the cache.
template <class Visit>
HWY_INLINE void for_shared_keys(std::int64_t rows, std::int64_t n, const Visit& visit) {
  constexpr std::int64_t kSharedKeys = 32;
  const std::int64_t count = is_row_tile(rows) ? n : kSharedKeys;
  for (std::int64_t j = 0; j < n; j += count) visit(j, std::min(count, n - j));
}

/// visit(bool_constant of `value`).
template <class Visit>
HWY_INLINE void with_bool(bool value, const Visit& visit) {
  value ? visit(std::true_type{}) : visit(std::false_type{});
}

/// Rows as score_rows reads them: those of a register tile together, vector after vector of kN elements, so that one
/// address leads to all of them. load(r, to) writes row r; `buffer`: packed.shape[1] elements.
template <std::int64_t kN, std::int64_t kMost = kHighRows, typename T, class Load>
void pack_queries(const View<T, 2>& packed, T* HWY_RESTRICT buffer, const Load& load) {
  row_tiles<kMost>(packed.shape[0], [&](auto tile, std::int64_t first) {
    for (std::int64_t r = 0; r < tile; ++r) {
      load(first + r, buffer);
      for (std::int64_t x = 0; x < packed.shape[1]; x += kN) {
        std::copy(buffer + x, buffer + x + kN, packed.at(first) + x * tile + r * kN);
      }
    }
  });
}

/// s[r · s_stride + k] = query r · key k for kRows rows and the kKeys keys from `first` on, of `columns` elements. q:
/// of pack_queries. Asks for as much of the rows that are keys.ahead after those of the register tile, kTileKeys: for
/// part kPart of kParts; 0 parts: for nothing.
template <std::int64_t kRows, std::int64_t kKeys, std::int64_t kPart, std::int64_t kParts, std::int64_t s_stride,
          typename T, typename E>
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
  const E* const* coming = keys.rows + keys.ahead;
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
  const auto ask = [&]() HWY_ATTR {
    if constexpr (kParts > 0) {
      if (kParts == 1 || t % kParts == kPart) ask_in_step<kKeys>(coming, t, keys.into_first_level);
    }
    ++t;
  };
  std::int64_t x = 0;
  for (; x + kLine <= columns; x += kLine) {
    ask();
    HWY_UNROLL(4) for (std::int64_t in_line = 0; in_line < kLine; in_line += kN) multiply(x + in_line);
  }
  if (x < columns) {
    ask();
    for (; x < columns; x += kN) multiply(x);
  }
  store_sums<T>(acc, s, s_stride);
}

/// scores(r, j) = row r of `queries` (of pack_queries) · row j of `keys`, j < n. kTileKeys rows of `keys` from n on may
/// be read and so many more columns of `scores` be written, whose rows are s_stride apart.
template <std::int64_t s_stride, std::int64_t kMost, typename T, typename E>
HWY_NOINLINE void score_rows(const View<T, 2>& scores, const View<T, 2>& queries, const StoredRows<E>& keys,
                             std::int64_t n) {
  assert(scores.strides[0] == s_stride);
  const std::int64_t columns = queries.shape[1];
  const bool ask = keys.ahead > 0;
  // Requests come more evenly from two tiles.
  const bool halved = kMost < kHighRows && queries.shape[0] >= 2 * kMost;
  for (std::int64_t j = 0; j < n; j += kTileKeys) {
    const StoredRows<E> rows = keys.from(j);
    row_tiles<kMost>(queries.shape[0], [&](auto tile, std::int64_t r) HWY_ATTR {
      constexpr std::int64_t kKeys = tile == kHighRows ? kHighKeys : kTileKeys;
      const T* q = queries.at(r);
      T* s = scores.at(r) + j;
      HWY_UNROLL(2) for (std::int64_t k = 0; k < kTileKeys; k += kKeys) {
        if (!ask || r > (halved ? kMost : 0)) {
          score_tile<tile, kKeys, 0, 0, s_stride>(q, rows, k, columns, s + k);
        } else if (!halved) {
          score_tile<tile, kKeys, 0, 1, s_stride>(q, rows, k, columns, s + k);
        } else if constexpr (kMost < kHighRows && tile == kMost) {
          if (r == 0) {
            score_tile<tile, kKeys, 0, 2, s_stride>(q, rows, k, columns, s + k);
          } else {
            score_tile<tile, kKeys, 1, 2, s_stride>(q, rows, k, columns, s + k);
          }
        }
      }
    });
  }
}

/// How rows of values are used.
struct ValueUse {
  std::int64_t at_a_time = 0;          ///< rows
  bool broadcast_in_products = false;  ///< of CpuTuning
};

/// Whether products of so many rows with elements of E can broadcast weights themselves. Of few rows loads are what
/// takes time.
template <typename T, typename E>
constexpr bool broadcasts_in_products(std::int64_t rows) {
  return HWY_TARGET == HWY_AVX3 && std::is_same_v<T, float> && rows >= kTileRows;
}

#if HWY_TARGET == HWY_AVX3
/// *weight · value + sum in an instruction that broadcasts the weight.
template <class V>
HWY_INLINE V add_broadcast_product(const float* weight, V value, V sum) {
  // Compilers would broadcast into a register, for several products.
  asm("vfmadd231ps %2%{1to16%}, %1, %0" : "+v"(sum.raw) : "v"(value.raw), "m"(*weight));
  return sum;
}
#endif

/// out[r][x …] += Σ_j weights[r][j] · values[j][x …] for kRows rows and kVecs vectors from column `first` on. Asks for
/// a kShare-th of as much of `all_coming`; 0: for nothing.
template <std::int64_t kRows, std::int64_t kVecs, std::int64_t kShare, bool kBroadcast, std::int64_t weights_stride,
          typename T, typename E>
HWY_INLINE void value_tile(T* HWY_RESTRICT out, std::int64_t out_stride, const T* HWY_RESTRICT weights,
                           const E* const* HWY_RESTRICT values, std::int64_t first, std::int64_t n,
                           ComingRows<E>& all_coming) {
  const Tag<T> d;
  constexpr std::int64_t kN = kLanes<T>;
  // kRequests in every kEach-th row.
  constexpr std::int64_t kRead_bytes = kVecs * kN * std::int64_t{sizeof(E)};
  constexpr std::int64_t kRequest_bytes = std::max(kShare, std::int64_t{1}) * kTileKeys * kLine_bytes;
  constexpr std::int64_t kEach = std::max(kRequest_bytes / kRead_bytes, std::int64_t{1});
  constexpr std::int64_t kRequests = std::max(kRead_bytes / kRequest_bytes, std::int64_t{1});
  using V = hn::Vec<Tag<T>>;
  V acc[kRows][kVecs];
  out += first;
  // Row after row from the one before, since compilers keep all distances in registers that the products need.
  T* to = out;
  HWY_UNROLL(8) for (std::int64_t r = 0; r < kRows; ++r, to = unforeseen(to + out_stride)) {
    HWY_UNROLL(8) for (std::int64_t x = 0; x < kVecs; ++x) acc[r][x] = hn::Load(d, to + x * kN);
  }
  ComingRows<E> coming = all_coming;
  const auto ask = [&]() HWY_ATTR {
    if constexpr (kShare > 0) {
      HWY_UNROLL(2) for (std::int64_t i = 0; i < kRequests; ++i) coming.ask_lines();
    }
  };
  const auto add = [&](std::int64_t j) HWY_ATTR {
    const E* v = unforeseen(values[j] + first);
    V value[kVecs];
    HWY_UNROLL(8) for (std::int64_t x = 0; x < kVecs; ++x) value[x] = load_stored<T>(v + x * kN);
    HWY_UNROLL(8) for (std::int64_t r = 0; r < kRows; ++r) {
      const T* weight = weights + r * weights_stride + j;
      if constexpr (kBroadcast) {
        HWY_UNROLL(8) for (std::int64_t x = 0; x < kVecs; ++x) {
          acc[r][x] = add_broadcast_product(weight, value[x], acc[r][x]);
        }
      } else {
        const V in_lanes = in_register(hn::Set(d, *weight));
        HWY_UNROLL(8) for (std::int64_t x = 0; x < kVecs; ++x) acc[r][x] = hn::MulAdd(in_lanes, value[x], acc[r][x]);
      }
    }
  };
  // Few turns, whose end processors foresee.
  const std::int64_t whole = n - n % kEach;
  for (std::int64_t j = 0; j < whole; j += kEach) {
    ask();
    HWY_UNROLL(8) for (std::int64_t i = 0; i < kEach; ++i) add(j + i);
  }
  if (whole < n) ask();
  for (std::int64_t j = whole; j < n; ++j) add(j);
  to = unforeseen(out);
  HWY_UNROLL(8) for (std::int64_t r = 0; r < kRows; ++r, to = unforeseen(to + out_stride)) {
    HWY_UNROLL(8) for (std::int64_t x = 0; x < kVecs; ++x) hn::Store(acc[r][x], d, to + x * kN);
  }
  if constexpr (kShare > 0) all_coming = coming;
}

/// Vectors of a tile of values of so many rows.
constexpr std::int64_t value_vectors(std::int64_t rows) {
  return rows == 1 ? 2 * kTileVectors : rows == kHighRows ? kTileVectors / 2 : kTileVectors;
}

/// Whether add_weighted_fours takes `rows` rows.
template <typename T, typename E>
constexpr bool suits_fours(std::int64_t rows, std::int64_t columns) {
  return std::is_same_v<T, E> && kHas32Registers && rows > kTileRows && rows <= kHighRows &&
         columns % (kTileVectors * kLanes<T>) == 0;
}

/// Values that several rows use at a time where they need no widening.
inline constexpr std::int64_t kUnwidenedChunk = 2 * kTileKeys;

/// add_weighted_rows for kTileRows rows and kMore more, in two register tiles, which share the requests: where values
/// need no widening, they are best used in the order in which they are asked for.
template <std::int64_t kMore, bool kBroadcast, std::int64_t weights_stride, typename T>
HWY_NOINLINE void add_weighted_fours(T* HWY_RESTRICT out, std::int64_t out_stride, const T* HWY_RESTRICT weights,
                                     const StoredRows<T>& values, std::int64_t columns, std::int64_t n) {
  constexpr std::int64_t kVecs = kTileVectors, kChunk = kUnwidenedChunk;
  const T* const* rows = values.rows;
  for (std::int64_t j = 0; j < n; j += kChunk, rows += kChunk, weights += kChunk) {
    const std::int64_t count = std::min(kChunk, n - j);
    ComingRows<T> coming(rows + values.ahead, count, columns, values.into_first_level);
    for (std::int64_t x = 0; x < columns; x += kVecs * kLanes<T>) {
      value_tile<kTileRows, kVecs, 2, kBroadcast, weights_stride>(out, out_stride, weights, rows, x, count, coming);
      value_tile<kMore, kVecs, 2, kBroadcast && kMore == kTileRows, weights_stride>(
          out + kTileRows * out_stride, out_stride, weights + kTileRows * weights_stride, rows, x, count, coming);
    }
  }
}

/// out[r][x] += Σ_j weights[r][j] · row j of `values`, j < n, `chunk` of them at a time, for kRows rows and all
/// `columns`. Asks for the rows that are values.ahead later. Of its own, since callers' variables take registers from
/// it.
template <std::int64_t kRows, bool kAsk, bool kBroadcast, std::int64_t weights_stride, typename T, typename E>
HWY_NOINLINE void add_weighted_tile(T* HWY_RESTRICT out, std::int64_t out_stride, const T* HWY_RESTRICT weights,
                                    const StoredRows<E>& values, std::int64_t columns, std::int64_t n,
                                    std::int64_t chunk) {
  constexpr std::int64_t kN = kLanes<T>, kVecs = value_vectors(kRows), kShare = kAsk ? 1 : 0;
  const E* const* rows = values.rows;
  for (std::int64_t j = 0; j < n; j += chunk, rows += chunk, weights += chunk) {
    const std::int64_t count = std::min(chunk, n - j);
    ComingRows<E> coming(rows + values.ahead, count, columns, values.into_first_level);
    std::int64_t x = 0;
    for (; x + kVecs * kN <= columns; x += kVecs * kN) {
      value_tile<kRows, kVecs, kShare, kBroadcast, weights_stride>(out, out_stride, weights, rows, x, count, coming);
    }
    for (; x < columns; x += kN) {
      value_tile<kRows, 1, kShare, kBroadcast, weights_stride>(out, out_stride, weights, rows, x, count, coming);
    }
  }
}

/// out(r, x) += Σ_j weights(r, j) · row j of `values`, j < n, used as `use` says. Rows of `weights` are weights_stride
/// apart.
template <std::int64_t weights_stride, typename T, typename E>
HWY_NOINLINE void add_weighted_rows(const View<T, 2>& out, const View<T, 2>& weights, const StoredRows<E>& values,
                                    std::int64_t n, const ValueUse& use) {
  assert(weights.strides[0] == weights_stride);
  const std::int64_t columns = out.shape[1], out_stride = out.strides[0];
  if constexpr (std::is_same_v<T, E>) {
    if (suits_fours<T, E>(out.shape[0], columns) && values.ahead > 0) {
      assert(use.at_a_time == kUnwidenedChunk);
      const auto add = [&](auto more) HWY_ATTR {
        constexpr bool kCanBroadcast = broadcasts_in_products<T, E>(kTileRows);
        with_bool(use.broadcast_in_products, [&](auto broadcast) HWY_ATTR {
          add_weighted_fours<more, broadcast && kCanBroadcast, weights_stride>(out.data, out_stride, weights.data,
                                                                               values, columns, n);
        });
      };
      switch (out.shape[0] - kTileRows) {
        case 1: return add(std::integral_constant<std::int64_t, 1>{});
        case 2: return add(std::integral_constant<std::int64_t, 2>{});
        case 3: return add(std::integral_constant<std::int64_t, 3>{});
        default: return add(std::integral_constant<std::int64_t, kTileRows>{});
      }
    }
  }
  const std::int64_t chunk = use.at_a_time;
  const auto add_rows = [&](auto tile, auto ask, auto broadcast, std::int64_t r, std::int64_t j, std::int64_t count)
                            HWY_ATTR {
                              add_weighted_tile<tile, ask, broadcast, weights_stride>(
                                  out.at(r), out_stride, weights.at(r) + j, values.from(j), columns, count, chunk);
                            };
  const auto add = [&](std::int64_t j, std::int64_t count) HWY_ATTR {
    row_tiles(weights.shape[0], [&](auto tile, std::int64_t r) HWY_ATTR {
      with_bool(r == 0 && values.ahead > 0, [&](auto ask) HWY_ATTR {
        if constexpr (broadcasts_in_products<T, E>(tile)) {
          if (use.broadcast_in_products) return add_rows(tile, ask, std::true_type{}, r, j, count);
        }
        add_rows(tile, ask, std::false_type{}, r, j, count);
      });
    });
  };
  if (is_row_tile(weights.shape[0])) return add(0, n);
  for (std::int64_t j = 0; j < n; j += chunk) add(j, std::min(chunk, n - j));
}

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HEADGATE_ATTENTION_STORED_ROWS_INL_
