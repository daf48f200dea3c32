// SPDX-License-Identifier: Apache-2.0
#include "models/layers/stored_gemm.hpp"

#include <algorithm>
#include <cassert>

#include "library/core/dispatch.hpp"
#include "models/layers/block_formats.hpp"
#include "models/layers/parallel.hpp"
#include "models/layers/skinny_gemm.hpp"

#ifndef HEADGATE_LAYERS_STORED_GEMM_CALL_  // this file is read once per Highway target
#define HEADGATE_LAYERS_STORED_GEMM_CALL_
namespace headgate::layers {

/// One product y(O) = or += w x for the rows of one format; row r of w makes y[r].
struct StoredProduct {
  float* y;
  const float* x;
  const StoredRows* w;
  Update update;
};

}  // namespace headgate::layers
#endif  // HEADGATE_LAYERS_STORED_GEMM_CALL_

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "models/layers/stored_gemm.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

// After foreach_target.h: per-target headers.
#include "models/layers/blocks-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::layers::HWY_NAMESPACE {

/// Prefetch distance in w (docs/design/decoding.md).
inline constexpr std::int64_t kStoredAhead_bytes = 16384;

/// Describes spans and units of a format's rows.
template <class Format>
struct Spans {
  static constexpr std::int64_t kUnit = SpanDecoder<Format>::kParts * kChunk;
  static constexpr std::int64_t kBytes = kSpan / Format::kNumbers * Format::kBytes;  ///< of a span
  static constexpr std::int64_t kUnit_bytes = kBytes / (kSpan / kUnit);

  /// Returns the units of the span that begins at column c of C.
  static HWY_INLINE std::int64_t units(std::int64_t c, std::int64_t C) { return std::min(kSpan, C - c) / kUnit; }
};

/// Prefetches what lies ahead of a unit.
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

/// Computes y of kO rows of w. Each sum adds vectors of products in the order of the columns, as skinny_gemm does.
template <class Format, std::int64_t kO>
HWY_INLINE void multiply_stored_rows(const StoredProduct& call, std::int64_t r) {
  const Tag<float> d;
  const std::uint8_t* row[kO];
  Vec<float> sums[kO];
  for (std::int64_t j = 0; j < kO; ++j) {
    row[j] = call.w->row(r + j);
    sums[j] = hn::Zero(d);
  }
  const std::int64_t C = call.w->columns;
  if constexpr (kHasBlocks<Format>) {
    const float* x = call.x;
    // The scales of the next span are decoded before the current span is read, so that their latency overlaps with it.
    SpanDecoder<Format> spans[2][kO];
    for (std::int64_t j = 0; j < kO; ++j) spans[0][j].open(row[j], Spans<Format>::units(0, C));
    for (std::int64_t c = 0; c < C; c += kSpan) {
      const std::int64_t next = c + kSpan;
      const SpanDecoder<Format>* span = spans[c / kSpan % 2];
      for (std::int64_t j = 0; j < kO && next < C; ++j) {
        spans[next / kSpan % 2][j].open(row[j] + Spans<Format>::kBytes, Spans<Format>::units(next, C));
      }
      for (std::int64_t u = 0; u < Spans<Format>::units(c, C); ++u) {
        for (std::int64_t j = 0; j < kO; ++j) {
          prefetch_ahead<Format>(row[j], u);
          each_chunk(span[j], u, [&](std::int64_t part, const Vec<float>* weights) HWY_ATTR {
            for (std::int64_t v = 0; v < kChunkVectors; ++v) {
              const auto x_values = hn::LoadU(d, x + part * kChunk + v * kLanes<float>);
              sums[j] = hn::MulAdd(x_values, weights[v], sums[j]);
            }
          });
        }
        x += Spans<Format>::kUnit;
      }
      for (std::int64_t j = 0; j < kO; ++j) row[j] += Spans<Format>::kBytes;
    }
  } else {
    constexpr auto kBytes = static_cast<std::int64_t>(sizeof(typename Format::Number));
    each_vector<float>(C, [&](std::int64_t c, auto lanes) HWY_ATTR {
      const Vec<float> x_values = lanes.load(call.x + c);
      for (std::int64_t j = 0; j < kO; ++j) {
        sums[j] = hn::MulAdd(x_values, load_numbers<Format>(lanes, row[j] + c * kBytes), sums[j]);
      }
    });
  }
  for (std::int64_t j = 0; j < kO; ++j) {
    const float sum = hn::GetLane(hn::SumOfLanes(d, sums[j]));
    float& y = call.y[r + j];
    y = call.update == Update::add ? y + sum : sum;
  }
}

