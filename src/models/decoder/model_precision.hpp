// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "library/core/words.hpp"

namespace headgate::models {

/// Type of a model's matrices and activations in matrix products. Parameters and sums are f32 with either value.
enum class ModelPrecision : std::int32_t { f32, bf16 };

/// Name of the command-line option that selects the ModelPrecision, the same in every command.
inline constexpr std::string_view kPrecisionOption = "--precision";

}  // namespace headgate::models

namespace headgate {

template <>
struct Words<models::ModelPrecision> {
  static constexpr std::array<Word<models::ModelPrecision>, 2> kAll{
      {{models::ModelPrecision::f32, "f32"}, {models::ModelPrecision::bf16, "bf16"}}};
};

}  // namespace headgate
