// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

#include "models/decoder/config.hpp"
#include "models/decoder/parameters.hpp"

namespace headgate::testing {

inline models::DecoderConfig small_config() {
  models::DecoderConfig config;
  config.vocab = 13;
  config.dim = 8;
  config.layers = 2;
  config.heads = 4;
  config.kv_heads = 2;
  config.head_dim = 4;
  config.ffn = 12;
  config.seq_len = 16;
  return config;
}

/// Holds a model with its moments; all numbers differ.
struct SavedModel {
  explicit SavedModel(const models::DecoderConfig& model) : config(model), table(model) {
    const auto total = static_cast<std::size_t>(table.total());
    for (std::size_t i = 0; i < total; ++i) {
      parameters.push_back(static_cast<float>(i) * 0.25F - 3.0F);
      first.push_back(static_cast<float>(i) * 1e-3F);
      second.push_back(static_cast<float>(i) * 1e-6F + 1e-12F);
    }
  }

  models::DecoderConfig config;
  models::ParameterTable table;
  std::vector<float> parameters, first, second;
};

}  // namespace headgate::testing
