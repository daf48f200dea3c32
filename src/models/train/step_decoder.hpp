// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <variant>
#include <vector>

#include "library/core/words.hpp"
#include "models/decoder/decoder.hpp"

namespace headgate::train {

/// In what a run's products and activations are stored. Parameters, optimizer and sums are f32 in both.
enum class StepPrecision : std::int32_t { f32, bf16 };

/// Computes losses and gradients of f32 parameters in the precision of a run.
class StepDecoder {
 public:
  /// Throws as models::Decoder does.
  StepDecoder(const models::DecoderConfig& config, models::BatchShape shape, StepPrecision precision,
              const ExecutionContext& context);

  /// Decoder<float>'s or Decoder<BFloat16>'s.
  static std::vector<models::MemoryItem> planned_memory(const models::DecoderConfig& config, models::BatchShape shape,
                                                        StepPrecision precision);

  const models::DecoderConfig& config() const;
  const models::ParameterTable& table() const;
  const ExecutionContext& context() const;
  double loss_and_gradients(float* gradients, const float* parameters, const std::int32_t* tokens,
                            const std::int32_t* targets, double gradient_scale);

 private:
  std::variant<models::Decoder<float>, models::Decoder<BFloat16>> decoder_;
};

}  // namespace headgate::train

namespace headgate {

template <>
struct Words<train::StepPrecision> {
  static constexpr std::array<Word<train::StepPrecision>, 2> kAll{
      {{train::StepPrecision::f32, "f32"}, {train::StepPrecision::bf16, "bf16"}}};
};

}  // namespace headgate
