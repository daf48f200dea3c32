// SPDX-License-Identifier: Apache-2.0
#include "models/io/gguf_keys.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "models/families/family.hpp"
#include "models/families/gguf_model.hpp"
#include "models/io/gguf_bytes.hpp"
#include "models/io/scratch.hpp"
#include "models/tokenize/gguf_file.hpp"
#include "models/tokenize/gguf_vocabulary.hpp"

// Sets each key that llama.cpp knows, one at a time, to values of every type: it changes what is read, or is refused by
// name, or stands in kHarmlessGgufKeys. gguf_keys.txt lists the keys: those of PyPI's `gguf` 0.19.0, which
// gguf_keys_test.py compares, and those that llama.cpp's src/llama-arch.cpp has beside them.

namespace headgate::models {
namespace {

using headgate::testing::GgufBytes;
using headgate::testing::MemoryFile;
using headgate::testing::Scratch;
using headgate::testing::write_bytes;
using io::GgufType;

/// The bytes of a value after its key.
struct Value {
  GgufType type;
  std::string bytes;
};
using Values = std::map<std::string, Value>;

Value u32(std::uint32_t number) { return {GgufType::u32, GgufBytes::raw(number)}; }
Value f32(float number) { return {GgufType::f32, GgufBytes::raw(number)}; }
Value boolean(bool value) { return {GgufType::boolean, GgufBytes::raw(static_cast<std::uint8_t>(value ? 1 : 0))}; }
Value string(std::string_view text) { return {GgufType::string, GgufBytes::text(text)}; }

template <typename T>
Value list(GgufType of, const std::vector<T>& elements) {
  std::string bytes = GgufBytes::raw(of) + GgufBytes::raw<std::uint64_t>(elements.size());
  for (const T& element : elements) bytes += GgufBytes::raw(element);
  return {GgufType::list, bytes};
}

Value strings(const std::vector<std::string>& elements) {
  std::string bytes = GgufBytes::raw(GgufType::string) + GgufBytes::raw<std::uint64_t>(elements.size());
  for (const std::string& element : elements) bytes += GgufBytes::text(element);
  return {GgufType::list, bytes};
}

constexpr std::size_t kKeyedLayers = 5;

/// Values of a type, of which at least one differs from what any file has.
std::vector<std::vector<Value>> odd_values() {
  return {{u32(7), u32(3), u32(2)},
          {f32(0.375F), f32(2.5F)},
          {boolean(false), boolean(true)},
          {string("odd"), string("yarn")},
          {list<std::uint32_t>(GgufType::u32, std::vector<std::uint32_t>(kKeyedLayers + 1, 7))},
          {list<float>(GgufType::f32, std::vector<float>(kKeyedLayers + 1, 0.375F))},
          {list<std::uint8_t>(GgufType::boolean, {1, 0, 1, 1, 0, 0}),
           list<std::uint8_t>(GgufType::boolean, {0, 1, 1, 0, 0, 0})},
          {strings({"a", "b"})}};
}

std::string file_bytes(const Values& values) {
  GgufBytes out;
  for (const auto& [key, value] : values) out.raw_value(key, value.type, value.bytes);
  out.f32_tensor("token_embd.weight", {1, 1}, {1.0F});
  for (std::size_t layer = 2; layer <= kKeyedLayers; ++layer) {
    out.f32_tensor("blk." + std::to_string(layer) + ".ffn_gate_inp.weight", {1}, {1.0F});
  }
  return out.bytes();
}

/// The values of a small file of an architecture.
Values base_values(const std::string& arch) {
  std::map<std::string, Value> own{{"block_count", u32(kKeyedLayers)},
                                   {"context_length", u32(64)},
                                   {"embedding_length", u32(16)},
                                   {"feed_forward_length", u32(24)},
                                   {"attention.head_count", u32(8)},
                                   {"attention.head_count_kv", u32(4)},
                                   {"attention.key_length", u32(32)},
                                   {"attention.value_length", u32(32)},
                                   {"attention.layer_norm_rms_epsilon", f32(0.25F)},
                                   {"rope.freq_base", f32(5e6F)}};
  const bool hybrid = arch.starts_with("qwen3n") || arch.starts_with("qwen35"), step = arch == "step35";
  if (arch == "gemma3" || arch == "gpt-oss" || arch == "afmoe" || step) own["attention.sliding_window"] = u32(9);
  if (arch == "gpt-oss" || arch == "afmoe" || arch == "qwen3next" || arch == "qwen35moe" || step) {
    own["expert_count"] = u32(6);
    own["expert_used_count"] = u32(4);
    own["expert_feed_forward_length"] = u32(10);
  }
  if (arch == "afmoe") own["expert_shared_count"] = u32(1);
  if (hybrid) {
    own["ssm.conv_kernel"] = u32(4);
    own["ssm.state_size"] = u32(8);
    own["ssm.group_count"] = u32(2);
    own["ssm.time_step_rank"] = u32(4);
    own["ssm.inner_size"] = u32(32);
    own["rope.dimension_count"] = u32(8);
  }
  if (step) {
    own["block_count"] = u32(kKeyedLayers + 1);
    own["nextn_predict_layers"] = u32(1);
    own["expert_shared_feed_forward_length"] = u32(12);
    own["attention.head_count"] = list<std::uint32_t>(GgufType::u32, {8, 12, 12, 12, 8, 12});
    own["attention.sliding_window_pattern"] = list<std::uint8_t>(GgufType::boolean, {0, 1, 1, 1, 0, 1});
  }
  Values out{{"general.architecture", string(arch)}};
  for (auto& [key, value] : own) out.emplace(fmt::format("{}.{}", arch, key), std::move(value));
  return out;
}

/// Returns the keys of gguf_keys.txt that begin so, with the architecture in place.
std::vector<std::string> known_keys(std::string_view begin, const std::string& arch = "") {
  std::ifstream file(HEADGATE_GGUF_KEYS);
  std::vector<std::string> out;
  constexpr std::string_view kPlace = "{arch}";
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(kPlace)) line.replace(0, kPlace.size(), arch.empty() ? "?" : arch);
    if (line.starts_with(begin)) out.push_back(line);
  }
  return out;
}

