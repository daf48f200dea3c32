// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "headgate/attention.hpp"

namespace headgate {

/// Holds a bias, a mask and a key bias of 100 queries and 700 keys, with adjacent keys and with every second element
/// unused. Strides decide whether kernels apply them in registers.
class RuleMaps {
 public:
  static constexpr std::int64_t kQueries = 100, kKeys = 700;
  static constexpr Shape kMap{1, 1, kQueries, kKeys}, kKeyMap{1, 1, 1, kKeys};
  static constexpr Shape kApart{0, 0, 2 * kKeys, 2};  ///< strides with every second element unused

  /// Makes a bias that rises by `slope` from key to key. If `hides`, one element of 11 is −∞, and so is a run of keys
  /// for some queries. The mask hides a run of keys from others.
  RuleMaps(float slope, bool hides) : bias_(kQueries * kKeys), mask_(bias_.size()) {
    for (std::size_t n = 0; n < bias_.size(); ++n) {
      const double wave = std::sin(static_cast<double>(n * n % 1000));
      bias_[n] = static_cast<float>(wave) + slope * static_cast<float>(n % kKeys);
      const auto query = static_cast<std::int64_t>(n) / kKeys, key = static_cast<std::int64_t>(n) % kKeys;
      const bool in_run = query >= 30 && query < 60 && key < 420;
      if (hides && (n % 11 == 0 || in_run)) bias_[n] = -std::numeric_limits<float>::infinity();
      mask_[n] = wave < 0.8 && !(query >= 60 && query < 90 && key >= 250) ? 1 : 0;
    }
    bias_apart_ = apart(bias_);
    mask_apart_ = apart(mask_);
  }

  /// Returns the bias if bit 0 of `rules` is set, the mask for bit 1, and the key bias for bit 2. The last row of the
  /// bias serves as key bias.
  AttentionInputs adjacent(int rules) const {
    const Shape strides = contiguous_strides(kMap);
    return some_of(rules, {bias_.data(), DType::f32, kMap, strides}, {mask_.data(), DType::boolean, kMap, strides},
                   {bias_.data() + (kQueries - 1) * kKeys, DType::f32, kKeyMap, contiguous_strides(kKeyMap)});
  }
  AttentionInputs apart(int rules) const {
    return some_of(rules, {bias_apart_.data(), DType::f32, kMap, kApart},
                   {mask_apart_.data(), DType::boolean, kMap, kApart},
                   {bias_apart_.data() + 2 * (kQueries - 1) * kKeys, DType::f32, kKeyMap, kApart});
  }

  /// Returns `from` with an unused element behind each.
  template <typename T>
  static std::vector<T> apart(const std::vector<T>& from) {
    std::vector<T> to(2 * from.size());
    for (std::size_t n = 0; n < from.size(); ++n) to[2 * n] = from[n];
    return to;
  }

 private:
  static AttentionInputs some_of(int rules, const ConstTensorView& bias, const ConstTensorView& mask,
                                 const ConstTensorView& key_bias) {
    AttentionInputs in;
    if ((rules & 1) != 0) in.bias = bias;
    if ((rules & 2) != 0) in.mask = mask;
    if ((rules & 4) != 0) in.key_bias = key_bias;
    return in;
  }

  std::vector<float> bias_, bias_apart_;
  std::vector<std::uint8_t> mask_, mask_apart_;
};

}  // namespace headgate
