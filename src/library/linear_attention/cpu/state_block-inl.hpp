// SPDX-License-Identifier: Apache-2.0
// Implements the inner loop of the scans. A block of a state stays in the L1 cache while tokens read and update the
// block. Included once per Highway target.
#if defined(HEADGATE_LINEAR_STATE_BLOCK_INL_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADGATE_LINEAR_STATE_BLOCK_INL_
#undef HEADGATE_LINEAR_STATE_BLOCK_INL_
#else
#define HEADGATE_LINEAR_STATE_BLOCK_INL_
#endif

#include <algorithm>
#include <cstdint>

#include "hwy/cache_control.h"
#include "library/core/head_rows-inl.hpp"
#include "library/core/vec-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::HWY_NAMESPACE {

/// Number of vectors in a row of the widest block. A pass over two tokens computes four products of the state with a
/// vector. With rows of 2 vectors, the sums of these products and the added rows fill 16 registers. Each load and store
/// of a vector of the state serves 6 multiply-adds. The pass thus reaches 0.94 of FMA peak (Zen 3, D = 128). A pass
/// over one token with rows of 4 vectors executes as many instructions, but its stores limit it to 0.64 of FMA peak.
inline constexpr std::int64_t kMostVectors = 2;

/// Divides the columns of a state into blocks of kMostVectors vectors. The last block may have fewer vectors. The
/// division depends only on the number of columns, so results are bitwise identical for any number of threads.
template <typename T>
class ColumnBlocks {
 public:
  explicit ColumnBlocks(std::int64_t cols) : vectors_(divide_up(cols, kLanes<T>)) {}

  std::int64_t count() const { return divide_up(vectors_, kMostVectors); }
  struct Block {
    std::int64_t first, vectors;  ///< index of the first vector; number of vectors
  };
  Block operator()(std::int64_t n) const {
    const std::int64_t first = n * kMostVectors;
    return {first, std::min(kMostVectors, vectors_ - first)};
  }

 private:
  std::int64_t vectors_;
};

/// The shape of the factors that multiply a block before a token updates the block: none, one per row, or one per
/// column.
enum class Rescaling { none, rows, columns };

// Compiler-generated default constructors lack the target's attributes, so they must not construct vectors.
// NOLINTBEGIN(modernize-use-equals-default)

/// One row of a block, held in registers.
template <typename T, std::int64_t kVectors>
struct BlockRow {
  using V = hn::Vec<Tag<T>>;
  V at[kVectors];

  HWY_INLINE BlockRow() {}
  static HWY_INLINE BlockRow zero() {
    BlockRow row;
    for (V& v : row.at) v = hn::Zero(Tag<T>());
    return row;
  }
  static HWY_INLINE BlockRow load(const T* from) {
    BlockRow row;
    for (std::int64_t c = 0; c < kVectors; ++c) row.at[c] = hn::LoadU(Tag<T>(), from + c * kLanes<T>);
    return row;
  }
  HWY_INLINE void store(T* to) const {
    for (std::int64_t c = 0; c < kVectors; ++c) hn::StoreU(at[c], Tag<T>(), to + c * kLanes<T>);
  }
  static HWY_INLINE BlockRow filled(T value) {
    BlockRow row;
    for (V& v : row.at) v = hn::Set(Tag<T>(), value);
    return row;
  }
  /// Prefetches a row that a later step loads or stores. The hardware does not prefetch such rows, because they lie far
  /// apart in buffers and each is read once.
  static HWY_INLINE void prefetch(const T* from) {
    constexpr std::int64_t kLine = 64 / sizeof(T);
    for (std::int64_t x = 0; x < kVectors * kLanes<T>; x += kLine) hwy::Prefetch(from + x);
  }
  HWY_INLINE T sum_of_lanes() const {
    V sum = at[0];
    for (std::int64_t c = 1; c < kVectors; ++c) sum = hn::Add(sum, at[c]);
    return hn::GetLane(hn::SumOfLanes(Tag<T>(), sum));
  }
  HWY_INLINE void add(const BlockRow& other) {
    for (std::int64_t c = 0; c < kVectors; ++c) at[c] = hn::Add(at[c], other.at[c]);
  }
  /// Returns rows[0] + rows[1] + …, the sum of kMostVectors / kVectors rows.
  static HWY_INLINE BlockRow sum_of(const BlockRow* rows) {
    BlockRow sum = rows[0];
    for (std::int64_t p = 1; p < kMostVectors / kVectors; ++p) {
      for (std::int64_t c = 0; c < kVectors; ++c) sum.at[c] = hn::Add(sum.at[c], rows[p].at[c]);
    }
    return sum;
  }
  HWY_INLINE void subtract(const BlockRow& other) {
    for (std::int64_t c = 0; c < kVectors; ++c) at[c] = hn::Sub(at[c], other.at[c]);
  }
  HWY_INLINE void add_product(const BlockRow& other, V factor) {
    for (std::int64_t c = 0; c < kVectors; ++c) at[c] = hn::MulAdd(other.at[c], factor, at[c]);
  }
  HWY_INLINE void add_product(const BlockRow& a, const BlockRow& b) {
    for (std::int64_t c = 0; c < kVectors; ++c) at[c] = hn::MulAdd(a.at[c], b.at[c], at[c]);
  }
  HWY_INLINE void multiply(const BlockRow& factors) {
    for (std::int64_t c = 0; c < kVectors; ++c) at[c] = hn::Mul(at[c], factors.at[c]);
  }
  HWY_INLINE void multiply(V factor) {
    for (std::int64_t c = 0; c < kVectors; ++c) at[c] = hn::Mul(at[c], factor);
  }
};

