// SPDX-License-Identifier: Apache-2.0
// Computes chunks of tokens of gated linear attention with bf16 products (AVX-512 only).
#if defined(HEADGATE_LINEAR_NATIVE16_CHUNK_INL_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADGATE_LINEAR_NATIVE16_CHUNK_INL_
#undef HEADGATE_LINEAR_NATIVE16_CHUNK_INL_
#else
#define HEADGATE_LINEAR_NATIVE16_CHUNK_INL_
#endif

#include <algorithm>
#include <cstdint>

#include "library/core/bf16_products-inl.hpp"
#include "library/core/view.hpp"
#include "library/core/workspace.hpp"
#include "library/linear_attention/cpu/scan_operands-inl.hpp"
#include "library/linear_attention/problem.hpp"

// A chunk has up to kSquare tokens. Letters:
//
//   Q, K, V: the chunk's rows of q, k and v.
//   S: the state before the chunk.
//   g_i, β_i: log decay and β of token i.
//   f_i: exp(g_0 + … + g_i), the decay of tokens 0 … i.
//   F_ij: exp(g_{j+1} + … + g_i) for j ≤ i, the decay from token j to token i; 0 above the diagonal.
//   F_last: the last row of F.
//
// The operator ∘ multiplies elements. A vector before ∘ multiplies rows: its element i multiplies row i. The kernel
// computes:
//
//   A = strictly lower part of (K Kᵀ) ∘ F.
//   U = β ∘ (V − f ∘ (K S) − A U), by forward substitution from the first row to the last.
//   Y = scale (f ∘ (Q S) + ((Q Kᵀ) ∘ F) U).
//   S ← f_last S + Kᵀ (F_last ∘ U).
//
// The forward pass multiplies the rows of Q by scale before it rounds them. Without the delta rule, U is V. F is
// computed from sums of decays between two tokens, never from quotients. A decay of −∞ therefore gives 0, and not NaN
// from ∞ − ∞. Rows after the last token of the chunk are zeros.

#if HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace headgate::HWY_NAMESPACE {

/// Number of elements that pad a row of an f32 matrix, so that rows map to different cache sets.
inline constexpr std::int64_t kRowPadding = 16;

/// Upper bound of the sum of log decays g over consecutive tokens of a chunk. A chunk ends before a token that would
/// make such a sum exceed the bound. The factors f and F are thus at most kMostFactor, the bound of the scans' factors.
/// Only a chunk of one token may exceed the bound.
inline constexpr float kMostGrowth = 4.1588831F;  // log(64)
static_assert(kMostFactor == 64.0);

/// Returns how many of the first `count` tokens form a chunk. g holds the log decays of these tokens.
inline std::int64_t tokens_of_chunk(const float* g, std::int64_t count) {
  float largest = 0.0F;  // largest sum of g over consecutive tokens that end with token n
  for (std::int64_t n = 0; n < count; ++n) {
    largest = std::max(largest, 0.0F) + g[n];
    if (largest > kMostGrowth) return std::max<std::int64_t>(n, 1);
  }
  return count;
}

/// Returns the mask of the first n of 32 elements: the low 16 bits of the mask, or the high 16 bits if `high`.
HWY_INLINE __mmask16 lanes_below(std::int64_t n, bool high) {
  const std::int64_t count = std::clamp<std::int64_t>(high ? n - kTileCols : n, 0, kTileCols);
  return static_cast<__mmask16>((1U << count) - 1U);
}

/// The factors f and F of a chunk (see the top of this file).
struct ChunkDecays {
  ChunkDecays(Workspace& ws, const LinearProblem& p)
      : present(p.has_decay()),
        logs(ws.take<float>("decays", kSquare)),
        prefix_decays(ws.take<float>("decays", kSquare)),
        pair_decays(ws.take<float>("decays", kSquare, kSquare)) {}

  /// Fills in the factors of a problem without decay: 1, but 0 above the diagonal of F.
  void fill() const {
    std::fill_n(prefix_decays.data, kSquare, 1.0F);
    for (std::int64_t i = 0; i < kSquare; ++i) {
      for (std::int64_t j = 0; j < kSquare; ++j) pair_decays(i, j) = j <= i ? 1.0F : 0.0F;
    }
  }

