// SPDX-License-Identifier: Apache-2.0
#include "models/families/gguf_model.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "models/io/gguf_bytes.hpp"
#include "models/io/scratch.hpp"
#include "models/layers/rope.hpp"

// Values of GGUF files whose layers differ. scripts/check_hybrids.py compares log-probabilities.

namespace headgate::models {
namespace {

using headgate::testing::GgufBytes;
using headgate::testing::Scratch;
using headgate::testing::write_bytes;

constexpr std::int64_t kLayers = 5, kHeadDim = 32;
const std::vector<LayerType> kTypes{LayerType::full_attention, LayerType::sliding_attention,
                                    LayerType::sliding_attention, LayerType::sliding_attention,
                                    LayerType::full_attention};

/// The values of a file of Step 3.5 with five layers, the first two without experts, and one that predicts further
/// tokens; tests change some before they are written.
struct StepFile {
  std::uint32_t further = 1, dimension_count = 0;
  std::vector<std::uint32_t> heads{8, 12, 12, 12, 8, 12}, kv_heads{4, 4, 4, 4, 4, 4};
  std::vector<std::uint8_t> windows{0, 1, 1, 1, 0, 1};
  std::vector<float> limits{0, 0, 7, 0, 9, 3}, shared_limits{0, 0, 0, 16, 0, 0};
  std::vector<float> factors;

  template <typename T>
  static std::string list(io::GgufType of, const std::vector<T>& values) {
    std::string bytes = GgufBytes::raw(of) + GgufBytes::raw<std::uint64_t>(values.size());
    for (const T value : values) bytes += GgufBytes::raw(value);
    return bytes;
  }

  GgufBytes bytes() const {
    GgufBytes out;
    const auto u32 = [&](const std::string& key, std::uint32_t value) { out.u32("step35." + key, value); };
    const auto add_list = [&](const std::string& key, const std::string& bytes) {
      out.raw_value("step35." + key, io::GgufType::list, bytes);
    };
    out.string("general.architecture", "step35");
    u32("block_count", kLayers + 1);
    u32("context_length", 64);
    u32("embedding_length", 16);
    u32("feed_forward_length", 24);
    u32("attention.key_length", kHeadDim);
    u32("attention.value_length", kHeadDim);
    u32("attention.sliding_window", 9);
    u32("expert_count", 6);
    u32("expert_used_count", 2);
    u32("expert_feed_forward_length", 10);
    u32("expert_shared_feed_forward_length", 12);
    u32("leading_dense_block_count", 0);
    u32("moe_every_n_layers", 1);
    u32("nextn_predict_layers", further);
    if (dimension_count > 0) u32("rope.dimension_count", dimension_count);
    out.f32("step35.rope.freq_base", 5e6F);
    out.f32("step35.rope.freq_base_swa", 1e4F);
    out.f32("step35.attention.layer_norm_rms_epsilon", 0.25F);
    out.f32("step35.expert_weights_scale", 3.0F);
    add_list("attention.head_count", list(io::GgufType::u32, heads));
    add_list("attention.head_count_kv", list(io::GgufType::u32, kv_heads));
    add_list("attention.sliding_window_pattern", list(io::GgufType::boolean, windows));
    add_list("swiglu_clamp_exp", list(io::GgufType::f32, limits));
    add_list("swiglu_clamp_shexp", list(io::GgufType::f32, shared_limits));
    out.f32_tensor("token_embd.weight", {1, 1}, {1.0F});
    for (int layer = 2; layer <= kLayers; ++layer) {
      out.f32_tensor("blk." + std::to_string(layer) + ".ffn_gate_inp.weight", {1}, {1.0F});
    }
    if (!factors.empty()) {
      out.f32_tensor("rope_freqs.weight", {static_cast<std::int64_t>(factors.size())}, factors);
    }
    return out;
  }
};

class GgufModelTest : public ::testing::Test {
 protected:
  DecoderConfig config_of(const GgufBytes& bytes) const {
    write_bytes(scratch / "m.gguf", bytes.bytes());
    const io::GgufFile file(scratch / "m.gguf");
    return config_of_gguf(file, family_of_gguf(file));
  }
  void expect_refused(const GgufBytes& bytes, const std::string& why) const {
    try {
      config_of(bytes);
      ADD_FAILURE() << "read without complaint; expected: " << why;
    } catch (const io::FileError& error) {
      EXPECT_NE(std::string(error.what()).find(why), std::string::npos) << error.what();
    }
  }

