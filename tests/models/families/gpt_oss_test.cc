// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "models/families/config_file.hpp"
#include "models/families/model_file.hpp"
#include "models/generate/cached_decoder.hpp"
#include "models/io/mxfp4.hpp"
#include "models/io/scratch.hpp"

namespace headgate::models::gpt_oss_tests {
namespace {

using Json = nlohmann::ordered_json;
using headgate::testing::Scratch;
using headgate::testing::write_bytes;

constexpr std::int64_t kDim = 32, kFfn = 64, kExperts = 3, kVocab = 11, kLayers = 2;

Json gpt_oss_json() {
  return {{"model_type", "gpt_oss"},
          {"hidden_size", kDim},
          {"intermediate_size", kFfn},
          {"num_hidden_layers", kLayers},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 2},
          {"head_dim", 8},
          {"vocab_size", kVocab},
          {"max_position_embeddings", 64},
          {"num_local_experts", kExperts},
          {"num_experts_per_tok", 2},
          {"rms_norm_eps", 1e-5},
          {"rope_theta", 150000},
          {"rope_scaling",
           {{"rope_type", "yarn"},
            {"factor", 32.0},
            {"beta_fast", 32.0},
            {"beta_slow", 1.0},
            {"truncate", false},
            {"original_max_position_embeddings", 16}}},
          {"sliding_window", 5},
          {"swiglu_limit", 7.0},
          {"attention_bias", true},
          {"quantization_config", {{"quant_method", "mxfp4"}, {"modules_to_not_convert", {"lm_head"}}}}};
}

/// A safetensors file of any types, valid or not.
struct RawTensors {
  struct Tensor {
    std::string dtype;
    std::vector<std::int64_t> shape;
    std::string data;
  };
  std::map<std::string, Tensor> tensors;

