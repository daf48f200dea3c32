// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "headgate/runtime.hpp"
#include "models/decoder/weights.hpp"
#include "models/layers/elementwise.hpp"

// Provides a model's weights in the types that a decoder multiplies.

namespace headgate::models {

/// Provides vectors and matrices in the types that matrix products need. If T is bf16, matrices are bf16, vectors are
/// f32, and this object holds a rounded copy of all parameters. Otherwise it only views the parameters, which have type
/// T.
template <typename T>
class ProductWeights {
 public:
  ProductWeights(const WeightLayout& layout, std::int64_t parameters) : layout_(layout) {
    if constexpr (kNarrow<T>) rounded_.resize(static_cast<std::size_t>(parameters));
  }

  /// Updates the rounded copy, if T is bf16. Must be called before every forward pass.
  void round([[maybe_unused]] const Wide<T>* parameters, [[maybe_unused]] const ExecutionContext& context) {
    if constexpr (kNarrow<T>) {
      const View<T, 1> out(rounded_.data(), {static_cast<std::int64_t>(rounded_.size())});
      layers::copy_to<T, Wide<T>>(out, View<const Wide<T>, 1>(parameters, out.shape), context);
    }
  }

  LayerWeights<const Wide<T>, const T> layer(std::int64_t index, const Wide<T>* parameters) const {
    if constexpr (kNarrow<T>) {
      return layout_.layer(index, parameters, rounded_.data());
    } else {
      return layout_.layer(index, parameters);
    }
  }
  /// Returns the matrix that computes the logits.
  View<const T, 2> head(const Wide<T>* parameters) const {
    if constexpr (kNarrow<T>) {
      return layout_.outer(rounded_.data()).head;
    } else {
      return layout_.outer(parameters).head;
    }
  }

  std::size_t bytes() const { return rounded_.size() * sizeof(T); }

 private:
  const WeightLayout& layout_;
  std::vector<T> rounded_;  // empty unless T is bf16
};

}  // namespace headgate::models
