// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "library/core/words.hpp"

namespace headgate::models {

/// Type of matrices and activations in a model's matrix products. Parameters and sums are always f32.
enum class ModelPrecision : std::int32_t { f32, bf16 };

/// Command-line option that selects the ModelPrecision. Every command uses this name.
inline constexpr std::string_view kPrecisionOption = "--precision";

}  // namespace headgate::models

namespace headgate {

template <>
struct Words<models::ModelPrecision> {
  static constexpr std::array<Word<models::ModelPrecision>, 2> kAll{
      {{models::ModelPrecision::f32, "f32"}, {models::ModelPrecision::bf16, "bf16"}}};
};

}  // namespace headgate
