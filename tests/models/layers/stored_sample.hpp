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
#include "models/layers/stored_matrix.hpp"

namespace headgate::layers {

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
    } else {
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
    const StoredRows view = part();
    for (std::int64_t r = 0; r < rows; ++r) {
      io::widen_blocks(*format, widened.data() + r * columns, view.row(r), blocks);
    }
  }

  StoredRows part() const { return {format, bytes.data() + 1, rows, columns, order.empty() ? nullptr : order.data()}; }

  const io::GgufFormat* format;
  std::int64_t rows, columns;
  std::vector<std::uint8_t> bytes;
  std::vector<std::int64_t> order;
  std::vector<float> widened;
};

}  // namespace headgate::layers