/// Reads a file, and returns whether it means something else than the file without the key.
using Differs = std::function<bool(const io::GgufFile&)>;

/// Returns whether a message names a key, or another key of its kind that contradicts it.
bool is_named(const std::string& message, const std::string& key) {
  const std::size_t dot = key.find('.') + 1;
  const bool limit = key.find("swiglu_clamp_shexp") != std::string::npos &&
                     message.find("a limit of the shared expert") != std::string::npos;
  return limit || message.find(key.substr(dot)) != std::string::npos ||
         message.find(": " + key.substr(0, dot)) != std::string::npos;
}

/// Sets each key to each value. `kind`: the architecture or the model of the tokenizer.
void walk(const Values& base, const std::vector<std::string>& keys, const std::string& kind, const Differs& differs) {
  ASSERT_FALSE(keys.empty());
  const MemoryFile memory;
  for (const std::string& key : keys) {
    bool unknown = false;  // whatever the value
    for (const std::vector<Value>& values : odd_values()) {
      if (unknown) break;
      bool matters = false;
      for (const Value& value : values) {
        Values changed = base;
        changed[key] = value;
        memory.write(file_bytes(changed));
        try {
          const io::GgufFile file(memory.path());
          matters = differs(file) || matters;
        } catch (const io::FileError& error) {
          EXPECT_TRUE(is_named(error.what(), key)) << key << " is not named: " << error.what();
          matters = true;
          unknown = unknown || std::string_view(error.what()).ends_with(key + " is not supported");
        }
      }
      EXPECT_TRUE(matters || io::is_harmless_gguf_key(key, kind))
          << kind << ": " << key << " is dropped in silence as a " << io::gguf_type_name(values.front().type);
    }
  }
}

TEST(GgufKeys, OfEachArchitecture_AreReadOrHarmlessOrRefusedByName) {
  for (const Family* family : families()) {
    const std::string arch(family->architecture);
    if (arch.empty()) continue;
    const Values base = base_values(arch);
    const Scratch scratch;
    write_bytes(scratch / "base.gguf", file_bytes(base));
    const io::GgufFile file(scratch / "base.gguf");
    const DecoderConfig before = config_of_gguf(file, family_of_gguf(file));
    walk(base, known_keys(arch + ".", arch), arch,
         [&before](const io::GgufFile& changed) { return config_of_gguf(changed, family_of_gguf(changed)) != before; });
  }
}

TEST(GgufKeys, GeneralAndSplit_AreReadOrHarmlessOrRefusedByName) {
  const Values base = base_values("llama");
  const Scratch scratch;
  write_bytes(scratch / "base.gguf", file_bytes(base));
  const io::GgufFile file(scratch / "base.gguf");
  const DecoderConfig before = config_of_gguf(file, family_of_gguf(file));
  const Differs differs = [&before](const io::GgufFile& changed) {
    return config_of_gguf(changed, family_of_gguf(changed)) != before;
  };
  walk(base, known_keys("general."), "", differs);
  walk(base, known_keys("split."), "", differs);
}

