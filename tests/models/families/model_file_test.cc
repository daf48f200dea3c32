// SPDX-License-Identifier: Apache-2.0
#include "models/families/model_file.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "headgate/error.hpp"
#include "models/families/config_file.hpp"
#include "models/families/saved_model.hpp"
#include "models/families/tensor_file.hpp"
#include "models/generate/cached_decoder.hpp"
#include "models/io/gguf_bytes.hpp"
#include "models/io/safetensors.hpp"
#include "models/io/scratch.hpp"
#include "models/layers/rope.hpp"

namespace headgate::models {
namespace {

using Json = nlohmann::json;
using headgate::testing::GgufBytes;
using headgate::testing::read_bytes;
using headgate::testing::SavedModel;
using headgate::testing::Scratch;
using headgate::testing::small_config;
using headgate::testing::write_bytes;

/// A public family's config, without QK-norm.
DecoderConfig llama_config() {
  DecoderConfig config = small_config();
  config.qk_norm = QkNorm::none;
  return config;
}

Json json_of(const DecoderConfig& config) { return Json::parse(write_public_config({config}, DType::f32)); }

/// Writes a directory with the model's tensors and any config.json.
void write_directory(const std::string& path, const Json& json, const SavedModel& model) {
  std::filesystem::create_directories(path);
  write_bytes(path + "/config.json", json.dump());
  write_tensors(path + "/model.safetensors", model.table, {{"", model.parameters.data()}});
}

std::string refusal(const std::string& path) {
  try {
    ModelFile(path).read();
    return "(read without complaint)";
  } catch (const io::FileError& error) {
    EXPECT_TRUE(std::string(error.what()).starts_with(path)) << error.what();
    return error.what();
  }
}

void expect_refused(const std::string& path, const std::string& why) {
  const std::string what = refusal(path);
  EXPECT_NE(what.find(why), std::string::npos) << what << "\nlacks: " << why;
}

class ModelFileTest : public ::testing::Test {
 protected:
  void expect_key_refused(const Json& base, const char* key, const Json& value, const std::string& why) {
    Json json = base;
    json[key] = value;
    write_directory(scratch / "m", json, SavedModel(llama_config()));
    expect_refused(scratch / "m", why);
  }