  std::string bytes() const {
    Json header;
    std::string data;
    for (const auto& [name, tensor] : tensors) {
      const std::size_t end = data.size() + tensor.data.size();
      header[name] = {{"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {data.size(), end}}};
      data += tensor.data;
    }
    const std::string text = header.dump();
    const std::uint64_t length = text.size();
    return std::string(reinterpret_cast<const char*>(&length), sizeof(length)) + text + data;
  }
};

std::int64_t product(const std::vector<std::int64_t>& shape) {
  std::int64_t count = 1;
  for (const std::int64_t n : shape) count *= n;
  return count;
}

/// Makes the tensors of a model of random numbers, with experts in blocks or transposed.
class GptOssTest : public ::testing::Test {
 protected:
  void add_floats(const std::string& name, const std::vector<std::int64_t>& shape, float around = 0.0F) {
    std::string data;
    for (std::int64_t i = 0; i < product(shape); ++i) {
      const float x = around + std::normal_distribution<float>(0.0F, 0.2F)(random_);
      data.append(reinterpret_cast<const char*>(&x), sizeof(x));
    }
    raw.tensors[name] = {"F32", shape, data};
  }
  void add_bytes(const std::string& name, const std::vector<std::int64_t>& shape, int least, int most) {
    std::string data;
    for (std::int64_t i = 0; i < product(shape); ++i) {
      data += static_cast<char>(std::uniform_int_distribution<int>(least, most)(random_));
    }
    raw.tensors[name] = {"U8", shape, data};
  }
  void add_blocks(const std::string& name, std::vector<std::int64_t> shape) {
    shape.back() /= 32;
    add_bytes(name + "_scales", shape, 120, 125);
    shape.push_back(16);
    add_bytes(name + "_blocks", shape, 0, 255);
  }
  void add_experts(const std::string& prefix, bool packed) {
    if (packed) {
      add_blocks(prefix + "gate_up_proj", {kExperts, 2 * kFfn, kDim});
      add_blocks(prefix + "down_proj", {kExperts, kDim, kFfn});
    } else {
      add_floats(prefix + "gate_up_proj", {kExperts, kDim, 2 * kFfn});
      add_floats(prefix + "down_proj", {kExperts, kFfn, kDim});
    }
    add_floats(prefix + "gate_up_proj_bias", {kExperts, 2 * kFfn});
    add_floats(prefix + "down_proj_bias", {kExperts, kDim});
  }
  void add_model(bool packed) {
    add_floats("model.embed_tokens.weight", {kVocab, kDim});
    add_floats("model.norm.weight", {kDim}, 1.0F);
    add_floats("lm_head.weight", {kVocab, kDim});
    for (std::int64_t layer = 0; layer < kLayers; ++layer) {
      const std::string prefix = "model.layers." + std::to_string(layer) + ".";
      add_floats(prefix + "input_layernorm.weight", {kDim}, 1.0F);
      add_floats(prefix + "post_attention_layernorm.weight", {kDim}, 1.0F);
      for (const auto& [name, rows] :
           std::map<std::string, std::int64_t>{{"q", 32}, {"k", 16}, {"v", 16}, {"o", kDim}}) {
        const std::string projection = fmt::format("{}self_attn.{}_proj", prefix, name);
        add_floats(projection + ".weight", {rows, kDim});
        add_floats(projection + ".bias", {rows});
      }
      add_floats(prefix + "self_attn.sinks", {4});
      add_floats(prefix + "mlp.router.weight", {kExperts, kDim});
      add_floats(prefix + "mlp.router.bias", {kExperts});
      add_experts(prefix + "mlp.experts.", packed);
    }
  }
  ModelFile written() {
    std::filesystem::create_directories(directory);
    write_bytes(directory + "/config.json", config.dump());
    write_bytes(directory + "/model.safetensors", raw.bytes());
    return ModelFile(directory);
  }
  std::map<std::string, std::vector<float>> numbers() {
    std::map<std::string, std::vector<float>> out;
    written().read_each([&](const Parameter& p, const float* values) { out[p.name] = {values, values + p.count}; });
    return out;
  }
  void expect_refused(const std::string& why) {
    for (const bool in_place : {false, true}) {
      try {
        const ModelFile file = written();
        if (in_place) {
          const CachedDecoder decoder(file, {});
        } else {
          file.read();
        }
        ADD_FAILURE() << "read, in spite of: " << why;
      } catch (const io::FileError& error) {
        EXPECT_NE(std::string(error.what()).find(why), std::string::npos) << error.what() << "\nlacks: " << why;
        EXPECT_TRUE(std::string(error.what()).starts_with(directory)) << error.what();
      }
    }
  }
  RawTensors::Tensor& tensor(const std::string& rest) { return raw.tensors.at("model.layers.1.mlp.experts." + rest); }

  Scratch scratch;
  std::string directory = scratch / "m";
  Json config = gpt_oss_json();
  RawTensors raw;

 private:
  std::mt19937 random_{3};
};

TEST_F(GptOssTest, Config_OfTheModel_HasItsFeatures) {
  const DecoderConfig c = parse_config("config.json", config.dump());
  EXPECT_EQ(c.gate.sinks, layers::SinkKind::learned);
  EXPECT_FALSE(layers::has_gate(c.gate));
  EXPECT_EQ(c.qk_norm, QkNorm::none);
  EXPECT_EQ(c.qkv_bias, QkvBias::learned);
  EXPECT_EQ(c.out_bias, Switch::on);
  EXPECT_EQ(c.layer_types, (std::vector{LayerType::sliding_attention, LayerType::full_attention}));
  EXPECT_EQ(layer_config(c, 0).window, 5);
  EXPECT_EQ(layer_config(c, 1).window, 0);
  EXPECT_EQ(c.rope_scaling, layers::RopeScalingKind::yarn);
  EXPECT_EQ(c.rope_truncate, Switch::off);
  EXPECT_EQ(c.rope_high_freq_factor, 32.0);
  EXPECT_EQ(c.experts.count, kExperts);
  EXPECT_EQ(c.experts.ffn, kFfn);
  EXPECT_EQ(c.experts.activation, ExpertActivation::shifted_swiglu);
  EXPECT_EQ(c.experts.limits, (std::vector{7.0, 7.0}));
}

TEST_F(GptOssTest, Config_WithoutRope_HasYarnOfTheRelease) {
  for (const Json& scaling : {Json(), Json::object()}) {
    config["rope_scaling"] = scaling;
    const DecoderConfig c = parse_config("config.json", config.dump());
    EXPECT_EQ(c.rope_scaling, layers::RopeScalingKind::yarn);
    EXPECT_EQ(c.rope_factor, 32.0);
    EXPECT_EQ(c.rope_original_seq_len, 4096);
    EXPECT_EQ(c.rope_truncate, Switch::off);
  }
  config["rope_parameters"] = Json::object();
  EXPECT_EQ(parse_config("config.json", config.dump()).rope_scaling, layers::RopeScalingKind::none);
}

TEST_F(GptOssTest, Config_LayersAllOfFullAttention_HasNoWindow) {
  config["layer_types"] = {"full_attention", "full_attention"};
  const DecoderConfig c = parse_config("config.json", config.dump());
  EXPECT_EQ(layer_config(c, 0).window, 0);
  EXPECT_EQ(layer_config(c, 1).window, 0);
}

TEST_F(GptOssTest, Config_OtherThanTheModel_IsRefusedByName) {
  add_model(true);
  for (const auto& [key, value, why] : std::vector<std::tuple<std::string, Json, std::string>>{
           {"attention_bias", false, "attention_bias is false; only true"},
           {"swiglu_alpha", 2.0, "swiglu_alpha is 2.0; only 1.702"},
           {"quantization_config", {{"quant_method", "gptq"}}, "quant_method"},
           {"quantization_config", "mxfp4", "quant_method"},
           {"hidden_act", "gelu", "hidden_act is \"gelu\""},
           {"swiglu_limit", 0, "swiglu_limit is 0 but must be a finite number above 0"}}) {
    config = gpt_oss_json();
    config[key] = value;
    expect_refused(why);
  }
}

TEST_F(GptOssTest, Experts_InBlocks_AreWidenedAndTakenApart) {
  add_model(true);
  const auto found = numbers();
  const RawTensors::Tensor& blocks = tensor("gate_up_proj_blocks");
  const RawTensors::Tensor& scales = tensor("gate_up_proj_scales");
  const std::vector<float>& gate_up = found.at("model.layers.1.mlp.experts.gate_up_proj");
  const auto* codes = reinterpret_cast<const std::uint8_t*>(blocks.data.data());
  for (std::int64_t e = 0; e < kExperts; ++e) {
    for (std::int64_t row = 0; row < 2 * kFfn; ++row) {
      const std::int64_t from = e * 2 * kFfn + row;  // kDim numbers are one block
      std::vector<float> expected(32);
      io::widen_mxfp4_apart(expected.data(), codes + from * 16, static_cast<std::uint8_t>(scales.data[from]));
      const std::int64_t to = e * 2 * kFfn + (row % 2 == 0 ? row / 2 : kFfn + row / 2);
      const auto begin = gate_up.begin() + to * kDim;
      EXPECT_TRUE(std::equal(expected.begin(), expected.end(), begin)) << "expert " << e << " row " << row;
    }
  }
}

TEST_F(GptOssTest, Experts_WithoutQuantisation_AreTransposed) {
  config.erase("quantization_config");
  add_model(false);
  const auto found = numbers();
  const auto at = [&](const std::string& name, std::int64_t i) {
    float x = 0.0F;
    std::memcpy(&x, tensor(name).data.data() + i * 4, sizeof(x));
    return x;
  };
  const std::int64_t e = 2, row = 7, column = 5;
  const auto& gate_up = found.at("model.layers.1.mlp.experts.gate_up_proj");
  EXPECT_EQ(gate_up[static_cast<std::size_t>((e * 2 * kFfn + kFfn + row) * kDim + column)],
            at("gate_up_proj", (e * kDim + column) * 2 * kFfn + 2 * row + 1));
  const auto& down = found.at("model.layers.1.mlp.experts.down_proj");
  EXPECT_EQ(down[static_cast<std::size_t>((e * kDim + row) * kFfn + column)],
            at("down_proj", (e * kFfn + column) * kDim + row));
  const auto& bias = found.at("model.layers.1.mlp.experts.gate_up_proj_bias");
  EXPECT_EQ(bias[static_cast<std::size_t>(e * 2 * kFfn + row)], at("gate_up_proj_bias", e * 2 * kFfn + 2 * row));
}

TEST_F(GptOssTest, Decoder_BlocksInTheFile_HasTheLogitsOfWidenedOnes) {
  add_model(true);
  const ModelFile file = written();
  EXPECT_TRUE(file.stores_narrow_matrices());
  CachedDecoder stored(file, {.context = {.threads = 1}});
  CachedDecoder widened(file, {.weights = DType::f32, .context = {.threads = 1}});
  EXPECT_TRUE(stored.reads_in_place());
  EXPECT_LT(stored.weight_bytes(), widened.weight_bytes() / 2);
  std::vector<std::int32_t> tokens(40);
  for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<std::int32_t>(i * 7 % kVocab);
  const auto logits_of = [&](CachedDecoder& decoder) {
    std::vector<float> logits(tokens.size() * kVocab);
    std::int64_t first = 0;
    for (const std::int64_t count : {34, 1, 5}) {
      const View<float, 3> all(logits.data(), {1, std::ssize(tokens), kVocab});
      decoder.append_all(all.range(1, first, count), View<const std::int32_t, 2>(tokens.data() + first, {1, count}));
      first += count;
    }
    return logits;
  };
  EXPECT_EQ(logits_of(stored), logits_of(widened));
}

TEST_F(GptOssTest, Blocks_DamagedTensors_AreRefused) {
  const std::vector<std::pair<std::function<void()>, std::string>> trials{
      {[&] { raw.tensors.erase("model.layers.1.mlp.experts.down_proj_scales"); }, "has no 'model.layers.1.mlp"},
      {[&] {
         tensor("down_proj_scales").shape = {kExperts, 2 * kDim, 1};
       },
       "makes it (3, 32, 2) of U8"},
      {[&] { tensor("down_proj_scales").dtype = "BOOL"; }, "makes it (3, 32, 2) of U8"},
      {[&] {
         tensor("down_proj_blocks").shape = {kExperts, kDim, 4, 8};
       },
       "blocks of MXFP4 have 16 bytes"},
      {[&] {
         tensor("down_proj_blocks").shape = {kExperts * kDim, 2, 16};
       },
       "of U8"},
      {[&] {
         tensor("down_proj_blocks").shape = {kExperts, kDim, 2, 17};
       },
       "takes 3264 bytes"},
      {[&] { std::swap(tensor("down_proj_blocks"), tensor("gate_up_proj_blocks")); }, "of U8"},
      {[&] {
         tensor("down_proj_scales").data[9] = '\xFF';
         std::fill_n(tensor("down_proj_blocks").data.begin() + 9 * 16, 16, '\x77');
       },
       "a number of block 9"},
      {[&] {
         add_floats("model.layers.1.mlp.experts.down_proj", {kExperts, kFfn, kDim});
       },
       "is not one of the model's"},
      {[&] { add_bytes("model.layers.1.mlp.router.bias", {kExperts}, 0, 9); }, "not F32, F16 or BF16"},
      {[&] {
         add_bytes("model.layers.1.self_attn.q_proj.weight", {32, kDim}, 0, 9);
       },
       "not F32, F16 or BF16"}};
  for (const auto& [damage, why] : trials) {
    raw = {};
    add_model(true);
    damage();
    expect_refused(why);
  }
}

TEST_F(GptOssTest, File_Shortened_IsNoticedBeforeItIsRead) {
  add_model(true);
  CachedDecoder decoder(written(), {});
  std::filesystem::resize_file(directory + "/model.safetensors", 4096);
  std::vector<float> logits(kVocab);
  const std::int32_t token = 1;
  EXPECT_THROW(decoder.append(View<float, 2>(logits.data(), {1, kVocab}), View<const std::int32_t, 2>(&token, {1, 1})),
               io::FileError);
}

}  // namespace
}  // namespace headgate::models::gpt_oss_tests
