// SPDX-License-Identifier: Apache-2.0
#include "models/decoder/weights.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "models/decoder/parameters.hpp"
#include "models/decoder/tiny.hpp"

namespace headgate::models {
namespace {

using Layer = LayerWeights<const float>;
using Outer = OuterWeights<const float>;

/// Returns all variants in both placements of norms, with and without QK-norm, tied and separate.
std::vector<DecoderConfig> configs() {
  std::vector<DecoderConfig> out;
  for (const std::string& name : all_variants()) {
    DecoderConfig config = tiny_config();
    config.gate = layers::parse_gate(name);
    out.push_back(config);
    config.norm_placement = NormPlacement::sandwich;
    config.qk_norm = QkNorm::none;
    config.embeddings = Embeddings::separate;
    out.push_back(config);
  }
  for (const DecoderConfig& config : mixed_families()) out.push_back(config);
  for (const DecoderConfig& config : expert_families()) out.push_back(config);
  return out;
}

/// Records which member each row fills, and which member it follows.
struct Members {
  std::map<std::string, const void*> of_row;
  std::set<const void*> filled;
  std::size_t filled_bytes = 0;
  const void* last = nullptr;

  template <std::size_t kRank>
  void operator()(const TensorRow& row, View<const float, kRank>& member) {
    filled_bytes += sizeof(member);
    EXPECT_EQ(row.shape.rank, static_cast<int>(kRank)) << row.name;
    EXPECT_TRUE(of_row.emplace(row.name, &member).second) << row.name << " has two rows";
    EXPECT_TRUE(filled.insert(&member).second) << row.name << " fills a member that another row fills";
    last = &member;
  }
  void operator()(const TensorRow& row, AppendTarget<const float> target) {
    EXPECT_TRUE(of_row.emplace(row.name, &target.member).second) << row.name << " has two rows";
    EXPECT_EQ(last, &target.member) << row.name << " does not follow the tensor that it is to lie behind";
  }
};

TEST(WeightRows, Rows_EveryMember_IsFilledOnce) {
  Layer layer;
  Outer outer;
  Members in_layer, outside;
  visit_layer_tensors([&](const auto& row, auto&& member) { in_layer(row, member); }, tiny_config(),
                      layer_config(tiny_config(), 0), layer);
  visit_outer_tensors([&](const auto& row, auto&& member) { outside(row, member); }, [] {}, tiny_config(), outer);
  EXPECT_EQ(in_layer.filled_bytes, sizeof(Layer));
  EXPECT_EQ(outside.filled_bytes, sizeof(Outer));
}

/// Compares the places of one layer's tensors with the table's offsets.
void expect_places(const DecoderConfig& config, std::int64_t layer) {
  const ParameterTable table(config);
  const std::vector<float> values(static_cast<std::size_t>(table.total()));
  Layer weights = WeightLayout(config).layer(layer, values.data());
  const std::string prefix = "model.layers." + std::to_string(layer) + ".";
  const float* next = nullptr;  // after the last tensor
  const auto expect_place = [&](const TensorRow& row, const float* place) {
    const Parameter* parameter = table.find(prefix + std::string(row.name));
    EXPECT_EQ(parameter != nullptr, row.present) << row.name;
    EXPECT_EQ(place != nullptr, row.present) << row.name;
    if (parameter == nullptr || place == nullptr) return;
    EXPECT_EQ(place - values.data(), parameter->offset) << row.name;
    EXPECT_EQ(parameter->count, row.shape.count()) << row.name;
    EXPECT_EQ(parameter->kind, row.kind) << row.name;
    next = place + parameter->count;
  };
  std::int64_t rows = 0;  // rows of the member, including those that follow it
  const auto at = [&](const TensorRow& row, auto&& member) {
    if constexpr (std::is_same_v<std::remove_cvref_t<decltype(member)>, AppendTarget<const float>>) {
      expect_place(row, row.present ? next : nullptr);
      if (!row.present) return;
      rows += row.shape.sizes[0];
      EXPECT_GE(member.member.shape[0], rows) << row.name << " is not part of its member";
    } else {
      expect_place(row, member.data);
      rows = row.shape.sizes[0];
      if (!row.present) return;
      EXPECT_GE(member.shape[0], rows) << row.name;
      if (row.shape.rank == 2) {
        EXPECT_EQ(member.shape.back(), row.shape.sizes[1]) << row.name;
      }
    }
  };
  visit_layer_tensors(at, config, layer_config(config, layer), weights);
}

TEST(WeightLayout, Places_EveryTensor_AreThoseOfTheTable) {
  for (const DecoderConfig& config : configs()) {
    SCOPED_TRACE(layers::gate_name(config.gate));
    for (const std::int64_t layer : {0, 1}) expect_places(config, layer);
    const ParameterTable table(config);
    const std::vector<float> values(static_cast<std::size_t>(table.total()));
    const Outer outer = WeightLayout(config).outer(values.data());
    const bool tied = config.embeddings == Embeddings::tied;
    EXPECT_EQ(outer.embedding.data - values.data(), table.find("model.embed_tokens.weight")->offset);
    EXPECT_EQ(outer.norm.data - values.data(), table.find("model.norm.weight")->offset);
    EXPECT_EQ(outer.head.data, tied ? outer.embedding.data : values.data() + table.find("lm_head.weight")->offset);
  }
}

}  // namespace
}  // namespace headgate::models