  Scratch scratch;
};

TEST_F(ModelFileTest, PublicFamily_WrittenAndRead_KeepsItsNames) {
  DecoderConfig llama = llama_config(), mistral = llama_config(), qwen2 = llama_config();
  llama.rope_scaling = layers::RopeScalingKind::llama3;
  llama.rope_factor = 8.0;
  llama.rope_original_seq_len = 8;
  mistral.window = 5;
  qwen2.qkv_bias = QkvBias::learned;
  qwen2.rope_scaling = layers::RopeScalingKind::yarn;
  qwen2.rope_factor = 4.0;
  qwen2.rope_high_freq_factor = 24.0;
  qwen2.rope_truncate = Switch::off;
  qwen2.rope_attention_factor = 1.25;
  const std::map<std::string, DecoderConfig> configs{
      {"llama", llama}, {"mistral", mistral}, {"qwen2", qwen2}, {"qwen3", small_config()}};
  for (const auto& [name, config] : configs) {
    EXPECT_EQ(json_of(config)["model_type"], name);
    const SavedModel model(config);
    write_model(scratch / name, {config}, model.parameters, DType::f32);
    const ModelFile file(scratch / name);
    EXPECT_EQ(file.family().name, name);
    EXPECT_EQ(file.config(), config) << name;
    EXPECT_EQ(file.read(), model.parameters) << name;
  }
  DecoderConfig both = mistral;
  both.qkv_bias = QkvBias::learned;
  EXPECT_EQ(json_of(both)["model_type"], "headgate");
  EXPECT_EQ(parse_config("config.json", json_of(both).dump()), both);
}

TEST_F(ModelFileTest, Key_Missing_HasTheDefaultOfTheFamily) {
  Json json = json_of(llama_config());
  for (const char* key : {"num_key_value_heads", "head_dim", "rms_norm_eps", "rope_theta", "tie_word_embeddings"}) {
    json.erase(key);
  }
  const DecoderConfig config = parse_config("config.json", json.dump());
  EXPECT_EQ(config.kv_heads, config.heads);
  EXPECT_EQ(config.head_dim, config.dim / config.heads);
  EXPECT_EQ(config.norm_eps, 1e-6);
  EXPECT_EQ(config.rope_base, 10000.0);
  EXPECT_EQ(config.embeddings, Embeddings::separate);
  json["model_type"] = "mistral";
  json["num_key_value_heads"] = 2;
  EXPECT_EQ(parse_config("config.json", json.dump()).window, 4096);
  json["sliding_window"] = nullptr;
  EXPECT_EQ(parse_config("config.json", json.dump()).window, 0);
}

TEST_F(ModelFileTest, TiedEmbeddings_WithAnotherHead_UseIt) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    DecoderConfig separate = llama_config();
    separate.embeddings = Embeddings::separate;
    SavedModel model(separate);
    const auto tie = [&] {
      Json json = Json::parse(read_bytes(scratch / "m/config.json"));
      json["tie_word_embeddings"] = true;
      write_bytes(scratch / "m/config.json", json.dump());
      return ModelFile(scratch / "m");
    };
    write_model(scratch / "m", {separate}, model.parameters, dtype);
    EXPECT_EQ(tie().config(), separate);
    EXPECT_EQ(tie().read().size(), model.parameters.size());
    const Parameter &table = *model.table.find("model.embed_tokens.weight"),
                    &head = *model.table.find("lm_head.weight");
    std::copy_n(model.parameters.begin() + table.offset, table.count, model.parameters.begin() + head.offset);
    write_model(scratch / "m", {separate}, model.parameters, dtype);
    EXPECT_EQ(tie().config(), llama_config());
  }
}

TEST_F(ModelFileTest, Feature_NotSupported_IsRefusedByName) {
  const Json llama = json_of(llama_config());
  expect_key_refused(llama, "mlp_bias", true, "mlp_bias is true");
  expect_key_refused(llama, "hidden_act", "gelu", "hidden_act is \"gelu\"; only \"silu\"");
  expect_key_refused(llama, "rope_scaling", {{"rope_type", "dynamic"}, {"factor", 2.0}},
                     "rope_type is \"dynamic\"; only");
  expect_key_refused(llama, "rope_scaling",
                     {{"rope_type", "yarn"}, {"original_max_position_embeddings", 8}, {"low_freq_factor", 2.0}},
                     "unknown key 'low_freq_factor'");
  expect_key_refused(llama, "rope_interleaved", true, "rope_interleaved is true");
  expect_key_refused(llama, "quantization_config", {{"bits", 4}}, "unknown key 'quantization_config'");
  expect_key_refused(llama, "num_local_experts", 8, "unknown key 'num_local_experts'");
  expect_key_refused(llama, "gate_site", "g1", "gate_site is not a key of model_type llama");
  expect_key_refused(llama, "model_type", "mixtral", "model_type is 'mixtral', not one of llama, mistral");
  expect_key_refused(
      llama, "model_type", "mixtral",
      "; `python -m headgate xray MODEL --text FILE` loads others by transformers, with --tokens, --name, "
      "--out and --json-out alone");
  expect_key_refused(llama, "use_sliding_window", true, "use_sliding_window is true");
  expect_key_refused(llama, "layer_types", {"full_attention"}, "layer_types is not a key of model_type llama");
  expect_key_refused(llama, "rope_scaling_factor", 2.0, "rope_scaling_factor is not a key of model_type llama");
  expect_key_refused(json_of(small_config()), "qkv_bias", true, "qkv_bias");
}

