// SPDX-License-Identifier: Apache-2.0
// Computes the short convolution on dense rows, specialised by the number of taps; included once per Highway target.
#if defined(HEADGATE_LINEAR_ATTENTION_CONVOLUTION_ROWS_INL_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADGATE_LINEAR_ATTENTION_CONVOLUTION_ROWS_INL_
#undef HEADGATE_LINEAR_ATTENTION_CONVOLUTION_ROWS_INL_
#else
#define HEADGATE_LINEAR_ATTENTION_CONVOLUTION_ROWS_INL_
#endif

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "headgate/short_convolution.hpp"
#include "library/core/gate_functions-inl.hpp"
#include "library/core/vec-inl.hpp"

// Every element of y is computed with the same operations in the same order: the sum starts with the bias, and adds one
// product per tap j, in ascending order of j. Results are therefore bitwise identical in any layout, block or call.

HWY_BEFORE_NAMESPACE();
namespace headgate::HWY_NAMESPACE {

/// Number of rows (tokens) in a strip. If vectors run along channels, the taps stay in registers for a whole strip.
/// Strips of 8 rows take 1.2 times as long if rows lie a multiple of 4 KiB apart. All rows then map to one set of the
/// L1 cache, and a strip reads more rows than a set holds.
inline constexpr std::int64_t kStripRows = 4;

/// Operands of the convolution. Each row has n elements; n is a multiple of kLanes. Strides are in elements. Row r of y
/// depends on rows r … r + K − 1 of x, where K is the number of taps.
template <typename T, typename Stored>
struct ConvolvedRows {
  const T* taps;  ///< K rows of taps and a row of biases, taps_stride elements apart
  std::int64_t taps_stride;
  const Stored* x;
  std::int64_t x_stride;
  Stored* y;
  std::int64_t y_stride;
  std::int64_t n;
  bool silu;
};

/// Applies SiLU to kCount vectors in place. Runs after the sums of all these vectors and before their stores. The
/// dependency chains of the vectors then overlap.
template <std::int64_t kCount, typename T>
HWY_INLINE void activate(hn::Vec<Tag<T>> (&x)[kCount]) {
  HWY_UNROLL(8) for (std::int64_t i = 0; i < kCount; ++i) x[i] = Gate<GateFn::silu>::value(Tag<T>(), x[i]);
}

/// Computes kRows rows of y, one vector of channels at a time.
template <std::int64_t K, std::int64_t kRows, typename T, typename Stored>
HWY_NOINLINE void convolve_rows(const ConvolvedRows<T, Stored>& rows) {
  const Tag<T> d;
  using V = hn::Vec<Tag<T>>;
  const std::int64_t x_stride = rows.x_stride, y_stride = rows.y_stride, taps_stride = rows.taps_stride;
  for (std::int64_t c = 0; c < rows.n; c += kLanes<T>) {
    const T* HWY_RESTRICT taps = rows.taps + c;
    const Stored* HWY_RESTRICT x = rows.x + c;
    Stored* HWY_RESTRICT y = rows.y + c;
    V tap[K], row[kRows + K - 1], sum[kRows];
    HWY_UNROLL(8) for (std::int64_t j = 0; j < K; ++j) tap[j] = hn::LoadU(d, taps + j * taps_stride);
    HWY_UNROLL(16) for (std::int64_t r = 0; r < kRows + K - 1; ++r) row[r] = load_as<T>(x + r * x_stride);
    HWY_UNROLL(8) for (std::int64_t r = 0; r < kRows; ++r) {
      sum[r] = hn::LoadU(d, taps + K * taps_stride);
      HWY_UNROLL(8) for (std::int64_t j = 0; j < K; ++j) sum[r] = hn::MulAdd(tap[j], row[r + j], sum[r]);
    }
    if (rows.silu) activate<kRows, T>(sum);
    HWY_UNROLL(8) for (std::int64_t r = 0; r < kRows; ++r) store_as<T>(sum[r], y + r * y_stride);
  }
}

/// Operands of one token. Its K rows of x lie in the old state and in the tensor x. Each row has n elements; n is a
/// multiple of kLanes.
template <typename T, typename Stored>
struct ConvolvedToken {
  const T* taps = nullptr;  ///< K rows of taps and a row of biases, taps_stride elements apart
  std::int64_t taps_stride = 0;
  const Stored* rows[kMaxTaps] = {};    ///< K rows of x: K − 1 rows of the old state, then the token's row
  Stored* new_rows[kMaxTaps - 1] = {};  ///< K − 1 rows of the new state; may alias the old state
  Stored* y = nullptr;
  std::int64_t n = 0;
  bool silu = false;
};

/// Computes channels [c, c + kVecs · kLanes) of one token, and writes these channels of the new state. The new state
/// may alias the old one: all loads from the old state precede the stores, and row i + 1 is copied before it is
/// overwritten.
template <std::int64_t K, std::int64_t kVecs, typename T, typename Stored>
HWY_INLINE void convolve_token_vectors(const ConvolvedToken<T, Stored>& token, std::int64_t c) {
  const Tag<T> d;
  hn::Vec<Tag<T>> sum[kVecs];
  HWY_UNROLL(8) for (std::int64_t v = 0; v < kVecs; ++v) {
    const std::int64_t at = c + v * kLanes<T>;
    sum[v] = hn::LoadU(d, token.taps + K * token.taps_stride + at);
    HWY_UNROLL(8)
    for (std::int64_t j = 0; j < K; ++j)
      sum[v] =
          hn::MulAdd(hn::LoadU(d, token.taps + j * token.taps_stride + at), load_as<T>(token.rows[j] + at), sum[v]);
  }
  constexpr auto kBytes = static_cast<std::size_t>(kVecs * kLanes<T>) * sizeof(Stored);
  HWY_UNROLL(8)
  for (std::int64_t i = 0; i < K - 1; ++i) std::memcpy(token.new_rows[i] + c, token.rows[i + 1] + c, kBytes);
  if (token.silu) activate<kVecs, T>(sum);
  HWY_UNROLL(8) for (std::int64_t v = 0; v < kVecs; ++v) store_as<T>(sum[v], token.y + c + v * kLanes<T>);
}

/// Computes one token's row of y and the new state. Row i of the new state is rows[i + 1].
template <std::int64_t K, typename T, typename Stored>
HWY_NOINLINE void convolve_token(const ConvolvedToken<T, Stored>& token) {
  constexpr std::int64_t kVecs = 4;
  // A local copy stays in registers, because stores to y cannot alias it.
  const ConvolvedToken<T, Stored> copy = token;
  std::int64_t c = 0;
  for (; c + kVecs * kLanes<T> <= copy.n; c += kVecs * kLanes<T>) convolve_token_vectors<K, kVecs>(copy, c);
  for (; c < copy.n; c += kLanes<T>) convolve_token_vectors<K, 1>(copy, c);
}

/// Computes kVecs vectors of consecutive tokens of one channel.
template <std::int64_t K, std::int64_t kVecs, typename T, typename Stored>
HWY_INLINE void convolve_vectors(const hn::Vec<Tag<T>> (&tap)[K], hn::Vec<Tag<T>> bias, const Stored* HWY_RESTRICT x,
                                 Stored* HWY_RESTRICT y, bool silu) {
  hn::Vec<Tag<T>> sum[kVecs];
  HWY_UNROLL(8) for (std::int64_t v = 0; v < kVecs; ++v) {
    sum[v] = bias;
    HWY_UNROLL(8)
    for (std::int64_t j = 0; j < K; ++j) sum[v] = hn::MulAdd(tap[j], load_as<T>(x + v * kLanes<T> + j), sum[v]);
  }
  if (silu) activate<kVecs, T>(sum);
  HWY_UNROLL(8) for (std::int64_t v = 0; v < kVecs; ++v) store_as<T>(sum[v], y + v * kLanes<T>);
}

/// Computes n consecutive tokens of one channel: y[t] = act(taps[K] + Σ_j taps[j] · x[t + j]). n must be a multiple of
/// kLanes. Ignores the strides.
template <std::int64_t K, typename T, typename Stored>
HWY_NOINLINE void convolve_tokens(const ConvolvedRows<T, Stored>& row) {
  const Tag<T> d;
  constexpr std::int64_t kVecs = 4;
  hn::Vec<Tag<T>> tap[K];
  HWY_UNROLL(8) for (std::int64_t j = 0; j < K; ++j) tap[j] = hn::Set(d, row.taps[j]);
  const auto bias = hn::Set(d, row.taps[K]);
  std::int64_t t = 0;
  for (; t + kVecs * kLanes<T> <= row.n; t += kVecs * kLanes<T>)
    convolve_vectors<K, kVecs, T>(tap, bias, row.x + t, row.y + t, row.silu);
  for (; t < row.n; t += kLanes<T>) convolve_vectors<K, 1, T>(tap, bias, row.x + t, row.y + t, row.silu);
}

/// Operands of the backward pass for a strip of tokens [t, t + rows). K is the number of taps, s the sum before the
/// activation, and ds the gradient of s. Each row has n elements; n is a multiple of kLanes.
template <typename T, typename Stored>
struct GradientRows {
  const T* taps;  ///< K rows of taps and a row of biases, taps_stride elements apart
  std::int64_t taps_stride;
  T* sums;  ///< K rows of dweight, then a row of dbias, sums_stride apart; the kernel adds to them; null if not needed
  std::int64_t sums_stride;
  T* window;  ///< ds of the K − 1 tokens before t; the kernel replaces them by those before t + rows
  std::int64_t window_stride;
  const Stored* x;  ///< rows of x from token t − (K − 1) on; not read if `sums` is null and `silu` is false
  std::int64_t x_stride;
  const Stored* dy;  ///< rows of dy from token t on
  std::int64_t dy_stride;
  Stored* dx;  ///< rows of dx from token t − (K − 1) on; dx[u] depends on ds[u] … ds[u + K − 1]
  std::int64_t dx_stride;
  std::int64_t rows;
  std::int64_t skipped;  ///< number of rows at the start of dx that are not written
  std::int64_t n;
  bool silu;
};

/// Computes a strip of the backward pass, one vector of channels at a time. Holds K rows of x and of ds in registers.
/// The forward pass computes y[t] = act(s[t]) with s[t] = bias + Σ_j taps[j] · x[u + j], where u = t − (K − 1) and
/// j = 0 … K − 1. The backward pass computes, for each token t in order:
///   - ds[t] = dy[t] · act′(s[t]), the gradient of s[t].
///   - dx[u] = Σ_j taps[K − 1 − j] · ds[u + j]. Token t is the last token whose s depends on x[u].
///   - sums[j] += ds[t] · x[u + j], for dweight.
///   - sums[K] += ds[t], for dbias.
template <std::int64_t K, typename T, typename Stored>
HWY_NOINLINE void convolve_gradient_rows(const GradientRows<T, Stored>& g) {
  constexpr std::int64_t kPast = K - 1;
  const Tag<T> d;
  using V = hn::Vec<Tag<T>>;
  const bool reads_x = g.silu || g.sums != nullptr;
  for (std::int64_t c = 0; c < g.n; c += kLanes<T>) {
    V tap[K], x[K], ds[K], sum[K + 1];
    HWY_UNROLL(8) for (std::int64_t j = 0; j < K; ++j) tap[j] = hn::LoadU(d, g.taps + j * g.taps_stride + c);
    const V bias = hn::LoadU(d, g.taps + K * g.taps_stride + c);
    HWY_UNROLL(8) for (std::int64_t j = 0; j < kPast; ++j) {
      x[j] = reads_x ? load_as<T>(g.x + j * g.x_stride + c) : hn::Zero(d);
      ds[j] = hn::LoadU(d, g.window + j * g.window_stride + c);
    }
    x[kPast] = hn::Zero(d);
    HWY_UNROLL(9) for (std::int64_t j = 0; j <= K; ++j) {
      sum[j] = hn::Zero(d);
      if (g.sums != nullptr) sum[j] = hn::LoadU(d, g.sums + j * g.sums_stride + c);
    }
    for (std::int64_t r = 0; r < g.rows; ++r) {
      V gradient = load_as<T>(g.dy + r * g.dy_stride + c);
      if (reads_x) x[kPast] = load_as<T>(g.x + (r + kPast) * g.x_stride + c);
      if (g.silu) {
        V s = bias;
        HWY_UNROLL(8) for (std::int64_t j = 0; j < K; ++j) s = hn::MulAdd(tap[j], x[j], s);
        gradient = hn::Mul(gradient, Gate<GateFn::silu>::derivative(d, s));
      }
      ds[kPast] = gradient;
      if (g.sums != nullptr) {
        HWY_UNROLL(8) for (std::int64_t j = 0; j < K; ++j) sum[j] = hn::MulAdd(gradient, x[j], sum[j]);
        sum[K] = hn::Add(sum[K], gradient);
      }
      if (r >= g.skipped) {
        V dx = hn::Zero(d);
        HWY_UNROLL(8) for (std::int64_t j = 0; j < K; ++j) dx = hn::MulAdd(tap[kPast - j], ds[j], dx);
        store_as<T>(dx, g.dx + r * g.dx_stride + c);
      }
      HWY_UNROLL(8) for (std::int64_t j = 0; j < kPast; ++j) {
        x[j] = x[j + 1];
        ds[j] = ds[j + 1];
      }
    }
    HWY_UNROLL(8) for (std::int64_t j = 0; j < kPast; ++j) hn::StoreU(ds[j], d, g.window + j * g.window_stride + c);
    if (g.sums == nullptr) continue;
    HWY_UNROLL(9) for (std::int64_t j = 0; j <= K; ++j) hn::StoreU(sum[j], d, g.sums + j * g.sums_stride + c);
  }
}

/// Operands for the gradients of one channel's taps and bias.
template <typename T>
struct TapProducts {
  T* sums;  ///< gradients of the K taps, then of the bias; the kernel adds to them
  const T* ds;
  const T* x;  ///< n + K − 1 elements; tap j of token t multiplies x[t + j]
  std::int64_t n;
};

/// Adds Σ_t ds[t] · x[t + j] to sums[j] for each tap j, and Σ_t ds[t] to sums[K]. n need not be a multiple of kLanes.
template <std::int64_t K, typename T>
HWY_NOINLINE void add_tap_tokens(const TapProducts<T>& products) {
  const Tag<T> d;
  using V = hn::Vec<Tag<T>>;
  const T* HWY_RESTRICT ds = products.ds;
  const T* HWY_RESTRICT x = products.x;
  V sum[K + 1];
  HWY_UNROLL(9) for (std::int64_t j = 0; j <= K; ++j) sum[j] = hn::Zero(d);
  std::int64_t t = 0;
  for (; t + kLanes<T> <= products.n; t += kLanes<T>) {
    const V gradient = hn::LoadU(d, ds + t);
    HWY_UNROLL(8) for (std::int64_t j = 0; j < K; ++j) sum[j] = hn::MulAdd(gradient, hn::LoadU(d, x + t + j), sum[j]);
    sum[K] = hn::Add(sum[K], gradient);
  }
  HWY_UNROLL(9) for (std::int64_t j = 0; j <= K; ++j) products.sums[j] += hn::GetLane(hn::SumOfLanes(d, sum[j]));
  for (; t < products.n; ++t) {
    for (std::int64_t j = 0; j < K; ++j) products.sums[j] += ds[t] * x[t + j];
    products.sums[K] += ds[t];
  }
}

/// Computes ds[i] = dy[i] · silu′(s[i]) for i < n. n must be a multiple of kLanes. ds may alias dy or s.
template <typename T>
HWY_NOINLINE void activation_backward(T* ds, const T* dy, const T* s, std::int64_t n) {
  const Tag<T> d;
  for (std::int64_t i = 0; i < n; i += kLanes<T>) {
    const auto slope = Gate<GateFn::silu>::derivative(d, hn::LoadU(d, s + i));
    hn::StoreU(hn::Mul(hn::LoadU(d, dy + i), slope), d, ds + i);
  }
}

/// Transposes taps: to[j · to_stride + c] = from[c · K + j] for c < n. n must be a multiple of kLanes.
template <std::int64_t K, typename T>
HWY_NOINLINE void transpose_taps(T* HWY_RESTRICT to, std::int64_t to_stride, const T* HWY_RESTRICT from,
                                 std::int64_t n) {
  const Tag<T> d;
  for (std::int64_t c = 0; c < n; c += kLanes<T>) {
    const T* block = from + c * K;
    if constexpr (K == 2 || K == 4) {
      hn::Vec<Tag<T>> tap[K];
      if constexpr (K == 2) {
        hn::LoadInterleaved2(d, block, tap[0], tap[1]);
      } else {
        hn::LoadInterleaved4(d, block, tap[0], tap[1], tap[2], tap[3]);
      }
      for (std::int64_t j = 0; j < K; ++j) hn::StoreU(tap[j], d, to + j * to_stride + c);
    } else {
      for (std::int64_t j = 0; j < K; ++j) {
        for (std::int64_t x = 0; x < kLanes<T>; ++x) to[j * to_stride + c + x] = block[x * K + j];
      }
    }
  }
}

/// The other storage type of the kernels: bf16 if T is float, otherwise T itself.
template <typename T>
using HalfOf = std::conditional_t<std::is_same_v<T, float>, BFloat16, T>;

/// The kernels that both passes use, for K taps.
template <typename T>
struct TapKernels {
  template <std::int64_t K>
  static constexpr TapKernels of_taps() {
    return {convolve_tokens<K, T, T>, transpose_taps<K, T>};
  }
  /// Computes y of one channel. Each vector holds consecutive tokens.
  void (*tokens)(const ConvolvedRows<T, T>&);
  void (*transpose)(T*, std::int64_t, const T*, std::int64_t);
};

/// The kernels of the forward pass for K taps.
template <typename T>
struct ForwardTapKernels : TapKernels<T> {
  template <std::int64_t K>
  static constexpr ForwardTapKernels of_taps() {
    return {TapKernels<T>::template of_taps<K>(),
            convolve_rows<K, kStripRows, T, T>,
            convolve_rows<K, 1, T, T>,
            convolve_rows<K, kStripRows, T, HalfOf<T>>,
            convolve_tokens<K, T, HalfOf<T>>,
            convolve_token<K, T, T>,
            convolve_token<K, T, HalfOf<T>>};
  }
  /// `strip` computes kStripRows rows of y, and `row` computes one row. Each vector holds adjacent channels.
  void (*strip)(const ConvolvedRows<T, T>&);
  void (*row)(const ConvolvedRows<T, T>&);
  void (*half_strip)(const ConvolvedRows<T, HalfOf<T>>&);
  void (*half_tokens)(const ConvolvedRows<T, HalfOf<T>>&);
  void (*token)(const ConvolvedToken<T, T>&);
  void (*half_token)(const ConvolvedToken<T, HalfOf<T>>&);
};

/// The kernels of the backward pass for K taps.
template <typename T>
struct BackwardTapKernels : TapKernels<T> {
  template <std::int64_t K>
  static constexpr BackwardTapKernels of_taps() {
    return {TapKernels<T>::template of_taps<K>(), convolve_gradient_rows<K, T, T>,
            convolve_gradient_rows<K, T, HalfOf<T>>, add_tap_tokens<K, T>};
  }
  void (*gradient_rows)(const GradientRows<T, T>&);
  void (*half_gradient_rows)(const GradientRows<T, HalfOf<T>>&);
  void (*add_tokens)(const TapProducts<T>&);
};

template <class Kernels, std::size_t... kIndex>
constexpr auto tap_kernels_table(std::index_sequence<kIndex...> /*taps*/) {
  return std::array{Kernels::template of_taps<kMinTaps + static_cast<std::int64_t>(kIndex)>()...};
}

/// Returns the kernels for K taps. Each pass has its own table, so that its file compiles no kernels of the other pass.
template <class Kernels>
const Kernels& tap_kernels(std::int64_t K) {
  static constexpr auto kTable = tap_kernels_table<Kernels>(std::make_index_sequence<kMaxTaps - kMinTaps + 1>());
  return kTable[static_cast<std::size_t>(K - kMinTaps)];
}

/// Computes `count` rows of y. `count` need not be a multiple of kStripRows.
template <typename T>
void convolve_all_rows(const ForwardTapKernels<T>& kernels, ConvolvedRows<T, T> rows, std::int64_t count) {
  const auto advance = [&rows, &count](std::int64_t by) {
    rows.x += by * rows.x_stride;
    rows.y += by * rows.y_stride;
    count -= by;
  };
  while (count >= kStripRows) {
    kernels.strip(rows);
    advance(kStripRows);
  }
  while (count > 0) {
    kernels.row(rows);
    advance(1);
  }
}

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HEADGATE_LINEAR_ATTENTION_CONVOLUTION_ROWS_INL_
