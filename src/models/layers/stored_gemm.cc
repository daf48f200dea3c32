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
inline constexpr std::int64_t kStoredAhead_bytes = 8192;

/// Prefetches what lies ahead of a block, about once per cache line.
template <class Format>
HWY_INLINE void prefetch_ahead(const std::uint8_t* block, std::int64_t b) {
  constexpr std::int64_t kLine_bytes = 64, kBlocks = std::max<std::int64_t>(1, kLine_bytes / Format::kBytes);
  constexpr int kReads = 0, kIntoSecondLevel = 2;
  if (b % kBlocks != 0) return;
  for (std::int64_t at = 0; at < std::max(Format::kBytes, kLine_bytes); at += kLine_bytes) {
    const auto line = reinterpret_cast<std::uintptr_t>(block) + static_cast<std::uintptr_t>(at + kStoredAhead_bytes);
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
    for (std::int64_t b = 0; b < C / Format::kNumbers; ++b) {
      for (std::int64_t j = 0; j < kO; ++j) prefetch_ahead<Format>(row[j], b);
      BlockDecoder<Format> block[kO];
      for (std::int64_t j = 0; j < kO; ++j) block[j].open(row[j]);
      const auto add_chunk = [&](std::int64_t g) HWY_ATTR {
        for (std::int64_t j = 0; j < kO; ++j) {
          Vec<float> weights[kChunkVectors];
          block[j].chunk(g, weights);
          for (std::int64_t v = 0; v < kChunkVectors; ++v) {
            const auto x_values = hn::LoadU(d, x + g * kChunk + v * kLanes<float>);
            sums[j] = hn::MulAdd(x_values, weights[v], sums[j]);
          }
        }
      };
      if constexpr (Format::kNumbers == kChunk) {
        add_chunk(0);
      } else {
        for (std::int64_t g = 0; g < Format::kNumbers / kChunk; g += 2) {
          add_chunk(g);
          add_chunk(g + 1);
        }
      }
      for (std::int64_t j = 0; j < kO; ++j) row[j] += Format::kBytes;
      x += Format::kNumbers;
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
    for (std::int64_t b = 0; b < columns / Format::kNumbers; ++b) {
      prefetch_ahead<Format>(row, b);
      BlockDecoder<Format> block;
      block.open(row);
      for (std::int64_t g = 0; g < Format::kNumbers / kChunk; ++g) {
        Vec<float> weights[kChunkVectors];
        block.chunk(g, weights);
        for (std::int64_t v = 0; v < kChunkVectors; ++v) hn::StoreU(weights[v], d, out + v * kLanes<float>);
        out += kChunk;
      }
      row += Format::kBytes;
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
