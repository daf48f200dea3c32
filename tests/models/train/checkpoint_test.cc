// SPDX-License-Identifier: Apache-2.0
#include "models/train/checkpoint.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "models/decoder/tiny.hpp"
#include "models/families/config_file.hpp"
#include "models/families/modeling_code.hpp"
#include "models/io/file_error.hpp"
#include "models/io/safetensors.hpp"
#include "models/io/scratch.hpp"
#include "models/train/saved_checkpoint.hpp"

namespace headgate::train {
namespace {

using headgate::testing::read_bytes;
using headgate::testing::SavedCheckpoint;
using headgate::testing::Scratch;
using headgate::testing::small_config;
using headgate::testing::write_bytes;

class CheckpointTest : public ::testing::Test {
 protected:
  void expect_refused(CheckpointParts parts, const std::string& file, const std::string& why = "") {
    try {
      load_checkpoint(directory, parts);
      ADD_FAILURE() << "read without complaint, not: " << file << " " << why;
    } catch (const io::FileError& error) {
      const std::string what = error.what();
      EXPECT_TRUE(what.starts_with(directory + "/" + file + ": ")) << what << "\ndoes not name " << file;
      EXPECT_NE(what.find(why), std::string::npos) << what << "\nlacks: " << why;
      EXPECT_EQ(what.find('\n'), std::string::npos) << what;
    }
  }