  Scratch scratch;
};

TEST_F(GgufModelTest, Step35_LayersThatPredictFurtherTokens_DoNotCount) {
  const DecoderConfig config = config_of(StepFile().bytes());
  EXPECT_EQ(config.layers, kLayers);
  EXPECT_EQ(config.layer_types, kTypes);
  EXPECT_EQ(config.experts.limits, (std::vector<double>{0, 0, 7, 0, 9}));
  EXPECT_EQ(config.experts.shared_limits, (std::vector<double>{0, 0, 0, 16, 0}));
  StepFile all;
  for (const std::uint32_t further : {6U, 7U}) {
    all.further = further;
    expect_refused(all.bytes(), "nextn_predict_layers is " + std::to_string(further) + " of block_count 6");
  }
}

TEST_F(GgufModelTest, Step35_LimitsOfFurtherLayersAlone_ClampNothing) {
  StepFile file;
  file.limits = {0, 0, 0, 0, 0, 3};
  EXPECT_TRUE(config_of(file.bytes()).experts.limits.empty());
}

TEST_F(GgufModelTest, Step35_HeadsOfLayers_AreThoseOfTheirTypes) {
  DecoderConfig config = config_of(StepFile().bytes());
  EXPECT_EQ(config.heads, 8);
  EXPECT_EQ(config.sliding.heads, 12);
  EXPECT_EQ(config.kv_heads, 4);
  EXPECT_EQ(config.window, 9);
  EXPECT_EQ(config.gate.grain, layers::GateGrain::headwise);
  EXPECT_EQ(config.norm, layers::NormKind::plain);
  StepFile first;  // its first layer has a window
  first.heads = {12, 8, 12, 12, 8, 12};
  first.windows = {1, 0, 1, 1, 0, 1};
  config = config_of(first.bytes());
  EXPECT_EQ(config.heads, 8);
  EXPECT_EQ(config.sliding.heads, 12);
}

TEST_F(GgufModelTest, Step35_HeadsThatDifferWithinAType_AreRefused) {
  StepFile file;
  file.heads[3] = 8;
  expect_refused(file.bytes(), "attention.head_count is 8 in layer 3; only 12 is supported there");
  file = {};
  file.kv_heads[2] = 2;
  expect_refused(file.bytes(), "attention.head_count_kv is 2 in layer 2; only 4 is supported there");
  file = {};
  file.heads = {8, 12, 12};
  expect_refused(file.bytes(), "head_count 3 elements, fewer than 5 layers");
  file = {};
  file.limits = {0, 0, 7};
  expect_refused(file.bytes(), "swiglu_clamp_exp has 3 elements, fewer than 5 layers");
}

TEST_F(GgufModelTest, Step35_FullAttention_RotatesHalfOfWhatWindowsRotate) {
  StepFile file;
  DecoderConfig config = config_of(file.bytes());
  EXPECT_EQ(config.rope_fraction, 0.5);
  EXPECT_EQ(config.sliding.rope_fraction, 1.0);
  EXPECT_EQ(config.rope_base, 5e6);
  EXPECT_EQ(config.sliding.rope_base, 1e4);
  file.dimension_count = 16;
  config = config_of(file.bytes());
  EXPECT_EQ(config.rope_fraction, 0.25);
  EXPECT_EQ(config.sliding.rope_fraction, 0.5);
}

TEST_F(GgufModelTest, Step35_RopeFactors_AreOfTheRotatedFeatures) {
  const layers::RopeScaling scaling{layers::RopeScalingKind::llama3, 2.0, 1.0, 32.0, 131072};
  const auto plain = layers::rope_frequencies(kHeadDim / 2, 5e6);
  const auto scaled = layers::rope_frequencies(kHeadDim / 2, 5e6, scaling);
  StepFile file;
  for (std::size_t i = 0; i < plain.size(); ++i) file.factors.push_back(static_cast<float>(plain[i] / scaled[i]));
  file.factors.resize(kHeadDim / 2, 1.0F);
  const DecoderConfig config = config_of(file.bytes());
  EXPECT_EQ(config.rope_scaling, layers::RopeScalingKind::llama3);
  EXPECT_EQ(config.rope_factor, 2.0);
  EXPECT_EQ(config.rope_high_freq_factor, 32.0);
  EXPECT_EQ(config.rope_original_seq_len, 131072);
  file.factors[12] = 2.0F;
  expect_refused(file.bytes(), "not Llama 3's scaling of RoPE: element 12 is 2");
}

TEST_F(GgufModelTest, Step35_DenseLayers_AreThoseWithoutRouter) {
  EXPECT_EQ(config_of(StepFile().bytes()).experts.dense_layers, 2);
  StepFile file;
  file.shared_limits[1] = 4;
  expect_refused(file.bytes(), "swiglu_clamp_shexp clamps layer 1, which");
}

TEST_F(GgufModelTest, Step35_Router_IsASigmoidScaled) {
  GgufBytes bytes = StepFile().bytes();
  DecoderConfig config = config_of(bytes);
  EXPECT_EQ(config.experts.router, ExpertRouter::sigmoid);
  EXPECT_EQ(config.experts.scale, 3.0);
  EXPECT_EQ(config.experts.renormalise, Switch::off) << "as llama.cpp does without the key";
  config = config_of(bytes.value("step35.expert_weights_norm", io::GgufType::boolean, std::uint8_t{1}));
  EXPECT_EQ(config.experts.renormalise, Switch::on);
  expect_refused(bytes.u32("step35.expert_gating_func", 1), "expert_gating_func is 1; only 2 is supported");
}

}  // namespace
}  // namespace headgate::models
