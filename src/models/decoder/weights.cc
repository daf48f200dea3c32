// SPDX-License-Identifier: Apache-2.0
#include "models/decoder/weights.hpp"

namespace headgate::models {

namespace {

/// Adds up the number of elements of tensors.
struct CountTensors {
  std::int64_t& count;

  template <typename Member>
  void operator()(const TensorRow& row, const Member&) const {
    if (row.present) count += row.shape.count();
  }
};

}  // namespace

WeightPlaces::WeightPlaces(const DecoderConfig& config) : config_(config) {
  LayerWeights<const float> layer;
  visit_layer_tensors(CountTensors{layer_count_}, config, layer);
  OuterWeights<const float> outer;
  std::int64_t total = 0;
  const auto at_layers = [&] { layers_ = total; };
  visit_outer_tensors(CountTensors{total}, at_layers, config, outer);
}

}  // namespace headgate::models