/// Computes y of the rows [begin, end) of w. Several rows at a time have independent sums, whose additions overlap.
template <class Format>
void stored_product_range(const StoredProduct& call, std::int64_t begin, std::int64_t end) {
  constexpr std::int64_t kRows = 4;
  std::int64_t r = begin;
  for (; r + kRows <= end; r += kRows) multiply_stored_rows<Format, kRows>(call, r);
  for (; r < end; ++r) multiply_stored_rows<Format, 1>(call, r);
}

/// out(columns) = one row of a matrix.
template <class Format>
void widen_row(float* out, const std::uint8_t* row, std::int64_t columns) {
  const Tag<float> d;
  if constexpr (kHasBlocks<Format>) {
    SpanDecoder<Format> span;
    for (std::int64_t c = 0; c < columns; c += kSpan) {
      const std::int64_t units = Spans<Format>::units(c, columns);
      span.open(row, units);
      for (std::int64_t u = 0; u < units; ++u) {
        prefetch_ahead<Format>(row, u);
        each_chunk(span, u, [&](std::int64_t /*part*/, const Vec<float>* weights) HWY_ATTR {
          for (std::int64_t v = 0; v < kChunkVectors; ++v) hn::StoreU(weights[v], d, out + v * kLanes<float>);
          out += kChunk;
        });
      }
      row += Spans<Format>::kBytes;
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
using WidenKernel = void (*)(float*, const std::uint8_t*, std::int64_t);

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

/// Computes columns [begin, end) of y for one row of x.
void multiply_one_row(View<float, 2> y, ConstView<float, 2> x, const StoredMatrix& w, Update update,
                      std::int64_t target, std::int64_t begin, std::int64_t end) {
  w.each_part(begin, end,
              [&](const StoredRows& part, std::int64_t first, std::int64_t part_begin, std::int64_t part_end) {
                const StoredProduct call{y.at(0) + first - part_begin, x.at(0), &part, update};
                product_kernel(*part.format, target)(call, part_begin, part_end);
              });
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
                for (std::int64_t r = begin; r < end; ++r)
                  kernel(out.at(row - first + r - begin), part.row(r), part.columns);
              });
}

void stored_gemm(View<float, 2> y, ConstView<float, 2> x, const StoredMatrix& w, Update update,
                 const ExecutionContext& context) {
  const std::int64_t N = x.shape[0], C = x.shape[1], O = w.rows();
  assert(N <= kSkinnyRows && y.shape[0] == N && y.shape[1] == O && w.columns() == C);
  assert(has_whole_rows(y) && has_whole_rows(x));
  if (N == 0) return;
  const Parts parts = parts_of(context, O, N * C, kFalseSharingElements<float>);
  if (N == 1) {
    return for_parts(parts, [&](std::int64_t /*part*/, std::int64_t begin, std::int64_t end) {
      multiply_one_row(y, x, w, update, context.target, begin, end);
    });
  }
  // Rows of w that are widened at a time: 16 KiB, half of a first-level cache.
  constexpr std::int64_t kWidened = 4096, kTile = 4;
  const std::int64_t block = std::max(kTile, kWidened / std::max<std::int64_t>(C, 1) / kTile * kTile);
  const View<float, 3> wide(scratch<float>(parts.count * block * C), {parts.count, block, C});
  ExecutionContext alone = context;
  alone.threads = 1;
  for_parts(parts, [&](std::int64_t part, std::int64_t begin, std::int64_t end) {
    for (std::int64_t o = begin; o < end; o += block) {
      const View<float, 2> rows = wide[part].range(0, 0, std::min(block, end - o));
      widen_rows(rows, w, o, context.target);
      skinny_gemm<float>(y.range(1, o, rows.shape[0]), x, rows, update, alone);
    }
  });
}

}  // namespace headgate::layers
#endif  // HWY_ONCE
