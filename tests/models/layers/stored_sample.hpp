// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <random>
#include <string_view>
#include <vector>

#include "library/core/convert.hpp"
#include "models/io/gguf_formats.hpp"
#include "models/io/mxfp4.hpp"
#include "models/layers/stored_matrix.hpp"

namespace headgate::layers {

/// A power of two from 1/512 to 1/4, as the numbers of a block are multiples of.
template <class Random>
std::uint8_t random_mxfp4_scale(Random& random) {
  return static_cast<std::uint8_t>(118 + random() % 8);
}

/// Returns bytes of `blocks` blocks: random codes, and scales between ±scale.
template <class Random>
std::vector<std::uint8_t> random_blocks(Random& random, const io::GgufFormat& format, std::int64_t blocks,
                                        float scale = 0.25F) {
  std::uniform_real_distribution<float> uniform(-scale, scale);
  std::vector<std::uint8_t> out(static_cast<std::size_t>(blocks) * format.bytes);
  for (std::uint8_t& byte : out) byte = static_cast<std::uint8_t>(random());
  const auto put = [&](std::uint8_t* at) {
    const Float16 half = to_f16(uniform(random));
    std::memcpy(at, &half, sizeof(half));
  };
  const std::string_view word = format.word;
  for (std::int64_t b = 0; b < blocks; ++b) {
    std::uint8_t* const block = out.data() + static_cast<std::size_t>(b) * format.bytes;
    if (word == "F32") {
      const float number = uniform(random);
      std::memcpy(block, &number, sizeof(number));
    } else if (word == "BF16") {
      const BFloat16 number = to_bf16(uniform(random));
      std::memcpy(block, &number, sizeof(number));
    } else if (word == "Q6_K") {
      put(block + 208);
    } else if (word == "MXFP4") {
      block[0] = random_mxfp4_scale(random);
    } else if (format.id != io::kMxfp4ApartId) {
      put(block);
      if (word == "Q4_1" || word == "Q5_1" || word == "Q4_K" || word == "Q5_K") put(block + 2);
    }
  }
  return out;
}

/// A random stored matrix, at an odd address, and its widened form.
struct StoredSample {
  template <class Random>
  StoredSample(Random& random, const io::GgufFormat& format_in, std::int64_t rows_in, std::int64_t columns_in,
               bool ordered)
      : format(&format_in), rows(rows_in), columns(columns_in), bytes(1, 0) {
    const std::int64_t blocks = columns / format->numbers;
    const std::vector<std::uint8_t> data = random_blocks(random, *format, rows * blocks);
    bytes.insert(bytes.end(), data.begin(), data.end());
    order.resize(static_cast<std::size_t>(ordered ? rows : 0));
    std::iota(order.begin(), order.end(), std::int64_t{0});
    std::shuffle(order.begin(), order.end(), random);
    widened.resize(static_cast<std::size_t>(rows * columns));
    if (format->id == io::kMxfp4ApartId) {
      scales.resize(static_cast<std::size_t>(rows * blocks));
      for (std::uint8_t& scale : scales) scale = random_mxfp4_scale(random);
    }
    for (std::int64_t r = 0; r < rows; ++r) widen(r, blocks);
  }

  StoredRows part() const {
    StoredRows out{format, bytes.data() + 1, rows, columns, order.empty() ? nullptr : order.data()};
    if (!scales.empty()) out.scales = scales.data();
    return out;
  }

  void widen(std::int64_t r, std::int64_t blocks) {
    const StoredRows view = part();
    float* const out = widened.data() + r * columns;
    if (scales.empty()) return io::widen_blocks(*format, out, view.row(r), blocks);
    for (std::int64_t b = 0; b < blocks; ++b) {
      io::widen_mxfp4_apart(out + b * format->numbers, view.row(r) + b * io::kMxfp4CodeBytes, view.scales_of(r)[b]);
    }
  }

  const io::GgufFormat* format;
  std::int64_t rows, columns;
  std::vector<std::uint8_t> bytes, scales;
  std::vector<std::int64_t> order;
  std::vector<float> widened;
};

}  // namespace headgate::layers