TEST_F(ModelFileTest, FamilyOfMixedLayers_KeyThatItLacks_IsRefusedByName) {
  const auto of_type = [](const char* type) {
    Json json = json_of(llama_config());
    json["model_type"] = type;
    return json;
  };
  const Json qwen = of_type("qwen3_5_text");
  expect_key_refused(qwen, "gate_site", "g2", "gate_site is not a key of model_type qwen3_5_text");
  expect_key_refused(qwen, "norm_placement", "post", "norm_placement is not a key of model_type qwen3_5_text");
  expect_key_refused(qwen, "attention_window", 4, "attention_window is not a key of model_type qwen3_5_text");
  expect_key_refused(qwen, "attn_output_gate", false, "attn_output_gate is false; only true is supported");
  expect_key_refused(qwen, "layer_types", {"mamba"}, "layer_types: 'mamba' is none of full_attention");
  expect_key_refused(qwen, "layer_types", {"full_attention", "linear_attention", "linear_attention"},
                     "layer_types has 3 elements, not one for each of 2 layers");
  expect_key_refused(qwen, "linear_num_value_heads", 24, "linear_num_value_heads 24 is not a multiple of");
  expect_key_refused(of_type("qwen3_5_moe_text"), "num_experts_per_tok", 257, "num_experts_per_tok is 257, not from 1");
  expect_key_refused(of_type("qwen3_next"), "mlp_only_layers", {0}, "mlp_only_layers is [0]; only [] is supported");
  expect_key_refused(qwen, "route_scale", 2.0, "route_scale is not a key of model_type qwen3_5_text");
  expect_key_refused(qwen, "full_attention_interval", 0, "full_attention_interval is 0 but must be above 0");
  const Json step = of_type("step3p5");
  expect_key_refused(step, "moe_layers_enum", "0", "layer 1 has no experts, but layer 0 has");
  expect_key_refused(step, "moe_layers_enum", " 0 ,, ", "layer 1 has no experts, but layer 0 has");
  for (const Json& value : {Json(2), Json(true), Json("0,x"), Json("0 1"), Json("-1"), Json("99999999999999999999")}) {
    expect_key_refused(step, "moe_layers_enum", value, "moe_layers_enum is " + value.dump() + ", not a list of layers");
  }
  expect_key_refused(step, "rope_theta", {1e4, 5e4},
                     "rope_theta: layer 1 has 50000.0, but an earlier layer of its type");
  expect_key_refused(step, "partial_rotary_factors", {0.5, 1.0}, "partial_rotary_factors: layer 1 has 1.0, but an");
  Json gemma = of_type("gemma3_text");
  gemma["hidden_act"] = "gelu_pytorch_tanh";
  expect_key_refused(gemma, "final_logit_softcapping", 30.0, "final_logit_softcapping is 30.0; only null");
  expect_key_refused(gemma, "rope_parameters", {{"rope_type", "default"}},
                     "rope_parameters.rope_type is neither full_attention nor sliding_attention");
  expect_key_refused(gemma, "rope_scaling", {{"type", "linear"}, {"factor", 8}}, "rope_scaling has no rope_type");
  expect_key_refused(gemma, "sliding_window", nullptr, "sliding_window is null, but layer_types has sliding_attention");
  const Json outer = {{"model_type", "qwen3_5"}, {"text_config", qwen}};
  expect_key_refused(outer, "quantization_config", {{"bits", 4}}, "unknown key 'quantization_config'");
}