  /// Computes the factors of `count` tokens from their decays in `logs`, beginning at token `first`.
  void make(std::int64_t first, std::int64_t count) const {
    if (!present) return;
    const Tag<float> d;
    const float* const g = logs.at(first);
    __m512 low = _mm512_setzero_ps(), high = _mm512_setzero_ps();  // element j of (low, high): g_{j+1} + … + g_i
    float prefix = 0.0F;
    HWY_ALIGN float sums[kSquare] = {};
    for (std::int64_t i = 0; i < count; ++i) {
      const __m512 own = _mm512_set1_ps(g[i]);
      low = _mm512_maskz_add_ps(lanes_below(i, false), low, own);
      high = _mm512_maskz_add_ps(lanes_below(i, true), high, own);
      const auto exp_of_sums = [&](__m512 x) HWY_ATTR { return exp_of<float>(hn::Vec<Tag<float>>{x}).raw; };
      float* const row = pair_decays.at(i);
      _mm512_storeu_ps(row, _mm512_maskz_mov_ps(lanes_below(i + 1, false), exp_of_sums(low)));
      if (i >= kTileCols)
        _mm512_storeu_ps(row + kTileCols, _mm512_maskz_mov_ps(lanes_below(i + 1, true), exp_of_sums(high)));
      else
        _mm512_storeu_ps(row + kTileCols, _mm512_setzero_ps());
      sums[i] = prefix += g[i];
    }
    for (std::int64_t i = 0; i < kSquare; i += kLanes<float>)
      hn::StoreU(exp_of<float>(hn::Load(d, sums + i)), d, prefix_decays.at(i));
  }

  bool present;
  View<float, 1> logs;           ///< the decays g of up to kSquare tokens
  View<float, 1> prefix_decays;  ///< f: element i is the decay of tokens 0 … i
  View<float, 2> pair_decays;    ///< F: element (i,j) is the decay between tokens j and i
};

/// Packs the chunk's rows of q or k as rows of bf16. Normalises them if the problem normalises, and multiplies them by
/// `factor`. `row` is scratch for one row. Fills rows after the last token with zeros.
inline void pack_token_rows(const View<BFloat16, 2>& to, const HeadRows<const void>& from, const Chunk& chunk,
                            const LinearProblem& p, const View<float, 1>& row, float factor = 1.0F) {
  const std::int64_t padded = to.shape[1];
  for (std::int64_t n = 0; n < chunk.count; ++n) {
    load_normalised(row.data, from, chunk, n, padded, p, factor);
    round_row(to.at(n), row.data, padded);
  }
  std::fill(to.data + chunk.count * padded, to.data + kSquare * padded, BFloat16{});
}

/// A matrix of kSquare rows, stored as operands of products: the keys, the queries or the weights of a chunk.
struct ChunkRows {
  ChunkRows(Workspace& ws, std::int64_t padded)
      : rows(ws.take<BFloat16>("rows", kSquare, padded)),
        transposed_rows(ws.take<BFloat16>("rows", padded, kSquare)),
        transposed_panels(ws.take<BFloat16>("rows", kSquare / kTileCols, padded * kTileCols)) {}

  /// Computes `transposed_panels` and `transposed_rows` from `rows`.
  void transpose() const {
    const std::int64_t padded = rows.shape[1];
    for (std::int64_t n = 0; n < kSquare / kTileCols; ++n) {
      const BFloat16* each[kTileCols];
      for (std::int64_t r = 0; r < kTileCols; ++r) each[r] = rows.at(n * kTileCols + r);
      pairs_of_transpose(transposed_panels.at(n), each, kTileCols, padded);
    }
    HWY_ALIGN std::uint16_t order[2][kSquare];  // positions of the even and of the odd elements in a pair of vectors
    for (std::int64_t r = 0; r < kSquare; ++r) {
      order[0][r] = static_cast<std::uint16_t>(2 * r);
      order[1][r] = static_cast<std::uint16_t>(2 * r + 1);
    }
    const __m512i even = _mm512_load_si512(order[0]), odd = _mm512_load_si512(order[1]);
    for (std::int64_t x = 0; x < padded; x += 2) {
      const __m512i low = _mm512_loadu_si512(transposed_panels.at(0, x * kTileCols));
      const __m512i high = _mm512_loadu_si512(transposed_panels.at(1, x * kTileCols));
      _mm512_storeu_si512(transposed_rows.at(x), _mm512_permutex2var_epi16(low, even, high));
      _mm512_storeu_si512(transposed_rows.at(x + 1), _mm512_permutex2var_epi16(low, odd, high));
    }
  }