  SavedCheckpoint model{small_config()};
  Scratch scratch;
  std::string directory = scratch / "run/checkpoint";
};

TEST_F(CheckpointTest, Checkpoint_SavedAndLoaded_IsBitwiseIdentical) {
  EXPECT_FALSE(is_checkpoint(directory));
  save_checkpoint(directory, model.view());
  EXPECT_TRUE(is_checkpoint(directory));
  const Checkpoint all = load_checkpoint(directory, CheckpointParts::all);
  EXPECT_EQ(all.config, model.config);
  EXPECT_EQ(all.parameters, model.parameters);
  EXPECT_EQ(all.first_moment, model.first);
  EXPECT_EQ(all.second_moment, model.second);
  EXPECT_EQ(all.trainer_state, model.state);
  const Checkpoint alone = load_checkpoint(directory, CheckpointParts::model);
  EXPECT_EQ(alone.parameters, model.parameters);
  EXPECT_TRUE(alone.first_moment.empty());
  EXPECT_EQ(alone.trainer_state, model.state);
}

/// A model for which transformers has no family has its code beside its config. Loading it here does not need the code.
TEST_F(CheckpointTest, Checkpoint_ArchitectureOfHeadgate_HasItsCode) {
  save_checkpoint(directory, model.view());
  const std::string code = directory + "/modeling_headgate.py";
  EXPECT_FALSE(std::filesystem::exists(code)) << "a baseline is transformers' Qwen3";
  EXPECT_EQ(read_bytes(directory + "/config.json").find("auto_map"), std::string::npos);
  models::DecoderConfig config = small_config();
  config.gate = layers::parse_gate("headwise");
  const SavedCheckpoint gated(config);
  save_checkpoint(directory, gated.view());
  EXPECT_EQ(read_bytes(code), models::modeling_code());
  EXPECT_NE(read_bytes(code).find("class HeadgateForCausalLM("), std::string::npos);
  const std::string text = read_bytes(directory + "/config.json");
  EXPECT_NE(text.find("\"AutoModelForCausalLM\": \"modeling_headgate.HeadgateForCausalLM\""), std::string::npos)
      << text;
  EXPECT_NE(text.find("\"AutoConfig\": \"modeling_headgate.HeadgateConfig\""), std::string::npos) << text;
  std::filesystem::remove(code);  // as a checkpoint of an older version
  EXPECT_EQ(load_checkpoint(directory, CheckpointParts::all).parameters, gated.parameters);
  save_checkpoint(directory, gated.view());
  EXPECT_TRUE(std::filesystem::exists(code));
  save_checkpoint(directory, model.view());
  EXPECT_FALSE(std::filesystem::exists(code)) << "it belongs to the checkpoint that was replaced";
}

TEST_F(CheckpointTest, Model_OfAPublicFamily_IsWrittenAsThat) {
  models::DecoderConfig config = small_config();
  config.qk_norm = models::QkNorm::none;
  const SavedCheckpoint llama(config);
  save_checkpoint(directory, llama.view());
  EXPECT_NE(read_bytes(directory + "/config.json").find("\"model_type\": \"llama\""), std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(directory + "/modeling_headgate.py"));
  const Checkpoint back = load_checkpoint(directory, CheckpointParts::all);
  EXPECT_EQ(back.config, config);
  EXPECT_EQ(back.parameters, llama.parameters);
}

/// Its files have the gate's rows among those of q, and a convolution of another shape.
TEST_F(CheckpointTest, Hybrid_ThatQwen35Computes_IsWrittenAsThat) {
  models::DecoderConfig config = small_config();
  config.layer_types = {models::LayerType::linear_attention, models::LayerType::full_attention};
  config.linear.key_heads = config.linear.value_heads = 2;
  config.linear.key_dim = config.linear.value_dim = 8;
  config.norm = layers::NormKind::zero_centred;
  config.gate = layers::parse_gate("elementwise");
  for (const double rope_fraction : {0.5, 1.0}) {
    config.rope_fraction = rope_fraction;
    const SavedCheckpoint hybrid(config);
    save_checkpoint(directory, hybrid.view());
    const std::string text = read_bytes(directory + "/config.json");
    EXPECT_NE(text.find("\"model_type\": \"qwen3_5_text\""), std::string::npos) << text;
    EXPECT_EQ(text.find("gate_"), std::string::npos) << "keys of Headgate";
    EXPECT_FALSE(std::filesystem::exists(directory + "/modeling_headgate.py"));
    const Checkpoint back = load_checkpoint(directory, CheckpointParts::all);
    EXPECT_EQ(back.config, config);
    EXPECT_EQ(back.parameters, hybrid.parameters);
    EXPECT_EQ(back.first_moment, hybrid.first);
    EXPECT_EQ(
        io::SafetensorsReader(directory + "/model.safetensors").find("model.layers.1.self_attn.q_proj.weight")->shape,
        (std::vector<std::int64_t>{32, 8}));
  }
  for (const auto& change : std::vector<void (*)(models::DecoderConfig&)>{
           [](auto& c) { c.norm = layers::NormKind::plain; }, [](auto& c) { c.qk_norm = models::QkNorm::none; },
           [](auto& c) { c.gate = layers::parse_gate("headwise"); }, [](auto& c) { c.gate.init_std = 0.5; },
           [](auto& c) { c.gate = layers::parse_gate("elementwise-learned_sinks"); },
           [](auto& c) { c.linear.beta_scale = 2.0; },
           [](auto& c) { c.norm_placement = models::NormPlacement::sandwich; }}) {
    models::DecoderConfig other = config;
    change(other);
    save_checkpoint(directory, SavedCheckpoint(other).view());
    const std::string text = read_bytes(directory + "/config.json");
    EXPECT_NE(text.find("\"model_type\": \"headgate\""), std::string::npos) << text;
    EXPECT_EQ(load_checkpoint(directory, CheckpointParts::all).config, other);
  }
}

/// The code computes layers of all kinds, but no experts.
TEST_F(CheckpointTest, Hybrid_ArchitectureOfHeadgate_HasItsCode) {
  const std::string code = directory + "/modeling_headgate.py";
  std::vector<models::DecoderConfig> families = models::mixed_families();
  families.front().norm = layers::NormKind::plain;  // which makes it none of Qwen3.5
  for (const models::DecoderConfig& config : families) {
    save_checkpoint(directory, SavedCheckpoint(config).view());
    EXPECT_EQ(read_bytes(code), models::modeling_code());
    const std::string text = read_bytes(directory + "/config.json");
    EXPECT_NE(text.find("\"AutoModelForCausalLM\": \"modeling_headgate.HeadgateForCausalLM\""), std::string::npos)
        << text;
    std::filesystem::remove_all(directory);
  }
  std::filesystem::create_directories(directory);
  for (const models::DecoderConfig& config : models::expert_families()) {
    models::write_config_files(directory, models::write_config(config));
    EXPECT_FALSE(std::filesystem::exists(code));
  }
}

TEST_F(CheckpointTest, State_ThatNamesNoPart_IsRefused) {
  CheckpointView view = model.view();
  view.trainer_state = R"({"train_only": "norms"})";
  save_checkpoint(directory, view);
  expect_refused(CheckpointParts::all, "trainer_state.json", "train_only");
  view.trainer_state = R"({"train_only": "gates"})";
  save_checkpoint(directory, view);
  expect_refused(CheckpointParts::all, "trainer_state.json", "the model has no gates");
}

TEST_F(CheckpointTest, Model_WithoutTrainerState_CannotBeResumed) {
  save_checkpoint(directory, model.view());
  CheckpointView view = model.view();
  view.first_moment = nullptr;
  view.trainer_state.clear();
  save_checkpoint(directory, view);
  EXPECT_EQ(load_checkpoint(directory, CheckpointParts::model).parameters, model.parameters);
  EXPECT_EQ(load_checkpoint(directory, CheckpointParts::model).trainer_state, "");
  expect_refused(CheckpointParts::all, "optimizer.safetensors", "No such file");
}

TEST_F(CheckpointTest, TrainerState_OfTransformers_IsIgnored) {
  CheckpointView view = model.view();
  view.trainer_state = R"({"epoch": 1.0, "global_step": 5, "log_history": [{"loss": NaN, "step": 5}]})";
  save_checkpoint(directory, view);
  EXPECT_EQ(read_trainer_state(directory), "");
  EXPECT_EQ(load_checkpoint(directory, CheckpointParts::model).trainer_state, "");
}

TEST_F(CheckpointTest, File_MissingOrTruncated_IsNamed) {
  for (const char* file : {"config.json", "model.safetensors", "optimizer.safetensors"}) {
    save_checkpoint(directory, model.view());
    const std::string path = directory + "/" + file;
    const std::string whole = read_bytes(path);
    write_bytes(path, whole.substr(0, whole.size() - 3));
    expect_refused(CheckpointParts::all, file);
    write_bytes(path, "");
    expect_refused(CheckpointParts::all, file);
    std::filesystem::remove(path);
    expect_refused(CheckpointParts::all, file, "No such file");
  }
  save_checkpoint(directory, model.view());
  std::filesystem::remove(directory + "/trainer_state.json");
  expect_refused(CheckpointParts::all, "trainer_state.json", "No such file");
  write_bytes(directory + "/trainer_state.json", std::string((std::size_t{1} << 24) + 1, ' '));
  expect_refused(CheckpointParts::all, "trainer_state.json", "at most");
}

TEST_F(CheckpointTest, Files_OfDifferentCheckpoints_AreRefused) {
  save_checkpoint(directory, model.view());
  models::DecoderConfig wider = small_config();
  wider.ffn = 16;
  const SavedCheckpoint other(wider);
  save_checkpoint(scratch / "other", other.view());
  std::filesystem::copy_file(scratch / "other/optimizer.safetensors", directory + "/optimizer.safetensors",
                             std::filesystem::copy_options::overwrite_existing);
  expect_refused(CheckpointParts::all, "optimizer.safetensors", "mlp.gate_proj.weight.first_moment' is (16, 8)");
  std::filesystem::copy_file(scratch / "other/config.json", directory + "/config.json",
                             std::filesystem::copy_options::overwrite_existing);
  expect_refused(CheckpointParts::model, "model.safetensors", "mlp.gate_proj.weight' is (12, 8)");
  models::DecoderConfig gated = small_config();
  gated.gate = layers::parse_gate("headwise");
  save_checkpoint(scratch / "gated", SavedCheckpoint(gated).view());
  std::filesystem::copy_file(scratch / "gated/config.json", directory + "/config.json",
                             std::filesystem::copy_options::overwrite_existing);
  expect_refused(CheckpointParts::model, "model.safetensors", "self_attn.gate_proj.weight' is missing");
}

TEST_F(CheckpointTest, Directory_WithOtherFiles_IsNotReplaced) {
  std::filesystem::create_directories(directory);
  write_bytes(directory + "/notes.txt", "mine");
  EXPECT_THROW(save_checkpoint(directory, model.view()), io::FileError);
  EXPECT_EQ(read_bytes(directory + "/notes.txt"), "mine");
  EXPECT_FALSE(is_checkpoint(directory));
}

}  // namespace
}  // namespace headgate::train