/// Reads the base file of an architecture with some values changed.
DecoderConfig config_with(const std::string& arch, const Values& changes) {
  Values values = base_values(arch);
  for (const auto& [key, value] : changes)
    values[key == "general.type" ? key : fmt::format("{}.{}", arch, key)] = value;
  const Scratch scratch;
  write_bytes(scratch / "m.gguf", file_bytes(values));
  const io::GgufFile file(scratch / "m.gguf");
  return config_of_gguf(file, family_of_gguf(file));
}

void expect_refused(const std::string& arch, const Values& changes, const std::string& why) {
  try {
    config_with(arch, changes);
    ADD_FAILURE() << "read without complaint; expected: " << why;
  } catch (const io::FileError& error) {
    EXPECT_NE(std::string(error.what()).find("/m.gguf: " + why), std::string::npos) << error.what();
  }
}

TEST(GgufRope, FactorWithoutAType_ScalesLinearly) {
  using layers::RopeScalingKind;
  for (const char* key : {"rope.scaling.factor", "rope.scale_linear"}) {
    const DecoderConfig config = config_with("llama", {{key, f32(4.0F)}});
    EXPECT_EQ(config.rope_scaling, RopeScalingKind::linear) << "as in llama.cpp";
    EXPECT_EQ(config.rope_factor, 4.0);
    EXPECT_EQ(config_with("llama", {{key, f32(0.0F)}}).rope_scaling, RopeScalingKind::none) << "as in llama.cpp";
  }
  const Values both{{"rope.scaling.factor", f32(4.0F)}, {"rope.scale_linear", f32(2.0F)}};
  EXPECT_EQ(config_with("llama", both).rope_factor, 4.0) << "the second key is the former name";
  const Values none{{"rope.scaling.factor", f32(4.0F)}, {"rope.scaling.type", string("none")}};
  EXPECT_EQ(config_with("llama", none).rope_scaling, RopeScalingKind::none);
  EXPECT_EQ(config_with("llama", {}).rope_scaling, RopeScalingKind::none);
}

TEST(GgufRope, YarnWithoutAnOriginalLength_HasThatOfTheContext) {
  const Values yarn{{"rope.scaling.factor", f32(4.0F)}, {"rope.scaling.type", string("yarn")}};
  const DecoderConfig config = config_with("qwen2", yarn);
  EXPECT_EQ(config.rope_scaling, layers::RopeScalingKind::yarn);
  EXPECT_EQ(config.rope_original_seq_len, 64) << "context_length";
}

TEST(GgufRope, PartOfAHead_IsThatOfLayersWithAWindowToo) {
  const Values half{{"rope.dimension_count", u32(16)}};
  EXPECT_EQ(config_with("gemma3", half).rope_fraction, 0.5);
  EXPECT_EQ(config_with("gemma3", half).sliding.rope_fraction, 0.5);
  EXPECT_EQ(config_with("afmoe", half).rope_fraction, 0.0);
  EXPECT_EQ(config_with("afmoe", half).sliding.rope_fraction, 0.5);
  EXPECT_EQ(config_with("afmoe", {}).sliding.rope_fraction, 1.0);
  Values inexact{{"attention.key_length", u32(104)},
                 {"attention.value_length", u32(104)},
                 {"rope.dimension_count", u32(60)},
                 {"rope.dimension_count_swa", u32(60)}};  // 60.0 / 104 * 104 < 60
  const DecoderConfig step = config_with("step35", inexact);
  EXPECT_EQ(rotary_dim(step.sliding.rope_fraction, step.head_dim), 60);
  EXPECT_EQ(rotary_dim(step.rope_fraction, step.head_dim), 30);
  inexact.erase("rope.dimension_count_swa");
  const DecoderConfig gemma = config_with("gemma3", inexact);
  EXPECT_EQ(rotary_dim(gemma.rope_fraction, gemma.head_dim), 60);
  expect_refused("llama", half, "llama.rope.dimension_count is 16; only 32 is supported");
  const Values odd{{"rope.dimension_count", u32(15)}};
  expect_refused("gemma3", odd, "gemma3.rope.dimension_count is 15 but must be even");
  const Values odd_in_windows{{"rope.dimension_count_swa", u32(15)}};
  expect_refused("step35", odd_in_windows, "step35.rope.dimension_count_swa is 15 but must be even");
}

TEST(GgufRope, ScaledWithWindowsOfAnotherBase_IsRefused) {
  const Values linear{{"rope.scaling.factor", f32(4.0F)}};
  for (const char* arch : {"afmoe", "step35"}) {
    expect_refused(
        arch, linear,
        std::string(arch) + ".rope.scaling.factor is 4; scaled RoPE of layers with a window is not supported");
  }
  EXPECT_EQ(config_with("gemma3", linear).rope_factor, 4.0) << "llama.cpp does not scale its windows";
  EXPECT_EQ(config_with("gpt-oss", linear).rope_factor, 4.0) << "all layers are scaled";
}