TEST_F(ModelFileTest, Shards_WithAnIndex_AreRead) {
  const SavedModel model(llama_config());
  write_directory(scratch / "m", json_of(llama_config()), model);
  std::filesystem::remove(scratch / "m/model.safetensors");
  Json map;
  for (int shard = 0; shard < 2; ++shard) {
    const std::string name = "part-" + std::to_string(shard) + ".safetensors";
    std::vector<io::TensorSource> tensors;
    for (std::size_t i = 0; i < model.table.entries().size(); ++i) {
      if (static_cast<int>(i % 2) != shard) continue;
      const Parameter& p = model.table.entries()[i];
      tensors.push_back({p.name, DType::f32, p.shape, model.parameters.data() + p.offset});
      map[p.name] = name;
    }
    io::write_safetensors(scratch / ("m/" + name), tensors);
  }
  const std::string index = scratch / "m/model.safetensors.index.json";
  write_bytes(index, Json{{"metadata", Json::object()}, {"weight_map", map}}.dump());
  EXPECT_EQ(ModelFile(scratch / "m").read(), model.parameters);

  const auto expect_map_refused = [&](const char* tensor, const Json& file, const std::string& why) {
    Json changed = map;
    changed[tensor] = file;
    write_bytes(index, Json{{"weight_map", changed}}.dump());
    expect_refused(scratch / "m", why);
  };
  const char* const no_name = "not the name of a .safetensors file in this directory";
  expect_map_refused("model.norm.weight", "../x.safetensors", no_name);
  expect_map_refused("model.norm.weight", "config.json", no_name);
  expect_map_refused("model.norm.weight", std::string("part\0.safetensors", 17),
                     std::string("'part\\x00.safetensors', ") + no_name);
  expect_map_refused("model.norm.weight", 1, "is not a string");
  expect_map_refused("model.norm.weight", "none.safetensors", "cannot open");
  expect_map_refused("other", "part-0.safetensors", "tensor 'other' is missing");
  write_bytes(index, "{}");
  expect_refused(scratch / "m", "no weight_map");
}

TEST_F(ModelFileTest, Numbers_SavedIn16Bits_AreRoundedOnce) {
  SavedModel model(llama_config());
  for (float& x : model.parameters) x /= 3.0F;
  for (const DType dtype : {DType::bf16, DType::f16}) {
    write_model(scratch / "m", {model.config}, model.parameters, dtype);
    const std::vector<float> back = ModelFile(scratch / "m").read();
    for (std::size_t i = 0; i < back.size(); ++i) {
      EXPECT_NEAR(back[i], model.parameters[i], std::abs(model.parameters[i]) / (dtype == DType::bf16 ? 256 : 2048));
    }
  }
  model.parameters[0] = 1e6F;
  EXPECT_THROW(write_model(scratch / "n", {model.config}, model.parameters, DType::f16), Error);
  EXPECT_FALSE(std::filesystem::exists(scratch / "n"));
}

TEST_F(ModelFileTest, TokenizerFiles_ModelSaved_AreCopied) {
  const SavedModel model(llama_config());
  std::filesystem::create_directory(scratch / "from");
  write_bytes(scratch / "from/tokenizer.json", "{\"model\": {}}");
  write_bytes(scratch / "from/generation_config.json", "{\"eos_token_id\": 2}");
  write_bytes(scratch / "from/notes.txt", "not of the tokenizer");
  for (int time = 0; time < 2; ++time) {  // the second time replaces a directory that holds them
    write_model(scratch / "m", {model.config}, model.parameters, DType::f32, read_text_files(scratch / "from"));
    EXPECT_EQ(read_bytes(scratch / "m/tokenizer.json"), "{\"model\": {}}");
    EXPECT_EQ(read_bytes(scratch / "m/generation_config.json"), "{\"eos_token_id\": 2}");
    EXPECT_FALSE(std::filesystem::exists(scratch / "m/notes.txt"));
    EXPECT_EQ(ModelFile(scratch / "m").read(), model.parameters);
  }
  EXPECT_THROW(write_model(scratch / "m", {model.config}, model.parameters, DType::f32), io::FileError)
      << "would lose the tokenizer";
  EXPECT_EQ(read_bytes(scratch / "m/tokenizer.json"), "{\"model\": {}}");
}