  PairPanels transposed() const { return {transposed_panels.data, transposed_panels.shape[1]}; }

  View<BFloat16, 2> rows;               ///< left operand: the matrix; for keys, K (kSquare,D) in K Kᵀ and K S
  View<BFloat16, 2> transposed_rows;    ///< left operand: the transpose; for keys, Kᵀ (D,kSquare) in the update of S
  View<BFloat16, 2> transposed_panels;  ///< right operand: the transpose; for keys, Kᵀ in K Kᵀ and Q Kᵀ
};

/// The keys of a chunk, stored as operands of all products.
struct ChunkKeys : ChunkRows {
  ChunkKeys(Workspace& ws, std::int64_t padded)
      : ChunkRows(ws, padded), products(ws.take<float>("keys", kSquare, kSquare)) {}

  View<float, 2> products;  ///< K Kᵀ
};

/// Computes c = a b or c += a b, for c (kSquare,n) and a (kSquare,depth).
template <class Unit, SquareWrite kWrite>
void multiply_rows_by(const View<float, 2>& c, std::int64_t n, const View<BFloat16, 2>& a, const PairPanels& b,
                      std::int64_t depth) {
  for (std::int64_t x = 0; x < n; x += kSquare)
    Unit::template multiply<kWrite>(a.data, a.strides[0], b.from(x / kTileCols, 0), depth, c.at(0, x), c.strides[0]);
}

/// Loads `count` columns of the chunk's rows, from column `first` on. Pads them with zeros to kSquare rows and to a
/// multiple of kSquare columns.
inline void load_padded(const View<float, 2>& to, const HeadRows<const void>& rows, const Chunk& chunk,
                        std::int64_t first, std::int64_t count) {
  const std::int64_t padded = whole_squares(count);
  for (std::int64_t n = 0; n < kSquare; ++n) {
    float* const row = to.at(n);
    if (n < chunk.count) {
      prefetch_ahead(rows, chunk, n);
      load_row(row, rows, chunk.token(n), first, count);
    }
    std::fill(row + (n < chunk.count ? count : 0), row + padded, 0.0F);
  }
}

/// Multiplies `products` by F, element by element, and rounds the result to bf16. Computes `count` rows and fills the
/// others with zeros. Elements above the diagonal are 0 even if the product is NaN.
HEADGATE_DOTS_ATTR inline HWY_NOINLINE void weigh_products(const View<BFloat16, 2>& to, const View<float, 2>& products,
                                                           const View<float, 2>& pair_decays, std::int64_t count) {
  for (std::int64_t i = 0; i < kSquare; ++i) {
    const std::int64_t n = i < count ? i + 1 : 0;
    const float *x = products.at(i), *e = pair_decays.at(i);
    const __m512 low = _mm512_maskz_mul_ps(lanes_below(n, false), _mm512_loadu_ps(x), _mm512_loadu_ps(e));
    const __m512 high = _mm512_maskz_mul_ps(lanes_below(n, true), _mm512_loadu_ps(x + 16), _mm512_loadu_ps(e + 16));
    _mm512_storeu_si512(to.at(i), halves_of(low, high));
  }
}

/// Computes A: multiplies `products` by F, element by element, below the diagonal. Computes `count` rows. Fills all
/// other elements with zeros.
inline void lower_products(const View<float, 2>& to, const View<float, 2>& products, const View<float, 2>& pair_decays,
                           std::int64_t count) {
  for (std::int64_t i = 0; i < kSquare; ++i) {
    const std::int64_t n = i < count ? i : 0;
    const float *x = products.at(i), *e = pair_decays.at(i);
    _mm512_storeu_ps(to.at(i), _mm512_maskz_mul_ps(lanes_below(n, false), _mm512_loadu_ps(x), _mm512_loadu_ps(e)));
    _mm512_storeu_ps(to.at(i, 16),
                     _mm512_maskz_mul_ps(lanes_below(n, true), _mm512_loadu_ps(x + 16), _mm512_loadu_ps(e + 16)));
  }
}