TEST(GgufValues, MissingKeysAndTensors_HaveLlamaCppsMeaning) {
  EXPECT_EQ(config_with("afmoe", {}).experts.renormalise, Switch::off);
  EXPECT_EQ(config_with("afmoe", {{"expert_weights_norm", boolean(true)}}).experts.renormalise, Switch::on);
  EXPECT_EQ(config_with("gpt-oss", {}).embeddings, Embeddings::separate) << "whose output.weight is required";
  EXPECT_EQ(config_with("llama", {}).embeddings, Embeddings::tied);
}

TEST(GgufValues, ValuesThatDoNotFit_AreRefusedByTheKeysOfTheFile) {
  expect_refused("llama", {{"block_count", u32(0)}}, "llama.block_count ");
  expect_refused("llama", {{"attention.head_count", u32(6)}},
                 "llama.attention.head_count 6 is not a multiple of llama.attention.head_count_kv 4");
  expect_refused("llama", {{"attention.layer_norm_rms_epsilon", f32(-1.0F)}},
                 "llama.attention.layer_norm_rms_epsilon ");
  expect_refused("llama", {{"context_length", u32(0)}}, "llama.context_length ");
  expect_refused(
      "gpt-oss", {{"attention.sliding_window", u32(0)}},
      "gpt-oss.attention.sliding_window_pattern has sliding_attention, but gpt-oss.attention.sliding_window is 0");
  expect_refused("qwen35", {{"ssm.conv_kernel", u32(1)}}, "qwen35.ssm.conv_kernel ");
  expect_refused("qwen35moe", {{"expert_used_count", u32(7)}},
                 "qwen35moe.expert_used_count is 7, not from 1 to qwen35moe.expert_count 6");
}

TEST(GgufValues, FileOfAnotherType_IsRefused) {
  expect_refused("llama", {{"general.type", string("adapter")}},
                 "general.type is 'adapter'; only files of type 'model' are read");
  EXPECT_EQ(config_with("llama", {{"general.type", string("model")}}).layers, 5);
}

/// Returns the ids of texts that each part of a tokenizer changes.
std::vector<std::vector<std::int32_t>> ids_by(const io::GgufFile& file) {
  const auto tokenizer = tokenize::make_gguf_tokenizer(file.path(), tokenize::read_gguf_vocabulary(file));
  std::vector<std::vector<std::int32_t>> out;
  for (const char* text : {"ab a<s>b", " a12  é", "<u>ab"}) out.push_back(tokenizer->encode(text).ids);
  return out;
}

Values tokenizer_values(const std::string& model) {
  Values out{
      {"general.architecture", string("llama")},
      {"tokenizer.ggml.model", string(model)},
      {"tokenizer.ggml.tokens", strings({"<unk>", "<s>", "</s>", "a", "b", "ab", "1", "2", "\u2581", "\u0120", "<u>"})},
      {"tokenizer.ggml.token_type", list<std::int32_t>(GgufType::i32, {2, 3, 3, 1, 1, 1, 1, 1, 1, 1, 4})},
      {"tokenizer.ggml.add_bos_token", boolean(true)},
      {"tokenizer.ggml.add_eos_token", boolean(true)},
      {"tokenizer.ggml.bos_token_id", u32(1)},
      {"tokenizer.ggml.eos_token_id", u32(2)}};
  if (model == "gpt2") {
    out["tokenizer.ggml.pre"] = string("gpt2");
    out["tokenizer.ggml.merges"] = strings({"a b"});
  } else {
    out["tokenizer.ggml.scores"] = list<float>(GgufType::f32, std::vector<float>(11, -1.0F));
  }
  return out;
}

TEST(GgufKeys, OfEachTokenizer_AreReadOrHarmlessOrRefusedByName) {
  for (const std::string model : {"gpt2", "llama"}) {
    const Values base = tokenizer_values(model);
    const Scratch scratch;
    write_bytes(scratch / "base.gguf", file_bytes(base));
    const auto before = ids_by(io::GgufFile(scratch / "base.gguf"));
    walk(base, known_keys("tokenizer."), model, [&before](const io::GgufFile& file) { return ids_by(file) != before; });
  }
}

TEST(GgufKeys, HarmlessOnes_HaveReasons) {
  for (const io::HarmlessGgufKey& row : io::kHarmlessGgufKeys) EXPECT_FALSE(row.why.empty()) << row.key;
}

}  // namespace
}  // namespace headgate::models
