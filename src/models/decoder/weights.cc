// SPDX-License-Identifier: Apache-2.0
#include "models/decoder/weights.hpp"

namespace headgate::models {

namespace {

/// Adds up the numbers of elements of all visited tensors.
struct CountTensors {
  std::int64_t& count;

  template <typename Member>
  void operator()(const TensorRow& row, const Member&) const {
    if (row.present) count += row.shape.count();
  }
};

}  // namespace

WeightLayout::WeightLayout(const DecoderConfig& config) : config_(config) {
  OuterWeights<const float> outer;
  std::int64_t total = 0;
  const auto at_layers = [&] {
    for (std::int64_t layer = 0; layer < config.layers; ++layer) {
      begins_.push_back(total);
      LayerWeights<const float> weights;
      visit_layer_tensors(CountTensors{total}, config, layer_config(config, layer), weights);
    }
    begins_.push_back(total);
  };
  visit_outer_tensors(CountTensors{total}, at_layers, config, outer);
}

}  // namespace headgate::models