TEST_F(ModelFileTest, TextFile_IsADevice_IsRefused) {
  std::filesystem::create_directory(scratch / "from");
  for (const char* device : {"/dev/zero", "/dev/null"}) {
    std::filesystem::remove(scratch / "from/chat_template.jinja");
    std::filesystem::create_symlink(device, scratch / "from/chat_template.jinja");
    EXPECT_THROW(read_text_files(scratch / "from"), io::FileError) << device;
  }
}

// --- layouts of a fused gate -------------------------------------------------------------------------------------

DecoderConfig gated_config(const char* gate) {
  DecoderConfig config = small_config();
  config.gate = layers::parse_gate(gate);
  return config;
}

TEST_F(ModelFileTest, FusedGate_RowsByHand_AreRead) {
  DecoderConfig config = gated_config("headwise");  // 4 heads in 2 groups
  config.head_dim = 2;
  using Rows = std::vector<std::int64_t>;
  EXPECT_EQ(fused_rows(GateLayout::per_query_head, config).q, (Rows{0, 1, 3, 4, 6, 7, 9, 10}));
  EXPECT_EQ(fused_rows(GateLayout::per_query_head, config).gate, (Rows{2, 5, 8, 11}));
  EXPECT_EQ(fused_rows(GateLayout::per_group, config).q, (Rows{0, 1, 2, 3, 6, 7, 8, 9}));
  EXPECT_EQ(fused_rows(GateLayout::per_group, config).gate, (Rows{4, 5, 10, 11}));
  EXPECT_EQ(fused_rows(GateLayout::trailing, config).q, (Rows{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(fused_rows(GateLayout::trailing, config).gate, (Rows{8, 9, 10, 11}));
  config.gate.grain = layers::GateGrain::elementwise;
  EXPECT_EQ(fused_rows(GateLayout::per_group, config).gate, (Rows{4, 5, 6, 7, 12, 13, 14, 15}));
  config.kv_heads = 4;  // groups of one head
  EXPECT_EQ(fused_rows(GateLayout::per_group, config).q, fused_rows(GateLayout::per_query_head, config).q);
}

TEST_F(ModelFileTest, Model_EveryLayout_RoundTrips) {
  for (const char* gate : {"headwise", "elementwise", "g4-elementwise", "head_shared"}) {
    const SavedModel model(gated_config(gate));
    for (const auto& word : Words<GateLayout>::kAll) {
      write_model(scratch / "m", {model.config, word.value}, model.parameters, DType::f32);
      const ModelFile file(scratch / "m");
      EXPECT_EQ(file.layout(), word.value);
      EXPECT_EQ(file.config(), model.config);
      EXPECT_EQ(file.read(), model.parameters) << gate << ' ' << word.word;
    }
  }
  const SavedModel v_gate(gated_config("g2-headwise"));
  EXPECT_THROW(write_model(scratch / "n", {v_gate.config, GateLayout::per_group}, v_gate.parameters, DType::f32),
               Error);
}

/// Combines a Qwen3 with the research models' key with tensors of a layout.
TEST_F(ModelFileTest, ResearchModel_GateAfterEachGroup_IsRead) {
  const std::map<std::string, std::string> keys{{"headwise", "headwise_attn_output_gate"},
                                                {"elementwise", "elementwise_attn_output_gate"}};
  for (const auto& [gate, key] : keys) {
    const SavedModel model(gated_config(gate.c_str()));
    write_model(scratch / "m", {model.config, GateLayout::per_group}, model.parameters, DType::f32);
    Json json = Json::parse(write_config(small_config()));
    json[key] = true;
    json["use_qk_norm"] = true;
    json["qkv_bias"] = false;
    write_bytes(scratch / "m/config.json", json.dump());
    const ModelFile file(scratch / "m");
    EXPECT_EQ(file.family().name, "qwen3");
    EXPECT_EQ(file.layout(), GateLayout::per_group);
    EXPECT_EQ(file.config(), model.config);
    EXPECT_EQ(file.read(), model.parameters);
    // With the other key, the file's rows are of one grain and the config's of another.
    json[key] = false;
    const bool headwise = gate == "headwise";
    json[headwise ? "elementwise_attn_output_gate" : "headwise_attn_output_gate"] = true;
    write_bytes(scratch / "m/config.json", json.dump());
    expect_refused(scratch / "m", headwise
                                      ? "the rows of layout per_group with a headwise gate; by the config they are "
                                        "(32, 8), layout per_group with an elementwise gate"
                                      : "the rows of layout per_group with an elementwise gate; by the config "
                                        "they are (20, 8), layout per_group with a headwise gate");
    // Has no gate at all.
    json[headwise ? "elementwise_attn_output_gate" : "headwise_attn_output_gate"] = false;
    write_bytes(scratch / "m/config.json", json.dump());
    expect_refused(scratch / "m", "by the config they are (16, 8), layout separate");
    // Has a separate gate under a fused config.
    write_model(scratch / "m", {model.config}, model.parameters, DType::f32);
    json[key] = true;
    write_bytes(scratch / "m/config.json", json.dump());
    expect_refused(scratch / "m", "the rows of layout separate; by the config they are");
    json["headwise_attn_output_gate"] = json["elementwise_attn_output_gate"] = true;
    write_bytes(scratch / "m/config.json", json.dump());
    expect_refused(scratch / "m", "are both true");
  }
}

// --- GGUF --------------------------------------------------------------------------------------------------------

struct GgufModel {
  explicit GgufModel(const std::string& architecture_in, const DecoderConfig& config)
      : architecture(architecture_in), model(config) {
    out.string("general.architecture", architecture);
    u32("block_count", config.layers);
    u32("context_length", config.seq_len);
    u32("embedding_length", config.dim);
    u32("feed_forward_length", config.ffn);
    u32("attention.head_count", config.heads);
    u32("attention.head_count_kv", config.kv_heads);
    u32("attention.key_length", config.head_dim);
    u32("rope.dimension_count", config.head_dim);
    out.f32(architecture + ".rope.freq_base", static_cast<float>(config.rope_base));
    out.f32(architecture + ".attention.layer_norm_rms_epsilon", 0.25F);
  }
  void u32(const std::string& key, std::int64_t value) {
    out.u32(architecture + "." + key, static_cast<std::uint32_t>(value));
  }
  /// llama: feature i + p·D/2 of each head of q and k becomes row 2i + p.
  void tensors() {
    const std::map<std::string, std::string> names{
        {"input_layernorm", "attn_norm"},    {"self_attn.q_proj", "attn_q"},
        {"self_attn.k_proj", "attn_k"},      {"self_attn.v_proj", "attn_v"},
        {"self_attn.q_norm", "attn_q_norm"}, {"self_attn.k_norm", "attn_k_norm"},
        {"self_attn.o_proj", "attn_output"}, {"post_attention_layernorm", "ffn_norm"},
        {"mlp.gate_proj", "ffn_gate"},       {"mlp.up_proj", "ffn_up"},
        {"mlp.down_proj", "ffn_down"}};
    for (const Parameter& p : model.table.entries()) {
      std::vector<float> values(model.parameters.begin() + p.offset, model.parameters.begin() + p.offset + p.count);
      std::string name = p.name;
      if (name == "model.embed_tokens.weight") name = "token_embd.weight";
      if (name == "model.norm.weight") name = "output_norm.weight";
      if (name == "lm_head.weight") name = "output.weight";
      for (const auto& [ours, theirs] : names) {
        const auto at = name.find("." + ours + ".");
        if (at == std::string::npos) continue;
        name = fmt::format("blk.{}.{}{}", name.substr(13, at - 13), theirs, name.substr(at + ours.size() + 1));
        const bool turned = ours == "self_attn.q_proj" || ours == "self_attn.k_proj";
        if (architecture == "llama" && turned && p.shape.size() == 2) values = in_pairs(values, p.shape);
      }
      out.f32_tensor(name, p.shape, values);
    }
  }
  std::vector<float> in_pairs(const std::vector<float>& values, const std::vector<std::int64_t>& shape) const {
    const std::int64_t D = model.config.head_dim;
    std::vector<float> turned(values.size());
    for (std::int64_t r = 0; r < shape[0]; ++r) {
      const std::int64_t i = r % D % (D / 2), p = r % D / (D / 2), to = r - r % D + 2 * i + p;
      for (std::int64_t c = 0; c < shape[1]; ++c) {
        turned[static_cast<std::size_t>(to * shape[1] + c)] = values[static_cast<std::size_t>(r * shape[1] + c)];
      }
    }
    return turned;
  }

  std::string architecture;
  SavedModel model;
  GgufBytes out;
};

DecoderConfig of_gguf(DecoderConfig config) {
  config.norm_eps = 0.25;
  return config;
}

TEST_F(ModelFileTest, Gguf_EachArchitecture_IsRead) {
  DecoderConfig qwen2 = of_gguf(llama_config()), separate = of_gguf(llama_config());
  qwen2.qkv_bias = QkvBias::learned;
  separate.embeddings = Embeddings::separate;
  const std::vector<std::pair<std::string, DecoderConfig>> all{
      {"llama", of_gguf(llama_config())}, {"llama", separate}, {"qwen2", qwen2}, {"qwen3", of_gguf(small_config())}};
  for (const auto& [architecture, config] : all) {
    GgufModel gguf(architecture, config);
    gguf.tensors();
    write_bytes(scratch / "m.gguf", gguf.out.bytes());
    ASSERT_TRUE(is_gguf(scratch / "m.gguf"));
    const ModelFile file(scratch / "m.gguf");
    EXPECT_EQ(file.family().name, architecture);
    EXPECT_EQ(file.config(), config);
    EXPECT_EQ(file.read(), gguf.model.parameters) << architecture;
    EXPECT_NE(file.gguf(), nullptr);
  }
}

TEST_F(ModelFileTest, Gguf_RopeFactors_AreThoseOfLlama) {
  DecoderConfig config = of_gguf(llama_config());
  config.rope_base = 500000.0;
  config.head_dim = 8;
  const auto written = [&](std::vector<float> factors) {
    GgufModel gguf("llama", config);
    gguf.tensors();
    gguf.out.f32_tensor("rope_freqs.weight", {static_cast<std::int64_t>(factors.size())}, factors);
    write_bytes(scratch / "m.gguf", gguf.out.bytes());
  };
  const auto plain = layers::rope_frequencies(8, 500000.0);
  const auto scaled = layers::rope_frequencies(8, 500000.0, {layers::RopeScalingKind::llama3, 32.0});
  std::vector<float> factors;
  for (std::size_t i = 0; i < 4; ++i) factors.push_back(static_cast<float>(plain[i] / scaled[i]));
  written(factors);
  const ModelFile file(scratch / "m.gguf");
  EXPECT_EQ(file.config().rope_scaling, layers::RopeScalingKind::llama3);
  EXPECT_EQ(file.config().rope_factor, 32.0);
  factors[1] *= 1.01F;
  written(factors);
  expect_refused(scratch / "m.gguf", "not Llama 3's scaling of RoPE: element 1");
  written({1.0F});
  expect_refused(scratch / "m.gguf", "does not have one number for each pair of 8 features");
}

TEST_F(ModelFileTest, Gguf_FeatureNotSupported_IsRefusedByName) {
  const auto expect_with = [&](const auto& change, const std::string& why) {
    GgufModel gguf("llama", of_gguf(llama_config()));
    change(gguf);
    gguf.tensors();
    write_bytes(scratch / "m.gguf", gguf.out.bytes());
    expect_refused(scratch / "m.gguf", why);
  };
  expect_with([](GgufModel& m) { m.u32("expert_count", 8); }, "llama.expert_count is 8; only 0 is supported");
  expect_with([](GgufModel& m) { m.u32("attention.value_length", 2); }, "attention.value_length is 2; only 4");
  expect_with([](GgufModel& m) { m.out.f32("llama.logit_scale", 2.0F); }, "llama.logit_scale is not supported");
  expect_with([](GgufModel& m) { m.out.string("llama.rope.scaling.type", "longrope"); }, "scaling.type is 'longrope'");
  expect_with([](GgufModel& m) { m.out.f32_tensor("extra", {1}, {1.0F}); }, "tensor 'extra' is not one of the model's");
  GgufBytes other;
  other.string("general.architecture", "gemma");
  write_bytes(scratch / "m.gguf", other.bytes());
  expect_refused(scratch / "m.gguf", "general.architecture is 'gemma', not one of llama, qwen2, qwen3");
  GgufModel empty("llama", of_gguf(llama_config()));
  write_bytes(scratch / "m.gguf", empty.out.bytes());
  expect_refused(scratch / "m.gguf", "tensor 'token_embd.weight' is missing");
  GgufModel huge("llama", of_gguf(llama_config()));
  huge.u32("x", 1);
  write_bytes(scratch / "m.gguf", huge.out.bytes());
  EXPECT_THROW(ModelFile(scratch / "m.gguf"), io::FileError);
}

/// Reads SmolLM2, if scripts/real_model.sh has downloaded it.
TEST(RealModel, SmolLm2_Downloaded_IsRead) {
  const char* path = HEADGATE_REAL_MODEL;
  if (!std::filesystem::exists(path)) GTEST_SKIP() << path << " is missing";
  const ModelFile file(path);
  const DecoderConfig& c = file.config();
  EXPECT_EQ(file.family().name, "llama");
  EXPECT_EQ(c.vocab, 49152);
  EXPECT_EQ(c.dim, 576);
  EXPECT_EQ(c.layers, 30);
  EXPECT_EQ(c.heads, 9);
  EXPECT_EQ(c.kv_heads, 3);
  EXPECT_EQ(c.head_dim, 64);
  EXPECT_EQ(c.rope_base, 100000.0);
  EXPECT_EQ(c.embeddings, Embeddings::tied);
  EXPECT_EQ(file.read().size(), 134515008U);
  EXPECT_EQ(file.gguf()->strings("tokenizer.ggml.tokens").size(), 49152U);
}

/// Compares a decoder that reads a file tensor by tensor with one that is given the numbers.
TEST(ModelFile, CachedDecoder_OfAModelFile_EqualsThatOfItsNumbers) {
  const Scratch scratch;
  for (const char* gate : {"none", "g1-elementwise-bias"}) {
    DecoderConfig config = small_config();
    config.gate = layers::parse_gate(gate);
    SavedModel model(config);
    initialise(model.parameters.data(), model.table, config, 3);
    write_model(scratch / gate, {config}, model.parameters, DType::f32);
    const ModelFile file(scratch / gate);
    const std::vector<std::int32_t> tokens{3, 1, 12, 0, 5};
    for (const DType weights : {DType::f32, DType::bf16}) {
      CachedDecoder of_file(file, {.weights = weights});
      CachedDecoder of_numbers(config, model.parameters.data(), {.weights = weights});
      std::vector<float> logits(13), expected(13);
      of_file.append(view_of(logits, 1, 13), view_of(tokens, 1, 5));
      of_numbers.append(view_of(expected, 1, 13), view_of(tokens, 1, 5));
      EXPECT_EQ(logits, expected) << gate;
      EXPECT_NE(logits, std::vector<float>(13, logits.front())) << gate;
      EXPECT_EQ(of_file.weight_bytes(), of_numbers.weight_bytes());
    }
  }
}

}  // namespace
}  // namespace headgate::models
