// SPDX-License-Identifier: Apache-2.0
#include "models/layers/stored_gemm.hpp"

#include <algorithm>
#include <cassert>

#include "library/core/dispatch.hpp"
#include "models/layers/block_formats.hpp"
#include "models/layers/parallel.hpp"
#include "models/layers/skinny_gemm.hpp"

#ifndef HEADGATE_LAYERS_STORED_GEMM_CALL_  // Highway compiles this file once per SIMD target
#define HEADGATE_LAYERS_STORED_GEMM_CALL_
namespace headgate::layers {

/// Arguments of a product y(N,O) = x(N,C) wᵀ or y += x wᵀ. All rows of w(O,C) have the same format.
struct StoredProduct {
  View<float, 2> y;
  View<const float, 2> x;
  const StoredRows* w;
  Update update;
};

}  // namespace headgate::layers
#endif  // HEADGATE_LAYERS_STORED_GEMM_CALL_

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "models/layers/stored_gemm.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

// Headers that Highway compiles once per SIMD target must follow foreach_target.h.
#include "models/layers/blocks-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::layers::HWY_NAMESPACE {

/// Prefetch distance in bytes of w. docs/design/decoding.md has the measurements.
inline constexpr std::int64_t kStoredAhead_bytes = 16384;

/// Sizes of a format's spans and units (see SpanDecoder).
template <class Format>
struct Spans {
  static constexpr std::int64_t kUnit = SpanDecoder<Format>::kParts * kChunk;
  static constexpr std::int64_t kBytes = kSpan / Format::kNumbers * Format::kBytes;  ///< size of a span in bytes
  static constexpr std::int64_t kUnit_bytes = kBytes / (kSpan / kUnit);
  static constexpr std::int64_t kScales_apart = kHasScalesApart<Format> ? kSpan / Format::kNumbers : 0;  ///< bytes

  /// Returns the number of units in the span that begins at column c of a row with C columns.
  static HWY_INLINE std::int64_t units(std::int64_t c, std::int64_t C) { return std::min(kSpan, C - c) / kUnit; }
};

/// Prefetches as many bytes as a unit has, at the distance kStoredAhead_bytes after the unit.
template <class Format>
HWY_INLINE void prefetch_ahead(const std::uint8_t* span, std::int64_t unit) {
  constexpr std::int64_t kLine_bytes = 64;
  constexpr int kReads = 0, kIntoSecondLevel = 2;
  for (std::int64_t at = 0; at < Spans<Format>::kUnit_bytes; at += kLine_bytes) {
    const std::int64_t ahead = unit * Spans<Format>::kUnit_bytes + at + kStoredAhead_bytes;
    const auto line = reinterpret_cast<std::uintptr_t>(span) + static_cast<std::uintptr_t>(ahead);
    __builtin_prefetch(reinterpret_cast<const void*>(line), kReads, kIntoSecondLevel);
  }
}

/// Accumulates the products of kN rows of x with kO rows of w. The rows begin at row n of x and row r of w. If fewer
/// than kN rows of x are left, repeats the last one and does not store the surplus sums. Adds products in the same
/// order as skinny_gemm().
template <std::int64_t kN, std::int64_t kO>
class StoredSums {
 public:
  HWY_INLINE StoredSums(const StoredProduct& call, std::int64_t n, std::int64_t r) : call_(call), n_(n), r_(r) {
    for (std::int64_t i = 0; i < kN; ++i) {
      x_[i] = call.x.at(std::min(n + i, call.x.shape[0] - 1));
      for (std::int64_t j = 0; j < kO; ++j) sums_[i][j] = hn::Zero(Tag<float>());
    }
    for (std::int64_t j = 0; j < kO; ++j) {
      row_[j] = call.w->row(r + j);
      scales_[j] = call.w->scales_of(r + j);
    }
  }

  /// Adds the products of all columns, for a format that stores each number by itself and not in blocks.
  template <class Format>
  HWY_INLINE void add_numbers() {
    constexpr auto kBytes = static_cast<std::int64_t>(sizeof(typename Format::Number));
    each_vector<float>(call_.w->columns, [&](std::int64_t c, auto lanes) HWY_ATTR {
      for (std::int64_t j = 0; j < kO; ++j) {
        const Vec<float> weights = load_numbers<Format>(lanes, row_[j] + c * kBytes);
        for (std::int64_t i = 0; i < kN; ++i) {
          sums_[i][j] = hn::MulAdd(lanes.load(x_[i] + c), weights, sums_[i][j]);
        }
      }
    });
  }

