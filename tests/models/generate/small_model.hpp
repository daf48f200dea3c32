// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "library/core/random.hpp"
#include "models/decoder/parameters.hpp"
#include "models/generate/cached_decoder.hpp"

namespace headgate::testing {

/// A small random model, with numbers large enough that its texts do not repeat one token.
class SmallModel {
 protected:
  SmallModel(std::int64_t vocab, std::int64_t positions) {
    config.vocab = vocab;
    config.dim = 16;
    config.layers = 2;
    config.heads = 4;
    config.kv_heads = 2;
    config.head_dim = 8;
    config.ffn = 24;
    config.seq_len = positions;
    parameters = random_parameters(config);
  }
  static std::vector<float> random_parameters(const models::DecoderConfig& config) {
    std::vector<float> out(static_cast<std::size_t>(models::ParameterTable(config).total()));
    SplitMix64 random(7);
    for (float& each : out) each = static_cast<float>(2.0 * random.uniform() - 1.0);
    return out;
  }
  models::CachedDecoder decoder(std::int64_t capacity = 0) const {
    return models::CachedDecoder(config, parameters.data(), {.weights = DType::f32, .capacity = capacity});
  }

  models::DecoderConfig config;
  std::vector<float> parameters;
};

}  // namespace headgate::testing
