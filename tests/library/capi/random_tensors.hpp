// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <random>
#include <vector>

#include "headgate/tensor.hpp"
#include "library/core/element.hpp"

namespace headgate::testing {

/// Tensors of random numbers, the same for the same order of calls, and their memory.
class RandomTensors {
 public:
  RandomTensors() = default;
  RandomTensors(const RandomTensors&) = delete;
  RandomTensors& operator=(const RandomTensors&) = delete;

  /// A copy of all memory, inputs and outputs.
  std::deque<std::vector<double>> memory() const { return memory_; }

 protected:
  TensorView tensor(DType dtype, const Shape& shape, double low = -1.0, double high = 1.0) {
    const std::int64_t elements = shape[0] * shape[1] * shape[2] * shape[3];
    std::vector<double>& block = memory_.emplace_back(static_cast<std::size_t>(elements));
    const TensorView view(block.data(), dtype, shape, contiguous_strides(shape));
    std::uniform_real_distribution<double> draw(low, high);
    for (std::int64_t i = 0; i < elements; ++i) store_element(view.data, dtype, i, draw(random_));
    return view;
  }

 private:
  std::mt19937 random_{42};
  std::deque<std::vector<double>> memory_;
};

}  // namespace headgate::testing