  /// Adds the products of all columns, for a format with blocks. Decodes the scales of the next span before the
  /// products of the current span, so that the latency of decoding overlaps with the products.
  template <class Format>
  HWY_INLINE void add_blocks() {
    const std::int64_t C = call_.w->columns;
    SpanDecoder<Format> spans[2][kO];
    for (std::int64_t j = 0; j < kO; ++j) spans[0][j].open(row_[j], scales_[j], Spans<Format>::units(0, C));
    for (std::int64_t c = 0; c < C; c += kSpan) {
      const std::int64_t next = c + kSpan;
      const SpanDecoder<Format>* span = spans[c / kSpan % 2];
      for (std::int64_t j = 0; j < kO && next < C; ++j) {
        scales_[j] += Spans<Format>::kScales_apart;
        spans[next / kSpan % 2][j].open(row_[j] + Spans<Format>::kBytes, scales_[j], Spans<Format>::units(next, C));
      }
      for (std::int64_t u = 0; u < Spans<Format>::units(c, C); ++u) {
        for (std::int64_t j = 0; j < kO; ++j) {
          prefetch_ahead<Format>(row_[j], u);
          each_chunk(span[j], u, [&](std::int64_t part, const Vec<float>* weights) HWY_ATTR {
            add_chunk(j, c + u * Spans<Format>::kUnit + part * kChunk, weights);
          });
        }
      }
      for (std::int64_t j = 0; j < kO; ++j) row_[j] += Spans<Format>::kBytes;
    }
  }

  HWY_INLINE void store() const {
    for (std::int64_t i = 0; i < std::min(kN, call_.x.shape[0] - n_); ++i) {
      for (std::int64_t j = 0; j < kO; ++j) {
        const float sum = hn::GetLane(hn::SumOfLanes(Tag<float>(), sums_[i][j]));
        float& y = call_.y(n_ + i, r_ + j);
        y = call_.update == Update::add ? y + sum : sum;
      }
    }
  }

 private:
  HWY_INLINE void add_chunk(std::int64_t j, std::int64_t c, const Vec<float>* weights) {
    for (std::int64_t v = 0; v < kChunkVectors; ++v) {
      for (std::int64_t i = 0; i < kN; ++i) {
        const auto x_values = hn::LoadU(Tag<float>(), x_[i] + c + v * kLanes<float>);
        sums_[i][j] = hn::MulAdd(x_values, weights[v], sums_[i][j]);
      }
    }
  }

  const StoredProduct& call_;
  std::int64_t n_, r_;
  const float* x_[kN];
  const std::uint8_t* row_[kO];
  const std::uint8_t* scales_[kO];  // scales of the next span; null if the blocks contain them
  Vec<float> sums_[kN][kO];
};

/// Computes y for kO rows of w and all rows of x. Takes kN rows of x at a time, and decodes the rows of w again each
/// time. From the second time on, these rows are in the cache. Decoding once would need more sums than the registers
/// can hold, which is slower.
template <class Format, std::int64_t kN, std::int64_t kO>
HWY_INLINE void multiply_stored_rows(const StoredProduct& call, std::int64_t r) {
  for (std::int64_t n = 0; n < call.x.shape[0]; n += kN) {
    StoredSums<kN, kO> sums(call, n, r);
    if constexpr (kHasBlocks<Format>) {
      sums.template add_blocks<Format>();
    } else {
      sums.template add_numbers<Format>();
    }
    sums.store();
  }
}

/// Computes columns [begin, end) of y. Reads four rows of w at a time, so that the additions of their independent sums
/// overlap.
template <class Format, std::int64_t kN>
HWY_INLINE void multiply_stored_range(const StoredProduct& call, std::int64_t begin, std::int64_t end) {
  constexpr std::int64_t kRows = 4;
  std::int64_t r = begin;
  for (; r + kRows <= end; r += kRows) multiply_stored_rows<Format, kN, kRows>(call, r);
  for (; r < end; ++r) multiply_stored_rows<Format, kN, 1>(call, r);
}