/// A dense block of a state: `rows` rows of kVectors vectors.
template <typename T, std::int64_t kVectors>
struct StateBlock {
  static constexpr std::int64_t kWidth = kVectors * kLanes<T>;

  T* data;
  std::int64_t rows;  ///< number of rows; a multiple of kMostVectors

  T* row(std::int64_t i) const { return data + i * kWidth; }
};

/// The outer product w xᵀ that a token adds to a block. w has a number for each row of the block, x for each column.
template <typename T, std::int64_t kVectors>
struct OuterProduct {
  const T* w;
  BlockRow<T, kVectors> x;

  HWY_INLINE OuterProduct() {}
  HWY_INLINE OuterProduct(const T* its_w, const BlockRow<T, kVectors>& its_x) : w(its_w), x(its_x) {}
};

/// Selects what a pass over a block S of a state does with Pass::second_block:
///   - unused: nothing.
///   - written: stores S in the second block after the last token, and leaves the block S itself unchanged.
///   - multiplied: sums S ∘ second_block over the rows after each token. The second block belongs to another state.
enum class SecondBlock { unused, written, multiplied };

/// Holds operands and results of a pass over a block S of a state. For each token in order, the pass computes:
///   - S = factors ∘ S, if the pass rescales.
///   - S += w xᵀ, for each outer product of the token, with its vectors w and x.
///   - out = Sᵀ r, for the token's vector r, if kOuts > 0.
///   - product = the sums of S ∘ second_block over the rows, if kSecond is `multiplied`.
/// After the last token, the pass computes Sᵀ x for each vector x in `next`.
template <int kTokens, int kOuterProducts, int kOuts, int kNext, typename T, std::int64_t kVectors,
          SecondBlock kSecond = SecondBlock::unused>
struct Pass {
  using Row = BlockRow<T, kVectors>;
  static constexpr std::int64_t kWidth = StateBlock<T, kVectors>::kWidth;
  static constexpr int slots(int n) { return n > 0 ? n : 1; }

  OuterProduct<T, kVectors> outer_products[kTokens][slots(kOuterProducts)];
  const T* out_operands[kTokens];  ///< element t: the vector r of token t, for out = Sᵀ r
  const T* next[slots(kNext)];     ///< vectors x whose products Sᵀ x the pass computes after the last token
  const T* factors[kTokens];       ///< element t: factors of rows or columns at token t; not read without rescaling
  T* second_block;                 ///< a block with the shape of S; kSecond selects its use
  Row outs[kTokens];               ///< element t: the product `out` of token t
  Row sums[slots(kNext)];
  Row products[kTokens];

  HWY_INLINE Pass() {}
  template <Rescaling kRescaling>
  HWY_INLINE void run(const StateBlock<T, kVectors>& state);
};

// NOLINTEND(modernize-use-equals-default)

