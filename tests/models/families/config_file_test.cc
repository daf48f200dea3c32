// SPDX-License-Identifier: Apache-2.0
#include "models/families/config_file.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <string>

#include "models/families/saved_model.hpp"
#include "models/io/scratch.hpp"

namespace headgate::models {
namespace {

using Json = nlohmann::json;
using headgate::testing::Scratch;
using headgate::testing::small_config;

Json baseline() { return Json::parse(write_config(small_config())); }

std::string refused_config(const std::string& text) {
  try {
    parse_config("some/config.json", text);
    return "(read without complaint)";
  } catch (const io::FileError& error) {
    std::string what = error.what();
    EXPECT_TRUE(what.starts_with("some/config.json: ")) << what;
    EXPECT_EQ(what.find('\n'), std::string::npos) << what;
    return what;
  }
}

void expect_refused(const Json& config, const std::string& why) {
  const std::string what = refused_config(config.dump());
  EXPECT_NE(what.find(why), std::string::npos) << what << "\nlacks: " << why;
}

/// Sets one key of the baseline.
void expect_value_refused(const char* key, const Json& value, const std::string& why) {
  Json config = baseline();
  config[key] = value;
  expect_refused(config, why);
}

/// Sets one key of the baseline as a file of model_type headgate.
void expect_own_value_refused(const char* key, const Json& value, const std::string& why) {
  Json config = baseline();
  config["model_type"] = "headgate";
  config[key] = value;
  expect_refused(config, why);
}

DecoderConfig read_with(const char* key, const Json& value) {
  Json config = baseline();
  config[key] = value;
  return parse_config("config.json", config.dump());
}

DecoderConfig round_trip(const DecoderConfig& config) { return parse_config("config.json", write_config(config)); }

TEST(ConfigFile, Baseline_Written_IsPlainQwen3) {
  const Json json = baseline();
  EXPECT_EQ(json["model_type"], "qwen3");
  EXPECT_EQ(json["architectures"], Json::array({"Qwen3ForCausalLM"}));
  EXPECT_EQ(json["hidden_size"], 8);
  EXPECT_EQ(json["num_key_value_heads"], 2);
  EXPECT_EQ(json["tie_word_embeddings"], true);
  for (const auto& item : json.items()) {
    EXPECT_EQ(item.key().find("gate"), std::string::npos) << item.key();
  }
}

TEST(ConfigFile, Config_EveryField_RoundTrips) {
  DecoderConfig config = small_config();
  EXPECT_EQ(round_trip(config), config);
  config.norm = layers::NormKind::zero_centred;
  config.norm_eps = 1.2345678901234567e-5;
  config.norm_placement = NormPlacement::sandwich;
  config.qk_norm = QkNorm::none;
  config.embeddings = Embeddings::separate;
  config.rope_base = 1e6;
  config.rope_fraction = 0.5;
  config.init_std = 0.1;
  EXPECT_EQ(round_trip(config), config);
  for (const char* gate : {"g1-headwise", "g1-elementwise-bias", "g2-head_shared-add-silu", "g5-headwise-ns_sigmoid",
                           "g4-parameter", "g3-softplus", "head_rmsnorm", "output_silu-learned_sinks", "off_by_one"}) {
    config = small_config();
    config.gate = layers::parse_gate(gate);
    config.gate.init_std = 0.015;
    if (config.gate.bias == layers::GateBias::learned) config.gate.bias_init = 2.5;
    EXPECT_EQ(round_trip(config), config) << gate;
    EXPECT_EQ(Json::parse(write_config(config))["model_type"], "headgate") << gate;
  }
}

TEST(ConfigFile, ModelBeyondQwen3_Written_IsNotCalledQwen3) {
  EXPECT_TRUE(is_qwen3(small_config()));
  DecoderConfig config = small_config();
  config.rope_fraction = 0.5;
  EXPECT_FALSE(is_qwen3(config));
  config = small_config();
  config.head_dim = 5;  // RoPE leaves out the fifth feature
  EXPECT_FALSE(is_qwen3(config));
  config = small_config();
  config.norm_placement = NormPlacement::sandwich;
  EXPECT_FALSE(is_qwen3(config));
  expect_value_refused("gate_site", "g1", "gate_site is not a key of model_type qwen3; model_type headgate has it");
  expect_value_refused("attention_sinks", "off_by_one", "attention_sinks is not a key of model_type qwen3");
  expect_value_refused("partial_rotary_factor", 0.25,
                       "partial_rotary_factor is 0.25; model_type qwen3 rotates whole heads, so only 1 is supported");
}

TEST(ConfigFile, Config_WrittenByOtherPrograms_IsRead) {
  EXPECT_EQ(read_with("rope_scaling", nullptr), small_config());
  EXPECT_EQ(read_with("attention_dropout", 0.1), small_config());
  EXPECT_EQ(read_with("hidden_act", "swish"), small_config());
  EXPECT_EQ(read_with("id2label", {{"0", "no"}, {"1", "yes"}}), small_config());
  EXPECT_EQ(read_with("partial_rotary_factor", 1.0), small_config());
  EXPECT_EQ(read_with("layer_types", {"full_attention", "full_attention"}), small_config());
  EXPECT_EQ(read_with("transformers_version", "5.0"), small_config());
  Json config = baseline();
  config.erase("rope_theta");
  config["rope_parameters"] = {{"rope_theta", 5e5}, {"rope_type", "default"}};
  EXPECT_EQ(parse_config("config.json", config.dump()).rope_base, 5e5);
}

TEST(ConfigFile, Window_OfQwen3_IsInLastLayersIfUsed) {
  Json config = baseline();
  config["sliding_window"] = 3;
  config["max_window_layers"] = 1;
  EXPECT_EQ(parse_config("config.json", config.dump()), small_config());
  config["use_sliding_window"] = true;
  DecoderConfig expected = small_config();
  expected.window = 3;
  expected.layer_types = {LayerType::full_attention, LayerType::sliding_attention};
  EXPECT_EQ(parse_config("config.json", config.dump()), expected);
  config["max_window_layers"] = 2;
  EXPECT_EQ(parse_config("config.json", config.dump()), small_config());
  config["layer_types"] = {"full_attention", "full_attention"};
  EXPECT_EQ(parse_config("config.json", config.dump()), small_config());
  config["layer_types"] = {"sliding_attention", "full_attention"};
  config["sliding_window"] = 0;
  expect_refused(config, "sliding_window is 0 but must be from 1");
  config["sliding_window"] = nullptr;
  expect_refused(config, "layer_types has sliding_attention, but sliding_window is null");
  config["use_sliding_window"] = false;
  expect_refused(config, "layer_types has sliding_attention, but use_sliding_window is not true");
}

TEST(ConfigFile, Window_LayersAllOfFullAttention_IsNone) {
  DecoderConfig config = small_config();
  config.window = 3;
  Json json = Json::parse(write_config(config));
  ASSERT_EQ(json["model_type"], "headgate");
  EXPECT_EQ(parse_config("config.json", json.dump()), config);
  json["layer_types"] = {"full_attention", "full_attention"};
  EXPECT_EQ(parse_config("config.json", json.dump()), small_config());
}

TEST(ConfigFile, Biases_OfAttention_AreReadAndWritten) {
  DecoderConfig config = small_config();
  config.qkv_bias = QkvBias::learned;
  config.out_bias = Switch::on;
  EXPECT_EQ(read_with("attention_bias", true), config);
  const Json json = Json::parse(write_public_config(public_file(config), DType::f32));
  EXPECT_EQ(json["model_type"], "qwen3");
  EXPECT_EQ(json["attention_bias"], true);
  EXPECT_EQ(parse_config("config.json", json.dump()), config);
  Json gated = baseline();
  gated["headwise_attn_output_gate"] = gated["attention_bias"] = true;
  expect_refused(gated, "attention_bias is true; only false is supported");
}

TEST(ConfigFile, Llama_WidthThatTransformersRefuses_IsWrittenAsHeadgate) {
  DecoderConfig config = small_config();
  config.qk_norm = QkNorm::none;
  EXPECT_EQ(public_file(config).family->name, "llama");
  config.dim = 10;  // no multiple of 4 heads
  EXPECT_EQ(public_file(config).family->name, "headgate");
  config = small_config();
  config.qk_norm = QkNorm::none;
  config.init_std = 1.5;
  EXPECT_EQ(public_file(config).family->name, "headgate");
}

DecoderConfig with_rope(const Json& scaling, const char* object = "rope_scaling") {
  Json config = baseline();
  config.erase("rope_theta");
  config[object] = scaling;
  return parse_config("config.json", config.dump());
}

TEST(ConfigFile, RopeScaling_NumberThatTransformersHasADefaultFor_HasIt) {
  EXPECT_EQ(with_rope({{"rope_type", "default"}, {"type", "linear"}}), small_config());
  EXPECT_EQ(with_rope(Json::object()), small_config());
  EXPECT_EQ(with_rope({{"type", "linear"}, {"factor", 2}}).rope_scaling, layers::RopeScalingKind::linear);
  DecoderConfig yarn = with_rope({{"rope_type", "yarn"}, {"factor", 2.0}});
  EXPECT_EQ(yarn.rope_scaling, layers::RopeScalingKind::yarn);
  EXPECT_EQ(yarn.rope_original_seq_len, 16);  // max_position_embeddings
  EXPECT_EQ(yarn.rope_high_freq_factor, 32.0);
  EXPECT_EQ(yarn.rope_truncate, Switch::on);
  yarn = with_rope({{"rope_type", "yarn"},
                    {"factor", nullptr},
                    {"original_max_position_embeddings", 4},
                    {"truncate", nullptr},
                    {"beta_fast", 0},
                    {"rope_theta", 5e5}},
                   "rope_parameters");
  EXPECT_EQ(yarn.rope_factor, 4.0);
  EXPECT_EQ(yarn.rope_truncate, Switch::off);
  EXPECT_EQ(yarn.rope_high_freq_factor, 32.0);
  EXPECT_EQ(yarn.rope_base, 5e5);
  yarn = with_rope({{"rope_type", "yarn"}, {"factor", 4.0}, {"mscale", 1.0}, {"mscale_all_dim", 0.5}});
  EXPECT_NEAR(yarn.rope_attention_factor, 1.13862943611198906 / 1.06931471805599453, 1e-15);
  const DecoderConfig llama3 =
      with_rope({{"rope_type", "llama3"}, {"factor", 2.0}, {"low_freq_factor", 1}, {"high_freq_factor", 4}});
  EXPECT_EQ(llama3.rope_scaling, layers::RopeScalingKind::llama3);
  EXPECT_EQ(llama3.rope_original_seq_len, 16);
}

TEST(ConfigFile, RopeScaling_WithoutANumberOrWithOneTooMany_IsRefusedByName) {
  const auto refused = [](const Json& scaling, const std::string& why) {
    Json config = baseline();
    config["rope_scaling"] = scaling;
    expect_refused(config, why);
  };
  refused({{"rope_type", "linear"}}, "rope_scaling has no factor, which rope_type linear needs");
  refused({{"rope_type", "linear"}, {"factor", nullptr}}, "rope_scaling.factor is null, not a finite number");
  refused({{"rope_type", "linear"}, {"factor", 0.5}}, "rope_scaling.factor is 0.5 but must be a finite number from 1");
  refused({{"rope_type", "yarn"}}, "rope_scaling has no factor");
  refused({{"rope_type", "yarn"}, {"factor", 2}, {"attention_factor", 0}}, "attention_factor is 0 but must be above 0");
  refused({{"rope_type", "yarn"}, {"factor", 2}, {"truncate", 1}},
          "rope_scaling.truncate is 1, neither true nor false");
  refused({{"rope_type", "llama3"}, {"factor", 2}, {"high_freq_factor", 4}}, "rope_scaling has no low_freq_factor");
  refused({{"rope_type", "llama3"},
           {"factor", 2},
           {"low_freq_factor", 1},
           {"high_freq_factor", 4},
           {"original_max_position_embeddings", nullptr}},
          "rope_scaling.original_max_position_embeddings is null");
  refused({{"rope_type", nullptr}}, "rope_scaling.rope_type is null; only");
  refused({{"full_attention", Json::object()}}, "rope_scaling has an unknown key 'full_attention'");
  refused({{"rope_type", "linear"}, {"factor", 2}, {"mscale", 1}}, "unknown key 'mscale' for rope_type linear");
  Json config = baseline();
  config["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 2}};
  config["rope_parameters"] = {{"rope_type", "default"}};
  expect_refused(config, "rope_parameters and rope_scaling differ");
}

TEST(ConfigFile, OwnKey_NullInAPublicFile_IsLikeAMissingOne) {
  const Json scaling = {
      {"rope_type", "yarn"}, {"factor", 2.0}, {"rope_theta", 1e6}, {"truncate", false}, {"beta_fast", 16.0}};
  Json gemma = {{"model_type", "gemma3_text"}, {"rope_truncate", nullptr}};
  gemma["rope_parameters"] = {{"full_attention", {{"rope_type", "default"}, {"rope_theta", 1e6}}}};
  EXPECT_EQ(parse_config("config.json", gemma.dump()).rope_base, 1e6);
  gemma["rope_parameters"]["full_attention"] = scaling;
  expect_refused(gemma, "rope_parameters.full_attention.truncate is false; only true is supported");
  Json qwen = baseline();
  qwen.erase("rope_theta");
  qwen["rope_parameters"] = scaling;
  const DecoderConfig expected = parse_config("config.json", qwen.dump());
  for (const char* key : {"rope_truncate", "rope_scaling_type", "rope_high_freq_factor"}) qwen[key] = nullptr;
  EXPECT_EQ(parse_config("config.json", qwen.dump()), expected);
}

TEST(ConfigFile, Key_MissingInOwnFiles_IsNamed) {
  for (const char* key : {"model_type", "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads",
                          "num_key_value_heads", "head_dim", "intermediate_size", "max_position_embeddings",
                          "rms_norm_eps", "rope_theta", "tie_word_embeddings"}) {
    Json config = baseline();
    config["model_type"] = "headgate";
    config.erase(key);
    expect_refused(config, std::string(key) + " is missing");
  }
}

TEST(ConfigFile, Key_MissingInFilesOfQwen3_HasTheDefaultOfTransformers) {
  const DecoderConfig config = parse_config("config.json", R"({"model_type": "qwen3"})");
  EXPECT_EQ(config.vocab, 151936);
  EXPECT_EQ(config.dim, 4096);
  EXPECT_EQ(config.ffn, 22016);
  EXPECT_EQ(config.layers, 32);
  EXPECT_EQ(config.kv_heads, 32);
  EXPECT_EQ(config.head_dim, 128);
  EXPECT_EQ(config.seq_len, 32768);
  EXPECT_EQ(config.norm_eps, 1e-6);
  EXPECT_EQ(config.rope_base, 1e4);
  EXPECT_EQ(config.embeddings, Embeddings::separate);
}

TEST(ConfigFile, Key_UnknownOrUnsupported_IsNamed) {
  expect_value_refused("gate_sight", "g1", "unknown key 'gate_sight'");
  expect_value_refused("evil\n\x1b[2J", 1, "unknown key 'evil\\x0a\\x1b[2J'");
  expect_value_refused("mrope_section", 1, "unknown key 'mrope_section'");
  expect_value_refused("hidden_act", "gelu", "hidden_act is \"gelu\"; only \"silu\" or \"swish\" is supported");
  expect_value_refused("mlp_bias", true, "mlp_bias is true; only false");
  expect_value_refused("is_causal", false, "is_causal is false; only true");
  expect_value_refused("rope_scaling", {{"type", "longrope"}}, "type is \"longrope\"; only");
  expect_value_refused("layer_types", {"sliding_attention"}, "layer_types");
  expect_value_refused("head_dim", 7, "head_dim 7 leaves 7 features to rotate; only an even number is supported");
  expect_value_refused("rope_parameters", {{"rope_theta", 1e4}, {"rope_type", "longrope"}},
                       "rope_type is \"longrope\"; only \"default\", \"linear\", \"llama3\" and \"yarn\"");
  expect_value_refused("rope_parameters", {{"rope_theta", 1e6}}, "rope_theta has two values");
  expect_value_refused("rope_parameters", {{"factor", 2}}, "unknown key 'factor'");
  expect_value_refused("model_type", "gpt2", "model_type is 'gpt2'");
}

TEST(ConfigFile, Value_Bad_IsNamed) {
  for (const Json& value : {Json(-1), Json(0.5), Json("8"), Json(nullptr), Json(true), Json::array(), Json::object(),
                            Json(std::numeric_limits<std::uint64_t>::max()), Json(1e300)}) {
    expect_value_refused("hidden_size", value, "hidden_size is ");
  }
  expect_value_refused("hidden_size", 0, ".json: hidden_size is 0 but must be from 1 to 1048576");
  expect_own_value_refused("attention_window", -1, "attention_window is -1, not a whole number from 0 to 2^62");
  expect_value_refused("vocab_size", std::int64_t{1} << 60, ".json: vocab_size is 1152921504606846976");
  expect_value_refused("num_hidden_layers", 1000000, ".json: num_hidden_layers is 1000000");
  expect_value_refused("head_dim", 577, ".json: head_dim is 577");
  expect_value_refused("num_key_value_heads", 3,
                       ".json: num_attention_heads 4 is not a multiple of num_key_value_heads 3");
  expect_value_refused("rms_norm_eps", "x", "rms_norm_eps is \"x\", not a finite number");
  expect_value_refused("rms_norm_eps", 0, ".json: rms_norm_eps is 0 but must be a finite number above 0");
  expect_value_refused("rope_theta", -1, ".json: rope_theta is -1");
  expect_own_value_refused("partial_rotary_factor", 1.5, ".json: partial_rotary_factor is 1.5 but must be from 0 to 1");
  expect_value_refused("initializer_range", -1, ".json: initializer_range is -1 but must be a finite number from 0 on");
  expect_value_refused("intermediate_size", 1 << 21, ".json: intermediate_size is 2097152");
  expect_value_refused("max_position_embeddings", 0, ".json: max_position_embeddings is 0");
  expect_own_value_refused("gate_bias", "bias", ".json: gate_bias: a bias needs a gate");
  expect_value_refused("tie_word_embeddings", 1, "neither true nor false");
  expect_own_value_refused("gate_site", "g6", "gate_site: 'g6' is none of");
  expect_own_value_refused("gate_fn", 1, "gate_fn is 1, not a string");
  expect_own_value_refused("gate_init_std", -1, ".json: gate_init_std is -1 but must be a finite number from 0 on");
  expect_own_value_refused("norm_kind", "layer", "norm_kind: 'layer' is none of plain, zero_centred");
  expect_own_value_refused("gate_op", "mul\n", "gate_op: 'mul\\x0a' is none of");
}

TEST(ConfigFile, File_NoConfig_IsRefused) {
  for (const char* text : {"", "{", "[]", "null", "1", "{}", "{\"a\":1}}", "\xff",
                           "{\"hidden_size\":8,\"hidden_size\":9}", "{\"a\":[[[[[[0]]]]]]}"}) {
    EXPECT_NE(refused_config(text), "(read without complaint)") << text;
  }
  EXPECT_NE(refused_config("{\"hidden_size\":8,\"hidden_size\":9}").find("duplicate key 'hidden_size'"),
            std::string::npos);
  const Scratch scratch;
  headgate::testing::write_bytes(scratch / "config.json", std::string((std::size_t{1} << 20) + 1, ' '));
  EXPECT_THROW(read_config(scratch / "config.json"), io::FileError);
  EXPECT_THROW(read_config(scratch / "absent.json"), io::FileError);
}

TEST(ConfigFile, File_EveryTruncation_IsRefused) {
  const std::string whole = write_config(small_config());
  const std::size_t last = whole.rfind('}');
  for (std::size_t n = 0; n <= last; ++n)
    EXPECT_NE(refused_config(whole.substr(0, n)), "(read without complaint)") << n;
}

}  // namespace
}  // namespace headgate::models