template <class Format>
void stored_product_range(const StoredProduct& call, std::int64_t begin, std::int64_t end) {
  switch (call.x.shape[0]) {
    case 1: return multiply_stored_range<Format, 1>(call, begin, end);
    case 2: return multiply_stored_range<Format, 2>(call, begin, end);
    default: return multiply_stored_range<Format, 4>(call, begin, end);
  }
}

/// Decodes one row of a matrix to out(columns).
template <class Format>
void widen_row(float* out, const std::uint8_t* row, const std::uint8_t* scales, std::int64_t columns) {
  const Tag<float> d;
  if constexpr (kHasBlocks<Format>) {
    SpanDecoder<Format> span;
    for (std::int64_t c = 0; c < columns; c += kSpan) {
      const std::int64_t units = Spans<Format>::units(c, columns);
      span.open(row, scales, units);
      for (std::int64_t u = 0; u < units; ++u) {
        prefetch_ahead<Format>(row, u);
        each_chunk(span, u, [&](std::int64_t /*part*/, const Vec<float>* weights) HWY_ATTR {
          for (std::int64_t v = 0; v < kChunkVectors; ++v) hn::StoreU(weights[v], d, out + v * kLanes<float>);
          out += kChunk;
        });
      }
      row += Spans<Format>::kBytes;
      scales += Spans<Format>::kScales_apart;
    }
  } else {
    constexpr auto kBytes = static_cast<std::int64_t>(sizeof(typename Format::Number));
    each_vector<float>(columns, [&](std::int64_t c, auto lanes)
                                    HWY_ATTR { lanes.store(load_numbers<Format>(lanes, row + c * kBytes), out + c); });
  }
}

}  // namespace headgate::layers::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headgate::layers {
namespace {

HEADGATE_TARGET_TABLE(stored_product_range);
HEADGATE_TARGET_TABLE(widen_row);

using ProductKernel = void (*)(const StoredProduct&, std::int64_t, std::int64_t);
using WidenKernel = void (*)(float*, const std::uint8_t*, const std::uint8_t*, std::int64_t);

ProductKernel product_kernel(const io::GgufFormat& format, std::int64_t target) {
  ProductKernel kernel = nullptr;
  with_block_format(format,
                    [&]<class Format>(Format) { kernel = HEADGATE_FOR_TARGET(stored_product_range, Format, target); });
  assert(kernel != nullptr);
  return kernel;
}

WidenKernel widen_kernel(const io::GgufFormat& format, std::int64_t target) {
  WidenKernel kernel = nullptr;
  with_block_format(format, [&]<class Format>(Format) { kernel = HEADGATE_FOR_TARGET(widen_row, Format, target); });
  assert(kernel != nullptr);
  return kernel;
}

}  // namespace

bool is_multiplied(const io::GgufFormat& format) {
  return with_block_format(format, [](auto /*format*/) {});
}

void widen_rows(View<float, 2> out, const StoredMatrix& w, std::int64_t first, std::int64_t target) {
  assert(has_whole_rows(out) && out.shape[1] == w.columns());
  w.each_part(first, first + out.shape[0],
              [&](const StoredRows& part, std::int64_t row, std::int64_t begin, std::int64_t end) {
                const WidenKernel kernel = widen_kernel(*part.format, target);
                for (std::int64_t r = begin; r < end; ++r) {
                  kernel(out.at(row - first + r - begin), part.row(r), part.scales_of(r), part.columns);
                }
              });
}

void stored_gemm(View<float, 2> y, ConstView<float, 2> x, const StoredMatrix& w, Update update,
                 const ExecutionContext& context) {
  const std::int64_t N = x.shape[0], C = x.shape[1], O = w.rows();
  assert(N <= kSkinnyRows && y.shape[0] == N && y.shape[1] == O && w.columns() == C);
  assert(has_whole_rows(y) && has_whole_rows(x));
  if (N == 0) return;
  const auto multiply = [&](std::int64_t begin, std::int64_t end) {
    w.each_part(begin, end, [&](const StoredRows& part, std::int64_t first, std::int64_t from, std::int64_t to) {
      const StoredProduct call{y.range(1, first - from, to), x, &part, update};
      product_kernel(*part.format, context.target)(call, from, to);
    });
  };
  for_parts(parts_of(context, O, N * C, kFalseSharingElements<float>),
            [&](std::int64_t /*part*/, std::int64_t begin, std::int64_t end) { multiply(begin, end); });
}

}  // namespace headgate::layers
#endif  // HWY_ONCE