template <int kTokens, int kOuterProducts, int kOuts, int kNext, typename T, std::int64_t kVectors, SecondBlock kSecond>
template <Rescaling kRescaling>
HWY_INLINE void Pass<kTokens, kOuterProducts, kOuts, kNext, T, kVectors, kSecond>::run(
    const StateBlock<T, kVectors>& state) {
  constexpr std::int64_t kPhases = kMostVectors / kVectors;
  const Tag<T> d;
  Row out[kTokens][kPhases], sum[slots(kNext)][kPhases], product[kTokens][kPhases];
  for (std::int64_t p = 0; p < kPhases; ++p) {
    for (int t = 0; t < kTokens; ++t) out[t][p] = product[t][p] = Row::zero();
    for (int n = 0; n < kNext; ++n) sum[n][p] = Row::zero();
  }
  Row x[kTokens][slots(kOuterProducts)];  // local copies of the added rows, which stay in registers
  const T* w[kTokens][slots(kOuterProducts)] = {};
  const T *read[kTokens] = {}, *following[slots(kNext)] = {}, *factor[kTokens] = {};
  for (int t = 0; t < kTokens; ++t) {
    for (int a = 0; a < kOuterProducts; ++a) {
      for (std::int64_t c = 0; c < kVectors; ++c) x[t][a].at[c] = outer_products[t][a].x.at[c];
      w[t][a] = outer_products[t][a].w;
    }
    if constexpr (kOuts > 0) read[t] = out_operands[t];
    if constexpr (kRescaling != Rescaling::none) factor[t] = factors[t];
  }
  for (int n = 0; n < kNext; ++n) following[n] = next[n];
  const std::int64_t rows = state.rows;
  T* HWY_RESTRICT at = state.data;
  T* HWY_RESTRICT other = nullptr;
  if constexpr (kSecond != SecondBlock::unused) other = second_block;
  std::int64_t offset = 0;
  for (std::int64_t i = 0; i < rows; i += kPhases) {
    for (std::int64_t p = 0; p < kPhases; ++p, at += kWidth, offset += kWidth) {
      Row s = Row::load(at);
      for (int t = 0; t < kTokens; ++t) {
        if constexpr (kRescaling == Rescaling::rows) s.multiply(hn::Set(d, factor[t][i + p]));
        if constexpr (kRescaling == Rescaling::columns) s.multiply(Row::load(factor[t]));
        for (int a = 0; a < kOuterProducts; ++a) s.add_product(x[t][a], hn::Set(d, w[t][a][i + p]));
        if constexpr (kOuts > 0) out[t][p].add_product(s, hn::Set(d, read[t][i + p]));
        if constexpr (kSecond == SecondBlock::multiplied) product[t][p].add_product(s, Row::load(other + offset));
      }
      if constexpr (kOuterProducts > 0 || kRescaling != Rescaling::none)
        s.store(kSecond == SecondBlock::written ? other + offset : at);
      for (int n = 0; n < kNext; ++n) sum[n][p].add_product(s, hn::Set(d, following[n][i + p]));
    }
  }
  for (int t = 0; t < kTokens && kOuts > 0; ++t) outs[t] = Row::sum_of(out[t]);
  for (int t = 0; t < kTokens && kSecond == SecondBlock::multiplied; ++t) products[t] = Row::sum_of(product[t]);
  for (int n = 0; n < kNext; ++n) sums[n] = Row::sum_of(sum[n]);
}

/// Returns Sᵀ x for a block S, where x is the vector `read`.
template <typename T, std::int64_t kVectors>
HWY_INLINE BlockRow<T, kVectors> read_block(const StateBlock<T, kVectors>& state, const T* read) {
  Pass<1, 0, 0, 1, T, kVectors> pass;
  pass.next[0] = read;
  pass.template run<Rescaling::none>(state);
  return pass.sums[0];
}

/// Computes Sᵀ x for two vectors x in one pass. Each product's multiply-adds run during the latency of the other's.
template <typename T, std::int64_t kVectors>
HWY_INLINE void read_block_twice(const StateBlock<T, kVectors>& state, const T* first, const T* second,
                                 BlockRow<T, kVectors>* sums) {
  Pass<1, 0, 0, 2, T, kVectors> pass;
  pass.next[0] = first;
  pass.next[1] = second;
  pass.template run<Rescaling::none>(state);
  for (int n = 0; n < 2; ++n) sums[n] = pass.sums[n];
}

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HEADGATE_LINEAR_STATE_BLOCK_INL_