/// Solves U = β ∘ (V − f ∘ R − A U) for `count` rows, from the first to the last. `values` holds V and receives U.
/// `state_products` holds R = K S. `decayed_products` holds A. If `differences` is present, writes V − f ∘ R − A U to
/// it. Takes four rows and 32 columns at a time, so that the sums stay in registers.
inline HWY_NOINLINE void substitute(const View<float, 2>& values, const View<float, 2>& state_products,
                                    const View<float, 2>& decayed_products, const float* prefix_decays,
                                    const float* betas, std::int64_t count, std::int64_t cols,
                                    const View<float, 2>& differences = {}) {
  constexpr std::int64_t kRows = 4;
  static_assert(kSquare % kRows == 0);
  for (std::int64_t c = 0; c < cols; c += kSquare) {
    for (std::int64_t i0 = 0; i0 < count; i0 += kRows) {
      __m512 sums[kRows][2];
      HWY_UNROLL(4) for (std::int64_t r = 0; r < kRows; ++r) {
        const __m512 e = _mm512_set1_ps(prefix_decays[i0 + r]);
        const float *v = values.at(i0 + r, c), *read = state_products.at(i0 + r, c);
        sums[r][0] = _mm512_fnmadd_ps(e, _mm512_loadu_ps(read), _mm512_loadu_ps(v));
        sums[r][1] = _mm512_fnmadd_ps(e, _mm512_loadu_ps(read + 16), _mm512_loadu_ps(v + 16));
      }
      for (std::int64_t j = 0; j < i0; ++j) {
        const __m512 u0 = _mm512_loadu_ps(values.at(j, c)), u1 = _mm512_loadu_ps(values.at(j, c + 16));
        HWY_UNROLL(4) for (std::int64_t r = 0; r < kRows; ++r) {
          const __m512 a = _mm512_set1_ps(decayed_products(i0 + r, j));
          sums[r][0] = _mm512_fnmadd_ps(a, u0, sums[r][0]);
          sums[r][1] = _mm512_fnmadd_ps(a, u1, sums[r][1]);
        }
      }
      HWY_UNROLL(4) for (std::int64_t r = 0; r < kRows; ++r) {
        const __m512 beta = _mm512_set1_ps(betas[i0 + r]);
        if (differences.present() && i0 + r < count) {
          _mm512_storeu_ps(differences.at(i0 + r, c), sums[r][0]);
          _mm512_storeu_ps(differences.at(i0 + r, c + 16), sums[r][1]);
        }
        sums[r][0] = _mm512_mul_ps(beta, sums[r][0]);
        sums[r][1] = _mm512_mul_ps(beta, sums[r][1]);
        for (std::int64_t next = r + 1; next < kRows; ++next) {
          const __m512 a = _mm512_set1_ps(decayed_products(i0 + next, i0 + r));
          sums[next][0] = _mm512_fnmadd_ps(a, sums[r][0], sums[next][0]);
          sums[next][1] = _mm512_fnmadd_ps(a, sums[r][1], sums[next][1]);
        }
        _mm512_storeu_ps(values.at(i0 + r, c), sums[r][0]);
        _mm512_storeu_ps(values.at(i0 + r, c + 16), sums[r][1]);
      }
    }
  }
}

/// Returns the permutation that interleaves two rows in a vector: element c of the first row, then of the second.
HWY_INLINE __m512i order_of_pairs() {
  HWY_ALIGN std::uint16_t order[kSquare];
  for (std::int64_t c = 0; c < kTileCols; ++c) {
    order[2 * c] = static_cast<std::uint16_t>(c);
    order[2 * c + 1] = static_cast<std::uint16_t>(kTileCols + c);
  }
  return _mm512_load_si512(order);
}

/// Rounds a state (D,cols) to bf16 and packs it as a right operand of products. Then multiplies the state by `factor`.
HEADGATE_DOTS_ATTR inline HWY_NOINLINE void pack_and_decay_state(const PairPanels& to, const View<float, 2>& state,
                                                                 float factor, std::int64_t cols) {
  const __m512i order = order_of_pairs();
  const __m512 by = _mm512_set1_ps(factor);
  for (std::int64_t x = 0; x < state.shape[0]; x += 2) {
    float *even = state.at(x), *odd = state.at(x + 1);
    for (std::int64_t c = 0; c < cols; c += kTileCols) {
      const __m512 s0 = _mm512_loadu_ps(even + c), s1 = _mm512_loadu_ps(odd + c);
      _mm512_storeu_si512(to.at(c / kTileCols, x), _mm512_permutexvar_epi16(order, halves_of(s0, s1)));
      if (factor == 1.0F) continue;
      _mm512_storeu_ps(even + c, _mm512_mul_ps(by, s0));
      _mm512_storeu_ps(odd + c, _mm512_mul_ps(by, s1));
    }
  }
}

