// SPDX-License-Identifier: Apache-2.0
#include "models/train/step_decoder.hpp"

namespace headgate::train {
namespace {

using models::Purpose;
using Either = std::variant<models::Decoder<float>, models::Decoder<BFloat16>>;

Either make_decoder(const models::DecoderConfig& config, models::BatchShape shape, StepPrecision precision,
                    const ExecutionContext& context) {
  if (precision == StepPrecision::bf16) {
    return Either(std::in_place_type<models::Decoder<BFloat16>>, config, shape, Purpose::train, context);
  }
  return Either(std::in_place_type<models::Decoder<float>>, config, shape, Purpose::train, context);
}

}  // namespace

StepDecoder::StepDecoder(const models::DecoderConfig& config, models::BatchShape shape, StepPrecision precision,
                         const ExecutionContext& context)
    : decoder_(make_decoder(config, shape, precision, context)) {}

std::vector<models::MemoryItem> StepDecoder::planned_memory(const models::DecoderConfig& config,
                                                            models::BatchShape shape, StepPrecision precision) {
  return precision == StepPrecision::bf16 ? models::Decoder<BFloat16>::planned_memory(config, shape, Purpose::train)
                                          : models::Decoder<float>::planned_memory(config, shape, Purpose::train);
}

const models::DecoderConfig& StepDecoder::config() const {
  return std::visit([](const auto& decoder) -> const models::DecoderConfig& { return decoder.config(); }, decoder_);
}

const models::ParameterTable& StepDecoder::table() const {
  return std::visit([](const auto& decoder) -> const models::ParameterTable& { return decoder.table(); }, decoder_);
}

const ExecutionContext& StepDecoder::context() const {
  return std::visit([](const auto& decoder) -> const ExecutionContext& { return decoder.context(); }, decoder_);
}

double StepDecoder::loss_and_gradients(float* gradients, const float* parameters, const std::int32_t* tokens,
                                       const std::int32_t* targets, double gradient_scale) {
  return std::visit(
      [&](auto& decoder) { return decoder.loss_and_gradients(gradients, parameters, tokens, targets, gradient_scale); },
      decoder_);
}

}  // namespace headgate::train