/// Rounds rows of U to bf16 and packs them as right operands of products:
///   - `plain` receives U.
///   - `decayed` receives U with row i times factors[i]. It is not written if `factors` is null.
/// Rows from `count` on are zeros. Returns a mask of overflows: bit n is set if columns 32 n … 32 n + 31 have an
/// infinity or NaN after rounding.
HEADGATE_DOTS_ATTR inline HWY_NOINLINE unsigned pack_updates(const PairPanels& plain, const PairPanels& decayed,
                                                             const View<float, 2>& updates, const float* factors,
                                                             std::int64_t count, std::int64_t cols) {
  const __m512i order = order_of_pairs();
  const __m512 most = _mm512_set1_ps(0x1.fep127F);  // the largest finite bf16
  unsigned overflowing = 0;
  const auto pairs = [&](__m512 even, __m512 odd)
                         HEADGATE_DOTS_ATTR { return _mm512_permutexvar_epi16(order, halves_of(even, odd)); };
  for (std::int64_t r = 0; r < kSquare; r += 2) {
    const __mmask16 has_even = r < count ? 0xFFFF : 0, has_odd = r + 1 < count ? 0xFFFF : 0;
    for (std::int64_t c = 0; c < cols; c += kTileCols) {
      const __m512 even = _mm512_maskz_loadu_ps(has_even, updates.at(r, c));
      const __m512 odd = _mm512_maskz_loadu_ps(has_odd, updates.at(r + 1, c));
      const __mmask16 too_large = _mm512_cmp_ps_mask(_mm512_abs_ps(even), most, _CMP_NLE_UQ) |
                                  _mm512_cmp_ps_mask(_mm512_abs_ps(odd), most, _CMP_NLE_UQ);
      overflowing |= static_cast<unsigned>(too_large != 0) << static_cast<unsigned>(c / kSquare);
      _mm512_storeu_si512(plain.at(c / kTileCols, r), pairs(even, odd));
      if (factors == nullptr) continue;
      const __m512 decayed_even = _mm512_maskz_mul_ps(has_even, _mm512_set1_ps(factors[r]), even);
      const __m512 decayed_odd = _mm512_maskz_mul_ps(has_odd, _mm512_set1_ps(factors[r + 1]), odd);
      _mm512_storeu_si512(decayed.at(c / kTileCols, r), pairs(decayed_even, decayed_odd));
    }
  }
  return overflowing;
}

/// Multiplies each of `count` rows by its own factor.
inline void scale_rows_by(const View<float, 2>& rows, const float* factors, std::int64_t count, std::int64_t cols) {
  for (std::int64_t i = 0; i < count; ++i) {
    const __m512 by = _mm512_set1_ps(factors[i]);
    for (std::int64_t c = 0; c < cols; c += kTileCols)
      _mm512_storeu_ps(rows.at(i, c), _mm512_mul_ps(by, _mm512_loadu_ps(rows.at(i, c))));
  }
}

/// Computes to = factors ∘ to + weights · updates, for a block of `count` rows and kSquare columns. `first` is the
/// block's first column. Skips the weights above the diagonal, which are zero. An infinity or NaN of a token therefore
/// does not reach earlier tokens.
inline HWY_NOINLINE void add_lower_product(const View<float, 2>& to, const View<BFloat16, 2>& weights,
                                           const View<float, 2>& updates, const float* factors, std::int64_t count,
                                           std::int64_t first) {
  for (std::int64_t i = 0; i < count; ++i) {
    for (std::int64_t c = first; c < first + kSquare; c += kTileCols) {
      __m512 sum = _mm512_mul_ps(_mm512_set1_ps(factors[i]), _mm512_loadu_ps(to.at(i, c)));
      for (std::int64_t j = 0; j <= i; ++j)
        sum = _mm512_fmadd_ps(_mm512_set1_ps(to_f32(weights(i, j))), _mm512_loadu_ps(updates.at(j, c)), sum);
      _mm512_storeu_ps(to.at(i, c), sum);
    }
  }
}

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // HWY_TARGET == HWY_AVX3

#endif  // HEADGATE_LINEAR_NATIVE16_CHUNK_INL_
